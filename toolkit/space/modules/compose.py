"""A space from modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from toolkit.errors import ScheduleError
from toolkit.ir.loop import blocks, PrimFunc
from toolkit.schedule.algorithm import winograd_plans
from toolkit.schedule.default import Trace, trace_with
from toolkit.schedule.hole import Sketch
from toolkit.schedule.program import record, Recorder
from toolkit.space.open_trace import open_trace
from toolkit.space.task import Task
from toolkit.targets.isa import Isa
from toolkit.targets.target import Target

Module = Callable[[Recorder, Target], None]
"""Records steps on a kernel; leaves alone what it does not fit."""


@dataclass(frozen=True, slots=True)
class ModuleSpace:
    """The sketches that modules, run one after another, record for a task.

    With `defaults`, sketches around the default traces are there too, one for each algorithm:
    what the default schedule knows of a kernel, the search need not find again.
    """

    name: str
    modules: tuple[Module, ...]
    defaults: bool = True

    def sketches(self, task: Task) -> Sequence[Sketch]:
        """Return one sketch for each way the modules branch, and those around the defaults."""

        def program(sch: Recorder) -> None:
            for module in self.modules:
                module(sch, task.target)

        found = [sketch for sketch in record(task.func, program) if sketch]
        if self.defaults:
            isa = task.target.isa
            found.extend(open_trace(task.func, t, isa) for t in default_traces(task.func, isa) if t)
        return list(dict.fromkeys(found))


def default_traces(func: PrimFunc, isa: Isa) -> Iterator[Trace]:
    """Yield the default traces of a function: as it is written, and in its Winograd forms."""
    yield trace_with(func, isa, None)
    for block in blocks(func.body):
        if block.reduce != "sum" or len(block.axes) != 7:
            continue
        for plan in winograd_plans(func, block.name, isa):
            try:
                yield trace_with(func, isa, plan)
            except ScheduleError:
                continue
