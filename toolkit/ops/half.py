"""HalfToFloat: constants of float16, stored as their bits, widened to float32 where they are read.

Made at import of Cast of a constant, and by `quantize --fp16 weights`; there is no arithmetic of 16
bits.  Widening is exact: sign, exponent and the implicit bit are two tables of 64 entries, so that
C needs no type of 16-bit floats, which compilers have for some cores only.
"""

from __future__ import annotations

import numpy as np

from toolkit.ir.compute import compute, Tensor
from toolkit.ir.expr import binary, cast, const, Expr
from toolkit.ops.op import Ctx, Op
from toolkit.ops.shape import constant

MANTISSA_BITS = 10
SMALLEST_EXPONENT = -24
"""Of the last bit of subnormal numbers."""


def _half_to_float(ctx: Ctx, bits: Tensor) -> Tensor:
    """(-1)^sign * (implicit bit + mantissa) * 2^exponent: IEEE 754 binary16, finite numbers."""
    if bits.dtype != "uint16":
        raise ctx.refuse(f"its operand must be the bits of float16 in uint16, not {bits.dtype}.")
    top = np.arange(64)
    exponent = np.maximum(top & 31, 1) - 1 + SMALLEST_EXPONENT
    unit = constant(np.ldexp(np.where(top < 32, 1.0, -1.0), exponent).astype(np.float32), "unit")
    implicit = constant(np.where(top & 31, 1 << MANTISSA_BITS, 0).astype(np.int32), "implicit")

    def element(*i: Expr) -> Expr:
        word = cast(bits[i], "int32")
        high = cast(binary("shr", word, const(MANTISSA_BITS, "int32")), "index")
        low = word & ((1 << MANTISSA_BITS) - 1)
        return cast(low + implicit[(high,)], "float32") * unit[(high,)]

    return compute(bits.shape, element, "widen")


HALF_OPS: dict[str, Op] = {"HalfToFloat": Op(_half_to_float)}
