"""The 16-bit fixed point of TFLite's LSTM, on every int16, against gemmlowp in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import toolkit
from toolkit.ir.compute import compute, placeholder, Tensor
from toolkit.ir.expr import cast
from toolkit.ops.tflite_lstm import sigmoid16, tanh16

pytestmark = pytest.mark.needs("gcc")

Ints = np.ndarray[Any, np.dtype[np.int64]]
EVERY = np.arange(-(2**15), 2**15, dtype=np.int64)


def high(a: Ints | int, b: Ints | int) -> Ints:
    """SaturatingRoundingDoublingHighMul of int16, as it is written: a nudge, then a division."""
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    nudged = product + np.where(product >= 0, 1 << 14, 1 - (1 << 14))
    result: Ints = np.sign(nudged) * (np.abs(nudged) // (1 << 15))
    return np.minimum(result, 32767)


def down(x: Ints, bits: int) -> Ints:
    """RoundingDivideByPOT: half away from zero."""
    return np.sign(x) * ((np.abs(x) + (1 << (bits - 1))) >> bits)


def up(x: Ints, bits: int) -> Ints:
    return np.clip(x << bits, -32768, 32767)


def constant(value: int) -> int:
    """A constant of int32 fixed point, for int16."""
    return int(down(np.asarray(value, np.int64), 16))


def exp_of_negative(x: Ints, integer_bits: int) -> Ints:
    fraction = 15 - integer_bits
    quarter = 1 << (fraction - 2)
    below = (x & (quarter - 1)) - quarter
    a = up(below, integer_bits) + (1 << 12)
    a2 = high(a, a)
    inner = down(high(a2, a2), 2) + high(a2, a)
    tail = down(high(inner, constant(715827883)) + a2, 1)
    one_eighth = constant(1895147668)
    result = np.clip(one_eighth + high(one_eighth, a + tail), -32768, 32767)
    for exponent, value in enumerate(
        (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242), -2
    ):
        if integer_bits > exponent:
            bit = 1 << (fraction + exponent)
            result = np.where((below - x) & bit, high(result, constant(value)), result)
    if integer_bits > 5:
        result = np.where(x < down(np.asarray(-(1 << (36 - integer_bits))), 16), 0, result)
    return np.where(x == 0, 32767, result)


def twice_reciprocal(x: Ints) -> Ints:
    half = (x + 32767 + 1) // 2
    y = constant(1515870810) + high(half, constant(-1010580540))
    for _ in range(3):
        y = y + up(high(y, (1 << 13) - high(half, y)), 2)
    return y


def sigmoid(x: Ints, integer_bits: int) -> Ints:
    positive = up(twice_reciprocal(exp_of_negative(-np.abs(x), integer_bits)), 1)
    return np.where(x == 0, 1 << 14, np.where(x > 0, positive, 32767 - positive))


def tanh(x: Ints, integer_bits: int) -> Ints:
    size = up(twice_reciprocal(exp_of_negative(-np.abs(x), integer_bits + 1)) - (1 << 13), 2)
    return np.where(x == 0, 0, np.where(x > 0, size, -size))


@pytest.mark.parametrize(
    ("ours", "theirs", "real"),
    [(sigmoid16, sigmoid, lambda v: 1 / (1 + np.exp(-v))), (tanh16, tanh, np.tanh)],
    ids=["sigmoid", "tanh"],
)
@pytest.mark.parametrize("integer_bits", [0, 2, 3, 4, 5, 6])
def test_every_value_is_gemmlowps(
    ours: Callable[[Tensor, int], Tensor],
    theirs: Callable[[Ints, int], Ints],
    real: Callable[[Any], Any],
    integer_bits: int,
) -> None:
    x = placeholder((2**16,), "int32", "x")
    with toolkit.build(ours(x, integer_bits)) as built:
        (found,) = built(EVERY.astype(np.int32))
    np.testing.assert_array_equal(found, theirs(EVERY, integer_bits))
    exact = real(EVERY / 2.0 ** (15 - integer_bits)) * 2.0**15
    assert np.abs(found - exact).max() < 40


def test_the_functions_read_what_is_computed() -> None:
    """A function of a stage, as the recurrence has it, is the function of its values."""
    x = placeholder((256,), "int16", "x")
    wide = compute((256,), lambda i: cast(x[i], "int32") * 3, "wide")
    values = np.arange(-10000, 10000, 79, dtype=np.int16)[:256]
    with toolkit.build(tanh16(wide, 3)) as built:
        (found,) = built(np.resize(values, 256).astype(np.int16))
    np.testing.assert_array_equal(found, tanh(np.resize(values, 256).astype(np.int64) * 3, 3))
