"""Shrinking: of a trace that shows a fault, the smallest that still does.

Delta debugging over steps (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing
Input, 2002, with complements only), then simpler values in the steps that are left.  What is tried
is replayed first: steps that no longer apply without those left out are left out too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ScheduleError
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.default import Trace
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.split import TAILS

IsBad = Callable[[PrimFunc, Trace], bool]
"""Tells whether a base function scheduled by a trace, all of whose steps apply, shows the fault."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A base function and a trace that show the fault.  `complete`: no single step can be left out
    and no value made simpler; else the tests ran out before."""

    func: PrimFunc
    trace: Trace
    tests: int
    complete: bool


def shrink(
    func: PrimFunc,
    trace: Sequence[Step],
    is_bad: IsBad,
    *,
    tests: int = 500,
    smaller: Sequence[PrimFunc] = (),
) -> Shrunk:
    """Return the smallest trace found that shows the fault that `trace` on `func` shows.

    `tests`: how often `is_bad` may be asked, never twice the same.  `smaller`: the function at
    other extents, smallest first; the first that shows the fault takes its place.  The same
    arguments give the same result; where nothing smaller shows the fault, it is what was given.
    """
    asked: dict[Trace, bool] = {}
    count = 0
    ran_out = False

    def bad(candidate: Trace) -> bool:
        nonlocal count, ran_out
        if candidate not in asked:
            if count >= tests:
                ran_out = True
                return False
            count += 1
            asked[candidate] = is_bad(func, candidate)
        return asked[candidate]

    shown = tuple(trace)
    while True:
        before = shown
        shown = _with_fewer_steps(func, shown, bad)
        shown = _with_simpler_steps(func, shown, bad)
        if shown == before:
            break
    for other in smaller:
        if count >= tests:
            ran_out = True
            break
        count += 1
        legal = applicable(other, shown)
        if is_bad(other, legal):
            rest = shrink(other, legal, is_bad, tests=tests - count)
            return dataclasses.replace(rest, tests=count + rest.tests)
    return Shrunk(func, shown, count, not ran_out)


def applicable(func: PrimFunc, steps: Sequence[Step]) -> Trace:
    """Return the steps that apply one after another, without those that are refused."""
    taken: list[Step] = []
    for step in steps:
        try:
            func = step.apply(func)
        except ScheduleError:
            continue
        taken.append(step)
    return tuple(taken)


def _with_fewer_steps(func: PrimFunc, trace: Trace, bad: Callable[[Trace], bool]) -> Trace:
    """Leave out runs of steps, long ones first, until none can be left out."""
    size = len(trace)
    while size:
        at, fewer = 0, False
        while at < len(trace):
            rest = applicable(func, trace[:at] + trace[at + size :])
            if bad(rest):
                trace, fewer = rest, True
            else:
                at += size
        # A step that was needed may no longer be without one behind it.
        size = 1 if fewer and size == 1 else size // 2
    return trace


def _with_simpler_steps(func: PrimFunc, trace: Trace, bad: Callable[[Trace], bool]) -> Trace:
    """Put simpler values into steps until none can be simpler."""
    at = len(trace) - 1
    while at >= 0:
        for simpler in _simpler_steps(trace[at]):
            rest = applicable(func, (*trace[:at], simpler, *trace[at + 1 :]))
            if bad(rest):
                trace = rest
                break
        else:
            at -= 1
        at = min(at, len(trace) - 1)
    return trace


def _simpler_steps(step: Step) -> Iterator[Step]:
    for field in dataclasses.fields(step):
        for value in _simpler(getattr(step, field.name)):
            yield dataclasses.replace(step, **{field.name: value})


def _simpler(value: Any) -> Iterator[Any]:
    """Yield values that are simpler: tails that divide, smaller factors, fewer of them."""
    match value:
        case bool():
            return
        case int() if value > 1:
            yield from dict.fromkeys((1, value // 2, value - 1))
        case str() if value in TAILS[1:]:
            yield TAILS[0]
        case tuple():
            if len(value) > 1:
                yield from (value[:at] + value[at + 1 :] for at in range(len(value)))
            for at, part in enumerate(value):
                if isinstance(part, int):
                    for less in _simpler(part):
                        yield (*value[:at], less, *value[at + 1 :])
