"""Joins search to measurement: tasks of models, rounds of trials, verdicts.

A run is a sequence of rounds; a round is one task's batch of trials, kept in the records in one
transaction.  All choices of a round are drawn from a generator seeded with the run's seed, the task
and the number of the round, and all state follows from the results so far; so a run that was killed
is taken up by telling the kept results again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolkit.codegen.collector import paused_collector
from toolkit.errors import NestlingError, ScheduleError
from toolkit.lowering.tasks import tasks_of
from toolkit.pipeline import Compiled
from toolkit.schedule.default import default_trace
from toolkit.schedule.hole import Sketch
from toolkit.search.cost_model import BoostedTrees
from toolkit.search.features import describe
from toolkit.search.goals import Goal, sum_goal
from toolkit.search.packs import ShippedPacks, transfer
from toolkit.search.pool import Validate
from toolkit.search.records import rebuild, Records, Run
from toolkit.search.result import Measurer, MeasureResult, Status
from toolkit.search.strategies import get_strategy
from toolkit.search.strategy import Strategy
from toolkit.search.structure import structure_key
from toolkit.search.task_scheduler import GradientScheduler, SCHEDULERS, TaskState
from toolkit.space.task import Candidate, candidate, Space, Task
from toolkit.tuner.history import History, in_floats
from toolkit.tuner.wrong import BUILDS, reduce_wrong, Wrong

SMALL_SHARE = 0.003
"""Tasks below this share of every model's time get no trials: there is nothing to gain."""

TRANSFERS = 6
"""Candidates of near tasks that a task starts with, at most."""


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """How a run goes.  `trials`: in all, the defaults not counted; `budget_s`: seconds in all, the
    final comparison included; one of them is given.  `batch`: trials of a round."""

    trials: int | None = None
    budget_s: float | None = None
    seed: int = 0
    strategy: str = "evolutionary"
    scheduler: str = "gradient"
    batch: int = 16
    small_share: float = SMALL_SHARE

    def __post_init__(self) -> None:
        if self.trials is None and self.budget_s is None:
            raise NestlingError("a tuning run needs a number of trials or a budget of time.")
        for what, value in (("trials", self.trials), ("budget", self.budget_s)):
            if value is not None and value <= 0:
                raise NestlingError(f"the {what} of a tuning run must be positive, not {value:g}.")
        get_strategy(self.strategy)
        if self.scheduler not in SCHEDULERS:
            known = ", ".join(SCHEDULERS)
            raise NestlingError(f"scheduler {self.scheduler!r} is unknown.", hint=f"known: {known}")


@dataclass(slots=True)
class TaskProgress:
    """A task in a run.  `why_not`: why it gets no trials; empty if it may.

    `curve`: (trials of this task so far, best cost) after each round.  `wrong`: of the candidates
    whose results were wrong the one of fewest steps, and how it was wrong.
    """

    task: Task
    state: TaskState
    why_not: str = ""
    strategy: Strategy | None = None
    rng: random.Random = field(default_factory=random.Random)
    default: Candidate | None = None
    default_result: MeasureResult | None = None
    best: Candidate | None = None
    wrong: tuple[Candidate, str] | None = None
    trials: int = 0
    failures: dict[Status, int] = field(default_factory=dict)
    curve: list[tuple[int, float]] = field(default_factory=list)

    @property
    def default_cost(self) -> float | None:
        """The cost of the default schedule; None before it ran, and where it failed."""
        return self.default_result.cost if self.default_result is not None else None

    @property
    def cost(self) -> float | None:
        """The best cost so far."""
        return self.state.costs[-1] if self.state.costs else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a task: tuned against default, interleaved.  `ratio`: tuned / default cost."""

    task: Task
    chosen: Candidate
    ratio: float
    tuned: bool
    detail: str = ""


class Listener(Protocol):
    """What is told how a run goes."""

    def started(self, tuner: Tuner) -> None:
        """The tasks are known and their defaults measured."""

    def round(self, tuner: Tuner, progress: TaskProgress) -> None:
        """A round of a task ended."""

    def compared(self, tuner: Tuner, verdict: Verdict) -> None:
        """A task's verdict is known."""


class Quiet:
    """Listens to nothing."""

    def started(self, tuner: Tuner) -> None:
        """Say nothing."""

    def round(self, tuner: Tuner, progress: TaskProgress) -> None:
        """Say nothing."""

    def compared(self, tuner: Tuner, verdict: Verdict) -> None:
        """Say nothing."""


Told = Callable[["TaskProgress", Candidate, MeasureResult], MeasureResult]
"""What the search is told of a result: other costs where the objective is not time alone."""

Compare = Callable[[Task, Sequence[Candidate]], list[float]]
"""Times candidates interleaved; returns the cost of each, relative to the first."""


def model_tasks(models: Mapping[str, Compiled]) -> tuple[list[Task], dict[str, dict[str, float]]]:
    """Return the tasks of compiled models, equal ones once, and their calls: key -> model -> n.

    The models are compiled with their default schedules.
    """
    found: dict[str, Task] = {}
    weights: dict[str, dict[str, float]] = {}
    for name, compiled in models.items():
        program, target = compiled.program, compiled.target
        for task in tasks_of(compiled.graph, compiled.model.ops, program, target):
            found.setdefault(task.key, task)
            share = weights.setdefault(task.key, {})
            share[name] = share.get(name, 0.0) + task.weight
    tasks = [
        Task(t.func, t.target, t.inplace, sum(weights[k].values()), t.nodes, t.scratch_limit_bytes)
        for k, t in found.items()
    ]
    return tasks, weights


def operations_of(task: Task) -> float:
    """Return the arithmetic operations of one call; a multiply-add counts as two."""
    total = 0.0
    for statement in describe(task.func):
        runs = 1.0
        for extent, _, _ in statement.loops:
            runs *= extent
        fma, *others = statement.body.ops
        total += runs * (2 * fma + sum(others))
    return total


def default_candidate(task: Task) -> Candidate:
    """Return the default schedule of a task as a candidate: a sketch without holes."""
    trace: Sketch = default_trace(task.func, task.target.isa)
    return candidate(task, trace, {}, origin="default")


class Tuner:
    """One run over tasks.

    `weights`: calls per inference of each task key, by model.  `goal`: makes what is minimised,
    given the latency of each model with default schedules.  `peak`: operations of float32 per unit
    of cost that the core can do at best, if known.  `told`: changes the results that the search
    learns from; the records keep them as they are.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        weights: Mapping[str, Mapping[str, float]],
        space: Space,
        measurer: Measurer,
        records: Records,
        run: Run,
        settings: TuneSettings,
        *,
        goal: Callable[[Mapping[str, float]], Goal] = lambda latencies: sum_goal(),
        model: BoostedTrees | None = None,
        validate: Validate | None = None,
        listener: Listener | None = None,
        told: Told | None = None,
        peak: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.peak = peak
        self.told = told
        self.space, self.measurer, self.records, self.run = space, measurer, records, run
        self.settings = settings
        self.make_goal = goal
        self.model = model if model is not None else BoostedTrees(seed=settings.seed)
        self.validate = validate
        self.listener: Listener = listener or Quiet()
        self.clock = clock
        self.started_at = clock()
        self.history = History(run)
        self.spent_s = self.history.elapsed_s
        """Seconds of earlier parts of this run."""
        self.search_s = 0.0
        self.measure_s = 0.0
        self.rounds = 0
        self.trials = 0
        self.ended = ""
        """Why the search ended with budget left."""
        self.tasks = [
            TaskProgress(
                t, TaskState(t.key, weights[t.key], operations_of(t), structure_key(t.func))
            )
            for t in tasks
        ]
        self.by_key = {p.task.key: p for p in self.tasks}
        self.scheduler: GradientScheduler | None = None

    # Time and budget

    @property
    def elapsed_s(self) -> float:
        """Seconds of this run, earlier parts included."""
        return self.spent_s + self.clock() - self.started_at

    def left(self) -> float:
        """Return the share of the budget that is left, at most 1."""
        shares = []
        if self.settings.trials is not None:
            shares.append(1 - self.trials / self.settings.trials)
        if self.settings.budget_s is not None:
            shares.append(1 - (self.elapsed_s + self.reserve_s) / self.settings.budget_s)
        return max(min(shares), 0.0)

    @property
    def reserve_s(self) -> float:
        """Seconds kept for the comparison at the end: two builds of the model, and turns of each
        kernel; of a short budget a third."""
        return min((self.settings.budget_s or 0.0) / 3, 2.0 + 0.7 * len(self.tasks))

    def latencies(self) -> dict[str, float]:
        """Return the sum of the best costs of each model's kernels."""
        result: dict[str, float] = {}
        for p in self.tasks:
            for model, weight in p.state.weights.items():
                result[model] = result.get(model, 0.0) + weight * (p.cost or 0.0)
        return result

    def percent_of_peak(self, progress: TaskProgress) -> float | None:
        """Return the arithmetic of a task's best schedule, in percent of what the core can do."""
        if not self.peak or not progress.cost or not in_floats(progress.task.func):
            return None
        return 100 * progress.state.operations / progress.cost / self.peak

    # A run

    def search(self) -> None:
        """Measure the defaults, take up what was kept, and spend the budget."""
        self._measure_defaults()
        self._open_tasks()
        self._take_up()
        self.listener.started(self)
        while self.left() > 0:
            assert self.scheduler is not None
            self._seed(self.scheduler.rng, "scheduler")
            state = self.scheduler.pick()
            if state is None:
                self.ended = self._why_ended()
                break
            self._round(self.by_key[state.key])

    def _why_ended(self) -> str:
        """Return why no task can get a round, for people."""
        states = [p.state for p in self.tasks if p.strategy is not None]
        if not states:
            return "no kernel is worth a trial"
        dead = sum(state.dead for state in states)
        exhausted = f"every schedule of the space {self.space.name!r} that is legal was tried"
        if dead == len(states):
            return exhausted
        converged = f"{len(states) - dead} of {len(states)} kernels gained nothing any more"
        return f"{converged}; of the others, {exhausted}" if dead else converged

    def _seed(self, rng: random.Random, what: str) -> None:
        """Make what follows depend on the seed of the run and the number of the round alone."""
        rng.seed(f"{self.settings.seed}/{what}/{self.rounds}")

    def _measure_defaults(self) -> None:
        """Measure where each task starts from, in batches, unless this run did before."""
        missing = []
        for progress in self.tasks:
            progress.default = progress.best = default_candidate(progress.task)
            kept = self.records.trials(progress.task.key, unit=self.measurer.unit, run=self.run.uid)
            done = [t for t in kept if t.candidate_key == progress.default.key]
            if done and done[0].result.status is Status.OK:
                progress.default_result = done[0].result
            else:
                missing.append(progress)
        size = self.settings.batch
        for batch in (missing[i : i + size] for i in range(0, len(missing), size)):
            defaults = [p.default for p in batch if p.default is not None]
            results = self._measured(defaults)
            self.records.add(
                list(zip(defaults, results, strict=True)), run=self.run, state=self._state()
            )
            for progress, result in zip(batch, results, strict=True):
                progress.default_result = result
                if result.status is not Status.OK:
                    progress.why_not = f"its default schedule: {result.status}, {result.detail}"
                if result.status is Status.WRONG_RESULT and progress.default is not None:
                    progress.wrong = progress.default, result.detail

    def _measured(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        start = self.clock()
        results = self.measurer.measure(candidates)
        self.measure_s += self.clock() - start
        return results

    def _state(self) -> dict[str, Any]:
        return self.history.state(self.elapsed_s)

    def _open_tasks(self) -> None:
        """Make a strategy for each task that is worth trials."""
        for p in self.tasks:
            if p.default_cost is not None:
                p.state.costs.append(p.default_cost)
        totals = self.latencies()
        for p in self.tasks:
            if p.why_not or p.default_cost is None:
                continue
            share = max(w * p.default_cost / totals[m] for m, w in p.state.weights.items())
            if share < self.settings.small_share:
                p.why_not = f"{share:.1%} of the time"
                continue
            if not p.state.operations:
                p.why_not = "it only moves data"
                continue
            start = self.clock()
            sketches = self.space.sketches(p.task)
            if sketches:
                make = get_strategy(self.settings.strategy)
                p.strategy = make(p.task, sketches, p.rng, self.model, self.validate)
                assert p.default is not None
                # Sizes are relative to the default's, so of it only the cost counts.
                p.strategy.tell([(p.default, self._default_result(p))])
            else:
                p.why_not = f"no sketch of the space {self.space.name!r} fits it"
            self.search_s += self.clock() - start
        self.scheduler = SCHEDULERS[self.settings.scheduler](
            [p.state for p in self.tasks if p.strategy is not None],
            self.make_goal(totals),
            random.Random(),
        )
        kept: dict[str, Any] = {}
        for p in self.tasks:
            kept |= self.history.task(
                p.task.key, weights=dict(p.state.weights), operations=p.state.operations,
                why_not=p.why_not,
            )  # fmt: skip
        self.records.add([], run=self.run, state=self._state(), task_states=kept)

    def _default_result(self, progress: TaskProgress) -> MeasureResult:
        assert progress.default_cost is not None
        return MeasureResult(Status.OK, self.measurer.unit, (progress.default_cost,))

    def _take_up(self) -> None:
        """Tell again what an earlier part of this run, which was killed, measured."""
        rounds: dict[int, list[tuple[Candidate, MeasureResult]]] = {}
        for p in self.tasks:
            kept = self.records.trials(p.task.key, unit=self.measurer.unit, run=self.run.uid)
            for trial in kept:
                if trial.round > 0 and p.strategy is not None:
                    pair = (rebuild(p.task, trial), trial.result)
                    rounds.setdefault(trial.round, []).append(pair)
        for number in sorted(rounds):
            pairs = rounds[number]
            self.rounds = number
            rounds[number] = self._learn(self.by_key[pairs[0][0].task.key], pairs)
        defaults = [
            (p.default, self._default_result(p))
            for p in self.tasks
            if p.strategy is not None and p.default is not None
        ]
        self.model.update([*defaults, *(pair for n in sorted(rounds) for pair in rounds[n])])

    def _round(self, progress: TaskProgress) -> None:
        """Ask for a batch, measure it, keep it, learn from it."""
        assert progress.strategy is not None
        self.rounds += 1
        start = self.clock()
        self._seed(progress.rng, progress.task.key)
        size = self.settings.batch
        if self.settings.trials is not None:
            size = min(size, self.settings.trials - self.trials)
        batch = self._transferred(progress, size) if not progress.state.rounds else []
        known = {c.key for c in batch}  # the strategy has not been told of them
        with paused_collector():
            asked = progress.strategy.ask(size - len(batch))
        batch += [c for c in asked if c.key not in known]
        scores = self.model.predict(progress.task, batch) if self.model.trained else None
        self.search_s += self.clock() - start
        if not batch:
            progress.state.dead = True
            return
        results = self._measured(batch)
        pairs = list(zip(batch, results, strict=True))
        kept = self.history.round(
            progress.task.key, self.rounds, scores, results,
            search_s=self.search_s, measure_s=self.measure_s,
        )  # fmt: skip
        self.records.add(
            pairs, run=self.run, round=self.rounds, state=self._state(), task_states=kept
        )
        start = self.clock()
        self.model.update(self._learn(progress, pairs))
        self.search_s += self.clock() - start
        self.listener.round(self, progress)

    def _transferred(self, progress: TaskProgress, limit: int) -> list[Candidate]:
        """Return what was good for near tasks, projected on this one."""
        found: dict[str, Candidate] = {}
        sources = (self.records, ShippedPacks())
        for sketch, decisions in transfer(sources, progress.task, TRANSFERS):
            try:
                c = candidate(progress.task, sketch, decisions, origin="record")
            except ScheduleError:
                continue
            if progress.default is not None and c.key != progress.default.key:
                if self.validate is None or self.validate(c) is None:
                    found.setdefault(c.key, c)
        return list(found.values())[:limit]

    def _learn(
        self, progress: TaskProgress, pairs: Sequence[tuple[Candidate, MeasureResult]]
    ) -> list[tuple[Candidate, MeasureResult]]:
        """Update a task from its results, new or kept; return what the search is told of them."""
        assert progress.strategy is not None
        told = list(pairs)
        if self.told is not None:
            told = [(c, self.told(progress, c, r)) for c, r in pairs]
        progress.strategy.tell(told)
        best = progress.state.cost
        for c, r in pairs:
            self.trials += 1
            progress.trials += 1
            if r.status is not Status.OK:
                progress.failures[r.status] = progress.failures.get(r.status, 0) + 1
                wrong = progress.wrong
                fewest = wrong is None or len(c.trace) < len(wrong[0].trace)
                if r.status is Status.WRONG_RESULT and fewest:
                    progress.wrong = c, r.detail
            elif r.cost is not None and r.cost < best and r.confident:
                best, progress.best = r.cost, c
        progress.state.costs.append(best)
        progress.curve.append((progress.trials, best))
        return told

    # The end

    def reduce_wrong(self, builds: int = BUILDS) -> list[Wrong]:
        """Reduce a wrong result of each task to its smallest trace, by so many builds in all, and
        note it for the records."""
        result = []
        for p in self.tasks:
            if p.wrong is not None:
                wrong = reduce_wrong(self.measurer, *p.wrong, builds=builds)
                builds -= wrong.builds
                self.history.task(p.task.key, wrong=wrong.plain())
                result.append(wrong)
        return result

    def verdicts(self, compare: Compare) -> list[Verdict]:
        """Compare tuned and default of each task, interleaved, and keep the better one."""
        result = []
        for p in self.tasks:
            if p.best is None or p.default is None or p.default_cost is None:
                continue
            verdict = Verdict(p.task, p.default, 1.0, False, p.why_not)
            if p.best.key != p.default.key:
                ratio = compare(p.task, [p.default, p.best])[1]
                if ratio < 1.0:
                    verdict = Verdict(p.task, p.best, ratio, True)
                else:
                    detail = f"the best that was tried takes {ratio:.3f} of its time"
                    verdict = Verdict(p.task, p.default, ratio, False, detail)
            unit = self.measurer.unit
            self.records.choose(p.task.key, unit, verdict.chosen.key, verdict.detail)
            self.listener.compared(self, verdict)
            result.append(verdict)
        return result
