"""Refusals of steps for tensor intrinsics: what does not match is named, with both sides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from toolkit.errors import ScheduleError
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.expr import all_of, cast, const, Expr, maximum, select
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.default import apply_trace
from toolkit.schedule.examples import byte_products, copy_rows, matmul, padded_windows
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_read import CacheRead
from toolkit.schedule.steps.decompose_reduction import DecomposeReduction
from toolkit.schedule.steps.fold_zero_point import FoldZeroPoint
from toolkit.schedule.steps.merge_reduction import MergeReduction
from toolkit.schedule.steps.partition import Partition
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.shift_operand import ShiftOperand
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.schedule.steps.unfold import Unfold
from toolkit.schedule.steps.widen_read import WidenRead
from toolkit.targets.isas import TENSOR_INTRINSICS

Make = Callable[[], PrimFunc]
DOT = "neon_dot4_s8s8"


def after(make: Make, *trace: Step) -> Make:
    return lambda: apply_trace(make(), trace)


def products(
    value: Callable[[Expr, Expr], Expr] = lambda a, w: cast(a, "int32") * cast(w, "int32"),
    a: str = "int8", shape: tuple[int, int] = (4, 4), depth: int = 4, step: int = 1,
    op: str = "sum",
) -> Make:  # fmt: skip
    """t[j] = sum over k of value(a[k * step], w[j, k])."""
    rows, columns = shape

    def make() -> PrimFunc:
        left = T.placeholder((depth * step,), a, "a")
        right = T.placeholder((rows, columns), "int8", "w", data=0)
        k = T.reduce_axis(depth, "k")
        reduce = {"sum": T.sum, "max": T.max}[op]
        return build(
            [T.compute((rows,), lambda j: reduce(value(left[k * step], right[j, k]), k), "t")],
            [left, right],
        )

    return make


def scaled(a: Expr, w: Expr) -> Expr:
    return cast(a, "int32") * (cast(w, "int32") + 1)


def made() -> PrimFunc:
    """The other factor is computed first."""
    a = T.placeholder((4,), "int8", "a")
    w = T.placeholder((4, 4), "int8", "w", data=0)
    v = T.compute((4, 4), lambda j, k: maximum(w[j, k], 0), "v")
    k = T.reduce_axis(4, "k")
    value = lambda j: cast(a[k], "int32") * cast(v[j, k], "int32")  # noqa: E731
    return build([T.compute((4,), lambda j: T.sum(value(j), k), "t")], [a, w])


def shifted(
    bias: Callable[[Expr, Expr], Expr] = lambda t, b: t + b, scope: object = 0, skip: bool = False
) -> Make:  # fmt: skip
    """y[j] = bias(t[j], b[j]), t[j] = sum over k of (a[k] - 3) * w[k, j]."""

    def make() -> PrimFunc:
        a, k = T.placeholder((6,), "int8", "a"), T.reduce_axis(6, "k")
        w = T.placeholder((6, 4), "int8", "w", data=scope)
        b = T.placeholder((4,), "int32", "b", data=0)
        where = k < 5 if skip else None
        term = lambda j: (cast(a[k], "int32") - 3) * cast(w[k, j], "int32")  # noqa: E731
        t = T.compute((4,), lambda j: T.sum(term(j), k, where=where), "t")
        return build([T.compute((4,), lambda j: bias(t[j], b[j]), "y")], [a, w, b])

    return make


def scaled_sums(depth: int) -> Make:
    """y[j] = t[j] * m[j] + o[j] in int64, t[j] = sum over k of (a[k] - 3) * w[k, j]."""

    def make() -> PrimFunc:
        a, k = T.placeholder((depth,), "int8", "a"), T.reduce_axis(depth, "k")
        w = T.placeholder((depth, 4), "int8", "w", data=0)
        m, o = T.placeholder((4,), "int32", "m", data=0), T.placeholder((4,), "int64", "o", data=0)
        term = lambda j: (cast(a[k], "int32") - 3) * cast(w[k, j], "int32")  # noqa: E731
        t = T.compute((4,), lambda j: T.sum(term(j), k), "t")
        y = T.compute((4,), lambda j: cast(t[j], "int64") * cast(m[j], "int64") + o[j], "y")
        return build([y], [a, w, m, o])

    return make


def shared_pairs() -> PrimFunc:
    return MergeReduction.example()[0]


def fold(block: str = "t", weight: str = "w", bias: str = "b", zero: int = 3, dim: int = 1) -> Step:
    return FoldZeroPoint(block, "a", weight, bias, zero, dim)


LAYOUT_A = (
    "operands lie as A[k] of int8[4]: constants by Pack and TransformLayout before this step."
)
LAYOUT_B = LAYOUT_A.replace("A[k] of int8[4]", "B[i, k] of int8[4, 4]")


def beyond() -> PrimFunc:
    """y[i] = sum over k of a[i + k - 1] where inside `a`, and else 0."""
    a, k = T.placeholder((8,), "float32", "a"), T.reduce_axis(3, "k")
    zero = const(0.0, "float32")
    value = lambda i: select(all_of(i + k >= 1, i + k < 9), a[i + k - 1], zero)  # noqa: E731
    return build([T.compute((8,), lambda i: T.sum(value(i), k), "y")], [a])


CASES: list[tuple[Make, Step, str, str | None]] = [
    (byte_products, Tensorize("j", "dot"), "there is no tensor intrinsic 'dot'.",
     f"known: {', '.join(TENSOR_INTRINSICS)}"),
    (byte_products, Tensorize("i", DOT), "there is no loop 'i'.", None),
    (after(byte_products, DecomposeReduction("t", "j"), CacheRead("t", "a", "j")),
     Tensorize("j", DOT), "the loops hold more than one block.", None),
    (products(shape=(8, 4)), Tensorize("j", DOT),
     "the loops are j[8]  k[4], those of the intrinsic i[4]  k[4].", None),
    (byte_products, Tensorize("k", DOT),
     "the loops are k[4], those of the intrinsic i[4]  k[4].", None),
    (products(op="max"), Tensorize("j", DOT), "block 't' combines by max, not sum.", None),
    (products(scaled), Tensorize("j", DOT),
     ("the value is int32(a[k]) * (int32(w[j, k]) + 1), that of the intrinsic "
      "int32(A[k]) * int32(B[i, k])."), None),
    (products(a="uint8"), Tensorize("j", DOT),
     ("the value is int32(a[k]) * int32(w[j, k]), that of the intrinsic "
      "int32(A[k]) * int32(B[i, k])."), None),
    (products(step=2), Tensorize("j", DOT),
     "neighbours of 'a' along loop 'k' lie 2 elements apart, not 1.", LAYOUT_A),
    (after(products(shape=(4, 8), depth=8), Split("k", (4,)), DecomposeReduction("t", "j")),
     Tensorize("k.0", DOT), "the loops are k.0[2]  k.1[4], those of the intrinsic i[4]  k[4].",
     None),
    (products(shape=(4, 8)), Tensorize("j", DOT),
     "neighbours of 'w' along loop 'j' lie 8 elements apart, not 4.", LAYOUT_B),
    (after(products(shape=(4, 6), depth=6), Split("k", (4,), "guard")),
     Tensorize("k.1", "dsp_dot4_s8s8"),
     "the guard of block 't' skips iterations of loop 'k.1'.",
     "pad the constant operand, or partition the loop outside."),
    (matmul, ShiftOperand("t", "a"), "block 't' sums no products of 'a' in signed bytes.", None),
    (products(op="max"), ShiftOperand("t", "a"),
     "block 't' sums no products of 'a' in signed bytes.", None),
    (products(a="uint8"), ShiftOperand("t", "a"),
     "block 't' sums no products of 'a' in signed bytes.", None),
    (byte_products, ShiftOperand("t", "b"),
     "block 't' sums no products of 'b' in signed bytes.", None),
    (after(byte_products, DecomposeReduction("t", "j")), ShiftOperand("t", "a"),
     "block 't' is guarded or starts from a value.", None),
    (made, ShiftOperand("t", "a"), "'v' is no input: its sums are not known at the start.", None),
    (after(byte_products, Split("k", (2,))), ShiftOperand("t", "a"),
     "the loops of block 't' were transformed before.", None),
    (byte_products, WidenRead("t", "a", "j", "float32"),
     "float32 does not hold every value of int8.", None),
    (byte_products, WidenRead("t", "a", "j", "uint16"),
     "uint16 does not hold every value of int8.", None),
    (scaled_sums(6), FoldZeroPoint("t", "a", "w", "o", 3, 1),
     "'o' is not added to every sum, or serves others too.", None),
    (scaled_sums(6), FoldZeroPoint("t", "a", "w", "o", 3, 1, "o"),
     "'o' is not added to every sum, or serves others too.", None),
    (scaled_sums(200000), FoldZeroPoint("t", "a", "w", "o", 3, 1, "m"),
     "sums of block 't' may wrap, which products do not.", None),
    (shared_pairs, MergeReduction("y", "a", 0), "'a' is no constant.", None),
    (shared_pairs, MergeReduction("y", "w", 1), "'w' has 2 dimensions.", None),
    (after(shared_pairs, Split("k", (3,))), MergeReduction("y", "w", 0),
     "no reduce loop drives dimension 0 of 'w' alone.", None),
    (after(shared_pairs, Reorder(("c", "k"))), MergeReduction("y", "w", 0),
     "loop 'c' is not the only statement in 'k'.", None),
    (shifted(), MergeReduction("t", "w", 0),
     "no reduce loop drives dimension 1 of 'w' alone.", None),
    (shared_pairs, Unfold("y", "b"), "block 'y' does not read one element of 'b'.", None),
    (shared_pairs, Unfold("y", "a", 0), "the multiple must be positive.", None),
    (padded_windows, Unfold("y", "a"), "block 'y' has a guard: PadRead takes that of padding.",
     None),
    (beyond, Unfold("y", "a"), "block 'y' may reach beyond 'a'.", None),
    (after(padded_windows, Partition("i", (1, 7))), Unfold("y_p1", "a"),
     "block 'y_p1' may reach beyond 'a'.", None),
    (copy_rows, Unfold("y", "a"), "what 'y' reads of 'a' is no window.", None),
    (shifted(), fold(zero=4), "block 't' sums no products of 'a' - 4 and 'w'.", None),
    (shifted(), fold(weight="b"), "block 't' sums no products of 'a' - 3 and 'b'.", None),
    (shifted(scope=None), fold(), "'w' is no constant.", None),
    (shifted(skip=True), fold(), "block 't' skips products, or starts from a value.", None),
    (shifted(), fold(dim=2), "'w' has 2 dimensions.", None),
    (shifted(), fold(dim=0), "dimension 0 of 'w' is none of the result's.", None),
    (shifted(lambda t, b: t * b), fold(),
     "'b' is not added to every sum, or serves others too.", None),
    (shifted(lambda t, b: (t + b) * b), fold(),
     "'b' is not added to every sum, or serves others too.", None),
    (shifted(lambda t, b: (t + b) * t), fold(),
     "'b' is not added to every sum, or serves others too.", None),
    (byte_products, ShiftOperand("u", "a"), "there is no block 'u'.", "blocks: t"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "step", "why", "hint"), CASES)
def test_a_refusal_says_what_does_not_match(
    make: Make, step: Step, why: str, hint: str | None
) -> None:
    func = make()
    with pytest.raises(ScheduleError) as caught:
        step.apply(func)
    assert caught.value.what == f"{step!r}: {why}"
    assert caught.value.hint == hint
    assert caught.value.state == tuple(str(func).splitlines())
