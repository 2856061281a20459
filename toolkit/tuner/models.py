"""Tuning whole models: measurer and records opened, a run taken up or started, the end proven.

A tuned kernel is kept where it beats its default side by side; the tuned model is kept where it
beats the model of default schedules side by side.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from toolkit.errors import NestlingError
from toolkit.lowering.kernels import func_key
from toolkit.pipeline import compile_model, Compiled
from toolkit.runners import Runner
from toolkit.search.cost_model import BoostedTrees
from toolkit.search.goals import parse_goal
from toolkit.search.pool import Validate
from toolkit.search.records import Records
from toolkit.search.result import Measurer, SECONDS
from toolkit.space.task import Candidate, Space, Task
from toolkit.tuner.run import (
    Listener,
    model_tasks,
    Quiet,
    TaskProgress,
    Tuner,
    TuneSettings,
    Verdict,
)

OpenRunner = Callable[[Compiled], Runner]
"""Builds a compiled model where it is to be timed."""

TURNS = 15
"""Turns of default and tuned model in the comparison at the end."""

TURN_S = 0.05


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """A model at the end: cost with default and with tuned schedules, measured in turns.

    `kept`: whether the tuned schedules are what records now hold for it.
    """

    name: str
    unit: str
    default: float
    tuned: float
    ratio: float
    kept: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run.  `untouched`: tasks that got no trials, with the reason."""

    models: tuple[ModelOutcome, ...]
    verdicts: tuple[Verdict, ...]
    untouched: tuple[tuple[Task, str], ...]
    trials: int
    failures: Mapping[str, int]
    elapsed_s: float
    search_s: float
    measure_s: float
    resumed: bool


def tune(
    models: Mapping[str, Compiled],
    inputs: Mapping[str, Mapping[str, np.ndarray]],
    *,
    measurer: Measurer,
    records_path: Path,
    space: Space,
    settings: TuneSettings,
    open_runner: OpenRunner,
    command: str,
    goal: str = "sum",
    cost_model: BoostedTrees | None = None,
    validate: Validate | None = None,
    listener: Listener | None = None,
    describe_run: Mapping[str, object] | None = None,
) -> Outcome:
    """Tune the kernels of `models`, compiled with default schedules, and keep what is better.

    `inputs`: arrays each model is run on at the end.  `describe_run`: what besides the settings
    tells runs apart, so that a killed run is taken up only by the same command.
    """
    tasks, weights = model_tasks(models)
    parse_goal(goal, list(models), dict.fromkeys(models, 1.0))  # refuse before anything is measured
    kept = {
        "strategy": settings.strategy,
        "scheduler": settings.scheduler,
        "trials": settings.trials,
        "budget_s": settings.budget_s,
        "batch": settings.batch,
        "space": space.name,
        "goal": goal,
        "unit": measurer.unit,
        **(describe_run or {}),
    }
    digests = [c.model.digest for c in models.values()]
    with Records(records_path) as records:
        run = records.resume_run(seed=settings.seed, models=digests, settings=kept)
        resumed = run is not None
        if run is None:
            run = records.start_run(command, seed=settings.seed, models=digests, settings=kept)
        tuner = Tuner(
            tasks, weights, space, measurer, records, run, settings,
            goal=partial(parse_goal, goal, list(models)),
            model=cost_model, validate=validate, listener=listener or Quiet(),
        )  # fmt: skip
        tuner.search()
        verdicts = tuner.verdicts(_comparing(measurer))
        outcomes = [
            _whole_model(name, compiled, inputs[name], verdicts, open_runner)
            for name, compiled in models.items()
        ]
        verdicts = _withdraw(records, measurer.unit, tuner, verdicts, outcomes, weights)
        records.finish_run(run)
        failures: dict[str, int] = {}
        for p in tuner.tasks:
            for status, count in p.failures.items():
                failures[str(status)] = failures.get(str(status), 0) + count
        return Outcome(
            tuple(outcomes),
            tuple(verdicts),
            tuple((p.task, p.why_not or "the budget went to others") for p in _idle(tuner)),
            tuner.trials,
            failures,
            tuner.elapsed_s,
            tuner.search_s,
            tuner.measure_s,
            resumed,
        )


def _idle(tuner: Tuner) -> list[TaskProgress]:
    return [p for p in tuner.tasks if not p.trials]


def _comparing(measurer: Measurer) -> Callable[[Task, Sequence[Candidate]], list[float]]:
    """Return what compares candidates with the first: the upper bound of the ratio's median."""

    def compare(task: Task, candidates: Sequence[Candidate]) -> list[float]:
        result = []
        for found in measurer.compare(candidates):
            result.append(found.high if found.high is not None else float("inf"))
        return [1.0, *result[1:]]

    return compare


def with_traces(compiled: Compiled, verdicts: Sequence[Verdict]) -> Compiled:
    """Compile a model again with the schedules of the verdicts."""
    traces = {func_key(v.task.func): v.chosen.trace for v in verdicts if v.tuned}
    model = replace(compiled.model, traces={**compiled.model.traces, **traces})
    return compile_model(model, compiled.options)


def _whole_model(
    name: str,
    compiled: Compiled,
    inputs: Mapping[str, np.ndarray],
    verdicts: Sequence[Verdict],
    open_runner: OpenRunner,
) -> ModelOutcome:
    """Time a model with default and tuned schedules, in turns; check that both answer alike."""
    with ExitStack() as stack:
        runners = []
        for version in (compiled, with_traces(compiled, verdicts)):
            runner = open_runner(version)
            stack.callback(runner.close)
            runners.append(runner)
        outputs, costs = zip(*(r.measure(inputs, 3) for r in runners), strict=True)
        for output, value in outputs[0].items():
            if not _alike(value, outputs[1][output]):
                raise NestlingError(
                    f"model {name!r}: with tuned schedules, output {output!r} differs from what "
                    "it is with the default ones.",
                    hint="the records hold every trial; please report this, with them if you may",
                )
        unit = costs[0].unit
        turn = max(1, int(TURN_S / max(costs[0].per_inference, 1e-6))) if unit == SECONDS else 1
        turns = TURNS if unit == SECONDS else 1
        samples: list[list[float]] = [[], []]
        for number in range(turns):
            # Who goes first alternates: the first of a turn finds colder caches.
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                samples[side].append(runners[side].measure(inputs, turn)[1].per_inference)
        ratio = statistics.median(b / a for a, b in zip(*samples, strict=True))
        default, tuned = (statistics.median(s) for s in samples)
        return ModelOutcome(name, unit, default, tuned, ratio, ratio < 1.0)


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two results differ by rounding alone, as `verify` judges it."""
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    scale = float(np.max(np.abs(a[np.isfinite(a)]), initial=0.0))
    same = np.isclose(a, b, rtol=0.0, atol=2e-4 * max(scale, 1e-30), equal_nan=True)
    return bool(same.all())


def _withdraw(
    records: Records,
    unit: str,
    tuner: Tuner,
    verdicts: Sequence[Verdict],
    outcomes: Sequence[ModelOutcome],
    weights: Mapping[str, Mapping[str, float]],
) -> list[Verdict]:
    """Go back to default schedules for tasks that only serve models that did not gain."""
    losers = {o.name for o in outcomes if not o.kept}
    result = []
    defaults = {p.task.key: p.default for p in tuner.tasks}
    for verdict in verdicts:
        default = defaults[verdict.task.key]
        if verdict.tuned and default is not None and set(weights[verdict.task.key]) <= losers:
            why = "faster alone, but not in the whole model"
            records.choose(verdict.task.key, unit, default.key, why)
            verdict = Verdict(verdict.task, default, verdict.ratio, False, why)
        result.append(verdict)
    return result
