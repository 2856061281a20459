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
from toolkit.ir.loop import Loop, PrimFunc, Seq, Stmt, walk_stmt
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


@dataclass(frozen=True, slots=True)
class VectorTile(Hole):
    """The one factor of a `Split` whose inner loop will run in vectors of `lanes`.

    At most `vectors` of them.  With `room` for elements beyond the extent (the operand is padded)
    any whole vectors will do; without, whole vectors that fit, and the divisors of the extent.
    """

    lanes: int
    vectors: int = 8
    room: bool = False

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return every factor, each in a tuple of its own."""
        assert isinstance(step, Split)
        extent = step.find_loop(func, step.loop).extent
        most = self.lanes * self.vectors
        whole = range(self.lanes, most + 1, self.lanes)
        if self.room:
            sizes = {t for t in whole if t - extent < self.lanes}
        else:
            sizes = {t for t in whole if t <= extent}
            sizes.update(d for d in divisors(extent) if 2 * d > self.lanes and d <= most)
        return tuple((t,) for t in sorted(sizes)) or ((min(extent, most),),)

    def distance(self, a: Any, b: Any) -> float:
        """Return the distance in octaves."""
        return _log_distance(a, b)


@dataclass(frozen=True, slots=True)
class FittingTile(Hole):
    """The one factor of a `Split` whose inner loop is unrolled together with the loops `beside`.

    Copies are counted in vectors of `lanes` where a loop of `beside` will be vectorised, which is
    its first.  `limit`: most copies; with `registers` each copy is an accumulator, beside which one
    operand a vector of the first loop and one more are held.  `waste`: how much of the work may be
    done twice or skipped, 0 where the factor must divide.
    """

    beside: tuple[str, ...]
    lanes: int
    limit: int
    registers: bool = False
    waste: float = 0.0
    max_inner: int = 64

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return every factor, each in a tuple of its own."""
        assert isinstance(step, Split)
        extents = {s.var: s.extent for s in walk_stmt(func.body) if isinstance(s, Loop)}
        extent = extents[step.loop]
        vectors = -(-extents.get(self.beside[0], 1) // self.lanes) if self.beside else 1
        copies = vectors * math.prod(extents.get(var, 1) for var in self.beside[1:])
        held = vectors + 1 if self.registers else 0
        most = min(extent, self.max_inner, max(1, (self.limit - held) // copies))
        if not self.waste:
            return tuple((d,) for d in divisors(extent) if d <= most)
        allowed = extent * (1 + self.waste)
        return tuple((t,) for t in range(1, most + 1) if -(-extent // t) * t <= allowed)

    def weights(self, domain: tuple[Any, ...]) -> tuple[float, ...]:
        """Return weights in proportion to the factor of accumulators: they hide latency."""
        if not self.registers:
            return Hole.weights(self, domain)
        total = sum(t for (t,) in domain)
        return tuple(t / total for (t,) in domain)

    def distance(self, a: Any, b: Any) -> float:
        """Return the distance in octaves."""
        return _log_distance(a, b)


@dataclass(frozen=True, slots=True)
class FittingLoop(Hole):
    """Whether to unroll `loop`, or None, where it and the loops `beside` make at most `limit`
    copies; the first of `beside` counts in vectors of `lanes`."""

    loop: str
    beside: tuple[str, ...]
    lanes: int
    limit: int

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return None, and the loop where it fits."""
        extents = {s.var: s.extent for s in walk_stmt(func.body) if isinstance(s, Loop)}
        copies = math.prod(extents.get(var, 1) for var in (self.loop, *self.beside[1:]))
        if self.beside:
            copies *= -(-extents.get(self.beside[0], 1) // self.lanes)
        fits = self.loop in extents and copies <= self.limit
        return (None, self.loop) if fits else (None,)


@dataclass(frozen=True, slots=True)
class Derived:
    """A field that follows from the state of the nest: no decision, but not known beforehand."""

    def value(self, func: PrimFunc) -> Any:
        """Return the value in the state `func`; None leaves the step out."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ExtentOf(Derived):
    """The extent of a loop."""

    loop: str

    def value(self, func: PrimFunc) -> Any:
        """Return the extent; None where there is no such loop."""
        above = _loops_above(func.body, self.loop)
        return above[-1].extent if above else None


@dataclass(frozen=True, slots=True)
class LoopAround(Derived):
    """The loop directly around a loop."""

    loop: str

    def value(self, func: PrimFunc) -> Any:
        """Return the outer loop's name; None for an outermost loop."""
        above = _loops_above(func.body, self.loop)
        return above[-2].var if len(above) > 1 else None


@dataclass(frozen=True, slots=True)
class IfLoop(Derived):
    """A loop, unless a step such as `ComputeAt` left it out for having one iteration."""

    loop: str

    def value(self, func: PrimFunc) -> Any:
        """Return the loop, or None."""
        return self.loop if _loops_above(func.body, self.loop) else None


@dataclass(frozen=True, slots=True)
class LoopsThere(Derived):
    """Those of several loops that there are, in the order given."""

    loops: tuple[str, ...]

    def value(self, func: PrimFunc) -> Any:
        """Return the loops; None for fewer than two, which have no order."""
        there = {s.var for s in walk_stmt(func.body) if isinstance(s, Loop)}
        found = tuple(var for var in self.loops if var in there)
        return found if len(found) > 1 else None


def _loops_above(stmt: Stmt, var: str) -> list[Loop]:
    """Return the loops from the root down to the one named `var`; none where there is none."""
    if isinstance(stmt, Loop):
        if stmt.var == var:
            return [stmt]
        below = _loops_above(stmt.body, var)
        return [stmt, *below] if below else []
    for part in stmt.body if isinstance(stmt, Seq) else ():
        below = _loops_above(part, var)
        if below:
            return below
    return []


Sketch = tuple[Step, ...]
Decisions = Mapping[str, Any]


def open_fields(step: Step) -> list[tuple[str, Hole | Derived]]:
    """Return the fields of a step that are holes or follow from the nest, by name."""
    return [
        (f.name, value)
        for f in fields(step)
        if isinstance(value := getattr(step, f.name), Hole | Derived)
    ]


def holes_of(step: Step) -> list[tuple[str, Hole]]:
    """Return the holes of a step, by the name of the field."""
    return [(name, value) for name, value in open_fields(step) if isinstance(value, Hole)]


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
        for field, hole in open_fields(step):
            if isinstance(hole, Derived):
                value = hole.value(func)
            elif hole.name in taken:  # the same hole in two steps: one decision
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
