"""Multi-level tiling with fusion: a product in register tiles, its reader on the tile."""

from __future__ import annotations

from toolkit.schedule.program import Recorder
from toolkit.schedule.tiling import product_of, split_reader
from toolkit.space.rules.reuse import fusible, has_reuse
from toolkit.space.rules.state import Match, Rule, State
from toolkit.space.tiles import tile_product


def condition(state: State, block: str) -> Match:
    """A product whose one reader is element-wise is best read while it is in registers."""
    found = has_reuse(state, block) and fusible(state, block) is not None
    return Match.APPLY if found else Match.PASS


def apply(state: State, block: str) -> list[State]:
    """Tile the reader, and compute the product tile by tile."""

    def program(sch: Recorder) -> None:
        split_reader(sch.func, block, sch.step)
        tile_product(sch, product_of(sch.func, block, state.target.isa), state.target.isa)

    return [state.then(program)]


MULTI_LEVEL_TILING_FUSED = Rule("multi-level tiling with fusion", condition, apply)
"""Rule 4 of Zheng et al. (OSDI 2020, table 1)."""
