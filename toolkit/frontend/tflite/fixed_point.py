"""Fixed-point arithmetic of TFLite's reference kernels, on NumPy arrays of int64.

Numbers with m integer bits are int32 in units of 2**(m - 31).  Meaning: gemmlowp's fixed point
library (docs/fixedpoint of google/gemmlowp) and TFLite's reference kernels for 8-bit activations.
"""

from __future__ import annotations

import math

import numpy as np

from toolkit.frontend.tflite.multiplier import quantized_multiplier

TOP = 2**31 - 1
ONE_0 = TOP
"""1.0 with no integer bits: the largest number there is."""


def away(x: np.ndarray | np.floating) -> np.ndarray:
    """Round half away from zero."""
    x = np.asarray(x)
    rounded: np.ndarray = np.trunc(x + np.copysign(np.array(0.5, x.dtype), x)).astype(np.int64)
    return rounded


def high_product(a: np.ndarray | int, b: np.ndarray | int) -> np.ndarray:
    """Return a * b / 2**31 rounded half up, saturated: (-2**31)**2 is the one case beyond int32."""
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    rounded: np.ndarray = np.minimum((product + (1 << 30)) >> 31, TOP)
    return rounded


def rounded_shift(x: np.ndarray, bits: int | np.ndarray) -> np.ndarray:
    """Return x / 2**bits rounded half away from zero."""
    x = np.asarray(x, np.int64)
    mask = (np.int64(1) << np.asarray(bits, np.int64)) - 1
    over = (x & mask) > (mask >> 1) + (x < 0)
    rounded: np.ndarray = (x >> bits) + over
    return rounded


def multiply(x: np.ndarray, multiplier: int, shift: int) -> np.ndarray:
    """Return x * multiplier / 2**31 * 2**shift by TFLite's two roundings; a left shift wraps."""
    left = (np.asarray(x, np.int64) << max(shift, 0)).astype(np.int32).astype(np.int64)
    return rounded_shift(high_product(left, multiplier), max(-shift, 0))


def scaled_up(x: np.ndarray, bits: int) -> np.ndarray:
    """Return x * 2**bits, saturated to int32."""
    wide: np.ndarray = np.asarray(x, np.int64) << bits
    saturated: np.ndarray = np.clip(wide, -TOP - 1, TOP)
    return saturated


def exp_of_negative(x: np.ndarray, integer_bits: int) -> np.ndarray:
    """Return exp(x), no integer bits, of x <= 0: exp of x mod 1/4, times a constant a bit above."""
    x = np.asarray(x, np.int64)
    fraction_bits = 31 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    below = (x & (quarter - 1)) - quarter
    result = _exp_of_quarter(scaled_up(below, integer_bits))
    rest = below - x
    for exponent, constant in (
        (-2, 1672461947), (-1, 1302514674), (0, 790015084), (1, 290630308), (2, 39332535),
        (3, 720401), (4, 242),
    ):  # fmt: skip
        if integer_bits > exponent:
            bit = 1 << (fraction_bits + exponent)
            result = np.where(rest & bit, high_product(result, constant), result)
    if integer_bits > 5:
        low = -(1 << (31 - (integer_bits - 5)))
        result = np.where(x < low, 0, result)
    return np.where(x == 0, ONE_0, result)


def _exp_of_quarter(x: np.ndarray) -> np.ndarray:
    """Return exp(x) of -1/4 <= x < 0: a Taylor polynomial of degree 4 around -1/8."""
    centre, third = 1895147668, 715827883
    x = x + (1 << 28)
    x2 = high_product(x, x)
    x3 = high_product(x2, x)
    x4 = high_product(x2, x2)
    quarter = rounded_shift(x4, 2)
    tail = rounded_shift(high_product(quarter + x3, third) + x2, 1)
    return centre + high_product(centre, x + tail)


def _twice_reciprocal(x: np.ndarray) -> np.ndarray:
    """Return 2 / (1 + x) with 2 integer bits, of 0 <= x <= 1: three Newton steps."""
    half = (np.asarray(x, np.int64) + TOP + 1) // 2
    y = 1515870810 + high_product(half, -1010580540)  # 48/17 - 32/17 * (1 + x) / 2
    for _ in range(3):
        error = (1 << 29) - high_product(half, y)
        y = y + scaled_up(high_product(y, error), 2)
    return y


def reciprocal_of_one_plus(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + x), no integer bits, of 0 <= x <= 1."""
    return scaled_up(_twice_reciprocal(x), 1)


def logistic(x: np.ndarray, integer_bits: int) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), no integer bits."""
    x = np.asarray(x, np.int64)
    positive = reciprocal_of_one_plus(exp_of_negative(-np.abs(x), integer_bits))
    result = np.where(x > 0, positive, ONE_0 - positive)
    return np.where(x == 0, 1 << 30, result)


def tanh(x: np.ndarray, integer_bits: int) -> np.ndarray:
    """Return tanh(x), no integer bits: (1 - e) / (1 + e) with e = exp(-2 |x|)."""
    x = np.asarray(x, np.int64)
    e = exp_of_negative(-np.abs(x), integer_bits + 1)
    positive = scaled_up(_twice_reciprocal(e) - (1 << 29), 2)
    return np.where(x == 0, 0, np.where(x > 0, positive, -positive))


def input_radius(integer_bits: int, left_shift: int) -> int:
    """Return the largest input whose rescaled value has that many integer bits."""
    largest = (2.0**integer_bits - 1) * 2.0 ** (31 - integer_bits) / 2.0**left_shift
    return math.floor(largest)


def _bounded(values: np.ndarray, scale: float) -> tuple[np.ndarray, int]:
    """Return inputs with 4 integer bits, and the radius beyond which the function is flat."""
    multiplier, shift = quantized_multiplier(scale * 2.0 ** (31 - 4))
    return multiply(values, multiplier, shift), input_radius(4, shift)


def logistic_8(values: np.ndarray, scale: float) -> np.ndarray:
    """Return 256 / (1 + exp(-scale * values)) as integers 0..255."""
    x, radius = _bounded(values, scale)
    y = np.minimum(rounded_shift(logistic(x, 4), 23), 255)
    return np.where(values <= -radius, 0, np.where(values >= radius, 255, y))


def tanh_8(values: np.ndarray, scale: float) -> np.ndarray:
    """Return 128 * tanh(scale * values) as integers -128..127."""
    x, radius = _bounded(values, scale)
    y = np.minimum(rounded_shift(tanh(x, 4), 24), 127)
    return np.where(values <= -radius, -128, np.where(values >= radius, 127, y))


def softmax_exponentials(scale: float, beta: float) -> np.ndarray:
    """Return exp(-beta * scale * d), no integer bits, of d = 0..255 below the largest, as int32.

    What lies so far below that TFLite skips it is 0, which adds nothing to the sum and, as its own
    result would, becomes the lowest value.
    """
    real = min(np.float64(beta) * np.float64(scale) * 2.0 ** (31 - 5), 2.0**31 - 1)
    multiplier, shift = quantized_multiplier(float(real))
    distance = -np.arange(256, dtype=np.int64)
    kept = distance >= -input_radius(5, shift)
    x = np.where(kept, multiply(np.where(kept, distance, 0), multiplier, shift), 0)
    return np.where(kept, exp_of_negative(x, 5), 0).astype(np.int32)


def _high_16(a: np.ndarray, b: int) -> np.ndarray:
    """Return a * b / 2**15 rounded half up, of 16-bit values."""
    rounded: np.ndarray = np.minimum((np.asarray(a, np.int64) * b + (1 << 14)) >> 15, 32767)
    return rounded


def _multiplier_16(real: float) -> tuple[int, int]:
    """Return a multiplier of 16 bits, a fraction of 2**15, and its shift."""
    multiplier, shift = quantized_multiplier(real)
    if multiplier >= TOP - (1 << 15):
        return 32767, shift
    return (multiplier + (1 << 15)) >> 16, shift


def hard_swish_8(values: np.ndarray, scale: np.float32, y_scale: np.float32) -> np.ndarray:
    """Return x * relu6(x + 3) / 6 in units of y_scale, as TFLite's reference/hard_swish.h.

    `values` have 7 more bits there; the factor from 0 to 1 has 15 bits of fraction.
    """
    fine = np.float32(1.0 / 128.0) * scale
    to_out, out_shift = _multiplier_16(float(fine / y_scale))
    to_relu, relu_shift = _multiplier_16(float(fine / np.float32(3.0 / 32768.0)))
    wide = np.asarray(values, np.int64) << 7
    scaled = _high_16(wide, to_out)

    def shifted(x: np.ndarray, bits: int) -> np.ndarray:
        saturated: np.ndarray = np.clip(x << bits, -32768, 32767)
        return saturated

    relu = shifted(wide, relu_shift - 1) if relu_shift > 0 else wide
    relu = _high_16(relu, to_relu)
    if relu_shift > 0:
        relu = shifted(relu, 1)
    elif relu_shift < 0:
        relu = rounded_shift(relu, -relu_shift)
    relu = (relu + (1 << 15)) >> 1
    product = relu * scaled
    high = np.sign(product) * (np.abs(product) >> 15)  # towards zero
    return rounded_shift(high, -out_shift)
