"""Sketches by derivation: rules applied block by block, from the output to the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.errors import ScheduleError
from toolkit.ir.loop import blocks
from toolkit.schedule.hole import Sketch
from toolkit.schedule.program import Recorder
from toolkit.space.rules.state import Match, Rule, State
from toolkit.space.task import Task
from toolkit.targets.target import Target

SKETCH_LIMIT = 64
"""Sketches of a task: with more, budgets would be spent on telling them apart."""


@dataclass(frozen=True, slots=True)
class RuleSpace:
    """The sketches that rules derive, annotated with what is left open.

    `annotate`: schedule programs that end every sketch with holes for what the rules do not
    decide: compute locations, vectors, unrolling, packing.
    """

    name: str
    rules: tuple[Rule, ...]
    annotate: tuple[Callable[[Recorder, Target], None], ...]

    def sketches(self, task: Task) -> Sequence[Sketch]:
        """Derive the sketches of a task, in the order of the rules; the first `SKETCH_LIMIT`."""
        order = tuple(b.name for b in blocks(task.func.body))[::-1]
        pending = [State(task.func, task.target, order)]
        found: dict[Sketch, None] = {}
        while pending and len(found) < SKETCH_LIMIT:
            state = pending.pop()
            if not state.waiting:
                found.setdefault(self._annotated(state))
                continue
            pending.extend(reversed(self.successors(state)))
        return tuple(found)

    def successors(self, state: State) -> list[State]:
        """Return what the rules make of the first waiting block."""
        block = state.waiting[0]
        result: list[State] = []
        for rule in self.rules:
            match = rule.condition(state, block)
            if match is Match.PASS or (match is Match.ELSE and result):
                continue
            try:
                result.extend(rule.apply(state, block))
            except ScheduleError:
                continue
            if match is Match.ONLY:
                break
        return result

    def _annotated(self, state: State) -> Sketch:
        def program(sch: Recorder) -> None:
            for annotate in self.annotate:
                annotate(sch, state.target)

        return state.then(program, stay=True).steps
