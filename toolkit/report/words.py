"""Numbers as a report prints them, with units that a whole page or chart shares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, UTC

from toolkit.search.result import INSTRUCTIONS, SECONDS

_SECONDS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_COUNTS = (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that costs are printed in.  `size`: of one, in the records' unit; `decimals`: of all
    costs, or None for as many as make three figures or more."""

    name: str
    size: float
    decimals: int | None = None

    def text(self, cost: float | None) -> str:
        """Return a cost without its unit."""
        if cost is None:
            return "–"
        value = cost / self.size
        decimals = self.decimals
        if decimals is None:
            decimals = 2 if value < 100 else 1 if value < 1000 else 0
        return f"{value:,.{decimals}f}"

    def full(self, cost: float | None) -> str:
        """Return a cost with its unit."""
        return "–" if cost is None else f"{self.text(cost)}\u00a0{self.name}"


def unit_for(costs: Iterable[float | None], unit: str) -> Unit:
    """Return the unit in which the largest of some costs is at least 1."""
    largest = max((c for c in costs if c), default=0.0)
    scales = _SECONDS if unit == SECONDS else _COUNTS
    name, size = next((s for s in scales if largest >= s[1]), scales[-1])
    if unit == SECONDS:
        return Unit(name, size)
    return Unit(f"{name} {short(unit)}".strip(), size, 0 if size == 1.0 else None)


def shared_unit(costs: Iterable[float | None], unit: str) -> Unit:
    """Return one unit for many costs, with as many decimals for all, so that columns align.

    Counts are in thousands where the largest is in millions: the small ones are whole numbers.
    """
    known = [c for c in costs if c]
    found = unit_for([c / 1000 for c in known] if unit != SECONDS else known, unit)
    whole = found.size == 1.0 and unit != SECONDS
    large = max(known, default=0.0) / found.size >= 1000
    return Unit(found.name, found.size, 0 if whole else 1 if large else 2)


def short(unit: str) -> str:
    """Return a short word for a unit that is counted."""
    return "instr." if unit == INSTRUCTIONS else unit


def duration(seconds: float | None) -> str:
    """Return how long something took."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f}\u00a0s"
    if seconds < 120:
        return f"{seconds:.0f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes / 60:.1f} h"


def when(time: float) -> str:
    """Return a point in time."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"


def percent(part: float) -> str:
    """Return a share."""
    return f"{100 * part:.0f}\u00a0%" if part >= 0.1 else f"{100 * part:.1f}\u00a0%"


def times(factor: float | None) -> str:
    """Return a factor."""
    return "–" if factor is None else f"{factor:.2f}\u00a0×"


def count(number: int, one: str, many: str = "") -> str:
    """Return a number of things."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
