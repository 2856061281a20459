"""Random compute location: each stage in some loop of the blocks that read it, or on its own."""

from __future__ import annotations

from functools import partial

from toolkit.ir.loop import nest_of, own_loops
from toolkit.schedule.program import Recorder
from toolkit.targets.target import Target


def random_compute_location(sch: Recorder, target: Target) -> None:
    """Sample where the stages that still stand alone are computed: likely where they fit best.

    The innermost loop that repeats no work keeps the least alive.
    Source: Shao et al. (NeurIPS 2022, appendix A.3, Random-Compute-Location).
    """
    outputs = {b.name for b in sch.func.outputs}
    for name in reversed(sch.blocks()):
        loops, block = nest_of(sch.func.body, name)
        if block.buffer in outputs or block.update_only or len(own_loops(loops)) != len(loops):
            continue
        place = sch.sample_compute_location(rework=1.0, deeper=6.0, name=f"{name} at")
        sch.attempt(partial(sch.compute_at, name, place))
