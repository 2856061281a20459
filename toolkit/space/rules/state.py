"""A state of the derivation of sketches, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from toolkit.ir.loop import PrimFunc
from toolkit.schedule.program import Recorder
from toolkit.schedule.steps.base import Step
from toolkit.targets.target import Target


@dataclass(frozen=True, slots=True)
class State:
    """A kernel while its sketch is derived.

    `func`: as the steps left it, holes by a stand-in value.  `waiting`: blocks that no rule has
    handled, from the output to the inputs; the rules look at the first.
    """

    func: PrimFunc
    target: Target
    waiting: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    taken: Mapping[str, Any] = field(default_factory=dict)

    def then(self, program: Callable[[Recorder], object], *, stay: bool = False) -> State:
        """Return the state after a part of a schedule program; raise `ScheduleError` if refused.

        The first block counts as handled, unless the rules shall look at it again (`stay`).
        """
        sch = Recorder.resume(self.func, self.steps, self.taken)
        program(sch)
        waiting = self.waiting if stay else self.waiting[1:]
        return State(sch.func, self.target, waiting, tuple(sch.steps), sch.taken)


class Match(Enum):
    """What a rule says to a state: nothing, a way among others, the only way, or one if there is
    no other."""

    PASS = "pass"
    APPLY = "apply"
    ONLY = "only"
    ELSE = "else"


@dataclass(frozen=True, slots=True)
class Rule:
    """How a sketch may go on at a block.

    `condition` looks at the first waiting block; `apply` returns the successors, which handle it.
    After a rule that is the only way, those behind it in the table are not asked.
    """

    name: str
    condition: Callable[[State, str], Match]
    apply: Callable[[State, str], list[State]]
