"""Sums in several parts whose order is prescribed: in vectors of columns, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.meaning.batch import Batch
from tests.meaning.machines import run_on
from toolkit.errors import ScheduleError
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.expr import Expr
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.schedule.parts import tile_parts
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.base import Step
from toolkit.targets.isas import ISAS

PIXELS = 23
SETS = ("avx2", "avx512", "neon", "helium")


def means(parts: int, columns: int, *, columns_last: bool = True) -> PrimFunc:
    """Sum every `parts`-th of some pixels apart, then the parts in pairs, then what is left."""
    x = T.placeholder((PIXELS, columns) if columns_last else (columns, PIXELS), "float32", "x")
    k = T.reduce_axis(PIXELS // parts, "k")
    at = lambda p, c: x[p, c] if columns_last else x[c, p]  # noqa: E731
    sums = T.compute((parts, columns), lambda p, c: T.sum(at(k * parts + p, c), k), "parts")

    def element(c: Expr) -> Expr:
        lanes: list[Expr] = [sums[p, c] for p in range(parts)]
        total = lanes[0] if parts == 1 else (lanes[0] + lanes[2]) + (lanes[1] + lanes[3])
        for pixel in range(PIXELS // parts * parts, PIXELS):
            total = total + at(pixel, c)
        return total / float(PIXELS)

    return build([T.compute((columns,), element, "mean")], [x])


@pytest.mark.parametrize("isa", SETS)
def test_parts_run_in_vectors_of_columns(
    isa: str, rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    batch, calls = Batch(), []
    for parts in (1, 4):
        for columns in (16, 19, 64, 128):
            func = means(parts, columns)
            trace = default_trace(func, ISAS[isa])
            assert sum(isinstance(step, Vectorize) for step in trace) == 2, trace
            assert sum(isinstance(step, Unroll) for step in trace) == (parts > 1), trace
            x = {"x": rng.standard_normal((PIXELS, columns)).astype(np.float32)}
            calls.append((batch.add(func), x))  # element after element
            calls.append((batch.add(apply_trace(func, trace), (), ISAS[isa]), x))
    found = run_on(isa, batch, calls, tmp_path, need_tool, need_cpu)
    for plain, vectors in zip(found[::2], found[1::2], strict=True):
        np.testing.assert_array_equal(vectors["mean"], plain["mean"])


@pytest.mark.parametrize(
    ("func", "isa", "why"),
    [
        (means(4, 16), "scalar", "no vectors of sums"),
        (means(4, 3), "helium", "the parts do not fit"),
        (means(4, 16, columns_last=False), "avx2", "an operand is not contiguous"),
    ],
)
def test_parts_that_do_not_run_in_vectors(func: PrimFunc, isa: str, why: str) -> None:
    def take(step: Step) -> PrimFunc:
        nonlocal func
        func = step.apply(func)
        return func

    with pytest.raises(ScheduleError, match=why):
        tile_parts(func, "parts", ISAS[isa], take)
