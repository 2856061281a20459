"""Boards: folders of data under `boards/`, each with a `board.toml` that this module checks.

What runs on a board (firmware) and how to talk to it (measure) are other modules' business.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from toolkit.errors import BoardError
from toolkit.paths import BOARDS

_T = TypeVar("_T")

UNITS = ("seconds", "cycles", "instructions")
"""What a board's clock can count; results of different units are never compared."""

PURPOSES = ("code", "data", "weights", "arena")
"""What a memory may hold; `data` includes the stacks."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A range of addresses: `nbytes` from `origin`, and the `PURPOSES` it serves."""

    name: str
    origin: int
    nbytes: int
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compiler:
    """The cross compiler: program, Debian package that brings it, flags to compile and link."""

    name: str
    package: str
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    server_flags: tuple[str, ...] = ()
    """What beside -Os makes the server and the port small."""


@dataclass(frozen=True, slots=True)
class Qemu:
    """How to start the board in QEMU: everything but `-kernel` and the serial port."""

    program: str
    package: str
    args: tuple[str, ...]
    time_scale: float
    """Device seconds that pass in one host second, at most about."""
    plugin: Path | None = None
    """Of user mode: C file of a plug-in that counts in a file which the program maps too.  None:
    QEMU emulates a whole board."""


FLASH_TOOLS: Mapping[str, Mapping[str, type]] = {
    "pyocd": {"target": str},
    "openocd": {"config": list},
    "st-flash": {"address": int},
    "picotool": {},
    "volume": {"label": str, "format": str, "family": int},
}
"""Ways to write a board's flash, and what `board.toml` states for each; `family` is UF2's alone."""

FORMATS = ("bin", "hex", "uf2")
"""What a drag-and-drop volume takes."""


@dataclass(frozen=True, slots=True)
class Flashing:
    """A way to write the flash: a key of `FLASH_TOOLS`, and its values."""

    tool: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Board:
    """A board as its `board.toml` states it.  `host` has neither compiler nor memories."""

    name: str
    description: str
    target: str
    """What code is generated for: a name of `targets.target.TARGETS`, or 'host'."""
    unit: str
    folder: Path
    compiler: Compiler | None = None
    linker_script: Path | None = None
    """None for a program of the compiler's own system, which has its start-up code and memory."""
    sources: tuple[Path, ...] = ()
    include_dirs: tuple[Path, ...] = ()
    defines: tuple[tuple[str, int], ...] = ()
    memories: tuple[Memory, ...] = ()
    clock_hz: int = 0
    """Ticks per second of the clock that times; 0 on the host."""
    icount_shift: int | None = None
    """QEMU's `-icount shift`: an instruction takes `2**icount_shift` ns."""
    serial_baud: int = 115200
    buffer_bytes: int = 1024
    """Longest frame the serial server takes."""
    stack_bytes: int = 0
    handler_stack_bytes: int = 0
    qemu: Qemu | None = None
    usb_ids: tuple[tuple[int, int], ...] = ()
    """VID and PID of the USB devices that carry the board's serial port."""
    flashing: tuple[Flashing, ...] = ()
    """In the order of preference."""

    def memory_for(self, purpose: str, nbytes: int = 0) -> Memory | None:
        """Return the first memory that serves `purpose` and has `nbytes` bytes."""
        fitting = (m for m in self.memories if purpose in m.holds and m.nbytes >= nbytes)
        return next(fitting, None)

    def from_ticks(self, ticks: int) -> int:
        """Convert a reading of the board's clock, since its start, to `unit`.

        With icount the clock shows floor(n * r) after n instructions, r = 2**shift / tick_ns; n is
        the only number that gives this reading as long as r is 1 or more.  A reading that is off by
        up to (r - 1) / 2 ticks, where an emulated timer rounds to nanoseconds, still gives n.
        """
        if self.icount_shift is None:
            return ticks
        rate = Fraction(self.clock_hz << self.icount_shift, 10**9)
        return math.ceil((ticks - (rate - 1) / 2) / rate)


def list_boards(root: Path = BOARDS) -> list[str]:
    """Return the names of all boards, sorted."""
    return sorted(p.parent.name for p in root.glob("*/board.toml"))


def load_board(name: str, root: Path = BOARDS) -> Board:
    """Read board `name`.  Raises BoardError for an unknown board or a malformed file."""
    path = root / name / "board.toml"
    known = list_boards(root)
    if name not in known:
        raise BoardError(f"board '{name}' is unknown", hint=f"known boards: {', '.join(known)}")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BoardError(f"board '{name}': board.toml cannot be read: {error}") from error
    return _board(_Table(name, "", data), root, path.parent)


class _Table:
    """A TOML table whose keys are taken one by one; errors name board and key."""

    def __init__(self, board: str, where: str, data: Mapping[str, Any]) -> None:
        self.board, self.where, self.data = board, where, data
        self.taken: set[str] = set()

    def error(self, key: str, what: str) -> BoardError:
        return BoardError(f"board '{self.board}': key '{self.where}{key}' in board.toml {what}")

    def take(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        """Return the value of `key`, which must be a `kind`; required when `default` is None."""
        self.taken.add(key)
        if key not in self.data:
            if default is None:
                raise self.error(key, "is missing")
            return default
        value = self.data[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise self.error(key, f"must be a {kind.__name__}, not {value!r}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.take(key, int, default)
        if value <= 0:
            raise self.error(key, f"must be positive, not {value}")
        return value

    def strings(self, key: str, default: list[Any] | None = None) -> tuple[str, ...]:
        values = self.take(key, list, default)
        for value in values:
            if not isinstance(value, str):
                raise self.error(key, f"must hold strings, not {value!r}")
        return tuple(values)

    def one_of(self, key: str, choices: tuple[str, ...]) -> str:
        value = self.take(key, str)
        if value not in choices:
            raise self.error(key, f"must be one of {', '.join(choices)}, not '{value}'")
        return value

    def table(self, key: str, read: Callable[[_Table], _T]) -> _T | None:
        """Read the table `key`, if it is there."""
        if key not in self.data:
            return None
        inner = _Table(self.board, f"{self.where}{key}.", self.take(key, dict))
        value = read(inner)
        inner.done()
        return value

    def tables(self, key: str, read: Callable[[_Table], _T]) -> tuple[_T, ...]:
        """Read the array of tables `key`."""
        values: list[_T] = []
        for i, item in enumerate(self.take(key, list, [])):
            if not isinstance(item, dict):
                raise self.error(f"{key}[{i}]", f"must be a table, not {item!r}")
            inner = _Table(self.board, f"{self.where}{key}[{i}].", item)
            values.append(read(inner))
            inner.done()
        return tuple(values)

    def files(self, key: str, root: Path) -> tuple[Path, ...]:
        """Return paths relative to the folder of boards, all of which must exist."""
        paths = tuple(root / p for p in self.strings(key, []))
        for path in paths:
            if not path.exists():
                raise self.error(key, f"names '{path.relative_to(root)}', which does not exist")
        return paths

    def done(self) -> None:
        """Refuse keys that nobody asked for: most likely a slip of the pen."""
        for key in self.data:
            if key not in self.taken:
                raise self.error(key, "is unknown")


def _memory(table: _Table) -> Memory:
    memory = Memory(
        name=table.take("name", str),
        origin=table.take("origin", int),
        nbytes=table.positive("bytes"),
        holds=table.strings("holds"),
    )
    for purpose in memory.holds:
        if purpose not in PURPOSES:
            raise table.error("holds", f"may hold {', '.join(PURPOSES)}, not '{purpose}'")
    return memory


def _compiler(table: _Table) -> Compiler:
    return Compiler(
        name=table.take("name", str),
        package=table.take("package", str),
        flags=table.strings("flags"),
        link_flags=table.strings("link_flags", []),
        server_flags=table.strings("server_flags", []),
    )


def _qemu(table: _Table, root: Path) -> Qemu:
    plugin = table.take("plugin", str, "")
    if plugin and not (root / plugin).is_file():
        raise table.error("plugin", f"names '{plugin}', which does not exist")
    return Qemu(
        program=table.take("program", str),
        package=table.take("package", str),
        args=table.strings("args"),
        time_scale=float(table.positive("time_scale", 1)),
        plugin=root / plugin if plugin else None,
    )


def _usb(table: _Table) -> tuple[tuple[int, int], ...]:
    ids = table.strings("ids")
    for text in ids:
        if re.fullmatch("[0-9a-f]{4}:[0-9a-f]{4}", text) is None:
            raise table.error("ids", f"must hold VID:PID such as '0483:374b', not '{text}'")
    return tuple((int(text[:4], 16), int(text[5:], 16)) for text in ids)


def _flashing(table: _Table) -> Flashing:
    tool = table.one_of("tool", tuple(FLASH_TOOLS))
    values: dict[str, Any] = {}
    for key, kind in FLASH_TOOLS[tool].items():
        if key == "family" and values["format"] != "uf2":
            continue
        values[key] = table.strings(key) if kind is list else table.take(key, kind)
        if key == "format" and values[key] not in FORMATS:
            raise table.error(key, f"must be one of {', '.join(FORMATS)}, not '{values[key]}'")
    return Flashing(tool, values)


def _clock(table: _Table) -> tuple[int, int | None]:
    shift = table.take("icount_shift", int, -1)
    return table.positive("hz"), None if shift < 0 else shift


def _defines(table: _Table) -> tuple[tuple[str, int], ...]:
    return tuple((key, table.take(key, int)) for key in table.data)


def _board(table: _Table, root: Path, folder: Path) -> Board:
    if table.take("name", str) != folder.name:
        raise table.error("name", f"must be the folder's name, '{folder.name}'")
    clock_hz, icount_shift = table.table("clock", _clock) or (0, None)
    baud, buffer_bytes = table.table(
        "serial", lambda t: (t.positive("baud"), t.positive("buffer_bytes"))
    ) or (115200, 1024)
    stack_bytes, handler_stack_bytes = table.table(
        "stack", lambda t: (t.positive("bytes"), t.positive("handler_bytes"))
    ) or (0, 0)
    compiler = table.table("compiler", _compiler)
    script = table.take("linker_script", str, "")
    if script and not (root / script).is_file():
        raise table.error("linker_script", f"names '{script}', which does not exist")
    board = Board(
        name=folder.name,
        description=table.take("description", str),
        target=table.take("target", str),
        unit=table.one_of("unit", UNITS),
        folder=folder,
        compiler=compiler,
        linker_script=root / script if script else None,
        sources=table.files("sources", root),
        include_dirs=table.files("include_dirs", root),
        defines=table.table("defines", _defines) or (),
        memories=table.tables("memory", _memory),
        clock_hz=clock_hz,
        icount_shift=icount_shift,
        serial_baud=baud,
        buffer_bytes=buffer_bytes,
        stack_bytes=stack_bytes,
        handler_stack_bytes=handler_stack_bytes,
        qemu=table.table("qemu", lambda t: _qemu(t, root)),
        usb_ids=table.table("usb", _usb) or (),
        flashing=table.tables("flash", _flashing),
    )
    table.done()
    if compiler is not None:
        _check_firmware(board, table)
    return board


def _check_firmware(board: Board, table: _Table) -> None:
    """Check that a board with a compiler states all that firmware needs."""
    if board.linker_script is None and (board.qemu is None or board.qemu.plugin is None):
        raise table.error("linker_script", "is missing")
    if not board.clock_hz:
        raise table.error("clock.hz", "is missing")
    if not board.stack_bytes:
        raise table.error("stack.bytes", "is missing")
    for purpose in PURPOSES:
        if board.memory_for(purpose) is None:
            raise table.error("memory", f"has no memory that holds {purpose}")
    if board.unit == "instructions" and board.icount_shift is None:
        raise table.error("clock.icount_shift", "is missing, though the unit is instructions")
    if board.icount_shift is not None and (board.clock_hz << board.icount_shift) < 10**9:
        raise table.error("clock.icount_shift", "makes an instruction shorter than a tick")
