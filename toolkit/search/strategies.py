"""The strategies by name."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from toolkit.errors import NestlingError
from toolkit.schedule.hole import Sketch
from toolkit.search.evolutionary import EvolutionarySearch
from toolkit.search.pool import Validate
from toolkit.search.random_search import RandomSearch
from toolkit.search.strategy import CostModel, Strategy
from toolkit.space.task import Task


class MakeStrategy(Protocol):
    """Makes a strategy for a task.  `sketches` is not empty."""

    def __call__(
        self,
        task: Task,
        sketches: Sequence[Sketch],
        rng: random.Random,
        model: CostModel | None = None,
        validate: Validate | None = None,
    ) -> Strategy: ...


STRATEGIES: dict[str, MakeStrategy] = {
    "random": RandomSearch,
    "evolutionary": EvolutionarySearch,
}


def get_strategy(name: str) -> MakeStrategy:
    """Return a strategy by name."""
    if name not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise NestlingError(f"strategy {name!r} is unknown.", hint=f"known: {known}")
    return STRATEGIES[name]
