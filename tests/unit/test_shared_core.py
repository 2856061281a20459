"""What others do on the core while a candidate is timed does not count for it."""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable
from typing import Any

import pytest

from toolkit.measure.candidates.worker import Kernel, PATIENCE_NS, Worker

ALONE = {"trial": 1000.0, "anchor": 2000.0}
SHARED = {"trial": 1.5, "anchor": 1.2}
"""How many times as long each takes on a core that is shared."""


class Machine(Worker):
    """A worker whose kernels take what they are said to; `shared` tells when, by samples taken."""

    def __init__(self, shared: Callable[[int], bool], patience_ns: int = PATIENCE_NS) -> None:
        self.shared, self.samples = shared, 0
        self.kernels = {name: Kernel(name, ()) for name in ALONE}
        self.least = {}
        self.patience_ns, self.waited_ns = patience_ns, 0
        self.preempted = ctypes.c_int32()

    def ready(self, kernel: Kernel, slot: int) -> tuple[list[int], int, int]:
        return [], 8, int(ALONE[kernel.function])

    def moved(self, kernel: Kernel, places: object) -> tuple[list[int], int]:
        return [], 8

    def sample(self, kernel: Kernel, addresses: object, runs: int) -> float:
        self.samples += 1
        name = kernel.function
        return ALONE[name] * (SHARED[name] if self.shared(self.samples) else 1.0)

    def canary(self, count: int) -> int:
        return 100


def timed(machine: Machine, **more: Any) -> dict[str, Any]:
    return machine.time(
        {
            "id": "trial", "task": "t", "anchor": "anchor", "anchor_ns": ALONE["anchor"],
            "canary_ns": 100, "best_ns": None, "budget_ns": 10**9, **more,
        }
    )  # fmt: skip


@pytest.mark.parametrize("first", [False, True])
def test_a_core_that_others_use_for_a_while_is_waited_for(first: bool) -> None:
    reply = timed(Machine(lambda n: (n // 20) % 2 == first))
    assert statistics.median(reply["samples"]) == pytest.approx(ALONE["trial"])
    assert max(reply["samples"]) == pytest.approx(ALONE["trial"])
    assert reply["confident"]


def test_a_machine_that_stays_slow_is_soon_waited_for_no_more() -> None:
    machine = Machine(lambda n: True, patience_ns=1_000_000)
    reply = timed(machine)
    want = ALONE["trial"] * SHARED["trial"] / SHARED["anchor"]
    assert statistics.median(reply["samples"]) == pytest.approx(want)
    assert machine.patience_ns < 1_000_000
    machine.shared = lambda n: False
    timed(machine)
    assert machine.patience_ns == PATIENCE_NS


def test_candidates_that_lose_at_once_use_up_no_patience() -> None:
    machine = Machine(lambda n: False)
    reply = timed(machine, best_ns=ALONE["trial"] / 10)
    assert reply["lost"]
    assert len(reply["samples"]) < 3
    assert machine.patience_ns == PATIENCE_NS


def test_an_anchor_that_was_met_on_a_shared_core_is_known_better_later() -> None:
    machine = Machine(lambda n: False)
    slow = ALONE["anchor"] * SHARED["anchor"]
    first = statistics.median(timed(machine, anchor_ns=slow)["samples"])
    machine.shared = lambda n: n % 40 < 20
    again = timed(machine, anchor_ns=slow)["samples"]
    assert max(again) == pytest.approx(first)


@pytest.mark.parametrize("known", [ALONE["trial"], None])
def test_rounds_of_a_comparison_on_a_shared_core_are_made_up_for(known: float | None) -> None:
    machine = Machine(lambda n: n % 30 >= 20)
    if known is None:
        machine.at_best = lambda kernel, canary: ALONE["trial"]  # type: ignore[method-assign]
    request = {"ids": ["trial", "anchor"], "rounds": 21, "seed": 0, "task": "", "anchor_ns": known}
    rows = machine.compare(request)
    assert rows == [[ALONE["trial"], ALONE["anchor"]]] * 21
