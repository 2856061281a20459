"""Grid search: all candidates in order, as AutoTVM's grid tuner goes through its knobs.

The last hole of a sketch moves fastest, as in an odometer; the domain of a hole may depend on those
before it.  Sketches take turns, so that a small budget sees each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolkit.schedule.hole import Sketch
from toolkit.search.base import PoolStrategy
from toolkit.space.task import Candidate

EMPTY = 4096
"""Points in a row of one sketch that are illegal, after which it is left."""


class GridSearch(PoolStrategy):
    """Proposes the points of each sketch in lexicographic order."""

    name = "grid"
    _walks: list[Iterator[Candidate]] | None = None

    def ask(self, n: int) -> list[Candidate]:
        """Return the next `n` points that are legal."""
        if self._walks is None:
            self._walks = [self._walk(s) for s in self.pool.sketches]
        taken: set[str] = set()
        found: list[Candidate] = []
        while self._walks and len(found) < n:
            walk = self._walks.pop(0)
            c = next(walk, None)
            if c is None:
                continue
            self._walks.append(walk)
            if self.pool.fresh(c, taken):
                found.append(c)
        return self.pool.propose(found)

    def _walk(self, sketch: Sketch) -> Iterator[Candidate]:
        """Go through the points of a sketch that can be built."""
        decisions: dict[str, Any] = {}
        before: dict[str, tuple[Any, ...]] = {}
        missed = 0
        while missed < EMPTY:
            domains = self.pool.domains(sketch, decisions)
            # Where a point is illegal, the odometer still has to move.
            before = domains = domains or before
            for name, values in domains.items():
                decisions.setdefault(name, values[0])
            c = self.pool.replayed(sketch, decisions, "grid")
            missed = 0 if c is not None else missed + 1
            if c is not None:
                yield c
            if not self._advance(decisions, domains):
                return

    @staticmethod
    def _advance(decisions: dict[str, Any], domains: dict[str, tuple[Any, ...]]) -> bool:
        """Move the last hole that can move, and start those after it anew."""
        names = [n for n in domains if n in decisions]
        while names:
            name = names.pop()
            values = domains[name]
            at = values.index(decisions[name]) if decisions[name] in values else 0
            if at + 1 < len(values):
                decisions[name] = values[at + 1]
                return True
            del decisions[name]
        return False
