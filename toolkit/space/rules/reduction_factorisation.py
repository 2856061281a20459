"""Reduction factorisation: partial results in lanes, where there is more to reduce than to keep."""

from __future__ import annotations

from functools import partial

from toolkit.errors import ScheduleError
from toolkit.schedule.tiling import lane_loop
from toolkit.space.lanes import factor_in_lanes, whole_in_lanes
from toolkit.space.rules.reuse import has_reuse
from toolkit.space.rules.state import Match, Rule, State


def condition(state: State, block: str) -> Match:
    """A reduction along contiguous elements."""
    if not has_reuse(state, block):
        return Match.PASS
    try:
        lane_loop(state.func, block, state.target.isa)
    except ScheduleError:
        return Match.PASS
    return Match.ONLY


def apply(state: State, block: str) -> list[State]:
    """Factor the loop by some vectors, and as another way run it whole in vectors."""
    found = []
    for way in (factor_in_lanes, whole_in_lanes):
        try:
            found.append(state.then(partial(way, block=block, isa=state.target.isa)))
        except ScheduleError:
            continue
    return found


REDUCTION_FACTORISATION = Rule("reduction factorisation", condition, apply)
"""Rule 6 of Zheng et al. (OSDI 2020, table 1)."""
