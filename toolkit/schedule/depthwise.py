"""Depthwise convolutions with channels last, for the default schedule: pixels share what they read.

On cores with many registers a tile holds pixels of several lines: the weights of all taps are
loaded once, and so is an element that several pixels reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.errors import ScheduleError
from toolkit.ir.expr import Load
from toolkit.ir.loop import Block, nest_of, PrimFunc, REDUCE
from toolkit.ir.regions import block_loads
from toolkit.ir.simplify import linear
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.partition import Partition
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.split import Split
from toolkit.schedule.tiling import product_of, Take, vectorize_tile
from toolkit.targets.isa import Isa

MOST_TAPS = 9
"""Taps of a depthwise convolution that are unrolled, with their weights in registers."""

TILE_PIXELS, FEW_PIXELS = 14, 8
"""Pixels of a tile of those, at most; and those from which on it should save a twentieth."""

AROUND_TILE = 6
"""Cycles around the sums of such a tile."""


def tile_taps(func: PrimFunc, reduction: str, isa: Isa, take: Take) -> PrimFunc:
    """Tile a depthwise convolution by rows of pixels, a vector of channels wide, all taps unrolled.

    An element is loaded once for all pixels of the tile that it reaches, and the weights of all
    taps stay in registers along a row.

    Raises `ScheduleError` where taps are many or registers few.
    """
    found = product_of(func, reduction, isa)
    column = found.column
    lanes = min(isa.lanes("float32"), column.extent)
    if isa.registers < 32 or lanes < 4 or not found.depthwise:
        raise ScheduleError("no vectors of channels that are summed apart")
    across = [d for d in found.rows if d.extent > 1][:2]
    _, block = nest_of(func.body, reduction)
    data = {l for l in block_loads(block) if l != found.weight}
    windows = [w for d in across for l in data if (w := _windows(l, block, d.axis)) is not None]
    if len(data) != 1 or found.depth > MOST_TAPS or len(windows) != 2:
        raise ScheduleError("no few taps over two axes of pixels")

    best: tuple[float, tuple[int, int]] | None = None
    # Of a single line every line of taps but one would be tested for padding, and compilers share
    # no loads across tests.
    for high in range(1 if block.guard is None else 2, min(across[1].extent, 4) + 1):
        for wide in range(2, across[0].extent + 1):
            count = high * wide
            if count > TILE_PIXELS:
                break
            loads = found.depth + windows[0].reach(wide) * windows[1].reach(high)
            cycles = max(count * found.depth, loads) / 2 + AROUND_TILE
            tiles = -(-across[0].extent // wide) * -(-across[1].extent // high)
            # Long tiles are worth their code only where they save something.
            cost = tiles * cycles * (1.05 if count > FEW_PIXELS else 1.0)
            if best is None or cost < best[0]:
                best = (cost, (wide, high))
    if best is None:
        raise ScheduleError("no row of pixels")

    take(Split(column.out, (lanes,), "shift" if column.extent % lanes else "perfect"))
    for d, size in zip(across, best[1], strict=True):
        take(Split(d.out, (size,), "shift" if d.extent % size else "perfect"))
    row, line = (d.out for d in across)
    # Weights stay the same along a line.
    outside = [f"{line}.0", f"{column.out}.0", f"{row}.0"]
    inside = [f"{line}.1", f"{row}.1", f"{column.out}.1"]
    rest = [v for v in found.outer if v not in (column.out, row, line)]
    func = take(Reorder((*rest, *outside, *inside)))
    func = take(ComputeAt(reduction, outside[-1]))
    func = vectorize_tile(func, reduction, outside[-1], inside, take, unroll=True)
    tiles = -(-across[1].extent // best[1][1])
    if block.guard is None or tiles < 3:
        return func
    # Padding lies above the first line of tiles and below the last.
    return take(Partition(f"{line}.0", (1, tiles - 1)))


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows along an axis of pixels: elements between the first of neighbours, and of each."""

    stride: int
    taps: int

    def reach(self, pixels: int) -> int:
        """Return how many elements so many neighbouring pixels read."""
        return min(pixels * self.taps, (pixels - 1) * self.stride + self.taps)


def _windows(data: Load, block: Block, pixels: str) -> Windows | None:
    """Return the windows along an axis; None where taps do not lie side by side."""
    place = next(a for a in block.axes if a.name == pixels)
    for index in data.indices:
        terms, _ = linear(index)
        taps = [a for a in block.axes if a.role == REDUCE and a in terms]
        if place in terms and len(taps) == 1 and terms[taps[0]] == 1 <= terms[place]:
            return Windows(terms[place], taps[0].extent)
    return None
