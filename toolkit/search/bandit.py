"""A bandit over decisions: every hole of every sketch learns which of its values paid.

Each value has a posterior of its reward, a power of the throughput relative to the task's best;
Thompson sampling draws from the posteriors and takes the values with the highest draw (Chapelle and
Li, NeurIPS 2011).  Holes count as independent given the sketch, and numbers near a value that paid
are credited a part of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from toolkit.schedule.hole import Sketch
from toolkit.search.base import PoolStrategy
from toolkit.search.result import MeasureResult
from toolkit.space.task import Candidate

SPREAD = 0.35
"""Standard deviation of the reward of a value that was never tried."""

START = 0.5
"""Its mean."""

SHARPEN = 8
"""Exponent of the reward: what is worth choosing between lies within a tenth of the best, which
beside the spread would look alike."""

TRIES = 24


class BanditSearch(PoolStrategy):
    """Thompson sampling hole by hole."""

    name = "bandit"
    _failed: tuple[Candidate, ...] = ()

    def ask(self, n: int) -> list[Candidate]:
        """Return candidates of drawn posteriors."""
        taken: set[str] = set()
        found: list[Candidate] = []
        if self.pool.measured:
            rewards = self._rewards()
            for _ in range(n * TRIES):
                if len(found) == n:
                    break
                c = self._draw(rewards)
                if c is not None and self.pool.fresh(c, taken):
                    found.append(c)
        return self.pool.propose(found + self.pool.draw(n - len(found), taken))

    def tell(self, results: Sequence[tuple[Candidate, MeasureResult]]) -> None:
        """Keep failures too: they are rewards of zero."""
        super().tell(results)
        self._failed = (*self._failed, *(c for c, r in results if r.cost is None))

    def _rewards(self) -> dict[tuple[int, str], list[tuple[Any, float]]]:
        """Return what each value of each hole of each sketch was worth, once per trial."""
        place = {id(s): i for i, s in enumerate(self.pool.sketches)}
        by_value = {s: i for i, s in enumerate(self.pool.sketches)}
        best = self.pool.best or 1.0
        told = [((best / cost) ** SHARPEN, c) for cost, c in self.pool.measured]
        told += [(0.0, c) for c in self._failed]
        rewards: dict[tuple[int, str], list[tuple[Any, float]]] = {}
        for reward, c in told:
            number = place.get(id(c.sketch), by_value.get(c.sketch, -1))
            rewards.setdefault((number, ""), []).append((number, reward))
            for name, value in c.decisions.items():
                rewards.setdefault((number, name), []).append((value, reward))
        return rewards

    def _draw(self, rewards: dict[tuple[int, str], list[tuple[Any, float]]]) -> Candidate | None:
        numbers = range(len(self.pool.sketches))
        arms = [self._sample(i, rewards.get((i, ""), [])) for i in numbers]
        number = max(numbers, key=arms.__getitem__)
        sketch: Sketch = self.pool.sketches[number]
        decisions: dict[str, Any] = {}
        while True:
            domains = self.pool.domains(sketch, decisions)
            name = next((d for d in domains if d not in decisions), None)
            if name is None:
                return self.pool.replayed(sketch, decisions, "bandit")
            known = rewards.get((number, name), [])
            values = domains[name]
            if len(values) > 32:
                values = tuple(self.rng.sample(values, 32))
            decisions[name] = max(values, key=lambda v: self._sample(v, known))

    def _sample(self, value: Any, known: Sequence[tuple[Any, float]]) -> float:
        """Draw the reward of a value from a normal posterior."""
        weight = total = 0.0
        for other, reward in known:
            near = closeness(value, other)
            weight += near
            total += near * reward
        mean = (total + START) / (weight + 1)
        return self.rng.gauss(mean, SPREAD / math.sqrt(weight + 1))


def closeness(a: Any, b: Any) -> float:
    """Return 1 for equal values, and less for tiles that are octaves apart; 0 for other kinds."""
    if a == b:
        return 1.0
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        if all(isinstance(x, int) and x > 0 for x in (*a, *b)):
            apart = sum(abs(math.log2(x / y)) for x, y in zip(a, b, strict=True))
            return 0.5 * math.exp(-apart)
    return 0.0
