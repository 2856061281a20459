"""Requantize, RequantizeSum, RequantizeMean: sums, pairs, means to narrow integers, as proven.

Made by the passes `integers` and `requantise`, never imported.  Attributes: `to` (ONNX element
type), `low` and `high` (an activation folded into the range), `axis` where the parameters have one
value a channel.
"""

from __future__ import annotations

import math

from toolkit.ir.compute import compute, reduce_axis, Tensor
from toolkit.ir.compute import sum as sum_over
from toolkit.ir.expr import binary, call, cast, const, Expr, maximum, minimum
from toolkit.ir.types import FROM_ONNX, int_range, TensorType
from toolkit.ops.conv import layout_of, nest
from toolkit.ops.elementwise import broadcast_load, broadcast_shape
from toolkit.ops.op import Ctx, Op
from toolkit.ops.quant import clamped
from toolkit.ops.quant_microsoft import rounded
from toolkit.ops.shape import scalar_load


def _requantize(
    ctx: Ctx, acc: Tensor, multiplier: Tensor, offset: Tensor, below: Tensor | None = None
) -> Tensor:
    """clamp(round((acc + offset) * multiplier) + zero_point), with a multiplier of float32.

    With one of int32: clamp((acc * multiplier + offset - (acc < 0) * below) >> shift), the sum in
    int64 and what is shifted in int32: where the shift is 32 or more, a high word and its bits.
    """
    dtype = FROM_ONNX[ctx.attr("to")]
    low, high = int(ctx.attr("low")), int(ctx.attr("high"))
    axis = ctx.axis(ctx.attr("axis", -1), acc.rank)
    if acc.dtype != "int32":
        raise ctx.refuse(f"its sums must be int32, not {acc.dtype}.")

    def param(p: Tensor, i: tuple[Expr, ...]) -> Expr:
        return scalar_load(p) if p.rank == 0 else p[(i[axis],)]

    def in_float(*i: Expr) -> Expr:
        total = cast(acc[i] + param(offset, i), "float32")
        value = call("round", total * param(multiplier, i)) + float(ctx.attr("zero_point"))
        return cast(clamped(value, float(low), float(high)), dtype)

    def in_integers(*i: Expr) -> Expr:
        total = cast(acc[i], "int64") * cast(param(multiplier, i), "int64") + param(offset, i)
        if below is not None:
            sign = binary("shr", acc[i], const(31, "int32"))
            total = total + cast(sign, "int64") * cast(param(below, i), "int64")
        value = cast(binary("shr", total, const(ctx.attr("shift"), "int64")), "int32")
        return cast(minimum(maximum(value, low), high), dtype)

    form = in_float if multiplier.dtype == "float32" else in_integers
    return compute(acc.shape, form, "requantize")


def _requantize_sum(ctx: Ctx, a: Tensor, b: Tensor, multipliers: Tensor, offset: Tensor) -> Tensor:
    """clamp((a * multipliers[0] + b * multipliers[1] + offset) >> shift), in int32."""
    dtype = FROM_ONNX[ctx.attr("to")]
    low, high = int(ctx.attr("low")), int(ctx.attr("high"))
    if multipliers.type != TensorType((2,), "int32") or offset.type != TensorType((), "int32"):
        raise ctx.refuse(f"it takes int32[2] and int32[], not {multipliers.type}, {offset.type}.")

    def element(*i: Expr) -> Expr:
        total: Expr = scalar_load(offset)
        for position, x in enumerate((a, b)):
            total = total + cast(broadcast_load(x, i), "int32") * multipliers[position]
        value = binary("shr", total, const(ctx.attr("shift"), "int32"))
        return cast(minimum(maximum(value, low), high), dtype)

    return compute(broadcast_shape(ctx, a.shape, b.shape), element, "requantize_sum")


def _requantize_mean(
    ctx: Ctx, x: Tensor, x_scale: Tensor, x_zero_point: Tensor, y_scale: Tensor
) -> Tensor:
    """Mean of each channel of dequantised values, quantised: float32 sums in onnxruntime's order.

    With `parts` = 4, every fourth element of an image is added in a lane of its own, the lanes as
    (0 + 2) + (1 + 3), then up to three elements that are left; with 1, element after element.  Ties
    of means are exact, so that the order decides.
    """
    dtype = FROM_ONNX[ctx.attr("to")]
    count = int(ctx.attr("parts"))
    layout = layout_of(ctx, x)
    batch, channels, sizes = layout.split(x.shape)
    pixels = math.prod(sizes)
    if count not in (1, 4):
        raise ctx.refuse(f"it adds in 1 or 4 parts, not {count}.")

    def real(n: Expr, c: Expr, pixel: Expr) -> Expr:
        place: list[Expr] = []
        for size in reversed(sizes):
            place.insert(0, pixel % size)
            pixel = pixel // size
        value = cast(x[layout.order(n, c, place)], "int32")
        value = value - cast(scalar_load(x_zero_point), "int32")
        return rounded(cast(value, "float32") * scalar_load(x_scale))

    whole = pixels // count
    k = reduce_axis(whole, "k")
    parts = compute(
        (count, batch, channels),
        lambda p, n, c: sum_over(real(n, c, k * count + p), k),
        "parts",
    )

    def element(*index: Expr) -> Expr:
        n, c, _ = layout.split(index)
        lanes: list[Expr] = [parts[p, n, c] for p in range(count)]
        total = lanes[0] if count == 1 else (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
        for pixel in range(whole * count, pixels):
            total = total + real(n, c, const(pixel, "index"))
        mean = total / float(pixels)
        value = call("round", mean / scalar_load(y_scale)) + float(ctx.attr("zero_point"))
        return cast(clamped(value, *map(float, int_range(dtype))), dtype)

    shape = layout.order(batch, channels, [1] * layout.rank)
    return nest(layout.names(), shape, element, "mean")


FIXED_OPS: dict[str, Op] = {
    "Requantize": Op(_requantize),
    "RequantizeMean": Op(_requantize_mean),
    "RequantizeSum": Op(_requantize_sum),
}
