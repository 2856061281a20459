"""Random search: candidates drawn from the priors of the space, without memory."""

from __future__ import annotations

import random
from collections.abc import Sequence

from toolkit.schedule.hole import Sketch
from toolkit.search.pool import Pool, Validate
from toolkit.search.result import MeasureResult
from toolkit.search.strategy import CostModel
from toolkit.space.task import Candidate, Task


class RandomSearch:
    """Proposes independent draws."""

    name = "random"

    def __init__(
        self,
        task: Task,
        sketches: Sequence[Sketch],
        rng: random.Random,
        model: CostModel | None = None,
        validate: Validate | None = None,
    ) -> None:
        self.pool = Pool(task, sketches, rng, validate)

    def ask(self, n: int) -> list[Candidate]:
        """Return up to `n` new draws."""
        return self.pool.propose(self.pool.draw(n))

    def tell(self, results: Sequence[tuple[Candidate, MeasureResult]]) -> None:
        """Only remember what was measured."""
        self.pool.add(results)
