"""Skip: leave a block as it is."""

from __future__ import annotations

from toolkit.space.rules.state import Match, Rule, State


def condition(state: State, block: str) -> Match:
    """Any block may stay as it is; one that another rule takes is never better so."""
    return Match.ELSE


def apply(state: State, block: str) -> list[State]:
    """Go on to the next block."""
    return [state.then(lambda sch: None)]


SKIP = Rule("skip", condition, apply)
"""Rule 1 of Zheng et al. (OSDI 2020, table 1)."""
