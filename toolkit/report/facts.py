"""What a database of trials says about one run of tuning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.errors import NestlingError, RecordsError
from toolkit.ir.loop import PrimFunc
from toolkit.measure.candidates.machine import Machine
from toolkit.search.records import DEFAULT, Records, Run, TaskRecord, Trial
from toolkit.search.result import SECONDS, Status
from toolkit.space.task import Task
from toolkit.targets.target import get_target
from toolkit.tuner.history import in_floats, RoundFacts, rounds_of
from toolkit.tuner.run import operations_of


@dataclass(frozen=True)
class TaskFacts:
    """A task in the run.

    `calls`: per inference, over all models.  `default`, `best`: the trials that the run started
    from and ended with, None where nothing worked; `best` is `default` where that stays.  `trials`:
    of the search; `failed`: those that did, the default's too.  `ratio`: tuned / default as
    measured in turns at the end, None where it was not.  `operations`: of one call, a multiply-add
    counted as two; `nbytes`: of its operands, each once; both 0 where the function is not known.
    `why_not`: why it got no trials, empty where it did.
    """

    record: TaskRecord
    func: PrimFunc | None
    calls: float
    default: Trial | None
    best: Trial | None
    trials: tuple[Trial, ...]
    failed: tuple[Trial, ...]
    rounds: tuple[RoundFacts, ...]
    operations: float
    nbytes: int
    floats: bool
    ratio: float | None
    detail: str
    why_not: str

    @property
    def tuned(self) -> bool:
        """Tell whether another schedule than the default stands."""
        return self.best is not None and (
            self.default is None or self.best.candidate_key != self.default.candidate_key
        )

    def weighted(self, trial: Trial | None) -> float:
        """Return the cost of all calls of an inference under a trial's schedule."""
        return self.calls * (trial.cost or 0.0) if trial is not None else 0.0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A whole model, with default and tuned schedules, measured in turns at the end."""

    name: str
    default: float
    tuned: float
    ratio: float
    kept: bool


@dataclass(frozen=True)
class RunFacts:
    """A run, or all trials of a database that names none.  `number`: of the run, from 1.

    `tasks`: heaviest first.  `others`: trials of the same run in other units, left out.
    `elapsed_s`, `search_s`, `measure_s`: None where the database does not say.
    """

    database: str
    run: Run | None
    number: int
    runs: int
    unit: str
    targets: tuple[str, ...]
    models: tuple[ModelFacts, ...]
    names: tuple[str, ...]
    machine: Machine | None
    tasks: tuple[TaskFacts, ...]
    trials: tuple[Trial, ...]
    others: int
    elapsed_s: float | None
    search_s: float | None
    measure_s: float | None
    statuses: Mapping[Status, int] = field(default_factory=dict)


def read_run(records: Records, number: int | None = None) -> RunFacts:
    """Read a run by its number, from 1, or the newest one that has trials.

    Raises `RecordsError` where there is none.
    """
    runs = records.runs()
    run = _chosen(records, runs, number)
    found = records.trials(run=run.uid if run else None)
    if not found:
        raise RecordsError(
            f"records {records.path}: they hold no trials{' of this run' if run else ''}.",
            hint="`nestling tune MODEL` makes some",
        )
    unit = str(run.settings["unit"]) if run and "unit" in run.settings else _common_unit(found)
    trials = [t for t in found if t.result.unit == unit]
    state = _mapping(run.state if run else None)
    tasks = [
        _task(records, record, run, [t for t in trials if t.task_key == record.key], unit)
        for record in records.tasks()
    ]
    tasks = [t for t in tasks if t.trials or t.failed or t.default is not None]
    tasks.sort(key=lambda t: (-t.weighted(t.default or t.best), t.record.key))
    rounds = [r for t in tasks for r in t.rounds]
    machine = state.get("machine")
    return RunFacts(
        database=records.path.name,
        run=run,
        number=runs.index(run) + 1 if run else 0,
        runs=len(runs),
        unit=unit,
        targets=tuple(sorted({t.record.target for t in tasks})),
        models=tuple(
            ModelFacts(m["name"], m["default"], m["tuned"], m["ratio"], m["kept"])
            for m in state.get("outcomes", [])
        ),
        names=tuple(state.get("models", [])),
        machine=Machine(machine["flops"], machine["bandwidth"]) if machine else None,
        tasks=tuple(tasks),
        trials=tuple(t for t in trials if not is_default(t)),
        others=len(found) - len(trials),
        elapsed_s=state.get("elapsed_s"),
        search_s=state.get("search_s", sum(r.search_s for r in rounds) if rounds else None),
        measure_s=state.get("measure_s", sum(r.measure_s for r in rounds) if rounds else None),
        statuses=Counter(t.result.status for t in trials if not is_default(t)),
    )


def is_default(trial: Trial) -> bool:
    """Tell whether a trial is the measurement that a task starts from."""
    return trial.origin == DEFAULT and trial.round == 0


def _chosen(records: Records, runs: Sequence[Run], number: int | None) -> Run | None:
    if number is None:
        return next((r for r in reversed(runs) if records.trials(run=r.uid)), None)
    if not 1 <= number <= len(runs):
        raise RecordsError(
            f"records {records.path}: there is no run {number}.",
            state=[f"run {i}: {r.command}" for i, r in enumerate(runs, 1)][-10:],
            hint=f"runs are numbered from 1 to {len(runs)}" if runs else "they hold no runs at all",
        )
    return runs[number - 1]


def _common_unit(trials: Sequence[Trial]) -> str:
    counts = Counter(t.result.unit for t in trials)
    return max(counts, key=lambda unit: (counts[unit], unit == SECONDS))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _task(
    records: Records, record: TaskRecord, run: Run | None, trials: Sequence[Trial], unit: str
) -> TaskFacts:
    kept = _mapping(run.tasks.get(record.key)) if run else {}
    func = _function(record)
    started = [t for t in trials if is_default(t) and t.cost is not None]
    default = started[-1] if started else (records.default(record.key, unit) if trials else None)
    return TaskFacts(
        record=record,
        func=func,
        calls=sum(kept["weights"].values()) if kept.get("weights") else record.weight,
        default=default,
        best=_best(records, record, kept, trials, default, unit),
        trials=tuple(t for t in trials if not is_default(t)),
        failed=tuple(t for t in trials if t.result.status is not Status.OK),
        rounds=tuple(rounds_of(kept)),
        operations=_operations(record, func),
        nbytes=sum(b.type.nbytes for b in (*func.inputs, *func.outputs)) if func else 0,
        floats=func is not None and in_floats(func),
        ratio=kept.get("ratio"),
        detail=kept.get("detail", ""),
        why_not=kept.get("why_not", ""),
    )


def _function(record: TaskRecord) -> PrimFunc | None:
    try:
        return record.func()
    except NestlingError:
        return None  # what calls C functions has no text to rebuild it from


def _operations(record: TaskRecord, func: PrimFunc | None) -> float:
    return operations_of(Task(func, get_target(record.target))) if func is not None else 0.0


def _best(
    records: Records,
    record: TaskRecord,
    kept: Mapping[str, Any],
    trials: Sequence[Trial],
    default: Trial | None,
    unit: str,
) -> Trial | None:
    """Return the trial that the run ended with: of its verdict, else the fastest so far."""
    own = {t.candidate_key: t for t in trials if t.cost is not None}
    verdict = kept.get("chosen")
    if verdict is None:
        standing = records.chosen(record.key, unit)
        verdict = standing.candidate_key if standing else None
    if verdict in own:
        return own[verdict]
    if default is not None and verdict == default.candidate_key:
        return default
    sure = [t for t in own.values() if t.result.confident]
    return min(sure, key=lambda t: t.cost or 0.0, default=default)
