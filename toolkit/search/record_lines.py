"""Records as lines of JSON: to move them, to merge them, and to make packs of them.

The first line is a header; each other one is a task, a run, a trial or a verdict.  Exporting what
was imported into an empty database gives the same bytes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from toolkit.errors import NestlingError, RecordsError
from toolkit.ir.plain import func_from_json
from toolkit.schedule.trace import trace_from_json
from toolkit.search.records import (
    keep_choice,
    keep_task,
    keep_trial,
    Records,
    text_key,
    to_text,
    trial_row,
)
from toolkit.search.result import MeasureResult, Status
from toolkit.search.structure import extents, structure_key
from toolkit.space.task import stable_hash

FORMAT = 1
_UNREADABLE = (
    AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
    sqlite3.InterfaceError, sqlite3.ProgrammingError,
)  # fmt: skip
HEADER = {"record": "nestling", "format": FORMAT}


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did.  `known`: trials that were there already.  `problems`: a line each."""

    added: int
    known: int
    problems: tuple[str, ...]


def export_lines(records: Records) -> Iterator[str]:
    """Yield everything that a database holds, in one state of it, a line each without its end."""
    with records.snapshot():
        yield to_text(HEADER)
        for task in records.tasks():
            yield to_text(
                {
                    "record": "task", "key": task.key, "target": task.target, "name": task.name,
                    "weight": task.weight, "nodes": task.nodes, "inplace": task.inplace,
                    "text": task.text, "func": task.func_text and json.loads(task.func_text),
                    "kind": task.kind, "extents": task.extents,
                }
            )  # fmt: skip
        for run in records.runs():
            yield to_text(
                {
                    "record": "run", "uid": run.uid, "command": run.command, "seed": run.seed,
                    "models": run.models, "settings": run.settings, "started": run.started,
                    "finished": run.finished, "state": run.state, "tasks": run.tasks,
                }
            )  # fmt: skip
        for trial in records.trials():
            result = trial.result
            yield to_text(
                {
                    "record": "trial", "task": trial.task_key, "status": result.status,
                    "unit": result.unit, "samples": result.samples,
                    "flash_bytes": result.flash_bytes, "ram_bytes": result.ram_bytes,
                    "detail": result.detail, "device": result.device,
                    "confident": result.confident, "origin": trial.origin, "run": trial.run,
                    "round": trial.round, "time": trial.time,
                    "sketch": json.loads(trial.sketch_text),
                    "decisions": json.loads(trial.decisions_text),
                    "trace": json.loads(trial.trace_text),
                }
            )  # fmt: skip
        for task_key, unit, candidate, detail, when in records.rows(
            "SELECT task, unit, candidate, detail, time FROM choices ORDER BY task, unit"
        ):
            yield to_text(
                {
                    "record": "choice", "task": task_key, "unit": unit, "candidate": candidate,
                    "detail": detail, "time": when,
                }
            )  # fmt: skip


def import_lines(records: Records, lines: Iterable[str], name: str) -> Imported:
    """Add what `export_lines` wrote, all in one piece; skip what is there already.

    A line that cannot be taken, as one with a step that this nestling does not know, is left out
    and reported.  A trial of whose sketch alone that is true is kept, and reported too: its trace
    can be used.  Raises `RecordsError` where the first line is not that of an export of ours;
    `name` stands for the lines in messages.
    """
    counts, problems = {True: 0, False: 0}, []
    numbered = enumerate(lines, 1)
    _check_header(next(numbered, (0, ""))[1], name)
    with records.transaction() as db:
        for number, line in numbered:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                take = _TAKERS.get(row["record"])
                if take is None:
                    raise NestlingError(f"a record of unknown kind {row['record']!r}.")
                new, note = take(db, row)
            except NestlingError as error:
                problems.append(f"line {number}: {error.what}")
            except _UNREADABLE as error:
                problems.append(f"line {number}: cannot be read: {type(error).__name__}: {error}.")
            except sqlite3.IntegrityError:
                problems.append(f"line {number}: its task or run is not among the lines before it.")
            else:
                if row["record"] == "trial":
                    counts[new] += 1
                if note:
                    problems.append(f"line {number}: {note}")
    return Imported(counts[True], counts[False], tuple(problems))


def merge(records: Records, other: Records) -> Imported:
    """Add what another database holds; skip what is there already."""
    return import_lines(records, export_lines(other), str(other.path))


def _check_header(line: str, name: str) -> None:
    try:
        header = json.loads(line)
        kind, version = header["record"], int(header["format"])
    except (KeyError, TypeError, ValueError):
        kind = version = None
    if kind != HEADER["record"]:
        raise RecordsError(
            f"{name}: is no export of records.", hint="nestling records export makes one"
        )
    if version is None or version > FORMAT:
        raise RecordsError(
            f"{name}: exported by a newer nestling (format {version}; this one reads {FORMAT})."
        )


_Taken = tuple[bool, str]
"""Whether a line was new, and what there is to say of it."""


def _take_task(db: sqlite3.Connection, row: dict[str, Any]) -> _Taken:
    inplace = [list(pair) for pair in row["inplace"]]
    key = stable_hash([row["text"], row["target"], inplace])
    if key != row["key"]:
        raise NestlingError(f"task {row['key']}: its key does not follow from what it holds.")
    kind, sizes, func_text = str(row["kind"]), tuple(row["extents"]), None
    if row["func"] is not None:
        func, func_text = func_from_json(row["func"]), to_text(row["func"])
        kind, sizes = structure_key(func), extents(func)
        if str(func) != row["text"]:
            raise NestlingError(f"task {key}: its function is not the one of its text.")
    values = (
        key, text_key(row["text"]), kind, row["target"], row["name"], float(row["weight"]),
        to_text(row["nodes"]), to_text(inplace), to_text(sizes), row["text"], func_text,
    )  # fmt: skip
    return keep_task(db, values, update=False), ""


def _take_run(db: sqlite3.Connection, row: dict[str, Any]) -> _Taken:
    values = (
        row["uid"], row["command"], int(row["seed"]), to_text(row["models"]),
        to_text(row["settings"]), row["started"], row["finished"], "", to_text(row["state"]),
    )  # fmt: skip
    new = db.execute("INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    if not new.rowcount:
        return False, ""
    db.executemany(
        "INSERT INTO run_tasks VALUES (?, ?, ?)",
        [(row["uid"], key, to_text(state)) for key, state in row["tasks"].items()],
    )
    return True, ""


def _take_trial(db: sqlite3.Connection, row: dict[str, Any]) -> _Taken:
    trace_from_json(row["trace"])
    note = ""
    try:
        trace_from_json(row["sketch"])
    except NestlingError as error:
        note = f"kept, but nothing can start from its sketch: {error.what}"
    result = MeasureResult(
        Status(row["status"]), row["unit"], tuple(map(float, row["samples"])), row["flash_bytes"],
        row["ram_bytes"], row["detail"], row["device"], bool(row["confident"]),
    )  # fmt: skip
    values = trial_row(
        row["task"], stable_hash(row["trace"]), result, row["origin"], row["run"],
        int(row["round"]), float(row["time"]),
    )  # fmt: skip
    texts = [to_text(row[name]) for name in ("sketch", "decisions", "trace")]
    return keep_trial(db, values, *texts), note


def _take_choice(db: sqlite3.Connection, row: dict[str, Any]) -> _Taken:
    values = (row["task"], row["unit"], row["candidate"], row["detail"], float(row["time"]))
    return keep_choice(db, values), ""


_TAKERS: dict[str, Callable[[sqlite3.Connection, dict[str, Any]], _Taken]] = {
    "task": _take_task,
    "run": _take_run,
    "trial": _take_trial,
    "choice": _take_choice,
}
