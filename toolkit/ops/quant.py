"""Quantised operators as the specification defines them: integers in, int32 sums, integers out.

QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, QLinearMatMul, QLinearConv, MatMulInteger.
Meaning: the ONNX operator specification; rounding is half to even, results saturate, and products
are requantised in float32 as onnxruntime does: float(acc) * ((a_scale * b_scale) / y_scale).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from toolkit.ir.compute import (
    compute,
    reduce_axis,
    Tensor,
)
from toolkit.ir.compute import (
    max as max_over,
)
from toolkit.ir.compute import (
    min as min_over,
)
from toolkit.ir.compute import (
    sum as sum_over,
)
from toolkit.ir.expr import call, cast, const, eq, Expr, maximum, minimum, select
from toolkit.ir.types import DType, FROM_ONNX, int_range, is_float
from toolkit.ops.conv import CONV_OPS, layout_of, nest
from toolkit.ops.elementwise import broadcast_load, broadcast_shape
from toolkit.ops.op import Ctx, Op
from toolkit.ops.shape import constant, scalar_load

QUANTISED = ("int8", "uint8", "int16", "uint16")

Param = Callable[[tuple[Expr, ...]], Expr]
"""A scale or zero point at an index of the data."""


def clamped(value: Expr, low: float, high: float) -> Expr:
    """Return a float limited to low..high; NaN becomes `low`."""
    below_high = select(value < high, value, high)
    return select(value > low, below_high, low)


def saturated(value: Expr, dtype: DType) -> Expr:
    """Return a float rounded half to even and converted to an integer type, saturating."""
    low, high = int_range(dtype)
    top = float(high)
    if int(top) > high or (value.dtype == "float32" and int(np.float32(high)) > high):
        real = np.dtype(value.dtype).type
        top = float(np.nextafter(real(high), real(0)))
    return cast(clamped(call("round", value), float(low), top), dtype)


def _known(x: Tensor | None) -> float | int | None:
    """Return the value of a constant of one element, 0 for an absent operand, else None."""
    if x is None:
        return 0
    if x.data is None or math.prod(x.shape) != 1:
        return None
    value: float | int = np.asarray(x.data).reshape(()).item()
    return value


def _quantised_by(ctx: Ctx, x: Tensor, p: Tensor, what: str) -> Param:
    """Return how a scale or zero point is read: per tensor, per axis, or per block of an axis."""
    if math.prod(p.shape) == 1 and p.rank <= 1:
        return lambda i: scalar_load(p)
    axis = ctx.axis(ctx.attr("axis", 1), x.rank)
    block: int = ctx.attr("block_size", 0)
    if block:
        blocked = (*x.shape[:axis], -(-x.shape[axis] // block), *x.shape[axis + 1 :])
        if p.shape != blocked:
            raise ctx.refuse(f"its {what} has shape {list(p.shape)}, not {list(blocked)}.")
        return lambda i: p[tuple(v // block if a == axis else v for a, v in enumerate(i))]
    if p.shape != (x.shape[axis],):
        raise ctx.refuse(
            f"its {what} has shape {list(p.shape)}, but axis {axis} has extent {x.shape[axis]}."
        )
    return lambda i: p[i[axis]]


def _zero_point(ctx: Ctx, x: Tensor, p: Tensor | None, scale: Tensor) -> Param | None:
    """Return how the zero point is read; None where it is absent or known to be 0."""
    if p is None or (p.data is not None and not np.asarray(p.data).any()):
        return None
    if p.shape != scale.shape and math.prod((*p.shape, *scale.shape)) != 1:
        raise ctx.refuse(f"scale {list(scale.shape)} and zero point {list(p.shape)} differ.")
    value = _known(p)
    if value is not None:
        return lambda i: const(value, p.dtype)
    return _quantised_by(ctx, x, p, "zero point")


def _quantize(ctx: Ctx, x: Tensor, y_scale: Tensor, y_zero_point: Tensor | None = None) -> Tensor:
    """y = saturate(round(x / scale) + zero_point), the division in the type of the scale.

    NaN, which ONNX leaves open, becomes the lowest value.
    """
    to = ctx.attr("output_dtype", 0)
    dtype = FROM_ONNX.get(to) if to else y_zero_point.dtype if y_zero_point else "uint8"
    if dtype not in QUANTISED or not is_float(y_scale.dtype):
        raise ctx.refuse(f"quantisation from {x.dtype} by {y_scale.dtype} is not supported.")
    precision = FROM_ONNX.get(ctx.attr("precision", 0), y_scale.dtype)
    scale = _quantised_by(ctx, x, y_scale, "scale")
    zero = _zero_point(ctx, x, y_zero_point, y_scale)

    def element(*i: Expr) -> Expr:
        ratio = cast(x[i], precision) / cast(scale(i), precision)
        return shifted(ratio, zero(i) if zero else None, dtype)

    return compute(x.shape, element, "quantize")


def shifted(value: Expr, zero_point: Expr | None, dtype: DType) -> Expr:
    """Return saturate(round(value) + zero_point)."""
    value = call("round", value)
    if zero_point is not None:
        value = value + cast(zero_point, value.dtype)
    low, high = int_range(dtype)
    return cast(clamped(value, low, high), dtype)


def _dequantize(ctx: Ctx, x: Tensor, x_scale: Tensor, x_zero_point: Tensor | None = None) -> Tensor:
    """y = (x - zero_point) * scale, the difference in int32."""
    to = ctx.attr("output_dtype", 0)
    dtype = FROM_ONNX.get(to) if to else x_scale.dtype
    if x.dtype not in (*QUANTISED, "int32") or dtype is None or not is_float(dtype):
        raise ctx.refuse(f"dequantisation of {x.dtype} to {dtype} is not supported.")
    scale = _quantised_by(ctx, x, x_scale, "scale")
    zero = _zero_point(ctx, x, x_zero_point, x_scale)

    def element(*i: Expr) -> Expr:
        value = cast(x[i], "int32")
        if zero is not None:
            value = value - cast(zero(i), "int32")
        return cast(cast(value, x_scale.dtype) * scale(i), dtype)

    return compute(x.shape, element, "dequantize")


def _dynamic_quantize(ctx: Ctx, x: Tensor) -> tuple[Tensor, ...]:
    """To uint8, by the range of x widened to hold 0; a range of 0 has scale 1."""
    if x.dtype != "float32":
        raise ctx.refuse(f"its input must be float32, not {x.dtype}.")
    axes = tuple(reduce_axis(n, f"k{a}") for a, n in enumerate(x.shape))
    if axes:
        top = compute((), lambda: max_over(x[axes], axes), "top")
        bottom = compute((), lambda: min_over(x[axes], axes), "bottom")
    else:
        top = bottom = x
    high = compute((), lambda: maximum(top[()], 0.0), "high")
    low = compute((), lambda: minimum(bottom[()], 0.0), "low")
    y_scale = compute(
        (), lambda: select(eq(high[()], low[()]), 1.0, (high[()] - low[()]) / 255.0), "y_scale"
    )
    y_zero_point = compute(
        (), lambda: saturated(0.0 - low[()] / y_scale[()], "uint8"), "y_zero_point"
    )
    y = compute(
        x.shape, lambda *i: shifted(x[i] / y_scale[()], y_zero_point[()], "uint8"), "quantize"
    )
    return y, y_scale, y_zero_point


# -- products ---------------------------------------------------------------------------------


def _wide(value: Expr, zero_point: Tensor | None, at: Sequence[Expr | int]) -> Expr:
    """Return value - zero_point in int32."""
    wide = cast(value, "int32")
    if zero_point is None or (
        zero_point.data is not None and not np.asarray(zero_point.data).any()
    ):
        return wide
    return wide - cast(zero_point[tuple(at)], "int32")


def _row_param(p: Tensor, i: tuple[Expr, ...]) -> tuple[Expr | int, ...]:
    """Return where the parameter of row i[-2] of A lies: one, one a row, or [.., M, 1]."""
    if math.prod(p.shape) == 1:
        return (0,) * p.rank
    if p.rank == 1:
        return (i[-2],)
    lead = i[len(i) - p.rank : -1]
    return (*(0 if n == 1 else v for n, v in zip(p.shape[:-1], lead, strict=True)), 0)


def _column_param(p: Tensor, i: tuple[Expr, ...]) -> tuple[Expr | int, ...]:
    """Return where the parameter of column i[-1] of B lies: one, one a column, or [.., 1, N]."""
    if math.prod(p.shape) == 1:
        return (0,) * p.rank
    if p.rank == 1:
        return (i[-1],)
    lead: tuple[Expr | int, ...] = (*i[len(i) - p.rank : -2], 0, i[-1])
    return tuple(0 if n == 1 else v for n, v in zip(p.shape, lead, strict=True))


def integer_matmul(
    ctx: Ctx, a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None
) -> Tensor:
    """Return the int32 product of (a - a_zero) and (b - b_zero), shapes as MatMul has them."""
    if a.rank == 0 or b.rank == 0:
        raise ctx.refuse("operands must have at least one axis.")
    inner = b.shape[0] if b.rank == 1 else b.shape[-2]
    if a.shape[-1] != inner:
        raise ctx.refuse(f"inner extents differ: {a.shape[-1]} and {inner}.")
    lead = broadcast_shape(ctx, a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1] if a.rank > 1 else ()
    columns = b.shape[-1:] if b.rank > 1 else ()
    for zero, count, extra in ((a_zero, rows, a), (b_zero, columns, b)):
        if zero is not None and math.prod(zero.shape) != 1:
            wanted = count if zero.rank == 1 else None
            if not count or (wanted is not None and zero.shape != wanted) or zero.rank > extra.rank:
                raise ctx.refuse(f"a zero point of shape {list(zero.shape)} does not fit.")
    k = reduce_axis(inner, "k")

    def element(*i: Expr) -> object:
        full = list(i)
        if not rows:
            full.insert(len(lead), const(0, "index"))
        if not columns:
            full.append(const(0, "index"))
        at = tuple(full)
        batch, row, column = at[: len(lead)], at[-2], at[-1]
        left = _matrix(a, batch, [row, k] if rows else [k])
        right = _matrix(b, batch, [k, column] if columns else [k])
        left = _wide(left, a_zero, _row_param(a_zero, at) if a_zero else ())
        right = _wide(right, b_zero, _column_param(b_zero, at) if b_zero else ())
        return sum_over(left * right, k)

    return compute((*lead, *rows, *columns), element, "acc")  # type: ignore[arg-type]


def _matrix(x: Tensor, batch: tuple[Expr, ...], matrix: list[Expr]) -> Expr:
    lead = x.shape[: x.rank - len(matrix)]
    used = batch[len(batch) - len(lead) :]
    return x[(*(0 if n == 1 else i for n, i in zip(lead, used, strict=True)), *matrix)]


def _matmul_integer(
    ctx: Ctx,
    a: Tensor,
    b: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
) -> Tensor:
    return integer_matmul(ctx, a, b, a_zero_point, b_zero_point)


def _multiplier(
    ctx: Ctx, left: Tensor, right: Tensor, y: Tensor, shape: tuple[int, ...]
) -> tuple[Tensor, Callable[[tuple[Expr, ...]], Expr]]:
    """Return (left * right) / y in float32, computed when compiling where all are known.

    `left` and `right` have been given shapes that broadcast to `shape`.
    """
    if left.data is not None and right.data is not None and y.data is not None:
        value = (np.asarray(left.data) * np.asarray(right.data)) / np.asarray(y.data).reshape(())
        table = constant(value.astype(np.float32), "multiplier")
    else:
        full = broadcast_shape(ctx, left.shape, right.shape)
        table = compute(
            full,
            lambda *i: broadcast_load(left, i) * broadcast_load(right, i) / scalar_load(y),
            "multiplier",
        )
    return table, lambda i: broadcast_load(table, i)


def _reshaped(p: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a scale of one axis or element under a shape that only adds or drops axes of 1."""
    if p.shape == shape:
        return p
    if p.data is not None:
        return constant(np.asarray(p.data).reshape(shape), p.name)
    long = next((a for a, n in enumerate(shape) if n != 1), None)

    def element(*i: Expr) -> Expr:
        if long is None:
            return scalar_load(p)
        return p[tuple(i[long] if n != 1 else 0 for n in p.shape)]

    return compute(shape, element, p.name)


def _qlinear_matmul(
    ctx: Ctx,
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    """y = saturate(round(acc * multiplier) + y_zero_point)."""
    one_element(ctx, y_scale, "y_scale")
    one_element(ctx, y_zero_point, "y_zero_point")
    _float_scales(ctx, a_scale, b_scale, y_scale)
    acc = integer_matmul(ctx, a, b, a_zero_point, b_zero_point)
    left = _reshaped(a_scale, (*a_scale.shape, 1)) if _per_axis(a_scale) and b.rank > 1 else a_scale
    left = _reshaped(left, ()) if math.prod(left.shape) == 1 else left
    right = _reshaped(b_scale, ()) if math.prod(b_scale.shape) == 1 else b_scale
    _, multiplier = _multiplier(ctx, left, right, y_scale, acc.shape)
    return _requantised(acc, multiplier, y_zero_point)


def _per_axis(p: Tensor) -> bool:
    return p.rank == 1 and p.shape[0] != 1


def one_element(ctx: Ctx, p: Tensor, what: str) -> None:
    if math.prod(p.shape) != 1:
        raise ctx.refuse(f"its {what} must be one element, not {list(p.shape)}.")


def _float_scales(ctx: Ctx, *scales: Tensor) -> None:
    for p in scales:
        if p.dtype != "float32":
            raise ctx.refuse(f"scales must be float32, not {p.dtype}.")


def _requantised(
    acc: Tensor, multiplier: Callable[[tuple[Expr, ...]], Expr], zero_point: Tensor
) -> Tensor:
    value = _known(zero_point)
    zero = scalar_load(zero_point) if value is None else const(value, zero_point.dtype)

    def element(*i: Expr) -> Expr:
        scaled = cast(acc[i], "float32") * multiplier(i)
        return shifted(scaled, None if value == 0 else zero, zero_point.dtype)

    return compute(acc.shape, element, "requantize")


def _qlinear_conv(
    ctx: Ctx,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    b: Tensor | None = None,
) -> Tensor:
    """Conv in int32, plus the int32 bias, requantised per tensor or output channel."""
    for p, what in (
        (x_scale, "x_scale"),
        (x_zero_point, "x_zero_point"),
        (y_scale, "y_scale"),
        (y_zero_point, "y_zero_point"),
    ):
        one_element(ctx, p, what)
    _float_scales(ctx, x_scale, w_scale, y_scale)
    acc = CONV_OPS["ConvInteger"].compute(ctx, x, w, x_zero_point, w_zero_point)
    assert isinstance(acc, Tensor)
    layout = layout_of(ctx, x)
    channels = layout.split(acc.shape)[1]
    if math.prod(w_scale.shape) != 1 and w_scale.shape != (channels,):
        raise ctx.refuse(f"w_scale has shape {list(w_scale.shape)}, not {[channels]}.")
    if b is not None:
        if b.shape != (channels,) or b.dtype != "int32":
            raise ctx.refuse(f"the bias is {b.type}, not int32[{channels}].")
        total = acc
        acc = nest(
            layout.names("oc"), acc.shape, lambda *i: total[i] + b[layout.split(i)[1]], "biased"
        )
    right = _reshaped(w_scale, ()) if math.prod(w_scale.shape) == 1 else w_scale
    table, _ = _multiplier(ctx, _reshaped(x_scale, ()), right, y_scale, acc.shape)
    return _requantised(
        acc,
        lambda i: table[(layout.split(i)[1],) if table.rank else ()],
        y_zero_point,
    )


QUANT_OPS: dict[str, Op] = {
    "QuantizeLinear": Op(_quantize),
    "DequantizeLinear": Op(_dequantize),
    "DynamicQuantizeLinear": Op(_dynamic_quantize),
    "QLinearMatMul": Op(_qlinear_matmul),
    "QLinearConv": Op(_qlinear_conv),
    "MatMulInteger": Op(_matmul_integer),
}

__all__ = ["QUANT_OPS", "clamped", "saturated", "shifted"]
