"""A space from modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.schedule.hole import Sketch
from toolkit.schedule.program import record, Recorder
from toolkit.space.task import Task
from toolkit.targets.target import Target

Module = Callable[[Recorder, Target], None]
"""Records steps on a kernel; leaves alone what it does not fit."""


@dataclass(frozen=True, slots=True)
class ModuleSpace:
    """The sketches that modules, run one after another, record for a task."""

    name: str
    modules: tuple[Module, ...]

    def sketches(self, task: Task) -> Sequence[Sketch]:
        """Return one sketch for each way the modules branch."""

        def program(sch: Recorder) -> None:
            for module in self.modules:
                module(sch, task.target)

        return record(task.func, program)
