"""Add cache stage: let a reduction without a fusible reader write a buffer of its own."""

from __future__ import annotations

from toolkit.space.rules.reuse import fusible, has_reuse
from toolkit.space.rules.state import Match, Rule, State


def condition(state: State, block: str) -> Match:
    """A reduction that is an output, or that several blocks read: a copy will be its reader."""
    return Match.APPLY if has_reuse(state, block) and fusible(state, block) is None else Match.PASS


def apply(state: State, block: str) -> list[State]:
    """Add the stage; the rules look at the block again.  None where that does not help."""
    cached = state.then(lambda sch: sch.cache_write(block), stay=True)
    return [cached] if fusible(cached, block) is not None else []


ADD_CACHE_STAGE = Rule("add cache stage", condition, apply)
"""Rule 5 of Zheng et al. (OSDI 2020, table 1)."""
