"""A tuning run over made-up costs: rounds, budgets, verdicts, and resuming what was killed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder, reduce_axis
from toolkit.ir.compute import sum as total
from toolkit.ir.expr import maximum
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.hole import Sketch
from toolkit.schedule.program import record, Recorder
from toolkit.search.features import describe, feature_names, featurise
from toolkit.search.goals import early_stop_goal, Goal, sum_goal
from toolkit.search.records import Records
from toolkit.search.result import MeasureResult, SECONDS, Status
from toolkit.space.task import Candidate, Space, Task
from toolkit.targets.target import get_target
from toolkit.tuner.models import _whole_model
from toolkit.tuner.run import Tuner, TuneSettings


class Killed(BaseException):
    """Stands for `kill -9`: nothing catches it."""


def product(rows: int, columns: int, depth: int) -> PrimFunc:
    a = placeholder((rows, depth), "float32", "a")
    w = placeholder((depth, columns), "float32", "w", data=0)
    k = reduce_axis(depth, "k")
    t = compute((rows, columns), lambda i, j: total(a[i, k] * w[k, j], k), "t")
    return build([compute((rows, columns), lambda i, j: maximum(t[i, j], 0.0), "y")], [a, w])


def program(sch: Recorder) -> None:
    """A register tile around the reduction, whose loops' order is a choice too."""
    i, j = sch.loops("y")
    rows, columns = sch.func.outputs[0].shape
    high = [(n,) for n in (2, 3, 4, 6, 8, 12) if rows % n == 0]
    wide = [(n,) for n in (2, 4, 6, 8, 12, 16, 24, 32, 48) if columns % n == 0]
    i0, i1 = sch.split(i, sch.sample_categorical(high))
    j0, j1 = sch.split(j, sch.sample_categorical(wide))
    sch.reorder(*sch.branch((i0, j0), (j0, i0)), i1, j1)
    sch.compute_at("t", sch.loops("y")[1])
    row, column, depth = sch.loops("t")[2:]
    sch.reorder(depth, row, column)
    _, inner = sch.split(depth, sch.sample_perfect_tile(2, max_inner=8))
    sch.unroll(inner)
    for loop in (row, i1):
        sch.unroll(loop)
    for loop in (column, j1):
        sch.vectorize(loop)


class Made:
    """A space of one program."""

    name = "made"

    def sketches(self, task: Task) -> Sequence[Sketch]:
        return record(task.func, program)


class Model:
    """Costs by a formula; wrong, crashing and slow candidates on purpose; dies after some calls."""

    unit = SECONDS

    def __init__(self, dies_after: int | None = None) -> None:
        self.calls = 0
        self.dies_after = dies_after
        self.column = feature_names().index("cycles")

    def measure(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        self.calls += 1
        if self.dies_after is not None and self.calls > self.dies_after:
            raise Killed
        results = []
        for c in candidates:
            x, _ = featurise([describe(c.func)], c.task.target)
            chance = random.Random(c.key).random()
            cost = float((2.0 ** x[:, self.column]).sum()) * 1e-9 * (1 + 0.05 * chance)
            if chance < 0.1 and c.origin != "default":
                status = Status.WRONG_RESULT if chance < 0.05 else Status.CRASHED
                results.append(MeasureResult(status, SECONDS, detail="made up"))
            else:
                results.append(MeasureResult(Status.OK, SECONDS, (cost,)))
        return results

    def close(self) -> None:
        pass


class Few(Made):
    """A space of four schedules."""

    name = "few"

    def sketches(self, task: Task) -> Sequence[Sketch]:
        def rows(sch: Recorder) -> None:
            row = sch.loops("y")[0]
            sch.split(row, sch.sample_categorical([(2,), (3,), (4,), (6,)]))

        return record(task.func, rows)


def tuner(
    path: Path,
    measurer: Model,
    settings: TuneSettings,
    records: Records,
    resume: bool = False,
    space: Space | None = None,
    goal: Goal | None = None,
) -> Tuner:
    target = get_target("x86-64-v3")
    tasks = [Task(product(*s), target) for s in ((48, 96, 64), (24, 24, 36), (96, 192, 32))]
    weights = {t.key: {"m": float(n)} for n, t in enumerate(tasks, 1)}
    kept = {"seed": settings.seed, "models": ["d"], "settings": {"trials": settings.trials}}
    run = records.resume_run(**kept) if resume else None
    run = run or records.start_run("tune", **kept)
    return Tuner(
        tasks, weights, space or Made(), measurer, records, run, settings,
        goal=lambda latencies: goal or sum_goal(),
    )  # fmt: skip


def trail(records: Records) -> list[tuple[int, str, str, str]]:
    return [(t.round, t.task_key, t.candidate_key, str(t.result.status)) for t in records.trials()]


def test_a_run_spends_its_trials_and_keeps_every_one(tmp_path: Path) -> None:
    with Records(tmp_path / "r.db") as records:
        run = tuner(tmp_path, Model(), TuneSettings(trials=60, batch=16), records)
        run.search()
        assert run.trials == 60
        assert len(records.trials()) == 60 + 3  # and the defaults
        assert sum(sum(p.failures.values()) for p in run.tasks) > 0
        for p in run.tasks:
            assert p.cost is not None
            assert p.default_cost is not None
            assert p.cost <= p.default_cost
            assert p.trials > 0


@pytest.mark.parametrize("dies_after", [0, 3])
def test_a_killed_run_ends_as_an_uninterrupted_one(tmp_path: Path, dies_after: int) -> None:
    settings = TuneSettings(trials=32, batch=8, seed=7)
    with Records(tmp_path / "whole.db") as records:
        whole = tuner(tmp_path, Model(), settings, records)
        whole.search()
        wanted = trail(records)
    with Records(tmp_path / "cut.db") as records, pytest.raises(Killed):
        tuner(tmp_path, Model(dies_after), settings, records).search()
    with Records(tmp_path / "cut.db") as records:
        again = tuner(tmp_path, Model(), settings, records, resume=True)
        again.search()
        assert trail(records) == wanted
        assert [p.cost for p in again.tasks] == [p.cost for p in whole.tasks]


def test_the_default_is_kept_where_the_comparison_says_so(tmp_path: Path) -> None:
    with Records(tmp_path / "r.db") as records:
        run = tuner(tmp_path, Model(), TuneSettings(trials=64), records)
        run.search()
        verdicts = run.verdicts(lambda task, candidates: [1.0, 1.01])
        assert not any(v.tuned for v in verdicts)
        for p, v in zip(run.tasks, verdicts, strict=True):
            assert p.default is not None
            assert v.chosen.key == p.default.key
            chosen = records.chosen(p.task.key, SECONDS)
            assert chosen is not None
            assert chosen.candidate_key == p.default.key
        better = run.verdicts(lambda task, candidates: [1.0, 0.5])
        assert any(v.tuned for v in better)


def test_a_run_needs_a_budget() -> None:
    from toolkit.errors import NestlingError

    with pytest.raises(NestlingError, match="trials or a budget"):
        TuneSettings()
    with pytest.raises(NestlingError, match="must be positive"):
        TuneSettings(trials=0)


def test_a_run_says_why_it_ended_before_its_budget(tmp_path: Path) -> None:
    with Records(tmp_path / "whole.db") as records:
        whole = tuner(tmp_path, Model(), TuneSettings(trials=32), records)
        whole.search()
        assert whole.ended == ""
    with Records(tmp_path / "few.db") as records:
        few = tuner(tmp_path, Model(), TuneSettings(trials=100), records, space=Few())
        few.search()
        assert few.trials == 3 * 4
        assert few.ended == "every schedule of the space 'few' that is legal was tried"
    with Records(tmp_path / "stopped.db") as records:
        settings = TuneSettings(trials=2000, batch=4, strategy="random")
        goal = early_stop_goal(2)
        stopped = tuner(tmp_path, Model(), settings, records, goal=goal)
        stopped.search()
        assert stopped.trials < 2000
        assert stopped.ended == "3 of 3 kernels gained nothing any more"


def test_a_budget_of_time_ends_the_run(tmp_path: Path) -> None:
    now = [0.0]

    class Slow(Model):
        def measure(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
            now[0] += len(candidates) * 1.0
            return super().measure(candidates)

    with Records(tmp_path / "r.db") as records:
        made = tuner(tmp_path, Slow(), TuneSettings(budget_s=60.0), records)
        made.clock = lambda: now[0]
        made.started_at = 0.0
        made.search()
        assert 45 <= now[0] <= 77  # the last batch may end a little late


class CountedRunner:
    """A model that takes a microsecond more at each measurement."""

    opened = 0

    def __init__(self, _: object) -> None:
        CountedRunner.opened += 1
        self.runs = 0

    def measure(self, inputs: object, runs: int) -> tuple[dict[str, np.ndarray], SimpleNamespace]:
        self.runs += 1
        answer = {"y": np.array([1.0, np.nan], np.float32)}
        return answer, SimpleNamespace(unit=SECONDS, per_inference=1e-6 * self.runs)

    def close(self) -> None:
        pass


def test_a_model_that_keeps_its_defaults_is_built_once_and_gains_nothing() -> None:
    opener: Any = CountedRunner
    model: Any = None
    CountedRunner.opened = 0
    outcome = _whole_model("m", model, {}, (), opener)
    assert CountedRunner.opened == 1
    assert outcome.default == outcome.tuned > 0
    assert (outcome.ratio, outcome.kept) == (1.0, False)
