"""Which nodes become one kernel, and which storage is shared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph_maker import inputs_of, Maker
from tests.reference import run
from toolkit.ir.graph import Graph
from toolkit.lowering.lower import lower
from toolkit.ops import OPS
from toolkit.passes.fuse import fuse
from toolkit.passes.views import joined_offsets, part_offsets, split_to_slices

Build = Callable[[Maker], str]


def groups(build: Build) -> list[str]:
    """Return the kernels of a graph, each as its operators; views left out."""
    m = Maker("float32")
    graph = m.graph(build(m))
    after = fuse(split_to_slices(graph, OPS), OPS)
    inputs = inputs_of(graph)
    for name, want in run(graph, inputs).items():
        np.testing.assert_allclose(run(after, inputs)[name], want, rtol=1e-4, atol=1e-4)
    found = []
    for node in after.nodes:
        body = node.attrs.get("body")
        if isinstance(body, Graph):
            found.append("+".join(n.op for n in body.nodes))
        elif node.op != "Reshape":
            found.append(node.op)
    return found


def _attention(m: Maker, mask: bool) -> str:
    q, k, v = m.input(1, 2, 6, 4), m.input(1, 2, 4, 6), m.input(1, 2, 6, 4)
    scores = m.Mul(m.MatMul(q, k), 0.5)
    if mask:
        scores = m.Add(scores, m.input(6, 6))
    return m.MatMul(m.Softmax(scores, axis=3), v)


def _widened(m: Maker) -> str:
    """A convolution whose result is stored in bytes, then read as floats."""
    return m.Cast(m.Cast(m.conv(m.input(1, 2, 6), 3), to=3), to=1)


CASES: dict[str, tuple[list[str], Build]] = {
    "a chain": (["Relu+Neg+Exp"], lambda m: m.Exp(m.Neg(m.Relu(m.input(4, 5))))),
    "bias, activation and residual behind a convolution": (
        ["Conv+Mul+Add+Relu"],
        lambda m: m.Relu(m.Add(m.Mul(m.conv(m.input(1, 2, 6), 3), 2.0), m.input(1, 3, 6)))),
    "an activation that reads its operand twice": (
        ["Conv+Sigmoid+Mul"], lambda m: m.Mul(x := m.conv(m.input(1, 2, 6), 3), m.Sigmoid(x))),
    "a tensor that leaves is an end": (
        ["Gemm+Relu", "Neg", "Gemm"],
        lambda m: m.Gemm(m.Neg(x := m.Relu(m.Gemm(m.input(2, 3), m.random(3, 4)))),
                         m.reshape(x, 4, 2))),
    "attention": (["MatMul+Mul+Softmax+MatMul"], lambda m: _attention(m, False)),
    "attention with a mask": (["MatMul+Mul+Add+Softmax+MatMul"], lambda m: _attention(m, True)),
    "squares into their sum": (
        ["Mul+ReduceSum"], lambda m: m.reduce("ReduceSum", m.Mul(x := m.input(4, 5), x), 1)),
    "scaled scores into Softmax": (
        ["Mul+Softmax"], lambda m: m.Softmax(m.Mul(m.input(4, 5), 3.0), axis=1)),
    "Transpose into what follows element by element": (
        ["Transpose+Exp"], lambda m: m.Exp(m.Transpose(m.input(4, 5), perm=(1, 0)))),
    "Slice into a product's rows": (
        ["Slice+MatMul"], lambda m: m.MatMul(m.slice(m.input(4, 9), 1, 2, 7), m.random(5, 3))),
    "Transpose stays before a product's columns": (
        ["Transpose", "MatMul"],
        lambda m: m.MatMul(m.input(2, 5), m.Transpose(m.input(4, 5), perm=(1, 0)))),
    "work is not repeated: Exp before a product": (
        ["Exp", "MatMul"], lambda m: m.MatMul(m.Exp(m.input(4, 5)), m.random(5, 3))),
    "work is not repeated: Exp before a window": (
        ["Exp", "MaxPool"], lambda m: m.pool("MaxPool", m.Exp(m.input(1, 2, 9)), 3, 1)),
    "widening where each element is read once": (
        ["Conv+Cast", "Cast+Exp+ReduceSum"],
        lambda m: m.reduce("ReduceSum", m.Exp(_widened(m)), 2)),
    "widening behind a product where elements are read often": (
        ["Conv+Cast+Cast", "MaxPool"], lambda m: m.pool("MaxPool", _widened(m), 2, 1)),
    "widening and what follows it, where elements are read often": (
        ["Conv+Cast+Cast+Exp", "MaxPool"], lambda m: m.pool("MaxPool", m.Exp(_widened(m)), 2, 1)),
    "parts of Split into their readers": (
        ["Slice+Slice+Relu+Mul"],
        lambda m: m.Mul(*(lambda p: (m.Relu(p[0]), p[1]))(m.split(m.input(4, 6), 1, 3, 3)))),
    "element-wise parts into Concat": (
        ["Relu+Neg+Concat"],
        lambda m: m.Concat(m.Relu(m.input(4, 2)), m.Neg(m.input(4, 3)), axis=1)),
    "a recurrence stays alone": (
        ["CumSum", "Relu"],
        lambda m: m.Relu(m.CumSum(m.input(4, 5), m.const(np.int64(0), "int64")))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_groups(name: str) -> None:
    wanted, build = CASES[name]
    assert groups(build) == wanted


def test_a_group_has_a_limit_of_nodes() -> None:
    def build(m: Maker) -> str:
        x = m.input(4)
        for _ in range(60):
            x = m.Tanh(x)
        return x

    assert max(g.count("+") + 1 for g in groups(build)) <= 24


# -- views ------------------------------------------------------------------------------------


def test_parts_that_are_runs_of_bytes() -> None:
    m = Maker("float32")
    x = m.input(1, 6, 4)
    a = m.slice(x, 1, 2, 5)
    p, q = m.split(x, 1, 4, 2)
    b = m.slice(x, 2, 1, 3)
    c = m.slice(x, 1, 0, 6, 2)
    d = m.slice(m.slice(x, 1, 3, 4), 2, 1, 3)
    graph = m.graph(a, p, q, b, c, d)
    found = [part_offsets(n, graph.types, graph.consts) for n in graph.nodes]
    assert found == [{a: 8}, {p: 0, q: 16}, None, None, {graph.nodes[4].outputs[0]: 12}, {d: 1}]


def test_joins_that_are_runs_of_bytes() -> None:
    m = Maker("float32")
    x, y = m.input(1, 2, 3), m.input(1, 2, 5)
    m.Concat(x, x, axis=1)
    m.Concat(x, y, axis=2)
    graph = m.graph("t0_0", "t1_0")
    assert [joined_offsets(n, graph.types) for n in graph.nodes] == [[0, 6], None]


def test_slices_and_joins_share_storage_and_need_no_call() -> None:
    m = Maker("float32")
    x = m.input(8, 4)
    a, b = m.split(m.Exp(x), 0, 3, 5)
    y = m.Concat(m.Tanh(b), m.Sigmoid(a), axis=0)
    graph = fuse(m.graph(m.Concat(y, m.Exp(y), axis=0)), OPS)
    program = lower(graph, OPS, name="m")
    assert len(program.steps) == 4
    whole = program.offsets[program.outputs[0]]
    assert program.offsets[y] == whole
    assert program.offsets[b] == program.offsets[a] + 3 * 4 * 4


def test_a_join_of_one_tensor_with_itself_copies_once() -> None:
    m = Maker("float32")
    y = m.Exp(m.input(2, 4))
    program = lower(fuse(m.graph(m.Concat(y, y, axis=0)), OPS), OPS, name="m")
    assert len(program.steps) == 2
