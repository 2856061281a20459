"""Multi-level tiling: reductions in register tiles, with the block that reads them on the tile."""

from __future__ import annotations

from toolkit.schedule.program import Recorder
from toolkit.schedule.tiling import product_of, split_reader
from toolkit.space.tiles import tile_product
from toolkit.targets.target import Target


def multi_level_tiling(sch: Recorder, target: Target) -> None:
    """Tile the reductions that are contiguous along their last axis; leave others as they are.

    A reduction that is an output, or that several blocks read, accumulates in a buffer of its own.
    Source: Shao et al. (NeurIPS 2022, section 3.2); the tile is that of `space/tiles.py`.
    """
    for block in sch.reductions():

        def direct(block: str = block) -> None:
            split_reader(sch.func, block, sch.step)
            tile_product(sch, product_of(sch.func, block, target.isa), target.isa)

        def cached(block: str = block) -> None:
            sch.cache_write(block)
            tile_product(sch, product_of(sch.func, block, target.isa), target.isa)

        if not sch.attempt(direct):
            sch.attempt(cached)
