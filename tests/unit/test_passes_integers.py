"""Quantised subgraphs on integers: staircases are exact, proofs hold, results are onnxruntime's."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from toolkit.ops import OPS
from toolkit.passes.integers import integers
from toolkit.passes.requantise import fixed_form, float_form, Staircase, staircase
from toolkit.pipeline import compile_model, load, Options
from toolkit.runners import BuiltModel
from toolkit.samples import random_samples

LIMIT = 30000


def rounded(value: Fraction) -> int:
    """Half to even, as Python rounds fractions."""
    return round(value)


def exact(stairs: dict[str, Any], acc: int, channel: int) -> int:
    """Requantise one sum in fractions."""
    scale = Fraction(stairs["scales"][channel]) * Fraction(stairs["factor"])
    real = acc * scale + Fraction(stairs["bias"][channel])
    y = rounded(real / Fraction(stairs["y_scale"])) + stairs["zero"]
    return min(max(y, stairs["low"]), stairs["high"])


def some(rng: np.random.Generator, kind: str) -> dict[str, Any]:
    """Parameters of four channels: scales that are random, extreme, or make ties."""
    low, high = sorted(rng.choice(np.arange(-128, 128), 2, replace=False).tolist())
    if rng.integers(2):
        low, high = (-128, 127)
    zero = int(rng.choice([low, high, 0, rng.integers(-128, 128)]))
    slope = 2.0 ** rng.uniform(-13, -3, 4)
    match kind:
        case "ties":
            scales, factor, y_scale = 2.0 ** rng.integers(-9, -5, 4), 0.5, 1.0
            bias = rng.integers(-100, 100, 4) * 0.25
        case _:
            size = {"random": 1.0, "tiny": 1e-8, "huge": 1e8}[kind]
            factor, y_scale = (float(np.float32(rng.uniform(0.1, 3) * size)) for _ in range(2))
            scales = (slope * y_scale / factor).astype(np.float32).astype(float)
            bias = (rng.uniform(-40, 40, 4) * y_scale).astype(np.float32).astype(float)
    return {
        "scales": [float(s) for s in scales], "factor": factor, "y_scale": y_scale,
        "bias": [float(b) for b in bias], "zero": zero, "low": int(low), "high": int(high),
    }  # fmt: skip


def made(given: dict[str, Any]) -> Staircase:
    reach = np.full(4, LIMIT)
    numbers = given["scales"], given["bias"], given["factor"], given["y_scale"]
    rest = {k: given[k] for k in ("zero", "low", "high")}
    return staircase(*numbers, **rest, limits=(-reach, reach))


@pytest.mark.parametrize("kind", ["random", "ties", "tiny", "huge"])
def test_steps_are_those_of_fractions(rng: np.random.Generator, kind: str) -> None:
    for _ in range(6):
        given = some(rng, kind)
        stairs = made(given)
        for channel in range(4):
            steps = stairs.steps[channel]
            inner = steps[np.abs(steps) < LIMIT]
            tried = {*rng.integers(-LIMIT, LIMIT, 40).tolist(), -LIMIT, LIMIT}
            for step in rng.permutation(inner)[:40].tolist():
                tried |= {step, step - 1}
            for acc in tried:
                found = given["low"] + int((steps <= acc).sum())
                assert found == exact(given, acc, channel), (given, acc, channel)


@pytest.mark.parametrize("kind", ["random", "ties", "tiny", "huge"])
def test_what_is_proven_is_equal_everywhere(rng: np.random.Generator, kind: str) -> None:
    proven = {"float": 0, "fixed": 0}
    acc = np.arange(-LIMIT, LIMIT + 1)
    for _ in range(20):
        given = some(rng, kind)
        stairs = made(given)
        low, high = given["low"], given["high"]
        want = low + np.stack([np.searchsorted(row, acc, side="right") for row in stairs.steps])
        in_float = float_form(stairs)
        if in_float is not None:
            multiplier, bias = in_float
            total = (acc[None] + bias[:, None].astype(np.int64)).astype(np.float32)
            y = np.rint(total * multiplier[:, None]) + np.float32(given["zero"])
            np.testing.assert_array_equal(np.clip(y, low, high).astype(int), want)
            proven["float"] += 1
        in_integers = fixed_form(stairs)
        if in_integers is not None:
            factor = in_integers.multiplier.astype(np.int64)
            y = (acc[None] * factor[:, None] + in_integers.offset[:, None]) >> in_integers.shift
            np.testing.assert_array_equal(np.clip(y, low, high), want)
            proven["fixed"] += 1
    if kind != "ties":
        assert proven["fixed"] >= 15, proven


def test_a_staircase_of_alternating_ties_has_no_single_multiplier() -> None:
    given = {"scales": [0.5], "bias": [0.0], "factor": 1.0, "y_scale": 1.0}
    stairs = staircase(
        given["scales"], given["bias"], 1.0, 1.0, zero=0, low=-128, high=127,
        limits=(np.array([-400]), np.array([400])),
    )  # fmt: skip
    assert fixed_form(stairs) is None
    assert float_form(stairs) is not None


def unoptimised(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


# -- whole graphs ---------------------------------------------------------------------------------


def qdq(
    rng: np.random.Generator, op: str, dtype: str, *, per_channel: bool, activation: str, pads: int
) -> onnx.ModelProto:
    """One quantised product between integer tensors, with a bias and an activation."""
    limits = np.iinfo(dtype)
    zero = rng.choice([limits.min, limits.max, rng.integers(limits.min, limits.max)])
    consts = {
        "sx": np.float32(2.0 ** rng.uniform(-8, 2)),
        "zx": np.array(zero, dtype),
        "zy": np.array(rng.choice([limits.min, limits.max, 3 + limits.min // 2]), dtype),
    }
    channels, inner = int(rng.integers(3, 9)), int(rng.integers(3, 9))
    shape = {"Conv": (channels, inner, 3, 2), "MatMul": (inner, channels)}.get(
        op, (channels, inner)
    )
    axis = 1 if op == "MatMul" else 0
    consts["w"] = rng.integers(-127, 128, shape).astype(np.int8)
    many = (channels,) if per_channel else ()
    consts["sw"] = (2.0 ** rng.uniform(-9, -4, many)).astype(np.float32)
    consts["zw"] = np.zeros(many, np.int8)
    consts["b"] = rng.integers(-3000, 3000, channels).astype(np.int32)
    consts["sb"] = (consts["sx"] * consts["sw"]).astype(np.float32)
    consts["zb"] = np.zeros(many, np.int32)
    spread = 74.0**2 * np.sqrt(np.prod(shape) / channels) / 60
    consts["sy"] = np.float32(consts["sx"] * consts["sw"].mean() * spread)
    low, high = -consts["sy"] * np.float32(20), consts["sy"] * np.float32(90)
    consts["low"], consts["high"] = np.float32(low), np.float32(high)
    along = {"axis": axis} if per_channel else {}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], **along),
        helper.make_node("DequantizeLinear", ["b", "sb", "zb"], ["bf"], axis=0),
    ]
    match op:
        case "Conv":
            nodes.append(helper.make_node("Conv", ["xf", "wf", "bf"], ["p"], pads=[pads] * 4))
        case "Gemm":
            nodes.append(helper.make_node("Gemm", ["xf", "wf", "bf"], ["p"], transB=1))
        case _:
            nodes.append(helper.make_node("MatMul", ["xf", "wf"], ["m"]))
            nodes.append(helper.make_node("Add", ["m", "bf"], ["p"]))
    match activation:
        case "Relu":
            nodes.append(helper.make_node("Relu", ["p"], ["r"]))
        case "Clip":
            nodes.append(helper.make_node("Clip", ["p", "low", "high"], ["r"]))
    last = "r" if activation else "p"
    nodes.append(helper.make_node("QuantizeLinear", [last, "sy", "zy"], ["y"]))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x_shape = (1, inner, 7, 6) if op == "Conv" else (40, inner)
    graph = helper.make_graph(
        nodes, "product",
        [helper.make_tensor_value_info("x", kind, x_shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in consts.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
@pytest.mark.parametrize("target", ["host", "generic"])
def test_products_are_onnxruntimes(rng: np.random.Generator, op: str, target: str) -> None:
    """Of all results at most 1 in 500 may lie so near a tie that float sums decide it, by 1."""
    total = differ = 0
    for dtype in ("int8", "uint8"):
        for activation, per_channel, pads in (("", True, 0), ("Relu", False, 1), ("Clip", True, 1)):
            proto = qdq(rng, op, dtype, per_channel=per_channel, activation=activation, pads=pads)
            model = load(proto)
            found = integers(model.graph, OPS, fixed=target != "host")
            wanted = {"Requantize", "ConvInteger" if op == "Conv" else "MatMulInteger"}
            assert {n.op for n in found.nodes} == wanted
            session = unoptimised(proto)
            chosen = Options(target=target, cflags=("-O1",))
            with BuiltModel(compile_model(model, chosen)) as built:
                for seed in range(3):
                    x = random_samples(model.inputs, seed=seed).input(0)
                    (want,) = session.run(None, x)
                    apart = np.abs(built.run(x)["y"].astype(int) - want)
                    assert apart.max() <= 1
                    total, differ = total + want.size, differ + int((apart > 0).sum())
    assert total > 1000
    assert differ <= total / 500


def chain(*nodes: onnx.NodeProto, dtype: str = "int8") -> onnx.ModelProto:
    """DequantizeLinear, the nodes from 'f' to 'g', QuantizeLinear; x [2, 4, 6, 6]."""
    scale = {"sx": np.float32(0.043), "zx": np.array(11, dtype)}
    y = {"sy": np.float32(0.043), "zy": np.array(11, dtype), "sz": np.float32(1 / 200)}
    shape = {"shape": np.array([2, 8, 18], np.int64)}
    consts = {**scale, **y, **shape}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["f"]), *nodes],
        "chain",
        [helper.make_tensor_value_info("x", kind, (2, 4, 6, 6))],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in consts.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def test_moves_keep_the_stored_integers() -> None:
    proto = chain(
        helper.make_node("MaxPool", ["f"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["b", "shape"], ["g"]),
        helper.make_node("QuantizeLinear", ["g", "sy", "zy"], ["y"]),
    )
    found = integers(load(proto).graph, OPS)
    assert [n.op for n in found.nodes] == ["MaxPool", "Transpose", "Reshape"]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_functions_become_tables(dtype: str) -> None:
    proto = chain(
        helper.make_node("LeakyRelu", ["f"], ["a"], alpha=0.2),
        helper.make_node("Sigmoid", ["a"], ["g"]),
        helper.make_node("QuantizeLinear", ["g", "sz", "zy"], ["y"]),
        dtype=dtype,
    )
    model = load(proto)
    assert "tflite:Lookup" in {n.op_id for n in integers(model.graph, OPS).nodes}
    limits = np.iinfo(dtype)
    x = np.resize(np.arange(limits.min, limits.max + 1), (2, 4, 6, 6)).astype(dtype)
    session = unoptimised(proto)
    with BuiltModel(compile_model(model, Options(cflags=("-O1",)))) as built:
        np.testing.assert_array_equal(built.run({"x": x})["y"], session.run(None, {"x": x})[0])


@pytest.mark.parametrize("target", ["host", "generic"])
def test_products_of_two_activations(rng: np.random.Generator, target: str) -> None:
    proto = chain(
        helper.make_node("DequantizeLinear", ["x", "sz", "zx"], ["h"]),
        helper.make_node("MatMul", ["f", "h"], ["g"]),
        helper.make_node("QuantizeLinear", ["g", "sw", "zy"], ["y"]),
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(0.07391), "sw"))
    model = load(proto)
    found = [n.op for n in integers(model.graph, OPS, fixed=target != "host").nodes]
    assert found == ["MatMulInteger", "Requantize"]
    x = rng.integers(-128, 128, (2, 4, 6, 6)).astype(np.int8)
    session = unoptimised(proto)
    chosen = Options(target=target, cflags=("-O1",))
    with BuiltModel(compile_model(model, chosen)) as built:
        np.testing.assert_array_equal(built.run({"x": x})["y"], session.run(None, {"x": x})[0])


def test_concat_takes_each_operand_to_the_scale_of_the_result(rng: np.random.Generator) -> None:
    proto = chain(
        helper.make_node("DequantizeLinear", ["x", "sz", "zx"], ["h"]),
        helper.make_node("Concat", ["f", "h", "f"], ["g"], axis=1),
        helper.make_node("QuantizeLinear", ["g", "sy", "zy"], ["y"]),
    )
    model = load(proto)
    found = sorted(n.op_id for n in integers(model.graph, OPS).nodes)
    assert found == ["Concat", "tflite:Lookup"]
    x = rng.integers(-128, 128, (2, 4, 6, 6)).astype(np.int8)
    session = unoptimised(proto)
    with BuiltModel(compile_model(model, Options(cflags=("-O1",)))) as built:
        np.testing.assert_array_equal(built.run({"x": x})["y"], session.run(None, {"x": x})[0])


@pytest.mark.parametrize("strides", [None, (2, 3), (5, 5)])
@pytest.mark.parametrize("sizes", [(8, 8), (5, 7), (1, 3)])
def test_means_of_images_add_in_onnxruntimes_order(
    rng: np.random.Generator, strides: tuple[int, int] | None, sizes: tuple[int, int]
) -> None:
    """Of equal scales a mean of 64 is a tie for one sum in 64: the float32 sums decide."""
    op, attrs = "GlobalAveragePool", {}
    if strides is not None:
        op, attrs = "AveragePool", {"kernel_shape": sizes, "strides": strides}
    proto = chain(
        helper.make_node(op, ["f"], ["g"], **attrs),
        helper.make_node("QuantizeLinear", ["g", "sy", "zy"], ["y"]),
    )
    shape = (1, 1200, *sizes)
    for value, size in zip(proto.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
        value.dim_value = size
    del proto.graph.output[:], proto.graph.value_info[:]
    proto.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.INT8, None))
    model = load(proto)
    assert [n.op for n in integers(model.graph, OPS).nodes] == ["RequantizeMean"]
    x = rng.integers(-128, 128, shape).astype(np.int8)
    session = unoptimised(proto)
    # With vectors, sums along neighbours run in lanes; behind convolutions channels are the lanes.
    with BuiltModel(compile_model(model, Options(target="generic", cflags=("-O2",)))) as built:
        np.testing.assert_array_equal(built.run({"x": x})["y"], session.run(None, {"x": x})[0])


def test_what_stays_float_is_said() -> None:
    proto = chain(
        helper.make_node("AveragePool", ["f"], ["g"], kernel_shape=[2, 2], name="mean"),
        helper.make_node("QuantizeLinear", ["g", "sy", "zy"], ["y"]),
    )
    said: list[str] = []
    integers(load(proto).graph, OPS, note=said.append)
    why = "exact ties are frequent in means, and float sums decide them"
    assert said == [f"node 'mean' (AveragePool) stays float: {why}"]
