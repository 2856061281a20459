"""Probabilistic schedule programs in plain Python, recorded as sketches.

    def tiled(sch: Recorder) -> None:
        i, j, k = sch.loops("C")
        _, i_in = sch.split(i, sch.sample_perfect_tile(2, max_inner=8))
        _, j_in = sch.split(j, sch.sample_perfect_tile(2, max_inner=64))
        if sch.branch("unrolled", "plain") == "unrolled":
            sch.unroll(i_in)
        sch.vectorize(j_in)

    sketches = record(func, tiled)

`sample_*` returns a hole, whose value is not known while the program runs: `bool()` and `int()` of
it are refused.  Shapes are known, so ordinary `if` and `for` on them are fine; where structure
itself is a choice, `branch` makes a sketch for each way.  Replaying a sketch never runs the Python
again.  The idea is that of MetaSchedule (Shao et al., NeurIPS 2022, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolkit.errors import ScheduleError
from toolkit.ir.loop import blocks, nest_of, PrimFunc
from toolkit.schedule.derived import Derived
from toolkit.schedule.hole import (
    ComputeLocation,
    FittingLoop,
    FittingTile,
    Hole,
    LoopOrder,
    OneOf,
    open_fields,
    PerfectTile,
    Sketch,
    Tile,
    VectorTile,
)
from toolkit.schedule.steps.annotate import Annotate, Parallel, Unroll, Vectorize
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_read import CacheRead
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.decompose_reduction import DecomposeReduction
from toolkit.schedule.steps.fuse import Fuse
from toolkit.schedule.steps.inline import Inline
from toolkit.schedule.steps.merge_dims import MergeDims
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.pad import PadConstant
from toolkit.schedule.steps.pad_read import PadRead
from toolkit.schedule.steps.partition import Partition
from toolkit.schedule.steps.prefetch import Prefetch
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.reverse_compute_at import ReverseComputeAt
from toolkit.schedule.steps.reverse_inline import ReverseInline
from toolkit.schedule.steps.rfactor import RFactor
from toolkit.schedule.steps.roll_storage import RollStorage
from toolkit.schedule.steps.shift_operand import ShiftOperand
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.storage_align import StorageAlign
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.schedule.steps.transform_layout import TransformLayout
from toolkit.schedule.steps.widen_read import WidenRead

BRANCH_LIMIT = 256
"""Sketches one program may make."""


class Recorder:
    """What a program is given: records steps and applies them, holes by a stand-in value."""

    def __init__(self, func: PrimFunc, path: Sequence[int]) -> None:
        self.func = func
        self.steps: list[Step] = []
        self.path = tuple(path)
        self.widths: list[int] = []
        self._count = 0
        self._taken: dict[str, Any] = {}

    @classmethod
    def resume(cls, func: PrimFunc, steps: Sequence[Step], taken: Mapping[str, Any]) -> Recorder:
        """Return a recorder that goes on where one stopped: its `func`, `steps` and `taken`."""
        sch = cls(func, ())
        sch.steps, sch._taken, sch._count = list(steps), dict(taken), len(taken)
        return sch

    @property
    def taken(self) -> Mapping[str, Any]:
        """The stand-in values of the holes so far."""
        return self._taken

    # Questions

    def blocks(self) -> list[str]:
        """Return the names of the blocks, in program order."""
        return [b.name for b in blocks(self.func.body)]

    def reductions(self) -> list[str]:
        """Return the names of the blocks that reduce and initialise what they reduce to."""
        return [
            b.name for b in blocks(self.func.body) if b.reduce is not None and not b.update_only
        ]

    def loops(self, block: str) -> list[str]:
        """Return the names of the loops around a block, outermost first."""
        return [loop.var for loop in nest_of(self.func.body, block)[0]]

    # Choices

    def _name(self, name: str | None) -> str:
        self._count += 1
        return name or f"d{self._count - 1}"

    def sample_perfect_tile(self, n: int, *, max_inner: int = 64, name: str | None = None) -> Hole:
        """Return the factors of a split into `n` loops that divide the extent."""
        return PerfectTile(self._name(name), n, max_inner)

    def sample_tile(
        self,
        *,
        max_inner: int = 64,
        waste: float = 0.15,
        multiple: int = 1,
        name: str | None = None,
    ) -> Hole:
        """Return the factor of a split that need not divide."""
        return Tile(self._name(name), max_inner, waste, multiple)

    def sample_categorical(
        self, values: Sequence[Any], probabilities: Sequence[float] = (), *, name: str | None = None
    ) -> Hole:
        """Return one of `values`."""
        return OneOf(self._name(name), tuple(values), tuple(probabilities))

    def sample_vector_tile(
        self, lanes: int, *, vectors: int = 8, tail: str = "guard", name: str | None = None
    ) -> Hole:
        """Return the factor of a split with that tail whose inner loop will be vectorised."""
        return VectorTile(self._name(name), lanes, vectors, tail)

    def sample_register_tile(
        self,
        beside: Sequence[str],
        lanes: int,
        registers: int,
        *,
        waste: float = 0.25,
        max_inner: int = 32,
        name: str | None = None,
    ) -> Hole:
        """Return the factor of a split whose inner loop will be unrolled over accumulators.

        `beside`: the loop of the vectors, then others that are unrolled with it.
        """
        return FittingTile(
            self._name(name), tuple(beside), lanes, registers, True, waste, max_inner
        )

    def sample_unroll_tile(
        self, beside: Sequence[str], lanes: int, limit: int, *, name: str | None = None
    ) -> Hole:
        """Return the factor of a split, a divisor, whose inner loop will be unrolled.

        The loops `beside`, the first in vectors, are unrolled too: at most `limit` copies.
        """
        return FittingTile(self._name(name), tuple(beside), lanes, limit, max_inner=16)

    def sample_unrolled(
        self, loop: str, beside: Sequence[str], lanes: int, limit: int, *, name: str | None = None
    ) -> Hole:
        """Return the loop for `unroll`, or no step; it is the loop only within `limit` copies."""
        return FittingLoop(self._name(name), loop, tuple(beside), lanes, limit)

    def sample_order(self, *orders: Sequence[str], name: str | None = None) -> Hole:
        """Return one of several orders for `reorder`; loops that there are not are left out."""
        return LoopOrder(self._name(name), tuple(tuple(order) for order in orders))

    def sample_compute_location(
        self, *, rework: float = math.inf, deeper: float = 1.0, name: str | None = None
    ) -> Hole:
        """Return the loop of a `compute_at`, or no move.

        `rework`: most elements it may compute, as a multiple of the buffer's; `deeper`: how much
        likelier each loop is than the one around it.
        """
        return ComputeLocation(self._name(name), rework, deeper)

    def branch(self, *ways: Any) -> Any:
        """Return one of `ways`; the program is recorded once for each."""
        depth = len(self.widths)
        self.widths.append(len(ways))
        return ways[self.path[depth] if depth < len(self.path) else 0]

    # Steps

    def attempt(self, part: Callable[[], object]) -> bool:
        """Run a part of a program whose steps may be refused: all of them are taken, or none."""
        kept = self.func, len(self.steps), self._count, dict(self._taken)
        try:
            part()
        except ScheduleError:
            self.func, steps, self._count, self._taken = kept
            del self.steps[steps:]
            return False
        return True

    def legal(self, part: Callable[[], object]) -> bool:
        """Tell whether every step of a part of a program is taken; take none."""
        kept = self.func, len(self.steps), self._count, dict(self._taken), len(self.widths)
        done = self.attempt(part)
        self.func, steps, self._count, self._taken, widths = kept
        del self.steps[steps:], self.widths[widths:]
        return done

    def step(self, step: Step) -> PrimFunc:
        """Record a step and return the new function: a `Take` of `toolkit.schedule.tiling`."""
        self.take(step)
        return self.func

    def take(self, step: Step) -> None:
        """Record a step of any kind."""
        self.steps.append(step)
        closed: Step | None = step
        for field, hole in open_fields(step):
            if isinstance(hole, Derived):
                value = hole.value(self.func)
            else:
                if hole.name not in self._taken:
                    domain = hole.values(self.func, step)
                    self._taken[hole.name] = domain[-1]
                value = self._taken[hole.name]
            if value is None:
                return
            assert closed is not None
            closed = replace(closed, **{field: value})
        assert closed is not None
        self.func = closed.apply(self.func)

    def split(self, loop: str, factors: Any, tail: str = "perfect") -> list[str]:
        """Split a loop by factors (a tuple or a hole); return the names of the new loops."""
        self.take(Split(loop, factors, tail))
        if isinstance(factors, PerfectTile):
            count = factors.n
        elif isinstance(factors, Tile):
            count = 2
        else:
            count = len(self._taken[factors.name] if isinstance(factors, Hole) else factors) + 1
        return [f"{loop}.{i}" for i in range(count)]

    def fuse(self, outer: str, inner: str) -> str:
        """Fuse two nested loops; return the name of the fused loop."""
        self.take(Fuse(outer, inner))
        return f"{outer}+{inner}"

    def reorder(self, *loops: Any) -> None:
        """Put nested loops in this order: names, or one hole for all of them."""
        whole = len(loops) == 1 and isinstance(loops[0], Hole | Derived)
        self.take(Reorder(loops[0] if whole else loops))

    def partition(self, loop: str, at: tuple[int, ...]) -> list[str]:
        """Split the range of a loop at bounds; return the names of the loops of the pieces."""
        self.take(Partition(loop, at))
        return [f"{loop}_p{n}" for n in range(len(at) + 1)]

    def unroll(self, loop: Any) -> None:
        """Unroll a loop."""
        self.take(Unroll(loop))

    def vectorize(self, loop: Any) -> None:
        """Vectorise a loop."""
        self.take(Vectorize(loop))

    def parallel(self, loop: str) -> None:
        """Run a loop on several cores."""
        self.take(Parallel(loop))

    def tensorize(self, loop: str, intrinsic: Any) -> None:
        """Compute the nest at a loop by a tensor intrinsic."""
        self.take(Tensorize(loop, intrinsic))

    def shift_operand(self, block: str, operand: str) -> None:
        """Count the signed bytes of an operand of a sum of products from -128."""
        self.take(ShiftOperand(block, operand))

    def prefetch(self, operand: str, loop: str, distance: Any) -> None:
        """Let each iteration of a loop ask for what of an operand a later one reads."""
        self.take(Prefetch(operand, loop, distance))

    def annotate(self, loop: str, key: str, value: Any) -> None:
        """Keep a note on a loop."""
        self.take(Annotate(loop, key, value))

    def inline(self, block: str) -> None:
        """Inline an element-wise block into its consumers."""
        self.take(Inline(block))

    def reverse_inline(self, block: str) -> None:
        """Compute an element-wise block where its operand is stored."""
        self.take(ReverseInline(block))

    def compute_at(self, block: str, loop: Any) -> None:
        """Compute a block inside a loop (a name, or a hole) of its consumers."""
        self.take(ComputeAt(block, loop))

    def reverse_compute_at(self, block: str, loop: Any) -> None:
        """Compute a block inside a loop (a name, or a hole) of its producer."""
        self.take(ReverseComputeAt(block, loop))

    def cache_write(self, block: str) -> str:
        """Let a block write a buffer of its own; return the name of the copying block."""
        self.take(CacheWrite(block))
        return f"{block}_write"

    def cache_read(self, block: str, operand: str, loop: Any) -> str:
        """Let a block read a copy of what an iteration of a loop needs; return the copying block's
        name."""
        self.take(CacheRead(block, operand, loop))
        return f"{block}_{operand}"

    def widen_read(self, block: str, operand: str, loop: Any, dtype: str) -> str:
        """Let a block read a copy in a wider type; return the copying block's name."""
        self.take(WidenRead(block, operand, loop, dtype))
        return f"{block}_{operand}"

    def pad_read(self, block: str, operand: str, phases: tuple[int, ...] = ()) -> str:
        """Let a block read a copy with padding around it; return the copying block's name."""
        self.take(PadRead(block, operand, phases))
        return f"{block}_{operand}"

    def rfactor(self, block: str, loop: str) -> str:
        """Factor a reduce loop out into partial results; return the name of the partial block."""
        self.take(RFactor(block, loop))
        return f"{block}_rf"

    def decompose_reduction(self, block: str, loop: str) -> str:
        """Initialise a reduction before a loop; return the name of the initialising block."""
        self.take(DecomposeReduction(block, loop))
        return f"{block}_init"

    def pad_constant(self, loop: str, operand: str, dim: int, multiple: Any) -> None:
        """Round a loop up, feeding the extra elements from a zero-padded constant."""
        self.take(PadConstant(loop, operand, dim, multiple))

    def pack(self, operand: Any, dim: int, factor: Any) -> None:
        """Lay out a constant operand in tiles of a dimension."""
        self.take(Pack(operand, dim, factor))

    def transform_layout(self, buffer: str, order: Any) -> None:
        """Store the dimensions of a local or constant buffer in another order."""
        self.take(TransformLayout(buffer, order))

    def merge_dims(self, buffer: str, dim: int) -> None:
        """Store two neighbouring dimensions of a local buffer as one."""
        self.take(MergeDims(buffer, dim))

    def storage_align(self, buffer: str, dim: int, multiple: Any) -> None:
        """Give a dimension of a local buffer room for a multiple of elements."""
        self.take(StorageAlign(buffer, dim, multiple))

    def roll_storage(self, buffer: str, loop: str, rows: Any = 0) -> None:
        """Make the rows of a buffer as the windows of a loop reach them, keeping `rows` of them."""
        self.take(RollStorage(buffer, loop, rows))


Program = Callable[[Recorder], None]


def record(func: PrimFunc, program: Program) -> list[Sketch]:
    """Run a program once for each combination of its branches; return the sketches.

    A way on which a step refuses is left out; if every way refuses, the first refusal is raised.
    """
    sketches: list[Sketch] = []
    pending: list[tuple[int, ...]] = [()]
    first: ScheduleError | None = None
    while pending:
        path = pending.pop()
        recorder = Recorder(func, path)
        try:
            program(recorder)
        except ScheduleError as error:
            first = first or error
        else:
            sketch = tuple(recorder.steps)
            if sketch not in sketches:
                sketches.append(sketch)
        for depth in range(len(path), len(recorder.widths)):
            head = (*path, *(0,) * (depth - len(path)))
            pending.extend((*head, way) for way in range(1, recorder.widths[depth]))
        if len(sketches) + len(pending) > BRANCH_LIMIT:
            raise ScheduleError(f"the program branches into more than {BRANCH_LIMIT} sketches.")
    if not sketches and first is not None:
        raise first
    return sketches
