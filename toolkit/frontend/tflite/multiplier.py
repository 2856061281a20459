"""Real multipliers as TFLite stores them: an int32 fraction of 2**31 and a power of two.

Source: `QuantizeMultiplier` and its relatives in TFLite's quantization_util; Jacob et al.,
"Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
2018, section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np


def quantized_multiplier(real: float) -> tuple[int, int]:
    """Return (multiplier, shift) with real ~ multiplier / 2**31 * 2**shift; positive: left.

    The fraction is rounded half away from zero; 0 has (0, 0), and so has what shifts out of int32.
    """
    if real == 0.0:
        return 0, 0
    fraction, shift = math.frexp(real)
    multiplier = math.floor(fraction * 2.0**31 + 0.5)
    if multiplier == 1 << 31:
        multiplier, shift = multiplier // 2, shift + 1
    if shift < -31:
        multiplier, shift = 0, 0
    if shift > 30:
        multiplier, shift = (1 << 31) - 1, 30
    return multiplier, shift


def tables(reals: Iterable[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the multipliers and shifts of several real multipliers as int32."""
    pairs = [quantized_multiplier(float(r)) for r in reals]
    return (
        np.array([m for m, _ in pairs], np.int32),
        np.array([s for _, s in pairs], np.int32),
    )
