"""Rolled storage: chains of windows, scheduled before and after, mean what they meant."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.golden.test_nests import c_text
from tests.meaning.batch import Batch
from tests.meaning.shrinking import differs, smallest
from tests.meaning.test_random_kernels import check_same, laid_out
from tests.meaning.test_steps import random_inputs, random_trace
from toolkit.codegen.lower import lower_func
from toolkit.errors import ScheduleError
from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder, Reduce, reduce_axis, sum, Tensor
from toolkit.ir.expr import all_of, Expr, maximum
from toolkit.ir.interp import interpret
from toolkit.ir.loop import blocks, nest_of, PrimFunc
from toolkit.ir.verify import verify_func
from toolkit.schedule.default import apply_trace
from toolkit.schedule.steps.annotate import Parallel, Unroll
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.inline import Inline
from toolkit.schedule.steps.roll_storage import RollStorage
from toolkit.schedule.steps.split import Split

Shape = tuple[int, int, int]
"""Taps, stride and padding of windows."""


def windows(x: Tensor, w: Tensor, name: str, shape: Shape, *, own: bool) -> Tensor:
    """Return sums over windows of rows and columns of x: of all channels, or of each its `own`."""
    (_, down, across, channels), (taps, stride, pad) = x.shape, shape
    rows, columns = ((n + 2 * pad - taps) // stride + 1 for n in (down, across))
    kh, kw, c = (reduce_axis(n, v) for n, v in ((taps, "kh"), (taps, "kw"), (channels, "c")))

    def element(n: Expr, h: Expr, v: Expr, o: Expr) -> Reduce:
        y, z, d = h * stride + kh - pad, v * stride + kw - pad, o if own else c
        tests = [y >= 0, y < down, z >= 0, z < across] if pad else []
        weight = w[kh, kw, o] if own else w[kh, kw, (c + o) % channels]
        return sum(x[n, y, z, d] * weight, (kh, kw) if own else (kh, kw, c), where=all_of(*tests))

    return compute((1, rows, columns, channels), element, name)


def chain(shapes: list[Shape], rows: int, columns: int, channels: int) -> PrimFunc:
    """Return windows one after another, s0, s1, ..., then y = max(.., 0)."""
    x = tensor = placeholder((1, rows, columns, channels), "float32", "x")
    inputs = [x]
    for number, shape in enumerate(shapes):
        w = placeholder((shape[0], shape[0], channels), "float32", f"w{number}")
        inputs.append(w)
        tensor = windows(tensor, w, f"s{number}", shape, own=number % 2 == 1)
    last = tensor
    y = compute(last.shape, lambda n, h, v, o: maximum(last[n, h, v, o], 0.0), "y")
    return build([y], inputs)


def row_loop(func: PrimFunc, block: str) -> str:
    """Return the loop over rows of a block: the first but that of the batch."""
    return nest_of(func.body, block)[0][1].var


def random_chain(rng: np.random.Generator, *, exact: bool) -> tuple[PrimFunc, list[Step]]:
    """Return random windows, and a trace that rolls all of them into one loop."""
    rows, columns, channels = (int(rng.integers(*r)) for r in ((8, 12), (4, 7), (1, 3)))
    shapes: list[Shape] = []
    left = columns  # fewer than rows
    for _ in range(int(rng.integers(2, 4))):
        taps = int(rng.integers(1, min(left, 3) + 1))
        pad = int(rng.integers(0, (taps + 1) // 2 + 1))
        shapes.append((taps, int(rng.integers(1, 3)), pad))
        left = (left + 2 * pad - taps) // shapes[-1][1] + 1
    func = base = chain(shapes, rows, columns, channels)
    trace: list[Step] = []

    def take(step: Step, *, optional: bool = False) -> None:
        nonlocal func
        try:
            func = step.apply(func)
        except ScheduleError:
            if not optional:
                raise
        else:
            trace.append(step)

    for number in range(len(shapes)):
        if rng.random() < 0.5:  # accumulators of a row, or of a pixel
            take(CacheWrite(f"s{number}"))
            inside = nest_of(func.body, f"s{number}_write")[0][1:]
            take(ComputeAt(f"s{number}", inside[int(rng.integers(len(inside)))].var))
    take(Inline(f"s{len(shapes) - 1}"), optional=True)
    target = row_loop(func, "y")
    if func.buffers().get(f"s{len(shapes) - 1}") is not None:
        take(RollStorage(f"s{len(shapes) - 1}", target), optional=True)
    for number in reversed(range(len(shapes) - 1)):
        take(RollStorage(f"s{number}", target, int(rng.choice([0, 0, 4]))), optional=True)
    if rng.random() < 0.5:
        take(Split(target, (int(rng.integers(2, 5)),), "guard"), optional=True)
        take(Unroll(f"{target}.1"), optional=True)
    for step, after in random_trace(func, rng, 8) if exact else []:
        trace.append(step)
        func = after
    return base, trace


def some_inputs(func: PrimFunc) -> dict[str, np.ndarray]:
    """Return the same values for the same function."""
    return random_inputs(func, np.random.default_rng(0))


@pytest.mark.parametrize("part", range(2))
def test_random_chains_of_windows_keep_their_meaning(part: int, rng: np.random.Generator) -> None:
    rolled = 0
    for _ in range(16):
        seed = int(rng.integers(2**32))
        own = np.random.default_rng(seed)
        base, trace = random_chain(own, exact=True)
        arrays = random_inputs(base, own)
        want = interpret(base, arrays)
        func = base
        try:
            func = apply_trace(base, tuple(trace))
            verify_func(func)
            moved = laid_out(arrays, tuple(trace))
            check_same(want, interpret(func, moved), "rolled", base, func)
            lowered = lower_func(func)
            verify_func(lowered)
            check_same(want, interpret(lowered, moved), "lower", func, lowered)
        except Exception as error:
            steps = "\n  ".join(map(str, trace))
            error.add_note(f"seed {seed}, trace:\n  {steps}\n{base}")
            error.add_note(smallest(base, trace, some_inputs, differs))
            raise
        rolled += any(isinstance(step, RollStorage) for step in trace)
    assert rolled > 8


def test_rolled_chains_compute_the_same_in_c(
    rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    need_tool("gcc")
    batch, checks = Batch(), []
    for _ in range(20):
        base, trace = random_chain(rng, exact=False)
        func = apply_trace(base, tuple(trace))
        for block in list(blocks(func.body)):
            inner = nest_of(func.body, block.name)[0][2:]
            if inner and rng.random() < 0.3:  # rows are made, and used, by several threads
                with suppress(ScheduleError):
                    func = Parallel(inner[0].var).apply(func)
        arrays = random_inputs(base, rng)
        want = interpret(base, arrays, exact=False)
        checks.append((func, want, arrays))
        batch.add(func, [str(step) for step in trace], threads=2)
    batch.build(tmp_path, flags=("-O1",), strict=())
    found = batch.run_all([(n, arrays) for n, (_, _, arrays) in enumerate(checks)])
    for number, ((func, want, _), got) in enumerate(zip(checks, found, strict=True)):
        check_same(want, got, f"kernel k{number} in C", func)


def test_a_rolled_buffer_holds_one_window_of_rows() -> None:
    func = chain([(3, 1, 1), (3, 1, 1)], 12, 6, 2)
    for step in (
        ComputeAt("s1", row_loop(func, "y")), RollStorage("s0", row_loop(func, "y"))
    ):  # fmt: skip
        func = step.apply(func)
    sizes = {b.name: b.shape for b in lower_func(func).locals}
    assert sizes["s0"] == (1, 3, 6, 2)


def test_places_of_rows_are_constants_where_the_loop_is_unrolled_by_their_number() -> None:
    func = RollStorage("s0", "h_2").apply(chain([(3, 1, 1), (3, 1, 1)], 11, 6, 2))
    assert "nst_floormod_index" in c_text(func, "scalar")
    for step in (Split("h_2", (3,)), Unroll("h_2.1"), Unroll("kh_2")):
        func = step.apply(func)
    assert "nst_floormod_index(h" not in c_text(func, "scalar")
