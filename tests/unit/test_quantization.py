"""Quantisation without a compiler: ranges, scales, layers and groups, weights, equalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, NodeProto

from tests.small_models import save
from toolkit.errors import NestlingError
from toolkit.frontend import reference
from toolkit.ir.graph import Graph
from toolkit.ir.verify import verify_graph
from toolkit.ops import infer_graph, OPS
from toolkit.passes.edit import Edit
from toolkit.passes.fold_affine import product_of
from toolkit.passes.manager import FLOAT_PASSES, run_passes
from toolkit.pipeline import load
from toolkit.quantization.data import calibration_samples
from toolkit.quantization.equalize import equalize, reach_in, reach_out
from toolkit.quantization.insert import Choice, insert
from toolkit.quantization.mixed import fewest_lifts, lifted
from toolkit.quantization.plan import find_plan, fixed_params, FLOAT, INT8, INT16, Plan
from toolkit.quantization.ranges import (
    divergence,
    empty_histogram,
    entropy,
    Histogram,
    METHODS,
    minmax,
    mse,
    params_of,
    percentile,
    Scheme,
)
from toolkit.quantization.settings import parse_bound
from toolkit.quantization.weights import store_bias, store_weights

INT8_SCHEME = Scheme("int8", False)
SCHEMES = [INT8_SCHEME, Scheme("uint8", False), Scheme("int8", True), Scheme("int16", True)]


def histogram_of(values: np.ndarray, bins: int = 2048) -> Histogram:
    return empty_histogram(values.min(), values.max(), bins).with_values(values)


def heavy_tailed(seed: int = 1, count: int = 20_000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.laplace(0.3, 1.0, count) * np.where(rng.random(count) < 0.001, 8.0, 1.0)


# -- ranges and scales --------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: f"{s.dtype}-{s.symmetric}")
@pytest.mark.parametrize("found", [(-1.0, 3.0), (0.0, 6.0), (-2.5, 0.0), (0.5, 4.0), (0.0, 0.0)])
def test_zero_is_exact_and_the_range_is_covered(scheme: Scheme, found: tuple[float, float]) -> None:
    params = params_of(found, scheme)
    low, high = scheme.limits
    assert low <= params.zero <= high
    assert params.nearest(np.zeros(1), scheme)[0] == 0.0
    ends = np.array([min(found[0], 0.0), max(found[1], 0.0)])
    assert np.abs(params.nearest(ends, scheme) - ends).max() <= params.scale


def test_a_histogram_counts_every_value_once() -> None:
    values = np.concatenate([heavy_tailed(), np.zeros(500)])
    histogram = histogram_of(values)
    assert histogram.counts.sum() + histogram.zeros == len(values)
    assert histogram.zeros == 500
    expected, _ = np.histogram(values[values != 0], bins=histogram.edges)
    assert np.array_equal(histogram.counts, expected)


def test_minmax_is_the_range_of_the_values() -> None:
    values = heavy_tailed()
    assert minmax(histogram_of(values), INT8_SCHEME) == (values.min(), values.max())


@pytest.mark.parametrize("share", [90.0, 99.0, 99.9])
@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_percentile_is_that_of_the_sorted_values_to_a_bin(share: float, shift: float) -> None:
    values = heavy_tailed() + shift
    histogram = histogram_of(values)
    low, high = percentile(histogram, INT8_SCHEME, share)
    cut = (100.0 - share) / 200.0 * len(values)  # so many are cut off at each end
    ordered = np.sort(values)
    width = histogram.edges[1] - histogram.edges[0]
    assert low == pytest.approx(min(ordered[int(cut)], 0.0), abs=1.01 * width)
    assert high == pytest.approx(ordered[-1 - int(cut)], abs=1.01 * width)


def test_mse_is_near_the_best_of_all_ranges() -> None:
    # A normal distribution of a million values, and one far out on each side.
    centers = empty_histogram(-9.0, 14.0).centers
    counts = np.rint(1e6 * np.exp(-np.square(centers) / 2) / 223).astype(np.int64)
    counts[[0, -1]] = 1
    histogram = Histogram(-9.0, 14.0, counts)

    def error(low: float, high: float) -> float:
        found = params_of((low, high), INT8_SCHEME).nearest(centers, INT8_SCHEME)
        return float(np.sum(counts * np.square(found - centers)))

    grid = np.linspace(0.02, 1.0, 99)
    best = min(error(-9.0 * a, 14.0 * b) for a in grid for b in grid)
    found = error(*mse(histogram, INT8_SCHEME))
    assert found <= 1.05 * best
    assert found < 0.8 * error(-9.0, 14.0)


def slow_divergence(counts: np.ndarray, low: int, high: int, levels: int) -> float:
    """Word for word: clip, quantise to levels, expand, compare."""
    p = [float(c) for c in counts[low:high]]
    q = [0.0] * len(p)
    bins_of: dict[int, list[int]] = {}
    for i in range(len(p)):
        if p[i] > 0:
            bins_of.setdefault(i * levels // len(p), []).append(i)
    for bins in bins_of.values():
        for i in bins:
            q[i] = sum(p[j] for j in bins) / len(bins)
    p[0] += float(counts[:low].sum())
    p[-1] += float(counts[high:].sum())
    sum_p, sum_q = sum(p), sum(q)
    result = 0.0
    for a, b in zip(p, q, strict=True):
        if a > 0:
            result += a / sum_p * np.log((a / sum_p) / (b / sum_q if b else 1e-9))
    return result


def test_divergence_is_that_of_the_definition() -> None:
    counts = np.random.default_rng(3).poisson(2.0, 90)
    for low, high, levels in ((0, 90, 16), (0, 40, 16), (7, 61, 9), (30, 46, 16)):
        expected = slow_divergence(counts, low, high, levels)
        assert divergence(counts, (low, high), levels) == pytest.approx(expected, rel=1e-9)


def test_entropy_is_the_best_threshold_of_a_one_sided_tensor() -> None:
    values = np.abs(heavy_tailed())
    histogram = histogram_of(values)
    _, high = entropy(histogram, INT8_SCHEME)
    counts = histogram.counts
    bins = [b for b in range(2048, 255, -4) if counts[b:].sum() <= 0.01 * counts.sum()]
    best = min(bins, key=lambda b: slow_divergence(counts, 0, b, 256))
    assert high == pytest.approx(histogram.edges[best])
    assert high < values.max()


def test_entropy_keeps_the_tail_opposite_a_crowd() -> None:
    # A floor of half of all values, as logarithms of silence have.
    tail = np.random.default_rng(4).exponential(0.7, 5000) - 1.0
    values = np.concatenate([np.full(5000, -1.0), tail])
    low, high = entropy(histogram_of(values), INT8_SCHEME)
    assert low == pytest.approx(-1.0, abs=0.01)
    assert np.mean(values > high) < 0.02


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "values", [np.zeros(8), np.ones(1), np.array([-1e-30, 2e-30]), np.array([3e30])]
)
def test_methods_answer_for_degenerate_tensors(method: str, values: np.ndarray) -> None:
    histogram = histogram_of(values, 256)
    for scheme in SCHEMES:
        low, high = METHODS[method](histogram, scheme, 99.99)
        assert low <= 0.0 <= high
        assert params_of((low, high), scheme).scale > 0.0


def test_fixed_scales_are_tflites() -> None:
    softmax, tanh = fixed_params("Softmax", INT8_SCHEME), fixed_params("Tanh", INT8_SCHEME)
    assert (softmax.scale, softmax.zero) == (1 / 256, -128)
    assert (tanh.scale, tanh.zero) == (1 / 128, 0)
    assert fixed_params("Sigmoid", Scheme("uint8", False)).zero == 0
    assert fixed_params("Sigmoid", Scheme("int16", True)).scale == 2.0**-15


# -- weights ------------------------------------------------------------------------------------


def test_weights_are_off_by_half_a_step_of_their_channel() -> None:
    rng = np.random.default_rng(5)
    weights = (rng.standard_normal((6, 4, 3, 3)) * 10.0 ** rng.uniform(-3, 3, (6, 1, 1, 1))).astype(
        np.float32
    )
    held = store_weights(weights, 0)
    off = np.abs(held.real - weights).reshape(6, -1).max(axis=1)
    assert np.all(off <= 0.501 * held.scale)
    assert held.stored.min() >= -127
    assert np.all(np.abs(held.stored).reshape(6, -1).max(axis=1) == 127)
    assert store_weights(weights, None).scale.shape == ()


def test_a_bias_fits_32_bits_beside_tiny_weights() -> None:
    weights = np.array([[0.0, 0.0], [1e-9, 2e-9], [0.5, -1.0]], np.float32)
    bias = np.array([3.0, -2.0, 0.25], np.float32)
    held = store_weights(weights, 0, bias=bias, x_scale=0.01)
    scale = np.float32(0.01) * held.scale
    found = store_bias(bias, scale).astype(np.float64) * scale
    assert np.allclose(found, bias, rtol=1e-2)
    assert np.array_equal(held.stored[0], [0, 0])


# -- layers and groups --------------------------------------------------------------------------


def graph_of(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    consts: Mapping[str, np.ndarray],
) -> Graph:
    file = save(path / "m.onnx", nodes, inputs, outputs, consts)
    return run_passes(load(file).graph, OPS, passes=FLOAT_PASSES)


def weights(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def two_convolutions(path: Path, middle: str = "Relu") -> Graph:
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], kernel_shape=[3, 3], name="first"),
        helper.make_node(middle, ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], group=4, name="second"),
        helper.make_node("Relu", ["c2"], ["y"]),
    ]
    uneven = 10.0 ** np.linspace(-2, 2, 4).reshape(4, 1, 1, 1).astype(np.float32)
    consts = {
        "w1": weights(4, 3, 3, 3) * uneven, "b1": weights(4, seed=2) * uneven.reshape(-1),
        "w2": weights(8, 1, 1, 1, seed=3), "b2": weights(8, seed=4),
    }  # fmt: skip
    return graph_of(path, nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 8, 3, 3)}, consts)


def test_activations_fold_and_moves_share_a_scale(tmp_path: Path) -> None:
    graph = two_convolutions(tmp_path)
    plan = find_plan(graph)
    assert [[n.op for n in layer.nodes] for layer in plan.layers] == [["Conv", "Relu"]] * 2
    assert plan.group["p1"] == plan.group["r1"]
    assert plan.roots[plan.group["r1"]] == ("r1",)
    assert plan.group["c1"] not in plan.needed(dict.fromkeys(("r1", "y"), INT8))


def test_concat_ties_its_operands_except_to_fixed_scales(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"]),
        helper.make_node("Gemm", ["x", "v"], ["b"]),
        helper.make_node("Sigmoid", ["b"], ["s"]),
        helper.make_node("Concat", ["a", "b"], ["ab"], axis=1),
        helper.make_node("Concat", ["a", "s"], ["as"], axis=1),
    ]
    consts = {"w": weights(3, 4), "v": weights(3, 4, seed=2)}
    graph = graph_of(tmp_path, nodes, {"x": (1, 3)}, {"ab": (1, 8), "as": (1, 8)}, consts)
    plan = find_plan(graph)
    assert plan.group["a"] == plan.group["b"] == plan.group["ab"]
    assert plan.group["s"] != plan.group["as"] != plan.group["a"]
    assert plan.fixed == {plan.group["s"]: "Sigmoid"}


def all_int8(plan: Plan, graph: Graph) -> Choice:
    ranges = dict.fromkeys(plan.roots, (-4.0, 4.0))
    precision = {layer.out: INT8 for layer in plan.layers}
    return Choice(plan, INT8_SCHEME, ranges, ranges, precision)


def test_the_graph_holds_integers_and_keeps_its_interface(tmp_path: Path) -> None:
    graph = two_convolutions(tmp_path)
    choice = all_int8(find_plan(graph), graph)
    done = insert(graph, OPS, choice).graph
    assert (done.inputs, done.outputs) == (graph.inputs, graph.outputs)
    ops = [n.op for n in done.nodes]
    assert ops.count("QuantizeLinear") == 4  # x, r1, p1, y
    kinds = sorted(str(v.dtype) for v in done.consts.values() if v.ndim and v.size > 1)
    assert kinds.count("int8") == 2
    assert kinds.count("int32") == 2
    # Scale of a bias: that of the operand times that of the weights.
    for node in done.nodes:
        if node.op == "Conv":
            makers = [done.producers()[n] for n in node.inputs]
            x, w, b = (done.consts[m.inputs[1]] for m in makers)
            assert np.array_equal(b, x * w)


def test_a_layer_in_16_bits_has_16_bit_neighbours_that_others_narrow(tmp_path: Path) -> None:
    graph = two_convolutions(tmp_path)
    plan = find_plan(graph)
    storage = plan.storage({"r1": INT16, "y": INT8}, INT8_SCHEME)
    assert storage[plan.group["r1"]].dtype == "int16"
    assert storage[plan.group["y"]].dtype == "int8"
    ranges = dict.fromkeys(plan.roots, (-4.0, 4.0))
    choice = Choice(plan, INT8_SCHEME, ranges, ranges, {"r1": INT16, "y": INT8})
    done = insert(graph, OPS, choice).graph
    (second,) = [n for n in done.nodes if n.op == "Conv" and n.outputs[0] == "c2"]
    read = done.producers()[second.inputs[0]]
    assert done.types[read.inputs[0]].dtype == "int8"
    assert plan.storage({"r1": FLOAT, "y": FLOAT}, INT8_SCHEME) == {}


def test_an_output_that_layers_read_too_keeps_its_name(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], kernel_shape=[1, 1]),
        helper.make_node("ConvTranspose", ["h", "v"], ["y"], kernel_shape=[2, 2]),
        helper.make_node("Sigmoid", ["h"], ["z"]),
    ]
    consts = {"w": weights(3, 2, 1, 1), "v": weights(3, 5, 2, 2)}
    shapes = {"h": (1, 3, 4, 4), "y": (1, 5, 5, 5), "z": (1, 3, 4, 4)}
    graph = graph_of(tmp_path, nodes, {"x": (1, 2, 4, 4)}, shapes, consts)
    done = insert(graph, OPS, all_int8(find_plan(graph), graph)).graph
    verify_graph(infer_graph(OPS, done))
    made = done.producers()
    assert [made[n].op for n in done.outputs] == ["DequantizeLinear"] * 3
    (transposed,) = [n for n in done.nodes if n.op == "ConvTranspose"]
    assert transposed.inputs[0] == "h"
    scale = done.consts[made[transposed.inputs[1]].inputs[1]]
    assert scale.shape == (5,)  # one for each output channel, axis 1
    (function,) = [n for n in done.nodes if n.op == "Sigmoid"]
    assert function.inputs[0] == "h"


def test_layers_that_share_weights_share_the_stored_ones(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"]),
        helper.make_node("Tanh", ["a"], ["t"]),
        helper.make_node("Gemm", ["t", "w"], ["y"]),
    ]
    graph = graph_of(tmp_path, nodes, {"x": (1, 9)}, {"y": (1, 9)}, {"w": weights(9, 9)})
    done = insert(graph, OPS, all_int8(find_plan(graph), graph)).graph
    assert [str(v.dtype) for v in done.consts.values() if v.ndim == 2] == ["int8"]


@pytest.mark.parametrize(("stored", "kind"), [(False, "float32"), (True, "int8")])
def test_weights_of_recurrent_operators_are_stored_on_request(
    tmp_path: Path, stored: bool, kind: str
) -> None:
    consts = {"w": weights(1, 32, 3), "r": weights(1, 32, 8), "v": weights(8, 2)}
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=8),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    graph = graph_of(tmp_path, nodes, {"x": (5, 1, 3)}, {"y": (1, 1, 2)}, consts)
    choice = replace(all_int8(find_plan(graph), graph), recurrent=stored)
    done = insert(graph, OPS, choice).graph
    assert {str(v.dtype) for v in done.consts.values() if v.ndim == 3} == {kind}


# -- equalisation -------------------------------------------------------------------------------


def answers(graph: Graph, x: np.ndarray) -> np.ndarray:
    known = {**graph.consts, graph.inputs[0]: x}
    for node in graph.nodes:
        results = reference.evaluate(node, [known[n] if n else None for n in node.inputs])
        known.update(zip(node.outputs, results, strict=True))
    return np.asarray(known[graph.outputs[0]])


def test_equalisation_keeps_the_function_and_evens_the_channels(tmp_path: Path) -> None:
    graph = two_convolutions(tmp_path)
    done = equalize(graph, OPS)
    x = weights(1, 3, 8, 8, seed=9)
    expected = answers(graph, x)
    # Weights are rounded to float32 once more.
    assert np.allclose(answers(done, x), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    edit = Edit(done, OPS)
    first, second = (product_of(edit, n) for n in done.nodes if n.op == "Conv")
    assert first is not None
    assert second is not None
    assert np.allclose(reach_out(first), reach_in(second), rtol=1e-2)


def test_equalisation_leaves_what_is_not_homogeneous(tmp_path: Path) -> None:
    graph = two_convolutions(tmp_path, "Sigmoid")
    assert equalize(graph, OPS) is graph


# -- mixed precision ----------------------------------------------------------------------------


def test_the_most_harmful_layers_are_lifted_first_and_no_more_than_needed() -> None:
    order, own = ("a", "b", "c"), {"a": INT16, "b": FLOAT, "c": INT16}
    assert lifted(order, own.__getitem__, 2) == {"a": INT16, "b": FLOAT, "c": INT8}
    assert lifted(order, own.__getitem__, 5) == dict.fromkeys(order, FLOAT)
    for needed in range(1, 6):
        tried: list[Mapping[str, str]] = []
        asked: list[str] = []

        def good(
            precision: Mapping[str, str],
            needed: int = needed,
            tried: list[Mapping[str, str]] = tried,
        ) -> bool:
            tried.append(precision)
            return any(precision == lifted(order, own.__getitem__, n) for n in range(needed, 6))

        def lift(layer: str, asked: list[str] = asked) -> str:
            asked.append(layer)
            return own[layer]

        assert fewest_lifts(order, lift, good) == lifted(order, own.__getitem__, needed)
        assert len(tried) <= 5
        assert len(asked) == len(set(asked))


@pytest.mark.parametrize(
    ("text", "points", "db"), [("0.5", 0.5, None), ("30dB", None, 30.0), (" 12.5 db", None, 12.5)]
)
def test_a_bound_is_points_or_decibels(text: str, points: float | None, db: float | None) -> None:
    bound = parse_bound(text, "--max-drop")
    assert (bound.points, bound.db) == (points, db)


@pytest.mark.parametrize("text", ["", "much", "-1", "nan", "inf", "3 points"])
def test_another_bound_is_refused(text: str) -> None:
    with pytest.raises(NestlingError, match="--max-drop"):
        parse_bound(text, "--max-drop")


# -- data ---------------------------------------------------------------------------------------


def test_calibration_data_is_found_by_any_of_its_names(tmp_path: Path) -> None:
    model = load(save(tmp_path / "m.onnx", [helper.make_node("Relu", ["a"], ["y"])],
                      {"a": (1, 3)}, {"y": (1, 3)}))  # fmt: skip
    data = weights(5, 3)
    for name in ("in__a", "a", "x"):
        found = calibration_samples({name: data}, model.inputs, limit=4)
        assert found.count == 4
        assert found.inputs["a"].shape == (4, 1, 3)
    for arrays, what in (
        ({"b": data}, "no samples of input 'a'"),
        ({"a": weights(5, 4)}, "model takes"),
        ({"a": data.astype(np.float64)}, "model takes"),
        ({"a": data[:0]}, "holds no samples"),
        ({"a": np.float32(1.0)}, "scalar"),
    ):
        with pytest.raises(NestlingError, match=what):
            calibration_samples(arrays, model.inputs)
