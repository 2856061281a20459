"""Which loops run in parts, and which steps side by side: chosen by cost, and only where legal."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.codegen.kernel import print_kernel
from toolkit.codegen.lower import lower_func
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.expr import call
from toolkit.ir.loop import Loop, PARALLEL, PrimFunc, REGISTER, SCRATCH, walk_stmt
from toolkit.ir.program import Call, Fork, Jump, JumpIfNot, Step
from toolkit.lowering.side_by_side import fork_steps, Span, Work
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.schedule.steps.annotate import Parallel
from toolkit.schedule.steps.fuse import Fuse
from toolkit.schedule.steps.split import Split
from toolkit.schedule.threads import (
    kernel_cycles,
    parallel_steps,
    parts_apart,
    Team,
    team_cycles,
    team_of,
)
from toolkit.targets.isas import ISAS
from toolkit.targets.target import TARGETS

SCALAR = ISAS["scalar"]


def rows(*shape: int) -> PrimFunc:
    """Return y[i, j, ...] = exp(a[i, j, ...])."""
    a = T.placeholder(shape, "float32", "a")
    return build([T.compute(shape, lambda *i: call("exp", a[i]), name="y")], [a])


def product(rows: int, depth: int, columns: int) -> PrimFunc:
    a = T.placeholder((rows, depth), "float32", "a")
    b = T.placeholder((depth, columns), "float32", "b", np.ones((depth, columns), np.float32))
    k = T.reduce_axis(depth, "k")
    y = T.compute((rows, columns), lambda i, j: T.sum(a[i, k] * b[k, j], k), name="y")
    func = build([y], [a, b])
    return apply_trace(func, default_trace(func, ISAS["avx2"]))


def parallel_loops(func: PrimFunc) -> list[Loop]:
    return [s for s in walk_stmt(func.body) if isinstance(s, Loop) and s.kind == PARALLEL]


def test_small_kernels_stay_serial_and_large_ones_do_not() -> None:
    team = Team(2)
    assert parallel_steps(product(8, 8, 8), ISAS["avx2"], team) == ()
    func = product(256, 256, 256)
    (step,) = parallel_steps(func, ISAS["avx2"], team)
    (loop,) = parallel_loops(step.apply(func))
    assert loop.extent % 2 == 0
    assert parallel_steps(func, ISAS["avx2"], Team(1)) == ()


def test_the_estimate_of_a_product_is_near_what_its_multiply_adds_take() -> None:
    func = product(256, 256, 256)
    wanted = 256**3 / 8 / 2
    assert wanted < kernel_cycles(func, ISAS["avx2"]) < 1.5 * wanted
    after = apply_trace(func, parallel_steps(func, ISAS["avx2"], Team(2)))
    shared = team_cycles(after, ISAS["avx2"], Team(2))
    assert kernel_cycles(after, ISAS["avx2"]) / shared > 1.8


def test_the_loop_that_divides_evenly_is_taken() -> None:
    team = Team(2, 0, 0)
    assert parallel_steps(rows(1, 8, 50), SCALAR, team) == (Parallel("i1"),)
    assert parallel_steps(rows(3, 64, 64), SCALAR, Team(2, 4000, 0)) == (
        Fuse("i0", "i1"),
        Parallel("i0+i1"),
    )
    assert parallel_steps(rows(64, 3), SCALAR, team) == (Parallel("i0"),)


def test_a_trace_with_a_parallel_loop_of_its_own_keeps_it() -> None:
    func = Parallel("i1").apply(rows(64, 64))
    assert parallel_steps(func, SCALAR, Team(2, 0, 0)) == ()


def test_stages_inside_a_loop_of_one_iteration_are_shared_one_by_one() -> None:
    a = T.placeholder((1, 64), "float32", "a")
    t = T.compute((1, 64), lambda i, j: call("exp", a[i, j]), name="t")
    y = T.compute((1, 64), lambda i, j: t[i, 63 - j] + t[i, j], name="y")
    func = build([y], [a])
    from toolkit.schedule.steps.compute_at import ComputeAt

    loops = [s.var for s in walk_stmt(func.body) if isinstance(s, Loop)]
    func = ComputeAt("t", loops[2]).apply(func)
    after = apply_trace(func, parallel_steps(func, SCALAR, Team(2, 0, 0)))
    assert len(parallel_loops(after)) == 2


@pytest.mark.parametrize(("extent", "apart"), [(22, True), (13, False)])
def test_shifted_tiles_belong_to_one_part(extent: int, apart: bool) -> None:
    """7 does not divide: the last tile computes elements of the last but one again."""
    func = Split("i0", (7,), "shift").apply(rows(extent))
    func = Parallel("i0.0").apply(func)
    (loop,) = parallel_loops(func)
    assert parts_apart(loop, 2) == apart
    assert bool(parallel_loops(lower_func(func, 2))) == apart


def test_fused_loops_over_shifted_tiles_are_not_cut() -> None:
    func = Split("i1", (7,), "shift").apply(rows(4, 22))
    func = Parallel("i0+i1.0").apply(Fuse("i0", "i1.0").apply(func))
    assert not parts_apart(parallel_loops(func)[0], 2)
    assert not parallel_loops(lower_func(func, 2))


def test_without_threads_a_parallel_loop_is_a_plain_one() -> None:
    func = Parallel("i0").apply(rows(8, 8))
    kernel = print_kernel(func, "k")
    assert kernel.parts == ()
    assert kernel.lines[0].text == "for (ptrdiff_t i0 = 0; i0 < 8; ++i0)"


def test_only_the_outermost_of_nested_parallel_loops_is_cut() -> None:
    func = Parallel("i1").apply(Parallel("i0").apply(rows(8, 8)))
    assert [l.var for l in parallel_loops(lower_func(func, 2))] == ["i0"]
    assert [part.name for part in print_kernel(func, "k", threads=2).parts] == ["k_p0"]


def softmax_rows(extent: int) -> PrimFunc:
    a = T.placeholder((4, extent), "float32", "a")
    t = T.compute((4, extent), lambda i, j: call("exp", a[i, j]), name="t")
    k = T.reduce_axis(extent, "k")
    total = T.compute((4,), lambda i: T.sum(t[i, k], k), name="total")
    y = T.compute((4, extent), lambda i, j: t[i, j] / total[i], name="y")
    func = build([y], [a])
    return apply_trace(func, default_trace(func, SCALAR))


def test_scratch_inside_a_part_is_the_part_s_own() -> None:
    func = softmax_rows(1001)
    loop = next(s for s in walk_stmt(func.body) if isinstance(s, Loop))
    func = Parallel(loop.var).apply(func)
    (one,) = [b for b in lower_func(func).locals if b.scope == SCRATCH]
    (three,) = [b for b in lower_func(func, 3).locals if b.scope == SCRATCH]
    assert one.storage.nbytes == 4 * 1001
    assert (three.copies, three.copy_size) == (3, 1008), "a line of a cache holds 16 floats"
    assert three.storage.nbytes == 3 * 4 * 1008


def test_registers_of_the_code_around_are_memory_for_a_part() -> None:
    a = T.placeholder((64,), "float32", "a")
    k = T.reduce_axis(64, "k")
    total = T.compute((), lambda: T.sum(a[k], k), name="total")
    y = T.compute((64,), lambda i: a[i] / total[()], name="y")
    func = build([y], [a])
    scopes = {b.name: b.scope for b in lower_func(func).locals}
    assert scopes["total"] == REGISTER
    loop = [s for s in walk_stmt(func.body) if isinstance(s, Loop)][-1]
    after = lower_func(Parallel(loop.var).apply(func), 2)
    (buffer,) = [b for b in after.locals if b.name == "total"]
    assert (buffer.scope, buffer.copies) == (SCRATCH, 1)


def test_cores_that_are_not_woken_by_a_system_share_smaller_kernels() -> None:
    assert (
        team_of(TARGETS["cortex-m33"], 2).grain_cycles < team_of(TARGETS["aarch64"], 2).grain_cycles
    )


# ------------------------------------------------------------------------------ steps side by side


def step(reads: str, writes: str, cycles: float) -> tuple[Step, Work]:
    spans = [tuple(Span(s, 0, 8) for s in names) for names in (reads, writes)]
    return Call("k", tuple(writes), tuple(reads), (), ()), Work(*spans, cycles, cycles)


TWO = Team(2, 1, 0)


def forked(*made: tuple[Step, Work | None], team: Team = TWO) -> list[object]:
    """Return counts for forks, targets for jumps, what calls write."""
    steps = [s for s, _ in made]
    work = {n: w for n, (_, w) in enumerate(made) if w is not None}
    shown: list[object] = []
    for s in fork_steps(steps, work, team):
        match s:
            case Fork():
                shown.append(s.counts)
            case Call():
                shown.append("".join(s.outputs))
            case _:
                shown.append(s.target)
    return shown


def test_branches_that_do_not_meet_are_run_side_by_side() -> None:
    steps = [step("x", "a", 50), step("a", "b", 50), step("x", "c", 90), step("bc", "y", 9)]
    assert forked(*steps) == [(2, 1), "a", "b", "c", "y"]
    assert forked(*steps, team=Team(1)) == ["a", "b", "c", "y"]


def test_interleaved_branches_are_sorted_into_lanes() -> None:
    steps = [step("x", "a", 50), step("x", "c", 50), step("a", "b", 50), step("c", "d", 50)]
    assert forked(*steps) == [(2, 2), "a", "b", "c", "d"]


@pytest.mark.parametrize(
    "second",
    [step("a", "b", 99), step("x", "a", 99), step("y", "x", 99)],
    ids=["reads what is written", "writes it too", "overwrites what is read"],
)
def test_steps_that_touch_the_same_bytes_stay_in_order(second: tuple[Step, Work]) -> None:
    assert forked(step("x", "a", 99), second) == ["a", "".join(second[0].outputs)]


def test_parts_of_one_storage_may_be_written_side_by_side() -> None:
    """As the operands of a Concat are."""
    first, last = Span("y", 0, 8), Span("y", 8, 16)
    made = [
        (step("", c, 9)[0], Work((), (span,), 99, 99)) for c, span in (("a", first), ("b", last))
    ]
    assert forked(*made) == [(1, 1), "a", "b"]


def test_what_costs_less_than_a_fork_stays_serial() -> None:
    assert forked(step("x", "a", 5), step("x", "b", 5), team=Team(2, 100, 0)) == ["a", "b"]


def test_what_all_cores_share_is_not_given_to_one() -> None:
    steps = [
        (c, Work(w.reads, w.writes, 100, 52)) for c, w in (step("x", "a", 0), step("x", "b", 0))
    ]
    assert forked(*steps) == ["a", "b"]


def test_no_fork_reaches_over_a_jump_or_its_target() -> None:
    steps = [
        step("x", "a", 50), (JumpIfNot("x", 4), None), step("x", "b", 50), (Jump(5), None),
        step("x", "c", 50), step("x", "d", 50), step("x", "e", 50),
    ]  # fmt: skip
    assert forked(*steps) == ["a", 4, "b", 5, "c", (1, 1), "d", "e"]


def test_lanes_are_balanced() -> None:
    steps = [
        step("x", name, cost) for name, cost in zip("abcde", (10, 60, 20, 30, 40), strict=True)
    ]
    assert forked(*steps) == [(2, 3), "b", "c", "a", "d", "e"]
