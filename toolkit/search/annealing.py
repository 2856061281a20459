"""Simulated annealing on the cost model: AutoTVM's tuner (Chen et al., NeurIPS 2018).

Parallel chains walk the space by single changes, accepted by the Metropolis rule on predicted
scores at a falling temperature; the best points met that are new are proposed, a share of them at
random.  Chains start from the best measured, and from draws.
"""

from __future__ import annotations

import math

from toolkit.search.base import PoolStrategy
from toolkit.space.task import Candidate

CHAINS = 48
STEPS = 16
HEAT = 0.25
EPSILON = 0.1


class AnnealingSearch(PoolStrategy):
    """Anneals chains against the cost model."""

    name = "annealing"

    def ask(self, n: int) -> list[Candidate]:
        """Return the best points that the chains met."""
        taken: set[str] = set()
        if self.model is None or not self.model.trained:
            return self.pool.propose(self.pool.draw(n))
        chains = [c for _, c in self.pool.measured[: CHAINS // 2] if c.decisions]
        chains += self.pool.draw(CHAINS - len(chains))
        if not chains:
            return []
        scores = self.model.predict(self.task, chains)
        met = {c.key: (float(s), c) for s, c in zip(scores, chains, strict=True)}
        for step in range(STEPS):
            heat = HEAT * (1 - step / STEPS) + 1e-3
            moves = [(i, self.pool.mutate(c)) for i, c in enumerate(chains)]
            changed = [(i, c) for i, c in moves if c is not None]
            if not changed:
                break
            predicted = self.model.predict(self.task, [c for _, c in changed])
            for (i, c), score in zip(changed, predicted, strict=True):
                met.setdefault(c.key, (float(score), c))
                gain = float(score - scores[i]) / heat
                if gain >= 0 or self.rng.random() < math.exp(gain):
                    chains[i], scores[i] = c, score
        explore = sum(self.rng.random() < EPSILON for _ in range(n))
        best = sorted(met.values(), key=lambda p: (-p[0], p[1].key))
        found: list[Candidate] = []
        for _, c in best:
            if len(found) < n - explore and self.pool.fresh(c, taken):
                found.append(c)
        return self.pool.propose(found + self.pool.draw(n - len(found), taken))
