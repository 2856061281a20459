"""Which algorithm a kernel uses: the first step of its trace, by an analytic cost.

A block stays as it is written (direct) unless another form wins clearly.  A 1x1 convolution needs
no step: it is a product of matrices as it stands, and `Fuse` makes one loop of its pixels where a
trace wants one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toolkit.errors import ScheduleError
from toolkit.ir.loop import blocks, PrimFunc
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.windows import Windows, windows_of
from toolkit.schedule.steps.winograd import POINTS, tile_counts, unsuitable, Winograd
from toolkit.schedule.tiling import choose_tile, FAR_BYTES, Tile
from toolkit.targets.isa import Isa

CLEARLY = 0.85
"""Of the cycles of what it replaces, another form may take so many: it needs more memory."""

TRANSFORM_CYCLES = {2: 45, 4: 220}
"""Of F(m x m, 3x3): to transform a vector of channels of a tile, in or out; measured."""

VECTOR_REGISTERS = 16
"""What cores have at least on which transforms pay; Helium has 8."""

NEAR_BYTES = 1024 * 1024
"""Constants of this size stay in the second-level cache."""

LATENCY = 4
"""Cycles of a multiply-add: of two a cycle, accumulators of a tile wait for themselves."""

MOST_TILES = 8
"""Register tiles that are transformed at once, at most."""

DISTANT_BYTES = 8 * 1024 * 1024
"""Constants beyond this come from memory, at `DISTANT_RATE` bytes a cycle."""

DISTANT_RATE = 8


def rounds(trace: Sequence[Step]) -> bool:
    """Tell whether a trace chooses an algorithm that rounds otherwise than the direct one."""
    return any(isinstance(step, Winograd) for step in trace)


@dataclass(frozen=True, slots=True)
class WinogradPlan:
    """How a Winograd convolution is scheduled: `many` register tiles are transformed at once.

    `cycles`: what it takes, by the model of `choose_tile`.
    """

    step: Winograd
    tile: Tile
    many: int
    cycles: float


def algorithms(func: PrimFunc, isa: Isa) -> Iterator[WinogradPlan]:
    """Yield the forms of a block of `func` that win clearly over direct ones, best first.

    None for microcontrollers, where flash and RAM are what is short.
    """
    if isa.registers < VECTOR_REGISTERS:
        return
    for block in blocks(func.body):
        if block.reduce != "sum" or len(block.axes) != 7:
            continue
        found = winograd_plans(func, block.name, isa)
        if not found:
            continue
        direct = math.prod(a.extent for a in block.axes) / (2 * isa.lanes(block.value.dtype))
        best, kept = direct, []
        for plan in found:
            if plan.cycles <= CLEARLY * best:
                best = plan.cycles
                kept.append(plan)
        yield from reversed(kept)


def winograd_plans(func: PrimFunc, block: str, isa: Isa) -> list[WinogradPlan]:
    """Return the plans of a block for each m, smallest first; none where it has no such form."""
    try:
        windows = windows_of(Winograd(block, "", (0, 1), 2), func, block)
    except ScheduleError:
        return []
    lanes = isa.lanes(windows.weight.dtype)
    channels = (windows.inner.extent, windows.outer.extent)
    if lanes == 1 or unsuitable(windows) is not None or any(c % lanes for c in channels):
        return []
    plans = (_winograd_plan(windows, m, isa) for m in sorted(POINTS))
    return [plan for plan in plans if plan is not None]


def _winograd_plan(windows: Windows, m: int, isa: Isa) -> WinogradPlan | None:
    tiles, size = math.prod(tile_counts(windows, m)), (m + 2) ** 2
    inner, outer = windows.inner.extent, windows.outer.extent
    tile = choose_tile(tiles, outer, isa, pad=False, max_rows=32, depth=inner)
    if min(windows.out) < m or outer % tile.columns:
        return None
    lanes = isa.lanes(windows.weight.dtype)
    vectors = tile.columns // lanes
    stream = _stream_cycles(4 * size * inner * outer)

    def product(shape: tuple[int, int]) -> float:
        """Return the cycles of the product with so many rows a tile, and tiles a block."""
        rows, many = shape
        step = max(rows * vectors / 2, (rows + vectors) / 2, LATENCY)
        work = many * step * size * inner * outer / tile.columns
        return -(-tiles // (rows * many)) * max(work, stream)

    shapes = [
        (rows, many)
        for rows in range(tile.rows, 0, -1)
        for many in range(1, min(tiles // rows, MOST_TILES) + 1)
    ]
    rows, many = best = min(shapes, key=product)
    transforms = tiles * (inner + outer) / lanes * TRANSFORM_CYCLES[m]
    step = Winograd(windows.block.name, windows.weight.buffer, windows.kernel, m)
    return WinogradPlan(step, Tile(rows, tile.columns), many, product(best) + transforms)


def _stream_cycles(nbytes: int) -> float:
    """Return the cycles in which constants come from where they lie."""
    if nbytes <= NEAR_BYTES:
        return 0.0
    return nbytes / (FAR_BYTES if nbytes <= DISTANT_BYTES else DISTANT_RATE)
