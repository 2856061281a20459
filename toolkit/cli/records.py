"""`nestling records`: what tuning found, and how it is moved."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO, TYPE_CHECKING

import click

from toolkit.cli.console import Console
from toolkit.cli.options import output_options
from toolkit.errors import RecordsError

if TYPE_CHECKING:
    from toolkit.search.record_lines import Imported
    from toolkit.search.records import Records, TaskRecord, Trial

_DATABASE = click.argument("database", type=click.Path(path_type=Path), metavar="DB")
_SHOWN = 10
"""Problems, and points of a front, that are printed; --json has all."""


@click.group("records", short_help="Databases of trials: list, show, move, merge.")
def records_command() -> None:
    """Databases of trials, NAME.records.db.

    A trial is one schedule of one kernel, measured. `nestling tune` writes them; `compile`, `run`,
    `verify` and `bench` take the schedules that were best.

    \b
    Examples:
      nestling records list digits.records.db
      nestling records export digits.records.db -o digits.jsonl
      nestling records merge all.records.db digits.records.db words.records.db
    """


@records_command.command("list", short_help="Print the tasks of a database.")
@_DATABASE
@output_options
def records_list(*, database: Path, console: Console, json_path: Path | None) -> int:
    """Print the tasks (kernels to tune) of DB: trials, failures, the best cost, what it gained.

    \b
    Example:
      nestling records list digits.records.db
    """
    from toolkit.search.records import Records

    with Records(database, readonly=True) as records:
        tasks = records.tasks()
        found = [_summary(records, t, unit) for t in tasks for unit in t.units or ("",)]
        runs = records.runs()
    console.table(
        ["task", "name", "target", "trials", "failed", "best", "default", "faster"],
        [
            (f["key"], f["name"], f["target"], f["trials"], f["failures"],
             _cost(f["best"], f["unit"]), _cost(f["default"], f["unit"]),
             f"{f['gain']:.2f} x" if f["gain"] else "")
            for f in found
        ],
        right=["trials", "failed", "best", "default", "faster"],
    )  # fmt: skip
    open_runs = sum(r.finished is None for r in runs)
    console.print(f"{len(tasks)} tasks, {len(runs)} runs, {open_runs} of them not finished")
    console.json(
        json_path,
        {
            "tasks": found,
            "runs": [
                {
                    "uid": r.uid, "command": r.command, "seed": r.seed, "started": r.started,
                    "finished": r.finished,
                }
                for r in runs
            ],
        },
    )  # fmt: skip
    return 0


def _summary(records: Records, task: TaskRecord, unit: str) -> dict[str, Any]:
    best, default = records.chosen(task.key, unit), records.default(task.key, unit)
    costs = [t.cost if t else None for t in (best, default)]
    stays = best is not None and records.is_default(best)
    return {
        "key": task.key, "name": task.name, "target": task.target, "weight": task.weight,
        "nodes": list(task.nodes), "unit": unit, "trials": task.trials,
        "failures": task.failures, "best": costs[0], "default": costs[1],
        "gain": costs[1] / costs[0] if costs[0] and costs[1] and not stays else None,
    }  # fmt: skip


def _cost(cost: float | None, unit: str) -> str:
    if cost is None:
        return ""
    return f"{cost * 1e6:,.2f} us" if unit == "seconds" else f"{cost:,.0f} {unit}"


@records_command.command("show", short_help="Print what is known of one task.")
@_DATABASE
@click.argument("task")
@output_options
def records_show(*, database: Path, task: str, console: Console, json_path: Path | None) -> int:
    """Print one TASK of DB: its loops, how its trials ended, and the schedule that is used.

    TASK is a key as `records list` prints it, or its beginning, or a name. Points are trials that
    no other beats in cost, RAM and flash at once.

    \b
    Example:
      nestling records show digits.records.db conv_relu_1x8x8x64
    """
    from toolkit.search.records import Records

    with Records(database, readonly=True) as records:
        record = _task(records, task)
        counts = Counter(str(t.result.status) for t in records.trials(record.key))
        fronts = {unit: records.front(record.key, unit) for unit in record.units}
        chosen = {unit: records.chosen(record.key, unit) for unit in record.units}
        found = [_summary(records, record, unit) for unit in record.units]
        wrong = [
            run.tasks[record.key]["wrong"]
            for run in records.runs()
            if "wrong" in run.tasks.get(record.key, {})
        ]
    console.fact("task", f"{record.key}, {record.name}, for target {record.target}")
    console.fact("nodes", ", ".join(record.nodes))
    console.fact("trials", ", ".join(f"{n} {status}" for status, n in counts.most_common()))
    console.print(record.text)
    for f in found:
        if f["best"] is not None:
            gain = f", {f['gain']:.2f} x faster than the default" if f["gain"] else ""
            console.fact("stands", f"{_cost(f['best'], f['unit'])}{gain}")
    for unit, trials in fronts.items():
        console.table(
            ["point", "cost", "RAM", "flash", "from"],
            [
                (k, _cost(t.cost, unit), _bytes(t.result.ram_bytes), _bytes(t.result.flash_bytes),
                 t.origin)
                for k, t in enumerate(trials[:_SHOWN])
            ],
            right=["point", "cost", "RAM", "flash"],
        )  # fmt: skip
    for trial in chosen.values():
        if trial is not None:
            console.print(_python(json.loads(trial.trace_text)))
    for w in wrong:
        console.fact("wrong", f"candidate {w['candidate']}, {_reduced(w)}: {w['detail']}")
        console.print(_python(w["trace"]))
    console.json(
        json_path,
        {
            "task": found, "text": record.text, "statuses": dict(counts),
            "fronts": {unit: [_point(t) for t in trials] for unit, trials in fronts.items()},
            "stands": {unit: t and _point(t) for unit, t in chosen.items()}, "wrong": wrong,
        },
    )  # fmt: skip
    return 0


def _task(records: Records, text: str) -> TaskRecord:
    tasks = records.tasks()
    found = [t for t in tasks if t.key.startswith(text) or t.name == text]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} tasks are called so" if found else "it holds no such task"
    raise RecordsError(
        f"records {records.path}: task {text!r}: {problem}.",
        state=[f"{t.key}  {t.name}  {t.target}" for t in (found or tasks)[:_SHOWN]],
        hint=f"nestling records list {records.path}",
    )


def _bytes(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _python(trace: list[dict[str, Any]]) -> str:
    from toolkit.errors import NestlingError
    from toolkit.schedule.trace import trace_from_json, trace_to_python

    try:
        return trace_to_python(trace_from_json(trace))
    except NestlingError as error:
        return error.what


def _reduced(wrong: dict[str, Any]) -> str:
    """Say what became of the trace of a wrong result."""
    steps = len(wrong["trace"])
    how = "none can be left out" if wrong["complete"] else "the builds for it ran out"
    return f"reduced by {wrong['builds']} builds to {steps} steps, {how}"


def _point(trial: Trial) -> dict[str, Any]:
    return {
        "candidate": trial.candidate_key, "cost": trial.cost,
        "ram_bytes": trial.result.ram_bytes, "flash_bytes": trial.result.flash_bytes,
        "origin": trial.origin, "trace": json.loads(trial.trace_text),
    }  # fmt: skip


@records_command.command("export", short_help="Write a database as lines of JSON.")
@_DATABASE
@click.option(
    "-o", "--output", "output_path", type=click.Path(path_type=Path), metavar="FILE",
    help="File to write [default: stdout].",
)  # fmt: skip
@click.option("--best", is_flag=True, help="A pack: only schedules that beat the default.")
@click.option("--target", metavar="T", help="With --best: only tasks of this target.")
@output_options
def records_export(
    *,
    database: Path,
    output_path: Path | None,
    best: bool,
    target: str | None,
    console: Console,
    json_path: Path | None,
) -> int:
    """Write all trials, runs and verdicts of DB as lines of JSON, or its best traces as a pack.

    A pack is what --records of other commands takes too, and what nestling ships.

    \b
    Examples:
      nestling records export digits.records.db -o digits.jsonl
      nestling records export digits.records.db --best --target cortex-m4 -o cortex-m4.jsonl
    """
    from toolkit.packaging.write import write_folder
    from toolkit.search.packs import pack_lines
    from toolkit.search.record_lines import export_lines
    from toolkit.search.records import Records

    if target is not None and not best:
        raise RecordsError("--target goes with --best: an export is of everything.")
    with Records(database, readonly=True) as records:
        lines = pack_lines(records, target=target) if best else list(export_lines(records))
    data = "".join(f"{line}\n" for line in lines).encode()
    if output_path is None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    else:
        write_folder(output_path.absolute().parent, {output_path.name: data})
        console.fact("written", f"{output_path}: {len(lines):,} lines, {len(data):,} bytes")
    console.json(json_path, {"lines": len(lines), "bytes": len(data)})
    return 0


@records_command.command("import", short_help="Add exported lines to a database.")
@_DATABASE
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@output_options
def records_import(
    *, database: Path, files: tuple[Path, ...], console: Console, json_path: Path | None
) -> int:
    """Add what `records export` wrote to DB, which is made if it is not there.

    What DB holds already is skipped. Lines that this nestling cannot take are named and left out.

    \b
    Example:
      nestling records import all.records.db digits.jsonl words.jsonl
    """
    from toolkit.search.record_lines import import_lines
    from toolkit.search.records import Records

    result = {}
    with ExitStack() as stack:
        # All are opened before a database is made.
        opened = [stack.enter_context(_open_lines(f)) for f in files]
        records = stack.enter_context(Records(database))
        for file, lines in zip(files, opened, strict=True):
            result[str(file)] = import_lines(records, lines, str(file))
    return _say_imported(result, console, json_path)


def _open_lines(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RecordsError(f"{path}: cannot be read: {error.strerror}.") from None


@records_command.command("merge", short_help="Add databases to a database.")
@_DATABASE
@click.argument(
    "others", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="OTHER..."
)
@output_options
def records_merge(
    *, database: Path, others: tuple[Path, ...], console: Console, json_path: Path | None
) -> int:
    """Add everything that the databases OTHER hold to DB, which is made if it is not there.

    \b
    Example:
      nestling records merge all.records.db digits.records.db words.records.db
    """
    from toolkit.search.record_lines import merge
    from toolkit.search.records import Records

    result = {}
    with ExitStack() as stack:
        # All are opened before a database is made.
        opened = [stack.enter_context(Records(path, readonly=True)) for path in others]
        records = stack.enter_context(Records(database))
        for path, other in zip(others, opened, strict=True):
            result[str(path)] = merge(records, other)
    return _say_imported(result, console, json_path)


def _say_imported(result: dict[str, Imported], console: Console, json_path: Path | None) -> int:
    for name, done in result.items():
        console.fact("imported", f"{name}: {done.added:,} trials, {done.known:,} known already")
        for problem in done.problems[:_SHOWN]:
            console.note(f"{name}: {problem}")
        if len(done.problems) > _SHOWN:
            console.note(f"{name}: and {len(done.problems) - _SHOWN:,} more lines left out")
    console.json(
        json_path,
        {
            name: {"added": done.added, "known": done.known, "problems": list(done.problems)}
            for name, done in result.items()
        },
    )
    return 0
