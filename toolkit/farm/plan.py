"""`farm.toml`: which boards a computer offers to a farm."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import BoardError
from toolkit.targets.board import load_board

RESOURCE = "nestling-board:"
"""What Dask calls a place for one job on a board: this and the board's name."""


_KEYS: dict[str, type | tuple[type, ...]] = {
    "board": list, "workers": int, "lost_after_s": (int, float), "patience_s": (int, float),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """One board: a QEMU of the worker's own, or what is behind `port` (as `find_port` takes it)."""

    board: str
    port: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a computer offers.  `workers`: processes that share the boards out.

    `lost_after_s`: a board that answers nothing for so long, beyond what its work may take, has
    failed.  `patience_s`: how long the tuner waits for a board, or the scheduler, to come back.
    """

    places: tuple[Place, ...]
    workers: int = 1
    lost_after_s: float = 30.0
    patience_s: float = 60.0

    def share(self, number: int) -> Plan:
        """Return what worker `number` offers: boards are dealt in turns."""
        return Plan(
            self.places[number :: self.workers], 1, self.lost_after_s, self.patience_s
        )  # fmt: skip


def resources(places: Sequence[Place]) -> dict[str, float]:
    """Return the resources of a worker that offers `places`."""
    return {
        RESOURCE + name: float(count) for name, count in Counter(p.board for p in places).items()
    }


def load_plan(path: Path) -> Plan:
    """Read a farm's file.  Raises BoardError that names the key, or the line."""
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BoardError(f"farm file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BoardError(f"farm file {path} cannot be read: {error}") from None
    for key, value in data.items():
        if key not in _KEYS:
            raise BoardError(
                f"{path}: key '{key}' is unknown", hint=f"known keys: {', '.join(_KEYS)}"
            )
        if not isinstance(value, _KEYS[key]) or isinstance(value, bool):
            raise BoardError(f"{path}: key '{key}' has a value of the wrong kind: {value!r}")
        if isinstance(value, int | float) and value <= 0:
            raise BoardError(f"{path}: key '{key}' must be positive, not {value}")
    rows = data.get("board", [])
    if not rows:
        raise BoardError(f"{path}: there is no board", hint='[[board]]\n        name = "NAME"')
    places = tuple(place for i, row in enumerate(rows) for place in _places(path, i, row))
    named = [p.port for p in places if p.port is not None]
    for port, count in Counter(named).items():
        if count > 1:
            raise BoardError(f"{path}: {count} boards have port '{port}'")
    rest = {k: v for k, v in data.items() if k != "board"}
    return Plan(places, **rest)


def _places(path: Path, number: int, row: Any) -> list[Place]:
    where = f"{path}: board[{number}]"
    if not isinstance(row, dict):
        raise BoardError(f"{where} must be a table [[board]]")
    for key in row:
        if key not in ("name", "port", "count"):
            raise BoardError(f"{where}.{key} is unknown", hint="known keys: name, port, count")
    name, port, count = row.get("name"), row.get("port"), row.get("count", 1)
    if not isinstance(name, str):
        raise BoardError(f"{where}.name must be the name of a board, not {name!r}")
    if port is not None and not isinstance(port, str):
        raise BoardError(f"{where}.port must be a port, not {port!r}")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise BoardError(f"{where}.count must be a positive number, not {count!r}")
    board = load_board(name)
    if board.compiler is None:
        raise BoardError(f"{where}: board '{name}' takes no firmware, so a farm has no use for it")
    if count > 1 and (port is not None or board.qemu is None):
        raise BoardError(
            f"{where}: only boards in QEMU can be counted",
            hint="give each board behind a port a [[board]] of its own",
        )
    return [Place(name, port)] * count
