"""Schedule steps, one file each.  `STEPS` maps a step's name in a trace to its class."""

from __future__ import annotations

from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.inline import Inline

STEPS: dict[str, type[Step]] = {
    "Inline": Inline,
    "ComputeAt": ComputeAt,
    "CacheWrite": CacheWrite,
}
