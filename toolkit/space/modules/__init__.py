"""MetaSchedule: modules are schedule programs that record what they find legal, choices left open.

A module is a function of a `Recorder`, which holds the kernel as the modules before it left it, and
the target.  A space is a tuple of modules, run in order.
"""

from __future__ import annotations

from toolkit.space.modules.add_rfactor import add_rfactor
from toolkit.space.modules.auto_inline import auto_inline
from toolkit.space.modules.compose import Module
from toolkit.space.modules.layout_packing import layout_packing
from toolkit.space.modules.multi_level_tiling import multi_level_tiling
from toolkit.space.modules.multi_level_tiling_intrinsics import multi_level_tiling_intrinsics
from toolkit.space.modules.parallel_vectorize_unroll import parallel_vectorize_unroll
from toolkit.space.modules.random_compute_location import random_compute_location

MODULES: tuple[Module, ...] = (
    auto_inline,
    multi_level_tiling_intrinsics,
    multi_level_tiling,
    layout_packing,
    add_rfactor,
    random_compute_location,
    parallel_vectorize_unroll,
)
"""The modules of the space `metaschedule`, in order."""
