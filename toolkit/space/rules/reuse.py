"""What the tiling rules ask about a block."""

from __future__ import annotations

from toolkit.errors import ScheduleError
from toolkit.ir.loop import nest_of
from toolkit.schedule.program import Recorder
from toolkit.schedule.tiling import Product, product_of, split_reader
from toolkit.space.rules.state import State


def has_reuse(state: State, block: str) -> bool:
    """Tell whether a block is a reduction over some elements that others read too."""
    found = nest_of(state.func.body, block)[1]
    return found.reduce is not None and not found.update_only


def fusible(state: State, block: str) -> Product | None:
    """Return the product whose reader can run on its register tile; None where there is none."""
    sch = Recorder.resume(state.func, (), {})
    try:
        split_reader(sch.func, block, sch.step)
        return product_of(sch.func, block, state.target.isa)
    except ScheduleError:
        return None
