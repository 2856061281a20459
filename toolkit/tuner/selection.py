"""Choosing among measured schedules by time, RAM and flash: the front of whole models.

Each task has a front of its own, of trials that no other beats in cost, scratch and flash at once.
A model's RAM is decided by the step at which most is alive, its flash by the sum over its kernels,
its cost by the sum over its calls.  For a bound on RAM the tasks are independent but for flash,
which a multiplier trades against cost; all bounds and multipliers that matter give the front.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.errors import NestlingError
from toolkit.ir.program import Call, Program

OBJECTIVES = ("latency", "ram", "flash", "pareto")

BOUNDS = 24
"""Bounds on RAM that are tried, at most."""

MULTIPLIERS = 10
"""Prices of flash that are tried."""


@dataclass(frozen=True, slots=True)
class Choosable:
    """A measured schedule of a task.  `ram_bytes`: scratch, and storage no longer shared."""

    candidate: str
    cost: float
    ram_bytes: int
    flash_bytes: int


@dataclass(frozen=True, slots=True)
class Point:
    """A schedule for every task.  `ram_bytes`: of the arena, `flash_bytes`: of kernels and their
    constants, both added up from single kernels; a compiled model's are printed by `compile`.

    `choice`: the candidate of each task, by their keys.
    """

    cost: float
    ram_bytes: int
    flash_bytes: int
    choice: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Use:
    """What a task needs to know of its models.  `calls`: per inference; `alive`: bytes of the arena
    in use at each of its calls, scratch left out."""

    calls: float
    alive: tuple[int, ...]


def alive_bytes(program: Program) -> list[int]:
    """Return for each step the bytes of arena that tensors alive there cover, without scratch."""
    first: dict[str, int] = dict.fromkeys(program.inputs, 0)
    last: dict[str, int] = dict.fromkeys(program.inputs, 0)
    scratch: set[str] = set()
    for index, step in enumerate(program.steps):
        if isinstance(step, Call):
            scratch.update(step.scratch)
            for name in (*step.outputs, *step.inputs):
                if name in program.offsets:
                    first.setdefault(name, index)
                    last[name] = index
    for name in program.outputs:
        first.setdefault(name, 0)
        last[name] = len(program.steps)
    result = []
    for index in range(len(program.steps)):
        spans = sorted(
            (program.offsets[n], program.offsets[n] + program.types[n].nbytes)
            for n in first
            if first[n] <= index <= last[n] and n not in scratch
        )
        covered, end = 0, 0
        for start, stop in spans:
            covered += max(stop - max(start, end), 0)
            end = max(end, stop)
        result.append(covered)
    return result


def points(
    options: Mapping[str, Sequence[Choosable]], uses: Mapping[str, Use], floor_bytes: int
) -> list[Point]:
    """Return the front of all choices, fastest first.

    `floor_bytes`: of RAM that the model takes whatever is chosen.
    """
    limits = {floor_bytes}
    for key, found in options.items():
        limits.update(_ram(o, uses[key]) for o in found)
    bounds = sorted(b for b in limits if b >= floor_bytes)
    bounds = bounds[:: max(1, len(bounds) // BOUNDS)] + bounds[-1:]
    prices = _prices(options, uses)
    kept: dict[tuple[tuple[str, str], ...], Point] = {}
    for bound in bounds:
        for price in prices:
            point = _choose(options, uses, bound, price, floor_bytes)
            if point is not None:
                kept.setdefault(tuple(sorted(point.choice.items())), point)
    return front(kept.values())


def front(found: Iterable[Point]) -> list[Point]:
    """Return the points that no other beats in cost, RAM and flash at once, fastest first."""
    ordered = sorted(found, key=lambda p: (p.cost, p.ram_bytes, p.flash_bytes))
    result: list[Point] = []
    for p in ordered:
        if not any(q.ram_bytes <= p.ram_bytes and q.flash_bytes <= p.flash_bytes for q in result):
            result.append(p)
    return result


def _ram(option: Choosable, use: Use) -> int:
    return option.ram_bytes + max(use.alive, default=0)


def _prices(options: Mapping[str, Sequence[Choosable]], uses: Mapping[str, Use]) -> list[float]:
    """Return prices of a byte of flash, from nothing to more than any time is worth."""
    rates = [
        uses[key].calls * abs(a.cost - b.cost) / abs(a.flash_bytes - b.flash_bytes)
        for key, found in options.items()
        for a in found
        for b in found
        if a.flash_bytes != b.flash_bytes and a.cost != b.cost
    ]
    if not rates:
        return [0.0]
    low, high = math.log(min(rates) / 2), math.log(2 * max(rates))
    steps = [low + (high - low) * i / (MULTIPLIERS - 1) for i in range(MULTIPLIERS)]
    return [0.0, *map(math.exp, steps)]


def _choose(
    options: Mapping[str, Sequence[Choosable]],
    uses: Mapping[str, Use],
    bound: int,
    price: float,
    floor_bytes: int,
) -> Point | None:
    choice: dict[str, str] = {}
    cost, ram, flash = 0.0, floor_bytes, 0
    for key, found in options.items():
        use = uses[key]
        allowed = [o for o in found if _ram(o, use) <= bound]
        if not allowed:
            return None
        best = min(
            allowed,
            key=lambda o: (use.calls * o.cost + price * o.flash_bytes, o.ram_bytes, o.flash_bytes),
        )
        choice[key] = best.candidate
        cost += use.calls * best.cost
        ram = max(ram, _ram(best, use))
        flash += best.flash_bytes
    return Point(cost, ram, flash, choice)


def select(
    found: Sequence[Point], objective: str, ram: float | None, flash: float | None, name: str
) -> Point:
    """Return the best point within the limits; raise `NestlingError` where none is."""
    for what, limit, least in (
        ("RAM", ram, min(p.ram_bytes for p in found)),
        ("flash", flash, min(p.flash_bytes for p in found)),
    ):
        if limit is not None and least > limit:
            raise NestlingError(
                f"{name}: of all that was measured, nothing needs at most {limit:,.0f} bytes of "
                f"{what}; the smallest needs {least:,}.",
                hint="every trial is kept: a longer run, or a larger limit, goes on from here",
            )
    inside = [
        p
        for p in found
        if (ram is None or p.ram_bytes <= ram) and (flash is None or p.flash_bytes <= flash)
    ]
    if not inside:
        raise NestlingError(
            f"{name}: no schedule that was measured keeps both limits at once.",
            hint="every trial is kept: a longer run, or larger limits, go on from here",
        )
    orders = {
        "latency": lambda p: (p.cost, p.ram_bytes, p.flash_bytes),
        "pareto": lambda p: (p.cost, p.ram_bytes, p.flash_bytes),
        "ram": lambda p: (p.ram_bytes, p.cost, p.flash_bytes),
        "flash": lambda p: (p.flash_bytes, p.cost, p.ram_bytes),
    }
    return min(inside, key=orders[objective])


def told_cost(
    cost: float, ram_bytes: int, flash_bytes: int, default: Choosable, objective: str
) -> float:
    """Return what a strategy is told a candidate costs, so that it looks where the objective does.

    Sizes are relative to the default's; for `pareto` they count a little, so that the search does
    not only see the fast end.
    """
    weights = {"latency": (0.0, 0.0), "ram": (1.0, 0.0), "flash": (0.0, 1.0), "pareto": (0.2, 0.2)}
    by_ram, by_flash = weights[objective]
    ram = (ram_bytes + 64) / (default.ram_bytes + 64)
    flash = (flash_bytes + 64) / (default.flash_bytes + 64)
    return float(cost * ram**by_ram * flash**by_flash)
