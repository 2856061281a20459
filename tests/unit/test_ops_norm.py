"""Normalisation computes what ONNX says, for random shapes and attributes, in both layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import op_batch
from tests.op_batch import Case, check, compare, expected, found
from toolkit.errors import UnsupportedError
from toolkit.ir.compute import placeholder
from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import type_of
from toolkit.ops import apply_op, OPS
from toolkit.ops.norm import NORM_OPS
from toolkit.pipeline import compile_model, Model, Options
from toolkit.runners import BuiltModel


def values(rng: np.random.Generator, *size: int, dtype: str = "float32") -> np.ndarray:
    return (rng.standard_normal(size) * 2 + 1).astype(dtype)


def spatial(rng: np.random.Generator, low: int = 0, high: int = 3) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, 5, rng.integers(low, high + 1)))


def constants(rng: np.random.Generator, count: int) -> frozenset[int]:
    """Return the positions of operands that are constants: all but the first, or none."""
    return frozenset(range(1, count) if rng.integers(2) else ())


def batch_case(rng: np.random.Generator, dtype: str = "float32") -> Case:
    c = int(rng.integers(1, 6))
    x = values(rng, int(rng.integers(1, 3)), c, *spatial(rng), dtype=dtype)
    scale, bias, mean = (values(rng, c, dtype=dtype) for _ in range(3))
    var = np.abs(values(rng, c, dtype=dtype))
    attrs = {"epsilon": float(rng.choice([1e-5, 1e-2]))}
    return Case("BatchNormalization", attrs, [x, scale, bias, mean, var], 1, constants(rng, 5))


def instance_case(rng: np.random.Generator) -> Case:
    c = int(rng.integers(1, 6))
    x = values(rng, int(rng.integers(1, 3)), c, *spatial(rng, 1))
    operands = [x, values(rng, c), values(rng, c)]
    return Case("InstanceNormalization", {"epsilon": 1e-3}, operands, 1, constants(rng, 3))


def group_case(rng: np.random.Generator) -> Case:
    groups, each = (int(n) for n in rng.integers(1, 4, 2))
    c = groups * each
    x = values(rng, int(rng.integers(1, 3)), c, *spatial(rng, 1))
    operands = [x, values(rng, c), values(rng, c)]
    attrs = {"num_groups": groups, "epsilon": 1e-3}
    return Case("GroupNormalization", attrs, operands, 1, constants(rng, 3))


def layer_case(rng: np.random.Generator, op: str = "LayerNormalization") -> Case:
    shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(1, 5)))
    axis = int(rng.integers(-len(shape), len(shape)))
    tail = shape[axis:]
    attrs = {"axis": axis, "epsilon": 1e-3}
    operands = [values(rng, *shape), values(rng, *tail)]
    if op == "RMSNormalization":
        return Case(op, attrs, operands)
    if rng.integers(2):
        operands.append(values(rng, *tail))
    return Case(op, attrs, operands, int(rng.integers(1, 4)), constants(rng, len(operands)))


def test_normalisation_agrees_with_onnxruntime() -> None:
    rng = np.random.default_rng(0)
    cases = [batch_case(rng) for _ in range(8)]
    cases += [batch_case(rng, "float64") for _ in range(2)]
    cases += [instance_case(rng) for _ in range(8)]
    cases += [group_case(rng) for _ in range(8)]
    cases += [layer_case(rng) for _ in range(10)]
    check(cases, rtol=2e-5)


@pytest.mark.parametrize("width", [16, 37])
def test_rows_longer_than_a_vector_agree_with_onnxruntime(width: int) -> None:
    rng = np.random.default_rng(width)
    x, image = values(rng, 2, 3, width), values(rng, 2, 4, 3, width)
    channels = [values(rng, 4), values(rng, 4)]
    row = [values(rng, width), values(rng, width)]
    cases = [
        Case("LayerNormalization", {"axis": 2}, [x, *row], 3),
        Case("LayerNormalization", {"axis": 1}, [x, values(rng, 3, width)]),
        Case("InstanceNormalization", {}, [image, *channels]),
        Case("GroupNormalization", {"num_groups": 2}, [image, *channels]),
        Case("BatchNormalization", {}, [image, *channels, values(rng, 4), np.abs(values(rng, 4))]),
    ]
    check(cases, rtol=2e-5)
    wide = values(rng, 2, width, 3, 5)
    channels = [values(rng, width), values(rng, width)]
    cases = [
        Case("InstanceNormalization", {}, [wide, *channels]),
        Case("BatchNormalization", {}, [wide, *channels, channels[0], np.abs(channels[1])]),
    ]
    problems = compare(cases, found_in_graph(cases, "NHWC"), expected(cases), 2e-5)
    assert not problems, "\n".join(problems)


def test_root_mean_square_normalisation_agrees_with_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(op_batch, "OPSET", 23)
    rng = np.random.default_rng(5)
    check([layer_case(rng, "RMSNormalization") for _ in range(8)], reference=True)


def test_group_normalisation_of_opset_18_takes_a_scale_for_each_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(op_batch, "OPSET", 18)
    rng = np.random.default_rng(6)
    cases = []
    for groups, each in ((2, 3), (3, 1), (1, 4), (2, 2)):
        x = values(rng, 2, groups * each, 3)
        operands = [x, values(rng, groups), values(rng, groups)]
        cases.append(Case("GroupNormalization", {"num_groups": groups}, operands))
    check(cases, reference=True, rtol=2e-5)


def test_a_large_mean_does_not_drown_the_variance() -> None:
    """Two passes: with one pass, x * x of 1e4 would lose the variance in float32."""
    rng = np.random.default_rng(8)
    x = (rng.standard_normal((2, 4, 64)) + 1e4).astype(np.float32)
    one, zero = np.ones(4, np.float32), np.zeros(4, np.float32)
    cases = [
        Case("InstanceNormalization", {}, [x, one, zero]),
        Case("LayerNormalization", {}, [x, np.ones(64, np.float32)]),
    ]
    wide = x.astype(np.float64)
    want = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + 1e-5)
    for got in found(cases):
        np.testing.assert_allclose(got, want, atol=2e-3)


def found_in_graph(cases: list[Case], layout: str | None = None) -> list[np.ndarray]:
    """Return the outputs, in NCHW, of the cases as nodes of a graph that runs in `layout`."""
    nodes: list[Node] = []
    inputs: dict[str, np.ndarray] = {}
    consts: dict[str, np.ndarray] = {}
    for number, case in enumerate(cases):
        names = []
        for position, array in enumerate(case.operands):
            assert array is not None
            names.append(f"x{number}_{position}")
            if layout and position == 0:
                array = np.ascontiguousarray(np.moveaxis(array, 1, -1))
            (consts if position in case.constant else inputs)[names[-1]] = array
        attrs = {**case.attrs, "nestling_layout": layout} if layout else case.attrs
        outputs = tuple(f"y{number}_{i}" for i in range(case.outputs))
        nodes.append(Node(f"n{number}", case.op, tuple(names), outputs, attrs))
    types = {n: type_of(a) for n, a in {**inputs, **consts}.items()}
    outs = tuple(o for node in nodes for o in node.outputs)
    graph = Graph("g", tuple(nodes), tuple(inputs), outs, types, consts, op_batch.OPSET)
    compiled = compile_model(Model(graph, "g", "0" * 64, (), OPS), Options(cflags=("-O1",)))
    with BuiltModel(compiled) as built:
        results = built.run(inputs)
    return [np.moveaxis(results[n], -1, 1) if layout else results[n] for n in outs]


def test_layer_normalisation_computes_in_double_precision_where_the_node_says_so() -> None:
    """onnx.checker knows float32 alone there, so the node is made without it."""
    rng = np.random.default_rng(7)
    x, scale = values(rng, 3, 50) + 1000, values(rng, 50)
    wide = x.astype(np.float64)
    mean = wide.mean(1, keepdims=True)
    rstd = 1 / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    case = Case("LayerNormalization", {"stash_type": 11}, [x, scale], 3)
    y, got_mean, got_rstd = found_in_graph([case])
    np.testing.assert_allclose(y, (wide - mean) * rstd * scale, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got_mean, mean, rtol=1e-14)
    np.testing.assert_allclose(got_rstd, rstd, rtol=1e-11)


def test_channels_last_gives_the_same_values() -> None:
    rng = np.random.default_rng(9)
    cases = [make(rng) for make in (batch_case, instance_case, group_case) for _ in range(6)]
    problems = compare(cases, found_in_graph(cases, "NHWC"), expected(cases), 2e-5)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("op", "attrs", "shapes", "outputs", "reason"),
    [
        ("BatchNormalization", {"training_mode": 1}, [(2, 3), *[(3,)] * 4], 3, "training mode"),
        ("BatchNormalization", {}, [(2, 3), (3,), (3,), (2,), (3,)], 1, r"mean has shape \[2\]"),
        ("GroupNormalization", {"num_groups": 2}, [(2, 3, 4), (3,), (3,)], 1, "2 groups"),
        ("InstanceNormalization", {}, [(2, 3), (3,), (3,)], 1, "spatial axes"),
        ("LayerNormalization", {}, [(2, 3), (4,)], 1, "cannot be broadcast"),
        ("LayerNormalization", {}, [(2, 1), (4,)], 1, "does not broadcast"),
        ("LayerNormalization", {"stash_type": 10}, [(2, 3), (3,)], 1, "stash_type 10"),
        ("RMSNormalization", {"axis": 2}, [(2, 3), (3,)], 1, "axis 2 is out of range"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    op: str, attrs: dict[str, Any], shapes: list[tuple[int, ...]], outputs: int, reason: str
) -> None:
    names = tuple(f"x{i}" for i in range(len(shapes)))
    node = Node("n", op, names, tuple(f"y{i}" for i in range(outputs)), attrs)
    with pytest.raises(UnsupportedError, match=reason):
        apply_op(NORM_OPS[op], node, [placeholder(s, "float32") for s in shapes], 22)
