"""The database of trials: one SQLite file that keeps every trial, failures too.

A batch of trials and the state of its run are kept in one piece, so that a run that was killed goes
on from the last whole batch.  Costs of different units or targets are never compared: a task has
one target, and every question about costs names a unit.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from toolkit.errors import NestlingError, RecordsError
from toolkit.ir.loop import PrimFunc
from toolkit.ir.plain import func_from_json, func_to_json
from toolkit.schedule.default import apply_trace
from toolkit.schedule.hole import Decisions, replay, Sketch
from toolkit.schedule.steps.base import Step
from toolkit.schedule.trace import trace_from_json, trace_to_json
from toolkit.search.database import Database
from toolkit.search.result import CYCLES, INSTRUCTIONS, MeasureResult, SECONDS, Status
from toolkit.search.structure import distance, extents, structure_key
from toolkit.space.task import Candidate, stable_hash, Task

UNITS = (SECONDS, CYCLES, INSTRUCTIONS)
"""All units; where a task was measured in several, the first one measured counts."""

DEFAULT = "default"
"""The `origin` of the candidate that a task starts from."""


def to_text(value: Any) -> str:
    """Return plain values as canonical JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def tuples(value: Any) -> Any:
    """Return what JSON read, with tuples for lists."""
    return tuple(tuples(v) for v in value) if isinstance(value, list) else value


def _list(text: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] = tuples(json.loads(text))
    return found


def function_key(func: PrimFunc) -> str:
    """Return the key of a function, whatever its target and place in a model."""
    return text_key(str(func.with_(name="k")))


def text_key(text: str) -> str:
    """Return the key of the function whose text with the name 'k' is given (`func_key`)."""
    return stable_hash(text)


@dataclass(frozen=True)
class Trial:
    """One trial as it is kept.  `cost` is in `result.unit`; None for a failure."""

    id: int
    task_key: str
    candidate_key: str
    result: MeasureResult
    origin: str
    run: str | None
    round: int
    time: float
    sketch_text: str = field(repr=False)
    decisions_text: str = field(repr=False)
    trace_text: str = field(repr=False)

    @property
    def cost(self) -> float | None:
        """The median of the samples."""
        return self.result.cost

    @cached_property
    def sketch(self) -> Sketch:
        """The sketch; raises `NestlingError` naming a step that this nestling does not know."""
        return trace_from_json(json.loads(self.sketch_text))

    @cached_property
    def decisions(self) -> dict[str, Any]:
        """The decisions as replay took them."""
        return {k: tuples(v) for k, v in json.loads(self.decisions_text).items()}

    @cached_property
    def trace(self) -> tuple[Step, ...]:
        """The steps; raises as `sketch` does."""
        return trace_from_json(json.loads(self.trace_text))


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task as it is kept.  `trials`, `failures`: how many; `units`: of successful trials."""

    key: str
    func_key: str
    kind: str
    target: str
    name: str
    weight: float
    nodes: tuple[str, ...]
    inplace: tuple[tuple[str, str], ...]
    extents: tuple[int, ...]
    text: str
    func_text: str | None = field(repr=False)
    trials: int
    failures: int
    units: tuple[str, ...]

    def func(self) -> PrimFunc:
        """Rebuild the base function; raise `NestlingError` where it calls C functions."""
        if self.func_text is None:
            raise RecordsError(f"task {self.key} ({self.name}) calls C functions: it has no JSON.")
        return func_from_json(json.loads(self.func_text))


@dataclass(frozen=True, slots=True)
class Run:
    """One `tune`.  `state` and `tasks` (by task key) are what its last batch left for a resume:
    plain values, with lists for tuples (`tuples` turns them back)."""

    uid: str
    command: str
    seed: int
    models: tuple[str, ...]
    settings: Mapping[str, Any]
    started: float
    finished: float | None = None
    state: Any = None
    tasks: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """The trace that records hold for a function; `trace_text` None: the default is the best.

    `where`: the file it comes from.
    """

    func_key: str
    target: str
    unit: str
    trace_text: str | None
    where: str

    @property
    def trace(self) -> tuple[Step, ...] | None:
        """The steps; raises `NestlingError` naming a step that this nestling does not know."""
        return None if self.trace_text is None else trace_from_json(json.loads(self.trace_text))


class Records(Database):
    """The trials, tasks, runs and verdicts in the database at `path`.  A context manager.

    Made if it is not there unless `readonly`; see `Database` for what is refused.
    """

    # -- trials ------------------------------------------------------------------------------

    def add(
        self,
        results: Sequence[tuple[Candidate, MeasureResult]],
        *,
        run: Run | None = None,
        round: int = 0,
        state: Any = None,
        task_states: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep a batch of trials, and with them what the run needs to go on after it: in one piece.

        `state`: plain values, of the whole run; `task_states`: of tasks, by key.  Those not given
        stay as they were.
        """
        now = self._clock()
        with self.transaction() as db:
            for task in {c.task.key: c.task for c, _ in results}.values():
                keep_task(db, task_row(task), update=True)
            for candidate, result in results:
                keep_trial(
                    db,
                    trial_row(
                        candidate.task.key,
                        candidate.key,
                        result,
                        candidate.origin,
                        run.uid if run else None,
                        round,
                        now,
                    ),
                    to_text(trace_to_json(candidate.sketch)),
                    to_text(candidate.decisions),
                    to_text(trace_to_json(candidate.trace)),
                )
            if run is not None:
                _keep_state(db, run, state, task_states or {})

    def trials(
        self,
        task_key: str | None = None,
        *,
        unit: str | None = None,
        run: str | None = None,
        status: Status | None = None,
    ) -> list[Trial]:
        """Return trials in the order in which they were told, failures too."""
        wanted = {"task": task_key, "unit": unit, "run": run, "status": status and str(status)}
        given = {k: v for k, v in wanted.items() if v is not None}
        where = " AND ".join(f"{k} = ?" for k in given) or "1"
        return self._trials(f"SELECT id, id AS place FROM trials WHERE {where}", *given.values())

    def _trials(self, ids: str, *values: Any) -> list[Trial]:
        """Return the trials that a query names by `id`, in the order of its `place`."""
        rows = self.rows(
            "SELECT t.id, t.task, t.candidate, t.status, t.unit, t.samples, t.flash_bytes, "
            "t.ram_bytes, t.detail, t.device, t.confident, t.origin, t.run, t.round, t.time, "
            f"s.steps, c.decisions, c.trace FROM ({ids}) AS wanted "
            "JOIN trials t ON t.id = wanted.id "
            "JOIN candidates c ON c.task = t.task AND c.key = t.candidate "
            "JOIN sketches s ON s.key = c.sketch ORDER BY wanted.place",
            *values,
        )
        return [
            Trial(
                row[0], row[1], row[2],
                MeasureResult(
                    Status(row[3]), row[4], tuple(json.loads(row[5])), row[6], row[7], row[8],
                    row[9], bool(row[10]),
                ),
                *row[11:],
            )
            for row in rows
        ]  # fmt: skip

    def standing(
        self,
        task_key: str,
        unit: str,
        *,
        device: str | None = None,
        candidate_key: str | None = None,
        limit: int = -1,
    ) -> list[Trial]:
        """Return one successful trial a candidate, fastest first: its newest confident one.

        The newest, since what was measured once more was so because it looked good, and the first
        measurement of such is often luck.  Those measured without confidence come last; those that
        crashed or answered wrongly since are left out.
        """
        wanted = {"task": task_key, "unit": unit, "device": device, "candidate": candidate_key}
        given = {k: v for k, v in wanted.items() if v is not None}
        where = " AND ".join(f"t.{k} = ?" for k in given)
        return self._trials(
            "SELECT id, row_number() OVER (ORDER BY confident DESC, cost, id) AS place FROM ("
            "SELECT id, confident, cost, row_number() OVER (PARTITION BY candidate "
            "ORDER BY confident DESC, time DESC, id DESC) AS age FROM trials t "
            f"WHERE {where} AND t.status = 'ok' AND t.cost IS NOT NULL AND NOT EXISTS ("
            "SELECT 1 FROM trials w WHERE w.task = t.task AND w.candidate = t.candidate AND "
            "w.status IN ('crashed', 'wrong_result') AND (w.time, w.id) > (t.time, t.id))) "
            "WHERE age = 1 ORDER BY place LIMIT ?",
            *given.values(),
            limit,
        )

    def best(
        self,
        task_key: str,
        unit: str,
        *,
        device: str | None = None,
        ram_bytes: int | None = None,
        flash_bytes: int | None = None,
    ) -> Trial | None:
        """Return the fastest trial of a task within limits, of those measured with confidence."""

        def fits(found: int | None, limit: int | None) -> bool:
            return limit is None or (found is not None and found <= limit)

        limit = 1 if ram_bytes is None and flash_bytes is None else -1
        for trial in self.standing(task_key, unit, device=device, limit=limit):
            result = trial.result
            small = fits(result.ram_bytes, ram_bytes) and fits(result.flash_bytes, flash_bytes)
            if result.confident and small:
                return trial
        return None

    def front(self, task_key: str, unit: str) -> list[Trial]:
        """Return the trials that no other beats in cost, RAM and flash at once, fastest first."""
        kept: list[tuple[tuple[Any, ...], Trial]] = []
        for trial in self.standing(task_key, unit):
            sizes = (trial.result.ram_bytes, trial.result.flash_bytes)
            # A size that is not known is no better than any that is.
            point = (trial.cost, *((size is None, size or 0) for size in sizes))
            if not trial.result.confident or any(_beats(p, point) for p, _ in kept):
                continue
            kept = [(p, t) for p, t in kept if not _beats(point, p)]
            kept.append((point, trial))
        return [t for _, t in kept]

    def default(self, task_key: str, unit: str) -> Trial | None:
        """Return the trial of what the task started from, of the newest if it changed."""
        rows = self.rows(
            "SELECT candidate FROM trials WHERE task = ? AND unit = ? AND origin = ? "
            "AND status = 'ok' ORDER BY time DESC, id DESC LIMIT 1",
            task_key, unit, DEFAULT,
        )  # fmt: skip
        return next((self._standing_of(task_key, unit, key) for (key,) in rows), None)

    def _standing_of(self, task_key: str, unit: str, candidate_key: str) -> Trial | None:
        return next(iter(self.standing(task_key, unit, candidate_key=candidate_key)), None)

    def choose(self, task_key: str, unit: str, candidate_key: str, detail: str = "") -> None:
        """Keep a verdict: of what was compared at the end, this candidate is to be compiled.

        It stands before any cost of a single trial until the next verdict.
        """
        with self.transaction() as db:
            db.execute("DELETE FROM choices WHERE task = ? AND unit = ?", (task_key, unit))
            keep_choice(db, (task_key, unit, candidate_key, detail, self._clock()))

    def chosen(self, task_key: str, unit: str) -> Trial | None:
        """Return the trial that stands for a task: of the last verdict, else the best."""
        rows = self.rows(
            "SELECT candidate FROM choices WHERE task = ? AND unit = ?", task_key, unit
        )
        found = [self._standing_of(task_key, unit, key) for (key,) in rows]
        return next((t for t in found if t is not None), None) or self.best(task_key, unit)

    def results(
        self, task: Task, *, unit: str | None = None, run: str | None = None
    ) -> tuple[list[tuple[Candidate, MeasureResult]], list[str]]:
        """Rebuild the trials of a task, as `Strategy.tell` and `CostModel.update` take them.

        Returns them in the order told, and a line for each that this nestling cannot rebuild.
        """
        rebuilt: dict[str, Candidate] = {}
        pairs, problems = [], []
        for trial in self.trials(task.key, unit=unit, run=run):
            if trial.candidate_key not in rebuilt:
                try:
                    rebuilt[trial.candidate_key] = rebuild(task, trial)
                except NestlingError as error:
                    problems.append(f"trial {trial.id} of {task.name}: {error.what}")
                    continue
            pairs.append((rebuilt[trial.candidate_key], trial.result))
        return pairs, problems

    # -- tasks -------------------------------------------------------------------------------

    def tasks(self, *, target: str | None = None) -> list[TaskRecord]:
        """Return all tasks, by name."""
        return self._tasks({"target": target})

    def task(self, key: str) -> TaskRecord | None:
        """Return a task."""
        return next(iter(self._tasks({"key": key})), None)

    def _tasks(self, wanted: Mapping[str, Any]) -> list[TaskRecord]:
        given = {k: v for k, v in wanted.items() if v is not None}
        where = " AND ".join(f"{k} = ?" for k in given) or "1"
        result = []
        for (
            key, func_key, kind, target, name, weight, nodes, inplace, sizes, text, func,
        ) in self.rows(
            "SELECT key, func_key, kind, target, name, weight, nodes, inplace, extents, text, "
            f"func FROM tasks WHERE {where} ORDER BY name, key",
            *given.values(),
        ):  # fmt: skip
            counts = self.rows(
                "SELECT unit, count(*), sum(status != 'ok') FROM trials WHERE task = ? "
                "GROUP BY unit", key,
            )  # fmt: skip
            measured = {unit for unit, n, failed in counts if n > failed}
            result.append(
                TaskRecord(
                    key, func_key, kind, target, name, weight, _list(nodes),
                    _list(inplace), _list(sizes), text, func,
                    sum(n for _, n, _ in counts), sum(n for _, _, n in counts),
                    tuple(u for u in UNITS if u in measured),
                )
            )  # fmt: skip
        return result

    def near(self, task: Task, limit: int = 4) -> list[TaskRecord]:
        """Return tasks of the same structure and target, nearest extents first, itself left out.

        A task of the same function with other storage shared is at distance 0.
        """
        own = extents(task.func)
        found = self._tasks({"kind": structure_key(task.func), "target": task.target.name})
        others = [t for t in found if t.key != task.key]
        return sorted(others, key=lambda t: (distance(t.extents, own), t.key))[:limit]

    def transfer(self, task: Task, limit: int = 8) -> list[tuple[Sketch, Decisions]]:
        """Return what was good for near tasks: sketches, and decisions to project on this task.

        The chosen one of each near task first, then the seconds, and so on; where a near task
        started from is no news.  Those whose steps this nestling does not know are left out.
        """
        columns = []
        for record in self.near(task):
            for unit in record.units[:1]:
                started = self.default(record.key, unit)
                rows = [t for t in self.standing(record.key, unit) if t.result.confident]
                first = self.chosen(record.key, unit)
                if first in rows:
                    rows = [first, *(t for t in rows if t != first)]
                known = started and started.candidate_key
                columns.append([t for t in rows if t.candidate_key != known])
        found: list[tuple[Sketch, Decisions]] = []
        for place in range(limit):
            for trial in (c[place] for c in columns if place < len(c)):
                with suppress(NestlingError):
                    found.append((trial.sketch, trial.decisions))
        return found[:limit]

    def find(self, func_keys: Sequence[str], target: str) -> dict[str, Choice]:
        """Return what is to be compiled for functions, by their keys; none for unknown ones."""
        result = {}
        for func_key in func_keys:
            trial = self.winner(func_key, target)
            if trial is not None:
                text = None if self.is_default(trial) else trial.trace_text
                unit = trial.result.unit
                result[func_key] = Choice(func_key, target, unit, text, str(self.path))
        return result

    def is_default(self, trial: Trial) -> bool:
        """Tell whether a trial is one of what its task started from, whoever proposed it."""
        started = self.default(trial.task_key, trial.result.unit)
        return started is not None and started.candidate_key == trial.candidate_key

    def winner(self, func_key: str, target: str) -> Trial | None:
        """Return the trial that stands for a function.

        Functions that differ in the storage they share were measured alike and count together.
        """
        keys = self.rows(
            "SELECT key FROM tasks WHERE func_key = ? AND target = ?", func_key, target
        )
        for unit in UNITS:
            trial = self._chosen_of([key for (key,) in keys], unit)
            if trial is not None:
                return trial
        return None

    def _chosen_of(self, task_keys: Sequence[str], unit: str) -> Trial | None:
        """Return the trial that stands for several tasks: of the newest verdict, else the best."""
        verdicts = [
            (when, key)
            for key in task_keys
            for (when,) in self.rows(
                "SELECT time FROM choices WHERE task = ? AND unit = ?", key, unit
            )
        ]
        if verdicts:
            return self.chosen(max(verdicts)[1], unit)
        found = [t for key in task_keys if (t := self.best(key, unit)) is not None]
        return min(found, key=lambda t: (t.cost, t.id), default=None)

    # -- runs --------------------------------------------------------------------------------

    def start_run(
        self, command: str, *, seed: int, models: Sequence[str], settings: Mapping[str, Any]
    ) -> Run:
        """Keep that a run starts.  `models`: digests; `settings`: plain values that steer it."""
        now = self._clock()
        run = Run(uuid.uuid4().hex, command, seed, tuple(models), dict(settings), now)
        with self.transaction() as db:
            db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, NULL, ?, 'null')",
                (
                    run.uid, command, seed, to_text(list(models)), to_text(run.settings),
                    run.started, _this_process(),
                ),
            )  # fmt: skip
        return run

    def resume_run(
        self, *, seed: int, models: Sequence[str], settings: Mapping[str, Any]
    ) -> Run | None:
        """Take over the newest unfinished run of the same seed, models and settings, if any.

        A run whose process still lives is left to it.
        """
        with self.transaction() as db:
            rows = db.execute(
                "SELECT uid, owner FROM runs WHERE finished IS NULL AND seed = ? AND models = ? "
                "AND settings = ? ORDER BY started DESC, rowid DESC",
                (seed, to_text(list(models)), to_text(dict(settings))),
            ).fetchall()
            uid = next((u for u, o in rows if o == _this_process() or not _alive(o)), None)
            if uid is None:
                return None
            db.execute("UPDATE runs SET owner = ? WHERE uid = ?", (_this_process(), uid))
        return next(r for r in self.runs() if r.uid == uid)

    def finish_run(self, run: Run) -> None:
        """Keep that a run came to its end."""
        with self.transaction() as db:
            db.execute("UPDATE runs SET finished = ? WHERE uid = ?", (self._clock(), run.uid))

    def runs(self) -> list[Run]:
        """Return all runs, oldest first."""
        result = []
        for uid, command, seed, models, settings, started, finished, state in self.rows(
            "SELECT uid, command, seed, models, settings, started, finished, state FROM runs "
            "ORDER BY started, uid"
        ):
            states = self.rows("SELECT task, state FROM run_tasks WHERE run = ?", uid)
            result.append(
                Run(
                    uid, command, seed, tuple(json.loads(models)), json.loads(settings), started,
                    finished, json.loads(state), {t: json.loads(text) for t, text in states},
                )
            )  # fmt: skip
        return result


def rebuild(task: Task, trial: Trial) -> Candidate:
    """Return the candidate of a trial of this task; raise `NestlingError` where it is gone.

    Where steps or domains have changed since, so that the decisions give another trace, the trace
    itself is the sketch.
    """
    try:
        done = replay(task.func, trial.sketch, trial.decisions)
        if trace_to_json(done.trace) == json.loads(trial.trace_text):
            return Candidate(
                task, trial.sketch, done.decisions, done.func, done.trace, done.log_prior,
                trial.origin,
            )  # fmt: skip
    except NestlingError:
        pass  # the sketch is from another version; its trace may still be legal
    func = apply_trace(task.func, trial.trace)
    return Candidate(task, trial.trace, {}, func, trial.trace, 0.0, trial.origin)


def _beats(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Tell whether a point is nowhere worse than another, and differs."""
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


def task_row(task: Task) -> tuple[Any, ...]:
    """Return the row of a task."""
    plain = func_to_json(task.func.with_(name="k"))
    return (
        task.key, function_key(task.func), structure_key(task.func), task.target.name, task.name,
        task.weight, to_text(list(task.nodes)), to_text([list(p) for p in task.inplace]),
        to_text(list(extents(task.func))), str(task.func.with_(name="k")),
        None if plain is None else to_text(plain),
    )  # fmt: skip


def trial_row(
    task_key: str,
    candidate_key: str,
    result: MeasureResult,
    origin: str,
    run: str | None,
    round: int,
    now: float,
) -> tuple[Any, ...]:
    """Return the row of a trial, without its digest."""
    return (
        task_key, candidate_key, str(result.status), result.unit,
        to_text(list(result.samples)), result.cost, result.flash_bytes, result.ram_bytes,
        result.detail, result.device, int(result.confident), origin, run, round, now,
    )  # fmt: skip


def keep_task(db: sqlite3.Connection, row: tuple[Any, ...], *, update: bool) -> bool:
    """Insert a task unless it is there; `update`: then keep its newer name, weight and nodes."""
    new = db.execute(
        f"INSERT OR IGNORE INTO tasks VALUES ({', '.join('?' * len(row))})", row
    ).rowcount
    if update and not new:
        db.execute(
            "UPDATE tasks SET name = ?, weight = ?, nodes = ? WHERE key = ?", (*row[4:7], row[0])
        )
    return bool(new)


def keep_trial(
    db: sqlite3.Connection, row: tuple[Any, ...], sketch: str, decisions: str, trace: str
) -> bool:
    """Insert a trial unless the very same one is there; tell whether it was new."""
    task_key, candidate_key = row[:2]
    sketch_key = stable_hash(sketch)
    db.execute("INSERT OR IGNORE INTO sketches VALUES (?, ?)", (sketch_key, sketch))
    db.execute(
        "INSERT OR IGNORE INTO candidates VALUES (?, ?, ?, ?, ?)",
        (task_key, candidate_key, sketch_key, decisions, trace),
    )
    marks = ", ".join("?" * len(row))
    found = db.execute(
        f"INSERT OR IGNORE INTO trials VALUES (NULL, ?, {marks})", (stable_hash(row), *row)
    )
    return bool(found.rowcount)


def keep_choice(db: sqlite3.Connection, row: tuple[str, str, str, str, float]) -> bool:
    """Insert a verdict, or put it in the place of an older one; tell whether it was new."""
    found = db.execute(
        "INSERT INTO choices VALUES (?, ?, ?, ?, ?) ON CONFLICT (task, unit) DO UPDATE SET "
        "candidate = excluded.candidate, detail = excluded.detail, time = excluded.time "
        "WHERE excluded.time > choices.time",
        row,
    )
    return bool(found.rowcount)


def _keep_state(
    db: sqlite3.Connection, run: Run, state: Any, task_states: Mapping[str, Any]
) -> None:
    if state is not None:
        db.execute("UPDATE runs SET state = ? WHERE uid = ?", (to_text(state), run.uid))
    for task_key, value in task_states.items():
        db.execute(
            "INSERT OR REPLACE INTO run_tasks VALUES (?, ?, ?)", (run.uid, task_key, to_text(value))
        )


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{_birth(os.getpid())}"


def _birth(pid: int) -> str:
    """Return when a process began, in the kernel's ticks: a number given anew is not mistaken."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _alive(owner: str) -> bool:
    """Tell whether the process that made a run still lives here; one of another host is gone."""
    host, _, rest = owner.partition(":")
    pid, _, birth = rest.partition(":")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _birth(int(pid)) == birth
