"""Requantisation as a staircase: which accumulators give which integer, and arithmetic that does.

    y = clamp(round_half_even((acc * scale + bias) / y_scale) + zero, low, high)

is monotone in `acc`, so it is known by its thresholds, the least accumulators that give low + 1,
.., high.  They are computed in whole numbers.  Cheap arithmetic, monotone as well, is equal on all
accumulators that can occur when it is right at each threshold and just below it, which is how
`float_form` and `fixed_form` prove what they return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

FAR = 2**40
"""Beyond every int32 accumulator: stands for a threshold that none reaches."""

REACH = 2**17
"""How far from the real slope a multiplier of 31 bits is looked for."""

FREE = 2**62
"""Stands for an interval without an end."""

MULTIPLIER_BITS = 31

WORD = 32
"""A shift from which on the result lies in the high word."""

ROUNDING = 2.0**-22
"""What a float32 sum may be off, as a part of itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Staircase:
    """Thresholds by channel: `steps[c, k]` is the least accumulator that gives low + 1 + k.

    `least` and `most` limit the accumulators of each channel; steps outside are -FAR or FAR.
    `slope` and `shift` are the real scale / y_scale and bias / scale, near enough for a first try.
    `under`, where not every integer occurs as a sum: the largest that lies below each step.
    """

    steps: np.ndarray
    least: np.ndarray
    most: np.ndarray
    zero: int
    low: int
    high: int
    slope: np.ndarray
    shift: np.ndarray
    under: np.ndarray | None = None

    def holds(self, values: np.ndarray, below: np.ndarray) -> np.ndarray:
        """Tell by channel whether results at the steps, and one below each, are right."""
        level = self.low + 1 + np.arange(self.steps.shape[1])
        reached = self.steps <= self.most[:, None]
        passed = self.steps > self.least[:, None]
        right = (~reached | (values >= level)) & (~passed | (below < level))
        found: np.ndarray = np.all(right, axis=1)
        return found

    @property
    def flat(self) -> np.ndarray:
        """Which channels give one result whatever the sum."""
        found: np.ndarray = np.all(np.abs(self.steps) == FAR, axis=1)
        return found

    def lowest(self) -> np.ndarray:
        """Return the result of each channel's least sum."""
        found: np.ndarray = self.low + (self.steps == -FAR).sum(axis=1)
        return found

    def at(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the accumulators to try: the steps, and the next below, within the limits."""
        least, most = self.least[:, None], self.most[:, None]
        under = self.steps - 1 if self.under is None else self.under
        return np.clip(self.steps, least, most), np.clip(under, least, most)


def staircase(
    scales: Sequence[float],
    bias: Sequence[float],
    factor: float,
    y_scale: float,
    *,
    zero: int,
    low: int,
    high: int,
    limits: tuple[np.ndarray, np.ndarray],
) -> Staircase:
    """Return the staircase of acc * (factor * scales[c]) + bias[c], quantised; limits by channel.

    Exact: each float is the fraction it is.  Ties go to the even value before `zero` is added.
    """
    f_top, f_bottom = float(factor).as_integer_ratio()
    y_top, y_bottom = float(y_scale).as_integer_ratio()
    least, most = (np.asarray(a, np.int64) for a in limits)
    rows = []
    for channel, (scale, add) in enumerate(zip(scales, bias, strict=True)):
        s_top, s_bottom = float(scale).as_integer_ratio()
        b_top, b_bottom = float(add).as_integer_ratio()
        # value = (acc * a + b) / d
        a = f_top * s_top * b_bottom * y_bottom
        b = b_top * f_bottom * s_bottom * y_bottom
        d = y_top * f_bottom * s_bottom * b_bottom
        first, last = int(least[channel]), int(most[channel])
        row = []
        for level in range(low + 1 - zero, high + 1 - zero):
            top, bottom = (2 * level - 1) * d - 2 * b, 2 * a
            step = -(-top // bottom) if level % 2 == 0 else top // bottom + 1
            row.append(-FAR if step <= first else FAR if step > last else step)
        rows.append(row)
    slope = np.array(scales, np.float64) * float(factor) / float(y_scale)
    shift = np.array(bias, np.float64) / (np.array(scales, np.float64) * float(factor))
    steps = np.array(rows, np.int64).reshape(len(rows), high - low)
    return Staircase(steps, least, most, zero, low, high, slope, shift)


def near_ties(stairs: Staircase) -> float:
    """Return the share of reachable steps that lie as near a tie as float32 sums round.

    There a float reference goes by its own rounding.  Random scales leave few such steps; ratios of
    short fractions, as 0.05 * 0.01 / 0.06, make a tie of every step.
    """
    level = stairs.low + 0.5 - stairs.zero + np.arange(stairs.steps.shape[1])
    reached = np.abs(stairs.steps) < FAR
    if not reached.any():
        return 0.0
    slope, shift = stairs.slope[:, None], stairs.shift[:, None]
    apart = [np.abs((stairs.steps - k + shift) * slope - level) for k in (0, 1)]
    near = np.minimum(*apart) < ROUNDING * np.maximum(np.abs(level), 1.0)
    return float((near & reached).sum() / reached.sum())


def float_form(stairs: Staircase) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (multiplier float32, bias int32) by channel, or None where no proof is found.

    y = clamp(rint(float32(acc + bias) * multiplier) + zero, low, high).
    """
    bias = np.rint(stairs.shift)
    if (np.abs(bias) > 2**30).any():
        return None
    bias = bias.astype(np.int64)
    multiplier = stairs.slope.astype(np.float32)
    best, good = multiplier.copy(), np.zeros(len(multiplier), bool)
    at, below = stairs.at()
    for nudge in (0, 1, -1, 2, -2, 3, -3):
        tried = multiplier.copy()
        for _ in range(abs(nudge)):
            tried = np.nextafter(tried, np.float32(np.inf if nudge > 0 else 0))
        results = [
            np.rint((x + bias[:, None]).astype(np.float32) * tried[:, None]) + stairs.zero
            for x in (at, below)
        ]
        right = stairs.holds(results[0], results[1]) & ~good
        best[right] = tried[right]
        good |= right
        if good.all():
            return best, bias.astype(np.int32)
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """y = clamp((acc * multiplier + offset - (acc < 0) * below) >> shift, low, high).

    `multiplier` int32 and `offset` int64 by channel; `below` int32 by channel, None for zeros.
    """

    multiplier: np.ndarray
    offset: np.ndarray
    shift: int
    below: np.ndarray | None = None


def fixed_form(stairs: Staircase, below: np.ndarray | None = None) -> Fixed | None:
    """Return a proven form in integers of 64 bits, or None without a proof.

    Bias, rounding and zero point are in the offset, for which the steps leave an interval.  `below`
    is by how much, in units of the result, negative sums are taken lower before rounding down.  All
    sums stay within 63 bits, shifted ones within 32.
    """
    flat = stairs.flat
    top = float(stairs.slope[~flat].max(initial=0.0))
    if not np.isfinite(top):
        return None
    room = 61 - max(abs(stairs.low), abs(stairs.high)).bit_length()
    bits = MULTIPLIER_BITS - int(np.ceil(np.log2(top))) if top > 0 else WORD
    shift = min(bits, 47, room)
    if not 0 < shift:
        return None
    count = stairs.steps.shape[1]
    level = (stairs.low + 1 + np.arange(count)).astype(np.int64) << shift
    reached = stairs.steps <= stairs.most[:, None]
    passed = stairs.steps > stairs.least[:, None]
    at, under = stairs.at()
    center = np.rint(np.where(flat, 0.0, stairs.slope) * 2.0**shift).astype(np.int64)
    lowered = np.zeros(len(center), np.int64)
    if below is not None:
        lowered = np.clip(np.rint(below * 2.0**shift), 0, 2**31 - 1).astype(np.int64)
    multiplier, offset = center.copy(), stairs.lowest().astype(np.int64) << shift
    good = flat.copy()
    reach = int(np.maximum(np.abs(stairs.least), np.abs(stairs.most))[~flat].max(initial=0))
    if reach * float(2**MULTIPLIER_BITS) > 2.0**61 or reach * top >= 2.0**30:
        return None
    lowered[flat] = 0
    less_at, less_under = (np.where(x < 0, lowered[:, None], 0) for x in (at, under))
    # The room for an offset is concave in the multiplier: its slope says where there is more.
    rows = np.arange(len(center))
    first, last = np.maximum(center - REACH, 0), np.minimum(center + REACH, 2**31 - 1)
    tried = np.clip(center, 0, 2**31 - 1)
    while (~good & (first <= last)).any():
        lower = np.where(reached, level - at * tried[:, None] + less_at, -FREE)
        upper = np.where(passed, level - under * tried[:, None] + less_under, FREE)
        tight, loose = lower.argmax(axis=1), upper.argmin(axis=1)
        least, most = lower[rows, tight], upper[rows, loose]
        right = (least < most) & ~good
        middle = least + (most - least) // 2
        middle = np.where(least == -FREE, most - 1, middle)
        middle = np.where(most == FREE, np.where(least == -FREE, 0, least), middle)
        multiplier[right], offset[right] = tried[right], middle[right]
        good |= right
        rise = at[rows, tight] - under[rows, loose]
        first = np.where(rise > 0, tried + 1, np.where(rise < 0, first, last + 1))
        last = np.where(rise < 0, tried - 1, last)
        tried = (first + last) >> 1
    if not good.all():
        return None
    return Fixed(
        multiplier.astype(np.int32), offset, shift,
        lowered.astype(np.int32) if lowered.any() else None,
    )  # fmt: skip


def steps_of(
    rounded: Callable[[np.ndarray], np.ndarray],
    limits: tuple[np.ndarray, np.ndarray],
    *,
    low: int,
    high: int,
) -> np.ndarray:
    """Return the steps of a monotone function of sums, by bisection.

    `rounded` maps int64 [channels, n], of sums within the limits, to results that low and high need
    not limit yet.
    """
    least, most = (np.asarray(a, np.int64)[:, None] for a in limits)
    level = np.arange(low + 1, high + 1, dtype=np.int64)[None]
    shape = (len(least), level.shape[1])
    under, at = np.broadcast_to(least - 1, shape).copy(), np.broadcast_to(most + 1, shape).copy()
    while (at - under > 1).any():
        middle = np.clip((under + at) >> 1, least, most)
        right = rounded(middle) >= level
        open_ = at - under > 1
        at = np.where(open_ & right, middle, at)
        under = np.where(open_ & ~right, middle, under)
    return np.where(at <= least, -FAR, np.where(at > most, FAR, at))
