"""Where compiling finds traces: a database, a pack, or the packs that nestling ships.

A pack is lines of JSON, one for each function and target, sorted, so that one is found by halving
the file: nothing is read but the lines on the way.  It keeps the sketch and the decisions beside
the trace, so that a near function can start from them.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from toolkit.errors import NestlingError, RecordsError
from toolkit.paths import PACKS
from toolkit.schedule.hole import Decisions, Sketch
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.schedule.trace import trace_from_json
from toolkit.search.records import Choice, Records, to_text, tuples
from toolkit.search.structure import distance, extents, structure_key
from toolkit.space.task import Task
from toolkit.targets.isa import Isa
from toolkit.targets.target import STAND_INS, TARGETS

_SQLITE = b"SQLite format 3\0"
_PACK = b'{"target":'


class TraceSource(Protocol):
    """Something that knows good traces."""

    def find(self, func_keys: Sequence[str], target: str) -> dict[str, Choice]:
        """Return the traces of functions, by `function_key`; none for those it does not know."""

    def transfer(self, task: Task, limit: int = 8) -> list[tuple[Sketch, Decisions]]:
        """Return what was good for near tasks, the nearest first."""


@dataclass(frozen=True, slots=True)
class RecordsFile:
    """A database, opened when it is asked."""

    path: Path

    def find(self, func_keys: Sequence[str], target: str) -> dict[str, Choice]:
        """See `TraceSource`."""
        with Records(self.path, readonly=True) as records:
            return records.find(func_keys, target)

    def transfer(self, task: Task, limit: int = 8) -> list[tuple[Sketch, Decisions]]:
        """See `TraceSource`."""
        with Records(self.path, readonly=True) as records:
            return records.transfer(task, limit)


@dataclass(frozen=True, slots=True)
class Pack:
    """A file of the best traces; `pack_lines` makes one."""

    path: Path

    def find(self, func_keys: Sequence[str], target: str) -> dict[str, Choice]:
        """See `TraceSource`."""
        result = {}
        with self._data() as data:
            for func_key in func_keys:
                line = _line_of(data, _prefix(target, func_key))
                if line is not None:
                    row = self._row(line)
                    result[func_key] = Choice(
                        func_key, target, row["unit"], to_text(row["trace"]), str(self.path)
                    )
        return result

    def transfer(
        self, task: Task, limit: int = 8, *, target: str | None = None
    ) -> list[tuple[Sketch, Decisions]]:
        """See `TraceSource`.  `target`: whose lines to read, the task's unless given."""
        own, kind = extents(task.func), structure_key(task.func)
        with self._data() as data:
            rows = [self._row(line) for line in _lines_with(data, f'"kind":"{kind}"'.encode())]
        wanted = target or task.target.name
        rows = [r for r in rows if r["target"] == wanted and r["kind"] == kind]
        found: list[tuple[Sketch, Decisions]] = []
        for row in sorted(rows, key=lambda r: (distance(r["extents"], own), r["key"])):
            try:
                sketch = trace_from_json(row["sketch"])
            except NestlingError:
                continue  # a step of another version: nothing to start from here
            found.append((sketch, {k: tuples(v) for k, v in row["decisions"].items()}))
        return found[:limit]

    @contextmanager
    def _data(self) -> Iterator[mmap.mmap | bytes]:
        with self.path.open("rb") as file:
            if not file.seek(0, 2):  # an empty file cannot be mapped
                yield b""
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data

    def _row(self, line: bytes) -> dict[str, Any]:
        try:
            row: dict[str, Any] = json.loads(line)
            missing = {"target", "key", "kind", "unit", "extents", "sketch", "decisions", "trace"}
            missing -= set(row)
        except ValueError:
            missing = {"JSON"}
        if missing:
            raise RecordsError(f"pack {self.path}: a line lacks {min(missing)}: {line[:60]!r}.")
        return row


@dataclass(frozen=True, slots=True)
class ShippedPacks:
    """The packs of a folder, one for each target, named after it.

    What the pack of a target does not know, those of `STAND_INS` are asked for.
    """

    folder: Path = PACKS

    def _packs(self, target: str) -> Iterator[tuple[str, Pack]]:
        for name in (target, *STAND_INS.get(target, ())):
            path = self.folder / f"{name}.jsonl"
            if path.is_file():
                yield name, Pack(path)

    def find(self, func_keys: Sequence[str], target: str) -> dict[str, Choice]:
        """See `TraceSource`."""
        found: dict[str, Choice] = {}
        for name, pack in self._packs(target):
            rest = [key for key in func_keys if key not in found]
            for key, choice in pack.find(rest, name).items() if rest else ():
                if name == target or _known(choice.trace or (), TARGETS[target].isa):
                    found[key] = choice
        return found

    def transfer(self, task: Task, limit: int = 8) -> list[tuple[Sketch, Decisions]]:
        """See `TraceSource`."""
        target = task.target.name
        return [
            (sketch, decisions)
            for name, pack in self._packs(target)
            for sketch, decisions in pack.transfer(task, limit, target=name)
            if name == target or _known(sketch, task.target.isa)
        ][:limit]


def _known(steps: Sequence[Step], isa: Isa) -> bool:
    """Tell whether an instruction set has every tensor intrinsic that steps name."""
    return all(s.intrinsic in isa.tensors for s in steps if isinstance(s, Tensorize))


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """The schedules that point `number` of the newest tuned front in a database chooses."""

    path: Path
    number: int

    def find(self, func_keys: Sequence[str], target: str) -> dict[str, Choice]:
        """See `TraceSource`; raises `RecordsError` where there is no such point."""
        with Records(self.path, readonly=True) as records:
            fronts = [r.state for r in records.runs() if (r.state or {}).get("points")]
            if not fronts:
                raise RecordsError(
                    f"{self.path}: holds no front of points.",
                    hint="nestling tune MODEL --objective pareto",
                )
            points, unit = fronts[-1]["points"], fronts[-1]["unit"]
            if not 0 <= self.number < len(points):
                raise RecordsError(
                    f"--point {self.number}: {self.path} has the points 0 to {len(points) - 1}."
                )
            choice = points[self.number]["choice"]
            result: dict[str, Choice] = {}
            for task in records.tasks(target=target):
                if task.key in choice and task.func_key in func_keys:
                    chosen = choice[task.key]
                    trial = next(
                        t for t in records.trials(task.key, unit=unit) if t.candidate_key == chosen
                    )
                    result[task.func_key] = Choice(
                        task.func_key, target, unit, trial.trace_text, str(self.path)
                    )
            return result

    def transfer(self, task: Task, limit: int = 8) -> list[tuple[Sketch, Decisions]]:
        """See `TraceSource`: a point is for compiling only."""
        return []


def open_source(path: Path) -> TraceSource:
    """Return a file of records, a database or a pack; raise `RecordsError` for anything else."""
    if not path.is_file():
        raise RecordsError(f"records {path}: no such file.")
    with path.open("rb") as file:
        start = file.read(len(_SQLITE))
        if start.startswith(_PACK):
            file.seek(0)
            _check_sorted(path, file)
            return Pack(path)
    if start and start != _SQLITE:
        raise RecordsError(
            f"records {path}: is neither a database of trials nor a pack.",
            hint="an export is read by: nestling records import",
        )
    return RecordsFile(path)


def find(
    sources: Sequence[TraceSource], func_keys: Sequence[str], target: str
) -> dict[str, Choice]:
    """Return for each function what the first source that knows it says."""
    found: dict[str, Choice] = {}
    for source in sources:
        rest = [key for key in func_keys if key not in found]
        if rest:
            found.update(source.find(rest, target))
    return found


def transfer(
    sources: Sequence[TraceSource], task: Task, limit: int = 8
) -> list[tuple[Sketch, Decisions]]:
    """Return what was good for near tasks, earlier sources first."""
    return [pair for source in sources for pair in source.transfer(task, limit)][:limit]


def pack_lines(records: Records, *, target: str | None = None) -> list[str]:
    """Return the lines of a pack of everything for which something beat the default."""
    lines = []
    with records.snapshot():
        by_func = {(t.target, t.func_key): t for t in records.tasks(target=target)}
        for (target_name, func_key), task in by_func.items():
            trial = records.winner(func_key, target_name)
            if trial is None or records.is_default(trial):
                continue
            started = records.default(trial.task_key, trial.result.unit)
            row = {
                "target": target_name, "key": func_key, "kind": task.kind, "name": task.name,
                "extents": task.extents, "unit": trial.result.unit, "cost": trial.cost,
                "default_cost": started and started.cost,
                "decisions": json.loads(trial.decisions_text),
                "sketch": json.loads(trial.sketch_text), "trace": json.loads(trial.trace_text),
            }  # fmt: skip
            lines.append(json.dumps(row, separators=(",", ":")))
    return sorted(lines, key=str.encode)


def _prefix(target: str, func_key: str) -> bytes:
    """Return how the line of a function begins."""
    text = json.dumps({"target": target, "key": func_key}, separators=(",", ":"))
    return text[:-1].encode()


def _line_of(data: mmap.mmap | bytes, prefix: bytes) -> bytes | None:
    """Return the first line that is not less than `prefix`, if it begins so."""
    low, high = 0, len(data)
    while low < high:
        start = data.rfind(b"\n", low, (low + high) // 2) + 1 or low
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        if data[start:end] < prefix:
            low = end + 1
        else:
            high = start
    line = data[low : low + len(prefix)]
    if line != prefix:
        return None
    end = data.find(b"\n", low)
    return data[low : len(data) if end < 0 else end]


def _lines_with(data: mmap.mmap | bytes, text: bytes) -> Iterator[bytes]:
    """Yield the lines that hold `text`."""
    at = data.find(text)
    while at >= 0:
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        yield data[data.rfind(b"\n", 0, at) + 1 : end]
        at = data.find(text, end)


def _check_sorted(path: Path, lines: Iterator[bytes]) -> None:
    last = b""
    for number, line in enumerate(lines, 1):
        if line < last:
            raise RecordsError(
                f"pack {path}: line {number} is out of order.",
                hint="one pack of several databases: nestling records merge, then export --best",
            )
        last = line
