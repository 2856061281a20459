"""Each rewrite rule: what it makes of a small graph, that this is the same, and where it stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.graph_maker import inputs_of, Maker
from tests.reference import run
from toolkit.ir.graph import Graph
from toolkit.ir.verify import verify_graph
from toolkit.ops import OPS
from toolkit.passes import views
from toolkit.passes.eliminate import common_subexpressions, dead_code
from toolkit.passes.fold_affine import fold_affine, fold_batch_norm
from toolkit.passes.fold_pads import fold_pads
from toolkit.passes.merge_parallel import merge_parallel
from toolkit.passes.recognise import recognise
from toolkit.passes.simplify import simplify

Build = Callable[[Maker], "str | Sequence[str]"]
Pass = Callable[..., Graph]


def made(build: Build, dtype: str = "float64") -> Graph:
    m = Maker(dtype)
    outputs = build(m)
    return m.graph(*((outputs,) if isinstance(outputs, str) else outputs))


def check(graph: Graph, passes: Sequence[Pass], ops: str | None, tolerance: float = 1e-10) -> Graph:
    """Run passes; compare operators (in order, '' for none left) and outputs."""
    after = graph
    for one in passes:
        after = one(after, OPS)
        verify_graph(after)
    if ops is None:
        assert after is graph, [n.op for n in after.nodes]
    else:
        assert [n.op for n in after.nodes] == ops.split()
    inputs = inputs_of(graph)
    wanted, found = run(graph, inputs), run(after, inputs)
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        scale = max(1.0, float(np.max(np.abs(want.astype(np.float64)), initial=0)))
        np.testing.assert_allclose(found[name], want, rtol=0, atol=tolerance * scale)
        assert found[name].dtype == want.dtype
    return after


# -- identities ---------------------------------------------------------------------------------


def _x(m: Maker) -> str:
    return m.input(2, 3, 4)


IDENTITIES: dict[str, Build] = {
    "Identity": lambda m: m.Identity(_x(m)),
    "Dropout": lambda m: m.Dropout(_x(m)),
    "Cast to the same type": lambda m: m.Cast(_x(m), to=11),
    "Reshape to the same shape": lambda m: m.reshape(_x(m), 2, 3, 4),
    "Transpose that moves nothing": lambda m: m.Transpose(_x(m), perm=(0, 1, 2)),
    "Pad by nothing": lambda m: m.pad(_x(m), (0, 0, 0), (0, 0, 0)),
    "Slice of everything": lambda m: m.slice(_x(m), 1, 0, 9),
    "Concat of one": lambda m: m.Concat(_x(m), axis=0),
    "Concat with nothing": lambda m: m.Concat(_x(m), m.const(np.zeros((2, 0, 4))), axis=1),
    "Expand to the same shape": lambda m: m.Expand(_x(m), m.ints(2, 3, 4)),
    "Tile once": lambda m: m.Tile(_x(m), m.ints(1, 1, 1)),
    "Gather of all": lambda m: m.Gather(_x(m), m.ints(0, 1, -1), axis=1),
    "Resize by one": lambda m: m.Resize(
        m.input(1, 1, 4, 4), None, m.const(np.ones(4), "float32"), mode="linear"
    ),
    "a pool of one element": lambda m: m.pool("MaxPool", m.input(1, 2, 4, 4), 1, 1),
    "Add of 0": lambda m: m.Add(_x(m), 0.0),
    "Add to 0": lambda m: m.Add(0.0, _x(m)),
    "Sub of 0": lambda m: m.Sub(_x(m), np.zeros((3, 4))),
    "Mul by 1": lambda m: m.Mul(np.ones((1, 1)), _x(m)),
    "Div by 1": lambda m: m.Div(_x(m), 1.0),
    "Pow of 1": lambda m: m.Pow(_x(m), 1.0),
    "Sum of one": lambda m: m.Sum(_x(m)),
    "Max of one": lambda m: m.Max(_x(m)),
    "Where of a known condition": lambda m: m.Where(np.array(True), _x(m), 1.0),
    "Where of the same": lambda m: (lambda x: m.Where(m.input(2, 3, 4, dtype="bool"), x, x))(_x(m)),
    "Neg of Neg": lambda m: m.Neg(m.Neg(_x(m))),
    "Not of Not": lambda m: m.Not(m.Not(m.input(3, dtype="bool"))),
    "Transpose and back": lambda m: m.Transpose(m.Transpose(_x(m), perm=(1, 2, 0)), perm=(2, 0, 1)),
    "Squeeze of Unsqueeze": lambda m: m.Squeeze(m.Unsqueeze(_x(m), m.ints(1)), m.ints(1)),
    "Reshape and back": lambda m: m.reshape(m.reshape(_x(m), 6, 4), 2, 3, 4),
    "Concat of Split": lambda m: m.Concat(*m.split(_x(m), 1, 1, 2), axis=1),
    "Clip without bounds": lambda m: m.Clip(_x(m), -np.inf, np.inf),
    "Cast to a wider type and back": lambda m: m.Cast(
        m.Cast(m.input(3, dtype="int32"), to=11), to=6
    ),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_what_changes_nothing_is_removed(name: str) -> None:
    # A graph output cannot be a graph input, so an Identity stays, or what reads the result does.
    alone = made(IDENTITIES[name])
    check(alone, [simplify, dead_code], "Identity" if alone.nodes[0].op != "Identity" else None)

    def behind(m: Maker) -> str:
        y = IDENTITIES[name](m)
        assert isinstance(y, str)
        return m.Not(y) if m.types[y].dtype == "bool" else m.Sign(y)

    check(made(behind), [simplify, dead_code], "Not" if "Not" in name else "Sign")


NO_IDENTITIES: dict[str, Build] = {
    "Expand that a slope does not replace": lambda m: m.PRelu(
        m.Expand(m.input(1, 4), m.ints(3, 4)), m.random(3, 4)
    ),
    "Add of 0 that broadcasts": lambda m: m.Add(m.input(3), np.zeros((2, 3))),
    "Transpose": lambda m: m.Transpose(_x(m), perm=(1, 0, 2)),
    "a backward Slice": lambda m: m.slice(_x(m), 1, 2, -9, -1),
    "Mul by ones and a two": lambda m: m.Mul(_x(m), np.array([1.0, 1, 1, 2])),
    "Neg once": lambda m: m.Neg(_x(m)),
    "Resize that shifts samples": lambda m: m.Resize(
        m.input(1, 1, 10, 10), None, m.const([1, 1, 1.05, 1.05], "float32"), mode="linear"
    ),
    "Cast that loses": lambda m: m.Cast(m.Cast(_x(m), to=6), to=11),
    "Concat of Split swapped": lambda m: m.Concat(*m.split(_x(m), 1, 1, 2)[::-1], axis=1),
}


@pytest.mark.parametrize("name", NO_IDENTITIES)
def test_what_changes_something_stays(name: str) -> None:
    check(made(NO_IDENTITIES[name]), [simplify], None)


# -- canonical forms, pairs, strength ---------------------------------------------------------

SIMPLER: dict[str, tuple[str, Build]] = {
    "Flatten is Reshape": ("Reshape", lambda m: m.Flatten(_x(m), axis=1)),
    "Transpose of 1s is Reshape": (
        "Reshape", lambda m: m.Transpose(m.input(1, 3, 1, 4), perm=(0, 2, 1, 3))),
    "Transposes join": (
        "Transpose", lambda m: m.Transpose(m.Transpose(_x(m), perm=(1, 0, 2)), perm=(2, 0, 1))),
    "Gather of a run is Slice": ("Slice", lambda m: m.Gather(_x(m), m.ints(1, 2, 3), axis=2)),
    "Gather of one is Slice": (
        "Slice Reshape", lambda m: m.Gather(_x(m), m.const(np.int64(2), "int64"), axis=1)),
    "Slices join": ("Slice", lambda m: m.slice(m.slice(m.input(20), 0, 2, 18, 2), 0, 1, 7, 3)),
    "Slice of one part of Concat": (
        "Slice", lambda m: m.slice(m.Concat(_x(m), _x(m), axis=1), 1, 4, 6)),
    "Concats join": (
        "Concat", lambda m: m.Concat(m.Concat(_x(m), _x(m), axis=1), _x(m), axis=1)),
    "Split of Concat": (
        "Relu Neg",
        lambda m: (lambda p: (m.Relu(p[0]), m.Neg(p[1])))(
            m.split(m.Concat(_x(m), _x(m), axis=0), 0, 2, 2))),
    "functions of Concat": (
        "Relu Exp Add Add Concat",
        lambda m: m.Add(m.Concat(m.Relu(_x(m)), m.Exp(_x(m)), axis=1), m.random(6, 1))),
    "Pads join": ("Pad", lambda m: m.pad(m.pad(_x(m), (0, 1, 0), (0, 0, 2)), (0, 1, 1), (0, 0, 0))),
    "Expand before what broadcasts": (
        "Add", lambda m: m.Add(m.Expand(m.input(1, 4), m.ints(3, 4)), m.input(3, 4))),
    "Tile of 1s is Expand": ("Expand", lambda m: m.Tile(m.input(1, 4), m.ints(3, 1))),
    "GlobalAveragePool is ReduceMean": (
        "ReduceMean", lambda m: m.GlobalAveragePool(m.input(2, 3, 4, 5))),
    "a pool of everything": (
        "ReduceMean", lambda m: m.pool("AveragePool", m.input(2, 3, 4, 4), 4, 1)),
    "a mean over 1s": (
        "Reshape", lambda m: m.reduce("ReduceMean", m.input(2, 1, 3), 1, keepdims=0)),
    "Relu of Relu": ("Relu", lambda m: m.Relu(m.Relu(_x(m)))),
    "Clip of Clip": ("Clip", lambda m: m.Clip(m.Clip(_x(m), -1.0, 2.0), 0.5, 3.0)),
    "Relu of Clip": ("Clip", lambda m: m.Relu(m.Clip(_x(m), -1.0, 1.0))),
    "Clip of Relu": ("Clip", lambda m: m.Clip(m.Relu(_x(m)), -1.0, 6.0)),
    "Clip at 0 is Relu": ("Relu", lambda m: m.Clip(_x(m), 0.0)),
    "Min of Relu is Clip": ("Clip", lambda m: m.Min(m.Relu(_x(m)), 6.0)),
    "Relu of Sigmoid": ("Sigmoid", lambda m: m.Relu(m.Sigmoid(_x(m)))),
    "Abs of Neg": ("Abs", lambda m: m.Abs(m.Neg(_x(m)))),
    "Pow of 2 is Mul": ("Mul", lambda m: m.Pow(_x(m), 2.0)),
    "Pow of a half is Sqrt": ("Abs Sqrt", lambda m: m.Pow(m.Abs(_x(m)), 0.5)),
    "Div by a power of two is Mul": ("Mul", lambda m: m.Div(_x(m), np.array([2, 4, 0.5, -8]))),
    "1 / x is Reciprocal": ("Reciprocal", lambda m: m.Div(1.0, _x(m))),
    "Sub of a constant is Add": ("Add", lambda m: m.Sub(_x(m), 3.0)),
    "Add of Neg is Sub": ("Sub", lambda m: m.Add(m.Neg(_x(m)), _x(m))),
    "Sum of two is Add": ("Add", lambda m: m.Sum(_x(m), _x(m))),
    "columns of weights innermost": (
        "Gemm", lambda m: m.Gemm(m.input(2, 3), m.random(5, 3), transB=1)),
    "Transpose before Gemm": (
        "Gemm", lambda m: m.Gemm(m.Transpose(m.input(3, 2), perm=(1, 0)), m.random(3, 5))),
    "a bias of 0": ("Conv", lambda m: m.Conv(
        m.input(1, 2, 4), m.random(3, 2, 1), np.zeros(3), kernel_shape=(1,), strides=(1,),
        dilations=(1,), pads=(0, 0), group=1)),
    "Slice before Transpose": (
        "Slice Transpose",
        lambda m: m.slice(m.Transpose(_x(m), perm=(2, 0, 1)), 0, 1, 3)),
    "Split before Reshape": (
        "Split Reshape Reshape Neg Relu",
        lambda m: (lambda p: (m.Neg(p[0]), m.Relu(p[1])))(
            m.split(m.reshape(m.input(4, 6), 2, 2, 6), 2, 2, 4))),
    "reduced axes stay": (
        "ReduceMax Sub",
        lambda m: (lambda x: m.Sub(x, m.reshape(m.reduce("ReduceMax", x, 2, keepdims=0), 2, 3, 1)))(
            _x(m))),
}  # fmt: skip


@pytest.mark.parametrize("name", SIMPLER)
def test_simplify(name: str) -> None:
    ops, build = SIMPLER[name]
    after = check(made(build), [simplify, dead_code], ops)
    assert simplify(after, OPS) is after


def test_a_table_is_computed_once_a_row() -> None:
    def build(m: Maker) -> str:
        x = m.Add(m.Gather(m.random(5, 4), m.input(30, dtype="int64"), axis=0), m.random(4))
        return m.Mul(x, m.Tanh(x))

    check(made(build), [simplify], "Gather")


def test_a_table_stays_where_its_rows_are_read_otherwise() -> None:
    def build(m: Maker) -> str:
        x = m.Gather(m.random(5, 4), m.input(30, dtype="int64"), axis=0)
        return m.Add(m.Mul(x, x), m.reduce("ReduceSum", x, 0))

    check(made(build), [simplify], None)


# -- common subexpressions --------------------------------------------------------------------


def test_equal_nodes_and_constants_become_one() -> None:
    def build(m: Maker) -> str:
        x = m.input(4, 4)
        same = np.arange(16.0).reshape(4, 4)
        return m.Add(m.Relu(m.MatMul(x, same)), m.Relu(m.MatMul(x, same.copy())))

    after = check(made(build), [common_subexpressions], "MatMul Relu Add")
    assert len(after.consts) == 1


def test_two_outputs_that_are_equal_keep_their_names() -> None:
    def build(m: Maker) -> Sequence[str]:
        x = m.input(4)
        return m.Relu(x), m.Neg(m.Relu(x)), m.Relu(x)

    check(made(build), [common_subexpressions], "Relu Neg Relu")


def test_constants_of_another_type_or_shape_stay_apart() -> None:
    def build(m: Maker) -> str:
        x = m.input(1, 2)
        return m.Add(m.Add(x, np.zeros((1, 2))), np.zeros((2,)))

    after = common_subexpressions(made(build), OPS)
    assert len(after.consts) == 2


# -- weights ------------------------------------------------------------------------------------


def _channels(m: Maker, x: str) -> str:
    return m.random(m.shape(x)[1], *(1,) * (len(m.shape(x)) - 2))


AFFINE: dict[str, tuple[str, Build]] = {
    "Conv BatchNormalization": ("Conv", lambda m: m.batch_norm(m.conv(m.input(1, 3, 5, 5), 4))),
    "grouped Conv, Mul, Add": (
        "Conv",
        lambda m: (lambda y: m.Add(m.Mul(y, _channels(m, y)), _channels(m, y)))(
            m.conv(m.input(1, 4, 5), 6, group=2))),
    "depthwise Conv Div": (
        "Conv",
        lambda m: (lambda y: m.Div(y, _channels(m, y)))(m.conv(m.input(1, 3, 5), 3, group=3))),
    "ConvTranspose BatchNormalization": (
        "ConvTranspose",
        lambda m: m.batch_norm(m.conv(m.input(1, 3, 5, 5), 4, transposed=True))),
    "grouped ConvTranspose Mul": (
        "ConvTranspose",
        lambda m: (lambda y: m.Mul(_channels(m, y), y))(
            m.conv(m.input(1, 4, 5), 6, group=2, transposed=True))),
    "Conv Neg": ("Conv", lambda m: m.Neg(m.conv(m.input(1, 3, 5), 4))),
    "MatMul Add is Gemm": (
        "Gemm", lambda m: m.Add(m.random(3), m.MatMul(m.input(2, 4), m.random(4, 3)))),
    "MatMul Add Mul": (
        "Gemm",
        lambda m: m.Mul(m.Add(m.MatMul(m.input(2, 4), m.random(4, 3)), m.random(3)), m.random(3))),
    "Gemm BatchNormalization": (
        "Gemm", lambda m: m.batch_norm(m.Gemm(m.input(2, 4), m.random(4, 3), m.random(3)))),
    "alpha and beta": (
        "Gemm",
        lambda m: m.Gemm(m.input(2, 4), m.random(4, 3), m.random(3), alpha=0.25, beta=-2.0)),
    "BatchNormalization before Conv": (
        "Conv", lambda m: m.conv(m.batch_norm(m.input(1, 3, 5, 5)), 4, pad=0)),
    "scale before a padded Conv": (
        "Conv", lambda m: (lambda x: m.conv(m.Mul(x, _channels(m, x)), 4))(m.input(1, 3, 5))),
    "BatchNormalization before a padded Conv": (
        "Mul Add Conv", lambda m: m.conv(m.batch_norm(m.input(1, 3, 5)), 4)),
    "scale before grouped Conv": (
        "Conv",
        lambda m: (lambda x: m.conv(m.Mul(x, _channels(m, x)), 6, group=2))(m.input(1, 4, 5))),
    "scale before ConvTranspose": (
        "ConvTranspose",
        lambda m: (lambda x: m.conv(m.Mul(x, _channels(m, x)), 6, transposed=True))(
            m.input(1, 4, 5))),
    "shift before MatMul": (
        "Gemm", lambda m: m.MatMul(m.Add(m.input(2, 4), m.random(4)), m.random(4, 3))),
    "BatchNormalization alone": ("Mul Add", lambda m: m.batch_norm(m.input(2, 3, 4))),
    "chains of constants": (
        "Mul Add", lambda m: m.Add(m.Add(m.Mul(m.Mul(_x(m), 3.0), 5.0), 0.1), m.random(4))),
    "Div by a constant": ("Mul", lambda m: m.Div(_x(m), 3.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", AFFINE)
def test_scales_and_shifts_go_into_weights(name: str) -> None:
    ops, build = AFFINE[name]
    check(made(build), [fold_batch_norm, fold_affine, simplify], ops)


NOT_AFFINE: dict[str, Build] = {
    "the product has another reader": lambda m: (
        lambda y: (m.Mul(y, _channels(m, y)), m.Relu(y)))(m.conv(m.input(1, 3, 5), 4)),
    "the product is an output": lambda m: (
        lambda y: (y, m.Mul(y, _channels(m, y))))(m.conv(m.input(1, 3, 5), 4)),
    "the factor varies along another axis": lambda m: m.Mul(
        m.conv(m.input(1, 3, 5), 4), m.random(5)),
    "the factor is computed": lambda m: m.Mul(m.conv(m.input(1, 3, 5), 4), m.input(4, 1)),
    "the factor makes the result larger": lambda m: m.Mul(
        m.conv(m.input(1, 3, 5), 4), m.random(2, 1, 1)),
    "the weights are computed": lambda m: m.Mul(
        m.MatMul(m.input(2, 3), m.input(3, 4)), m.random(4)),
    "Div by 0": lambda m: m.Div(m.conv(m.input(1, 3, 5), 1), np.zeros((1, 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_scales_stay_where(name: str) -> None:
    graph = made(NOT_AFFINE[name])
    assert fold_affine(graph, OPS) is graph


PADS: dict[str, tuple[str, Build]] = {
    "Conv": ("Conv", lambda m: m.conv(m.pad(m.input(1, 2, 5, 5), (0, 0, 1, 0), (0, 0, 2, 1)), 3)),
    "two Convs": (
        "Conv Conv",
        lambda m: (lambda x: (m.conv(x, 3, 1), m.conv(x, 2)))(
            m.pad(m.input(1, 2, 5), (0, 0, 1), (0, 0, 1)))),
    "AveragePool": (
        "AveragePool",
        lambda m: m.pool("AveragePool", m.pad(m.input(1, 2, 6), (0, 0, 1), (0, 0, 1)), 2, 2)),
    "MaxPool by the lowest value": (
        "MaxPool",
        lambda m: m.pool(
            "MaxPool",
            m.Pad(m.input(1, 2, 6), m.ints(0, 0, 1, 0, 0, 1), -np.inf, mode="constant"), 2, 2)),
    "MaxPool by 0 behind Relu": (
        "Relu MaxPool",
        lambda m: m.pool("MaxPool", m.pad(m.Relu(m.input(1, 2, 6)), (0, 0, 1), (0, 0, 1)), 2, 2)),
    "Conv behind Unsqueeze": (
        "Reshape Conv",
        lambda m: m.conv(
            m.reshape(m.pad(m.input(1, 2, 5), (0, 0, 1), (0, 0, 1)), 1, 2, 7, 1), 3, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", PADS)
def test_pads_go_into_windows(name: str) -> None:
    ops, build = PADS[name]
    check(made(build), [fold_pads, dead_code], ops)


PADS_STAY: dict[str, Build] = {
    "channels": lambda m: m.conv(m.pad(m.input(1, 2, 5), (0, 1, 0), (0, 0, 0)), 3),
    "another value": lambda m: m.conv(
        m.Pad(m.input(1, 2, 5), m.ints(0, 0, 1, 0, 0, 1), 2.0, mode="constant"), 3),
    "reflection": lambda m: m.conv(
        m.Pad(m.input(1, 2, 5), m.ints(0, 0, 1, 0, 0, 1), mode="reflect"), 3),
    "a crop": lambda m: m.conv(m.pad(m.input(1, 2, 5), (0, 0, -1), (0, 0, 1)), 3),
    "MaxPool by 0": lambda m: m.pool(
        "MaxPool", m.pad(m.input(1, 2, 6), (0, 0, 1), (0, 0, 1)), 2, 2),
    "MaxPool whose window fits the padding": lambda m: m.pool(
        "MaxPool", m.pad(m.Relu(m.input(1, 2, 6)), (0, 0, 2), (0, 0, 2)), 2, 2),
    "AveragePool that does not count": lambda m: m.pool(
        "AveragePool", m.pad(m.input(1, 2, 6), (0, 0, 1), (0, 0, 1)), 3, 2, pad=1),
    "rounding up": lambda m: m.pool(
        "AveragePool", m.pad(m.input(1, 2, 6), (0, 0, 1), (0, 0, 1)), 3, 2, ceil_mode=1),
}  # fmt: skip


@pytest.mark.parametrize("name", PADS_STAY)
def test_pads_stay_where(name: str) -> None:
    graph = made(PADS_STAY[name])
    assert fold_pads(graph, OPS) is graph


# -- recognised -------------------------------------------------------------------------------


def _layer_norm(m: Maker, x: str, **how: Any) -> str:
    axes = how.get("axes", (2,))
    mean = m.reduce("ReduceMean", x, *axes)
    c = m.Sub(x, mean)
    square = m.Mul(c, c)
    if how.get("sum"):
        total = m.reduce("ReduceSum", square, *axes)
        variance = m.Div(total, float(np.prod([m.shape(x)[a] for a in axes])))
    else:
        variance = m.reduce("ReduceMean", square, *axes)
    root = m.Sqrt(m.Add(variance, 1e-3))
    return m.Mul(c, m.Reciprocal(root)) if how.get("reciprocal") else m.Div(c, root)


RECOGNISED: dict[str, tuple[str, Build]] = {
    "LayerNormalization": ("LayerNormalization", lambda m: _layer_norm(m, _x(m))),
    "with a sum": ("LayerNormalization", lambda m: _layer_norm(m, _x(m), sum=True)),
    "with a reciprocal": ("LayerNormalization", lambda m: _layer_norm(m, _x(m), reciprocal=True)),
    "over two axes": ("LayerNormalization", lambda m: _layer_norm(m, _x(m), axes=(1, 2))),
    "with scale and shift": (
        "LayerNormalization",
        lambda m: m.Add(m.random(4), m.Mul(_layer_norm(m, _x(m)), m.random(1, 1, 4)))),
    "with a scale a row": (
        "LayerNormalization Mul", lambda m: m.Mul(_layer_norm(m, _x(m)), m.random(3, 1))),
    "RMSNormalization": (
        "RMSNormalization",
        lambda m: (lambda x: m.Mul(
            m.Div(x, m.Sqrt(m.Add(m.reduce("ReduceMean", m.Mul(x, x), 2), 1e-3))),
            m.random(4)))(_x(m))),
    "Softmax": (
        "Softmax",
        lambda m: (lambda x: (lambda e: m.Div(e, m.reduce("ReduceSum", e, 1)))(
            m.Exp(m.Sub(x, m.reduce("ReduceMax", x, 1)))))(_x(m))),
    "a sum divided by its count": (
        "ReduceMean", lambda m: m.Mul(m.reduce("ReduceSum", _x(m), 0, 1), 1 / 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", RECOGNISED)
def test_operators_spelled_out_are_recognised(name: str) -> None:
    ops, build = RECOGNISED[name]
    check(made(build), [recognise], ops)


NOT_RECOGNISED: dict[str, Build] = {
    "over the first axis": lambda m: m.Identity(
        m.Div(x := _x(m), m.Sqrt(m.Add(m.reduce("ReduceMean", m.Mul(x, x), 0), 1e-3)))),
    "exp without the largest taken out": lambda m: m.Identity(
        m.Div(e := m.Exp(_x(m)), m.reduce("ReduceSum", e, 1))),
    "a sum divided by another number": lambda m: m.Mul(m.reduce("ReduceSum", _x(m), 0), 0.4),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_RECOGNISED)
def test_other_things_are_not(name: str) -> None:
    graph = made(NOT_RECOGNISED[name])
    assert recognise(graph, OPS) is graph


def test_a_product_of_one_hot_rows_picks_rows_of_weights_and_zeros_outside() -> None:
    def build(m: Maker) -> str:
        x = m.input(2, 7, 1, dtype="int32")
        hot = m.Cast(m.Equal(x, m.const(np.arange(3)[None, None], "int32")), to=11)
        return m.MatMul(hot, m.random(3, 5))

    graph = made(build)
    after = recognise(graph, OPS)
    assert "Gather" in [n.op for n in after.nodes]
    inputs = {"x0": np.arange(-4, 10, dtype=np.int32).reshape(2, 7, 1)}
    want, found = run(graph, inputs), run(after, inputs)
    np.testing.assert_array_equal(*(next(iter(r.values())) for r in (want, found)))


# -- parallel products, reshapes --------------------------------------------------------------


def test_parallel_products_become_one_with_their_activations() -> None:
    def build(m: Maker) -> Sequence[str]:
        x = m.input(1, 8, 6, 6)
        a, b = (m.Relu(m.conv(x, n)) for n in (3, 5))
        return m.Concat(a, b, axis=1), m.Relu(x)

    check(made(build), [merge_parallel, simplify], "Conv Relu Relu")

    def products(m: Maker) -> str:
        x = m.input(6, 8)
        a, b = (m.MatMul(x, m.random(8, n)) for n in (3, 5))
        return m.Add(m.reduce("ReduceMax", a, 1), m.Softmax(b, axis=1))

    check(made(products), [merge_parallel], "MatMul Split ReduceMax Softmax Add")


@pytest.mark.parametrize("why", ["wide", "another stride", "read twice"])
def test_parallel_products_stay_apart_when(why: str) -> None:
    def build(m: Maker) -> str:
        x = m.input(1, 8, 6, 6)
        a = m.conv(x, 64 if why == "wide" else 3, 1)
        b = m.conv(x, 64 if why == "wide" else 3, 1, stride=2 if why == "another stride" else 1)
        if why == "read twice":
            a = m.Mul(a, m.Sigmoid(m.reduce("ReduceMean", a, 2, 3)))
        return m.Add(m.reduce("ReduceMean", a, 2, 3), m.reduce("ReduceMean", b, 2, 3))

    graph = made(build)
    assert merge_parallel(graph, OPS) is graph


def test_reshapes_sink_behind_element_wise_operators() -> None:
    def build(m: Maker) -> str:
        x = m.reshape(m.conv(m.input(1, 3, 8, 1), 4, 1), 1, 4, 8)
        return m.Mul(m.Sigmoid(m.Add(x, m.random(4, 1))), x)

    check(made(build), [views.sink_reshapes, simplify, dead_code], "Conv Add Sigmoid Mul Reshape")


def test_constants_that_vary_inside_a_run_keep_reshapes_in_place() -> None:
    graph = made(lambda m: m.Add(m.reshape(m.input(2, 12), 2, 3, 4), m.random(3, 1)))
    assert views.sink_reshapes(graph, OPS) is graph
