"""The spaces there are, by name."""

from __future__ import annotations

from toolkit.space.modules import MODULES
from toolkit.space.modules.compose import ModuleSpace
from toolkit.space.task import Space

SPACES: dict[str, Space] = {space.name: space for space in (ModuleSpace("metaschedule", MODULES),)}
