"""The front of time, RAM and flash: compared with every combination, and limits that hold."""

from __future__ import annotations

import itertools
import random

import pytest

from toolkit.errors import NestlingError
from toolkit.tuner.selection import Choosable, front, Point, points, select, told_cost, Use


def made(seed: int) -> tuple[dict[str, list[Choosable]], dict[str, Use], int]:
    rng = random.Random(seed)
    options = {
        task: [
            Choosable(
                f"{task}{i}", rng.randint(1, 40) * 1e-6, rng.choice((0, 64, 256, 1024)),
                rng.randint(2, 30) * 100,
            )
            for i in range(rng.randint(1, 4))
        ]
        for task in "abcd"[: rng.randint(1, 4)]
    }  # fmt: skip
    uses = {
        t: Use(float(n := rng.randint(1, 3)), tuple(rng.randint(1, 8) * 256 for _ in range(n)))
        for t in options
    }
    floor = max(max(u.alive) for u in uses.values()) + rng.choice((0, 512))
    return options, uses, floor


def every(options: dict[str, list[Choosable]], uses: dict[str, Use], floor: int) -> list[Point]:
    """Return all combinations, added up the slow way."""
    result = []
    for combination in itertools.product(*options.values()):
        chosen = dict(zip(options, combination, strict=True))
        result.append(
            Point(
                sum(uses[t].calls * o.cost for t, o in chosen.items()),
                max([floor, *(max(uses[t].alive) + o.ram_bytes for t, o in chosen.items())]),
                sum(o.flash_bytes for o in chosen.values()),
                {t: o.candidate for t, o in chosen.items()},
            )
        )
    return result


@pytest.mark.parametrize("seed", range(40))
def test_the_front_has_the_fastest_and_the_smallest_and_nothing_that_is_beaten(seed: int) -> None:
    options, uses, floor = made(seed)
    found, all_points = points(options, uses, floor), every(options, uses, floor)
    best = front(all_points)
    for p in found:  # each is a real combination, added up right
        assert any(q.choice == p.choice and q.cost == pytest.approx(p.cost) for q in all_points)
        assert not any(
            q.cost < p.cost * (1 - 1e-12)
            and q.ram_bytes <= p.ram_bytes
            and q.flash_bytes < p.flash_bytes
            for q in found
        )
    for measure in ("cost", "ram_bytes", "flash_bytes"):
        least = min(getattr(p, measure) for p in best)
        assert min(getattr(p, measure) for p in found) == pytest.approx(least)
    for bound in {p.ram_bytes for p in best}:  # for a bound of RAM, the fastest within it
        fastest = min(p.cost for p in best if p.ram_bytes <= bound)
        assert min(p.cost for p in found if p.ram_bytes <= bound) == pytest.approx(fastest)


def test_limits_hold_and_what_cannot_be_met_is_told_with_its_number() -> None:
    options, uses, floor = made(3)
    found = points(options, uses, floor)
    least = min(p.ram_bytes for p in found)
    small = min(p.flash_bytes for p in found)
    assert select(found, "latency", least, None, "m").ram_bytes == least
    assert select(found, "flash", None, None, "m").flash_bytes == small
    assert select(found, "ram", None, None, "m").ram_bytes == least
    assert select(found, "latency", None, None, "m").cost == min(p.cost for p in found)
    with pytest.raises(NestlingError, match=f"the smallest needs {least:,}"):
        select(found, "latency", least - 1, None, "m")
    with pytest.raises(NestlingError, match=f"bytes of flash; the smallest needs {small:,}"):
        select(found, "latency", None, small - 1, "m")


def test_the_search_is_told_what_the_objective_wants() -> None:
    default = Choosable("d", 10e-6, 1000, 2000)
    assert told_cost(5e-6, 4000, 9000, default, "latency") == 5e-6
    smaller, same = (told_cost(10e-6, r, 2000, default, "ram") for r in (100, 1000))
    assert smaller < same == pytest.approx(10e-6)
    assert told_cost(10e-6, 1000, 500, default, "flash") < 10e-6
    assert told_cost(10e-6, 500, 1000, default, "pareto") < 10e-6
