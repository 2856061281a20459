"""When outputs are right: tolerance, NaN and infinities, integers; limits and their units."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.errors import NestlingError
from toolkit.runners import Cost
from toolkit.verify import check_limit, compare, parse_limit

INF, NAN = np.inf, np.nan


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("found", "expected", "ok"),
    [
        (f32(1, 2), f32(1, 2), True),
        (f32(1, 100.009), f32(1, 100), True),  # within 1e-4 of the largest
        (f32(1.009, 100), f32(1, 100), True),  # also where the element itself is small
        (f32(1, 100.011), f32(1, 100), False),
        (f32(0, 0), f32(0, 0), True),
        (f32(1e-30, 0), f32(0, 0), False),  # nothing may be off where all is zero
        (f32(NAN, 1), f32(NAN, 1), True),
        (f32(NAN, 1), f32(1, NAN), False),
        (f32(0, 1), f32(NAN, 1), False),
        (f32(NAN, 1), f32(0, 1), False),
        (f32(INF, -INF, 1), f32(INF, -INF, 1), True),
        (f32(INF, 1), f32(-INF, 1), False),
        (f32(INF, 1), f32(3e38, 1), False),
        (f32(INF, 1.1), f32(INF, 1), False),  # infinity does not widen the tolerance
        (f32(), f32(), True),
        (f32(1), f32(1).astype(np.float64), False),
        (f32(1), f32(1, 2), False),
    ],
)
def test_floats(found: np.ndarray, expected: np.ndarray, ok: bool) -> None:
    check = compare("y", found, expected)
    assert check.ok is ok
    assert bool(check.why) is not ok
    assert check.max_lsb is None


def test_integers_must_be_equal_whatever_their_size() -> None:
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    check = compare("y", np.array([low, 5]), np.array([high, 5]))
    assert (check.ok, check.max_lsb) == (False, high - low)
    top = np.array([2**64 - 1], np.uint64)
    assert compare("y", top, top).exact
    assert compare("y", top, top - np.uint64(1)).max_lsb == 1
    assert not compare("y", np.array([True]), np.array([False])).ok


def test_a_difference_names_its_place() -> None:
    expected = np.zeros((2, 3), np.float32)
    found = expected.copy()
    found[1, 2] = 5
    assert "5 at [1, 2], where 0 is expected" in compare("y", found, expected).why


def cost(unit: str = "seconds", value: float = 1e-3) -> Cost:
    return Cost(unit, value, 1, 40_000, 30_000, 20_000, 18_000, 2_000)


@pytest.mark.parametrize(
    ("text", "of", "ok"),
    [
        ("ram=20000", cost(), True),
        ("ram=19999", cost(), False),
        ("ram=19.5k", cost(), False),  # 19,968
        ("ram=19.6K", cost(), True),
        ("ram=20kB", cost(), True),
        ("flash=0.1M", cost(), True),
        ("stack=1k", cost(), False),
        ("arena=18000b", cost(), True),
        ("weights=29k", cost(), False),
        ("time=1ms", cost(), True),
        ("time=999us", cost(), False),
        ("time=2s", cost(), True),
        ("instructions=4.1M", cost("instructions", 4_100_000), True),
        ("instructions=4.1M", cost("instructions", 4_100_001), False),
        ("instructions=4k", cost("instructions", 4_001), False),
        ("cycles=1G", cost("cycles", 10), True),
    ],
)
def test_limits(text: str, of: Cost, ok: bool) -> None:
    found = check_limit(parse_limit(text), of)
    assert found.ok is ok
    assert (" over the limit " in found.text) is not ok


@pytest.mark.parametrize("text", ["", "ram", "ram=", "ram=x", "ram=-5", "ram=5q", "time=5",
                                  "time=5k", "sugar=5", "ram=1e3", "ram=5 5"])  # fmt: skip
def test_a_limit_that_is_none(text: str) -> None:
    with pytest.raises(NestlingError, match="--limit"):
        parse_limit(text)


def test_a_limit_on_what_is_not_measured() -> None:
    with pytest.raises(NestlingError, match="not measured here"):
        check_limit(parse_limit("instructions=5"), cost())


def test_equal_elements_are_counted() -> None:
    check = compare("y", np.array([1, 2, 3], np.int8), np.array([1, 4, 3], np.int8))
    assert (check.equal, check.size, check.max_lsb) == (2, 3, 2)
    check = compare("y", f32(1, NAN, 3), f32(1, NAN, 3.0001))
    assert (check.equal, check.size) == (2, 3)
    assert compare("y", f32(), f32()).size == 0
