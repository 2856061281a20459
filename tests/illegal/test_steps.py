"""Illegal schedule steps are refused with the step, the fact and its numbers, the nest, and a hint.

Every place that refuses in the files of these steps has a case here.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import toolkit.schedule.steps
from toolkit.errors import ScheduleError
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.compute import Axis
from toolkit.ir.expr import Const, INDEX
from toolkit.ir.loop import Block, Loop, PrimFunc, rewrite_stmt
from toolkit.schedule.default import apply_trace
from toolkit.schedule.examples import chosen_rows, copy_rows, matmul, row_sums, two_stages
from toolkit.schedule.steps.annotate import Annotate, Parallel, Unroll, Vectorize
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_read import CacheRead
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.fuse import Fuse
from toolkit.schedule.steps.inline import Inline
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.pad import PadConstant
from toolkit.schedule.steps.partition import Partition
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.rfactor import RFactor
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.split_choice import SplitChoice

Make = Callable[[], PrimFunc]
STEPS_FOLDER = Path(toolkit.schedule.steps.__file__).parent


# ------------------------------------------------------------------------- functions with a catch


def recurrence(*, shifted: bool = False) -> PrimFunc:
    """z = 2 * what a recurrence collects; in loop `t`: `half`, `new`, `scan_y0_put`, ..."""
    x = T.placeholder((4, 3), "float32", "x")
    init = T.compute((3,), lambda i: 0.0, "init", "float32")

    def step(t: Any, s: T.Tensor) -> tuple[list[T.Tensor], list[T.Tensor]]:
        half = T.compute((3,), lambda i: s[2 - i if shifted else i] * 0.5, "half")
        new = T.compute((3,), lambda i: half[i] + x[t, i], "new")
        return [new], [new]

    (ys,), _ = T.scan(4, [init], step)
    return build([T.compute((4, 3), lambda i, j: ys[i, j] * 2.0, "z")], [x])


def joined() -> PrimFunc:
    """t is put together from two parts; y = t + 1."""
    x = T.placeholder((4,), "float32", "x")
    parts = [((4,), lambda i: ([i], x[i])), ((4,), lambda i: ([i + 4], x[i] * 2.0))]
    t = T.assemble((8,), parts, name="t")
    return build([T.compute((8,), lambda i: t[i] + 1.0, "y")], [x])


def scattered() -> PrimFunc:
    """t = x with updates added; y = t + 1."""
    x = T.placeholder((4,), "float32", "x")
    u = T.placeholder((4,), "float32", "u")
    t = T.scatter(x, (4,), lambda k: ([(k * 2) % 4], u[k]), combine="sum", name="t")
    return build([T.compute((4,), lambda i: t[i] + 1.0, "y")], [x, u])


def scattered_rows() -> PrimFunc:
    """Updates in loops `u0`, `u1`."""
    x = T.placeholder((4, 3), "float32", "x")
    return build([T.scatter(x, (4, 3), lambda k, j: ([(k * 2) % 4, j], x[k, j]))], [x])


def long_row() -> PrimFunc:
    """A loop too long to unroll."""
    x = T.placeholder((200,), "float32", "x")
    return build([T.compute((200,), lambda i: x[i] + 1.0, "y")], [x])


def called() -> PrimFunc:
    """t = x + 1; y = f(t); z = t + y."""
    x = T.placeholder((4,), "float32", "x")
    t = T.compute((4,), lambda i: x[i] + 1.0, "t")
    (y,) = T.opaque("f", [t], [t.type], lambda a: (a,))
    return build([T.compute((4,), lambda i: t[i] + y[i], "z")], [x])


def called_weights() -> PrimFunc:
    """y = f(w), `w` a constant; z = w + y."""
    w = T.placeholder((4,), "float32", "w", data=0)
    (y,) = T.opaque("f", [w], [w.type], lambda a: (a,))
    t = T.compute((4,), lambda i: w[i] + y[i], "t")
    return build([T.compute((4,), lambda i: t[i] * 2.0, "z")], [w])


def transposed() -> PrimFunc:
    """t[j, i] is written at swapped subscripts."""
    x = T.placeholder((4, 6), "float32", "x")
    t = T.assemble((6, 4), [((4, 6), lambda i, j: ([j, i], x[i, j]))], name="t")
    return build([T.compute((6, 4), lambda i, j: t[i, j] + 1.0, "y")], [x])


def taps() -> PrimFunc:
    """y[i] reads t[i], t[i + 2]; t has 6 elements."""
    x = T.placeholder((6,), "float32", "x")
    t = T.compute((6,), lambda i: x[i] * 3.0, "t")
    return build([T.compute((4,), lambda i: t[i] + t[i + 2], "y")], [x])


def strided() -> PrimFunc:
    """y[i] = sum over k of x[i * 2 + k] * w[k]: an operand that follows loop `i` has no room."""
    x = T.placeholder((9,), "float32", "x")
    w = T.placeholder((4, 3), "float32", "w", data=0)
    k = T.reduce_axis(3, "k")
    t = T.compute((4,), lambda i: T.sum(x[i * 2 + k] * w[i, k], k), "t")
    return build([T.compute((4,), lambda i: t[i] + 1.0, "y")], [x, w])


def skewed() -> PrimFunc:
    """t[i * 2 + j]: no axis of its own for the dimension."""
    w = T.placeholder((4, 2), "float32", "w", data=0)
    t = T.assemble((8,), [((4, 2), lambda i, j: ([i * 2 + j], w[i, j]))], name="t")
    return build([T.compute((8,), lambda i: t[i] + 1.0, "y")], [w])


def joined_weights() -> PrimFunc:
    """t is put together from two parts of a constant."""
    w = T.placeholder((4,), "float32", "w", data=0)
    parts = [((4,), lambda i: ([i], w[i])), ((4,), lambda i: ([i + 4], w[i] * 2.0))]
    t = T.assemble((8,), parts, name="t")
    return build([T.compute((8,), lambda i: t[i] + 1.0, "y")], [w])


def first_of() -> PrimFunc:
    """sum with a start of its own."""
    x = T.placeholder((6,), "float32", "x")
    k = T.reduce_axis(6, "k")
    body = T.Reduce("sum", x[k], (k,), None, x[0])
    return build([T.compute((), lambda: body, "y")], [x])


def two_axes() -> PrimFunc:
    """y = sum of a[k, k + r]: after a fusion one loop drives both axes."""
    a = T.placeholder((4, 8), "float32", "a")
    k, r = T.reduce_axis(4, "k"), T.reduce_axis(4, "r")
    return build([T.compute((), lambda: T.sum(a[k, r], [k, r]), "y")], [a])


def in_one_loop() -> PrimFunc:
    """Two blocks in loop `i`: the producer and its consumer."""
    return ComputeAt("t", "i_2").apply(matmul())


def two_states() -> PrimFunc:
    """A recurrence of two states; the new value of the second reads the first one's old value."""
    x = T.placeholder((4, 3), "float32", "x")
    init = T.compute((3,), lambda i: 0.0, "init", "float32")

    def step(t: Any, a: T.Tensor, b: T.Tensor) -> tuple[list[T.Tensor], list[T.Tensor]]:
        new_a = T.compute((3,), lambda i: a[i] * 0.5 + x[t, i], "new_a")
        new_b = T.compute((3,), lambda i: a[i] + b[i], "new_b")
        return [new_a, new_b], []

    _, finals = T.scan(4, [init, init], step)
    return build(list(finals), [x])


def changed(make: Make, rule: Callable[[Any], Any]) -> Make:
    """Return a maker of a function that no stage builds: blocks and loops rewritten by `rule`."""

    def made() -> PrimFunc:
        func = make()
        body = rewrite_stmt(func.body, rule)
        assert body is not None
        return func.with_(body=body)

    return made


def spatial(stmt: Any) -> Any:
    return replace(stmt, role="spatial") if isinstance(stmt, Loop) else None


def guarded(stmt: Any) -> Any:
    test = Axis(INDEX, "i", 6, "spatial") < 5
    return replace(stmt, guard=test) if isinstance(stmt, Block) else None


def first_element(stmt: Any) -> Any:
    zero = Const(INDEX, 0)
    return replace(stmt, indices=(zero, zero)) if isinstance(stmt, Block) else None


def reads_nothing(stmt: Any) -> Any:
    if isinstance(stmt, Block) and stmt.name == "y":
        return replace(stmt, value=Const("float32", 0.0))
    return None


# -------------------------------------------------------------------------------------- the cases


def after(make: Make, *trace: Step) -> Make:
    """Return a maker of `make()` with steps applied."""
    return lambda: apply_trace(make(), trace)


CASES: list[tuple[Make, Step, str]] = [
    (copy_rows, Inline("t"), "there is no block 't'."),
    (copy_rows, Unroll("k"), "there is no loop 'k'."),
    # Split
    (copy_rows, Split("j", (3,)), "3 does not divide the extent 8 of loop 'j'."),
    (copy_rows, Split("j", (0,)),
     "factors must be positive and tail one of perfect, shift, guard."),
    (copy_rows, Split("j", (16,), "shift"), "a tile of 16 is larger than loop 'j' (8)."),
    (row_sums, Split("k", (5,), "shift"),
     "loop 'k' is a reduce loop: a shifted tile repeats steps."),
    (after(row_sums, Reorder(("k", "i"))), Split("i", (3,), "shift"),
     "block 'y' accumulates: a shifted tile adds twice."),
    (after(matmul, Split("k", (2,)), Reorder(("k.0", "i", "j"))), Split("i", (3,), "shift"),
     "block 't' accumulates: a shifted tile adds twice."),
    # SplitChoice
    (copy_rows, SplitChoice("y"), "block 'y' stores no choice of two values."),
    (changed(chosen_rows, guarded), SplitChoice("y"), "block 'y' is guarded."),
    (after(chosen_rows, Vectorize("j")), SplitChoice("y"),
     "the loops of block 'y' were scheduled before."),
    # Fuse
    (in_one_loop, Fuse("i_2", "j_2"), "loop 'j_2' is not the only statement in 'i_2'."),
    (row_sums, Fuse("i", "k"), "loop 'i' is spatial, 'k' reduce."),
    # Reorder
    (copy_rows, Reorder(("i",)), "needs two or more different loops."),
    (two_stages, Reorder(("i", "j_2")), "loops i, j_2 are not perfectly nested."),
    (scattered_rows, Reorder(("u1", "u0")), "a recurrence runs in its own order."),
    (after(row_sums, Split("i", (3,), "shift")), Reorder(("k", "i.0")),
     ("block 'y' would update elements twice where the shifted tiles of loop 'i.0' overlap, "
      "inside reduce loop 'k'.")),
    (after(row_sums, CacheRead("y", "a", "k")), Reorder(("k", "i")),
     "several blocks share these loops."),
    # Unroll, Vectorize, Parallel
    (long_row, Unroll("i"), "loop 'i' has 200 iterations, over 128."),
    (scattered, Vectorize("u0"), "loop 'u0' is a scan loop."),
    (copy_rows, Vectorize("i"), "loop 'i' is not innermost."),
    (copy_rows, Annotate("i", "remark", "rows"), "there is no note 'remark'."),
    (copy_rows, Annotate("i", "comment", "*/"),
     "'*/' is no text of one line for a comment in C."),
    (row_sums, Parallel("k"), "loop 'k' is a reduce loop."),
    (changed(row_sums, spatial), Parallel("k"), "block 'y' reduces over loop 'k'."),
    (changed(copy_rows, first_element), Parallel("i"),
     "every iteration writes the same elements of 'y'."),
    # Inline
    (matmul, Inline("t"), "block 't' is a reduction or guarded."),
    (transposed, Inline("t_part"), "block 't_part' does not store one element an axis in order."),
    (two_stages, Inline("y"), "buffer 'y' is a parameter of the function."),
    (called, Inline("t"), "buffer 't' is passed whole to f."),
    (scattered, Inline("t_base"), "buffer 't' is written by more than one block."),
    (recurrence, Inline("scan_y0_put"),
     "block 'scan_y0_put' reads 'new', which 'new' writes again before the value is used."),
    # ComputeAt
    (matmul, ComputeAt("t", "m"), "there is no loop 'm'."),
    (matmul, ComputeAt("y", "i"), "buffer 'y' is a parameter of the function."),
    (in_one_loop, ComputeAt("y", "i_2"), "the loops of block 'y' hold other blocks too."),
    (after(matmul, Split("i", (2,))), ComputeAt("t", "i_2"),
     "the loops of block 't' were transformed before."),
    (transposed, ComputeAt("t_part", "i_2"),
     "block 't_part' does not store one element an axis in order."),
    (scattered, ComputeAt("t_base", "i"), "buffer 't' is written by more than one block."),
    (after(matmul, Vectorize("j_2")), ComputeAt("t", "j_2"),
     "loop 'j_2' is vectorised: it holds one statement."),
    (matmul, ComputeAt("t", "k"), "a consumer of 't' lies outside loop 'k'."),
    (called, ComputeAt("t", "i_2"), "a consumer of 't' lies outside loop 'i_2'."),
    (recurrence, ComputeAt("half", "t"), "loop 't' is not inside the recurrence of 'half'."),
    (changed(two_stages, reads_nothing), ComputeAt("t", "i_2"),
     "'t' is not read element by element in the loop."),
    (after(taps, Split("i_2", (3,), "guard")), ComputeAt("t", "i_2.0"),
     "the region of 't' reaches beyond the buffer."),
    (two_states, ComputeAt("new_b", "c0_4"),
     "block 'scan_f0_next' overwrites 'scan_f0' in between."),
    # CacheWrite
    (scattered, CacheWrite("t"), "block 't' updates what another block wrote."),
    (in_one_loop, CacheWrite("t"), "a loop around block 't' holds other blocks too."),
    (joined, CacheWrite("t_part"), "buffer 't' is written by more than one block."),
    (skewed, CacheWrite("t_part"), "block 't_part' does not store one element an axis."),
    # RFactor
    (matmul, RFactor("t", "i"), "'i' is no reduce loop of block 't'."),
    (first_of, RFactor("y", "k"), "block 'y' is no plain reduction."),
    (in_one_loop, RFactor("t", "k"), "the loops of block 't' hold other blocks too."),
    (after(two_axes, Fuse("k", "r")), RFactor("y", "k+r"),
     "axis 'k' is not a plain sum of loops."),
    (after(row_sums, Split("k", (5,), "guard"), Fuse("k.0", "k.1")), RFactor("y", "k.0+k.1"),
     "axis 'k' is not a plain sum of loops."),
    (after(row_sums, Split("k", (3,)), Fuse("k.0", "k.1")), RFactor("y", "k.0+k.1"),
     "axis 'k' is not a plain sum of loops."),
    (after(row_sums, Partition("i", (2,))), RFactor("y_p0", "k_p0"),
     "buffer 'y' is written by more than one block."),
    # PadConstant
    (in_one_loop, PadConstant("i_2", "w", 0, 8), "loop 'i_2' holds more than one block."),
    (matmul, PadConstant("k", "w", 0, 8), "block 't' sums no products of integers."),
    (scattered, PadConstant("u0", "w", 0, 8), "loop 'u0' is a scan loop."),
    (matmul, PadConstant("j", "v", 0, 8), "'v' is not an input of the function."),
    (matmul, PadConstant("j_2", "w", 1, 8), "buffer 'y' is a parameter of the function."),
    (joined_weights, PadConstant("i", "w", 0, 8), "buffer 't' is written by more than one block."),
    (skewed, PadConstant("i", "w", 0, 8), "loop 'i' does not drive one dimension of 't'."),
    (matmul, PadConstant("j", "w", 2, 16), "'w' has 2 dimensions."),
    (strided, PadConstant("i", "w", 0, 8), "the load of 'x' would reach beyond its 9."),
    (called_weights, PadConstant("i", "w", 0, 8), "buffer 'w' is passed whole to f."),
    # Pack
    (matmul, Pack("v", 0, 2), "'v' is not an input of the function."),
    (matmul, Pack("w", 2, 2), "'w' has 2 dimensions."),
    (matmul, Pack("w", 0, 4), "4 does not divide dimension 0 (6)."),
    (called_weights, Pack("w", 0, 2), "buffer 'w' is passed whole to f."),
    (matmul, Pack("a", 1, 2), "'a' is no constant: its data comes at run time."),
    (matmul, PadConstant("j", "a", 1, 16), "'a' is no constant: its data comes at run time."),
]  # fmt: skip
HINTS = {
    "there is no block 't'.": "blocks: y",
    "there is no note 'remark'.": "notes: comment",
    "3 does not divide the extent 8 of loop 'j'.":
        "inner factors of 8: 1, 2, 4, 8; or tail='shift' or 'guard'.",
}  # fmt: skip


IDS = [f"{step}: {why}"[:80] for _, step, why in CASES]


@pytest.mark.parametrize(("make", "step", "why"), CASES, ids=IDS)
def test_a_step_is_refused_with_its_reason_and_the_nest(make: Make, step: Step, why: str) -> None:
    func = make()
    with pytest.raises(ScheduleError) as caught:
        step.apply(func)
    error = caught.value
    lines = str(error).splitlines()
    assert lines[0] == f"{step!r}: {why}"
    state = [f"  {line}" for line in str(func).splitlines()]
    hint = [f"  hint: {HINTS[why]}"] if why in HINTS else []
    assert lines[1:] == [*state, *hint]


def test_the_message_is_the_one_of_the_design() -> None:
    with pytest.raises(ScheduleError) as caught:
        Split("j", (3,)).apply(copy_rows())
    assert str(caught.value) == (
        "Split(loop='j', factors=(3,), tail='perfect'): "
        "3 does not divide the extent 8 of loop 'j'.\n"
        "  func kernel(a: float32[6, 8]) -> (y: float32[6, 8])\n"
        "    for i in 6:\n"
        "      for j in 8:\n"
        "        y: y[i, j] = a[i, j] * 2.0\n"
        "  hint: inner factors of 8: 1, 2, 4, 8; or tail='shift' or 'guard'."
    )


def refusals() -> set[tuple[str, int]]:
    """Return where these steps refuse: file and line of each call of `refuse`."""
    found = set()
    files = {Path(inspect.getfile(type(step))) for _, step, _ in CASES}
    for file in (*files, STEPS_FOLDER / "base.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "refuse"
            ):
                found.add((file.name, node.lineno))
    return found


def test_every_refusal_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[str, int]] = set()
    refuse = Step.refuse

    def note(self: Step, func: PrimFunc, why: str, hint: str | None = None) -> NoReturn:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        code = frame.f_back
        seen.add((Path(code.f_code.co_filename).name, _call_line(code.f_code, code.f_lasti)))
        refuse(self, func, why, hint)

    monkeypatch.setattr(Step, "refuse", note)
    for make, step, _ in CASES:
        with pytest.raises(ScheduleError):
            step.apply(make())
    missing = sorted(refusals() - seen)
    assert not missing, "add a case for: " + ", ".join(f"{f}:{line}" for f, line in missing)


def _call_line(code: Any, lasti: int) -> int:
    """Return the line on which the call at an instruction begins."""
    return next(p[0] for i, p in enumerate(code.co_positions()) if i == lasti // 2)
