"""Charts as geometry: what stands where, in a box of its own size.  The templates draw it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEFT, RIGHT, TOP, BOTTOM = 48.0, 12.0, 12.0, 38.0
"""Room around the plot, for the axes' texts."""

_LETTER = 7.0
"""Width of a letter of a label."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values between `low` and `high` to places between `start` and `stop`."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value, those outside at the end nearest to them."""
        value = min(max(value, self.low), self.high)
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return round(self.start + part * (self.stop - self.start), 1)


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points; `style` is a class of the style sheet."""

    points: str
    style: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A point; `title` is what a pointer on it shows."""

    x: float
    y: float
    style: str
    title: str
    radius: float = 3.5


@dataclass(frozen=True, slots=True)
class Label:
    """A text in the plot.  `anchor`: of SVG."""

    x: float
    y: float
    text: str
    style: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart.  `title` says what it shows, `summary` what it says, for those who do not see it."""

    title: str
    summary: str
    x_label: str
    y_label: str
    width: float
    height: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...] = ()
    marks: tuple[Mark, ...] = ()
    labels: tuple[Label, ...] = ()

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the plot."""
        return LEFT, TOP, self.width - RIGHT, self.height - BOTTOM


def frame(
    width: float, height: float, x: tuple[float, float], y: tuple[float, float], log: bool = False
) -> tuple[Scale, Scale]:
    """Return the scales of a plot of this size; those of y grow upwards."""
    return (
        Scale(*x, LEFT, width - RIGHT, log),
        Scale(*y, height - BOTTOM, TOP, log),
    )


def nice_steps(low: float, high: float, most: int) -> list[float]:
    """Return round values between two, at most so many."""
    raw = (high - low) / max(most - 1, 1)
    if raw <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1.0, 2.0, 2.5, 5.0, 10.0) if s * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [
        round(i * step, 12)
        for i in range(first, first + most + 1)
        if i * step <= high + 1e-9 * step
    ]


def decades(low: float, high: float) -> list[float]:
    """Return the powers of ten, or of two where there are few of those, between two values."""
    for base in (10.0, 2.0):
        first = math.ceil(math.log(low, base) - 1e-9)
        last = math.floor(math.log(high, base) + 1e-9)
        if last - first >= 2:
            break
    return [base**i for i in range(first, last + 1)]


def ticks(values: Sequence[float], scale: Scale, *, whole: bool = False) -> tuple[Tick, ...]:
    """Return ticks at values, with as many decimals as tell them apart."""
    if whole:
        values = [v for v in values if v == int(v)]
    return tuple(Tick(scale.at(v), number(v)) for v in values)


def number(value: float) -> str:
    """Return a number for an axis."""
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


def path(points: Sequence[tuple[float, float]]) -> str:
    """Return points as SVG writes them."""
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of a line that keeps its height until the next point."""
    result: list[tuple[float, float]] = []
    for x, y in points:
        if result:
            result.append((x, result[-1][1]))
        result.append((x, y))
    return result


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right
            and self.top < other.bottom and other.top < self.bottom
        )  # fmt: skip


def _box(label: Label) -> _Box:
    """Return the room a label takes, for letters as wide as those of common fonts."""
    width = _LETTER * len(label.text)
    left = label.x - {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
    return _Box(left, label.y - 8.5, left + width, label.y + 2.5)


def name_marks(
    chart_box: tuple[float, float, float, float],
    names: Sequence[tuple[Mark, str]],
    marks: Sequence[Mark],
    taken: Sequence[Label],
) -> list[Label]:
    """Place the names of marks beside them, where they meet neither marks nor other labels.

    A name that finds no free place is left out: its mark still says it.
    """
    left, top, right, bottom = chart_box
    boxes = [_box(label) for label in taken]
    boxes += [_Box(m.x - m.radius, m.y - m.radius, m.x + m.radius, m.y + m.radius) for m in marks]
    placed = []
    for mark, text in names:
        for out in (7.0, 12.0, 20.0, 28.0):
            spots = (
                Label(mark.x + out, mark.y + 4, text, "name"),
                Label(mark.x - out, mark.y + 4, text, "name", "end"),
                Label(mark.x, mark.y + out + 8, text, "name", "middle"),
                Label(mark.x, mark.y - out, text, "name", "middle"),
                Label(mark.x + out, mark.y + out + 6, text, "name"),
                Label(mark.x - out, mark.y + out + 6, text, "name", "end"),
            )
            free = [l for l in spots if _free(_box(l), boxes, (left, top, right, bottom))]
            if free:
                placed.append(free[0])
                boxes.append(_box(free[0]))
                break
    return placed


def _free(box: _Box, others: Sequence[_Box], area: tuple[float, float, float, float]) -> bool:
    left, top, right, bottom = area
    inside = box.left >= left and box.right <= right and box.top >= top and box.bottom <= bottom
    return inside and not any(box.meets(o) for o in others)
