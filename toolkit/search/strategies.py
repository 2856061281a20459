"""The strategies by name."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from toolkit.errors import NestlingError
from toolkit.schedule.hole import Sketch
from toolkit.search.annealing import AnnealingSearch
from toolkit.search.bandit import BanditSearch
from toolkit.search.bayesian import BayesianSearch, GaussianSearch
from toolkit.search.beam import BeamSearch
from toolkit.search.evolutionary import EvolutionarySearch
from toolkit.search.genetic import GeneticSearch
from toolkit.search.grid import GridSearch
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
    kind.name: kind
    for kind in (
        EvolutionarySearch,
        RandomSearch,
        GridSearch,
        GeneticSearch,
        AnnealingSearch,
        BeamSearch,
        BanditSearch,
        BayesianSearch,
        GaussianSearch,
    )
}


def get_strategy(name: str) -> MakeStrategy:
    """Return a strategy by name."""
    if name not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise NestlingError(f"strategy {name!r} is unknown.", hint=f"known: {known}")
    return STRATEGIES[name]
