"""Operators on integers, taken apart and requantised by what suits a core: onnxruntime's bits."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from toolkit.ops import OPS
from toolkit.passes.arithmetic import requantise
from toolkit.pipeline import compile_model, load, Options
from toolkit.runners import BuiltModel

Consts = dict[str, np.ndarray]


def check(
    node: onnx.NodeProto,
    inputs: dict[str, np.ndarray],
    consts: Consts,
    wanted: set[str],
    *,
    proven: bool = True,
) -> None:
    """Compare with onnxruntime on the host and without vectors, where float32 may have no part.

    Of many scales some give float32 products that no long multiplication gives: `proven` is False.
    """
    kind = consts[next(n for n in reversed(node.input) if n.startswith("zy"))].dtype
    graph = helper.make_graph(
        [node], "qlinear",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in inputs.items()
        ],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(kind), None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in consts.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    (want,) = session.run(None, inputs)
    assert len(np.unique(want)) > 20
    model = load(proto)
    long = requantise(model.graph, OPS, arithmetic="long")
    assert {n.op for n in long.nodes} == wanted
    if proven:
        assert all("shift" in n.attrs for n in long.nodes if n.op.startswith("Requantize"))
    for target in ("host", "generic"):
        chosen = Options(target=target, cflags=("-O1",))
        with BuiltModel(compile_model(model, chosen)) as built:
            np.testing.assert_array_equal(built.run(inputs)["y"], want)


def numbers(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Integers of a type, its limits among them."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, shape, endpoint=True)
    values.reshape(-1)[:2] = limits.min, limits.max
    return values.astype(dtype)


def limit(rng: np.random.Generator, dtype: str) -> np.ndarray:
    """A zero point at a limit of its type, or between."""
    limits = np.iinfo(dtype)
    return np.array(rng.choice([limits.min, limits.max, limits.max - 100]), dtype)


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_convolutions(rng: np.random.Generator, dtype: str, size: float) -> None:
    channels, inner = 7, 5
    many = size == 1.0
    w_scale = np.asarray(2.0 ** rng.uniform(-9, -6, channels) if many else 0.0041713, np.float32)
    sum_of = 74.0**2 * np.sqrt(9 * inner) / 60
    consts = {
        "sx": np.float32(0.37 * size), "zx": limit(rng, dtype),
        "w": numbers(rng, "int8", channels, inner, 3, 3), "sw": w_scale,
        "zw": np.zeros(w_scale.shape, np.int8),
        "sy": np.float32(0.37 * size * w_scale.mean() * sum_of), "zy": limit(rng, dtype),
        "b": rng.integers(-9000, 9000, channels).astype(np.int32),
    }  # fmt: skip
    names = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"]
    node = helper.make_node("QLinearConv", names, ["y"], pads=[1, 0, 1, 2], strides=[1, 2])
    x = numbers(rng, dtype, 2, inner, 9, 7)
    check(node, {"x": x}, consts, {"ConvInteger", "Requantize"}, proven=not many)


@pytest.mark.parametrize("constant", [True, False])
def test_products_of_matrices(rng: np.random.Generator, constant: bool) -> None:
    b = numbers(rng, "int8", 11, 9)
    consts = {
        "sa": np.float32(0.021), "za": limit(rng, "uint8"), "sb": np.float32(0.0173),
        "zb": np.array(0 if constant else -3, np.int8),
        "sy": np.float32(0.021 * 0.0173 * 170.3717), "zy": limit(rng, "uint8"),
    }  # fmt: skip
    inputs = {"a": numbers(rng, "uint8", 40, 11)}
    (consts if constant else inputs)["b"] = b
    names = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    node = helper.make_node("QLinearMatMul", names, ["y"])
    check(node, inputs, consts, {"MatMulInteger", "Requantize"})


def test_gemm_with_a_scale_a_column(rng: np.random.Generator) -> None:
    scales = (2.0 ** rng.uniform(-8, -5, 9)).astype(np.float32)
    consts = {
        "sa": np.float32(0.021), "za": limit(rng, "int8"),
        "b": numbers(rng, "int8", 11, 9), "sb": scales, "zb": np.zeros(9, np.int8),
        "c": rng.integers(-9000, 9000, 9).astype(np.int32),
        "sy": np.float32(0.021 * scales.mean() * 170.3717), "zy": limit(rng, "int8"),
    }  # fmt: skip
    names = ["a", "sa", "za", "b", "sb", "zb", "c", "sy", "zy"]
    node = helper.make_node("QGemm", names, ["y"], domain="com.microsoft", alpha=0.7)
    x = numbers(rng, "int8", 40, 11)
    check(node, {"a": x}, consts, {"MatMulInteger", "Requantize"}, proven=False)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("op", "wanted"), [
    ("QLinearAdd", {"RequantizeSum"}), ("QLinearMul", {"Product", "Requantize"}),
])  # fmt: skip
def test_every_pair(rng: np.random.Generator, op: str, wanted: set[str], dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = np.arange(limits.min, limits.max + 1, dtype=dtype)
    y_scale = 0.0413753 if op == "QLinearAdd" else 0.0871717
    consts = {
        "sa": np.float32(0.0310917), "za": limit(rng, dtype),
        "sb": np.float32(0.0172931), "zb": np.array(limits.max - 90, dtype),
        "sy": np.float32(y_scale), "zy": np.array(limits.min + 77, dtype),
    }  # fmt: skip
    names = ["a", "sa", "za", "b", "sb", "zb", "sy", "zy"]
    node = helper.make_node(op, names, ["y"], domain="com.microsoft")
    check(node, {"a": values[:, None], "b": values}, consts, wanted)
