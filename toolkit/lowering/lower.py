"""A graph of fused groups to a `Program`: kernels shared by equal groups, steps, arena plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from toolkit.codegen.lower import lower_func
from toolkit.codegen.names import c_name
from toolkit.ir.graph import Graph, Node
from toolkit.ir.loop import PrimFunc
from toolkit.ir.program import Call, Jump, JumpIfNot, Kernel, Program, Step
from toolkit.ir.types import DTYPES, TensorType, type_of
from toolkit.lowering.kernels import (
    func_key,
    group_kernel,
    GroupKernel,
    inplace_pairs,
    merge_inplace,
    pack_constant,
    packing,
    schedule,
)
from toolkit.lowering.plan_memory import Plan, plan, Storage
from toolkit.ops.op import Op
from toolkit.passes.fuse import GROUP
from toolkit.passes.views import is_view, joined_offsets, part_offsets
from toolkit.schedule.default import Trace
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.pad import PadConstant
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS


@dataclass(slots=True)
class _RawCall:
    """A call before kernels are shared and storage is planned."""

    group: GroupKernel
    nodes: tuple[Node, ...]
    func: object = None
    comment: tuple[str, ...] = ()


@dataclass(slots=True)
class _Lowering:
    """Collects the steps of a graph and its branches.  Lives for one `lower`."""

    ops: Mapping[str, Op]
    types: dict[str, TensorType]
    consts: dict[str, np.ndarray]
    steps: list[_RawCall | Jump | JumpIfNot] = field(default_factory=list)
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
        self.steps.append(_RawCall(replace(kernel, inputs=inputs), nodes))

    def copy(self, source: str, target: str) -> None:
        """Append a call that copies a tensor."""
        node = Node(f"copy to {target}", "Identity", (source,), (target,))
        consts = {source: self.consts[source]} if source in self.consts else {}
        kernel = group_kernel(self.ops, (node,), (target,), self.types, consts, self.opset)
        self.types[target] = self.types[source]
        self.steps.append(_RawCall(kernel, (node,)))

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


def lower(
    graph: Graph,
    ops: Mapping[str, Op],
    *,
    name: str,
    isa: Isa = ISAS["scalar"],
    align: int = 8,
    digest: str | None = None,
) -> Program:
    """Lower a graph in which fusion has run.  `align`: bytes, of every tensor in the arena."""
    work = _Lowering(ops, dict(graph.types), dict(graph.consts), opset=graph.opset)
    work.graph(graph)
    outputs = _own_outputs(work, graph)
    storages, owner = _lifetimes_before_inplace(work, graph, outputs)
    kernels, steps, scratch, merged = _share_kernels(work, storages, owner, graph, isa)
    result, offsets = _plan(work, graph, outputs, steps, scratch, merged, align)
    used = {n for s in steps if isinstance(s, Call) for n in s.inputs if n in work.consts}
    consts, same = _dedupe({n: work.consts[n] for n in work.consts if n in used})
    steps = [
        Call(s.kernel, s.outputs, tuple(same.get(n, n) for n in s.inputs), s.scratch, s.nodes)
        if isinstance(s, Call)
        else s
        for s in steps
    ]
    types = {**work.types, **scratch, **{n: type_of(v) for n, v in consts.items()}}
    return Program(
        name, tuple(kernels), tuple(steps), types, consts, offsets, graph.inputs, outputs,
        result.arena_bytes, result.lower_bound_bytes, digest or graph.digest(),
    )  # fmt: skip


def _own_outputs(work: _Lowering, graph: Graph) -> tuple[str, ...]:
    """Give every graph output a place in the arena: constants and conditional steps are copied."""
    outputs = []
    for position, out in enumerate(graph.outputs):
        if work.root(out) in work.consts:
            target = f"{out}.copy{position}"
            work.types[target] = graph.types[out]
            work.copy(out, target)
            outputs.append(target)
        else:
            outputs.append(out)
    return tuple(outputs)


def _lifetimes_before_inplace(
    work: _Lowering, graph: Graph, outputs: tuple[str, ...]
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the last step that reads each storage root (the end for outputs)."""
    last: dict[str, int] = {}
    end = len(work.steps)
    for index, step in enumerate(work.steps):
        names: tuple[str, ...] = ()
        if isinstance(step, _RawCall):
            names = (*step.group.inputs, *step.group.outputs)
        elif isinstance(step, JumpIfNot):
            names = (step.cond,)
        for n in names:
            last[work.root(n)] = index
    for n in outputs:
        last[work.root(n)] = end
    return last, {}


def _share_kernels(
    work: _Lowering, last: dict[str, int], owner: dict[str, str], graph: Graph, isa: Isa
) -> tuple[list[Kernel], list[Step], dict[str, TensorType], dict[str, str]]:
    """Schedule each group, decide in-place storage, and give equal functions one kernel."""
    kernels: list[Kernel] = []
    by_key: dict[str, Kernel] = {}
    scheduled: dict[str, tuple[PrimFunc, Trace, dict[str, str]]] = {}
    names: set[str] = set()
    steps: list[Step] = []
    scratch_types: dict[str, TensorType] = {}
    merged: dict[str, str] = {}
    written = _write_counts(work)

    def storage(n: str) -> str:
        return _storage(work, merged, n)[0]

    for index, step in enumerate(work.steps):
        if not isinstance(step, _RawCall):
            steps.append(step)
            continue
        base_key = func_key(step.group.func)
        if base_key not in scheduled:
            func, trace = schedule(step.group.func, isa)
            scheduled[base_key] = (func, trace, inplace_pairs(func))
        func, trace, pairs = scheduled[base_key]
        chosen: dict[str, str] = {}
        formal_in = [b.name for b in func.inputs]
        formal_out = [b.name for b in func.outputs]
        for formal, target in pairs.items():
            actual = step.group.inputs[formal_in.index(formal)]
            out = step.group.outputs[formal_out.index(target)]
            source = storage(actual)
            free = (
                actual not in work.consts
                and source not in work.consts
                and max(last.get(n, -1) for n in (work.root(actual), source)) == index
                and sum(storage(n) == source for n in step.group.inputs) == 1
                and written.get(work.root(out), 0) == 1
                and written.get(source, 0) <= 1
                and target not in chosen.values()
                and work.root(out) == out
            )
            if free:
                chosen[formal] = target
                merged[out] = actual
                last[source] = last.get(out, index)
        key = base_key + repr(sorted(chosen.items()))
        if key not in by_key:
            kernel_name = _unique(step.group.func.name, names)
            kernel = Kernel(
                kernel_name, merge_inplace(func, chosen), _comment(step, trace, work), dict(chosen)
            )
            by_key[key] = kernel
            kernels.append(kernel)
        kernel = by_key[key]
        scratch = []
        for b in lower_func(kernel.func).locals:
            if b.scope == "scratch":
                scratch_name = f"{index}.{b.name}"
                scratch_types[scratch_name] = b.type
                scratch.append(scratch_name)
        inputs = tuple(
            _packed(work, n, formal, trace)
            for n, formal in zip(step.group.inputs, formal_in, strict=True)
            if formal not in chosen
        )
        steps.append(
            Call(
                kernel.name, step.group.outputs, inputs, tuple(scratch),
                tuple(n.name for n in step.nodes),
            )
        )  # fmt: skip
    return kernels, steps, scratch_types, merged


def _storage(work: _Lowering, merged: Mapping[str, str], name: str) -> tuple[str, int]:
    """Return the storage of a tensor, and its first byte there, with in-place results `merged`."""
    name, at = work.place(name)
    while name in merged:
        name, step = work.place(merged[name])
        at += step
    return name, at


def _packed(work: _Lowering, name: str, formal: str, trace: object) -> str:
    """Return the name of a kernel's operand: of a constant, in the layout its trace wants."""
    if name not in work.consts:
        return name
    assert isinstance(trace, tuple)
    steps = packing(trace, formal)
    if not steps:
        return name
    packed = ".".join([name, *(_layout_tag(s) for s in steps)])
    if packed not in work.consts:
        work.consts[packed] = pack_constant(work.consts[name], steps)
    return packed


def _layout_tag(step: PadConstant | Pack) -> str:
    if isinstance(step, PadConstant):
        return f"pad{step.dim}x{step.multiple}"
    return f"pack{step.dim}x{step.factor}"


def _write_counts(work: _Lowering) -> dict[str, int]:
    """Count the steps that write each storage root: two for the outputs of an `If`."""
    counts: dict[str, int] = {}
    for step in work.steps:
        if isinstance(step, _RawCall):
            for n in step.group.outputs:
                counts[work.root(n)] = counts.get(work.root(n), 0) + 1
    return counts


def _comment(step: _RawCall, trace: object, work: _Lowering) -> tuple[str, ...]:
    """Say above a kernel what it computes and the trace that made it."""
    lines = [
        f"{node.op_id}: "
        + ", ".join(str(work.types[i]) for i in node.inputs if i and i in work.types)
        + " -> "
        + ", ".join(str(work.types[o]) for o in node.outputs if o and o in work.types)
        for node in step.nodes
    ]
    assert isinstance(trace, tuple)
    lines.append("trace: " + ("; ".join(map(str, trace)) or "none"))
    return tuple(line.replace("*/", "* /") for line in lines)


def _unique(wanted: str, taken: set[str]) -> str:
    base = c_name(wanted)
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    taken.add(name)
    return name


def _plan(
    work: _Lowering,
    graph: Graph,
    outputs: tuple[str, ...],
    steps: list[Step],
    scratch: dict[str, TensorType],
    merged: dict[str, str],
    align: int,
) -> tuple[Plan, dict[str, int]]:
    """Plan the arena; return the plan and the offset of every tensor in it."""

    first: dict[str, int] = {}
    last: dict[str, int] = {}
    size: dict[str, int] = {}

    def touch(n: str, at: int) -> None:
        root, offset = _storage(work, merged, n)
        if root in work.consts:
            return
        kind = scratch.get(n) or work.types[n]
        size[root] = max(size.get(root, 0), offset + kind.nbytes)
        first[root] = min(first.get(root, at), at)
        last[root] = max(last.get(root, at), at)

    for n in graph.inputs:
        touch(n, 0)
    for index, step in enumerate(steps):
        if isinstance(step, Call):
            for n in (*step.outputs, *step.inputs, *step.scratch):
                touch(n, index)
        elif isinstance(step, JumpIfNot):
            touch(step.cond, index)
    for n in outputs:
        touch(n, len(steps))
    result = plan(
        [Storage(n, size[n], first[n], last[n]) for n in size], align
    )
    names = {*graph.inputs, *outputs, *work.types, *scratch, *merged}
    offsets = {}
    for n in names:
        root, offset = _storage(work, merged, n)
        if root in result.offsets:
            offsets[n] = result.offsets[root] + offset
    return result, offsets


def _dedupe(consts: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Keep one of equal constants; return them and the renames."""
    kept: dict[str, np.ndarray] = {}
    same: dict[str, str] = {}
    seen: dict[bytes, str] = {}
    for name, value in consts.items():
        data = np.ascontiguousarray(value)
        digest = hashlib.sha256(f"{data.dtype}{data.shape}".encode() + data.tobytes()).digest()
        if digest in seen:
            same[name] = seen[digest]
        else:
            seen[digest] = name
            kept[name] = data
    return kept, same
