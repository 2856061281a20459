"""What came of timing candidates by turns: ratios, with bounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.search.result import MeasureResult, Status
from toolkit.space.task import Candidate


@dataclass(frozen=True, slots=True)
class Comparison:
    """How long a candidate takes as a part of what the first one takes.

    `cost` is its own, in the measurer's unit.  `low` and `high` bound the median of the ratio with
    the given confidence, whatever its distribution.
    """

    candidate: Candidate
    status: Status
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    cost: float | None = None
    detail: str = ""


def comparisons(
    candidates: Sequence[Candidate],
    failed: dict[int, MeasureResult],
    rows: Sequence[Sequence[float]],
    confidence: float,
) -> list[Comparison]:
    """Compare with the first candidate; `rows` holds one cost a round of each that did not fail."""
    columns = dict(zip((i for i in range(len(candidates)) if i not in failed),
                       zip(*rows, strict=True), strict=True))  # fmt: skip
    base = columns.get(0)
    found = []
    for i, candidate in enumerate(candidates):
        if i in failed:
            found.append(Comparison(candidate, failed[i].status, detail=failed[i].detail))
            continue
        cost = statistics.median(columns[i])
        if base is None:
            found.append(Comparison(candidate, Status.OK, cost=cost))
            continue
        ratios = sorted(t / b for t, b in zip(columns[i], base, strict=True))
        low, high = median_bounds(len(ratios), confidence)
        found.append(
            Comparison(
                candidate, Status.OK, statistics.median(ratios), ratios[low], ratios[high], cost
            )
        )
    return found


def median_bounds(count: int, confidence: float) -> tuple[int, int]:
    """Return the positions, in sorted values, that bound the median with this confidence.

    The number of values below the median is binomial with p = 1/2 (David and Nagaraja, Order
    Statistics, section 7.1), whatever the values' distribution.
    """
    tail, k = 0.0, 0
    while k < count // 2:
        tail += math.comb(count, k) / 2**count
        if 2 * tail > 1 - confidence:
            break
        k += 1
    low = max(k - 1, 0)
    return low, count - 1 - low
