"""Genetic search without a model, as AutoTVM's: measured programs breed, weighted by throughput."""

from __future__ import annotations

from toolkit.search.base import PoolStrategy
from toolkit.space.task import Candidate

ELITE = 24
MUTATION = 0.4
"""Probability that a child is changed once more."""


class GeneticSearch(PoolStrategy):
    """Breeds the fastest measured candidates."""

    name = "genetic"

    def ask(self, n: int) -> list[Candidate]:
        """Return children of the elite; random candidates while there is none."""
        elite = [(1 / cost, c) for cost, c in self.pool.measured[:ELITE] if c.decisions]
        taken: set[str] = set()
        found: list[Candidate] = []
        if len(elite) >= 4:
            weights = [w for w, _ in elite]
            for _ in range(8 * n):
                if len(found) == n:
                    break
                (_, a), (_, b) = self.rng.choices(elite, weights, k=2)
                child = self.pool.cross(a, b)
                if child is None or self.rng.random() < MUTATION:
                    child = self.pool.mutate(child or a)
                if child is not None and self.pool.fresh(child, taken):
                    found.append(child)
        return self.pool.propose(found + self.pool.draw(n - len(found), taken))
