"""Fusion: nodes that one kernel computes become one group node.

Nothing here lists operators: how a node may be fused follows from its compute expressions, from
which elements of its operands each element of its result reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.ir.compute import (
    AssembleStage,
    ComputeStage,
    placeholder,
    Reduce,
    stage_exprs,
    Tensor,
    topological,
)
from toolkit.ir.expr import Binary, Call, Load, loads, Var, walk
from toolkit.ir.graph import Graph, Node
from toolkit.ops.op import apply_op, Op

GROUP = "nestling:Group"
GROUP_LIMIT = 24
"""Nodes in one group at most: keeps generated functions readable and compile time linear."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """How a node computes.

    `injective`: no reduction, scan, scatter or opaque stage.  `cheap`: only moves data.
    `same[i]`: operand i is read just at the element that is written, shapes equal.
    """

    injective: bool
    cheap: bool
    same: tuple[bool, ...]
    whole: bool
    """Some stage is a scan, scatter, assembly or opaque: not fused with anything before it."""


def pattern(op: Op, node: Node, graph: Graph) -> Pattern:
    """Classify a node by its compute expressions."""
    operands: list[Tensor | None] = [
        placeholder(graph.types[n].shape, graph.types[n].dtype, n, graph.consts.get(n))
        if n
        else None
        for n in node.inputs
    ]
    results = [t for t in apply_op(op, node, operands, graph.opset) if t is not None]
    stages = [t for t in topological(results) if t.stage is not None]
    plain = all(isinstance(t.stage, ComputeStage) for t in stages)
    whole = not all(isinstance(t.stage, ComputeStage) for t in stages)
    injective = plain and not any(
        isinstance(t.stage, ComputeStage) and isinstance(t.stage.body, Reduce) for t in stages
    )
    cheap = (injective or all(isinstance(t.stage, AssembleStage) for t in stages)) and not any(
        e.dtype != "index" and isinstance(e, Binary | Call)
        for t in stages
        for x in stage_exprs(t.stage)  # type: ignore[arg-type]
        for e in walk(x)
    )
    same = []
    for operand in operands:
        if operand is None or not injective or len(results) != 1:
            same.append(False)
            continue
        same.append(
            operand.shape == results[0].shape
            and all(
                _identity(load, t)
                for t in stages
                for x in stage_exprs(t.stage)  # type: ignore[arg-type]
                for load in loads(x)
                if load.buffer is operand
            )
            and all(t.shape == operand.shape for t in stages)
        )
    return Pattern(injective, cheap, tuple(same), whole)


def _identity(load: Load, tensor: Tensor) -> bool:
    stage = tensor.stage
    assert isinstance(stage, ComputeStage)
    if len(load.indices) != len(stage.axes):
        return False
    return all(
        (isinstance(i, Var) and i.name == a.name) or a.extent == 1
        for i, a in zip(load.indices, stage.axes, strict=True)
    )


def fuse(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """Group nodes into kernels: element-wise chains behind whatever they follow.

    A region grows from a node over the element-wise nodes behind it as long as only one tensor
    leaves it.
    """
    patterns = {
        id(n): pattern(ops[n.op_id], n, graph)
        for n in graph.nodes
        if n.op_id in ops
        and not ops[n.op_id].view
        and not any(isinstance(v, Graph) for v in n.attrs.values())
    }
    consumers = graph.consumers()
    outputs = set(graph.outputs)
    order = {id(n): i for i, n in enumerate(graph.nodes)}
    taken: set[int] = set()
    groups: list[list[Node]] = []
    for node in graph.nodes:
        if id(node) in taken:
            continue
        taken.add(id(node))
        group = [node]
        if id(node) in patterns and len([o for o in node.outputs if o]) == 1:
            group = _grow(node, patterns, consumers, outputs, order, taken)
            taken.update(id(n) for n in group)
        groups.append(group)
    if all(len(g) == 1 for g in groups):
        return graph
    groups.sort(key=lambda g: order[id(g[-1])])
    return graph.with_(nodes=tuple(_group_node(g, graph, consumers, outputs) for g in groups))


def _grow(
    node: Node,
    patterns: Mapping[int, Pattern],
    consumers: Mapping[str, list[Node]],
    outputs: set[str],
    order: Mapping[int, int],
    taken: set[int],
) -> list[Node]:
    """Return the largest region behind `node` from which one tensor leaves."""
    best = region = [node]
    made = {node.outputs[0]}
    pending = sorted(
        {id(c): c for c in consumers.get(node.outputs[0], [])}.values(), key=lambda n: order[id(n)]
    )
    while pending and len(region) < GROUP_LIMIT:
        candidate = pending.pop(0)
        shape = patterns.get(id(candidate))
        if shape is None or id(candidate) in taken or len(candidate.outputs) != 1:
            break
        if not all(
            shape.same[i] for i, n in enumerate(candidate.inputs) if n in made
        ):
            break
        region = [*region, candidate]
        made.add(candidate.outputs[0])
        inside = {id(n) for n in region}
        fresh = {id(c): c for c in consumers.get(candidate.outputs[0], [])}
        known = {id(p) for p in pending} | inside
        pending = sorted(
            [*pending, *(c for i, c in fresh.items() if i not in known)], key=lambda n: order[id(n)]
        )
        leaving = [
            n.outputs[0]
            for n in region
            if n.outputs[0] in outputs
            or any(id(c) not in inside for c in consumers.get(n.outputs[0], []))
            or not consumers.get(n.outputs[0])
        ]
        if leaving == [region[-1].outputs[0]]:
            best = region
    return best


def _group_node(
    group: list[Node],
    graph: Graph,
    consumers: Mapping[str, list[Node]],
    outputs: set[str],
) -> Node:
    """Return the node of a group; a single node stays itself."""
    if len(group) == 1:
        return group[0]
    made = {o for n in group for o in n.outputs if o}
    reads = tuple(dict.fromkeys(i for n in group for i in n.inputs if i and i not in made))
    leaving = (group[-1].outputs[0],)
    names = made | set(reads)
    body = Graph(
        name="+".join(n.op for n in group),
        nodes=tuple(group),
        inputs=tuple(n for n in reads if n not in graph.consts),
        outputs=leaving,
        types={k: graph.types[k] for k in names},
        consts={k: graph.consts[k] for k in reads if k in graph.consts},
        opset=graph.opset,
    )
    domain, op = GROUP.split(":")
    return Node(group[0].name, op, body.inputs, leaving, {"body": body}, domain)
