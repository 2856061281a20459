"""Fixed-point arithmetic in expressions, for which instruction sets have instructions of their own.

Each function recognises the form that `ops.tflite` and `ops.quant_fixed` write, after
simplification.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.ir.expr import Binary, Cast, cast, Const, Expr
from toolkit.ir.types import int_range
from toolkit.targets.isas.integer import NARROW


def high_product(expr: Expr) -> tuple[Expr, Expr] | None:
    """Return (a, b) of int32((int64(a) * int64(b) + 2**30) >> 31), all of int32."""
    found = _scaled(expr)
    if found is None:
        return None
    a, b, offset, bits = found
    return (a, b) if offset == 1 << 30 and bits == 31 else None


def high_word(expr: Expr) -> tuple[Expr, Expr, int, int] | None:
    """Return (a, b, c, n) of int32((int64(a) * int64(b) + c * 2**32) >> (32 + n)).

    That is (h + c) >> n, h being the high word of the product: what is below it carries nothing.
    """
    found = _scaled(expr)
    if found is None:
        return None
    a, b, offset, bits = found
    low, high = int_range("int32")
    if bits < 32 or offset % (1 << 32) or not low <= offset >> 32 <= high:
        return None
    return a, b, offset >> 32, bits - 32


def _scaled(expr: Expr) -> tuple[Expr, Expr, int, int] | None:
    """Return (a, b, offset, bits) of int32((int64(a) * int64(b) + offset) >> bits)."""
    match expr:
        case Cast(
            dtype="int32",
            a=Binary(dtype="int64", op="shr", a=Binary() as total, b=Const(value=bits)),
        ):
            product, offset = total, 0
            if total.op == "add" and isinstance(total.a, Binary) and isinstance(total.b, Const):
                product, offset = total.a, int(total.b.value)
            if product.op == "mul":
                a, b = _word(product.a), _word(product.b)
                if a is not None and b is not None:
                    return a, b, offset, int(bits)
    return None


def _word(expr: Expr) -> Expr | None:
    """Return an operand of 64 bits as one of int32; None where it may not be."""
    low, high = int_range("int32")
    if isinstance(expr, Const) and low <= expr.value <= high:
        return Const("int32", expr.value)
    if isinstance(expr, Cast):
        narrow = expr.a.dtype in ("int32", *NARROW)
        return cast(expr.a, "int32") if narrow else None
    return None


@dataclass(frozen=True, slots=True)
class LongSum:
    """int32((int64(a) * int64(b) + offset - (a < 0) * below) >> (32 + bits)), offset of int64."""

    a: Expr
    b: Expr
    offset: Expr
    below: Expr | None
    bits: int


def long_sum(expr: Expr) -> LongSum | None:
    """Return the parts of a product with an addend of 64 bits, of which a high word is taken."""
    match expr:
        case Cast(dtype="int32", a=Binary(dtype="int64", op="shr", a=total, b=Const(value=bits))):
            below = None
            match total:
                case Binary(op="add", a=inner, b=Binary(op="mul", a=sign, b=less)):
                    total, below = inner, (_word(sign), _word(less))
            match total:
                case Binary(op="add", a=Binary(op="mul", a=left, b=right), b=offset):
                    a, b = _word(left), _word(right)
                    if a is None or b is None or bits < 32:
                        return None
                    if below is None:
                        return LongSum(a, b, offset, None, int(bits) - 32)
                    negative = Binary("int32", "shr", a, Const("int32", 31))
                    if below[0] == negative and below[1] is not None:
                        return LongSum(a, b, offset, below[1], int(bits) - 32)
    return None


def rounded_shift(expr: Expr) -> tuple[Expr, Expr] | None:
    """Return (x, n) of (x >> n) + int32((mask >> 1) + int32(x < 0) < (x & mask)), mask 2**n - 1.

    That is x / 2**n rounded half away from zero.
    """
    match expr:
        case Binary(
            dtype="int32",
            op="add",
            a=Binary(op="shr", a=x, b=n),
            b=Cast(a=Binary(op="lt", a=Binary(op="add", a=half, b=below), b=rest)),
        ):
            negative = Cast("int32", Binary("bool", "lt", x, Const("int32", 0)))
            if below != negative:
                half, below = below, half
            if below != negative or not isinstance(rest, Binary) or rest.op != "and":
                return None
            mask = rest.b if rest.a == x else rest.a if rest.b == x else None
            if mask is None:
                return None
            if isinstance(n, Const) and isinstance(mask, Const) and isinstance(half, Const):
                bits, most = int(n.value), int(mask.value)
                right = most == (1 << bits) - 1 and half.value == most >> 1
                return (x, n) if right and 1 <= bits <= 31 else None
            one = Const("int32", 1)
            whole = Binary("int32", "sub", Binary("int32", "shl", one, n), one)
            if mask == whole and half == Binary("int32", "shr", whole, one):
                return x, n
    return None


def half_up_shift(expr: Expr) -> tuple[Expr, Expr] | None:
    """Return (x, n) of (x + ((1 << n) >> 1)) >> n: x / 2**n rounded half up, of a variable n."""
    match expr:
        case Binary(dtype="int32", op="shr", a=Binary(op="add", a=x, b=half), b=n):
            one = Const("int32", 1)
            if half == Binary("int32", "shr", Binary("int32", "shl", one, n), one):
                return x, n
    return None


def saturated(expr: Expr) -> Expr | None:
    """Return x of an int32 x limited to all values of a narrower type and cast to it."""
    if not isinstance(expr, Cast) or expr.a.dtype != "int32":
        return None
    least, most = int_range(expr.dtype)
    limits = {"max": least, "min": most}
    value = expr.a
    while limits and isinstance(value, Binary):
        if not isinstance(value.b, Const) or limits.pop(value.op, None) != value.b.value:
            return None
        value = value.a
    return None if limits else value


__all__ = [
    "half_up_shift", "high_product", "high_word", "long_sum", "LongSum", "rounded_shift",
    "saturated",
]  # fmt: skip
