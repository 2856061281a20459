"""Holes: fields of schedule steps that are left open, with a domain that follows from the nest.

A sketch is a trace in which some fields are holes.  The domain of a hole is computed from the
function in the state in which its step is reached, and a decision that does not lie in it is
projected to a near value that does; so any decisions replay on any sketch, which is what mutation,
crossover and transfer between shapes rest on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

from toolkit.errors import ScheduleError
from toolkit.ir.loop import loops_of, PrimFunc
from toolkit.schedule.derived import Derived
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
    """The loop of a `ComputeAt` or `ReverseComputeAt`; None leaves the block where it is.

    `rework`: most elements a `ComputeAt` may compute, as a multiple of the buffer's.  `deeper`: how
    much likelier each loop is than the one around it.
    """

    rework: float = math.inf
    deeper: float = 1.0

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return None and the loops at which the step is legal, outermost first."""
        legal: list[Any] = [None]
        if isinstance(step, ComputeAt):
            for loop in candidate_loops(func, step.block):
                try:
                    done, size = replace(step, loop=loop).work(func)
                except ScheduleError:
                    continue
                if done <= self.rework * size:
                    legal.append(loop)
            return tuple(legal)
        assert isinstance(step, ReverseComputeAt)
        for loop in producer_loops(func, step.block):
            try:
                replace(step, loop=loop).apply(func)
            except ScheduleError:
                continue
            legal.append(loop)
        return tuple(legal)

    def weights(self, domain: tuple[Any, ...]) -> tuple[float, ...]:
        """Return weights that grow by `deeper` from one value to the next."""
        rising = [self.deeper**n for n in range(len(domain))]
        total = sum(rising)
        return tuple(w / total for w in rising)


@dataclass(frozen=True, slots=True)
class VectorTile(Hole):
    """The one factor of a `Split` whose inner loop will run in at most `vectors` of `lanes`.

    `tail`, of the split: 'guard' allows all whole vectors, the last of them perhaps not full;
    'shift' those that fit in the extent, and its divisors; 'perfect' those that divide it.
    """

    lanes: int
    vectors: int = 8
    tail: str = "guard"

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return every factor, each in a tuple of its own; the whole extent where none fits."""
        assert isinstance(step, Split)
        extent = step.find_loop(func, step.loop).extent
        most = self.lanes * self.vectors
        sizes = {t for t in range(self.lanes, most + 1, self.lanes) if t - extent < self.lanes}
        if self.tail == "perfect":
            sizes = {t for t in sizes if extent % t == 0}
        elif self.tail == "shift":
            sizes = {t for t in sizes if t <= extent}
            sizes.update(d for d in divisors(extent) if 2 * d > self.lanes and d <= most)
        return tuple((t,) for t in sorted(sizes)) or ((extent,),)

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
        extents = {l.var: l.extent for l in loops_of(func.body)}
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
class LoopOrder(Hole):
    """One of several orders of loops for a `Reorder`, each without the loops there are not.

    None, which leaves the step out, where fewer than two loops are left.
    """

    orders: tuple[tuple[str, ...], ...]

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return the orders that differ."""
        there = {l.var for l in loops_of(func.body)}
        found = (tuple(var for var in order if var in there) for order in self.orders)
        return tuple(dict.fromkeys(o if len(o) > 1 else None for o in found))

    def distance(self, a: Any, b: Any) -> float:
        """Return how many loops stand elsewhere."""
        left, right = tuple(a or ()), tuple(b or ())
        moved = sum(bool(x != y) for x, y in zip(left, right, strict=False))
        return float(moved + abs(len(left) - len(right)))


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
        extents = {l.var: l.extent for l in loops_of(func.body)}
        copies = math.prod(extents.get(var, 1) for var in (self.loop, *self.beside[1:]))
        if self.beside:
            copies *= -(-extents.get(self.beside[0], 1) // self.lanes)
        fits = self.loop in extents and copies <= self.limit
        return (None, self.loop) if fits else (None,)


@dataclass(frozen=True, slots=True)
class Around(Hole):
    """Another hole; where `usual`, known to be good, is in its domain, it has probability
    `usual_weight`."""

    of: Hole
    usual: Any
    usual_weight: float = 0.6

    def values(self, func: PrimFunc, step: Step) -> tuple[Any, ...]:
        """Return the domain of the other hole."""
        return self.of.values(func, step)

    def weights(self, domain: tuple[Any, ...]) -> tuple[float, ...]:
        """Return the usual value's weight, and the rest as the other hole divides it."""
        weights = self.of.weights(domain)
        if self.usual not in domain or len(domain) == 1:
            return weights
        place = domain.index(self.usual)
        share = (1.0 - self.usual_weight) / (1.0 - weights[place])
        return tuple(self.usual_weight if n == place else w * share for n, w in enumerate(weights))

    def distance(self, a: Any, b: Any) -> float:
        """Return the other hole's distance."""
        return self.of.distance(a, b)


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


@dataclass(frozen=True, slots=True)
class _Domain:
    values: tuple[Any, ...]
    weights: tuple[float, ...]
    places: Mapping[Any, int]


class _State:
    """The function after some steps, how it came to be, and the states that one choice leads to."""

    __slots__ = ("domains", "following", "func", "trace")

    def __init__(self, func: PrimFunc, trace: tuple[Step, ...] = ()) -> None:
        self.func, self.trace = func, trace
        self.following: dict[tuple[Any, ...], _State | ScheduleError] = {}
        self.domains: dict[tuple[int, str], _Domain] = {}

    def domain(self, step: Step, hole: Hole) -> _Domain:
        key = id(step), hole.name
        if key not in self.domains:
            values = hole.values(self.func, step)
            places = {value: place for place, value in enumerate(values)}
            self.domains[key] = _Domain(values, hole.weights(values), places)
        return self.domains[key]


@dataclass(frozen=True, slots=True)
class _Opened:
    """A step with the names of its fields that are holes or follow from the nest."""

    step: Step
    open: tuple[tuple[str, Hole | Derived], ...]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Steps of a sketch of which only the first has choices that are not made before it."""

    holes: tuple[Hole, ...]
    steps: tuple[_Opened, ...]


def _stretches(sketch: Sketch) -> list[_Stretch]:
    """Cut a sketch before each step that may have a choice to make."""
    found: list[_Stretch] = []
    decided: set[str] = set()
    for step in sketch:
        opened = _Opened(step, tuple(open_fields(step)))
        holes = tuple(hole for _, hole in opened.open if isinstance(hole, Hole))
        if not found or any(hole.name not in decided for hole in holes):
            found.append(_Stretch(holes, (opened,)))
        else:
            found[-1] = replace(found[-1], steps=(*found[-1].steps, opened))
        # Where the first choice leaves the step out, the others are not made.
        decided.update(hole.name for hole in holes[:1])
    return found


def _steps(sketch: Sketch, known: dict[int, _Stretch]) -> list[_Stretch]:
    """Cut a sketch before each step; steps that are `known`, by identity, are the same stretch."""
    for step in sketch:
        if id(step) not in known:
            opened = _Opened(step, tuple(open_fields(step)))
            holes = tuple(hole for _, hole in opened.open if isinstance(hole, Hole))
            known[id(step)] = _Stretch(holes, (opened,))
    return [known[id(step)] for step in sketch]


STATES = 8192
"""States one `Replayer` remembers: some kilobytes each."""

SKETCHES = 512
"""Sketches one `Replayer` remembers."""


class Replayer:
    """Replays sketches of one function; remembers the states that choices led to.

    What it returns does not depend on what it was asked before, but is the same object again as
    long as it is remembered.  `every_step`: states are those after each step, which sketches that
    begin with the same steps share; else those before each choice.
    """

    def __init__(self, func: PrimFunc, *, every_step: bool = False) -> None:
        self._root = _State(func)
        self._alone: dict[int, _Stretch] | None = {} if every_step else None
        """Steps by identity, each a stretch of its own."""
        self._count = 0
        self._sketches: dict[int, tuple[Sketch, list[_Stretch]]] = {}

    def replay(
        self, sketch: Sketch, decisions: Decisions, rng: random.Random | None = None
    ) -> Replay:
        """Apply a sketch under decisions; see `replay`."""
        if self._count > STATES or len(self._sketches) > SKETCHES:
            self._root, self._count, self._sketches = _State(self._root.func), 0, {}
            self._alone = None if self._alone is None else {}
        taken: dict[str, Any] = {}
        log_prior = 0.0
        state = self._root
        for stretch in self._cut(sketch):
            step = stretch.steps[0].step
            values: list[Any] = []
            for hole in stretch.holes:
                if hole.name not in taken:
                    domain = state.domain(step, hole)
                    place = _choose(hole, domain, decisions, rng)
                    taken[hole.name] = domain.values[place]
                    log_prior += math.log(max(domain.weights[place], 1e-12))
                values.append(taken[hole.name])
                if values[-1] is None:
                    break
            state = self._next(state, stretch, values, taken)
        return Replay(state.func, state.trace, taken, log_prior)

    def domains(self, sketch: Sketch, decisions: Decisions) -> dict[str, tuple[Any, ...]]:
        """Return the domain of each hole that is reached under decisions, in their order.

        Those not decided take their most probable value.
        """
        done = self.replay(sketch, decisions)
        found: dict[str, tuple[Any, ...]] = {}
        state = self._root
        for stretch in self._cut(sketch):
            values: list[Any] = []
            for hole in stretch.holes:
                if hole.name not in found:
                    found[hole.name] = state.domain(stretch.steps[0].step, hole).values
                values.append(done.decisions[hole.name])
                if values[-1] is None:
                    break
            state = self._next(state, stretch, values, done.decisions)
        return found

    def _next(
        self, state: _State, stretch: _Stretch, values: Sequence[Any], taken: Decisions
    ) -> _State:
        """Return the state that a stretch leads to under the values of its first step's holes."""
        key = id(stretch), *values
        found = state.following.get(key)
        if found is None:
            try:
                found = _state_after(state, stretch, values, taken)
            except ScheduleError as error:
                found = error.again()
            state.following[key] = found
            self._count += 1
        if isinstance(found, ScheduleError):
            raise found.again()
        return found

    def _cut(self, sketch: Sketch) -> list[_Stretch]:
        """Return the stretches of a sketch; keep both, which are told by identity."""
        if id(sketch) not in self._sketches:
            cut = _stretches(sketch) if self._alone is None else _steps(sketch, self._alone)
            self._sketches[id(sketch)] = sketch, cut
        return self._sketches[id(sketch)][1]


def _choose(hole: Hole, domain: _Domain, decisions: Decisions, rng: random.Random | None) -> int:
    """Return the place in its domain of what is decided, else drawn, else most probable."""
    if hole.name in decisions:
        wanted = decisions[hole.name]
        if isinstance(wanted, list):
            wanted = tuple(wanted)
        if wanted in domain.places:
            return domain.places[wanted]
        return domain.places[hole.project(domain.values, wanted)]
    if rng is not None:
        return rng.choices(range(len(domain.values)), domain.weights)[0]
    return max(range(len(domain.values)), key=domain.weights.__getitem__)


def _state_after(
    state: _State, stretch: _Stretch, values: Sequence[Any], taken: Decisions
) -> _State:
    """Close the steps of a stretch and apply them: the first with `values` of its holes."""
    func, trace = state.func, list(state.trace)
    first, *rest = stretch.steps
    closed = _closed(func, first, values)
    if closed is not None:
        func = closed.apply(func)
        trace.append(closed)
    for opened in rest:
        decided = [taken[hole.name] for _, hole in opened.open if isinstance(hole, Hole)]
        closed = _closed(func, opened, decided)
        if closed is not None:
            func = closed.apply(func)
            trace.append(closed)
    return _State(func, tuple(trace))


def _closed(func: PrimFunc, opened: _Opened, values: Sequence[Any]) -> Step | None:
    """Return a step with its holes decided and what follows from the nest; None without it."""
    decided = iter(values)
    changes: dict[str, Any] = {}
    for field, hole in opened.open:
        value = hole.value(func) if isinstance(hole, Derived) else next(decided)
        if value is None:
            return None
        changes[field] = value
    return replace(opened.step, **changes) if changes else opened.step


def replay(
    func: PrimFunc, sketch: Sketch, decisions: Decisions, rng: random.Random | None = None
) -> Replay:
    """Apply a sketch under decisions, each projected into its domain.

    Missing ones are drawn from the prior by `rng`
    (its most probable value without `rng`).  Raises `ScheduleError` where a step refuses."""
    return Replayer(func).replay(sketch, decisions, rng)


def loop_names(func: PrimFunc) -> list[str]:
    """Return the names of all loops of a function, in program order."""
    return [l.var for l in loops_of(func.body)]
