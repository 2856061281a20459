"""Arena plans: nothing alive overlaps, the bound holds, small cases are near the best plan."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from toolkit.lowering.plan_memory import align_up, lower_bound, Plan, plan, Storage


def storages(rng: np.random.Generator, count: int, steps: int, most: int) -> list[Storage]:
    result = []
    for n in range(count):
        first = int(rng.integers(0, steps))
        last = min(steps - 1, first + int(rng.integers(0, 4)))
        nbytes = 0 if rng.random() < 0.05 else int(rng.integers(1, most))
        result.append(Storage(f"t{n}", nbytes, first, last))
    return result


def check(items: list[Storage], found: Plan, align: int) -> None:
    for item in items:
        start = found.offsets[item.name]
        assert start % align == 0
        assert 0 <= start
        assert start + item.nbytes <= found.arena_bytes
    for a, b in itertools.combinations([i for i in items if i.nbytes], 2):
        if a.first <= b.last and b.first <= a.last:
            x, y = found.offsets[a.name], found.offsets[b.name]
            assert x + a.nbytes <= y or y + b.nbytes <= x, f"{a} and {b} overlap"
    assert found.lower_bound_bytes <= found.arena_bytes


def alive(items: list[Storage], step: int) -> int:
    return sum(i.nbytes for i in items if i.first <= step <= i.last)


@pytest.mark.parametrize("align", [1, 8, 64])
def test_nothing_alive_overlaps(align: int, rng: np.random.Generator) -> None:
    for _ in range(150):
        steps = int(rng.integers(1, 30))
        items = storages(rng, int(rng.integers(1, 40)), steps, 300)
        check(items, plan(items, align), align)


def test_the_bound_is_the_largest_sum_alive(rng: np.random.Generator) -> None:
    for _ in range(100):
        items = storages(rng, int(rng.integers(1, 30)), 20, 1000)
        assert lower_bound(items) == max(alive(items, step) for step in range(20))


def best(items: list[Storage], align: int) -> int:
    """Return the smallest arena that any order of placing at the lowest free offset reaches.

    Some order reaches the optimum: that of the offsets of an optimal plan pushed down.
    """
    sizes = []
    for order in itertools.permutations(items):
        placed: list[tuple[int, int, Storage]] = []
        for item in order:
            offset = 0
            for start, end, other in sorted(placed, key=lambda p: p[0]):
                if other.first <= item.last and item.first <= other.last:
                    if offset + item.nbytes <= start:
                        break
                    offset = max(offset, align_up(end, align))
            placed.append((offset, offset + item.nbytes, item))
        sizes.append(max(end for _, end, _ in placed))
    return align_up(min(sizes), align)


def test_small_plans_are_near_the_best(rng: np.random.Generator) -> None:
    worse = total = optimum = 0
    for _ in range(60):
        items = [i for i in storages(rng, 6, 6, 20) if i.nbytes]
        if not items:
            continue
        found, least = plan(items, 4).arena_bytes, best(items, 4)
        assert least <= found <= 1.5 * least
        worse += found > least
        total, optimum = total + found, optimum + least
    assert worse <= 9
    assert total <= 1.02 * optimum


def test_a_chain_takes_two_buffers() -> None:
    items = [Storage(f"t{n}", 100, n, n + 1) for n in range(10)]
    assert plan(items, 4) == Plan({f"t{n}": 100 * (n % 2) for n in range(10)}, 200, 200)


def test_empty_tensors_take_no_room() -> None:
    found = plan([Storage("a", 0, 0, 5), Storage("b", 10, 0, 5)], 8)
    assert found.arena_bytes == 16
    assert plan([], 8) == Plan({}, 0, 0)


def test_a_plan_is_the_same_again(rng: np.random.Generator) -> None:
    items = storages(rng, 40, 20, 500)
    assert plan(items, 16) == plan(list(items), 16)


def test_planning_a_thousand_tensors_is_quick() -> None:
    import time

    items = [Storage(f"t{n}", 1000 + 37 * n % 700, n, n + 3) for n in range(1000)]
    start = time.perf_counter()
    check_bytes = plan(items, 64)
    assert time.perf_counter() - start < 5
    assert check_bytes.arena_bytes <= 2 * check_bytes.lower_bound_bytes
