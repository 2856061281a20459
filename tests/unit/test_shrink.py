"""A trace with a fault is reduced to the steps and values that the fault needs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.meaning.shrinking import differs, smallest
from tests.meaning.test_steps import random_inputs
from toolkit.ir.interp import interpret, same
from toolkit.ir.loop import PrimFunc, replace_loop
from toolkit.schedule.default import apply_trace, Trace
from toolkit.schedule.examples import matmul
from toolkit.schedule.shrink import applicable, shrink
from toolkit.schedule.steps.annotate import Annotate, Parallel, Unroll, Vectorize
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.prefetch import Prefetch
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.split import Split


@dataclass(frozen=True, slots=True)
class DropLast(Step):
    """A broken step: the last iteration of `loop` is left out."""

    loop: str

    def apply(self, func: PrimFunc) -> PrimFunc:
        loop = self.find_loop(func, self.loop)
        if loop.extent < 2:
            self.refuse(func, "nothing to leave out.")
        fewer = replace(loop, extent=loop.extent - 1)
        return func.with_(body=replace_loop(func.body, loop, fewer))


TRACE: Trace = (
    CacheWrite("t"),
    Split("j_2", (4,)),
    Split("i_2", (2,)),
    Reorder(("i_2.0", "j_2.0", "i_2.1", "j_2.1")),
    Prefetch("a", "k", 2),
    Split("k", (3,)),
    Annotate("k.0", "comment", "tiles of a sum"),
    Unroll("k.1"),
    Unroll("i_2.1"),
    Vectorize("j_2.1"),
    Parallel("i_2.0"),
)


def is_wrong(func: PrimFunc, trace: Trace) -> bool:
    """Tell whether a sum over `k` comes out otherwise."""
    arrays = random_inputs(func, np.random.default_rng(1))
    want, got = interpret(func, arrays), interpret(apply_trace(func, trace), arrays)
    return not same(want["y"], got["y"])


@pytest.mark.parametrize("at", range(6, len(TRACE) + 1))
def test_a_broken_step_is_what_is_left(at: int) -> None:
    func = matmul()
    trace = (*TRACE[:at], DropLast("k.0"), *TRACE[at:])
    assert is_wrong(func, trace)
    assert not is_wrong(func, TRACE)
    found = shrink(func, trace, is_wrong)
    assert found.trace == (Split("k", (1,)), DropLast("k.0"))
    assert found.complete
    assert found == shrink(func, trace, is_wrong)
    assert found.tests <= 60


def test_a_broken_step_that_needs_no_other_is_alone() -> None:
    found = shrink(matmul(), (DropLast("k"), *applicable(matmul(depth=5), TRACE)), is_wrong)
    assert found.trace == (DropLast("k"),)


def test_a_fault_of_two_steps_keeps_both() -> None:
    """As where each is right, but not with the other."""
    pairs = list(itertools.combinations((2, 5, 8, 9), 2))
    for a, b in pairs:
        first, second = TRACE[a], TRACE[b]
        found = shrink(
            matmul(), TRACE, lambda f, t, first=first, second=second: first in t and second in t
        )
        needed = {first, second} | {s for s in TRACE if _makes(s, second) or _makes(s, first)}
        assert [type(s) for s in found.trace] == [type(s) for s in TRACE if s in needed]
        assert {first, second} <= set(found.trace)


def _makes(step: Step, other: Step) -> bool:
    """Tell whether a split makes the loop that another step names."""
    loop = getattr(other, "loop", "")
    return isinstance(step, Split) and loop.startswith(step.loop + ".")


def test_values_become_as_simple_as_the_fault_allows() -> None:
    trace = (Split("j", (6, 2), "guard"), Pack("w", 1, 4))

    def bad(func: PrimFunc, trace: Trace) -> bool:
        return any(isinstance(s, Split) and s.factors[0] > 2 for s in trace)

    found = shrink(matmul(columns=16), trace, bad)
    assert found.trace == (Split("j", (3,), "guard"),)
    unneeded = shrink(matmul(columns=16), trace, lambda func, trace: True)
    assert unneeded.trace == ()


def test_what_no_longer_applies_is_left_out_too() -> None:
    trace = (Split("i_2", (2,)), ComputeAt("t", "i_2.0"), Unroll("i_2.1"), Vectorize("j_2"))
    assert applicable(matmul(), trace) == trace
    assert applicable(matmul(), trace[1:]) == (Vectorize("j_2"),)
    found = shrink(matmul(), trace, lambda f, t: any(isinstance(s, ComputeAt) for s in t))
    assert found.trace == (Split("i_2", (1,)), ComputeAt("t", "i_2.0"))


def test_the_function_at_smaller_extents_takes_its_place() -> None:
    trace = (*TRACE, DropLast("k.0"))
    sizes = (matmul(1, 2, 1), matmul(2, 4, 2), matmul(2, 4, 6))
    found = shrink(matmul(), trace, is_wrong, smaller=sizes)
    assert found.func is sizes[1]  # a sum of one term has no step to leave out
    assert found.trace == (Split("k", (1,)), DropLast("k.0"))


def test_tests_are_limited_and_never_repeated() -> None:
    asked: list[Trace] = []

    def bad(func: PrimFunc, trace: Trace) -> bool:
        asked.append(trace)
        return is_wrong(func, trace)

    trace = (*TRACE, DropLast("k.0"))
    found = shrink(matmul(), trace, bad, tests=5)
    assert len(asked) == len(set(asked)) == found.tests == 5
    assert not found.complete
    assert is_wrong(found.func, found.trace)
    assert shrink(matmul(), trace, bad, tests=0).trace == trace


def test_a_failing_test_says_the_smallest_trace() -> None:
    def inputs(func: PrimFunc) -> dict[str, np.ndarray]:
        return random_inputs(func, np.random.default_rng(3))

    text = smallest(matmul(), (*TRACE, DropLast("k.0")), inputs, differs)
    assert text.startswith("the smallest trace that shows it: (\n    Split(loop='k', factors=(1,)")
    assert "    DropLast(loop='k.0'),\n)" in text
    whole = smallest(matmul(), TRACE, inputs, differs)
    assert whole == "the trace as a whole shows no fault when it is run again"
