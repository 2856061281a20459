"""Beam search on partial schedules: what Halide's autoscheduler does (Adams et al., TOG 2019).

A partial schedule is a sketch of which the first holes are decided.  It is scored by the cost model
on its completion by the most probable values; the best few are kept at each hole.  With domains
larger than `CHOICES`, each pass looks at a random part of them, so that passes differ, as Halide's
do by dropping states at random.
"""

from __future__ import annotations

from typing import Any

from toolkit.schedule.hole import Sketch
from toolkit.search.base import PoolStrategy
from toolkit.space.task import Candidate

WIDTH = 12
CHOICES = 6
PASSES = 4


class BeamSearch(PoolStrategy):
    """Decides hole after hole, keeping the partial schedules that the model likes best."""

    name = "beam"

    def ask(self, n: int) -> list[Candidate]:
        """Return the best complete schedules of several passes."""
        taken: set[str] = set()
        if self.model is None or not self.model.trained:
            return self.pool.propose(self.pool.draw(n))
        met: dict[str, tuple[float, Candidate]] = {}
        for number in range(PASSES):
            sketches = self.pool.sketches
            for _ in range(min(len(sketches), 2)):
                self._pass(self.rng.choice(sketches), met)
            if number and sum(k not in self.pool.seen for k in met) >= 2 * n:
                break
        best = sorted(met.values(), key=lambda p: (-p[0], p[1].key))
        found: list[Candidate] = []
        for _, c in best:
            if len(found) < n and self.pool.fresh(c, taken):
                found.append(c)
        return self.pool.propose(found + self.pool.draw(n - len(found), taken))

    def _pass(self, sketch: Sketch, met: dict[str, tuple[float, Candidate]]) -> None:
        """Run one beam over a sketch; every completion that was scored is kept in `met`."""
        assert self.model is not None
        beam: list[dict[str, Any]] = [{}]
        while True:
            grown: list[tuple[dict[str, Any], Candidate]] = []
            known: set[str] = set()
            for partial in beam:
                domains = self.pool.domains(sketch, partial)
                name = next((d for d in domains if d not in partial), None)
                if name is None:
                    continue
                values = domains[name]
                if len(values) > CHOICES:
                    values = tuple(self.rng.sample(values, CHOICES))
                for value in values:
                    decisions = {**partial, name: value}
                    c = self._complete(sketch, decisions)
                    if c is not None and c.key not in known:
                        known.add(c.key)
                        grown.append((decisions, c))
            if not grown:
                return
            scores = self.model.predict(self.task, [c for _, c in grown])
            for (_, c), score in zip(grown, scores, strict=True):
                met.setdefault(c.key, (float(score), c))
            order = sorted(range(len(grown)), key=lambda i: (-scores[i], grown[i][1].key))
            beam = [grown[i][0] for i in order[:WIDTH]]

    def _complete(self, sketch: Sketch, partial: dict[str, Any]) -> Candidate | None:
        """Return the candidate in which the open holes take drawn values, the same for each."""
        state = self.rng.getstate()
        c = self.pool.replayed(sketch, partial, "beam")
        self.rng.setstate(state)
        return c
