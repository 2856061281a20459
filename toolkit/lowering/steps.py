"""A graph of fused groups as steps: kernel calls, jumps, views; not yet scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.program import Jump, JumpIfNot
from toolkit.ir.types import DTYPES, TensorType, type_of
from toolkit.lowering.kernels import group_kernel, GroupKernel
from toolkit.ops.op import Op
from toolkit.passes.fuse import GROUP
from toolkit.passes.views import is_view, joined_offsets, part_offsets


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call before kernels are shared and storage is planned."""

    group: GroupKernel
    nodes: tuple[Node, ...]


@dataclass(slots=True)
class Steps:
    """Collects the steps of a graph and its branches.  Lives for one `lower`."""

    ops: Mapping[str, Op]
    types: dict[str, TensorType]
    consts: dict[str, np.ndarray]
    steps: list[RawCall | Jump | JumpIfNot] = field(default_factory=list)
    alias: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Views: tensor -> (the tensor in whose storage it lies, its first byte there)."""
    opset: int = 0

    def place(self, name: str) -> tuple[str, int]:
        """Return the tensor in whose storage a tensor lies, and its first byte there."""
        at = 0
        while name in self.alias:
            name, step = self.alias[name]
            at += step
        return name, at

    def root(self, name: str) -> str:
        """Return the tensor in whose storage a tensor lies."""
        return self.place(name)[0]

    def graph(self, graph: Graph) -> None:
        """Append the steps of a graph whose tensor names are unique in the program."""
        self.opset = graph.opset
        for name, value in graph.consts.items():
            self.consts[name] = value
        for name, kind in graph.types.items():
            self.types[name] = kind
        made: set[str] = set()
        for node in graph.nodes:
            outputs = tuple(o for o in node.outputs if o)
            if node.op == "If" and not node.domain:
                self.branch(node)
            elif node.op_id == GROUP:
                body: Graph = node.attrs["body"]
                self.call(body.nodes, outputs, {**graph.types, **body.types}, body)
                made.update(outputs)
            elif self.view(node) or self.join(node, made):
                pass
            else:
                self.call((node,), outputs, graph.types, graph)
                made.update(outputs)

    def view(self, node: Node) -> bool:
        """Give the results of a node that reshapes or cuts their places in its operand, if any."""
        source = node.inputs[0] if node.inputs else ""
        if source in self.consts:
            return False
        if self.ops[node.op_id].view:
            self.alias[node.outputs[0]] = (source, 0)
            return True
        parts = part_offsets(node, self.types, self.consts)
        if parts is None:
            return False
        width = DTYPES[self.types[source].dtype].nbytes
        self.alias.update((n, (source, at * width)) for n, at in parts.items())
        return True

    def join(self, node: Node, made: set[str]) -> bool:
        """Let what makes the operands of a Concat write into its result, if they are runs of it.

        `made`: tensors that calls write, all bytes, in this graph.  Other operands are copied.
        """
        starts = joined_offsets(node, self.types)
        if starts is None:
            return False
        places = [self.place(n) for n in node.inputs]
        own = [
            root in made and at == 0 and self.types[root].nbytes == self.types[n].nbytes
            for n, (root, at) in zip(node.inputs, places, strict=True)
        ]
        if not any(own):
            return False
        target = node.outputs[0]
        width = DTYPES[self.types[target].dtype].nbytes
        for position, (name, start) in enumerate(zip(node.inputs, starts, strict=True)):
            root, _ = places[position]
            if own[position] and root not in self.alias:
                self.alias[root] = (target, start * width)
                continue
            part = f"{target}.part{position}"
            self.alias[part] = (target, start * width)
            self.copy(name, part)
        made.add(target)
        return True

    def call(
        self,
        nodes: tuple[Node, ...],
        outputs: tuple[str, ...],
        types: Mapping[str, TensorType],
        graph: Graph,
    ) -> None:
        """Append a call of the kernel that computes `nodes`, which are of `graph`."""
        consts = {n: self.consts[n] for node in nodes for n in node.inputs if n in self.consts}
        consts.update({n: v for n, v in graph.consts.items() if n not in consts})
        kernel = group_kernel(self.ops, nodes, outputs, types, consts, graph.opset)
        fresh = {}
        for name, value in kernel.tables.items():
            fresh[name] = name
            while fresh[name] in self.types:
                fresh[name] += "_"
            self.consts[fresh[name]] = value
            self.types[fresh[name]] = type_of(value)
        inputs = tuple(fresh.get(n, n) for n in kernel.inputs)
        self.steps.append(RawCall(replace(kernel, inputs=inputs), nodes))

    def copy(self, source: str, target: str) -> None:
        """Append a call that copies a tensor."""
        node = Node(f"copy to {target}", "Identity", (source,), (target,))
        consts = {source: self.consts[source]} if source in self.consts else {}
        kernel = group_kernel(self.ops, (node,), (target,), self.types, consts, self.opset)
        self.types[target] = self.types[source]
        self.steps.append(RawCall(kernel, (node,)))

    def branch(self, node: Node) -> None:
        """Lower `If`: only the chosen branch runs; both write the node's outputs."""
        test = len(self.steps)
        self.steps.append(JumpIfNot(node.inputs[0], -1))
        ends = []
        for position, key in enumerate(("then_branch", "else_branch")):
            body: Graph = node.attrs[key]
            renames = dict(zip(body.inputs, node.inputs[1:], strict=True))
            taken: dict[str, str] = {}
            made = {o for n in body.nodes for o in n.outputs if o}
            late: list[tuple[str, str]] = []
            for out, inner in zip(node.outputs, body.outputs, strict=True):
                if not out:
                    continue
                direct = inner in made and inner not in taken
                producer = next((n for n in body.nodes if inner in n.outputs), None)
                if producer is not None and is_view(producer, self.ops, body.types, body.consts):
                    direct = False
                if direct:
                    taken[inner] = out
                else:
                    late.append((inner, out))
            renames.update(taken)
            prefix = f"{node.name}.{key}."
            inner_graph = rename_graph(body, renames, prefix)
            self.graph(inner_graph)
            for inner, out in late:
                self.copy(renames.get(inner, prefix + inner), out)
            if position == 0:
                ends.append(len(self.steps))
                self.steps.append(Jump(-1))
                self.steps[test] = JumpIfNot(node.inputs[0], len(self.steps))
        self.steps[ends[0]] = Jump(len(self.steps))


def rename_graph(graph: Graph, renames: Mapping[str, str], prefix: str) -> Graph:
    """Return the graph with tensors renamed by `renames`, all others prefixed."""

    def name(old: str) -> str:
        return renames.get(old, prefix + old) if old else ""

    return graph.with_(
        nodes=tuple(
            n.with_(
                name=prefix + n.name,
                inputs=tuple(map(name, n.inputs)),
                outputs=tuple(map(name, n.outputs)),
                attrs={
                    k: rename_graph(v, renames, prefix)
                    if n.op_id == GROUP and isinstance(v, Graph)
                    else v
                    for k, v in n.attrs.items()
                },
            )
            for n in graph.nodes
        ),
        inputs=tuple(map(name, graph.inputs)),
        outputs=tuple(map(name, graph.outputs)),
        types={name(k): v for k, v in graph.types.items()},
        consts={name(k): v for k, v in graph.consts.items()},
    )
