"""Quantised operators of com.microsoft compute exactly what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from toolkit.backend import prepare

Case = tuple[str, dict[str, Any], list[Any], int]
"""Operator, attributes, operands (None: absent), how many of the first ones are inputs."""


def models(cases: list[Case]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return one model of all cases, and its inputs."""
    nodes, inputs, consts, outputs = [], {}, [], []
    for number, (op, attrs, operands, live) in enumerate(cases):
        names = []
        for position, value in enumerate(operands):
            names.append("" if value is None else f"x{number}_{position}")
            if value is None:
                continue
            if position < live:
                inputs[names[-1]] = value
            else:
                consts.append(numpy_helper.from_array(np.asarray(value), names[-1]))
        outputs.append(f"y{number}")
        nodes.append(helper.make_node(op, names, outputs[-1:], domain="com.microsoft", **attrs))
    graph = helper.make_graph(
        nodes,
        "microsoft",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        consts,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), inputs


def differing(cases: list[Case]) -> list[str]:
    """Return what the generated C gives differently from onnxruntime, unoptimised."""
    model, inputs = models(cases)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    wanted = session.run(None, inputs)
    for info, value in zip(model.graph.output, wanted, strict=True):
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind, value.shape))
    prepared = prepare(model)
    try:
        found = prepared.run(inputs)
    finally:
        prepared.close()
    problems = []
    for case, y, want in zip(cases, found, wanted, strict=True):
        if y.dtype != want.dtype or y.shape != want.shape:
            problems.append(f"{case[:2]}: {y.dtype}{y.shape}, not {want.dtype}{want.shape}")
        elif want.dtype.kind == "f":
            if not np.allclose(y, want, rtol=1e-6, atol=1e-6 * np.abs(want).max()):
                problems.append(f"{case[:2]}: {np.abs(y - want).max()}")
        elif (y != want).any():
            apart = np.abs(y.astype(int) - want)
            problems.append(f"{case[:2]}: {(apart > 0).sum()} of {y.size} differ, by {apart.max()}")
    return problems


def check(cases: list[Case]) -> None:
    problems = differing(cases)
    assert not problems, "\n".join(problems)


def some(rng: np.random.Generator, dtype: str, shape: Any = ()) -> Any:
    limits = np.iinfo(dtype)
    return np.asarray(rng.integers(limits.min, limits.max, shape, endpoint=True)).astype(dtype)


def scale(rng: np.random.Generator, shape: Any = (), low: float = -6, high: float = 0) -> Any:
    return np.asarray(2.0 ** rng.uniform(low, high, shape)).astype(np.float32)


def zero(rng: np.random.Generator, dtype: str) -> Any:
    """A zero point, often at a limit."""
    limits = np.iinfo(dtype)
    pick = rng.integers(4)
    value = (limits.min, limits.max, 0)[pick] if pick < 3 else some(rng, dtype).item()
    return np.array(value, dtype)


def quantised(rng: np.random.Generator, dtype: str, shape: Any) -> list[Any]:
    """A tensor, its scale and its zero point."""
    return [some(rng, dtype, shape), scale(rng), zero(rng, dtype)]


def result(rng: np.random.Generator, dtype: str) -> list[Any]:
    return [scale(rng, low=-5, high=2), zero(rng, dtype)]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_and_products_of_all_pairs_of_values(rng: np.random.Generator, dtype: str) -> None:
    limits = np.iinfo(dtype)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    a, b = np.repeat(every, 256).reshape(256, 256), np.tile(every, (256, 1))
    cases: list[Case] = []
    for _ in range(6):
        for op in ("QLinearAdd", "QLinearMul"):
            params = [scale(rng), zero(rng, dtype)]
            cases.append(
                (op, {}, [a, *params, b, scale(rng), zero(rng, dtype), *result(rng, dtype)], 1)
            )
            one = np.array(2.0 ** rng.integers(-4, 2), np.float32)
            tied = [one, zero(rng, dtype), b, one / 2, zero(rng, dtype), one, zero(rng, dtype)]
            cases.append((op, {}, [a, *tied], 1))
    for extreme in (1e-8, 1e8):
        x = np.array(extreme, np.float32)
        for op, y in (("QLinearAdd", x), ("QLinearMul", np.array(1.0, np.float32))):
            right = [b, y, zero(rng, dtype), x, zero(rng, dtype)]
            cases.append((op, {}, [a, x, zero(rng, dtype), *right], 1))
    check(cases)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_functions_of_one_tensor(rng: np.random.Generator, dtype: str) -> None:
    limits = np.iinfo(dtype)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    cases: list[Case] = []
    for _ in range(4):
        x = [every, scale(rng, low=-7, high=-2), zero(rng, dtype)]
        y = [np.array(1 / 256, np.float32), zero(rng, dtype)]
        cases.append(("QLinearSigmoid", {}, [*x, *y], 1))
        cases.append(("QLinearLeakyRelu", {"alpha": 0.17}, [*x, *result(rng, dtype)], 1))
    check(cases)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_tensors_that_only_move(rng: np.random.Generator, dtype: str) -> None:
    cases: list[Case] = []
    for axis in (1, -1):
        a, b = quantised(rng, dtype, (2, 3, 5)), quantised(rng, dtype, (2, 3, 5))
        y = result(rng, dtype)
        cases.append(("QLinearConcat", {"axis": axis}, [*y, *a, *b, b[0], *y], 0))
    choice = rng.integers(2, size=(4, 6)).astype(bool)
    x, y = quantised(rng, dtype, (4, 6)), quantised(rng, dtype, (6,))
    cases.append(("QLinearWhere", {}, [choice, *x, *y, *result(rng, dtype)], 2))
    check(cases)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_pools(rng: np.random.Generator, dtype: str) -> None:
    cases: list[Case] = []
    for last in (0, 1):
        for _ in range(3):
            x = quantised(rng, dtype, (2, 9, 7, 8) if last else (2, 8, 9, 7))
            for y in (result(rng, dtype), x[1:]):
                whole = {"channels_last": last}
                cases.append(("QLinearGlobalAveragePool", whole, [*x, *y], 1))
                attrs = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
                for count in (0, 1):
                    part = {**attrs, **whole, "count_include_pad": count}
                    cases.append(("QLinearAveragePool", part, [*x, *y], 1))
    check(cases)


def test_softmax(rng: np.random.Generator) -> None:
    cases: list[Case] = []
    for dtype in ("int8", "uint8"):
        for opset, axis in ((13, -1), (13, 1), (11, 1)):
            x = some(rng, dtype, (3, 4, 10))
            y = [np.array(1 / 250, np.float32), np.array(np.iinfo(dtype).min, dtype)]
            operands = [x, scale(rng, low=-8, high=-5), zero(rng, dtype), *y]
            cases.append(("QLinearSoftmax", {"axis": axis, "opset": opset}, operands, 1))
    check(cases)


def test_products_of_matrices(rng: np.random.Generator) -> None:
    cases: list[Case] = []
    for a_type, b_type in (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")):
        for ta, tb in ((0, 0), (0, 1), (1, 0)):
            a = quantised(rng, a_type, (9, 5) if ta else (5, 9))
            b = some(rng, b_type, (7, 9) if tb else (9, 7))
            signed = b_type == "int8"
            per = [scale(rng, (7,)), np.zeros(7, b_type) if signed else some(rng, b_type, (7,))]
            for params in ([scale(rng), zero(rng, b_type)], per):
                bias = some(rng, "int32", (7,)) // 100000
                y = [scale(rng, low=2, high=9), zero(rng, a_type)]
                attrs = {"transA": ta, "transB": tb, "alpha": 1.0 if ta else 0.75}
                cases.append(("QGemm", attrs, [*a, b, *params, bias, *y], 1))
                cases.append(("QGemm", attrs, [*a, b, *params, None, None, None], 1))
                cases.append(("QGemm", attrs, [*a, b, *params], 1))
    a, b = some(rng, "uint8", (4, 6)), some(rng, "int8", (6, 3))
    add = rng.standard_normal(3).astype(np.float32)
    params = [scale(rng), scale(rng, (3,)), zero(rng, "uint8"), np.zeros(3, np.int8)]
    cases.append(("MatMulIntegerToFloat", {}, [a, b, *params, add], 1))
    x = rng.standard_normal((4, 6)).astype(np.float32)
    cases.append(("DynamicQuantizeMatMul", {}, [x, b, scale(rng), np.array(3, np.int8), add], 1))
    check(cases)
