"""Tasks, candidates and made-up results for tests of records; nothing is compiled."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder, reduce_axis, sum
from toolkit.ir.expr import maximum
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.default import default_trace
from toolkit.schedule.hole import Sketch
from toolkit.schedule.program import record, Recorder
from toolkit.search.records import DEFAULT
from toolkit.search.result import MeasureResult, SECONDS, Status
from toolkit.space.task import Candidate, candidate, Task
from toolkit.targets.target import TARGETS

TARGET = "x86-64-v3"


def product(m: int = 12, n: int = 8, depth: int = 6) -> PrimFunc:
    """y = relu(a b), a [m, depth], b [depth, n]."""
    a, b = placeholder((m, depth), "float32", "a"), placeholder((depth, n), "float32", "b")
    k = reduce_axis(depth, "k")
    c = compute((m, n), lambda i, j: sum(a[i, k] * b[k, j], k), "c")
    return build([compute((m, n), lambda i, j: maximum(c[i, j], 0), "y")], [a, b], "product")


def task(m: int = 12, n: int = 8, depth: int = 6, *, target: str = TARGET) -> Task:
    """Return a matrix product as a task."""
    return Task(product(m, n, depth), TARGETS[target], weight=2.0, nodes=("mm", "relu"))


def tiled(sch: Recorder) -> None:
    """A register tile with open sizes."""
    i, j = sch.loops("y")
    i0, i1 = sch.split(i, sch.sample_perfect_tile(2, max_inner=8, name="rows"))
    j0, j1 = sch.split(j, sch.sample_tile(max_inner=8, name="columns"), "guard")
    sch.reorder(i0, j0, i1, j1)
    sch.vectorize(j1)
    sch.compute_at("c", sch.sample_compute_location(name="where"))


def sketch_of(work: Task) -> Sketch:
    """Return the one sketch there is here."""
    return record(work.func, tiled)[0]


def default_of(work: Task) -> Candidate:
    """Return the candidate that a task starts from."""
    return candidate(work, default_trace(work.func, work.target.isa), {}, origin=DEFAULT)


def candidates(work: Task, count: int, seed: int = 1) -> list[Candidate]:
    """Return different random candidates."""
    draw, found = random.Random(seed), {}
    sketch = sketch_of(work)
    while len(found) < count:
        made = candidate(work, sketch, {}, draw)
        found.setdefault(made.key, made)
    return list(found.values())


def good(cost: float, *, unit: str = SECONDS, **fields: object) -> MeasureResult:
    """Return a success whose median is `cost`."""
    return MeasureResult(Status.OK, unit, (cost, cost * 0.5, cost * 3), **fields)  # type: ignore[arg-type]


def batches(
    work: Task, size: int, seed: int = 1
) -> Iterator[Sequence[tuple[Candidate, MeasureResult]]]:
    """Yield batches of random candidates with random results, some of them failures, for ever."""
    draw, pool = random.Random(seed), candidates(work, 8, seed)
    statuses = [s for s in Status if s is not Status.OK]
    while True:
        yield [
            (
                made,
                good(draw.random(), flash_bytes=draw.randrange(999), device="made up")
                if draw.random() < 0.7
                else MeasureResult(draw.choice(statuses), detail="cc -O3 k.c: refused"),
            )
            for made in draw.sample(pool, size)
        ]
