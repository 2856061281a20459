"""Always inline: element-wise stages that repeat nothing where they are read."""

from __future__ import annotations

from toolkit.schedule.default import inline_wanted
from toolkit.schedule.steps.inline import Inline
from toolkit.space.rules.state import Match, Rule, State


def condition(state: State, block: str) -> Match:
    """Inline what is cheap to repeat and legal to inline."""
    return Match.ONLY if inline_wanted(state.func, block, state.target.isa) else Match.PASS


def apply(state: State, block: str) -> list[State]:
    """Inline the block."""
    return [state.then(lambda sch: sch.take(Inline(block)))]


ALWAYS_INLINE = Rule("always inline", condition, apply)
"""Rule 2 of Zheng et al. (OSDI 2020, table 1)."""
