"""The facade in which templates declare their knobs, and the space that templates make.

    def gemm(cfg: Config, sch: Recorder) -> None:
        i, j = sch.loops("y")
        cfg.define_split("tile_i", i, max_inner=8, fallback=4)
        cfg.define_annotate("ann_k", "k", ("none", "unroll"))
        i0, i1 = sch.split(i, cfg["tile_i"])
        ...

A knob is a hole; `fallback` is the value for kernels that nobody tuned.  The idea and the words are
those of AutoTVM (Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from toolkit.errors import NestlingError, ScheduleError
from toolkit.schedule.hole import (
    FittingLoop,
    FittingTile,
    Hole,
    LoopOrder,
    OneOf,
    PerfectTile,
    Sketch,
    Tile,
    VectorTile,
)
from toolkit.schedule.program import record, Recorder
from toolkit.space.task import Candidate, candidate, Task
from toolkit.targets.target import Target

_T = TypeVar("_T")


class Config:
    """The knobs of one template on one kernel, by name, and their fallback values."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.knobs: dict[str, Hole] = {}
        self.branches: dict[str, Any] = {}
        self.fallback: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Hole:
        """Return the hole of a knob that was defined."""
        if name not in self.knobs:
            known = ", ".join(self.knobs) or "none"
            raise NestlingError(f"there is no knob {name!r}.", hint=f"defined so far: {known}")
        return self.knobs[name]

    def _define(self, hole: Hole, fallback: Any) -> Hole:
        if hole.name in self.knobs or hole.name in self.branches:
            raise NestlingError(f"the knob {hole.name!r} is defined twice.")
        self.knobs[hole.name] = hole
        if fallback is not None:
            self.fallback[hole.name] = fallback
        return hole

    def define_split(
        self,
        name: str,
        *,
        parts: int = 2,
        max_inner: int = 64,
        waste: float = 0.0,
        fallback: tuple[int, ...] | None = None,
    ) -> Hole:
        """Define the factors of a split into `parts` loops that divide the extent.

        With `waste`, of a split in two, the factor need not divide: at most so much of the work is
        done twice or skipped.
        """
        if waste and parts == 2:
            return self._define(Tile(name, max_inner, waste), fallback)
        return self._define(PerfectTile(name, parts, max_inner), fallback)

    def define_vectors(
        self, name: str, *, vectors: int = 8, tail: str = "guard", fallback: Any = None
    ) -> Hole:
        """Define the factor of a split, with that tail, whose inner loop will be vectorised."""
        lanes = self.target.isa.lanes("float32")
        return self._define(VectorTile(name, lanes, vectors, tail), fallback)

    def define_unroll(
        self, name: str, beside: Sequence[str], *, registers: bool = False, limit: int = 224,
        fallback: Any = None,
    ) -> Hole:  # fmt: skip
        """Define the factor of a split whose inner loop will be unrolled with the loops `beside`.

        The first of `beside` counts in vectors.  With `registers`, each copy holds an accumulator,
        and the factor need not divide; without, at most `limit` copies are made.
        """
        isa = self.target.isa
        most, waste, inner = (isa.registers, 0.25, 32) if registers else (limit, 0.0, 16)
        lanes = isa.lanes("float32")
        hole = FittingTile(name, tuple(beside), lanes, most, registers, waste, inner)
        return self._define(hole, fallback)

    def define_reorder(
        self, name: str, orders: Sequence[Sequence[str]], *, fallback: Any = None
    ) -> Hole:
        """Define which of several orders loops have."""
        return self._define(LoopOrder(name, tuple(tuple(o) for o in orders)), fallback)

    def define_annotate(
        self, name: str, loop: str, beside: Sequence[str] = (), *, limit: int = 224,
        fallback: Any = None,
    ) -> Hole:  # fmt: skip
        """Define whether `loop` is unrolled, for `unroll`, where that makes at most `limit` copies
        with the loops `beside`."""
        lanes = self.target.isa.lanes("float32")
        return self._define(FittingLoop(name, loop, tuple(beside), lanes, limit), fallback)

    def define_knob(self, name: str, values: Sequence[Any], *, fallback: Any = None) -> Hole:
        """Define one of several values."""
        return self._define(OneOf(name, tuple(values)), fallback)

    def define_branch(
        self, name: str, sch: Recorder, values: Sequence[_T], *, fallback: _T | None = None
    ) -> _T:
        """Define a knob whose value decides which steps there are, and return that value.

        Unlike a hole, it may be compared and branched on: the program runs once for each value, and
        each run makes a sketch.
        """
        if name in self.knobs or name in self.branches:
            raise NestlingError(f"the knob {name!r} is defined twice.")
        # The first sketch is that of the fallback configuration.
        value: _T = sch.branch(*sorted(values, key=lambda v: v != fallback))
        self.branches[name] = value
        return value


Program = Callable[[Config, Recorder], None]


@dataclass(frozen=True, slots=True)
class Template:
    """A schedule written by hand, with knobs.  It raises `ScheduleError` on kernels of others."""

    name: str
    program: Program


@dataclass(frozen=True, slots=True)
class TemplateSpace:
    """The sketches of the first template that fits a task."""

    name: str
    templates: tuple[Template, ...]

    def sketches(self, task: Task) -> Sequence[Sketch]:
        """Return the sketches of the first template that fits, none where none does."""
        return self._first(task)[0]

    def fallback(self, task: Task) -> Candidate | None:
        """Return the candidate of the fallback configuration; None where no template fits."""
        sketches, decisions = self._first(task)
        return candidate(task, sketches[0], decisions, origin="fallback") if sketches else None

    def _first(self, task: Task) -> tuple[list[Sketch], dict[str, Any]]:
        for template in self.templates:
            fallbacks: list[dict[str, Any]] = []

            def program(sch: Recorder, template: Template = template) -> None:
                cfg = Config(task.target)
                template.program(cfg, sch)
                fallbacks.append(cfg.fallback)  # noqa: B023 - called before the next turn

            try:
                sketches = record(task.func, program)
            except ScheduleError:
                continue
            return sketches, fallbacks[0]
        return [], {}
