"""What is tuned, and one way to do it: tasks, candidates, and the spaces that lie between.

An AutoTVM template, an Ansor sketch rule and a MetaSchedule module all end as sketches of a task
(`toolkit.schedule.hole`), so they share strategies, cost models, measuring and records.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from toolkit.ir.loop import answers, PrimFunc
from toolkit.schedule.hole import Decisions, Replayer, Sketch
from toolkit.schedule.steps.base import Step
from toolkit.schedule.trace import trace_to_json
from toolkit.targets.target import Target


def stable_hash(value: Any) -> str:
    """Return 16 hexadecimal digits that are the same for equal plain JSON values everywhere."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """A kernel to make fast on a target.

    `func`: the base function, every stage in a nest of its own, constants as parameters of scope
    'const'.  `inplace`: pairs (input, output) whose storage the default plan shares; a candidate
    that no longer allows one costs that much RAM.  `weight`: how often the kernel runs per
    inference, over all models of the run.  `nodes`: names of graph nodes, for people.
    `scratch_limit_bytes`: most scratch a candidate may take; None for no limit.
    """

    func: PrimFunc
    target: Target
    inplace: tuple[tuple[str, str], ...] = ()
    weight: float = 1.0
    nodes: tuple[str, ...] = ()
    scratch_limit_bytes: int | None = None

    @cached_property
    def key(self) -> str:
        """The key of the task's records: function and target, the same on every platform."""
        text = str(self.func.with_(name="k"))
        return stable_hash([text, self.target.name, [list(p) for p in self.inplace]])

    @cached_property
    def replayer(self) -> Replayer:
        """What replays the sketches of the task."""
        return Replayer(self.func)

    @property
    def name(self) -> str:
        """A short name for people: the operators and the result's shape."""
        shape = "x".join(str(n) for n in self.func.outputs[0].shape)
        return f"{self.func.name}_{shape}"


@dataclass(frozen=True)
class Candidate:
    """One program of a task's space: a sketch with all its holes decided, as replay took them."""

    task: Task
    sketch: Sketch
    decisions: Mapping[str, Any] = field(hash=False)
    func: PrimFunc = field(hash=False, repr=False)
    """The scheduled function."""
    trace: tuple[Step, ...] = ()
    log_prior: float = 0.0
    origin: str = ""
    """What proposed it, for reports: 'default', 'random', 'mutation', 'crossover', 'record', ..."""

    @cached_property
    def key(self) -> str:
        """Equal for candidates of a task whose traces are equal."""
        # A replayer returns the same function and trace for the same decisions.
        known = answers(self.func).setdefault("keys", {})
        found: tuple[tuple[Step, ...], str] | None = known.get(id(self.trace))
        if found is None:
            found = known[id(self.trace)] = self.trace, stable_hash(trace_to_json(self.trace))
        return found[1]


def candidate(
    task: Task,
    sketch: Sketch,
    decisions: Decisions,
    rng: random.Random | None = None,
    origin: str = "",
) -> Candidate:
    """Replay a sketch; raise `ScheduleError` where it is illegal under these decisions."""
    done = task.replayer.replay(sketch, decisions, rng)
    return Candidate(
        task, sketch, done.decisions, done.func, done.trace, done.log_prior, origin or "random"
    )


class Space(Protocol):
    """A source of sketches."""

    @property
    def name(self) -> str:
        """The name of the space."""

    def sketches(self, task: Task) -> Sequence[Sketch]:
        """Return the sketches of a task, none where the space does not fit it."""
