"""Random search: candidates drawn from the priors of the space, without memory."""

from __future__ import annotations

from toolkit.search.base import PoolStrategy
from toolkit.space.task import Candidate


class RandomSearch(PoolStrategy):
    """Proposes independent draws."""

    name = "random"

    def ask(self, n: int) -> list[Candidate]:
        """Return up to `n` new draws."""
        return self.pool.propose(self.pool.draw(n))
