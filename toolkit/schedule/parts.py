"""Reductions that are read at several places of one consumer: sums in parts, in vectors.

Where the order of float sums is prescribed, every fourth element goes to a sum of its own and the
consumer joins the four: it reads the reduction at constant places of one axis, and element by
element along the others.
"""

from __future__ import annotations

from toolkit.errors import ScheduleError
from toolkit.ir.expr import Load
from toolkit.ir.loop import Block, blocks, Loop, nest_of, own_loops, PrimFunc, REDUCE, SERIAL
from toolkit.ir.regions import block_loads
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.split import Split
from toolkit.schedule.tiling import flat_index, stride_in, Take, vectorize_tile
from toolkit.targets.isa import Isa


def tile_parts(func: PrimFunc, reduction: str, isa: Isa, take: Take) -> PrimFunc:
    """Compute vectors of neighbouring elements of the consumer, with all parts in registers.

    Raises `ScheduleError` where operands are not contiguous along the consumer's last axis, or the
    consumer needs more than half of the registers for one vector of each part.
    """
    _, block = nest_of(func.body, reduction)
    lanes = isa.lanes(block.value.dtype)
    readers = [b for b in blocks(func.body) if block.buffer in {l.buffer for l in block_loads(b)}]
    if lanes == 1 or block.guard is not None or len(readers) != 1:
        raise ScheduleError("no vectors of sums that one block reads")
    reader = readers[0]
    column = _column(func, reader)
    parts = len({l for l in block_loads(reader) if l.buffer == block.buffer})
    fits = [v for v in (4, 2, 1) if 2 * v * parts <= isa.registers and v * lanes <= column.extent]
    if not fits:
        raise ScheduleError("the parts do not fit in registers")
    width = fits[0] * lanes
    func = take(Split(column.var, (width,), "shift" if column.extent % width else "perfect"))
    func = take(ComputeAt(reduction, f"{column.var}.0"))
    own = own_loops(nest_of(func.body, reduction)[0])
    reduce = [l.var for l in own if l.role == REDUCE]
    spatial = [l.var for l in own if l.role != REDUCE]
    _, block = nest_of(func.body, reduction)
    result = Load(block.value.dtype, block.buffer, block.indices)
    if not reduce or not spatial or stride_in(flat_index(func, block, result), spatial[-1]) != 1:
        raise ScheduleError("the sums are not contiguous along the consumer's last axis")
    for load in block_loads(block):
        if stride_in(flat_index(func, block, load), spatial[-1]) not in (0, 1):
            raise ScheduleError("an operand is not contiguous along the consumer's last axis")
    return vectorize_tile(func, reduction, f"{column.var}.0", (f"{column.var}.1",), take)


def _column(func: PrimFunc, reader: Block) -> Loop:
    """Return the consumer's innermost loop, along which what it writes is contiguous."""
    loops, _ = nest_of(func.body, reader.name)
    own = own_loops(loops)
    if reader.reduce is not None or reader.guard is not None or not own:
        raise ScheduleError("the consumer is not element-wise")
    last = own[-1]
    result = Load(reader.value.dtype, reader.buffer, reader.indices)
    if last.kind != SERIAL or stride_in(flat_index(func, reader, result), last.var) != 1:
        raise ScheduleError("what the consumer writes is not contiguous")
    return last
