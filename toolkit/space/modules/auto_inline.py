"""Auto-inline: element-wise stages into what reads them."""

from __future__ import annotations

from toolkit.schedule.default import inline_stages
from toolkit.schedule.program import Recorder
from toolkit.targets.target import Target


def auto_inline(sch: Recorder, target: Target) -> None:
    """Inline what costs nothing to repeat, and what each consumer reads once an element."""
    inline_stages(lambda: sch.func, lambda step: sch.attempt(lambda: sch.take(step)), target.isa)
