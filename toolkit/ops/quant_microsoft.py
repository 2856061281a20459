"""Quantised operators of the domain com.microsoft that round in a way of their own.

QGemm, QLinearAdd, QLinearMul, QLinearAveragePool, QLinearGlobalAveragePool, QLinearSoftmax; the
others are canonicalised (`frontend.canonical.microsoft`).  Meaning: what onnxruntime computes on
x86-64, to the bit: the order of its float32 operations, each rounded by itself, and whether the
zero point is added before rounding (Add, Mul, AveragePool) or behind it.
"""

from __future__ import annotations

import math

import numpy as np

from toolkit.ir.compute import max as max_over
from toolkit.ir.compute import reduce_axis, Tensor
from toolkit.ir.compute import sum as sum_over
from toolkit.ir.expr import call, cast, Const, const, Expr, INDEX, maximum, minimum
from toolkit.ir.types import DType, int_range
from toolkit.ops.conv import ints_attr, layout_of, nest, reduced, taps, WindowAxis, windows
from toolkit.ops.elementwise import broadcast_load, broadcast_shape
from toolkit.ops.op import Ctx, Op
from toolkit.ops.quant import clamped, integer_matmul, one_element, shifted
from toolkit.ops.shape import constant, scalar_load

LOWEST = float(np.finfo(np.float32).min)


def rounded(product: Expr) -> Expr:
    """Return a product of float32 that no compiler contracts with a sum into one rounding."""
    return maximum(product, LOWEST)


def fused(a: Expr, b: Expr, c: Expr) -> Expr:
    """Return a * b + c of float32 rounded once; `a` has at most 9 bits.

    In float64 the product is exact, and the sum as good as exact.
    """
    return cast(cast(a, "float64") * cast(b, "float64") + cast(c, "float64"), "float32")


def _minus(x: Expr, zero_point: Tensor | None) -> Expr:
    """Return x - zero_point in int32."""
    wide = cast(x, "int32")
    return wide if zero_point is None else wide - cast(scalar_load(zero_point), "int32")


def _zero(zero_point: Tensor | None, dtype: DType = "float32") -> Expr:
    return const(0, dtype) if zero_point is None else cast(scalar_load(zero_point), dtype)


def _saturated(value: Expr, dtype: DType) -> Expr:
    """Return a float that holds its zero point already, rounded and limited to `dtype`."""
    low, high = int_range(dtype)
    return cast(clamped(call("round", value), float(low), float(high)), dtype)


def _check(ctx: Ctx, *params: Tensor | None) -> None:
    for p in params:
        if p is not None:
            one_element(ctx, p, p.name)


def _add(
    ctx: Ctx,
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    """round(a * ra + (b * rb + (c_zero - (a_zero * ra + b_zero * rb)))), ra = a_scale / c_scale.

    Each multiplication with the sum around it rounds once, as the fused instruction does.
    """
    _check(ctx, a_scale, a_zero_point, b_scale, b_zero_point, c_scale, c_zero_point)
    ra = scalar_load(a_scale) / scalar_load(c_scale)
    rb = scalar_load(b_scale) / scalar_load(c_scale)
    zeros = fused(_zero(a_zero_point), ra, rounded(_zero(b_zero_point) * rb))
    shift = _zero(c_zero_point) - zeros

    def element(*i: Expr) -> Expr:
        right = fused(broadcast_load(b, i), rb, shift)
        return _saturated(fused(broadcast_load(a, i), ra, right), a.dtype)

    shape = broadcast_shape(ctx, a.shape, b.shape)
    return nest(tuple(f"i{n}" for n in range(len(shape))), shape, element, "qlinear_add")


def _mul(
    ctx: Ctx,
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    """round(c_zero + (a - a_zero) * (b - b_zero) * ratio), ratio = a_scale * b_scale / c_scale."""
    _check(ctx, a_scale, a_zero_point, b_scale, b_zero_point, c_scale, c_zero_point)
    ratio = rounded(scalar_load(a_scale) * scalar_load(b_scale)) / scalar_load(c_scale)

    def element(*i: Expr) -> Expr:
        product = _minus(broadcast_load(a, i), a_zero_point) * _minus(
            broadcast_load(b, i), b_zero_point
        )
        scaled = rounded(cast(product, "float32") * ratio)
        return _saturated(scaled + _zero(c_zero_point), a.dtype)

    shape = broadcast_shape(ctx, a.shape, b.shape)
    return nest(tuple(f"i{n}" for n in range(len(shape))), shape, element, "qlinear_mul")


def _gemm(
    ctx: Ctx,
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
) -> Tensor:
    """round((a b + c) * (alpha * a_scale * b_scale / y_scale)) + y_zero; float32 without it."""
    _check(ctx, a_scale, a_zero_point, y_scale, y_zero_point)
    if a.rank != 2 or b.rank != 2:
        raise ctx.refuse("its operands must be matrices.")
    acc = integer_matmul(ctx, a, b, a_zero_point, b_zero_point)
    columns = acc.shape[1]
    for p, what in ((b_scale, "b_scale"), (b_zero_point, "b_zero_point")):
        if math.prod(p.shape) not in (1, columns) or p.rank > 1:
            raise ctx.refuse(f"its {what} has shape {list(p.shape)}, not {[columns]}.")
    alpha = float(ctx.attr("alpha", 1.0))

    def factor(column: Expr) -> Expr:
        per = b_scale[(column,)] if math.prod(b_scale.shape) != 1 else scalar_load(b_scale)
        value = rounded(scalar_load(a_scale) * alpha) if alpha != 1.0 else scalar_load(a_scale)
        value = value * per
        return value if y_scale is None else value / scalar_load(y_scale)

    table = nest(("column",), (columns,), factor, "multiplier")
    if all(p is None or p.data is not None for p in (a_scale, b_scale, y_scale)):
        value = np.float32(alpha) * np.asarray(a_scale.data).reshape(())
        value = (value * np.asarray(b_scale.data)).reshape(-1)
        if y_scale is not None:
            value = value / np.asarray(y_scale.data).reshape(())
        table = constant(np.broadcast_to(value, (columns,)).astype(np.float32), "multiplier")

    def element(*i: Expr) -> Expr:
        total = acc[i] if c is None else acc[i] + broadcast_load(c, i)
        scaled = cast(total, "float32") * table[(i[1],)]
        if y_zero_point is None:
            return scaled
        return shifted(scaled, scalar_load(y_zero_point), y_zero_point.dtype)

    return nest(("row", "column"), acc.shape, element, "qgemm")


def _average_pool(
    ctx: Ctx,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
) -> Tensor:
    """round(mean / y_scale + y_zero), the mean that of dequantised values, summed in float32."""
    _check(ctx, x_scale, x_zero_point, y_scale, y_zero_point)
    layout = layout_of(ctx, x)
    axes = windows(ctx, layout.split(x.shape)[2], ints_attr(ctx, "kernel_shape", layout.rank, 0))
    k, kernel_axes = taps(layout.spatial_names("k"), [a.kernel for a in axes])

    def total(*index: Expr) -> object:
        n, c, o = layout.split(index)
        source = [a.source(oi, ki) for a, oi, ki in zip(axes, o, k, strict=True)]
        tests = [t for a, oi, ki in zip(axes, o, k, strict=True) for t in a.inside(oi, ki)]
        wide = cast(_minus(x[layout.order(n, c, source)], x_zero_point), "float32")
        inside: Expr | None = None
        for t in tests:
            inside = t if inside is None else inside & t
        return reduced(sum_over, rounded(scalar_load(x_scale) * wide), kernel_axes, inside)

    batch, channels, _ = layout.split(x.shape)
    shape = layout.order(batch, channels, [a.out for a in axes])
    sums = nest(layout.names(), shape, total, "window_sum")  # type: ignore[arg-type]
    whole = bool(ctx.attr("count_include_pad", 0))

    def element(*index: Expr) -> Expr:
        count: Expr = Const(INDEX, math.prod(a.kernel for a in axes))
        if not whole:
            count = Const(INDEX, 1)
            for a, o in zip(axes, layout.split(index)[2], strict=True):
                count = count * a.count(o, padding=False)
        mean = sums[index] / cast(count, "float32")
        return _saturated(mean / scalar_load(y_scale) + _zero(y_zero_point), x.dtype)

    return nest(layout.names(), shape, element, "avg_pool")


def _global_average_pool(
    ctx: Ctx,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    """round(sum of (x - x_zero) * (x_scale / (y_scale * pixels))) + y_zero, the sum in int32."""
    _check(ctx, x_scale, x_zero_point, y_scale, y_zero_point)
    layout = layout_of(ctx, x)
    axes = [WindowAxis(n, n, 1, 1, 0, 0, 1) for n in layout.split(x.shape)[2]]
    k, kernel_axes = taps(layout.spatial_names("k"), [a.size for a in axes])

    def total(*index: Expr) -> object:
        n, c, _ = layout.split(index)
        value = _minus(x[layout.order(n, c, k)], x_zero_point)
        return reduced(sum_over, value, kernel_axes, None)

    batch, channels, _ = layout.split(x.shape)
    shape = layout.order(batch, channels, [1] * layout.rank)
    sums = nest(layout.names(), shape, total, "image_sum")  # type: ignore[arg-type]
    pixels = float(math.prod(a.size for a in axes))
    scale = scalar_load(x_scale) / rounded(scalar_load(y_scale) * pixels)

    def element(*index: Expr) -> Expr:
        scaled = cast(sums[index], "float32") * scale
        return shifted(scaled, scalar_load(y_zero_point), y_zero_point.dtype)

    return nest(layout.names(), shape, element, "avg_pool")


def exponentials(x_scale: float, count: int) -> np.ndarray:
    """Return exp((i - 255) * x_scale) for i of 0..255, times what `count` of them have room for."""
    room = max(0.0, math.log(float(np.finfo(np.float32).max) / count) - 5) / x_scale
    scale = float(np.float32(x_scale))
    values: np.ndarray = np.exp((np.arange(256) - 255.0 + room) * scale).astype(np.float32)
    return values


def _softmax(
    ctx: Ctx,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    """round(e * floor(1 / y_scale) / sum of e) + y_zero, e from a table of 256 exponentials.

    A result above the type's limit saturates; onnxruntime's int8 form wraps there.
    """
    _check(ctx, x_scale, x_zero_point, y_scale, y_zero_point)
    flat = int(ctx.attr("opset", 13)) < 13
    axis = ctx.axis(ctx.attr("axis", 1 if flat else -1), x.rank)
    over = tuple(range(axis, x.rank)) if flat else (axis,)
    count = math.prod(x.shape[a] for a in over)
    scale = float(np.asarray(ctx.value(x_scale, "x_scale")).reshape(()))
    table = constant(exponentials(scale, count), "exponentials")
    inner = {a: reduce_axis(x.shape[a], f"k{a}") for a in over}
    outer = [a for a in range(x.rank) if a not in inner]
    rows = tuple(x.shape[a] for a in outer)
    names = tuple(f"i{a}" for a in outer)

    def at(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        place = dict(zip(outer, i, strict=True))
        return tuple(place[a] if a in place else inner[a] for a in range(x.rank))

    def row(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(i[a] for a in outer)

    axes = tuple(inner.values())
    top = nest(names, rows, lambda *i: max_over(x[at(i)], axes), "top")

    def power(value: Expr, i: tuple[Expr, ...]) -> Expr:
        place = cast(value, "int32") - cast(top[i], "int32") + 255
        # The limits say what the arithmetic implies, for whoever checks subscripts.
        return table[(cast(minimum(maximum(place, 0), 255), INDEX),)]

    total = nest(names, rows, lambda *i: sum_over(power(x[at(i)], i), axes), "total")
    inverse = call("floor", const(1.0, "float32") / scalar_load(y_scale))

    def element(*i: Expr) -> Expr:
        share = rounded(power(x[i], row(i)) * inverse) / total[row(i)]
        return shifted(share, scalar_load(y_zero_point), y_zero_point.dtype)

    return nest(tuple(f"i{a}" for a in range(x.rank)), x.shape, element, "softmax")


MICROSOFT_OPS: dict[str, Op] = {
    "com.microsoft:QGemm": Op(_gemm),
    "com.microsoft:QLinearAdd": Op(_add),
    "com.microsoft:QLinearAveragePool": Op(_average_pool),
    "com.microsoft:QLinearGlobalAveragePool": Op(_global_average_pool),
    "com.microsoft:QLinearMul": Op(_mul),
    "com.microsoft:QLinearSoftmax": Op(_softmax),
}
