"""MetaSchedule: modules are schedule programs that record what they find legal, choices left open.

A module is a function of a `Recorder`, which holds the kernel as the modules before it left it, and
the target.  A space is a tuple of modules, run in order.
"""

from __future__ import annotations

from toolkit.space.modules.auto_inline import auto_inline
from toolkit.space.modules.compose import Module
from toolkit.space.modules.layout_packing import layout_packing
from toolkit.space.modules.multi_level_tiling import multi_level_tiling

MODULES: tuple[Module, ...] = (auto_inline, multi_level_tiling, layout_packing)
"""The modules of the space `metaschedule`, in order."""
