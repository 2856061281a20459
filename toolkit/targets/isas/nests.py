"""The loop nests that tensor intrinsics compute: sums of products."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.ir.expr import binary, cast, Const, Expr, INDEX, Load, Var
from toolkit.ir.loop import Block, Buffer, PARAM, PrimFunc, REDUCE, SPATIAL, wrap
from toolkit.ir.types import DType


def products(
    loops: Mapping[str, int],
    c: str,
    a: tuple[DType, str],
    b: tuple[DType, str],
    *,
    total: DType = "int32",
    counted: str = "",
) -> PrimFunc:
    """Return C[..] += A[..] * B[..] in the given loops, a letter each, as dense buffers.

    `c`, `a`, `b` name the loops that are subscripts, in order; loops that are none of C's reduce.
    `counted`: the signed bytes of A are counted from -128, so that they are unsigned, by changing
    their sign bit over ("flip") or by taking -128 off ("less").
    """

    def buffer(name: str, dtype: DType, letters: str) -> Buffer:
        return Buffer(name, tuple(loops[l] for l in letters), dtype, PARAM)

    def load(name: str, dtype: DType, letters: str) -> Expr:
        return Load(dtype, name, tuple(Var(INDEX, l) for l in letters))

    left: Expr = load("A", *a)
    if counted == "flip":
        left = binary("xor", cast(left, "uint8"), 128)
    left = cast(left, total)
    if counted == "less":
        left = left - Const(total, -128)
    value = left * cast(load("B", *b), total)
    block = Block(
        "C", (), (), "C", tuple(Var(INDEX, l) for l in c), value, reduce="sum", update_only=True
    )
    nest = [(l, n, SPATIAL if l in c else REDUCE) for l, n in loops.items()]
    return PrimFunc(
        "nest", (buffer("A", *a), buffer("B", *b)), (buffer("C", total, c),), (), wrap(nest, block)
    )


def windows(
    pixels: int, taps: int, stride: int, a: DType, b: DType, total: DType = "int32"
) -> PrimFunc:
    """Return C[p] += A[p * stride + t] * B[t]: neighbouring windows over a row."""
    p, t = Var(INDEX, "p"), Var(INDEX, "t")
    row = Buffer("A", ((pixels - 1) * stride + taps,), a, PARAM)
    kernel = Buffer("B", (taps,), b, PARAM)
    sums = Buffer("C", (pixels,), total, PARAM)
    at = binary("add", binary("mul", p, stride), t)
    value = cast(Load(a, "A", (at,)), total) * cast(Load(b, "B", (t,)), total)
    block = Block("C", (), (), "C", (p,), value, reduce="sum", update_only=True)
    nest = wrap([("p", pixels, SPATIAL), ("t", taps, REDUCE)], block)
    return PrimFunc("nest", (row, kernel), (sums,), (), nest)


def widened(count: int, a: DType, c: DType, *, less: bool) -> PrimFunc:
    """Return C[i] = A[i] in a wider type; `less` a number, in int32."""
    i = Var(INDEX, "i")
    source, result = Buffer("A", (count,), a, PARAM), Buffer("C", (count,), c, PARAM)
    number = Buffer("Z", (), "int32", PARAM)
    value = cast(Load(a, "A", (i,)), "int32")
    if less:
        value = binary("sub", value, Load("int32", "Z", ()))
    block = Block("C", (), (), "C", (i,), cast(value, c))
    inputs = (source, number) if less else (source,)
    return PrimFunc("nest", inputs, (result,), (), wrap([("i", count, SPATIAL)], block))
