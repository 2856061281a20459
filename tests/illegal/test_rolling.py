"""Illegal uses of RollStorage, and of steps in a loop whose storage rolls."""

from __future__ import annotations

from dataclasses import replace

from tests.illegal.test_staging import check_refused
from toolkit.ir.build import build
from toolkit.ir.compute import compute, opaque, placeholder, reduce_axis, scan, sum, Tensor
from toolkit.ir.expr import cast, Expr, INDEX, Var
from toolkit.ir.loop import Block, Loop, PrimFunc, replace_loop, SCAN, Stmt, walk_stmt
from toolkit.schedule.examples import matmul, two_stages
from toolkit.schedule.steps.annotate import Parallel, Vectorize
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.partition import Partition
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.roll_storage import RollStorage
from toolkit.schedule.steps.split import Split


def example() -> PrimFunc:
    """Return the step's own example: windows of 3 rows of t, made in `r`, read in `i`."""
    return RollStorage.example()[0]


def rolled() -> PrimFunc:
    """Return the example, rolled."""
    return RollStorage("t", "i").apply(example())


def reading(index: int, rows: int = 8) -> PrimFunc:
    """Return y[i] = t[index * i + 7] of t[r] in `r`, so that windows go down, or stay."""
    a = placeholder((8,), "float32", "a")
    t = compute((8,), lambda r: a[r] * 2.0, "t")
    start = 7 if index < 0 else 0
    return build([compute((rows,), lambda i: t[i * index + start] + 1.0, "y")], [a])


def test_roll_storage_of_a_parameter_or_of_nothing() -> None:
    check_refused(RollStorage("a", "i"), example(), "'a' is no local buffer.")
    check_refused(RollStorage("t", "q"), example(), "there is no loop 'q'.")


def test_roll_storage_of_windows_that_go_down_or_stay() -> None:
    why = "what is read of 't' does not advance with loop 'i'."
    check_refused(RollStorage("t", "i"), reading(-1), why)
    check_refused(RollStorage("t", "i"), reading(0), why)
    check_refused(
        RollStorage("t", "j"), example(), "each iteration of loop 'i' would make all rows."
    )


def test_roll_storage_of_rows_that_data_chooses() -> None:
    a = placeholder((8,), "float32", "a")
    at = placeholder((8,), "int64", "at")
    t = compute((8,), lambda r: a[r] * 2.0, "t")
    func = build([compute((8,), lambda i: t[cast(at[i], INDEX)] + 1.0, "y")], [a, at])
    check_refused(RollStorage("t", "i"), func, "the rows of 't' that are read are not windows.")


def test_roll_storage_of_windows_as_large_as_the_buffer() -> None:
    a = placeholder((3, 4), "float32", "a")
    t = compute((3, 4), lambda r, c: a[r, c] * 2.0, "t")
    func = build([compute((1, 4), lambda i, j: t[i, j] + t[i + 2, j], "y")], [a])
    check_refused(RollStorage("t", "i"), func, "a window holds all 3 rows of 't'.")


def test_roll_storage_that_keeps_less_than_a_window_or_all() -> None:
    for rows in (1, 2, 7, 9):
        why = "the rows kept must lie in 3 .. 6."
        check_refused(RollStorage("t", "i", rows), example(), why)


def test_roll_storage_twice() -> None:
    check_refused(RollStorage("t", "i"), rolled(), "'t' holds only some of its rows already.")


def test_roll_storage_of_what_is_made_in_the_loop_already() -> None:
    func = ComputeAt("t", "i_2").apply(two_stages())
    check_refused(RollStorage("t", "i_2"), func, "'t' is made inside loop 'i_2' already.")
    check_refused(RollStorage("t", "r"), example(), "'t' is made inside loop 'r' already.")


def test_roll_storage_in_a_loop_that_runs_otherwise() -> None:
    func = Parallel("i").apply(example())
    check_refused(RollStorage("t", "i"), func, "loop 'i' is parallel: windows slide one by one.")
    a = placeholder((6,), "float32", "a")
    t = compute((6,), lambda r: a[r] * 2.0, "t")
    k = reduce_axis(6, "k")
    func = build([compute((1,), lambda i: sum(t[k], k), "y")], [a])
    check_refused(RollStorage("t", "k"), func, "loop 'k' is a reduce loop.")


def test_roll_storage_of_tiles_of_rows() -> None:
    a = placeholder((8, 4), "float32", "a")
    t = compute((8, 4), lambda r, c: a[r, c] * 2.0, "t")
    func = build([compute((6, 4), lambda i, j: t[i, j] + t[i + 2, j], "y")], [a])
    func = Split("r", (2,)).apply(func)
    why = "an iteration of loop 'r.0' does not make one row of 't'."
    check_refused(RollStorage("t", "i"), func, why)


def test_roll_storage_of_what_others_use_too() -> None:
    a = placeholder((6,), "float32", "a")
    t = compute((6,), lambda r: a[r] * 2.0, "t")
    y = compute((5,), lambda i: t[i] + t[i + 1], "y")
    z = compute((6,), lambda q: t[q] - 1.0, "z")
    func = build([y, z], [a])
    why = "loop 'r' makes 't', which is used outside loop 'i'."
    check_refused(RollStorage("t", "i"), func, why)


def test_roll_storage_beside_a_call() -> None:
    a = placeholder((6,), "float32", "a")
    t = compute((6,), lambda r: a[r] * 2.0, "t")
    (u,) = opaque("f", [t], [t.type], lambda v: (v,))
    func = build([compute((5,), lambda i: t[i] + t[i + 1] + u[i], "y")], [a])
    check_refused(RollStorage("t", "i"), func, "buffer 't' is passed whole to f.")


def test_roll_storage_in_a_recurrence() -> None:
    x = placeholder((6, 3), "float32", "x")
    t = compute((6, 3), lambda r, c: x[r, c] * 2.0, "t")
    init = compute((3,), lambda i: 0.0, "init", "float32")

    def step(time: Expr, s: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        new = compute((3,), lambda i: s[i] * 0.5 + t[time, i], "new")
        return [new], [new]

    (ys,), _ = scan(6, [init], step)
    func = build([ys], [x])
    [loop] = [s.var for s in walk_stmt(func.body) if isinstance(s, Loop) and s.role == SCAN]
    check_refused(RollStorage("t", loop), func, f"loop {loop!r} is a scan loop.")


def test_a_loop_whose_storage_rolls_keeps_its_order() -> None:
    func = rolled()
    check_refused(Parallel("i"), func, "loop 'i' is a scan loop.")
    check_refused(Partition("i", (2,)), func, "loop 'i' is a scan loop.")
    check_refused(Split("i", (2,), "shift"), func, "loop 'i' is a scan loop")
    check_refused(Vectorize("i"), func, "loop 'i' is a scan loop.")
    split = Split("i", (7,)).apply(func)
    check_refused(Reorder(("i.1", "i.0")), split, "a recurrence runs in its own order.")


def test_the_example_of_matmul_is_not_windows_of_columns() -> None:
    check_refused(RollStorage("t", "j_2"), matmul(), "each iteration of loop 'i_2'")


def test_roll_storage_of_one_of_several_loops_of_a_name() -> None:
    a = placeholder((7,), "float32", "a")
    t = compute((7,), lambda r: a[r] * 2.0, "t")
    y = compute((5,), lambda i: t[i] + t[i + 2], "y")
    for other in ("r", "i"):
        z = compute((7 if other == "r" else 5,), lambda q: a[q] - 1.0, "z")
        func = build([y, z], [a])
        [loop] = [s for s in walk_stmt(func.body) if isinstance(s, Loop) and s.var == "q"]
        again = replace(loop, var=other, body=_renamed(loop.body, other))
        func = func.with_(body=replace_loop(func.body, loop, again))
        check_refused(RollStorage("t", "i"), func, f"several loops are named {other!r}.")


def _renamed(stmt: Stmt, name: str) -> Stmt:
    assert isinstance(stmt, Block)
    return replace(stmt, binds=(Var(INDEX, name),))
