"""Holes: fields of schedule steps that are left open, with a domain that follows from the nest.

A sketch is a trace in which some fields are holes.  The domain of a hole is computed from the
function in the state in which its step is reached, and a decision that does not lie in it is
projected to a near value that does; so any decisions replay on any sketch, which is what mutation,
crossover and transfer between shapes rest on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

from toolkit.errors import ScheduleError
from toolkit.ir.loop import Loop, PrimFunc, walk_stmt
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.compute_at import candidate_loops, ComputeAt
from toolkit.schedule.steps.reverse_compute_at import producer_loops, ReverseComputeAt
from toolkit.schedule.steps.split import Split


@dataclass(frozen=True, slots=True)
class Hole:
    """An open field.  `name` is unique in its sketch and the key of its decision."""

    name: str

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return the domain in the state `func`: every value `step` may take, in a fixed order."""
        raise NotImplementedError

    def weights(self, domain: tuple[Any, ...]) -> tuple[float, ...]:
        """Return the prior probabilities of the values, summing to 1."""
        return (1.0 / len(domain),) * len(domain)

    def distance(self, a: Any, b: Any) -> float:
        """Return how far two values lie apart, for projection."""
        return 0.0 if a == b else 1.0

    def project(self, domain: tuple[Any, ...], value: Any) -> Any:
        """Return the value of the domain that is nearest to `value`, the first of several."""
        return min(domain, key=lambda v: self.distance(v, value))

    def _no_value(self) -> NoReturn:
        raise TypeError(
            f"the value of {self.name!r} is not known while the program is recorded; "
            "use sch.branch(...) where the structure itself is a choice"
        )

    def __bool__(self) -> bool:
        return self._no_value()

    def __int__(self) -> int:
        return self._no_value()


def divisors(n: int) -> tuple[int, ...]:
    """Return the divisors of n, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(dict.fromkeys([*small, *(n // d for d in reversed(small))]))


def _log_distance(a: tuple[int, ...], b: Any) -> float:
    """Return the distance between tiles in octaves, all factors counting alike."""
    other = tuple(b) if isinstance(b, tuple | list) else ()
    size = max(len(a), len(other))
    left, right = (1,) * (size - len(a)) + a, (1,) * (size - len(other)) + other
    return sum(abs(math.log2(x) - math.log2(max(y, 1))) for x, y in zip(left, right, strict=True))


@dataclass(frozen=True, slots=True)
class PerfectTile(Hole):
    """Factors of a `Split` whose product divides the extent: `n` loops in all, so n - 1 factors.

    `max_inner`: largest innermost factor.
    """

    n: int
    max_inner: int = 64

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return every tuple of n - 1 inner factors."""
        assert isinstance(step, Split)
        extent = step.find_loop(func, step.loop).extent
        found: list[tuple[int, ...]] = [()]
        rest = [extent]
        for level in range(self.n - 1):
            grown: list[tuple[int, ...]] = []
            left: list[int] = []
            for prefix, size in zip(found, rest, strict=True):
                for d in divisors(size):
                    if level == 0 and d > self.max_inner:
                        break
                    grown.append((d, *prefix))
                    left.append(size // d)
            found, rest = grown, left
        return tuple(sorted(found))

    def distance(self, a: Any, b: Any) -> float:
        """Return the distance in octaves."""
        return _log_distance(a, b)


@dataclass(frozen=True, slots=True)
class Tile(Hole):
    """The one factor of a `Split` that need not divide: at most `waste` of the work is done twice
    or skipped.  `multiple`: the factor is a multiple of it unless the extent is smaller."""

    max_inner: int = 64
    waste: float = 0.15
    multiple: int = 1

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return every factor, each in a tuple of its own."""
        assert isinstance(step, Split)
        extent = step.find_loop(func, step.loop).extent
        sizes = [
            t
            for t in range(1, min(extent, self.max_inner) + 1)
            if t % self.multiple == 0 and -(-extent // t) * t <= extent * (1 + self.waste)
        ]
        return tuple((t,) for t in sizes) or ((1,),)

    def distance(self, a: Any, b: Any) -> float:
        """Return the distance in octaves."""
        return _log_distance(a, b)


@dataclass(frozen=True, slots=True)
class OneOf(Hole):
    """One of several values, with prior probabilities (uniform if empty)."""

    choices: tuple[Any, ...]
    probabilities: tuple[float, ...] = ()

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return the choices."""
        return self.choices

    def weights(self, domain: tuple[Any, ...]) -> tuple[float, ...]:
        """Return the given probabilities, normalised."""
        if not self.probabilities:
            return (1.0 / len(domain),) * len(domain)
        total = sum(self.probabilities)
        return tuple(p / total for p in self.probabilities)

    def distance(self, a: Any, b: Any) -> float:
        """Return the difference of numbers in octaves; 0 or 1 for anything else."""
        if isinstance(a, int | float) and isinstance(b, int | float) and a > 0 and b > 0:
            return abs(math.log2(a) - math.log2(b))
        return 0.0 if a == b else 1.0


@dataclass(frozen=True, slots=True)
class ComputeLocation(Hole):
    """The loop of a `ComputeAt` or `ReverseComputeAt`; None leaves the block where it is."""

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return None and the loops at which the step is legal, outermost first."""
        assert isinstance(step, ComputeAt | ReverseComputeAt)
        of = candidate_loops if isinstance(step, ComputeAt) else producer_loops
        legal: list[Any] = [None]
        for loop in of(func, step.block):
            try:
                replace(step, loop=loop).apply(func)
            except ScheduleError:
                continue
            legal.append(loop)
        return tuple(legal)


Sketch = tuple[Step, ...]
Decisions = Mapping[str, Any]


def holes_of(step: Step) -> list[tuple[str, Hole]]:
    """Return the open fields of a step."""
    return [
        (f.name, value) for f in fields(step) if isinstance(value := getattr(step, f.name), Hole)
    ]


@dataclass(frozen=True, slots=True)
class Replay:
    """The function a sketch gives under decisions, its trace, and the decisions as they were taken.

    `log_prior`: sum of the logarithms of the prior probabilities of the decisions.
    """

    func: PrimFunc
    trace: tuple[Step, ...]
    decisions: dict[str, Any]
    log_prior: float


def replay(
    func: PrimFunc, sketch: Sketch, decisions: Decisions, rng: random.Random | None = None
) -> Replay:
    """Apply a sketch under decisions, each projected into its domain.

    Missing ones are drawn from the prior by `rng`
    (its most probable value without `rng`).  Raises `ScheduleError` where a step refuses."""
    taken: dict[str, Any] = {}
    trace: list[Step] = []
    log_prior = 0.0
    for step in sketch:
        closed: Step | None = step
        for field, hole in holes_of(step):
            if hole.name in taken:  # the same hole in two steps: one decision
                value = taken[hole.name]
            else:
                domain = hole.values(func, step)
                weights = hole.weights(domain)
                if hole.name in decisions:
                    value = hole.project(domain, decisions[hole.name])
                elif rng is not None:
                    value = rng.choices(domain, weights)[0]
                else:
                    value = domain[max(range(len(domain)), key=weights.__getitem__)]
                taken[hole.name] = value
                log_prior += math.log(max(weights[domain.index(value)], 1e-12))
            if value is None:
                closed = None
                break
            assert closed is not None
            closed = replace(closed, **{field: value})
        if closed is not None:
            func = closed.apply(func)
            trace.append(closed)
    return Replay(func, tuple(trace), taken, log_prior)


def loop_names(func: PrimFunc) -> list[str]:
    """Return the names of all loops of a function, in program order."""
    return [s.var for s in walk_stmt(func.body) if isinstance(s, Loop)]
