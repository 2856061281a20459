"""Multi-level tiling: a reduction's own loops, apart from what reads it."""

from __future__ import annotations

from toolkit.space.rules.reuse import has_reuse
from toolkit.space.rules.state import Match, Rule, State
from toolkit.space.tiles import tile_alone


def condition(state: State, block: str) -> Match:
    """A reduction whose reader cannot be fused: in registers, its tile would be better off."""
    return Match.ELSE if has_reuse(state, block) else Match.PASS


def apply(state: State, block: str) -> list[State]:
    """Tile the reduction where it stands; its reader stays in loops of its own."""
    return [state.then(lambda sch: tile_alone(sch, block, state.target.isa))]


MULTI_LEVEL_TILING = Rule("multi-level tiling", condition, apply)
"""Rule 3 of Zheng et al. (OSDI 2020, table 1)."""
