"""Integer products tap by tap, channels in the lanes of vectors: depthwise convolutions."""

from __future__ import annotations

from toolkit.errors import ScheduleError
from toolkit.ir.loop import Block, nest_of, PrimFunc, REDUCE
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.pad_read import PadRead
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.schedule.tensor_default import (
    COPY_BYTES,
    fold_zero,
    stage_copy,
    sum_of,
    Way,
)
from toolkit.schedule.tiling import copied, dim_of, flat_index, split_reader, stride_in, Take
from toolkit.targets.isa import Isa
from toolkit.targets.isas import TENSOR_INTRINSICS


def row_taps(func: PrimFunc, reduction: str, isa: Isa, take: Take, way: Way) -> PrimFunc:
    """Accumulate neighbouring pixels of a vector of channels, a tap at a time.

    Each tap's weights are loaded once for all `way.rows` pixels.  Reduce loops stay loops: with
    them unrolled, compilers keep what taps share in more registers than there are.
    """
    lanes = TENSOR_INTRINSICS[way.intrinsic].lanes()
    func = split_reader(func, reduction, take)
    found = sum_of(func, reduction)
    factors, block = found.factors, found.block
    outer, drive, spatial = found.outer, found.drive, found.spatial
    column = spatial[-1]
    if len(spatial) < 3:
        raise ScheduleError("no rows of pixels")
    if any(
        stride_in(flat_index(func, block, load), drive[column.name]) != 1
        for load in (factors.data, factors.weight)
    ):
        raise ScheduleError("channels of an operand do not lie side by side")
    if dim_of(factors.weight, column.name) is None or column.extent % lanes:
        raise ScheduleError("channels do not fill vectors")

    copy = None
    if block.guard is not None:
        func, copy = copied(func, PadRead(reduction, factors.data.buffer), take)
    func = fold_zero(func, reduction, take)

    row, out_row = spatial[-2], outer[-2]
    count = pixels(row.extent, way.rows)
    take(Split(out_row, (count,), "perfect" if row.extent % count == 0 else "shift"))
    parts = 1 if copy is None else _parts(func, copy, block, lanes)
    take(Split(outer[-1], (column.extent // parts // lanes, lanes)))
    apart, vector, lane = (f"{outer[-1]}.{n}" for n in range(3))
    tiles = [outer[0], apart, *outer[1:-2], f"{out_row}.0", vector]
    inside = [f"{out_row}.1", lane]
    func = take(Reorder((*tiles, *inside)))
    func = take(ComputeAt(reduction, tiles[-1]))
    if copy is not None:
        func = stage_copy(func, copy, tiles[:-1], take)
    own, _ = nest_of(func.body, reduction)
    names = [l.var for l in own]
    steps = [l.var for l in own if l.role == REDUCE]
    tile = [v for v in names[names.index(tiles[-1]) + 1 :] if v not in steps]
    func = take(Reorder((*steps, *tile)))
    for var in tile[:-1]:
        take(Unroll(var))
    take(Tensorize(tile[-1], way.intrinsic))
    take(Unroll(inside[0]))
    return take(Vectorize(inside[1]))


def _parts(func: PrimFunc, copy: str, block: Block, lanes: int) -> int:
    """Return in how many parts channels are taken, so that the rows copied for one are few."""
    *_, width, channels = func.buffers()[nest_of(func.body, copy)[1].buffer].shape
    taps = next(a.extent for a in block.axes if a.role == REDUCE)
    for parts in range(1, channels // lanes + 1):
        if channels % (parts * lanes) == 0 and taps * width * channels // parts <= COPY_BYTES:
            return parts
    raise ScheduleError("the copy of activations takes too much memory")


def pixels(extent: int, most: int) -> int:
    """Return how many pixels a tile has: as few tiles as can be, of as few pixels each."""
    tiles = -(-extent // most)
    return -(-extent // tiles)
