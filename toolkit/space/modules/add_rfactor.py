"""Add rfactor: reductions along contiguous elements as partial results in the lanes of vectors."""

from __future__ import annotations

from functools import partial

from toolkit.errors import ScheduleError
from toolkit.schedule.program import Recorder
from toolkit.schedule.tiling import lane_loop
from toolkit.targets.target import Target


def add_rfactor(sch: Recorder, target: Target) -> None:
    """Factor each untouched reduction along contiguous elements by some vectors, or run it whole.

    Source: Shao et al. (NeurIPS 2022, appendix A.3, Add-RFactor).
    """
    lanes = target.isa.lanes("float32")

    def factored(block: str) -> None:
        loop = lane_loop(sch.func, block, target.isa)
        if loop.extent % lanes:
            raise ScheduleError("no vector divides the reduction")
        tile = sch.sample_vector_tile(lanes, tail="perfect", name=f"{block} lanes")
        _, inner = sch.split(loop.var, tile)
        sch.rfactor(block, inner)
        sch.vectorize(inner)
        sch.vectorize(sch.loops(block)[-1])

    def whole(block: str) -> None:
        sch.vectorize(lane_loop(sch.func, block, target.isa).var)

    for way in sch.branch((factored, whole), (whole, factored)):
        for block in sch.reductions():
            sch.attempt(partial(way, block))
