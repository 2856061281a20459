"""Reductions in the lanes of vectors, as parts of a schedule program."""

from __future__ import annotations

from toolkit.errors import ScheduleError
from toolkit.schedule.program import Recorder
from toolkit.schedule.tiling import lane_loop
from toolkit.targets.isa import Isa


def factor_in_lanes(sch: Recorder, block: str, isa: Isa) -> None:
    """Factor a reduction along contiguous elements by some vectors of partial results.

    Raises `ScheduleError` where no vector divides it.
    """
    loop = lane_loop(sch.func, block, isa)
    lanes = isa.lanes("float32")
    if loop.extent % lanes:
        raise ScheduleError("no vector divides the reduction")
    tile = sch.sample_vector_tile(lanes, tail="perfect", name=f"{block} lanes")
    _, inner = sch.split(loop.var, tile)
    sch.rfactor(block, inner)
    sch.vectorize(inner)
    sch.vectorize(sch.loops(block)[-1])


def whole_in_lanes(sch: Recorder, block: str, isa: Isa) -> None:
    """Run the loop of a reduction along contiguous elements in vectors, joined one by one."""
    sch.vectorize(lane_loop(sch.func, block, isa).var)
