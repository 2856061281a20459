"""Whether a kernel's results are right, by a reference in float64 and one in the kernel's types."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-4
"""Floats: the error allowed, as a part of the output's largest magnitude.  A sum of n float32 terms
in another order is off by about sqrt(n) * 6e-8 of the magnitude of its terms (Higham, Accuracy and
Stability of Numerical Algorithms, section 4.2): 1e-5 at n = 10^4, and Winograd's F(4x4, 3x3) by a
few times more; an element that was computed wrongly is off by far more than 1e-4."""


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """One output as it should be: `value` in float64 or an integer type, and how far an element may
    be from it: a number, or one an element."""

    name: str
    value: np.ndarray
    tolerance: np.ndarray


def expected(wide: np.ndarray, narrow: np.ndarray, name: str, *, exact: bool) -> Expected:
    """Combine the reference in float64 and in the output's own type."""
    if narrow.dtype.kind != "f":
        # Where floats are rounded to integers, a sum in another order may fall to the other side.
        slack = 0 if exact or narrow.dtype.kind == "b" else 1
        return Expected(name, narrow, np.asarray(slack, dtype=np.float64))
    value = wide.astype(np.float64)
    own = narrow.astype(np.float64)
    finite = np.isfinite(value) & np.isfinite(own)
    scale = float(np.max(np.abs(value), initial=0.0, where=finite))
    apart = np.abs(np.subtract(value, own, where=finite, out=np.zeros_like(value)))
    tolerance = np.full(value.shape, TOLERANCE * scale)
    tolerance = np.where(apart > tolerance, np.maximum(tolerance, 4.0 * apart), tolerance)
    # Where float32 overflows, float64 does not: what both give is right.
    odd = ~finite
    value = np.where(odd, own, value)
    tolerance[odd & np.isfinite(wide)] = np.inf
    return Expected(name, value, tolerance)


def first_wrong(found: np.ndarray, want: Expected) -> str:
    """Say where a result first differs from what is expected, and how; "" if it does not."""
    if found.dtype.kind == "f":
        value = found.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            fits = np.abs(value - want.value) <= want.tolerance
        fits |= (value == want.value) | (np.isnan(value) & np.isnan(want.value))
        fits |= np.isinf(want.tolerance)
    else:
        fits = found == want.value
        if np.any(want.tolerance):
            apart = np.maximum(found, want.value) - np.minimum(found, want.value)
            fits |= apart.view(f"u{apart.itemsize}") <= want.tolerance  # it may have wrapped
    if fits.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(fits))[0])
    got, should = np.atleast_1d(found)[at], np.atleast_1d(want.value)[at]
    many = int(fits.size - np.count_nonzero(fits))
    where = f"{want.name}{list(at)}" if found.ndim else want.name
    return f"{where} is {got:.9g}, expected {should:.9g} ({many} of {fits.size} elements differ)"
