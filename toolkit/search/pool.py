"""What every strategy needs: candidates drawn and changed, none proposed twice, the best so far."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolkit.errors import ScheduleError
from toolkit.ir.loop import Block, blocks, Loop, walk_stmt
from toolkit.schedule.hole import holes_of, Sketch
from toolkit.search.result import MeasureResult, Status
from toolkit.space.task import Candidate, candidate, Task

MISSES = 64
"""Draws in a row that are illegal or known after which a space counts as exhausted."""

Validate = Callable[[Candidate], str | None]
"""Tells why a candidate need not be built: it cannot fit or cannot be fast.  None: it may be."""


class Pool:
    """Candidates of one task: proposed, measured, and new ones made from them.

    `sketches` must not be empty.  All choices are drawn from `rng`.
    """

    def __init__(
        self,
        task: Task,
        sketches: Sequence[Sketch],
        rng: random.Random,
        validate: Validate | None = None,
    ) -> None:
        self.task, self.sketches, self.rng = task, tuple(sketches), rng
        self.validate = validate
        self.seen: set[str] = set()
        """Keys of candidates that were proposed or measured."""
        self.measured: list[tuple[float, Candidate]] = []
        """Those that ran, fastest first."""
        self.refused = 0
        self._nodes: dict[Sketch, dict[str, str]] = {}

    @property
    def best(self) -> float | None:
        """The lowest cost so far."""
        return self.measured[0][0] if self.measured else None

    def add(self, results: Sequence[tuple[Candidate, MeasureResult]]) -> None:
        """Take in results."""
        for c, r in results:
            self.seen.add(c.key)
            if r.status is Status.OK and r.cost is not None:
                self.measured.append((r.cost, c))
        self.measured.sort(key=lambda pair: (pair[0], pair[1].key))

    def replayed(
        self, sketch: Sketch, decisions: Mapping[str, Any], origin: str
    ) -> Candidate | None:
        """Return the candidate under decisions, missing ones drawn; None if it is of no use."""
        try:
            c = candidate(self.task, sketch, decisions, self.rng, origin)
        except ScheduleError:
            self.refused += 1
            return None
        if self.validate is not None and self.validate(c) is not None:
            self.refused += 1
            return None
        return c

    def domains(self, sketch: Sketch, decisions: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """Return the domains of the holes reached under decisions; none where that is illegal."""
        try:
            return self.task.replayer.domains(sketch, decisions)
        except ScheduleError:
            return {}

    def fresh(self, c: Candidate | None, taken: set[str]) -> bool:
        """Tell whether a candidate may be proposed beside `taken`, and add it there if so."""
        if c is None or c.key in self.seen or c.key in taken:
            return False
        taken.add(c.key)
        return True

    def draw(self, count: int, taken: set[str] | None = None) -> list[Candidate]:
        """Return up to `count` random candidates that are neither seen nor in `taken`."""
        taken = set() if taken is None else taken
        drawn: list[Candidate] = []
        missed = 0
        while len(drawn) < count and missed < MISSES:
            c = self.replayed(self.rng.choice(self.sketches), {}, "random")
            missed += 1
            if c is not None and self.fresh(c, taken):
                drawn.append(c)
                missed = 0
        return drawn

    def usual(self) -> list[Candidate]:
        """Return the most probable candidate of each sketch: of one around a trace, that trace."""
        found = []
        for sketch in self.sketches:
            try:
                found.append(candidate(self.task, sketch, {}, origin="usual"))
            except ScheduleError:
                continue
        return [c for c in found if self.validate is None or self.validate(c) is None]

    def propose(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Mark candidates as proposed and return them."""
        self.seen.update(c.key for c in candidates)
        return list(candidates)

    # Changes

    def mutate(self, parent: Candidate) -> Candidate | None:
        """Change one decision: redrawn from its prior, or moved to a neighbouring tile."""
        if not parent.decisions:
            return None
        decisions = dict(parent.decisions)
        name = self.rng.choice(sorted(decisions))
        value = decisions[name]
        tile = isinstance(value, tuple) and value and all(isinstance(v, int) for v in value)
        if tile and self.rng.random() < 0.6:
            decisions[name] = self._neighbour(value)
        else:
            del decisions[name]
        return self.replayed(parent.sketch, decisions, "mutation")

    def _neighbour(self, factors: tuple[int, ...]) -> tuple[int, ...]:
        """Double or halve a factor, or move a factor of two (or three) to another level."""
        changed = list(factors)
        at = self.rng.randrange(len(changed))
        by = self.rng.choice((2, 2, 3))
        if self.rng.random() < 0.5:
            changed[at] = max(1, changed[at] // by)
            if len(changed) > 1 and self.rng.random() < 0.5:
                changed[self.rng.randrange(len(changed))] *= by
        else:
            changed[at] *= by
        return tuple(changed)

    def nodes(self, sketch: Sketch) -> dict[str, str]:
        """Map each hole of a sketch to the block whose loops, or place, it decides."""
        if sketch not in self._nodes:
            self._nodes[sketch] = _hole_nodes(self.task, sketch)
        return self._nodes[sketch]

    def cross(
        self,
        a: Candidate,
        b: Candidate,
        scores: Mapping[str, Mapping[str, float]] | None = None,
    ) -> Candidate | None:
        """Join two candidates of one sketch node by node (Ansor, section 5.1).

        All decisions about a block come from one parent: mostly from the one whose statement scores
        higher (`scores`: of each candidate key, of each block), else from either.
        """
        if a.sketch != b.sketch:
            return None
        of = self.nodes(a.sketch)
        chosen: dict[str, Candidate] = {}
        for node in sorted(set(of.values())):
            pick = self.rng.choice((a, b))
            if scores is not None and self.rng.random() < 0.8:
                left = scores.get(a.key, {}).get(node, 0.0)
                right = scores.get(b.key, {}).get(node, 0.0)
                pick = a if left >= right else b
            chosen[node] = pick
        decisions = {}
        for name in a.decisions:
            source = chosen.get(of.get(name, ""), a)
            decisions[name] = source.decisions.get(name, a.decisions[name])
        return self.replayed(a.sketch, decisions, "crossover")


def _hole_nodes(task: Task, sketch: Sketch) -> dict[str, str]:
    """Find the block of each hole by replaying the sketch up to it."""
    # A generator of its own: what is found once must not shift the draws that follow.
    rng = random.Random(0)
    result: dict[str, str] = {}
    func = task.func
    taken: dict[str, Any] = {}
    for step in sketch:
        found = holes_of(step)
        for _, hole in found:
            if hole.name not in result:
                result[hole.name] = _node_of(func.body, step)
        try:
            closed = candidate(Task(func, task.target), (step,), taken, rng)
        except ScheduleError:
            continue
        taken.update(closed.decisions)
        func = closed.func
    return result


def _node_of(body: Any, step: Any) -> str:
    """Return the block that a step names, or the last one inside the loop that it names."""
    block = getattr(step, "block", None)
    if isinstance(block, str):
        return block
    for field in ("loop", "var", "outer", "inner"):
        var = getattr(step, field, None)
        if isinstance(var, str):
            for s in walk_stmt(body):
                if isinstance(s, Loop) and s.var == var:
                    inside: list[Block] = list(blocks(s))
                    return inside[-1].name if inside else ""
    return ""
