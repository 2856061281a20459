"""TFLite import: multipliers, fixed point, the file reader, and operators against their meaning."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

import toolkit
from toolkit.errors import ModelError
from toolkit.frontend.tflite import fixed_point, is_tflite
from toolkit.frontend.tflite.multiplier import quantized_multiplier, tables
from toolkit.frontend.tflite.products import same_pads
from toolkit.frontend.tflite.read import read_tflite
from toolkit.frontend.tflite.table import TABLE
from toolkit.ir.compute import placeholder, Tensor
from toolkit.ir.graph import Node
from toolkit.ops import apply_op, OPS
from toolkit.pipeline import load


def run(op: str, operands: dict[str, np.ndarray], attrs: dict[str, object]) -> np.ndarray:
    """Build one operator of domain tflite, whose first operand is given at run time."""
    tensors: list[Tensor | None] = [
        placeholder(a.shape, str(a.dtype), n, a if i else None)
        for i, (n, a) in enumerate(operands.items())
    ]
    node = Node(op, op, tuple(operands), ("y",), attrs, "tflite")
    (result,) = apply_op(OPS[f"tflite:{op}"], node, tensors, 25)
    assert result is not None
    with toolkit.build(toolkit.compile(result)) as built:
        names = list(built.compiled.inputs)
        (found,) = built(*(operands[n] for n in names))
    return found


def exact_product(acc: int, multiplier: int, shift: int) -> int:
    """Both roundings in unbounded integers: half up at 2**31, half away from zero behind."""
    high = (acc * 2 ** max(shift, 0) * multiplier + 2**30) >> 31
    bits = max(-shift, 0)
    if not bits:
        return high
    sign = -1 if high < 0 else 1
    return sign * ((abs(high) + 2 ** (bits - 1)) >> bits)


def test_a_multiplier_is_within_half_a_unit_of_its_real_number(rng: np.random.Generator) -> None:
    for real in (2.0 ** rng.uniform(-27, 10, 500)).tolist():
        multiplier, shift = quantized_multiplier(real)
        assert 2**30 <= multiplier < 2**31
        assert abs(multiplier * 2.0 ** (shift - 31) - real) <= real * 2.0**-31


def test_multipliers_at_the_ends() -> None:
    assert quantized_multiplier(0.0) == (0, 0)
    assert quantized_multiplier(1.0) == (1 << 30, 1)
    assert quantized_multiplier(np.nextafter(1.0, 0.0)) == (1 << 30, 1)  # rounds up to 2**31
    assert quantized_multiplier(2.0**-40) == (0, 0)
    assert quantized_multiplier(2.0**40) == (2**31 - 1, 30)


def test_requantisation_rounds_twice_whatever_the_sum(rng: np.random.Generator) -> None:
    """Ties, saturation, sums at the ends of int32, and shifts to both sides, channel by channel."""
    reals = [2.0**-1, 3.0 * 2**-9, 0.75, 1.5, 2.0**-30, *(2.0 ** rng.uniform(-20, 2, 11))]
    multiplier, shift = tables(reals)
    acc = rng.integers(-(2**20), 2**20, (400, len(reals))).astype(np.int32)
    acc[:200] = rng.integers(-40, 40, (200, len(reals)))
    acc[0], acc[1] = 2**27, -(2**27)
    for low, high, dtype, zero in ((-128, 127, "int8", -5), (3, 250, "uint8", 3)):
        found = run(
            "Requantize",
            {"acc": acc, "multiplier": multiplier, "shift": shift,
             "zero_point": np.array(zero, np.int32)},
            {"low": low, "high": high, "dtype": dtype},
        )  # fmt: skip
        want = [
            [min(max(exact_product(int(v), int(m), int(s)) + zero, low), high)
             for v, m, s in zip(row, multiplier, shift, strict=True)]
            for row in acc
        ]  # fmt: skip
        np.testing.assert_array_equal(found, np.array(want, dtype))
        assert len(np.unique(found)) > 100


def test_a_single_rounding_is_half_up(rng: np.random.Generator) -> None:
    multiplier, shift = tables([2.0**-1, 3.0 * 2**-9, 0.3, 1.5])
    acc = rng.integers(-300, 300, (300, 4)).astype(np.int32)
    found = run(
        "Requantize",
        {"acc": acc, "multiplier": multiplier, "shift": shift, "zero_point": np.array(0, np.int32)},
        {"low": -128, "high": 127, "dtype": "int8", "single": 1},
    )
    bits = 31 - shift.astype(np.int64)
    want = (acc.astype(np.int64) * multiplier + (1 << (bits - 1))) >> bits
    np.testing.assert_array_equal(found, np.clip(want, -128, 127).astype(np.int8))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("length", [1, 2, 12, 1001])
def test_softmax_is_fixed_point_bit_for_bit(
    rng: np.random.Generator, dtype: str, length: int
) -> None:
    """The kernel against the same arithmetic in NumPy, and both against the real softmax."""
    limits, scale = np.iinfo(dtype), 0.09
    x = rng.integers(limits.min, limits.max, (40, length), endpoint=True).astype(dtype)
    x[0] = limits.max
    x[1] = limits.min
    exponentials = fixed_point.softmax_exponentials(scale, 1.0)
    found = run("Softmax", {"x": x, "exponentials": exponentials}, {"dtype": dtype})
    wide = x.astype(np.int64)
    exp = exponentials.astype(np.int64)[wide.max(axis=1, keepdims=True) - wide]
    total = fixed_point.rounded_shift(exp, 12).sum(axis=1, keepdims=True)
    over = np.floor(np.log2(total)).astype(np.int64) - 19
    fraction = (total << (12 - over)) - 2**31
    inverse = fixed_point.reciprocal_of_one_plus(fraction)
    y = fixed_point.rounded_shift(fixed_point.high_product(exp, inverse), over + 23) + limits.min
    np.testing.assert_array_equal(found, np.clip(y, limits.min, limits.max).astype(dtype))
    real = np.exp(scale * (wide - wide.max(axis=1, keepdims=True)))
    real = 256 * real / real.sum(axis=1, keepdims=True)
    assert np.abs(found.astype(np.int64) - limits.min - np.minimum(real, 255)).max() <= 1


def test_fixed_point_functions_are_those_they_are_named_after(rng: np.random.Generator) -> None:
    """To 2e-7, but for exp, whose polynomial is good to 1e-6 (gemmlowp's)."""
    x = rng.integers(-(2**31), 0, 2000)
    real = x / 2.0**26
    np.testing.assert_allclose(fixed_point.exp_of_negative(x, 5) / 2.0**31, np.exp(real), atol=1e-6)
    both = np.concatenate((x, -x - 1, [0]))
    real = both / 2.0**27
    np.testing.assert_allclose(
        fixed_point.logistic(both, 4) / 2.0**31, 0.5 + 0.5 * np.tanh(real / 2), atol=1e-6
    )
    np.testing.assert_allclose(fixed_point.tanh(both, 4) / 2.0**31, np.tanh(real), atol=2e-6)


@pytest.mark.parametrize("scale", [0.0005, 0.02, 0.1, 3.0])
def test_functions_of_bytes_are_within_a_unit_of_the_real_ones(scale: float) -> None:
    values = np.arange(-255, 256)
    y = fixed_point.logistic_8(values, scale)
    assert np.abs(y - np.minimum(128 + 128 * np.tanh(scale * values / 2), 255)).max() <= 1
    y = fixed_point.tanh_8(values, scale)
    assert np.abs(y - np.clip(128 * np.tanh(scale * values), -128, 127)).max() <= 1


def test_padding_same_gives_a_window_a_stride_and_the_odd_pixel_behind() -> None:
    for size in range(1, 12):
        for kernel in (1, 2, 3, 5):
            for stride in (1, 2, 3):
                for dilation in (1, 2):
                    before, after = same_pads(size, kernel, stride, dilation)
                    reach = (kernel - 1) * dilation + 1
                    out = -(-size // stride)
                    assert 0 <= after - before <= 1
                    assert (size + before + after - reach) // stride + 1 >= out
                    if before + after:
                        assert (out - 1) * stride + reach == size + before + after


def test_every_operator_of_the_corpus_has_a_function(corpus: Path) -> None:
    files = sorted(corpus.glob("*.tflite"))
    assert files
    for file in files:
        for graph in read_tflite(file.read_bytes(), file.name):
            names = {op.name for op in graph.operators}
            assert names <= TABLE.keys(), file.name


def test_files_cut_anywhere_are_refused_or_read(corpus: Path, rng: np.random.Generator) -> None:
    """Never a traceback: what is cut off or changed gives `ModelError` or `UnsupportedError`."""
    data = (corpus / "tflm_hello_world_int8.tflite").read_bytes()
    assert is_tflite(data)
    refused = 0
    for end in rng.integers(8, len(data), 60).tolist():
        try:
            load(data[:end])
        except toolkit.NestlingError:
            refused += 1
    assert refused >= 50
    for _ in range(200):
        changed = bytearray(data)
        for place in rng.integers(8, len(data), 3).tolist():
            changed[place] = int(rng.integers(256))
        with contextlib.suppress(toolkit.NestlingError):
            load(bytes(changed))


def test_an_input_that_lacks_data_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.tflite"
    path.write_bytes(b"\x1c\0\0\0TFL3")
    with pytest.raises(ModelError, match=r"x\.tflite"):
        load(path)
