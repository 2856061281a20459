"""What strategies share: a pool of candidates, results told to it, and perhaps a cost model."""

from __future__ import annotations

import random
from collections.abc import Sequence

from toolkit.schedule.hole import Sketch
from toolkit.search.pool import Pool, Validate
from toolkit.search.result import MeasureResult
from toolkit.search.strategy import CostModel
from toolkit.space.task import Candidate, Task


class PoolStrategy:
    """A strategy over a pool.  What `ask` draws comes from `rng` alone."""

    name = ""

    def __init__(
        self,
        task: Task,
        sketches: Sequence[Sketch],
        rng: random.Random,
        model: CostModel | None = None,
        validate: Validate | None = None,
    ) -> None:
        self.task, self.rng, self.model = task, rng, model
        self.pool = Pool(task, sketches, rng, validate)

    def ask(self, n: int) -> list[Candidate]:
        """Return up to `n` candidates that were not proposed before; none when exhausted."""
        raise NotImplementedError

    def tell(self, results: Sequence[tuple[Candidate, MeasureResult]]) -> None:
        """Take in results; the cost model learns from them elsewhere."""
        self.pool.add(results)
