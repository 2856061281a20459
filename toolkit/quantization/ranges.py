"""Ranges of tensors: what samples show of one, the four ways to choose its range, and its scale.

A range is (low, high) of real values with low <= 0 <= high, so that 0 is represented exactly, as
padding and Relu need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from toolkit.ir.types import int_range

BINS = 2048
"""Bins of a histogram, as in Migacz, "8-bit inference with TensorRT" (GTC 2017)."""

STRIDE = 4
"""Bins between the ends that `entropy` tries: a five-hundredth of the range."""

MOST_CLIPPED = 0.01
"""Share of the values that `entropy` may clip at an end.  Without a limit a crowd of equal values,
as silence or a floor makes, would draw the whole range to itself."""

PERCENTILE = 99.99

SMALLEST_SCALE = 2.0**-60
"""Keeps products of two scales, and their inverses, normal float32 numbers."""

LARGEST_SCALE = 2.0**60

Range = tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Values of a tensor over all samples: counts of equal bins between `low` and `high`.

    `zeros` counts exact zeros, which are in no bin: they are quantised without an error.
    """

    low: float
    high: float
    counts: np.ndarray
    zeros: int = 0

    @property
    def edges(self) -> np.ndarray:
        """The bins + 1 borders of the bins."""
        return np.linspace(self.low, self.high, len(self.counts) + 1)

    @property
    def centers(self) -> np.ndarray:
        """The middle of each bin."""
        edges = self.edges
        middle: np.ndarray = (edges[1:] + edges[:-1]) / 2
        return middle

    def with_values(self, values: np.ndarray) -> Histogram:
        """Return the histogram with more values counted; all lie within low..high."""
        flat = np.asarray(values, np.float64).reshape(-1)
        zeros = int(np.count_nonzero(flat == 0))
        if zeros:
            flat = flat[flat != 0]
        found, _ = np.histogram(flat, bins=len(self.counts), range=(self.low, self.high))
        return Histogram(self.low, self.high, self.counts + found, self.zeros + zeros)


def empty_histogram(low: float, high: float, bins: int = BINS) -> Histogram:
    """Return a histogram of no values over a range."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < SMALLEST_SCALE:
        high = low + 1.0
    return Histogram(low, high, np.zeros(bins, np.int64))


@dataclass(frozen=True, slots=True)
class Scheme:
    """How real values are stored: an integer type, and whether its zero point is its middle."""

    dtype: str
    symmetric: bool

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest stored integer; symmetric signed ones leave out the least."""
        low, high = int_range(self.dtype)
        return (low + 1, high) if self.symmetric and low else (low, high)


@dataclass(frozen=True, slots=True)
class Params:
    """Real value = (stored - zero) * scale; `scale` is a float32 number."""

    dtype: str
    scale: float
    zero: int

    def nearest(self, values: np.ndarray, scheme: Scheme | None = None) -> np.ndarray:
        """Return the real values that are stored in place of `values`."""
        low, high = (scheme or Scheme(self.dtype, False)).limits
        stored = np.clip(np.rint(values / self.scale) + self.zero, low, high)
        real: np.ndarray = (stored - self.zero) * self.scale
        return real


def params_of(found: Range, scheme: Scheme) -> Params:
    """Return scale and zero point for a range.

    Asymmetric: low..high is spread over all integers, and the zero point rounded (Jacob et al.,
    "Quantization and training of neural networks", section 3).  Symmetric: the larger magnitude.
    """
    low, high = min(found[0], 0.0), max(found[1], 0.0)
    first, last = scheme.limits
    middle = (first + last + 1) // 2
    if scheme.symmetric:
        scale = max(-low, high) / (last - middle)
    else:
        scale = (high - low) / (last - first)
    if scale == 0.0:
        return Params(scheme.dtype, 1.0, middle if scheme.symmetric else first)
    scale = float(np.float32(min(max(scale, SMALLEST_SCALE), LARGEST_SCALE)))
    if scheme.symmetric:
        return Params(scheme.dtype, scale, middle)
    zero = int(np.clip(np.rint(first - low / scale), first, last))
    return Params(scheme.dtype, scale, zero)


# -- calibration methods ------------------------------------------------------------------------


def minmax(histogram: Histogram, scheme: Scheme, percentile: float = PERCENTILE) -> Range:
    """The range of everything seen."""
    return histogram.low, histogram.high


def percentile(histogram: Histogram, scheme: Scheme, percentile: float = PERCENTILE) -> Range:
    """The range that holds `percentile` per cent of the values, as much cut off at either end."""
    total = int(histogram.counts.sum()) + histogram.zeros
    if not total:
        return histogram.low, histogram.high
    cut = (100.0 - percentile) / 200.0 * total
    edges, counts = histogram.edges, histogram.counts
    below, above = np.cumsum(counts), np.cumsum(counts[::-1])
    # Zeros lie at 0: beyond them no range is cut.
    low = float(edges[int(np.searchsorted(below, cut, side="right"))])
    high = float(edges[len(counts) - int(np.searchsorted(above, cut, side="right"))])
    return min(low, 0.0), max(high, 0.0)


def mse(histogram: Histogram, scheme: Scheme, percentile: float = PERCENTILE) -> Range:
    """The range of least squared error, rounding and clipping together, on the bins' middles.

    Both ends are shrunk on a grid: first together, then each alone around what was found.
    """
    values, counts = histogram.centers, histogram.counts.astype(np.float64)
    kept = counts > 0
    values, counts = values[kept], counts[kept]
    if not len(values):
        return histogram.low, histogram.high

    def error(low: float, high: float) -> float:
        found = params_of((low, high), scheme).nearest(values, scheme)
        return float(np.sum(counts * np.square(found - values)))

    low, high = histogram.low, histogram.high
    best = (error(low, high), low, high)
    for part in np.linspace(0.02, 1.0, 99):
        best = min(best, (error(low * part, high * part), low * part, high * part))
    if scheme.symmetric:
        return best[1], best[2]
    for _ in range(2):
        for end in (0, 1):
            _, left, right = best
            for part in np.linspace(0.02, 1.0, 99):
                tried = (low * part, right) if end == 0 else (left, high * part)
                best = min(best, (error(*tried), *tried))
    return best[1], best[2]


def entropy(histogram: Histogram, scheme: Scheme, percentile: float = PERCENTILE) -> Range:
    """The range for which the distribution loses least information when it is quantised.

    Migacz, "8-bit inference with TensorRT" (GTC 2017): over ranges, the Kullback-Leibler divergence
    of the values clipped to the range from the same values on the levels of the integer type.
    Symmetric types take one threshold on magnitudes, as there; else each end is looked for with
    the other where it is.  Unlike there, no more than `MOST_CLIPPED` is clipped.
    """
    first, last = scheme.limits
    levels = last - first + 1
    if scheme.symmetric:
        largest = max(-histogram.low, histogram.high)
        counts = _magnitudes(histogram, largest)
        _, end = _best_window(counts, levels // 2, (0, len(counts)), ends=(1,))
        limit = largest * end / len(counts)
        return max(histogram.low, -limit), min(histogram.high, limit)
    counts, edges = histogram.counts, histogram.edges
    window, before = (0, len(counts)), (-1, -1)
    ends = ((1,) if histogram.high > 0.0 else ()) + ((0,) if histogram.low < 0.0 else ())
    while window != before:
        before = window
        window = _best_window(counts, levels, window, ends=ends)
    return min(float(edges[window[0]]), 0.0), max(float(edges[window[1]]), 0.0)


def _best_window(
    counts: np.ndarray, levels: int, window: tuple[int, int], *, ends: tuple[int, ...]
) -> tuple[int, int]:
    """Return the bins (first, last + 1) of least divergence, moving one end after the other."""
    for end in ends:
        low, high = window
        if end == 1:
            tried = [(low, at) for at in range(len(counts), low + levels - 1, -STRIDE)]
        else:
            tried = [(at, high) for at in range(0, high - levels + 1, STRIDE)]
        clipped = np.concatenate([[0], np.cumsum(counts)])
        most = MOST_CLIPPED * clipped[-1]
        tried = [w for w in tried if clipped[w[0]] <= most and clipped[-1] - clipped[w[1]] <= most]
        if tried and counts.any():
            found = [(divergence(counts, w, levels), w[0] - w[1], w) for w in tried]
            window = min(found)[2]
    return window


def _magnitudes(histogram: Histogram, largest: float) -> np.ndarray:
    """Return the histogram of magnitudes, each bin counted where its middle lies."""
    bins = len(histogram.counts)
    at = np.minimum((np.abs(histogram.centers) / largest * bins).astype(np.int64), bins - 1)
    return np.bincount(at, weights=histogram.counts, minlength=bins)


def divergence(counts: np.ndarray, window: tuple[int, int], levels: int) -> float:
    """Return the divergence of the bins of a window from the same bins on `levels` levels.

    What lies outside is clipped into the first and the last bin.  On a level its count is spread
    over its bins that are not empty.
    """
    low, high = window
    inside = counts[low:high].astype(np.float64)
    p = inside.copy()
    p[0] += counts[:low].sum()
    p[-1] += counts[high:].sum()
    level = np.arange(high - low) * levels // (high - low)
    filled = inside > 0
    total = np.bincount(level, weights=inside, minlength=levels)
    share = np.bincount(level, weights=filled, minlength=levels)
    q = np.where(filled, (total / np.maximum(share, 1))[level], 0.0)
    if not q.any():
        return float("inf")
    p, q = p / p.sum(), q / q.sum()
    # A bin that only clipping fills would make the divergence infinite: it is given a little.
    q = np.where((p > 0) & (q == 0), 1e-9, q)
    used = p > 0
    return float(np.sum(p[used] * np.log(p[used] / q[used])))


Method = Callable[[Histogram, Scheme, float], Range]

METHODS: dict[str, Method] = {
    "minmax": minmax,
    "percentile": percentile,
    "entropy": entropy,
    "mse": mse,
}
"""How a range is chosen: (histogram, scheme, percentile) -> range."""
