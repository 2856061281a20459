"""Functions of two 8-bit numbers as integer arithmetic, proven on every pair there is.

A sum of two quantised tensors, requantised, is a table of at most 65,536 results.  It is taken as

    clamp((a * multipliers[0] + b * multipliers[1] + offset) >> shift, low, high)

in int32 where two multipliers and an offset are found that give the whole table.  They are looked
for next to the real slopes; for given multipliers, each pair limits the offset from below or above.
A product, requantised, is a function of (a - a_zero) * (b - b_zero), if its table says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toolkit.ir.types import int_range
from toolkit.passes.requantise import FAR, FREE, Staircase

NUDGES = tuple(sorted(
    (sign * n for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64)
     for sign in (1, -1)[: 1 + (n > 0)]),
    key=abs,
))  # fmt: skip
"""What is added to a multiplier, nearest first."""


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Results by the stored values of both operands, those of `a` along axis 0, limited.

    `slopes`: by how much a result rises with each operand, near enough for a first try.
    """

    kinds: tuple[str, str]
    results: np.ndarray
    low: int
    high: int
    slopes: tuple[float, float]


@dataclass(frozen=True, slots=True)
class SumForm:
    """Multipliers, offset and shift of a sum in int32."""

    multipliers: tuple[int, int]
    offset: int
    shift: int


def values_of(kind: str) -> np.ndarray:
    """Return every value of an integer type, int64."""
    low, high = int_range(kind)
    return np.arange(low, high + 1)


def sum_form(pairs: Pairs) -> SumForm | None:
    """Return arithmetic in int32 that gives every result, or None where none is found."""
    a, b = np.meshgrid(*(values_of(k) for k in pairs.kinds), indexing="ij")
    largest = np.abs(a).max(), np.abs(b).max()
    reach = sum(float(n) * abs(s) for n, s in zip(largest, pairs.slopes, strict=True))
    if not (np.isfinite(reach) and reach > 0):
        return None
    top = 31 - int(np.ceil(np.log2(reach)))
    for shift in range(min(top, 30), max(top - 4, 0), -1):
        found = _at_shift(pairs, a, b, shift)
        if found is None:
            continue
        total = abs(found.offset) + sum(
            int(n) * abs(m) for n, m in zip(largest, found.multipliers, strict=True)
        )
        value = (a * found.multipliers[0] + b * found.multipliers[1] + found.offset) >> shift
        if total < 2**31 and np.array_equal(np.clip(value, pairs.low, pairs.high), pairs.results):
            return found
    return None


def _at_shift(pairs: Pairs, a: np.ndarray, b: np.ndarray, shift: int) -> SumForm | None:
    """Return the multipliers near the slopes that leave the offset most room."""
    centre = [round(s * 2.0**shift) for s in pairs.slopes]
    base = a * centre[0] + b * centre[1]
    lower = (pairs.results << shift) - base
    upper = lower + (1 << shift)
    # What no nudge moves as far as the tightest limits decides nothing.
    moved = 2 * max(NUDGES) * int(np.abs(a).max() + np.abs(b).max())
    above, under = pairs.results > pairs.low, pairs.results < pairs.high
    limits = []
    for limit, kept, sign in ((lower, above, 1), (upper, under, -1)):
        tightest = (sign * limit)[kept].max(initial=-FREE)
        near = kept & (sign * limit >= tightest - moved)
        limits.append((limit[near], a[near], b[near]))
    n0, n1 = (v.reshape(-1, 1) for v in np.meshgrid(NUDGES, NUDGES, indexing="ij"))
    (low, low_a, low_b), (high, high_a, high_b) = limits
    least = (low - n0 * low_a - n1 * low_b).max(axis=1, initial=-FREE)
    most = (high - n0 * high_a - n1 * high_b).min(axis=1, initial=FREE)
    room = most - least
    best = int(room.argmax())
    if room[best] <= 0 or least[best] == -FREE or most[best] == FREE:
        return None
    multipliers = centre[0] + int(n0[best, 0]), centre[1] + int(n1[best, 0])
    return SumForm(multipliers, int(least[best] + (room[best] >> 1)), shift)


def product_stairs(
    pairs: Pairs, zeros: tuple[int, int], slope: float, zero: int
) -> Staircase | None:
    """Return the staircase of the products of what lies above the zero points, if there is one.

    `zero` is the zero point of the result.
    """
    a, b = (values_of(k) - z for k, z in zip(pairs.kinds, zeros, strict=True))
    product, where = np.unique(np.multiply.outer(a, b).reshape(-1), return_inverse=True)
    least = np.full(len(product), pairs.high)
    most = np.full(len(product), pairs.low)
    np.minimum.at(least, where.reshape(-1), pairs.results.reshape(-1))
    np.maximum.at(most, where.reshape(-1), pairs.results.reshape(-1))
    if (least != most).any() or (np.diff(least) < 0).any():
        return None
    level = np.arange(pairs.low + 1, pairs.high + 1)
    place = np.searchsorted(least, level, side="left")
    reached, passed = place < len(product), place > 0
    steps = np.where(reached, product[np.minimum(place, len(product) - 1)], FAR)
    under = np.where(passed, product[np.maximum(place, 1) - 1], -FAR)
    return Staircase(
        np.where(passed, steps, -FAR)[None], product[:1], product[-1:], zero, pairs.low, pairs.high,
        np.array([slope]), np.zeros(1), under[None],
    )  # fmt: skip
