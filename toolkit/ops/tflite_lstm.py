"""LSTM on 8-bit activations with a 16-bit cell state, as TFLite's reference kernels compute it.

Meaning: TFLite's lstm_eval (`8x8_16`) and gemmlowp's fixed point on int16: numbers with m integer
bits are in units of 2**(m - 15).  Gates come in the order input, forget, output, cell: three
sigmoids, then the hyperbolic tangent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toolkit.ir.compute import compute, reduce_axis, scan, Tensor
from toolkit.ir.compute import sum as sum_over
from toolkit.ir.expr import binary, cast, const, Expr, maximum, minimum, select
from toolkit.ops.op import Ctx, Op
from toolkit.ops.shape import constant
from toolkit.ops.tflite import high_product, limited, rounded_shift

TOP = 2**15 - 1
ONE = TOP
"""1.0 with no integer bits: the largest number there is."""

GATE_BITS = 3
"""Integer bits of what the gates' functions take."""

_EXP_POWERS = (
    (-2, 25520), (-1, 19875), (0, 12055), (1, 4435), (2, 600), (3, 11), (4, 0),
)  # fmt: skip
"""exp(-2**exponent), no integer bits."""


def _high(a: Expr, b: Expr | int) -> Expr:
    """Return a * b / 2**15 rounded half up, of int16 values held in int32."""
    return binary("shr", a * b + (1 << 14), const(15, "int32"))


def _up(x: Expr, bits: int) -> Expr:
    """Return x * 2**bits, saturated to int16."""
    return maximum(minimum(binary("shl", x, const(bits, "int32")), TOP), -TOP - 1)


def _added(a: Expr | int, b: Expr) -> Expr:
    """Return a + b, saturated to int16."""
    return maximum(minimum(b + a, TOP), -TOP - 1)


def _stage(like: Tensor, fn: Callable[..., Expr], name: str) -> Tensor:
    return compute(like.shape, fn, name)


def _exp(x: Tensor, integer_bits: int, tag: str) -> Tensor:
    """Return exp(x), no integer bits, of x <= 0: exp of x mod 1/4, times constants.

    Each factor is a stage of its own: as one expression it would hold 2**7 copies of the first.
    """
    quarter = 1 << (13 - integer_bits)
    below = _stage(x, lambda *i: (x[i] & (quarter - 1)) - quarter, f"below_{tag}")
    # exp of -1/4 <= a < 0: a Taylor polynomial of degree 4 around -1/8.
    a = _stage(x, lambda *i: _up(below[i], integer_bits) + (1 << 12), f"near_{tag}")
    a2 = _stage(x, lambda *i: _high(a[i], a[i]), f"square_{tag}")

    def polynomial(*i: Expr) -> Expr:
        tail = rounded_shift(_high(a2[i], a2[i]), 2) + _high(a2[i], a[i])
        tail = rounded_shift(_high(tail, 10923) + a2[i], 1)
        return _added(28918, _high(a[i] + tail, 28918))

    result = _stage(x, polynomial, f"exp_{tag}")
    for exponent, factor in _EXP_POWERS:
        if integer_bits > exponent:
            bit = 1 << (15 - integer_bits + exponent)

            def product(*i: Expr, y: Tensor = result, bit: int = bit, by: int = factor) -> Expr:
                chosen = (below[i] - x[i]) & bit
                return select(chosen > 0, _high(y[i], by), y[i])

            result = _stage(x, product, f"exp{exponent + 2}_{tag}")
    last = result

    def whole(*i: Expr) -> Expr:
        value = select(x[i] >= 0, const(ONE, "int32"), last[i])
        if integer_bits > 5:  # below -32
            value = select(x[i] < -(1 << (20 - integer_bits)), const(0, "int32"), value)
        return value

    return _stage(x, whole, f"exp_of_{tag}")


def _twice_reciprocal(x: Tensor, tag: str) -> Tensor:
    """Return 2 / (1 + x) with 2 integer bits, of 0 <= x <= 1: three Newton steps."""
    half = _stage(x, lambda *i: binary("shr", x[i] + (ONE + 1), const(1, "int32")), f"half_{tag}")
    y = _stage(x, lambda *i: _high(half[i], -15420) + 23130, f"newton0_{tag}")
    for step in (1, 2, 3):

        def closer(*i: Expr, y: Tensor = y) -> Expr:
            error = const(1 << 13, "int32") - _high(half[i], y[i])
            return y[i] + _up(_high(y[i], error), 2)

        y = _stage(x, closer, f"newton{step}_{tag}")
    return y


def _below_zero(x: Tensor, tag: str) -> Tensor:
    """Return -|x|."""
    return _stage(x, lambda *i: select(x[i] > 0, -x[i], x[i]), f"minus_{tag}")


def sigmoid16(x: Tensor, integer_bits: int, tag: str = "s") -> Tensor:
    """Return 1 / (1 + exp(-x)), no integer bits, of int16 values in int32."""
    y = _twice_reciprocal(_exp(_below_zero(x, tag), integer_bits, tag), tag)

    def element(*i: Expr) -> Expr:
        positive = _up(y[i], 1)
        other = select(x[i] < 0, const(ONE, "int32") - positive, const(1 << 14, "int32"))
        return select(x[i] > 0, positive, other)

    return _stage(x, element, f"sigmoid_{tag}")


def tanh16(x: Tensor, integer_bits: int, tag: str = "t") -> Tensor:
    """Return tanh(x), no integer bits, of int16 values in int32: 2 / (1 + exp(-2|x|)) - 1."""
    y = _twice_reciprocal(_exp(_below_zero(x, tag), integer_bits + 1, tag), tag)

    def element(*i: Expr) -> Expr:
        size = _up(y[i] - (1 << 13), 2)
        return select(x[i] > 0, size, select(x[i] < 0, -size, const(0, "int32")))

    return _stage(x, element, f"tanh_{tag}")


def _requantised(ctx: Ctx, multiplier: Tensor, shift: Tensor) -> Callable[[Expr, Expr], Expr]:
    """Return what scales an int32 by multiplier j of a table, by TFLite's two roundings."""
    shifts = ctx.value(shift, "shift")
    left = constant(shifts.clip(min=0).astype("int32"), "left") if (shifts > 0).any() else None
    right = constant((-shifts).clip(min=0).astype("int32"), "right")

    def scaled(value: Expr, j: Expr) -> Expr:
        if left is not None:
            value = binary("shl", value, left[j])
        return rounded_shift(high_product(value, multiplier[j]), right[j])

    return scaled


def _lstm(
    ctx: Ctx, x: Tensor, w: Tensor, r: Tensor, x_bias: Tensor, r_bias: Tensor,
    x_multiplier: Tensor, x_shift: Tensor, r_multiplier: Tensor, r_shift: Tensor,
    h: Tensor, c: Tensor,
) -> list[Tensor | None]:  # fmt: skip
    """Return the outputs of all steps, and the states after the last.

    x int8 [steps, batch, k]; w [k, 4 n] and r [n, 4 n] int8; biases, which hold the zero points,
    multipliers and shifts [4 n]; h int8 and c int16 [batch, n].  Attributes: `cell_bits`, the
    fraction bits of c; `clip`, of c, 0 for none; `multiplier`, `shift` and `zero_point` of h.
    """
    steps, batch, inner = x.shape
    n = h.shape[1]
    if w.shape != (inner, 4 * n) or r.shape != (n, 4 * n) or c.shape != h.shape:
        raise ctx.refuse(f"weights {w.type} and {r.type} do not fit {x.type} and {h.type}.")
    k, m = reduce_axis(inner, "k"), reduce_axis(n, "m")
    of_x, of_r = _requantised(ctx, x_multiplier, x_shift), _requantised(ctx, r_multiplier, r_shift)
    product = compute(
        (steps, batch, 4 * n),
        lambda t, b, j: sum_over(cast(x[t, b, k], "int32") * cast(w[k, j], "int32"), k), "xw",
    )  # fmt: skip
    part = compute(
        product.shape,
        lambda t, b, j: limited(
            of_x(product[t, b, j] + x_bias[j], j), -TOP - 1, TOP, "int16"
        ),
        "x_part",
    )  # fmt: skip
    cell_bits, clip = ctx.attr("cell_bits"), ctx.attr("clip")
    out_multiplier, out_shift = ctx.attr("multiplier"), ctx.attr("shift")

    def step(t: Expr, *states: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        old_h, old_c = states
        hr = compute(
            (batch, 4 * n),
            lambda b, j: sum_over(cast(old_h[b, m], "int32") * cast(r[m, j], "int32"), m), "hr",
        )  # fmt: skip
        gates = compute(
            (batch, 4 * n),
            lambda b, j: limited(
                of_r(hr[b, j] + r_bias[j], j) + cast(part[t, b, j], "int32"), -TOP - 1, TOP, "int32"
            ),
            "gates",
        )
        opened = sigmoid16(
            compute((batch, 3 * n), lambda b, j: gates[b, j], "opening"), GATE_BITS, "gate"
        )
        update = tanh16(
            compute((batch, n), lambda b, j: gates[b, j + 3 * n], "update"), GATE_BITS, "update"
        )

        def cell(b: Expr, j: Expr) -> Expr:
            kept = rounded_shift(opened[b, j + n] * cast(old_c[b, j], "int32"), 15)
            added = rounded_shift(opened[b, j] * update[b, j], 30 - cell_bits)
            value = _added(kept, added)
            if clip:
                value = maximum(minimum(value, clip), -clip)
            return cast(value, "int16")

        new_c = compute((batch, n), cell, "c_next")
        shown = tanh16(
            compute((batch, n), lambda b, j: cast(new_c[b, j], "int32"), "shown"),
            15 - cell_bits, "cell",
        )  # fmt: skip

        def output(b: Expr, j: Expr) -> Expr:
            value = opened[b, j + 2 * n] * shown[b, j]
            if out_shift > 0:
                value = binary("shl", value, const(out_shift, "int32"))
            value = rounded_shift(high_product(value, out_multiplier), max(-out_shift, 0))
            return limited(value - ctx.attr("zero_point"), -128, 127, "int8")

        new_h = compute((batch, n), output, "h_next")
        return [new_h, new_c], [new_h]

    (y,), finals = scan(steps, [h, c], step, name="lstm")
    return [y, *finals]


TFLITE_LSTM_OPS: dict[str, Op] = {"tflite:Lstm": Op(_lstm)}
