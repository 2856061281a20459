"""Reductions, images, transposed convolutions, products of two tensors: LiteRT's bits.

`REFERENCE` holds the first 64 bits of the SHA-256 of what BUILTIN_REF of ai-edge-litert 2.3.0
answered for the same files and inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

import toolkit
from tests.tflite_maker import constant, model_of, Operand
from toolkit.errors import UnsupportedError

pytestmark = pytest.mark.needs("gcc")

Case = tuple[bytes, list[Operand]]

REFERENCE = {
    "MEAN_int8_0": "00cc9f9f8ff88407",
    "REDUCE_MAX_int8_0": "383e1cf21688b0b1",
    "REDUCE_MIN_int8_0": "bb54fdd5ab5809e3",
    "MEAN_int8_1": "119b9f78f4140ba6",
    "REDUCE_MAX_int8_1": "4f9d52a6ec43fd79",
    "MEAN_int8_2": "24b67664523462f7",
    "REDUCE_MAX_int8_2": "1ffb37997babe5f3",
    "MEAN_int8_3": "b016a91f72eb4bba",
    "REDUCE_MAX_int8_3": "f9beba9e542fd84e",
    "RESIZE_NEAREST_NEIGHBOR_int8_0": "f0a77e9fdff77efa",
    "RESIZE_BILINEAR_int8_0": "3ea70b907a800d66",
    "RESIZE_NEAREST_NEIGHBOR_int8_1": "f8b1cb3e57ea0ed2",
    "RESIZE_BILINEAR_int8_1": "fa178210f15b1e68",
    "RESIZE_NEAREST_NEIGHBOR_int8_2": "8335c9a154c8f2d3",
    "RESIZE_BILINEAR_int8_2": "d41f8e189a544e84",
    "RESIZE_NEAREST_NEIGHBOR_int8_3": "376836b56161f3f6",
    "RESIZE_BILINEAR_int8_3": "d111c1f2c9148f7d",
    "RESIZE_BILINEAR_int8_4": "15456c55c88f52f5",
    "RESIZE_BILINEAR_int8_5": "cc9850278382d81c",
    "HARD_SWISH_int8": "cf8a2529d9bef205",
    "HARD_SWISH_int8_small": "4489c4c5c8e24193",
    "MEAN_uint8_0": "74f406bd39997af0",
    "REDUCE_MAX_uint8_0": "7e57b9c18088717f",
    "REDUCE_MIN_uint8_0": "ae4d824e6841ef76",
    "RESIZE_NEAREST_NEIGHBOR_uint8_0": "4a52adb5403e31fd",
    "HARD_SWISH_uint8": "0b6384bcfd79eb76",
    "HARD_SWISH_uint8_small": "d15a010d7043b582",
    "TRANSPOSE_CONV_0": "9fdbdede2119a9b7",
    "TRANSPOSE_CONV_1": "2537d026a5171670",
    "TRANSPOSE_CONV_2": "62bd7127e3d2bd6e",
    "TRANSPOSE_CONV_3": "f016ab75057ddad8",
    "TRANSPOSE_CONV_4": "32382964a554e26d",
    "BATCH_MATMUL_0": "5e8acbeb4cb27300",
    "BATCH_MATMUL_1": "521302802f44a2b9",
    "BATCH_MATMUL_2": "2dc8e3ca1ec351f7",
    "BATCH_MATMUL_3": "f0bfef95bf44ae87",
}

REDUCTIONS = (
    ((1, 5, 7, 64), (1, 2), True),
    ((60, 50), (1,), False),
    ((2, 6, 4, 8), (-3,), True),
    ((2, 6, 4, 8), (0, 1, 2), False),
)
IMAGES = (
    ((9, 13), False, False),
    ((9, 13), True, False),
    ((9, 13), False, True),
    ((3, 4), False, True),
    ((12, 10), False, False),
    ((3, 3), True, False),
)
DECONVOLUTIONS = (
    (2, 0, (12, 10)),
    (2, 1, (13, 11)),
    (1, 0, (6, 5)),
    (3, 0, (18, 15)),
    (2, 0, (11, 9)),
)
PRODUCTS = (
    ((2, 5, 7), (2, 7, 9), False, False),
    ((2, 5, 7), (2, 9, 7), False, True),
    ((2, 7, 5), (2, 7, 9), True, False),
    ((3, 2, 5, 7), (3, 2, 7, 9), False, False),
)


def quantised(dtype: str, shape: tuple[int, ...], scale: float = 0.05, zero: int = 3) -> Operand:
    """Zero points are those of int8; of uint8 they lie 127 higher."""
    return Operand(shape, dtype, scale, zero if dtype == "int8" else zero + 127)


def reduction(op: str, dtype: str, number: int) -> Case:
    shape, axes, keep = REDUCTIONS[number]
    gone = {a % len(shape) for a in axes}
    out = tuple(1 if i in gone else n for i, n in enumerate(shape) if keep or i not in gone)
    x = quantised(dtype, shape)
    y = quantised(dtype, out)
    if op == "MEAN":
        y = Operand(out, dtype, 0.03, 1 if dtype == "int8" else 120)
    data = model_of(op, [x, constant(axes, "int32")], y, "ReducerOptions", KeepDims=keep)
    return data, [x]


def image(op: str, dtype: str, number: int) -> Case:
    size, align, half = IMAGES[number]
    options = {
        "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
        "RESIZE_BILINEAR": "ResizeBilinearOptions",
    }[op]
    x = quantised(dtype, (2, 6, 5, 4))
    data = model_of(
        op, [x, constant(size, "int32")], quantised(dtype, (2, *size, 4)), options,
        AlignCorners=align, HalfPixelCenters=half,
    )  # fmt: skip
    return data, [x]


def hard_swish(dtype: str, small: bool) -> Case:
    scales = (0.01, 0.01) if small else (0.04, 0.03)
    x = quantised(dtype, (64, 256), scales[0])
    y = Operand((64, 256), dtype, scales[1], -90 if dtype == "int8" else 20)
    return model_of("HARD_SWISH", [x], y, "HardSwishOptions", version=1), [x]


def deconvolution(number: int) -> Case:
    rng = np.random.default_rng(0)
    w, b = rng.integers(-127, 128, (6, 3, 3, 4)), rng.integers(-2000, 2000, (6,))
    stride, padding, size = DECONVOLUTIONS[number]
    x = quantised("int8", (1, 6, 5, 4))
    operands = [
        constant((1, *size, 6), "int32"), constant(w, "int8", 0.02), x, constant(b, "int32", 0.001),
    ]  # fmt: skip
    data = model_of(
        "TRANSPOSE_CONV", operands, Operand((1, *size, 6), "int8", 0.3, -5),
        "TransposeConvOptions", Padding=padding, StrideH=stride, StrideW=stride,
    )  # fmt: skip
    return data, [x]


def product(number: int) -> Case:
    a_shape, b_shape, turn_a, turn_b = PRODUCTS[number]
    rows, columns = a_shape[-1 if turn_a else -2], b_shape[-2 if turn_b else -1]
    a, b = quantised("int8", a_shape), Operand(b_shape, "int8", 0.02, -7)
    data = model_of(
        "BATCH_MATMUL", [a, b], Operand((*a_shape[:-2], rows, columns), "int8", 0.1, 4),
        "BatchMatMulOptions", AdjX=turn_a, AdjY=turn_b,
    )  # fmt: skip
    return data, [a, b]


def case(name: str) -> Case:
    """Return the model of a case, and its inputs."""
    op, _, rest = next(
        (o, *name.removeprefix(o).partition("_")[1:]) for o in FAMILIES if name.startswith(o)
    )
    return FAMILIES[op](*rest.split("_"))


FAMILIES: dict[str, Callable[..., Case]] = {
    "MEAN": lambda dtype, n: reduction("MEAN", dtype, int(n)),
    "REDUCE_MAX": lambda dtype, n: reduction("REDUCE_MAX", dtype, int(n)),
    "REDUCE_MIN": lambda dtype, n: reduction("REDUCE_MIN", dtype, int(n)),
    "RESIZE_NEAREST_NEIGHBOR": lambda dtype, n: image("RESIZE_NEAREST_NEIGHBOR", dtype, int(n)),
    "RESIZE_BILINEAR": lambda dtype, n: image("RESIZE_BILINEAR", dtype, int(n)),
    "HARD_SWISH": lambda dtype, *small: hard_swish(dtype, bool(small)),
    "TRANSPOSE_CONV": lambda n: deconvolution(int(n)),
    "BATCH_MATMUL": lambda n: product(int(n)),
}


def run(data: bytes, *values: np.ndarray) -> np.ndarray:
    with toolkit.build(toolkit.load(data)) as built:
        (found,) = built(*values)
    return np.asarray(found)


@pytest.mark.parametrize("name", REFERENCE)
def test_an_operator_gives_the_bits_of_the_reference(name: str) -> None:
    data, inputs = case(name)
    rng = np.random.default_rng(5)
    found = run(data, *(x.random(rng) for x in inputs))
    assert hashlib.sha256(found.tobytes()).hexdigest()[:16] == REFERENCE[name]


@pytest.mark.parametrize(
    ("op", "dtype", "why"),
    [("SUM", "int8", "quantised int8 data"), ("RESIZE_BILINEAR", "uint8", "uint8 data")],
)
def test_what_is_not_there_is_refused(op: str, dtype: str, why: str) -> None:
    data, _ = image(op, dtype, 0) if op.startswith("RES") else reduction(op, dtype, 0)
    with pytest.raises(UnsupportedError) as caught:
        toolkit.load(data)
    assert why in caught.value.state[0]


# ---- floats ----


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def test_a_mean_of_floats() -> None:
    x = Operand((2, 6, 4, 8), "float32")
    y = Operand((2, 1, 4, 8), "float32")
    data = model_of("MEAN", [x, constant([1], "int32")], y, "ReducerOptions", KeepDims=True)
    v = random(*x.shape)
    np.testing.assert_allclose(run(data, v), v.mean(axis=1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_a_transposed_convolution_of_floats() -> None:
    w, b, v = random(6, 3, 2, 4), random(6), random(1, 5, 7, 4)
    out = (1, 2 * 4 + 3, 2 * 6 + 2, 6)
    operands = [
        constant(out, "int32"), constant(w, "float32"), Operand(v.shape, "float32"),
        constant(b, "float32"),
    ]  # fmt: skip
    data = model_of(
        "TRANSPOSE_CONV", operands, Operand(out, "float32"), "TransposeConvOptions",
        Padding=1, StrideH=2, StrideW=2,
    )  # fmt: skip
    expected = np.zeros(out, np.float32) + b
    for h in range(5):
        for x in range(7):
            part = np.einsum("i,okli->klo", v[0, h, x], w)
            expected[0, 2 * h : 2 * h + 3, 2 * x : 2 * x + 2] += part
    np.testing.assert_allclose(run(data, v), expected, rtol=1e-5, atol=1e-5)


def test_a_product_of_float_tensors() -> None:
    a, b = random(2, 5, 7), random(2, 9, 7)
    operands = [Operand(a.shape, "float32"), Operand(b.shape, "float32")]
    y = Operand((2, 5, 9), "float32")
    data = model_of("BATCH_MATMUL", operands, y, "BatchMatMulOptions", AdjX=False, AdjY=True)
    np.testing.assert_allclose(run(data, a, b), a @ b.transpose(0, 2, 1), rtol=1e-5, atol=1e-5)


def test_a_bilinear_image_of_floats() -> None:
    """Twice as large with half pixel centers: weights of a quarter and three quarters."""
    v = random(1, 4, 4, 2)
    operands = [Operand(v.shape, "float32"), constant([8, 4], "int32")]
    data = model_of(
        "RESIZE_BILINEAR", operands, Operand((1, 8, 4, 2), "float32"), "ResizeBilinearOptions",
        AlignCorners=False, HalfPixelCenters=True,
    )  # fmt: skip
    rows = np.clip((np.arange(8) + 0.5) / 2 - 0.5, 0, 3)
    low = np.floor(rows).astype(int)
    part = (rows - low)[:, None, None].astype(np.float32)
    high = np.minimum(low + 1, 3)
    expected = v[:, low] * (1 - part) + v[:, high] * part
    np.testing.assert_allclose(run(data, v), expected, rtol=1e-5, atol=1e-6)
