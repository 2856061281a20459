"""Tuning whole models: measurer and records opened, a run taken up or started, the end proven.

A tuned kernel is kept where it beats its default side by side; the tuned model is kept where it
beats the model of default schedules side by side.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from toolkit.errors import NestlingError
from toolkit.lowering.kernels import func_key
from toolkit.lowering.tasks import calls_of
from toolkit.measure.candidates.machine import Machine
from toolkit.pipeline import compile_model, Compiled
from toolkit.runners import Runner
from toolkit.search.cost_model import BoostedTrees
from toolkit.search.goals import parse_goal
from toolkit.search.pool import Validate
from toolkit.search.records import rebuild, Records
from toolkit.search.result import Measurer, MeasureResult, SECONDS
from toolkit.space.task import Candidate, Space, Task
from toolkit.tuner.run import (
    Listener,
    model_tasks,
    Quiet,
    TaskProgress,
    Told,
    Tuner,
    TuneSettings,
    Verdict,
)
from toolkit.tuner.selection import (
    alive_bytes,
    Choosable,
    OBJECTIVES,
    Point,
    points,
    select,
    told_cost,
    Use,
)
from toolkit.verify import compare, TOLERANCE

OpenRunner = Callable[[Compiled], Runner]
"""Builds a compiled model where it is to be timed."""

TURNS = 15
"""Turns of default and tuned model in the comparison at the end."""

TURN_S = 0.05
TURN_RUNS = 500
"""What a turn takes at most, and the most runs in it."""


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """A model at the end: cost with default and with tuned schedules, measured in turns.

    `ratio`: the median of tuned / default in each turn; `tuned` is `default` times it, since two
    medians of their own would differ by how fast the machine was in their turns as well.
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
    points: tuple[Point, ...] = ()
    """The front of time, RAM and flash, fastest first, where one model was tuned."""
    ended: str = ""
    """Why the search ended before its budget was spent; empty where it did not."""


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
    objective: str = "latency",
    ram_bytes: float | None = None,
    flash_bytes: float | None = None,
    describe_run: Mapping[str, object] | None = None,
    machine: Machine | None = None,
) -> Outcome:
    """Tune the kernels of `models`, compiled with default schedules, and keep what is better.

    `inputs`: arrays each model is run on at the end.  `objective`: of `OBJECTIVES`; `ram_bytes` of
    the arena and `flash_bytes` of kernels and weights are limits that what is chosen keeps, or
    `NestlingError` is raised; both, and objectives but latency, are for one model.
    `describe_run`: what besides the settings tells runs apart, so that a killed run is taken up
    only by the same command.  `machine`: what the core that measures can do at best.
    """
    tasks, weights = model_tasks(models)
    parse_goal(goal, list(models), dict.fromkeys(models, 1.0))  # refuse before anything is measured
    sized = objective != "latency" or ram_bytes is not None or flash_bytes is not None
    if objective not in OBJECTIVES:
        raise NestlingError(
            f"objective {objective!r} is unknown.", hint=f"known: {', '.join(OBJECTIVES)}"
        )
    if sized and len(models) != 1:
        raise NestlingError(
            "limits of RAM and flash, and objectives but latency, are for one model at a time."
        )
    uses = model_uses(models)
    if ram_bytes is not None:
        for name, compiled in models.items():
            least = max(alive_bytes(compiled.program), default=0)
            if least > ram_bytes:
                raise NestlingError(
                    f"{name}: its tensors alone need {least:,} bytes of RAM, and the limit is "
                    f"{ram_bytes:,.0f}.",
                    hint="schedules change scratch and speed, not what lies between kernels",
                )
        tasks = [_with_scratch_limit(t, uses[t.key], ram_bytes) for t in tasks]
    kept = {
        "objective": objective,
        "ram_bytes": ram_bytes,
        "flash_bytes": flash_bytes,
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
            told=_sized_results(objective) if objective != "latency" else None,
            peak=machine.flops if machine else None,
        )  # fmt: skip
        tuner.history.run |= {
            "models": list(models), "machine": asdict(machine) if machine else None,
        }  # fmt: skip
        tuner.search()
        verdicts = tuner.verdicts(_comparing(measurer))
        tuner.reduce_wrong()
        found = model_points(tuner, uses, models) if len(models) == 1 else []
        if sized:
            point = select(found, objective, ram_bytes, flash_bytes, next(iter(models)))
            verdicts = _verdicts_of(records, measurer.unit, tuner, point)
        gained = {m for v in verdicts if v.tuned for m in weights[v.task.key]}
        outcomes = [
            _whole_model(
                name, compiled, inputs[name], verdicts if name in gained else (), open_runner
            )
            for name, compiled in models.items()
        ]
        if sized:  # what is smallest, or fits, stays whether it is faster or not
            outcomes = [replace(o, kept=True) for o in outcomes]
        verdicts = _withdraw(records, measurer.unit, tuner, verdicts, outcomes, weights)
        rows = [asdict(p) for p in found]
        tuner.history.run |= {
            "points": rows, "unit": measurer.unit, "outcomes": [asdict(o) for o in outcomes],
            "search_s": tuner.search_s, "measure_s": tuner.measure_s,
        }  # fmt: skip
        for v in verdicts:
            tuner.history.task(
                v.task.key, chosen=v.chosen.key, ratio=v.ratio, tuned=v.tuned, detail=v.detail
            )
        records.add(
            [], run=run, state=tuner.history.state(tuner.elapsed_s), task_states=tuner.history.tasks
        )
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
            tuple(found),
            tuner.ended,
        )


def model_uses(models: Mapping[str, Compiled]) -> dict[str, Use]:
    """Return how the tasks of compiled models are called, by their keys."""
    calls: dict[str, list[int]] = {}
    for compiled in models.values():
        alive = alive_bytes(compiled.program)
        for task, steps in calls_of(compiled.graph, compiled.model.ops, compiled.program,
                                    compiled.target):  # fmt: skip
            calls.setdefault(task.key, []).extend(alive[step] for step in steps)
    return {key: Use(float(len(found)), tuple(found)) for key, found in calls.items()}


def _with_scratch_limit(task: Task, use: Use, ram_bytes: float) -> Task:
    """Return the task with what its calls leave of the RAM as its limit of scratch."""
    return replace(task, scratch_limit_bytes=max(int(ram_bytes) - max(use.alive, default=0), 0))


def _choosable(key: str, cost: float, result: MeasureResult) -> Choosable:
    return Choosable(key, cost, result.ram_bytes or 0, result.flash_bytes or 0)


def _sized_results(objective: str) -> Told:
    def told(progress: TaskProgress, c: Candidate, result: MeasureResult) -> MeasureResult:
        if result.cost is None or progress.default_result is None:
            return result
        default = _choosable("", progress.default_cost or 0.0, progress.default_result)
        cost = told_cost(
            result.cost, result.ram_bytes or 0, result.flash_bytes or 0, default, objective
        )
        return replace(result, samples=(cost,))

    return told


def model_points(
    tuner: Tuner, uses: Mapping[str, Use], models: Mapping[str, Compiled]
) -> list[Point]:
    """Return the front of a model: of each task its default and what no other trial beats."""
    options: dict[str, list[Choosable]] = {}
    for p in tuner.tasks:
        if p.default is None or p.default_result is None or p.default_cost is None:
            continue
        own = {p.default.key: _choosable(p.default.key, p.default_cost, p.default_result)}
        for trial in tuner.records.front(p.task.key, tuner.measurer.unit):
            if trial.cost is not None:
                own.setdefault(
                    trial.candidate_key, _choosable(trial.candidate_key, trial.cost, trial.result)
                )
        options[p.task.key] = list(own.values())
    (compiled,) = models.values()
    floor = max(alive_bytes(compiled.program), default=0)
    return points(options, uses, floor)


def _verdicts_of(records: Records, unit: str, tuner: Tuner, point: Point) -> list[Verdict]:
    """Keep what a point chooses, and return it as verdicts."""
    result = []
    for p in tuner.tasks:
        key = point.choice.get(p.task.key)
        if p.default is None or key is None:
            continue
        chosen, ratio = p.default, 1.0
        if key != p.default.key:
            trial = next(t for t in records.standing(p.task.key, unit) if t.candidate_key == key)
            chosen, ratio = rebuild(p.task, trial), (trial.cost or 0.0) / (p.default_cost or 1.0)
        why = "chosen for time, RAM and flash of the whole model"
        records.choose(p.task.key, unit, key, why)
        result.append(Verdict(p.task, chosen, ratio, key != p.default.key, why))
    return result


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
    """Time a model with default and tuned schedules, in turns; check that both answer alike.

    Without verdicts both are one, which is built once and no better than itself.
    """
    with ExitStack() as stack:
        runners = []
        for version in (compiled, *([with_traces(compiled, verdicts)] if verdicts else [])):
            runner = open_runner(version)
            stack.callback(runner.close)
            runners.append(runner)
        outputs, costs = zip(*(r.measure(inputs, 3) for r in runners), strict=True)
        for output, value in outputs[0].items():
            # Both may be off by the tolerance of `verify`, in different directions.
            check = compare(output, outputs[-1][output], value, tolerance=2 * TOLERANCE)
            if not check.ok:
                raise NestlingError(
                    f"model {name!r}: with tuned schedules, output {output!r} differs from what "
                    f"it is with the default ones: {check.why}.",
                    hint="the records hold every trial; please report this, with them if you may",
                )
        unit = costs[0].unit
        turn = 1
        if unit == SECONDS:
            turn = max(1, min(TURN_RUNS, int(TURN_S / max(costs[0].per_inference, 1e-6))))
        turns = TURNS if unit == SECONDS and verdicts else 1
        samples: list[list[float]] = [[] for _ in runners]
        for number in range(turns):
            # Who goes first alternates: the first of a turn finds colder caches.
            sides = range(len(runners))
            for side in sides if number % 2 == 0 else reversed(sides):
                samples[side].append(runners[side].measure(inputs, turn)[1].per_inference)
        ratio = statistics.median(b / a for a, b in zip(samples[0], samples[-1], strict=True))
        default = statistics.median(samples[0])
        return ModelOutcome(name, unit, default, default * ratio, ratio, ratio < 1.0)


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
