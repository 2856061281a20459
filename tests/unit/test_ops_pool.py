"""Pools compute what ONNX says, for random shapes and attributes, in both layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.op_batch import Case, check, compare, expected, found, found_nhwc
from toolkit.backend import run_model
from toolkit.errors import UnsupportedError
from toolkit.ir.compute import placeholder
from toolkit.ir.graph import Node
from toolkit.ops import apply_op
from toolkit.ops.pool import POOL_OPS


def ints(rng: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    return [int(v) for v in rng.integers(low, high + 1, count)]


def window(rng: np.random.Generator, rank: int) -> tuple[list[int], dict[str, Any]]:
    """Return a spatial shape and the attributes of a window on it."""
    kernel, strides, dilations = ints(rng, 1, 3, rank), ints(rng, 1, 4, rank), ints(rng, 1, 2, rank)
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    match int(rng.integers(3)):
        case 0:
            attrs["ceil_mode"] = int(rng.integers(2))
        case 1:
            attrs["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        case 2:
            attrs["ceil_mode"] = int(rng.integers(2))
            attrs["pads"] = [int(rng.integers(0, k)) for k in kernel * 2]
    if attrs.get("auto_pad", "").startswith("SAME"):
        # onnxruntime refuses dilations with SAME, and pads negatively where windows leave gaps.
        dilations = [1] * rank
        attrs["strides"] = [min(s, k) for s, k in zip(strides, kernel, strict=True)]
    else:
        attrs["dilations"] = dilations
    size = [
        (k - 1) * d + 1 + int(rng.integers(0, 6)) for k, d in zip(kernel, dilations, strict=True)
    ]
    return size, attrs


def pool_case(
    rng: np.random.Generator, op: str, rank: int, dtype: str = "float32", **attrs: Any
) -> Case:
    size, found = window(rng, rank)
    shape = (int(rng.integers(1, 3)), int(rng.integers(1, 4)), *size)
    x = (20 * rng.standard_normal(shape)).astype(dtype)
    outputs = attrs.pop("outputs", 1)
    return Case(op, {**found, **attrs}, [x], outputs)


def test_average_pool_agrees_with_onnxruntime_on_random_attributes(
    rng: np.random.Generator,
) -> None:
    check(
        [
            pool_case(rng, "AveragePool", rank, count_include_pad=int(rng.integers(2)))
            for rank in (1, 2, 2, 3) * 5
        ]
    )


def test_max_pool_and_its_indices_agree_with_onnxruntime(rng: np.random.Generator) -> None:
    cases = [
        pool_case(rng, "MaxPool", rank, dtype, outputs=2, storage_order=int(rng.integers(2)))
        for rank in (1, 2, 3)
        for dtype in ("float32", "float32", "int8", "uint8", "float64")
    ]
    check(cases)


def test_max_pool_of_equal_values_names_the_first() -> None:
    x = np.zeros((1, 2, 4, 5), np.float32)
    attrs = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    check([Case("MaxPool", {**attrs, "storage_order": order}, [x], 2) for order in (0, 1)])


def test_max_pool_of_nan_is_nan_at_a_place_inside() -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    x[0, 0, 1, 1] = np.nan
    y, at = found([Case("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [x], 2)])
    assert np.isnan(y[0, 0, 0, 0])
    np.testing.assert_array_equal(y.reshape(-1)[1:], [7, 13, 15])
    np.testing.assert_array_equal(at.reshape(-1), [5, 7, 13, 15])


def test_lp_pool_agrees_with_onnxruntime_on_random_attributes(rng: np.random.Generator) -> None:
    check([pool_case(rng, "LpPool", rank, p=1 + n % 3) for n, rank in enumerate((1, 2, 3, 2) * 4)])


def global_cases(rng: np.random.Generator) -> list[Case]:
    images = [rng.standard_normal((2, 3, *ints(rng, 1, 6, n)), dtype=np.float32) for n in (1, 2, 3)]
    ops: list[tuple[str, dict[str, Any]]] = [("GlobalAveragePool", {}), ("GlobalMaxPool", {})]
    ops += [("GlobalLpPool", {"p": p}) for p in (1, 2, 3)]
    return [Case(op, attrs, [x]) for x in images for op, attrs in ops]


def global_pool(case: Case) -> np.ndarray:
    """What NumPy says; onnxruntime has no GlobalLpPool of the newest opset."""
    (x,) = case.operands
    assert x is not None
    axes = tuple(range(2, x.ndim))
    if case.op == "GlobalLpPool":
        p = case.attrs["p"]
        return np.asarray((np.abs(x) ** p).sum(axes, keepdims=True) ** (1 / p), x.dtype)
    return np.asarray((np.mean if "Average" in case.op else np.max)(x, axes, keepdims=True))


def test_global_pools_agree_with_numpy(rng: np.random.Generator) -> None:
    cases = global_cases(rng)
    problems = compare(cases, found(cases), [global_pool(c) for c in cases], 1e-5)
    assert not problems, "\n".join(problems)


def lrn_cases(rng: np.random.Generator) -> list[Case]:
    return [
        Case(
            "LRN",
            {"size": size, "alpha": 0.3, "beta": beta, "bias": 1.5},
            [rng.standard_normal((2, 5, 3, 4), dtype=np.float32)],
        )
        for size, beta in ((3, 0.75), (5, 0.5), (1, 1.0), (4, 0.6), (9, 2.0))
    ]


def test_lrn_agrees_with_the_specified_sum(rng: np.random.Generator) -> None:
    cases = lrn_cases(rng)
    problems = compare(cases, found(cases), [lrn(case) for case in cases], 1e-5)
    assert not problems, "\n".join(problems)


def lrn(case: Case) -> np.ndarray:
    """The specified formula; onnxruntime refuses even sizes, onnx.reference mixes up two axes."""
    x, a = case.operands[0], case.attrs
    assert x is not None
    channels, size = x.shape[1], a["size"]
    total = np.zeros_like(x)
    for c in range(channels):
        low, high = max(0, c - (size - 1) // 2), min(channels - 1, c + size // 2)
        total[:, c] = (x[:, low : high + 1] ** 2).sum(axis=1)
    return np.asarray(x / (a["bias"] + a["alpha"] / size * total) ** a["beta"], x.dtype)


def test_pools_with_the_channel_last_compute_the_same(rng: np.random.Generator) -> None:
    cases = [
        pool_case(rng, op, rank)
        for op in ("AveragePool", "MaxPool", "LpPool")
        for rank in (1, 2, 2, 3)
    ]
    images, channels = global_cases(rng), lrn_cases(rng)
    want = [*expected(cases), *map(global_pool, images), *map(lrn, channels)]
    cases += images + channels
    problems = compare(cases, found_nhwc(cases), want, 1e-5)
    assert not problems, "\n".join(problems)


def test_max_unpool_puts_back_what_max_pool_took(rng: np.random.Generator) -> None:
    cases = []
    for rank in (1, 2, 3):
        kernel = ints(rng, 1, 3, rank)
        size = [k * int(rng.integers(1, 4)) for k in kernel]
        attrs = {"kernel_shape": kernel, "strides": kernel}
        x = rng.standard_normal((2, 2, *size), dtype=np.float32)
        y, at = expected([Case("MaxPool", attrs, [x], 2)])
        cases.append(Case("MaxUnpool", attrs, [y, at]))
    check(cases)


def test_max_unpool_skips_indices_out_of_range() -> None:
    x = np.array([[[1.0, 2.0, 3.0]]], np.float32)
    at = np.array([[[-1, 6, 4]]], np.int64)
    (y,) = found([Case("MaxUnpool", {"kernel_shape": [2], "strides": [2]}, [x, at])])
    np.testing.assert_array_equal(y, [[[0, 0, 0, 0, 3, 0]]])


@pytest.mark.parametrize("include", [0, 1])
def test_a_window_that_overruns_the_padding_counts_only_the_padded_image(include: int) -> None:
    """The last of 3 windows of 3 reads 1 pixel, 1 of padding, and 1 beyond."""
    x = np.array([[[2.0, 4.0, 6.0, 8.0]]], np.float32)
    attrs = {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "ceil_mode": 1}
    (y,) = found([Case("AveragePool", {**attrs, "count_include_pad": include}, [x])])
    last = 8 / 2 if include else 8.0
    np.testing.assert_allclose(y.reshape(-1), [6 / (3 if include else 2), 6, last], rtol=1e-6)


def test_average_pool_with_ceil_mode_has_the_size_of_onnxruntime(corpus: Path) -> None:
    model = onnx.load(corpus / "bugs" / "b05_avgpool_ceil.onnx")
    arrays = np.load(corpus / "bugs" / "b05_avgpool_ceil.onnx.npz")
    for x, y in zip(arrays["in__x"], arrays["out__y"], strict=True):
        np.testing.assert_allclose(run_model(model, [x])[0], y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "shape", "attrs", "words"),
    [
        ("MaxPool", (1, 2, 4), {}, "must be positive"),
        ("MaxPool", (1, 2, 4), {"kernel_shape": (2, 2)}, "must hold 1 numbers"),
        ("AveragePool", (1, 2, 4), {"kernel_shape": (5,)}, "a window of 5 does not fit"),
        ("LpPool", (1, 2, 4), {"kernel_shape": (2,), "p": 0}, "p=0 is not a norm"),
        ("GlobalMaxPool", (1, 2), {}, "needs a batch, a channel and a spatial axis"),
    ],
)
def test_attributes_that_do_not_fit_are_refused_with_the_numbers(
    op: str, shape: tuple[int, ...], attrs: dict[str, Any], words: str
) -> None:
    node = Node("n", op, ("x",), ("y",), attrs)
    with pytest.raises(UnsupportedError) as caught:
        apply_op(POOL_OPS[op], node, [placeholder(shape, "float32", "x")], 22)
    assert words in str(caught.value)
