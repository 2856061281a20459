"""Illegal uses of steps that stage and move values: each is refused, saying why, nest shown."""

from __future__ import annotations

import pytest

from toolkit.codegen.kernel import print_kernel
from toolkit.codegen.lower import lower_func
from toolkit.errors import ScheduleError
from toolkit.ir.build import build
from toolkit.ir.compute import compute, opaque, placeholder, reduce_axis, sum
from toolkit.ir.expr import cast
from toolkit.ir.loop import blocks, PrimFunc
from toolkit.schedule.examples import copy_rows, matmul, padded_windows, two_stages
from toolkit.schedule.steps.annotate import Annotate, Vectorize
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_read import CacheRead
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.decompose_reduction import DecomposeReduction
from toolkit.schedule.steps.merge_dims import MergeDims
from toolkit.schedule.steps.pad_read import PadRead
from toolkit.schedule.steps.partition import Partition
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.reverse_compute_at import ReverseComputeAt
from toolkit.schedule.steps.reverse_inline import ReverseInline
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.storage_align import StorageAlign
from toolkit.schedule.steps.transform_layout import TransformLayout


def check_refused(step: Step, func: PrimFunc, why: str) -> None:
    """Check that a step is refused with `why`, the step named and the nest shown."""
    with pytest.raises(ScheduleError):
        step.check(func)
    with pytest.raises(ScheduleError) as caught:
        step.apply(func)
    message = str(caught.value)
    assert why in message
    assert type(step).__name__ in message
    assert str(func).splitlines()[-1].strip() in message


def test_cache_read_of_what_the_block_does_not_read() -> None:
    check_refused(CacheRead("y", "b", "i"), padded_windows(), "block 'y' does not read 'b'.")
    check_refused(CacheRead("y", "y", "i"), padded_windows(), "block 'y' does not read 'y'.")


def test_cache_read_at_a_loop_elsewhere() -> None:
    check_refused(CacheRead("y", "t", "i"), matmul(), "loop 'i' is not around block 'y'.")


def test_cache_read_in_a_vectorised_loop() -> None:
    func = Vectorize("j").apply(copy_rows())
    check_refused(CacheRead("y", "a", "j"), func, "loop 'j' is vectorised: it holds one statement.")


def test_cache_read_of_what_the_nest_writes() -> None:
    func = ComputeAt("t", "i_2").apply(two_stages())
    check_refused(CacheRead("y", "t", "j_2"), func, "'t' is written in the nest of block 'y'.")


def test_reverse_inline_into_a_reduction() -> None:
    check_refused(ReverseInline("y"), matmul(), "block 't' is a reduction.")


def test_reverse_inline_of_a_reduction() -> None:
    check_refused(ReverseInline("y"), padded_windows(), "block 'y' is a reduction or guarded.")


def test_reverse_inline_without_a_local_operand() -> None:
    check_refused(ReverseInline("y"), copy_rows(), "block 'y' reads no local buffer, all of it")


def test_reverse_inline_in_shared_loops() -> None:
    func = ComputeAt("t", "i_2").apply(two_stages())
    check_refused(ReverseInline("y"), func, "the loops of block 'y' hold other blocks too.")


def test_reverse_inline_of_a_block_that_needs_what_comes_later() -> None:
    a = placeholder((4,), "float32", "a")
    t = compute((4,), lambda i: a[i] + 1.0, "t")
    u = compute((4,), lambda i: a[i] * 3.0, "u")
    func = build([compute((4,), lambda i: t[i] * u[3 - i], "y")], [a])
    why = "block 'y' reads 'u', which 'u' writes after 't'."
    check_refused(ReverseInline("y"), func, why)


def test_partition_outside_the_range() -> None:
    for at in ((), (0,), (8,), (3, 3), (4, 2)):
        check_refused(Partition("j", at), copy_rows(), "the bounds must ascend within 1 .. 7.")


def test_partition_of_a_reduction() -> None:
    why = "the reduction of block 'y' is not whole in 'k'."
    check_refused(Partition("k", (1,)), padded_windows(), why)


def test_partition_inside_a_reduction() -> None:
    func = Reorder(("k", "i")).apply(padded_windows())
    why = "the reduction of block 'y' is not whole in 'i'."
    check_refused(Partition("i", (1,)), func, why)


def test_a_border_peeled_off_leaves_no_guard_inside() -> None:
    func = Partition("i", (1, 7)).apply(padded_windows())
    first, inside, last = blocks(func.body)
    assert first.guard is not None
    assert last.guard is not None
    assert inside.guard is None


def test_transform_layout_of_what_the_caller_lays_out() -> None:
    for name in ("a", "y"):
        why = f"buffer {name!r} is a parameter that is no constant."
        check_refused(TransformLayout(name, (1, 0)), matmul(), why)
    check_refused(TransformLayout("b", (1, 0)), matmul(), "there is no buffer 'b'.")


def test_transform_layout_by_no_order() -> None:
    for order in ((0,), (0, 0), (1, 2), (2, 1, 0)):
        why = f"{order} is no order of the 2 dimensions."
        check_refused(TransformLayout("t", order), matmul(), why)


def test_transform_layout_of_a_buffer_passed_whole() -> None:
    a = placeholder((4, 3), "float32", "a")
    t = compute((4, 3), lambda i, j: a[i, j] + 1.0, "t")
    (y,) = opaque("f", [t], [t.type], lambda a: (a,))
    func = build([compute((4, 3), lambda i, j: y[i, j] * 2.0, "z")], [a])
    check_refused(TransformLayout("t", (1, 0)), func, "buffer 't' is passed whole to f.")


def test_reverse_compute_at_in_a_reduction() -> None:
    why = "the reduction of block 't' is not complete in 'k'."
    check_refused(ReverseComputeAt("y", "k"), matmul(), why)


def test_reverse_compute_at_elsewhere() -> None:
    why = "loop 'i_2' makes no operand of block 'y'."
    check_refused(ReverseComputeAt("y", "i_2"), matmul(), why)


def test_reverse_compute_at_of_neighbours() -> None:
    a = placeholder((4,), "float32", "a")
    t = compute((4,), lambda i: a[i] + 1.0, "t")
    func = build([compute((4,), lambda i: t[i] + t[3 - i], "y")], [a])
    why = "block 'y' reads more of 't' than an element an axis."
    check_refused(ReverseComputeAt("y", "i"), func, why)


def test_reverse_compute_at_before_another_operand() -> None:
    a = placeholder((4,), "float32", "a")
    t = compute((4,), lambda i: a[i] + 1.0, "t")
    u = compute((4,), lambda i: a[i] * 3.0, "u")
    func = build([compute((4,), lambda i: t[i] * u[3 - i], "y")], [a])
    why = "block 'y' needs 'u', which 'u' writes in between."
    check_refused(ReverseComputeAt("y", "i"), func, why)


def test_reverse_compute_at_of_every_other_element() -> None:
    func = Reorder(("j.1", "j.0")).apply(Split("j", (2,)).apply(two_stages()))
    why = "what 't' writes in 'j.1' is no box."
    check_refused(ReverseComputeAt("y", "j.1"), func, why)


def test_decompose_reduction_inside_the_reduction() -> None:
    func = Reorder(("k", "i")).apply(padded_windows())
    why = "loop 'i' is inside reduce loop 'k' of block 'y'."
    check_refused(DecomposeReduction("y", "i"), func, why)


def test_decompose_reduction_of_what_starts_nothing() -> None:
    check_refused(DecomposeReduction("y", "i_2"), matmul(), "block 'y' initialises nothing.")
    func = DecomposeReduction("t", "k").apply(matmul())
    check_refused(DecomposeReduction("t", "k"), func, "block 't' initialises nothing.")


def test_decompose_reduction_before_a_loop_that_repeats_it() -> None:
    a = placeholder((4,), "float32", "a")
    k = reduce_axis(4, "k")
    t = compute((4,), lambda i: sum(a[k] * a[i], k), "t")
    func = build([compute((3, 4), lambda i, j: t[j] + 1.0, "y")], [a])
    func = ComputeAt("t", "i_2").apply(func)
    why = "loop 'i_2' starts elements of 't' anew."
    check_refused(DecomposeReduction("t", "i_2"), func, why)


def test_decompose_reduction_before_shifted_tiles() -> None:
    func = Split("i", (3,), "shift").apply(padded_windows())
    why = "loop 'i.0' starts elements of 'y' anew."
    check_refused(DecomposeReduction("y", "i.0"), func, why)


def test_storage_align_of_parameters_and_beyond_the_dimensions() -> None:
    check_refused(StorageAlign("a", 1, 4), matmul(), "'a' is no local buffer.")
    check_refused(StorageAlign("t", 2, 4), matmul(), "'t' has 2 dimensions.")
    check_refused(StorageAlign("t", 1, 0), matmul(), "the multiple must lie in 1 .. 1024.")


def test_aligned_rows_stay_when_a_buffer_shrinks() -> None:
    func = ComputeAt("t", "i_2").apply(StorageAlign("t", 1, 16).apply(matmul(columns=10)))
    (t,) = lower_func(func).locals
    assert t.shape == (1, 16)


def test_cache_write_of_what_a_guard_outside_skips() -> None:
    """Found by random traces: the copy would bring what the last tile of a reduction left out."""
    func = Reorder(("k", "i")).apply(padded_windows())
    func = Split("k", (2,), "guard").apply(CacheRead("y", "a", "k").apply(func))
    why = "a loop around block 'y_a' holds other blocks too."
    check_refused(CacheWrite("y_a"), func, why)


def test_cache_write_of_what_loops_of_other_blocks_reduce() -> None:
    """Found by random traces: a reduction over nothing was not copied at all."""
    func = CacheRead("y", "a", "k").apply(Reorder(("k", "i")).apply(padded_windows()))
    why = "a loop around block 'y' holds other blocks too."
    check_refused(CacheWrite("y"), func, why)


def test_annotate_by_an_unknown_key_or_what_is_no_comment() -> None:
    check_refused(Annotate("i", "remark", "rows"), copy_rows(), "there is no note 'remark'.")
    check_refused(Annotate("u", "comment", "rows"), copy_rows(), "there is no loop 'u'.")
    why = "is no text of one line for a comment in C."
    for text in ("a */ b", "/* a", "a\nb"):
        check_refused(Annotate("i", "comment", text), copy_rows(), why)


def test_a_note_stands_in_the_text_and_in_c() -> None:
    func = Annotate("i", "comment", "rows").apply(copy_rows())
    assert "for i in 6:  # comment: rows" in str(func)
    assert any(line.text == "/* rows */" for line in print_kernel(func, "k").lines)


def test_pad_read_of_what_the_block_does_not_read() -> None:
    check_refused(
        PadRead("y", "b"), padded_windows(), "block 'y' does not read one element of 'b'."
    )


def test_pad_read_of_what_the_nest_writes() -> None:
    func = ComputeAt("t", "i_2").apply(matmul())
    check_refused(PadRead("t", "t"), func, "block 't' does not read one element of 't'.")


def test_pad_read_with_phases_that_do_not_fit() -> None:
    check_refused(
        PadRead("y", "a", (1, 2)),
        padded_windows(),
        "phases must be positive, one for each dimension",
    )
    check_refused(
        PadRead("y", "a", (0,)), padded_windows(), "phases must be positive, one for each dimension"
    )


def test_pad_read_with_multiples_that_do_not_fit() -> None:
    check_refused(
        PadRead("y", "a", (), (0,)),
        padded_windows(),
        "multiples must be positive, one for each dimension",
    )


def test_pad_read_as_integers_of_what_is_no_product_of_integers() -> None:
    check_refused(PadRead("y", "a", (), (), "int16"), padded_windows(), "sums no products of 'a'")
    func = build_floats()
    check_refused(PadRead("y", "a", (), (), "int16"), func, "'a' holds no integers.")


def test_pad_read_as_integers_too_small_for_the_factors() -> None:
    a, w = placeholder((8,), "int8", "a"), placeholder((3,), "int8", "w", data=0)
    k = reduce_axis(3, "k")
    product = compute(
        (6,), lambda i: sum((cast(a[i + k], "int32") - 1) * cast(w[k], "int32"), k), "y"
    )
    func = build([product], [a, w])
    check_refused(
        PadRead("y", "a", (), (), "int8"), func, "int8 does not hold every factor -129..126."
    )


def build_floats() -> PrimFunc:
    """y[i] = sum over k of float64(a[i, k]) * float64(w[k])."""
    a, w = placeholder((4, 8), "float32", "a"), placeholder((8,), "float32", "w", data=0)
    k = reduce_axis(8, "k")
    product = compute((4,), lambda i: sum(cast(a[i, k], "float64") * cast(w[k], "float64"), k), "y")
    return build([product], [a, w])


def test_pad_read_where_no_value_adds_nothing() -> None:
    check_refused(PadRead("y", "a"), copy_rows(), "no value of 'a' leaves 'y' as it is.")
    a, k = placeholder((8,), "float32", "a"), reduce_axis(3, "k")
    func = build([compute((8,), lambda i: sum(a[i] + 1.0, k), "y")], [a])
    check_refused(PadRead("y", "a"), func, "no value of 'a' leaves 'y' as it is.")


def test_pad_read_where_the_guard_keeps_inside_another_operand_too() -> None:
    a, b = placeholder((8,), "float32", "a"), placeholder((8,), "float32", "b")
    k = reduce_axis(3, "k")
    func = build(
        [compute((8,), lambda i: sum(a[i + k] * b[i + k], k, where=i + k < 8), "y")], [a, b]
    )
    check_refused(PadRead("y", "a"), func, "the guard keeps 'y' inside 'b' too.")


def test_merge_dims_of_no_local_buffer_or_dimension() -> None:
    check_refused(MergeDims("a", 0), matmul(), "'a' is no local buffer.")
    check_refused(MergeDims("t", 1), matmul(), "'t' has 2 dimensions.")


def test_merge_dims_of_a_buffer_with_room() -> None:
    func = StorageAlign("t", 1, 16).apply(matmul())
    check_refused(MergeDims("t", 0), func, "buffer 't' has room for more elements.")


def test_merge_dims_that_split_loops_fill() -> None:
    func = Split("j", (4,)).apply(matmul())
    check_refused(MergeDims("t", 0), func, "dimension 0 or the next is not filled by one loop.")


def test_merge_dims_of_what_several_blocks_write() -> None:
    func = DecomposeReduction("t", "k").apply(matmul())
    check_refused(MergeDims("t", 0), func, "buffer 't' is not written by one block alone.")
