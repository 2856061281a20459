"""How a node computes, seen from outside: what fusion asks of its compute expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.ir.compute import (
    AssembleStage,
    Axis,
    ComputeStage,
    placeholder,
    Reduce,
    stage_exprs,
    Tensor,
    topological,
)
from toolkit.ir.expr import Call, Const, Expr, Load, loads, rewrite, Var, walk
from toolkit.ir.graph import Graph, Node
from toolkit.ir.simplify import linear, simplify
from toolkit.ops.op import apply_op, Op


@dataclass(frozen=True, slots=True)
class Access:
    """How one stage reads an operand: the subscripts of a load over the stage's axes.

    `lane` is the last spatial axis: neighbours along it are computed together.
    """

    axes: tuple[Axis, ...]
    indices: tuple[Expr, ...]
    shape: tuple[int, ...]
    lane: str


@dataclass(frozen=True, slots=True)
class Move:
    """A node that only moves data: element `axes` of the result is element `indices` of `shape`."""

    axes: tuple[Axis, ...]
    indices: tuple[Expr, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """How a node computes.

    `injective`: no reduction, scan, scatter or opaque stage.  `whole`: some stage is a scan,
    scatter, assembly or opaque; `assembles`: assemblies alone.  `same[i]`: operand i is read just
    at the element that is written, shapes equal.  `once[i]`: no stage reads an element of operand
    i twice.  `aligned[i]`: operand i is read at the element that is written, or at 0 along an
    axis.
    """

    injective: bool
    whole: bool
    assembles: bool
    same: tuple[bool, ...]
    once: tuple[bool, ...]
    aligned: tuple[bool, ...]
    move: Move | None
    accesses: tuple[tuple[Access, ...] | None, ...]
    """How each operand is read; None where it is read as a whole or in a recurrence."""

    @property
    def reduces(self) -> bool:
        """Tell whether the node does more than compute and move single elements."""
        return not self.injective and not self.assembles


class Patterns:
    """Patterns of the nodes of one graph; equal nodes are classified once."""

    def __init__(self, graph: Graph, ops: Mapping[str, Op]) -> None:
        self.graph = graph
        self.ops = ops
        self._known: dict[Any, Pattern] = {}

    def of(self, node: Node) -> Pattern:
        """Return the pattern of a node."""
        key = self._key(node)
        if key not in self._known:
            self._known[key] = classify(self.ops[node.op_id], node, self.graph)
        return self._known[key]

    def _key(self, node: Node) -> Any:
        """Return what decides a pattern: operator, attributes, types, values of small operands."""
        graph = self.graph
        operands: list[Any] = []
        for position, name in enumerate(node.inputs):
            value = graph.consts.get(name)
            same = node.inputs.index(name) if name else position
            if value is None:
                data: Any = None
            elif value.size <= 64 or value.dtype.kind in "iub":
                data = value.tobytes()
            else:
                data = "constant"
            operands.append((graph.types[name] if name else None, data, same))
        attrs = tuple(
            (k, v.tobytes() if isinstance(v, np.ndarray) else v)
            for k, v in sorted(node.attrs.items())
        )
        return (node.op_id, tuple(operands), attrs, tuple(map(bool, node.outputs)))


def classify(op: Op, node: Node, graph: Graph) -> Pattern:
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
    assembles = not plain and all(isinstance(t.stage, ComputeStage | AssembleStage) for t in stages)
    injective = plain and not any(_reduces(t) for t in stages)
    single = len(results) == 1
    accesses: list[tuple[Access, ...] | None] = []
    same: list[bool] = []
    once: list[bool] = []
    aligned: list[bool] = []
    for operand in operands:
        if operand is None:
            accesses.append(())
            same.append(False)
            once.append(True)
            aligned.append(True)
            continue
        found = _accesses(operand, stages) if plain or assembles else None
        accesses.append(found)
        size = math.prod(operand.shape)
        once.append(found is not None and all(_domain(a) <= size for a in found))
        aligned.append(found is not None and injective and all(map(_is_aligned, found)))
        same.append(
            injective
            and single
            and operand.shape == results[0].shape
            and found is not None
            and all(_is_same(a) for a in found)
            and all(t.shape == operand.shape for t in stages)
        )
    return Pattern(
        injective, not plain, assembles, tuple(same), tuple(once), tuple(aligned),
        _move(stages, operands) if single and injective else None, tuple(accesses),
    )  # fmt: skip


def _reduces(tensor: Tensor) -> bool:
    return isinstance(tensor.stage, ComputeStage) and isinstance(tensor.stage.body, Reduce)


def _accesses(operand: Tensor, stages: list[Tensor]) -> tuple[Access, ...]:
    """Return every read of an operand in compute and assembly stages."""
    found: list[Access] = []
    for tensor in stages:
        stage = tensor.stage
        pieces: list[tuple[tuple[Axis, ...], str, list[Expr]]] = []
        if isinstance(stage, ComputeStage):
            reduced = stage.body.axes if isinstance(stage.body, Reduce) else ()
            lane = stage.axes[-1].name if stage.axes else ""
            pieces.append(((*stage.axes, *reduced), lane, stage_exprs(stage)))
        elif isinstance(stage, AssembleStage):
            for part in stage.parts:
                lane = part.axes[-1].name if part.axes else ""
                pieces.append((part.axes, lane, [*part.indices, part.value]))
        for axes, lane, exprs in pieces:
            seen = dict.fromkeys(l for e in exprs for l in loads(e) if l.buffer is operand)
            found += [Access(axes, l.indices, operand.shape, lane) for l in seen]
    return tuple(found)


def _domain(access: Access) -> int:
    return math.prod(a.extent for a in access.axes)


def _is_same(access: Access) -> bool:
    if len(access.indices) != len(access.axes):
        return False
    return all(
        (isinstance(i, Var) and i.name == a.name) or a.extent == 1
        for i, a in zip(access.indices, access.axes, strict=True)
    )


def _is_aligned(access: Access) -> bool:
    """Tell whether an access is that of a broadcast operand: last axes, in order, or 0."""
    rank = len(access.indices)
    if rank > len(access.axes):
        return False
    trailing = access.axes[len(access.axes) - rank :]
    return all(
        (isinstance(i, Var) and i.name == a.name) or (isinstance(i, Const) and i.value == 0)
        for i, a in zip(access.indices, trailing, strict=True)
    )


def _move(stages: list[Tensor], operands: list[Tensor | None]) -> Move | None:
    """Return the index map of a node whose every element is one of its first operand."""
    if len(stages) != 1 or not operands or operands[0] is None:
        return None
    stage = stages[0].stage
    assert isinstance(stage, ComputeStage)
    body = stage.body
    if not isinstance(body, Load) or body.buffer is not operands[0]:
        return None
    if any(isinstance(e, Load | Call) for i in body.indices for e in walk(i)):
        return None
    return Move(stage.axes, body.indices, operands[0].shape)


def compose(accesses: tuple[Access, ...], move: Move) -> tuple[Access, ...]:
    """Return how the operand of a move is read where its result is read as `accesses` say."""
    return tuple(_through(access, move) for access in accesses)


def _through(access: Access, move: Move) -> Access:
    names = {a.name: i for a, i in zip(move.axes, access.indices, strict=True)}
    ranges = {a.name: (0, a.extent - 1) for a in access.axes}

    def substitute(index: Expr) -> Expr:
        return rewrite(index, lambda e: names.get(e.name) if isinstance(e, Var) else None)

    indices = tuple(simplify(substitute(index), ranges) for index in move.indices)
    return Access(access.axes, indices, move.shape, access.lane)


def is_free(accesses: tuple[Access, ...], anchored: bool) -> bool:
    """Tell whether reads cost nothing beside plain ones: addresses are linear in the loops, and
    neighbours along the lane are neighbours, or one element.

    `anchored`: of a kernel that reduces, whose loops are many; others may read with any stride.
    """
    for access in accesses:
        ranges = {a.name: (0, a.extent - 1) for a in access.axes}
        flat: Expr = Const("index", 0)
        for index, extent in zip(access.indices, access.shape, strict=True):
            flat = flat * extent + index
        terms, _ = linear(simplify(flat, ranges))
        stride = 0
        for atom, factor in terms.items():
            if not isinstance(atom, Var):
                return False
            stride = factor if atom.name == access.lane else stride
        if anchored and stride not in (0, 1):
            return False
    return True
