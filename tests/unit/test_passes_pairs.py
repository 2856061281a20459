"""Sums and products of two quantised tensors: equal on all pairs, or left as they are."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from toolkit.ops import OPS
from toolkit.passes.integers import integers
from toolkit.passes.pairs import Pairs, product_stairs, sum_form, values_of
from toolkit.pipeline import compile_model, load, Options
from toolkit.runners import BuiltModel


def quantised_sum(
    kinds: tuple[str, str], scales: tuple[float, float], zeros: tuple[int, int, int], low: int
) -> Pairs:
    """onnxruntime's float32 arithmetic on every pair, the scale of the result 1."""
    real = [
        (values_of(k) - z).astype(np.float32) * np.float32(s)
        for k, z, s in zip(kinds, zeros, scales, strict=False)
    ]
    total = np.rint(np.add.outer(*real)) + np.float32(zeros[2])
    return Pairs(kinds, np.clip(total, low, 127).astype(np.int64), low, 127, scales)


def test_a_form_gives_every_result(rng: np.random.Generator) -> None:
    found = 0
    for turn in range(12):
        kinds = ("int8", "uint8") if turn % 2 else ("int8", "int8")
        scales = tuple((2.0 ** rng.uniform(-6, 1, 2)).tolist())
        zeros = tuple(int(z) for z in rng.integers(0, 128, 3))
        pairs = quantised_sum(kinds, scales, zeros, low=-128 if turn % 3 else zeros[2])
        form = sum_form(pairs)
        if form is None:
            continue
        found += 1
        a, b = np.meshgrid(*(values_of(k) for k in kinds), indexing="ij")
        parts = [a * form.multipliers[0], b * form.multipliers[1]]
        # Whatever the order of the sum, int32 holds it.
        assert sum(np.abs(p).max() for p in parts) + abs(form.offset) < 2**31
        y = (parts[0] + parts[1] + form.offset) >> form.shift
        np.testing.assert_array_equal(np.clip(y, pairs.low, 127), pairs.results)
    assert found >= 9


def test_alternating_ties_have_no_form() -> None:
    """(a + b) / 2 to even: every odd sum is a tie, rounded up and down by turns."""
    assert sum_form(quantised_sum(("int8", "int8"), (0.5, 0.5), (0, 0, 0), low=-128)) is None


def test_products_that_are_no_function_of_the_product_have_no_stairs() -> None:
    a = values_of("int8")
    product = np.multiply.outer(a, a)
    exact = np.clip(product >> 5, -128, 127)
    pairs = Pairs(("int8", "int8"), exact, -128, 127, (1 / 32, 1 / 32))
    stairs = product_stairs(pairs, (0, 0), 1 / 32, 0)
    assert stairs is not None
    np.testing.assert_array_equal(-128 + (stairs.steps[0][None] <= product.reshape(-1, 1)).sum(1),
                                  exact.reshape(-1))  # fmt: skip
    other = exact.copy()
    other[130, 140] += 1  # 2 * 12, but not 12 * 2
    pairs = Pairs(("int8", "int8"), other, -128, 127, (1 / 32, 1 / 32))
    assert product_stairs(pairs, (0, 0), 1 / 32, 0) is None


def network(op: str, scales: tuple[float, float, float], relu: bool) -> onnx.ModelProto:
    """QuantizeLinear(Relu?(op(DequantizeLinear(a), DequantizeLinear(b)))) of 256 x 256 values."""
    consts = {
        "sa": np.float32(scales[0]), "za": np.array(-3, np.int8),
        "sb": np.float32(scales[1]), "zb": np.array(130, np.uint8),
        "sy": np.float32(scales[2]), "zy": np.array(-128 if relu else 7, np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["a", "sa", "za"], ["af"]),
        helper.make_node("DequantizeLinear", ["b", "sb", "zb"], ["bf"]),
        helper.make_node(op, ["af", "bf"], ["p"], name="pair"),
    ]
    if relu:
        nodes.append(helper.make_node("Relu", ["p"], ["r"]))
    nodes.append(helper.make_node("QuantizeLinear", ["r" if relu else "p", "sy", "zy"], ["y"]))
    graph = helper.make_graph(
        nodes, "pair",
        [
            helper.make_tensor_value_info("a", onnx.TensorProto.INT8, (256, 1)),
            helper.make_tensor_value_info("b", onnx.TensorProto.UINT8, (256,)),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT8, (256, 256))],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in consts.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(("op", "scales", "relu", "wanted"), [
    ("Add", (0.031, 0.0173, 0.0391), False, "RequantizeSum"),
    ("Add", (0.031, 0.0173, 0.0391), True, "RequantizeSum"),
    ("Sub", (0.031, 0.0173, 0.0391), True, "RequantizeSum"),
    ("Add", (1e8, 1.7e8, 2.3e8), False, "RequantizeSum"),
    ("Add", (1e-8, 3.1e-8, 2.3e-8), False, "RequantizeSum"),
    ("Mul", (0.25, 0.03125, 1.0717253), True, "Requantize"),
    ("Add", (0.05, 0.05, 0.1), False, "Add"),  # a tie in every second sum
])  # fmt: skip
@pytest.mark.parametrize("target", ["host", "generic"])
def test_every_pair_is_onnxruntimes(
    op: str, scales: tuple[float, float, float], relu: bool, wanted: str, target: str
) -> None:
    proto = network(op, scales, relu)
    model = load(proto)
    said: list[str] = []
    found = {n.op for n in integers(model.graph, OPS, note=said.append, fixed=True).nodes}
    assert wanted in found
    if wanted == op:
        why = "no integer arithmetic was found that gives all its 65,536 results"
        assert said == [f"node 'pair' ({op}) stays float: {why}"]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    x = {"a": np.arange(-128, 128, dtype=np.int8)[:, None], "b": np.arange(256, dtype=np.uint8)}
    chosen = Options(target=target, cflags=("-O1",))
    with BuiltModel(compile_model(model, chosen)) as built:
        np.testing.assert_array_equal(built.run(x)["y"], session.run(None, x)[0])
