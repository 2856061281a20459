"""Requantize, RequantizeSum: int32 sums, or pairs, to narrow integers, by proven arithmetic.

Made by the passes `integers` and `requantise`, never imported.  Attributes: `to` (ONNX element
type), `low` and `high` (an activation folded into the range), `axis` where the parameters have one
value a channel.
"""

from __future__ import annotations

from toolkit.ir.compute import compute, Tensor
from toolkit.ir.expr import binary, call, cast, const, Expr, maximum, minimum
from toolkit.ir.types import FROM_ONNX, TensorType
from toolkit.ops.elementwise import broadcast_load, broadcast_shape
from toolkit.ops.op import Ctx, Op
from toolkit.ops.quant import clamped
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


FIXED_OPS: dict[str, Op] = {"Requantize": Op(_requantize), "RequantizeSum": Op(_requantize_sum)}
