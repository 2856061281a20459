"""The spaces there are, by name, and those of a user's file."""

from __future__ import annotations

from toolkit.space.modules import MODULES
from toolkit.space.modules.compose import ModuleSpace
from toolkit.space.modules.layout_packing import layout_packing
from toolkit.space.modules.parallel_vectorize_unroll import parallel_vectorize_unroll
from toolkit.space.modules.random_compute_location import random_compute_location
from toolkit.space.rules import RULES
from toolkit.space.rules.derive import RuleSpace
from toolkit.space.task import Space
from toolkit.space.templates import TEMPLATES
from toolkit.space.templates.config import TemplateSpace

ANNOTATE = (layout_packing, random_compute_location, parallel_vectorize_unroll)

SPACES: dict[str, Space] = {
    space.name: space
    for space in (
        TemplateSpace("autotvm", TEMPLATES),
        RuleSpace("ansor", RULES, ANNOTATE),
        ModuleSpace("metaschedule", MODULES),
    )
}
