"""Evolutionary search guided by a cost model.

Ansor (Zheng et al., OSDI 2020, section 5.1): a population of the best measured and random programs
evolves by mutation and node-based crossover; the best predicted that are new are proposed, with a
share of random ones.  As in MetaSchedule (Shao et al., NeurIPS 2022, section 4), a changed program
replaces its parent by the Metropolis-Hastings rule, here on predicted score times the prior of its
decisions, at a temperature that falls from generation to generation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from toolkit.search.base import PoolStrategy
from toolkit.space.task import Candidate


@dataclass(frozen=True, slots=True)
class EvolutionarySettings:
    """`elite`: share of the population that starts from measured programs; `crossover`: share of
    children with two parents; `twice`: share of the others that are changed twice; `epsilon`: share
    of proposals that are random; `prior`: exponent of the prior in the score."""

    population: int = 64
    generations: int = 9
    elite: float = 0.5
    crossover: float = 0.2
    twice: float = 0.3
    epsilon: float = 0.08
    temperature: float = 0.2
    prior: float = 0.02


class EvolutionarySearch(PoolStrategy):
    """Evolves a population against the cost model; proposes what it predicts to be best."""

    name = "evolutionary"
    settings = EvolutionarySettings()

    def ask(self, n: int) -> list[Candidate]:
        """Return up to `n` candidates: the best predicted, and a few random ones."""
        if self.model is None or not self.model.trained:
            return self.pool.propose(self._mutants(n))
        found = self._evolve()
        explore = sum(self.rng.random() < self.settings.epsilon for _ in range(n))
        chosen = [c for _, c in found if c.key not in self.pool.seen][: n - explore]
        taken = {c.key for c in chosen}
        chosen += self.pool.draw(n - len(chosen), taken)
        return self.pool.propose(chosen)

    def _mutants(self, n: int) -> list[Candidate]:
        """Return draws, and changes of the best measured, or else of the most probable, for want of
        predictions."""
        taken: set[str] = set()
        result: list[Candidate] = []
        parents = [c for _, c in self.pool.measured[:4] if c.decisions] or self.pool.usual()
        for parent in parents * (n // 8):
            c = self.pool.mutate(parent)
            if c is not None and len(result) < n // 2 and self.pool.fresh(c, taken):
                result.append(c)
        return result + self.pool.draw(n - len(result), taken)

    def _child(self, parent: Candidate) -> Candidate | None:
        """Return a program with one decision of its parent changed, sometimes two: of decisions
        that only help together, one alone would be given up."""
        child = self.pool.mutate(parent)
        if child is not None and self.rng.random() < self.settings.twice:
            return self.pool.mutate(child) or child
        return child

    def _evolve(self) -> list[tuple[float, Candidate]]:
        """Run the generations; return every program met, best predicted first."""
        s = self.settings
        assert self.model is not None
        elite = [c for _, c in self.pool.measured if c.decisions][: int(s.population * s.elite)]
        people = elite + self.pool.draw(s.population - len(elite))
        if not people:
            return []
        scores = self.model.predict(self.task, people)
        met: dict[str, tuple[float, Candidate]] = {}
        for score, c in zip(scores, people, strict=True):
            met[c.key] = (float(score), c)
        for generation in range(s.generations):
            heat = s.temperature * (1 - generation / s.generations) + 1e-3
            by_node = self.model.statements(self.task, people) if s.crossover else {}
            weights = np.exp((scores - scores.max()) / 0.1)
            children: list[tuple[int, Candidate]] = []
            for at, parent in enumerate(people):
                if self.rng.random() < s.crossover:
                    mate = self.rng.choices(people, weights.tolist())[0]
                    child = self.pool.cross(parent, mate, by_node)
                else:
                    child = self._child(parent)
                if child is not None and child.key != parent.key:
                    children.append((at, child))
            if not children:
                break
            predicted = self.model.predict(self.task, [c for _, c in children])
            for (at, child), score in zip(children, predicted, strict=True):
                met.setdefault(child.key, (float(score), child))
                gain = float(score - scores[at]) / heat
                gain += s.prior * (child.log_prior - people[at].log_prior)
                if gain >= 0 or self.rng.random() < math.exp(gain):
                    people[at], scores[at] = child, score
            # The best survive: they take the places of the worst.
            order = np.argsort(scores)
            top = sorted(met.values(), key=lambda p: (-p[0], p[1].key))[: len(people) // 8]
            for at, (score, c) in zip(order, top, strict=False):
                people[int(at)], scores[int(at)] = c, score
        return sorted(met.values(), key=lambda p: (-p[0], p[1].key))
