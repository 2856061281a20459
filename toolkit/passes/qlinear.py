"""onnxruntime's operators on integers, taken apart: QLinearConv, QLinearMatMul, QGemm and sums.

    QLinearConv(x, w, b)  ->  Requantize(ConvInteger(x, w))

The float32 arithmetic that defines them (`ops.quant`, `ops.quant_microsoft`) is kept as it is, or
replaced by a long multiplication that is proven equal on every sum, and by a sum in int32 that is
equal on every pair.  Taken apart they are what the other passes on integers know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.ir.graph import Node
from toolkit.ir.types import DTYPES, int_range, TensorType
from toolkit.passes.edit import Edit
from toolkit.passes.fixed import become_sum, parameters, product_sums
from toolkit.passes.pairs import Pairs, product_stairs, values_of
from toolkit.passes.requantise import fixed_form, Staircase, steps_of


def conv(edit: Edit, node: Node, *, long: bool) -> bool:
    """QLinearConv -> ConvInteger, Requantize along the channels."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b = _operands(node, 9)
    scales = _scales(edit, x_scale, w_scale, y_scale)
    bias = _bias(edit, b)
    if scales is None or bias is None or edit.uniform(x_zero) is None:
        return False
    if edit.value(w_zero) is None or edit.uniform(y_zero) is None:
        return False
    factor = (scales[0] * scales[1]) / scales[2]
    kind = TensorType(edit.shape(node.outputs[0]), "int32")
    inputs = (x, w, *_zeros(edit, (x_zero, w_zero)))
    acc = edit.emit(node, "ConvInteger", inputs, kind, node.attrs, hint="sum")
    last = node.attrs.get("nestling_layout") == "NHWC"
    axis = len(kind.shape) - 1 if last else 1
    return _requantised(edit, node, acc, factor, bias, y_zero, axis=axis, long=long)


def matmul(edit: Edit, node: Node, *, long: bool) -> bool:
    """QLinearMatMul -> MatMulInteger, Requantize along the columns."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = _operands(node, 8)
    scales = _scales(edit, a_scale, b_scale, y_scale)
    if scales is None or edit.uniform(a_zero) is None or edit.value(b_zero) is None:
        return False
    factor = (scales[0] * scales[1]) / scales[2]
    return _dense(edit, node, (a, b, a_zero, b_zero, y_zero), factor, np.zeros(1), long=long)


def gemm(edit: Edit, node: Node, *, long: bool) -> bool:
    """QGemm with a quantised result -> MatMulInteger, Requantize along the columns."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = _operands(node, 9)
    scales = _scales(edit, a_scale, b_scale, y_scale)
    bias = _bias(edit, c)
    if scales is None or bias is None or not y_zero:
        return False
    if edit.uniform(a_zero) is None or edit.value(b_zero) is None:
        return False
    factor = (np.float32(node.attrs.get("alpha", 1.0)) * scales[0] * scales[1]) / scales[2]
    return _dense(edit, node, (a, b, a_zero, b_zero, y_zero), factor, bias, long=long)


def _dense(
    edit: Edit,
    node: Node,
    names: tuple[str, str, str, str, str],
    factor: np.ndarray,
    bias: np.ndarray,
    *,
    long: bool,
) -> bool:
    a, b, a_zero, b_zero, y_zero = names
    shape = edit.shape(node.outputs[0])
    columns = shape[-1] if len(edit.shape(b)) > 1 and shape else 1
    if max(factor.size, bias.size) not in (1, columns) or edit.uniform(y_zero) is None:
        return False
    inputs = (a, b, *_zeros(edit, (a_zero, b_zero)))
    acc = edit.emit(node, "MatMulInteger", inputs, TensorType(shape, "int32"), hint="sum")
    return _requantised(edit, node, acc, factor, bias, y_zero, axis=len(shape) - 1, long=long)


def _operands(node: Node, count: int) -> tuple[str, ...]:
    """Return the names of operands, '' for absent ones."""
    return (*node.inputs, *[""] * (count - len(node.inputs)))


def _scales(edit: Edit, left: str, right: str, y: str) -> list[np.ndarray] | None:
    """Return constant scales as vectors: of the data and the result one value, else one each."""
    values = [edit.value(n) if n else None for n in (left, right, y)]
    found = [v.reshape(-1) for v in values if v is not None and v.dtype == np.float32]
    if len(found) < 3 or found[0].size != 1 or found[2].size != 1:
        return None
    if any(v is not None and v.ndim > 1 for v in values):
        return None
    return found


def _bias(edit: Edit, name: str) -> np.ndarray | None:
    """Return an int32 bias, 0 where it is absent; None where it is no constant vector."""
    if not name:
        return np.zeros(1, np.int64)
    value = edit.value(name)
    if value is None or value.dtype != np.int32 or value.size != max(value.shape, default=1):
        return None
    if value.ndim > 1 and value.shape[-1] != value.size:
        return None
    return value.reshape(-1).astype(np.int64)


def _zeros(edit: Edit, names: Sequence[str]) -> list[str]:
    """Return zero points as operands, '' for those known to be 0; one element is a scalar."""
    found = []
    for name in names:
        value = edit.value(name)
        assert value is not None
        if value.any():
            found.append(edit.const(value.reshape(()), "zero") if value.size == 1 else name)
        else:
            found.append("")
    return found


def _requantised(
    edit: Edit,
    node: Node,
    acc: str,
    factor: np.ndarray,
    bias: np.ndarray,
    y_zero: str,
    *,
    axis: int,
    long: bool,
) -> bool:
    """Replace a node by Requantize(acc): rint(float32(acc + bias) * factor) + zero, limited."""
    zero = edit.uniform(y_zero)
    assert zero is not None
    dtype = edit.dtype(node.outputs[0])
    low, high = int_range(dtype)
    count = (max(factor.size, bias.size),)
    factor, bias = np.broadcast_to(factor, count), np.broadcast_to(bias.astype(np.int64), count)
    attrs = {"to": DTYPES[dtype].onnx, "low": low, "high": high, "axis": axis}
    tables: Sequence[np.ndarray] = (factor.astype(np.float32), bias.astype(np.int32))
    proven = _stairs(edit, acc, factor, bias, int(zero), low, high) if long else None
    fixed = fixed_form(proven) if proven is not None else None
    if fixed is not None:
        tables, attrs["shift"] = (fixed.multiplier, fixed.offset), fixed.shift
    else:
        attrs["zero_point"] = int(zero)
    names = [
        edit.const(t if len(t) > 1 else t.reshape(()), n)
        for t, n in zip(tables, ("multiplier", "offset"), strict=True)
    ]
    return edit.become(node, "Requantize", (acc, *names), attrs)


def _stairs(
    edit: Edit, acc: str, factor: np.ndarray, bias: np.ndarray, zero: int, low: int, high: int
) -> Staircase | None:
    """Return the steps of a requantisation in float32, if the sums are known well enough."""
    sums = product_sums(edit, acc)
    sums = None if sums is None else sums.with_bias(bias)
    if sums is None or not sums.fits or not (factor > 0).all():
        return None
    count = (max(len(sums.least), len(bias)),)
    least, most, add, scale = (
        np.broadcast_to(v, count) for v in (sums.least, sums.most, bias, factor)
    )

    def rounded(x: np.ndarray) -> np.ndarray:
        total = (x + add[:, None]).astype(np.float32)
        result: np.ndarray = np.rint(total * scale[:, None]).astype(np.float64) + zero
        return result

    steps = steps_of(rounded, (least, most), low=low, high=high)
    return Staircase(
        steps, least, most, zero, low, high, scale.astype(np.float64), add.astype(np.float64)
    )


_Real = np.ndarray | np.float32

# -- pairs --------------------------------------------------------------------------------------


def _fused(a: _Real, b: _Real, c: _Real) -> np.ndarray:
    """Return a * b + c of float32, rounded once; `a` has at most 9 bits."""
    exact = np.float64(a) * np.float64(b) + np.float64(c)
    rounded: np.ndarray = np.asarray(exact, np.float32)
    return rounded


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two 8-bit operands, and the zero points and scales of both and of the result."""

    operands: tuple[str, str]
    zeros: tuple[int, int, int]
    scales: tuple[np.float32, np.float32, np.float32]


def _pair(edit: Edit, node: Node) -> _Pair | None:
    """Return what a QLinearAdd or QLinearMul reads, if its parameters are constants."""
    names = _operands(node, 8)
    scales = [edit.value(names[p]) for p in (1, 4, 6)]
    zeros = [edit.uniform(names[p]) if names[p] else 0 for p in (2, 5, 7)]
    s = [np.float32(v.reshape(())) for v in scales if v is not None and v.size == 1]
    z = [int(v) for v in zeros if v is not None]
    operands = names[0], names[3]
    if len(s) < 3 or len(z) < 3:
        return None
    if not all(edit.dtype(n) in ("int8", "uint8") for n in (*operands, node.outputs[0])):
        return None
    return _Pair(operands, (z[0], z[1], z[2]), (s[0], s[1], s[2]))


def add(edit: Edit, node: Node) -> bool:
    """QLinearAdd -> RequantizeSum."""
    found = _pair(edit, node)
    if found is None:
        return False
    operands, (a_scale, b_scale, y_scale) = found.operands, found.scales
    ra, rb = np.float32(a_scale / y_scale), np.float32(b_scale / y_scale)
    za, zb, zy = (np.float32(z) for z in found.zeros)
    shift = zy - _fused(za, ra, zb * rb)
    kinds = edit.dtype(operands[0]), edit.dtype(operands[1])
    a, b = (values_of(k).astype(np.float32) for k in kinds)
    total = _fused(a[:, None], ra, _fused(b, rb, shift)[None])
    return become_sum(edit, node, operands, _limited(edit, node, kinds, total, (ra, rb)))


def mul(edit: Edit, node: Node, *, long: bool) -> bool:
    """QLinearMul -> Requantize of the product in int32."""
    found = _pair(edit, node)
    if found is None:
        return False
    operands, zeros, (a_scale, b_scale, y_scale) = found.operands, found.zeros, found.scales
    ratio = np.float32((a_scale * b_scale) / y_scale)
    kinds = edit.dtype(operands[0]), edit.dtype(operands[1])
    a, b = (values_of(k) - z for k, z in zip(kinds, zeros, strict=False))
    product = np.multiply.outer(a, b).astype(np.float32)
    total = product * ratio + np.float32(zeros[2])
    return become_product(
        edit, node, operands, (zeros[0], zeros[1]), zeros[2],
        _limited(edit, node, kinds, total, (ratio, ratio)), long=long,
    )  # fmt: skip


def _limited(
    edit: Edit,
    node: Node,
    kinds: tuple[str, str],
    total: np.ndarray,
    slopes: tuple[np.float32, np.float32],
) -> Pairs:
    """Return the results of rounding what holds its zero point already."""
    low, high = int_range(edit.dtype(node.outputs[0]))
    results = np.clip(np.rint(total), low, high).astype(np.int64)
    return Pairs(kinds, results, low, high, (float(slopes[0]), float(slopes[1])))


def become_product(
    edit: Edit,
    node: Node,
    operands: Sequence[str],
    zeros: tuple[int, int],
    y_zero: int,
    pairs: Pairs,
    *,
    long: bool,
) -> bool:
    """Replace a node by Requantize of (a - zero) * (b - zero) in int32, where that is proven."""
    stairs = product_stairs(pairs, zeros, pairs.slopes[0], y_zero)
    params = None
    if stairs is not None:
        params = parameters(edit, stairs, np.zeros(1, np.int64), fixed=long)
    if params is None:
        return False
    names, extra = params
    scalars = [edit.const(edit.consts[n].reshape(()), n) for n in names]
    out = node.outputs[0]
    product = edit.fresh(f"{out}.product")
    edit.types[product] = TensorType(edit.shape(out), "int32")
    zero_points = edit.const(np.array(zeros, np.int32), "zero_points")
    inputs = (*operands, zero_points)
    edit.insert(Node(f"{node.name}.product", "Product", inputs, (product,), {}, "tflite"), node)
    attrs = {
        "to": DTYPES[edit.dtype(out)].onnx, "low": pairs.low, "high": pairs.high,
        "zero_point": y_zero, **extra,
    }  # fmt: skip
    return edit.become(node, "Requantize", (product, *scalars), attrs)
