"""Channel-last convolution nets: how many transposes remain, and where they stand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph_maker import inputs_of, Maker
from tests.reference import run
from toolkit.ir.graph import Graph
from toolkit.ops import OPS
from toolkit.ops.views import runs
from toolkit.passes.axes import through_reshape
from toolkit.passes.cut import Labelling
from toolkit.passes.fuse import fuse
from toolkit.passes.layout import layout
from toolkit.passes.simplify import simplify

Build = Callable[[Maker], str]


def laid_out(build: Build) -> Graph:
    m = Maker("float32")
    graph = m.graph(build(m))
    after = simplify(layout(graph, OPS), OPS)
    inputs = inputs_of(graph)
    for name, want in run(graph, inputs).items():
        np.testing.assert_allclose(run(after, inputs)[name], want, rtol=1e-4, atol=1e-3)
    return after


def count(graph: Graph, op: str) -> int:
    return sum(n.op == op for n in graph.nodes)


def _net(m: Maker, x: str) -> str:
    x = m.Relu(m.conv(x, 8))
    y = m.conv(m.Relu(m.conv(x, 8, group=8)), 8, 1)
    return m.Relu(m.Add(x, y))


def test_nhwc_input_with_a_leading_transpose_leaves_no_transpose() -> None:
    def build(m: Maker) -> str:
        x = m.Transpose(m.input(1, 8, 8, 3), perm=(0, 3, 1, 2))
        return m.reduce("ReduceMean", _net(m, x), 2, 3, keepdims=0)

    after = laid_out(build)
    assert count(after, "Transpose") == 0
    assert all(n.attrs["nestling_layout"] == "NHWC" for n in after.nodes if n.op == "Conv")


def test_nchw_input_is_transposed_once_and_read_in_place_by_the_first_convolution() -> None:
    after = laid_out(lambda m: m.reduce("ReduceMean", _net(m, m.input(1, 3, 8, 8)), 2, 3))
    assert count(after, "Transpose") == 1
    assert after.nodes[0].op == "Transpose"
    group = fuse(after, OPS).nodes[0].attrs["body"]
    assert [n.op for n in group.nodes] == ["Transpose", "Conv", "Relu"]


THROUGH: dict[str, Build] = {
    "Concat": lambda m: m.Concat(x := _net(m, m.input(1, 3, 8, 8)), x, axis=1),
    "Split": lambda m: m.Add(*m.split(_net(m, m.input(1, 3, 8, 8)), 1, 4, 4)),
    "Slice": lambda m: m.slice(_net(m, m.input(1, 3, 8, 8)), 1, 2, 7),
    "Pad": lambda m: m.pad(_net(m, m.input(1, 3, 8, 8)), (0, 1, 0, 2), (0, 0, 1, 0)),
    "Softmax": lambda m: m.Softmax(_net(m, m.input(1, 3, 8, 8)), axis=1),
    "a constant a channel": lambda m: m.Mul(_net(m, m.input(1, 3, 8, 8)), m.random(8, 1, 1)),
    "PRelu": lambda m: m.PRelu(_net(m, m.input(1, 3, 8, 8)), m.random(8, 1, 1)),
    "Resize": lambda m: m.Resize(
        _net(m, m.input(1, 3, 8, 8)), None, m.const([1, 1, 2, 2], "float32"), mode="nearest"
    ),
    "a gate": lambda m: m.Mul(
        x := _net(m, m.input(1, 3, 8, 8)), m.Sigmoid(m.conv(m.reduce("ReduceMean", x, 2, 3), 8, 1))
    ),
    "Squeeze and Unsqueeze": lambda m: m.reshape(
        m.Relu(m.reshape(m.conv(m.input(1, 3, 8, 1), 32), 1, 32, 8)), 1, 32, 8, 1
    ),
    "joined spatial axes": lambda m: m.reshape(
        m.Relu(m.reshape(_net(m, m.input(1, 3, 8, 8)), 1, 8, 64)), 1, 8, 8, 8
    ),
    "ConvTranspose": lambda m: m.conv(_net(m, m.input(1, 3, 8, 8)), 4, 2, pad=0, transposed=True),
    "InstanceNormalization": lambda m: m.InstanceNormalization(
        _net(m, m.input(1, 3, 8, 8)), m.random(8), m.random(8), epsilon=1e-5
    ),
}


@pytest.mark.parametrize("name", THROUGH)
def test_the_channel_stays_last_through(name: str) -> None:
    after = laid_out(lambda m: m.conv(THROUGH[name](m), 2))
    assert count(after, "Transpose") == 2  # of the input and of the output


def test_weight_rows_follow_what_flattens_a_feature_map() -> None:
    def build(m: Maker) -> str:
        x = m.reshape(_net(m, m.input(1, 3, 8, 8)), 1, 512)
        return m.Add(m.Gemm(x, m.random(5, 512), transB=1), m.MatMul(x, m.random(512, 5)))

    assert count(laid_out(build), "Transpose") == 1


def test_a_transpose_to_nhwc_before_a_reshape_is_gone() -> None:
    def build(m: Maker) -> str:
        x = m.Transpose(m.input(1, 8, 8, 3), perm=(0, 3, 1, 2))
        return m.reshape(m.Transpose(_net(m, x), perm=(0, 2, 3, 1)), 1, 64, 8)

    assert count(laid_out(build), "Transpose") == 0


def test_a_channel_shuffle_stays_one_transpose() -> None:
    def build(m: Maker) -> str:
        x = m.Transpose(m.input(1, 8, 8, 4), perm=(0, 3, 1, 2))
        x = m.Transpose(m.reshape(m.conv(x, 8), 1, 2, 4, 8, 8), perm=(0, 2, 1, 3, 4))
        return m.Transpose(m.conv(m.reshape(x, 1, 8, 8, 8), 4), perm=(0, 2, 3, 1))

    after = laid_out(build)
    assert count(after, "Transpose") == 1


def test_a_cheap_convolution_between_nchw_tensors_stays_nchw() -> None:
    graph = laid_out(lambda m: m.MatMul(m.conv(m.input(1, 8, 64), 8, 1, group=8), m.random(64, 3)))
    assert count(graph, "Transpose") == 0
    assert "nestling_layout" not in graph.nodes[0].attrs


def test_max_pool_with_indices_stays_as_it_is() -> None:
    m = Maker("float64")
    x = m.conv(m.input(1, 3, 8, 8), 4)
    y, at = m.op(
        "MaxPool", x, count=2, kernel_shape=(2, 2), strides=(2, 2), dilations=(1, 1),
        pads=(0, 0, 0, 0),
    )  # fmt: skip
    after = layout(m.graph(y, at), OPS)
    pool = next(n for n in after.nodes if n.op == "MaxPool")
    assert "nestling_layout" not in pool.attrs


# -- what it is built of ----------------------------------------------------------------------


def test_runs_of_axes_and_permutations_through_reshape() -> None:
    assert runs((2, 3, 4), (6, 4)) == [([0, 1], [0]), ([2], [1])]
    assert runs((1, 6, 1), (2, 1, 3)) == [([1], [0, 2])]
    assert runs((4, 6), (3, 8)) == [([0, 1], [0, 1])]
    assert runs((2, 3), (2, 2)) is None
    # [N, C, H, W] -> [N, C, H * W], stored as NHWC: [N, H * W, C].
    assert through_reshape((2, 3, 4, 5), (2, 3, 20), (0, 2, 3, 1)) == (0, 2, 1)
    assert through_reshape((2, 3, 4, 5), (2, 60), (0, 2, 3, 1)) is None
    assert through_reshape((2, 3, 1, 1), (2, 3), (0, 2, 3, 1)) == (0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_finds_the_cheapest_labelling(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 6
    alone = rng.integers(0, 10, (n, 2))
    pairs = []
    for _ in range(10):
        a, b = (int(v) for v in rng.choice(n, 2, replace=False))
        costs = tuple(int(v) for v in rng.integers(0, 10, 4))
        pairs.append((a, b, costs))
    cut = Labelling()
    items = [cut.item() for _ in range(n)]
    for item, (zero, one) in zip(items, alone.tolist(), strict=True):
        cut.cost(item, zero, one)
    used = [(a, b, c) for a, b, c in pairs if cut.pair(items[a], items[b], c)]  # type: ignore[arg-type]
    assert all(c[0] + c[3] <= c[1] + c[2] for _, _, c in used)

    def total(labels: list[int]) -> int:
        cost = sum(int(alone[i][labels[i]]) for i in range(n))
        return cost + sum(c[2 * labels[a] + labels[b]] for a, b, c in used)

    every = [[bits >> i & 1 for i in range(n)] for bits in range(2**n)]
    found = [int(label) for label in cut.solve()[2:]]
    best = min(total(labels) for labels in every)
    assert total(found) == best
    assert sum(found) == max(sum(labels) for labels in every if total(labels) == best)
