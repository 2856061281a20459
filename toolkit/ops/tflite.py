"""Operators with TFLite's own integer arithmetic: its two-step requantisation and fixed point.

Meaning: TFLite's reference kernels.  A real multiplier is stored as an int32 `multiplier`, a
fraction of 2**31, and a `shift`, positive to the left; a product rounds twice, first half up at
2**31, then half away from zero at the right shift.  Activations have the channel last.
"""

from __future__ import annotations

import numpy as np

from toolkit.ir.compute import compute, reduce_axis, Tensor
from toolkit.ir.compute import max as max_over
from toolkit.ir.compute import sum as sum_over
from toolkit.ir.expr import (
    binary,
    call,
    cast,
    Const,
    const,
    Expr,
    INDEX,
    maximum,
    minimum,
    Operand,
    select,
)
from toolkit.ir.types import DType, int_range
from toolkit.ops.conv import nest
from toolkit.ops.elementwise import broadcast_load, broadcast_shape
from toolkit.ops.op import Ctx, Op
from toolkit.ops.pool import image_windows, window_reduction
from toolkit.ops.shape import constant, scalar_load

TOP = 2**31 - 1


def high_product(a: Expr, b: Operand) -> Expr:
    """Return a * b / 2**31 rounded half up, int32; not both may be -2**31."""
    right = cast(b, "int64") if isinstance(b, Expr) else b
    wide = cast(a, "int64") * right + (1 << 30)
    return cast(binary("shr", wide, const(31, "int64")), "int32")


def rounded_product(a: Expr, b: Expr, bits: Expr) -> Expr:
    """Return a * b / 2**bits rounded half up, int32; bits of 1..62."""
    half = binary("shl", const(1, "int64"), bits - 1)
    wide = cast(a, "int64") * cast(b, "int64") + half
    return cast(binary("shr", wide, bits), "int32")


def rounded_shift(x: Expr, bits: Operand) -> Expr:
    """Return x / 2**bits rounded half away from zero, int32; bits of 0..31."""
    if isinstance(bits, int) and bits == 0:
        return x
    if isinstance(bits, int):
        mask: Expr = const((1 << bits) - 1, "int32")
    else:
        mask = binary("shl", const(1, "int32"), bits) - 1
    rest = x & mask
    half = binary("shr", mask, const(1, "int32")) + cast(x < 0, "int32")
    return binary("shr", x, bits) + cast(rest > half, "int32")


def half_up_shift(x: Expr, bits: Expr) -> Expr:
    """Return x / 2**bits rounded half up, int32; bits of 0..31, x of at most 31 bits less."""
    half = binary("shr", binary("shl", const(1, "int32"), bits), const(1, "int32"))
    return binary("shr", x + half, bits)


def scaled_up(x: Expr, bits: int) -> Expr:
    """Return x * 2**bits, saturated to int32."""
    wide = binary("shl", cast(x, "int64"), const(bits, "int64"))
    return cast(maximum(minimum(wide, TOP), -TOP - 1), "int32")


def rounded_away(x: Expr) -> Expr:
    """Return a float rounded to an integer, half away from zero."""
    return call("trunc", x + select(x < 0.0, const(-0.5, x.dtype), 0.5))


def limited(value: Expr, low: int, high: int, dtype: DType) -> Expr:
    """Return an int32 limited to low..high, converted to an integer type."""
    return cast(maximum(minimum(value, high), low), dtype)


# -- requantisation ---------------------------------------------------------------------------


def _split(ctx: Ctx, shift: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the left and right shifts as tables; None where all are 0."""
    values = ctx.value(shift, "shift").astype(np.int32)
    left, right = np.maximum(values, 0), np.maximum(-values, 0)
    return (
        constant(left, "left") if left.any() else None,
        constant(right, "right") if right.any() else None,
    )


def _requantize(
    ctx: Ctx, acc: Tensor, multiplier: Tensor, shift: Tensor, zero_point: Tensor
) -> Tensor:
    """y = limit(acc * multiplier * 2**shift + zero_point), one multiplier or one a channel.

    With `single` the product is rounded once, half up, as TFLite's FULLY_CONNECTED does; with
    `half_up` the second rounding is so, which is equal where `low` is the zero point or above.
    """
    count = acc.shape[-1] if acc.rank else 1
    if acc.dtype != "int32" or multiplier.shape != shift.shape:
        raise ctx.refuse(f"cannot requantise {acc.type} by {multiplier.type} and {shift.type}.")
    if multiplier.shape not in ((1,), (count,)):
        raise ctx.refuse(f"{multiplier.shape[0]} multipliers do not fit {count} channels.")
    left, right = _split(ctx, shift)
    bits = constant(31 - ctx.value(shift, "shift").astype(np.int32), "bits")

    def element(*i: Expr) -> Expr:
        def at(table: Tensor) -> Expr:
            return table[0 if multiplier.shape == (1,) else i[-1]]

        value: Expr = acc[i]
        if ctx.attr("single"):
            value = rounded_product(value, at(multiplier), at(bits))
        else:
            if left is not None:
                value = binary("shl", value, at(left))
            value = high_product(value, at(multiplier))
            if right is not None:
                rounding = half_up_shift if ctx.attr("half_up", 0) else rounded_shift
                value = rounding(value, at(right))
        value = value + scalar_load(zero_point)
        return limited(value, ctx.attr("low"), ctx.attr("high"), ctx.attr("dtype"))

    return compute(acc.shape, element, "requantize")


def _scaled(ctx: Ctx, x: Expr, position: int, multipliers: Tensor, shifts: Tensor) -> Expr:
    """Return x times multiplier `position` of a table, by the two roundings."""
    shift = ctx.ints(shifts, "shifts")[position]
    if shift > 0:
        x = binary("shl", x, const(shift, "int32"))
    return rounded_shift(high_product(x, multipliers[position]), max(-shift, 0))


def _add(
    ctx: Ctx, a: Tensor, b: Tensor, zero_points: Tensor, multipliers: Tensor, shifts: Tensor
) -> Tensor:
    """Sum of two 8-bit tensors, both widened by `left_shift` and brought to one scale first."""
    if a.dtype != b.dtype:
        raise ctx.refuse(f"operands of types {a.dtype} and {b.dtype} differ.")
    widening = const(ctx.attr("left_shift"), "int32")

    def element(*i: Expr) -> Expr:
        total: Expr | None = None
        for position, x in enumerate((a, b)):
            value = cast(broadcast_load(x, i), "int32") - zero_points[position]
            value = binary("shl", value, widening)
            value = _scaled(ctx, value, position, multipliers, shifts)
            total = value if total is None else total + value
        assert total is not None
        value = _scaled(ctx, total, 2, multipliers, shifts) + zero_points[2]
        return limited(value, ctx.attr("low"), ctx.attr("high"), a.dtype)

    return compute(broadcast_shape(ctx, a.shape, b.shape), element, "add")


def _product(ctx: Ctx, a: Tensor, b: Tensor, zero_points: Tensor) -> Tensor:
    """(a - zero_a) * (b - zero_b) in int32."""

    def element(*i: Expr) -> Expr:
        left = cast(broadcast_load(a, i), "int32") - zero_points[0]
        return left * (cast(broadcast_load(b, i), "int32") - zero_points[1])

    return compute(broadcast_shape(ctx, a.shape, b.shape), element, "product")


def _lookup(ctx: Ctx, x: Tensor, table: Tensor) -> Tensor:
    """y = table[x - lowest value of x's type]."""
    if x.dtype not in ("int8", "uint8") or table.shape != (256,):
        raise ctx.refuse(f"a table {table.type} does not fit {x.type}.")
    low = int_range(x.dtype)[0]
    return compute(x.shape, lambda *i: table[cast(x[i], INDEX) - low], "lookup")


def _quantize(ctx: Ctx, x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """y = limit(round(x / scale) + zero_point), ties away from zero, in float32."""
    dtype = ctx.attr("dtype")
    low, high = (float(v) for v in int_range(dtype))

    def element(*i: Expr) -> Expr:
        rounded = rounded_away(x[i] / scalar_load(scale))
        value = rounded + cast(scalar_load(zero_point), x.dtype)
        below = select(value < high, value, const(high, x.dtype))
        return cast(select(below > low, below, const(low, x.dtype)), dtype)

    return compute(x.shape, element, "quantize")


def _quantize_batches(ctx: Ctx, x: Tensor) -> tuple[Tensor, Tensor]:
    """To int8 without zero point, by the largest magnitude of each batch; ties away from zero.

    q = limit(round(x * (127 / largest))), and largest / 127; of nothing but zeros 0 and 1.
    """
    if x.dtype != "float32" or x.rank < 2:
        raise ctx.refuse(f"cannot quantise {x.type} by batches.")
    axes = tuple(reduce_axis(n, f"k{a}") for a, n in enumerate(x.shape[1:]))
    top = compute(x.shape[:1], lambda n: max_over(call("abs", x[(n, *axes)]), axes), "largest")

    def factor(n: Expr) -> Expr:
        return select(top[n] > 0.0, const(127.0, x.dtype) / top[n], const(0.0, x.dtype))

    inverse = compute(top.shape, factor, "inverse")
    scale = compute(
        top.shape, lambda n: select(top[n] > 0.0, top[n] / 127.0, const(1.0, x.dtype)), "scale"
    )

    def element(*i: Expr) -> Expr:
        rounded = rounded_away(x[i] * inverse[i[0]])
        return cast(maximum(minimum(rounded, 127.0), -127.0), "int8")

    return compute(x.shape, element, "quantized"), scale


# -- pools and means --------------------------------------------------------------------------


def rounded_quotient(total: Expr, count: Expr) -> Expr:
    """Return total / count rounded half away from zero, int32."""
    half = binary("div", count, const(2, "int32"))
    return binary("div", select(total > 0, total + half, total - half), count)


def _average_pool(ctx: Ctx, x: Tensor) -> Tensor:
    """Mean over what of each window lies in the image, limited to low..high."""
    layout, axes = image_windows(ctx, x)
    total = window_reduction(x, layout, axes, sum_over, lambda v: cast(v, "int32"), "window_sum")

    def element(*index: Expr) -> Expr:
        count: Expr = Const(INDEX, 1)
        for a, o in zip(axes, layout.split(index)[2], strict=True):
            count = count * a.count(o, padding=False)
        value = rounded_quotient(total[index], cast(count, "int32"))
        return limited(value, ctx.attr("low"), ctx.attr("high"), x.dtype)

    return nest(layout.names(), total.shape, element, "avg_pool")


def _resize_bilinear(
    ctx: Ctx, x: Tensor, y_low: Tensor, y_high: Tensor, y_part: Tensor, x_low: Tensor,
    x_high: Tensor, x_part: Tensor,
) -> Tensor:  # fmt: skip
    """Between four elements of [n, h, w, c], whose places and parts of 1024 are tables by axis."""
    if x.rank != 4 or x.dtype != "int8":
        raise ctx.refuse(f"cannot resize {x.type}.")
    one = const(1 << 10, "int32")

    def element(n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
        def at(row: Tensor, column: Tensor) -> Expr:
            return cast(x[n, cast(row[h], INDEX), cast(column[w], INDEX), c], "int32")

        above, left = one - y_part[h], one - x_part[w]
        value = at(y_low, x_low) * above * left + at(y_low, x_high) * above * x_part[w]
        value = value + at(y_high, x_low) * y_part[h] * left
        value = value + at(y_high, x_high) * y_part[h] * x_part[w]
        half = select(value > 0, const(1 << 19, "int32"), -(1 << 19))
        # Not a shift: a quotient is rounded to zero.
        return cast(binary("div", value + half, const(1 << 20, "int32")), x.dtype)

    shape = (x.shape[0], y_low.shape[0], x_low.shape[0], x.shape[3])
    return compute(shape, element, "resize_bilinear")


# -- softmax ----------------------------------------------------------------------------------

_SUM_BITS = 12
"""Integer bits of the sum of exponentials."""


def _reciprocal(x: Tensor) -> Tensor:
    """Return 1 / (1 + x) of 0 <= x <= 1, no integer bits: three Newton steps on 1 / ((1 + x) / 2).

    The start is 48/17 - 32/17 * (1 + x) / 2, with two integer bits.  Every step is a stage of its
    own: as one expression they would hold 27 copies of the first.
    """

    def halved(*i: Expr) -> Expr:
        total = cast(x[i], "int64") + (TOP + 1)
        return cast(binary("shr", total, const(1, "int64")), "int32")

    half = compute(x.shape, halved, "half")
    y = compute(x.shape, lambda *i: high_product(half[i], -1010580540) + 1515870810, "newton0")
    for step in (1, 2, 3):

        def closer(*i: Expr, y: Tensor = y) -> Expr:
            error = const(1 << 29, "int32") - high_product(half[i], y[i])
            return y[i] + scaled_up(high_product(y[i], error), 2)

        y = compute(x.shape, closer, f"newton{step}")
    return compute(x.shape, lambda *i: scaled_up(y[i], 1), "reciprocal")


def _softmax(ctx: Ctx, x: Tensor, exponentials: Tensor) -> Tensor:
    """exp / sum of exp along the last axis, from a table of exp of the distance to the largest.

    The sum has 12 integer bits; its reciprocal is that of 1 + a fraction, so that the sum is first
    shifted up until its highest bit is set.
    """
    if x.rank == 0 or x.dtype not in ("int8", "uint8") or exponentials.shape != (256,):
        raise ctx.refuse(f"cannot normalise {x.type} with {exponentials.type}.")
    dtype = ctx.attr("dtype")
    low, high = int_range(dtype)
    n = x.shape[-1]
    rows = x.shape[:-1]
    if n >= 1 << _SUM_BITS:
        raise ctx.refuse(f"rows of {n} are too long for a sum of {_SUM_BITS} integer bits.")
    j, k = reduce_axis(n, "j"), reduce_axis(n, "k")
    top = compute(rows, lambda *i: max_over(cast(x[(*i, j)], "int32"), j), "top")
    exp = compute(
        x.shape, lambda *i: exponentials[cast(top[i[:-1]] - cast(x[i], "int32"), INDEX)], "exp"
    )
    total = compute(rows, lambda *i: sum_over(rounded_shift(exp[(*i, k)], _SUM_BITS), k), "total")
    # Each exp is at most 2**31 - 1, so the sum is at least 2**19 and below 2**31.
    longest = 19 + max(n - 1, 0).bit_length()

    def above(*i: Expr) -> Expr:
        bits: Expr = const(0, "int32")
        for bit in range(20, min(longest, 30) + 1):
            bits = bits + cast(total[i] >= (1 << bit), "int32")
        return bits

    over = compute(rows, above, "bits_over_unit")

    def fraction(*i: Expr) -> Expr:
        return binary("shl", total[i], const(12, "int32") - over[i]) & TOP

    scale = _reciprocal(compute(rows, fraction, "fraction"))
    lost = 31 - 8

    def element(*i: Expr) -> Expr:
        row = i[:-1]
        # Not negative, so that half up is half away from zero.  In 64 bits, since rows of more than
        # 512 nearly equal values shift by 32, which TFLite leaves undefined.
        value = cast(high_product(exp[i], scale[row]), "int64")
        half = binary("shl", const(1, "int64"), over[row] + (lost - 1))
        value = cast(binary("shr", value + half, over[row] + lost), "int32")
        return limited(value + low, low, high, dtype)

    return compute(x.shape, element, "softmax")


TFLITE_OPS: dict[str, Op] = {
    f"tflite:{name}": Op(function)
    for name, function in (
        ("Requantize", _requantize),
        ("Add", _add),
        ("Product", _product),
        ("Lookup", _lookup),
        ("Quantize", _quantize),
        ("QuantizeBatches", _quantize_batches),
        ("AveragePool", _average_pool),
        ("ResizeBilinear", _resize_bilinear),
        ("Softmax", _softmax),
    )
}
