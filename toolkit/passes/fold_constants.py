"""Evaluate at compile time what depends on constants only, and decide what they decide.

Nodes of constant operands become constants, `Shape` and `Size` follow from types, and an `If` whose
condition is a constant becomes the branch it takes.  Constants much larger than what they are made
of stay nodes (`frontend.reference.worth_folding`), and so do `DequantizeLinear` and
`QuantizeLinear`, whose stored form is the quantised one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from toolkit.frontend import reference
from toolkit.ir.graph import Graph, Node, prune
from toolkit.ir.types import TensorType, type_of

Infer = Callable[
    [Node, Mapping[str, TensorType], Mapping[str, np.ndarray], int], Sequence[TensorType | None]
]
"""A type rule: node, types and constants by name, opset -> output types (`ops.infer_node`)."""


@dataclass
class _State:
    """The graph being rebuilt."""

    nodes: list[Node]
    types: dict[str, TensorType]
    consts: dict[str, np.ndarray]
    renamed: dict[str, str] = field(default_factory=dict)
    changed: bool = False

    def constant(self, name: str, value: np.ndarray) -> None:
        self.consts[name] = value
        self.types[name] = type_of(value)
        self.changed = True


def fold_constants(graph: Graph, infer: Infer) -> Graph:
    """Return the graph with everything folded that constants decide; the same object if nothing.

    `infer` is asked for the types of tensors that `graph.types` lacks.
    """
    state = _State([], dict(graph.types), dict(graph.consts))
    for node in graph.nodes:
        _visit(state, node, infer, graph.opset)
    if not state.changed:
        return graph
    outputs = []
    for name in graph.outputs:
        ref = state.renamed.get(name, name)
        if ref != name:
            if ref in state.consts:
                state.constant(name, state.consts[ref])
            else:
                state.nodes.append(Node(f"Identity_{name}", "Identity", (ref,), (name,)))
                state.types[name] = state.types[ref]
        outputs.append(name)
    return prune(
        graph.with_(
            nodes=tuple(state.nodes),
            types=state.types,
            consts=state.consts,
            outputs=tuple(outputs),
        )
    )


def _visit(state: _State, node: Node, infer: Infer, opset: int) -> None:
    inputs = tuple(state.renamed.get(n, n) for n in node.inputs)
    node = node if inputs == node.inputs else node.with_(inputs=inputs)
    if node.op == "Constant" and not node.domain:
        state.constant(node.outputs[0], node.attrs["value"])
        return
    if any(isinstance(value, Graph) for value in node.attrs.values()):
        _visit_bodies(state, node, infer, opset)
        return
    if node.op in reference.OF_TYPE and not node.domain:
        state.constant(
            node.outputs[0], reference.evaluate_of_type(node, state.types[node.inputs[0]])
        )
        return
    missing = any(n and n not in state.types for n in node.outputs)
    if missing:
        found = infer(node, state.types, state.consts, opset)
        state.types.update((n, t) for n, t in zip(node.outputs, found, strict=True) if n and t)
        state.changed = True
    values = [state.consts.get(n) for n in node.inputs]
    known = all(v is not None or not n for n, v in zip(node.inputs, values, strict=True))
    if known and node.inputs and _foldable(state, node, values):
        try:
            results = reference.evaluate(node, values)
        except reference.CannotEvaluate:
            results = []
        if results:
            for name, result in zip(node.outputs, results, strict=True):
                if name:
                    state.constant(name, result)
            return
    state.nodes.append(node)


def _foldable(state: _State, node: Node, values: Sequence[np.ndarray | None]) -> bool:
    if node.domain or node.op in reference.RANDOM or node.op in reference.STORED:
        return False
    return reference.worth_folding(node, values, [state.types.get(n) for n in node.outputs])


def _visit_bodies(state: _State, node: Node, infer: Infer, opset: int) -> None:
    cond = state.consts.get(node.inputs[0]) if node.op == "If" else None
    if cond is not None:
        taken = "then_branch" if bool(cond.reshape(-1)[0]) else "else_branch"
        _inline(state, node, node.attrs[taken], infer, opset)
        return
    own = _own_inputs(node)
    attrs = dict(node.attrs)
    moved = {i for i in range(own, len(node.inputs)) if node.inputs[i] in state.consts}
    for key, body in node.attrs.items():
        if isinstance(body, Graph):
            attrs[key] = fold_constants(_with_constants(state, node, body, moved), infer)
    if moved or any(attrs[k] is not v for k, v in node.attrs.items()):
        state.changed = True
        inputs = tuple(n for i, n in enumerate(node.inputs) if i not in moved)
        node = node.with_(attrs=attrs, inputs=inputs)
    state.nodes.append(node)


def _own_inputs(node: Node) -> int:
    """Number of a node's own operands, before those its subgraphs capture."""
    carried: int = node.attrs.get("carried", 0)
    match node.op:
        case "If":
            return 1
        case "Loop":
            return 2 + carried
        case "Scan":
            return carried + int(node.attrs["num_scan_inputs"])
        case _:
            return len(node.inputs)


def _with_constants(state: _State, node: Node, body: Graph, moved: set[int]) -> Graph:
    """Make captured constants constants of the body."""
    if not moved:
        return body
    shift = len(node.inputs) - len(body.inputs)
    consts = dict(body.consts)
    for position in moved:
        consts[body.inputs[position - shift]] = state.consts[node.inputs[position]]
    kept = tuple(n for i, n in enumerate(body.inputs) if i + shift not in moved)
    return body.with_(inputs=kept, consts=consts)


def _inline(state: _State, node: Node, branch: Graph, infer: Infer, opset: int) -> None:
    """Put the nodes of a branch in the place of its `If`."""
    names = dict(zip(branch.inputs, node.inputs[1:], strict=True))

    def rename(name: str) -> str:
        if name and name not in names:
            fresh = name
            while fresh in state.types or fresh in state.renamed:
                fresh = f"{node.name}/{fresh}"
            names[name] = fresh
        return names.get(name, name)

    for inner, outer in zip(branch.outputs, node.outputs, strict=False):
        if outer and inner not in names and inner not in branch.consts:
            names[inner] = outer
    for name, value in branch.consts.items():
        state.constant(rename(name), value)
    for inner_node in branch.nodes:
        inputs = tuple(rename(n) for n in inner_node.inputs)
        outputs = tuple(rename(n) for n in inner_node.outputs)
        for old, new in zip(inner_node.outputs, outputs, strict=True):
            if old in branch.types:
                state.types[new] = branch.types[old]
        _visit(state, inner_node.with_(inputs=inputs, outputs=outputs), infer, opset)
    for inner, outer in zip(branch.outputs, node.outputs, strict=False):
        if outer and names[inner] != outer:
            state.renamed[outer] = state.renamed.get(names[inner], names[inner])
    state.changed = True
