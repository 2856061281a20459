"""Add rfactor: reductions along contiguous elements as partial results in the lanes of vectors."""

from __future__ import annotations

from functools import partial

from toolkit.schedule.program import Recorder
from toolkit.space.lanes import factor_in_lanes, whole_in_lanes
from toolkit.targets.target import Target


def add_rfactor(sch: Recorder, target: Target) -> None:
    """Factor each untouched reduction along contiguous elements by some vectors, or run it whole.

    Source: Shao et al. (NeurIPS 2022, appendix A.3, Add-RFactor).
    """
    ways = sch.branch((factor_in_lanes, whole_in_lanes), (whole_in_lanes, factor_in_lanes))
    for way in ways:
        for block in sch.reductions():
            sch.attempt(partial(way, sch, block, target.isa))
