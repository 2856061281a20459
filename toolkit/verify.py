"""Whether found outputs are the expected ones, and what to say when they are not."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.errors import NestlingError
from toolkit.ir.program import Call, Program
from toolkit.ir.types import TensorType
from toolkit.measure.board import BoardSession
from toolkit.runners import BoardModel, BuiltModel, Cost, pack_inputs

TOLERANCE = 1e-4
"""Floats: the largest error allowed, as a part of the largest magnitude expected of the output."""


@dataclass(frozen=True, slots=True)
class Check:
    """An output compared.

    `max_rel` is `max_abs` as a part of the largest finite magnitude expected; `max_lsb` the largest
    difference of an integer output.  `why` says what is wrong, '' when `ok`.  Of `size` elements
    `equal` are exactly the expected ones.
    """

    name: str
    max_abs: float
    max_rel: float
    max_lsb: int | None
    exact: bool
    ok: bool
    why: str = ""
    equal: int = 0
    size: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the keys of `verify --json`."""
        return {key: getattr(self, key) for key in self.__slots__}


def compare(
    name: str, found: np.ndarray, expected: np.ndarray, *, tolerance: float = TOLERANCE
) -> Check:
    """Compare an output: floats to `tolerance`, integers and booleans exactly.

    A NaN or an infinity must be found exactly where one is expected.
    """
    if found.shape != expected.shape:
        return _wrong(name, f"has shape {list(found.shape)}, not {list(expected.shape)}")
    if found.dtype != expected.dtype:
        return _wrong(name, f"has type {found.dtype}, not {expected.dtype}")
    if found.dtype.kind != "f":
        return _compare_integers(name, found, expected)
    y, ref = found.astype(np.float64), expected.astype(np.float64)
    odd = ~(np.isfinite(y) & np.isfinite(ref))
    same_odd = (y == ref) | (np.isnan(y) & np.isnan(ref))
    largest = float(np.max(np.abs(ref), initial=0.0, where=np.isfinite(ref)))
    error = np.abs(np.subtract(y, ref, where=~odd, out=np.zeros_like(y)))
    max_abs = float(error.max(initial=0.0))
    max_rel = max_abs / largest if largest else (0.0 if max_abs == 0.0 else float("inf"))
    exact = bool(np.all(same_odd))
    counts = int(np.count_nonzero(same_odd)), found.size
    misplaced = odd & ~same_odd
    if misplaced.any():
        at = tuple(int(i) for i in np.argwhere(misplaced)[0])
        why = f"{y[at]:g} at {list(at)}, where {ref[at]:g} is expected"
        return Check(name, max_abs, max_rel, None, exact, False, why, *counts)
    if max_abs > tolerance * largest:
        at = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
        why = f"{y[at]:.9g} at {list(at)}, where {ref[at]:.9g} is expected"
        return Check(name, max_abs, max_rel, None, exact, False, why, *counts)
    return Check(name, max_abs, max_rel, None, exact, True, "", *counts)


def _compare_integers(name: str, found: np.ndarray, expected: np.ndarray) -> Check:
    # Python integers: differences of 64-bit values do not fit 64 bits.
    differs = found != expected
    if not differs.any():
        return Check(name, 0.0, 0.0, 0, True, True, "", found.size, found.size)
    pairs = [(int(a), int(b)) for a, b in zip(found[differs], expected[differs], strict=True)]
    lsb = max(abs(a - b) for a, b in pairs)
    largest = max(abs(int(expected.max())), abs(int(expected.min())), 1)
    at = tuple(int(i) for i in np.argwhere(differs)[0])
    why = (
        f"{found[at]} at {list(at)}, where {expected[at]} is expected "
        f"({int(differs.sum())} of {found.size} differ)"
    )
    equal = found.size - int(differs.sum())
    return Check(name, float(lsb), lsb / largest, lsb, False, False, why, equal, found.size)


def _wrong(name: str, why: str) -> Check:
    return Check(name, float("inf"), float("inf"), None, False, False, why)


# -- node by node ------------------------------------------------------------------------------

Range = tuple[float, float]
"""The least and the largest value of a tensor; NaN where it has one."""


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """A tensor inside the model compared: the first that differs is where to look.

    `index` is the step of the program.  `crc` is the CRC-32 of the whole tensor found; `found` and
    `expected` are the ranges of the `seen` elements that were looked at.
    """

    index: int
    kernel: str
    nodes: tuple[str, ...]
    check: Check
    crc: int
    found: Range | None
    expected: Range | None
    seen: int

    def as_json(self) -> dict[str, Any]:
        """Return what `verify --json` says of each tensor."""
        return {
            "step": self.index, "kernel": self.kernel, "nodes": list(self.nodes),
            "tensor": self.check.name, "ok": self.check.ok, "why": self.check.why,
            "max_abs": self.check.max_abs, "max_rel": self.check.max_rel, "crc": f"{self.crc:08x}",
            "range": self.found, "expected_range": self.expected, "elements": self.seen,
        }  # fmt: skip


Counterparts = Mapping[int, Mapping[str, np.ndarray]]
"""By step of a program: what its outputs should be, those that the original model has too."""


def counterparts(program: Program, expected: Mapping[str, np.ndarray]) -> Counterparts:
    """Return which tensors of `expected`, by the original model's names, a program computes."""
    result: dict[int, dict[str, np.ndarray]] = {}
    for index, step in enumerate(program.steps):
        for name in step.outputs if isinstance(step, Call) else ():
            want = _counterpart(name, program.types[name], expected)
            if want is not None:
                result.setdefault(index, {})[name] = want
    return result


def _counterpart(
    name: str, kind: TensorType, expected: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """Return the tensor of the original model that a tensor of the program stands for."""
    plain, mark, _ = name.rpartition(".nhwc")  # as the pass `layout` names them
    want = expected.get(name)
    if want is None and mark and plain in expected and expected[plain].ndim > 2:
        want = np.moveaxis(expected[plain], 1, -1)
    if want is None or str(want.dtype) != kind.dtype or want.shape != kind.shape:
        return None
    return np.ascontiguousarray(want)


def compare_nodes(
    model: BuiltModel,
    inputs: Mapping[str, Any],
    wanted: Counterparts,
    *,
    tolerance: float = TOLERANCE,
) -> list[NodeCheck]:
    """Run on the host step by step; compare every tensor of `wanted`."""
    result = []
    for index, call, made in model.trace(inputs):
        for name, want in wanted.get(index, {}).items():
            found = made[name]
            crc = zlib.crc32(found.tobytes())
            every = np.ones(want.shape, bool)
            result.append(_node_check(index, call, name, found, want, crc, every, tolerance))
    return result


LINE_S = 4.0
"""What reading one tensor may keep a board's line busy, in seconds."""
_BLOCKS = 16


def compare_board_nodes(
    model: BoardModel,
    inputs: Mapping[str, Any],
    wanted: Counterparts,
    *,
    tolerance: float = TOLERANCE,
) -> list[NodeCheck]:
    """Run on a board step by step; compare the tensors of `wanted` up to the first that differs.

    The board tells the CRC of each tensor.  Where it is another, values are read: all that the line
    carries within `LINE_S`, else `_BLOCKS` blocks spread over the tensor, and for integers, where
    another CRC is an error, the place at which it differs first.
    """
    session, result = model.session(), []
    program = model.compiled.program
    for index in session.walk(pack_inputs(model.compiled, inputs), sorted(wanted)):
        call = program.steps[index]
        assert isinstance(call, Call)
        for name, want in wanted[index].items():
            found, crc, seen = _fetch(session, program.offsets[name], want)
            check = _node_check(index, call, name, found, want, crc, seen, tolerance)
            result.append(check)
            if not check.check.ok:
                return result
    return result


def _fetch(
    session: BoardSession, offset: int, want: np.ndarray
) -> tuple[np.ndarray, int, np.ndarray]:
    """Return a tensor on a board with values of `want` where it was not read, its CRC, and a mask
    of the elements that are known."""
    data = want.tobytes()
    crc = session.crc(offset, len(data))
    known = np.zeros(want.size, bool)
    if crc == zlib.crc32(data):
        return want, crc, ~known.reshape(want.shape)
    rate = session.line_bytes_per_s
    places = _places(len(data), None if rate is None else int(LINE_S * rate))
    if want.dtype.kind != "f" and len(places) > 1:
        places.append(_first_difference(session, offset, data, places[0][1]))
    found = bytearray(data)
    parts = session.read([(offset + at, nbytes) for at, nbytes in places])
    for (at, nbytes), part in zip(places, parts, strict=True):
        found[at : at + nbytes] = part
        known[at // want.itemsize : (at + nbytes) // want.itemsize] = True
    array = np.frombuffer(bytes(found), want.dtype).reshape(want.shape)
    return array, crc, known.reshape(want.shape)


def _places(nbytes: int, most: int | None) -> list[tuple[int, int]]:
    """Return what to read of a tensor, offset and size: all, or blocks of whole elements."""
    if most is None or nbytes <= most:
        return [(0, nbytes)]
    block = most // _BLOCKS & -8
    return [(i * (nbytes - block) // (_BLOCKS - 1) & -8, block) for i in range(_BLOCKS)]


def _first_difference(
    session: BoardSession, offset: int, data: bytes, block: int
) -> tuple[int, int]:
    """Return a block of which the board holds other bytes than `data`, found by halving."""
    start, stop = 0, len(data)
    while stop - start > block:
        middle = start + ((stop - start) // 2 & -8)
        if session.crc(offset + start, middle - start) == zlib.crc32(data[start:middle]):
            start = middle
        else:
            stop = middle
    return start, stop - start


def _node_check(
    index: int,
    call: Call,
    name: str,
    found: np.ndarray,
    want: np.ndarray,
    crc: int,
    seen: np.ndarray,
    tolerance: float,
) -> NodeCheck:
    check = compare(name, found, want, tolerance=tolerance)
    return NodeCheck(
        index, call.kernel, call.nodes, check, crc, _range(found[seen]), _range(want[seen]),
        int(np.count_nonzero(seen)),
    )  # fmt: skip


def _range(values: np.ndarray) -> Range | None:
    return (float(values.min()), float(values.max())) if values.size else None


# -- limits ------------------------------------------------------------------------------------

BYTES = {
    "": 1, "b": 1, "k": 1024, "kb": 1024, "kib": 1024, "m": 1024**2, "mb": 1024**2, "mib": 1024**2,
}  # fmt: skip
"""Firmware's kilobytes: those of linker scripts."""
COUNTS = {"": 1, "k": 1000, "m": 10**6, "g": 10**9}
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_LIMITS: dict[str, tuple[str, Mapping[str, float]]] = {
    "ram": ("ram_bytes", BYTES),
    "flash": ("flash_bytes", BYTES),
    "arena": ("arena_bytes", BYTES),
    "weights": ("weights_bytes", BYTES),
    "stack": ("stack_bytes", BYTES),
    "instructions": ("instructions", COUNTS),
    "cycles": ("cycles", COUNTS),
    "time": ("seconds", TIMES),
}
LIMIT_NAMES = tuple(_LIMITS)


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound: `value` of quantity `name`, as the user wrote it in `text`."""

    name: str
    value: float
    text: str


def parse_quantity(text: str, units: Mapping[str, float], what: str) -> float:
    """Read a number with a unit of `units`: 18k, 1.5M, 200us."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].lower() not in units:
        shown = ", ".join(u for u in units if u)
        raise NestlingError(f"{what}: {text!r} is not a number with one of the units {shown}.")
    # Exactly: 4.1 * 10**6 as floats is less than 4,100,000.
    return float(Fraction(found[1]) * Fraction(str(units[found[2].lower()])))


def parse_limit(text: str) -> Limit:
    """Read `ram=18k`, `instructions=4.1M`, `time=200us`; k of bytes is 1024, of counts 1000."""
    name, equals, value = text.partition("=")
    if not equals or name not in _LIMITS:
        raise NestlingError(
            f"--limit {text}: is not NAME=VALUE with one of the names {', '.join(_LIMITS)}."
        )
    return Limit(name, parse_quantity(value, _LIMITS[name][1], f"--limit {name}"), text)


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """A limit compared with what was found."""

    limit: Limit
    found: float
    ok: bool

    @property
    def text(self) -> str:
        """One line: what was found, and by how much it is over."""
        said = f"{self.limit.name} {_amount(self.limit.name, self.found)}"
        bound = f"the limit {_amount(self.limit.name, self.limit.value)} ({self.limit.text})"
        if self.ok:
            return f"{said}: within {bound}"
        over = _amount(self.limit.name, self.found - self.limit.value)
        return f"{said}: {over} over {bound}"


def _amount(name: str, value: float) -> str:
    if name == "time":
        return f"{value * 1e6:,.1f} us"
    unit = {"instructions": "", "cycles": ""}.get(name, " bytes")
    return f"{value:,.0f}{unit}"


def check_limit(limit: Limit, cost: Cost) -> LimitCheck:
    """Compare a limit with a cost; refuse one on what was not measured."""
    key = _LIMITS[limit.name][0]
    found: float | None
    if key in ("instructions", "cycles", "seconds"):
        found = cost.per_inference if cost.unit == key else None
    else:
        found = getattr(cost, key)
    if found is None:
        raise NestlingError(
            f"--limit {limit.text}: {limit.name} is not measured here, where the unit is "
            f"{cost.unit}.",
            hint="--board measures it; `nestling boards list` shows the boards and their units",
        )
    return LimitCheck(limit, found, found <= limit.value)


# -- reports -----------------------------------------------------------------------------------


def write_junit(
    path: Path, suite: str, checks: Sequence[Check], limits: Sequence[LimitCheck], seconds: float
) -> None:
    """Write a JUnit report: a test case for each output and each limit."""
    failed = sum(not c.ok for c in checks) + sum(not c.ok for c in limits)
    root = ET.Element("testsuites")
    node = ET.SubElement(
        root, "testsuite", name=f"nestling verify {suite}",
        tests=str(len(checks) + len(limits)), failures=str(failed), errors="0", skipped="0",
        time=f"{seconds:.3f}",
    )  # fmt: skip
    for name, ok, why in (
        *((f"output {c.name}", c.ok, c.why) for c in checks),
        *((f"limit {c.limit.text}", c.ok, c.text) for c in limits),
    ):
        case = ET.SubElement(node, "testcase", classname=suite, name=name, time="0")
        if not ok:
            ET.SubElement(case, "failure", message=why).text = why
    ET.indent(root)
    try:
        path.write_bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
    except OSError as error:
        raise NestlingError(f"cannot write {path}: {error.strerror}.") from None
