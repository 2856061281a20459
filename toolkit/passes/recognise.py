"""Operators that exporters spelled out in primitive ones, put back together.

Only where that helps: one kernel instead of several, and the shape that attention has.  Spellings
in element-wise operators (GELU, Swish, HardSwish) stay, for fusion makes one kernel of them anyway.
Sums are rounded in another order, so `--exact` leaves this out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import is_float, TensorType
from toolkit.ops.op import Op
from toolkit.passes.edit import Edit, rewrite, Rule


def recognise(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """Find means, LayerNormalization, RMSNormalization, Softmax, and products of one-hot rows."""
    return rewrite(graph, ops, RULES)


def mean(edit: Edit, node: Node) -> bool:
    """ReduceSum(x) / n -> ReduceMean(x) for n elements a sum."""
    total = edit.single(node.inputs[0], "ReduceSum")
    factor = edit.uniform(node.inputs[1])
    if (
        total is None
        or factor is None
        or edit.types[total.outputs[0]] != edit.types[node.outputs[0]]
    ):
        return False
    axes, shape = edit.ints(total, 1), edit.shape(total.inputs[0])
    if axes is None or not is_float(edit.dtype(total.inputs[0])):
        return False
    count = math.prod(shape[a] for a in axes)
    wanted = np.asarray(count if node.op == "Div" else 1 / count, edit.dtype(node.inputs[1]))
    if count == 0 or factor != wanted.item():
        return False
    return edit.become(node, "ReduceMean", total.inputs, total.attrs)


# -- normalisation ----------------------------------------------------------------------------


def _trailing(edit: Edit, node: Node) -> int | None:
    """Return the first axis of a reduction that keeps its axes and takes all from there on."""
    axes, rank = edit.ints(node, 1), len(edit.shape(node.inputs[0]))
    if not axes or not node.attrs.get("keepdims", 1) or 0 in edit.shape(node.inputs[0]):
        return None
    return axes[0] if sorted(axes) == list(range(axes[0], rank)) else None


def _mean_square(edit: Edit, name: str) -> tuple[str, int, float] | None:
    """Match sqrt(mean(x * x) + epsilon); return (x, first axis, epsilon)."""
    root = edit.by(name, "Sqrt")
    added = None if root is None else edit.single(root.inputs[0], "Add")
    if added is None:
        return None
    epsilon = edit.uniform(added.inputs[1])
    average = edit.single(added.inputs[0], "ReduceMean")
    square = None if average is None else edit.single(average.inputs[0], "Mul")
    if average is None or square is None or epsilon is None or epsilon < 0:
        return None
    if square.inputs[0] != square.inputs[1]:
        return None
    first = _trailing(edit, average)
    return None if first is None else (square.inputs[0], first, float(epsilon))


def normalised(edit: Edit, node: Node) -> bool:
    """c / sqrt(mean(c * c) + e) -> RMSNormalization(c); for c = x - mean(x) LayerNormalization(x).

    Also spelled c * Reciprocal(sqrt(..)).
    """
    for c, other in (node.inputs, node.inputs[::-1]) if node.op == "Mul" else (node.inputs,):
        if node.op == "Mul":
            inverse = edit.by(other, "Reciprocal")
            if inverse is None:
                continue
            other = inverse.inputs[0]
        found = _mean_square(edit, other)
        if found is None or found[0] != c or edit.types[c] != edit.types[node.outputs[0]]:
            continue
        _, first, epsilon = found
        shape, dtype = edit.shape(c)[first:], edit.dtype(c)
        ones = edit.const(np.ones(shape, dtype), f"{node.outputs[0]}.one")
        attrs = {"axis": first, "epsilon": epsilon}
        centred = edit.by(c, "Sub")
        average = None if centred is None else edit.by(centred.inputs[1], "ReduceMean")
        if centred is not None and average is not None and average.inputs[0] == centred.inputs[0]:
            if _trailing(edit, average) == first:
                source = centred.inputs[0]
                return edit.become(node, "LayerNormalization", (source, ones), attrs)
        return edit.become(node, "RMSNormalization", (c, ones), attrs)
    return False


def norm_scale(edit: Edit, node: Node) -> bool:
    """LayerNormalization(x, g) * s -> LayerNormalization(x, g * s); likewise RMSNormalization."""
    for name, other in (node.inputs, node.inputs[::-1]):
        norm = edit.single(name, "LayerNormalization", "RMSNormalization")
        scale = edit.value(other)
        if norm is None or scale is None or len(norm.outputs) > 1 or len(norm.inputs) > 2:
            continue
        own = edit.value(norm.inputs[1])
        wide = _vector(edit, norm, scale)
        if own is None or wide is None or edit.types[name] != edit.types[node.outputs[0]]:
            continue
        both = (own.astype(np.float64) * wide).astype(own.dtype)
        inputs = (norm.inputs[0], edit.const(both, f"{node.outputs[0]}.scale"))
        return edit.become(node, norm.op, inputs, norm.attrs)
    return False


def norm_shift(edit: Edit, node: Node) -> bool:
    """LayerNormalization(x, g, b) + t -> LayerNormalization(x, g, b + t)."""
    for name, other in (node.inputs, node.inputs[::-1]):
        norm = edit.single(name, "LayerNormalization")
        shift = edit.value(other)
        if norm is None or shift is None or len(norm.outputs) > 1:
            continue
        own = edit.value(norm.inputs[2]) if len(norm.inputs) > 2 else np.zeros(1)
        wide = _vector(edit, norm, shift)
        if own is None or wide is None or edit.types[name] != edit.types[node.outputs[0]]:
            continue
        both = (own.astype(np.float64) + wide).astype(shift.dtype)
        inputs = (*norm.inputs[:2], edit.const(both, f"{node.outputs[0]}.shift"))
        return edit.become(node, norm.op, inputs, norm.attrs)
    return False


def _vector(edit: Edit, norm: Node, value: np.ndarray) -> np.ndarray | None:
    """Return a constant as one value for each normalised element, None if rows differ."""
    shape = edit.shape(norm.inputs[0])
    inner = shape[norm.attrs["axis"] :]
    lead = value.shape[: max(value.ndim - len(inner), 0)]
    if any(n != 1 for n in lead) or not is_float(str(value.dtype)):
        return None
    flat = value.reshape(value.shape[len(lead) :]).astype(np.float64)
    return np.broadcast_to(flat, inner)


# -- softmax ----------------------------------------------------------------------------------


def softmax(edit: Edit, node: Node) -> bool:
    """exp(x - max(x)) / sum(exp(x - max(x))) -> Softmax(x), along one axis."""
    power, total = edit.by(node.inputs[0], "Exp"), edit.by(node.inputs[1], "ReduceSum")
    if power is None or total is None or total.inputs[0] != power.outputs[0]:
        return False
    shifted = edit.single(power.inputs[0], "Sub")
    top = None if shifted is None else edit.by(shifted.inputs[1], "ReduceMax")
    if shifted is None or top is None or top.inputs[0] != shifted.inputs[0]:
        return False
    axes = edit.ints(total, 1)
    if axes is None or len(axes) != 1 or edit.ints(top, 1) != axes:
        return False
    if not total.attrs.get("keepdims", 1) or not top.attrs.get("keepdims", 1):
        return False
    return edit.become(node, "Softmax", (shifted.inputs[0],), {"axis": axes[0]})


# -- one-hot ----------------------------------------------------------------------------------


def one_hot_product(edit: Edit, node: Node) -> bool:
    """Cast(Equal(x, [0..n-1])) W -> rows of W, a row of zeros where no column is 1.

    [.., K] of ones and zeros times [K, N] picks a row: Gather(W with a row of zeros behind it,
    x where 0 <= x < K, else K).  Exact for finite W.
    """
    cast = edit.single(node.inputs[0], "Cast")
    equal = None if cast is None else edit.single(cast.inputs[0], "Equal")
    weight = edit.value(node.inputs[1])
    if equal is None or weight is None or weight.ndim != 2 or not np.isfinite(weight).all():
        return False
    shape, count = edit.shape(equal.outputs[0]), weight.shape[0]
    for x, other in (equal.inputs, equal.inputs[::-1]):
        column, index = edit.value(other), edit.shape(x)
        if column is None or index != (*shape[:-1], 1) or str(column.dtype) not in _INDEX:
            continue
        if not np.array_equal(column.reshape(-1), np.arange(count)):
            continue
        if column.shape[-1] != count or (len(node.inputs) > 2 and node.inputs[2]):
            continue
        kind = TensorType(index, "bool")
        zero = edit.const(np.asarray(0, column.dtype), "zero")
        limit = edit.const(np.asarray(count, column.dtype), "rows")
        low = edit.emit(node, "GreaterOrEqual", (x, zero), kind)
        high = edit.emit(node, "Less", (x, limit), kind)
        inside = edit.emit(node, "And", (low, high), kind)
        rows = edit.emit(node, "Where", (inside, x, limit), edit.types[x])
        flat = TensorType(index[:-1], edit.dtype(x))
        target = edit.ints_const(index[:-1], "shape")
        picked = edit.emit(node, "Reshape", (rows, target), flat)
        padded = np.concatenate([weight, np.zeros((1, weight.shape[1]), weight.dtype)])
        table = edit.const(padded, f"{node.inputs[1]}.rows")
        return edit.become(node, "Gather", (table, picked), {"axis": 0})
    return False


_INDEX = ("int32", "int64")


RULES: dict[str, tuple[Rule, ...]] = {
    "Mul": (mean, normalised, norm_scale),
    "Div": (mean, normalised, softmax),
    "Add": (norm_shift,),
    "MatMul": (one_hot_product,),
}
