"""What constants decide is decided at compile time: during import, and by the graph pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies
from onnx import helper

from tests.unit.frontend_tools import assert_same, assert_typed, model, ops
from toolkit.frontend import evaluate, load_onnx
from toolkit.frontend.reference import FAST, run
from toolkit.frontend.shapes import infer_onnx
from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import type_of
from toolkit.passes.fold_constants import fold_constants

node = helper.make_node


def infer(made: Node, types: Any, consts: Any, opset: int) -> Any:
    kinds = [types.get(n) for n in made.inputs]
    return infer_onnx(made, kinds, [consts.get(n) for n in made.inputs])


def f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


# -- during import ----------------------------------------------------------------------------


def test_shape_arithmetic_disappears(rng: np.random.Generator) -> None:
    """Flatten as exporters write it: Shape, Gather, Unsqueeze, Concat, Reshape."""
    x = f32(rng, 2, 3, 4)
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axes"], ["u"]),
        node("Mul", ["u", "two"], ["m"]),
        node("Div", ["m", "two"], ["d"]),
        node("Cast", ["d"], ["f"], to=1),
        node("Floor", ["f"], ["g"]),
        node("Cast", ["g"], ["i"], to=7),
        node("Concat", ["i", "rest"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["y"]),
    ]
    consts = {
        "zero": np.array(0),
        "axes": np.array([0]),
        "two": np.array([2]),
        "rest": np.array([-1]),
    }
    graph = assert_same(model(nodes, {"x": x}, ["y"], consts), {"x": x})
    assert ops(graph) == ["Reshape"]
    assert [v.tolist() for v in graph.consts.values()] == [[2, 12]]


def test_mask_of_a_known_shape_is_folded(rng: np.random.Generator) -> None:
    x = f32(rng, 4, 4)
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("ConstantOfShape", ["s"], ["ones"], value=helper.make_tensor("v", 1, [1], [1.0])),
        node("Trilu", ["ones"], ["mask"], upper=0),
        node("Mul", ["x", "mask"], ["y"]),
    ]
    graph = assert_same(model(nodes, {"x": x}, ["y"]), {"x": x})
    assert ops(graph) == ["Mul"]


def test_constants_far_larger_than_their_operands_stay_nodes(rng: np.random.Generator) -> None:
    shape = {"s": np.array([1000, 1000])}
    nodes = [node("Expand", ["w", "s"], ["e"]), node("Add", ["x", "e"], ["y"])]
    x, small = f32(rng, 1000, 1000), {"w": np.float32(0.5)}
    graph = assert_same(model(nodes, {"x": x}, ["y"], shape | small), {"x": x})
    assert ops(graph) == ["Expand", "Add"]
    large = {"w": f32(rng, 1000, 1000)}  # already there: nothing is saved by a node
    graph = assert_same(model(nodes, {"x": x}, ["y"], shape | large), {"x": x})
    assert ops(graph) == ["Add"]


def test_a_large_constant_is_evaluated_when_a_shape_depends_on_it() -> None:
    nodes = [
        node("Expand", ["two", "s"], ["e"]),
        node("ReduceMax", ["e"], ["m"], keepdims=0),
        node("Unsqueeze", ["m", "zero"], ["t"]),
        node("Expand", ["x", "t"], ["y"]),
    ]
    consts = {"two": np.array(2), "s": np.array([1000, 1000]), "zero": np.array([0])}
    graph = load_onnx(model(nodes, {"x": [1]}, ["y"], consts))
    assert graph.types["y"].shape == (2,)
    assert ops(graph) == ["Expand"]


def test_a_convolution_of_constants_is_not_evaluated_when_large(rng: np.random.Generator) -> None:
    nodes = [node("Conv", ["a", "w"], ["c"]), node("Add", ["x", "c"], ["y"])]
    consts = {"a": f32(rng, 1, 8, 64, 64), "w": f32(rng, 8, 8, 3, 3)}
    graph = load_onnx(model(nodes, {"x": [1, 8, 62, 62]}, ["y"], consts))
    assert ops(graph) == ["Conv", "Add"]


def test_random_values_are_never_folded() -> None:
    from toolkit.errors import UnsupportedError

    proto = model([node("RandomUniformLike", ["w"], ["y"])], {}, ["y"], {"w": np.ones(3, "f4")})
    with pytest.raises(UnsupportedError, match="random"):
        load_onnx(proto)


# -- evaluation -------------------------------------------------------------------------------


small_ints = strategies.integers(-9, 9)


@given(strategies.lists(small_ints, min_size=1, max_size=6), small_ints.filter(bool))
def test_integer_division_truncates_as_c_does(values: list[int], divisor: int) -> None:
    (got,) = evaluate(Node("n", "Div", ("a", "b"), ("y",)), [np.array(values), np.array(divisor)])
    assert got.tolist() == [int(v / divisor) for v in values]


def sites(rng: np.random.Generator) -> list[tuple[Node, list[np.ndarray]]]:
    """Return one or more sites of every operator with an evaluation of our own."""
    x, y = f32(rng, 3, 4), f32(rng, 4)
    i, b = rng.integers(-5, 6, (3, 4)), rng.integers(0, 2, (3, 4)).astype(bool)
    one = [x], [i]
    two = [x, y], [i, np.array(3)], [np.float32(2) * np.ones((), "f4"), y]
    table: dict[str, list[tuple[list[Any], dict[str, Any]]]] = {
        "Cast": [([x], {"to": 7}), ([i], {"to": 1}), ([b], {"to": 1}), ([x], {"to": 10})],
        "Concat": [([x, x], {"axis": 1})],
        "ConstantOfShape": [
            ([np.array([2, 3])], {}),
            ([np.array([2])], {"value": np.ones(1, "i8")}),
        ],
        "Expand": [([y, np.array([2, 1, 4])], {})],
        "Flatten": [([x], {"axis": 0}), ([x], {"axis": 2})],
        "Gather": [([x, np.array([[0, -1]])], {"axis": 1}), ([x, np.array(2)], {})],
        "GatherElements": [([x, np.array([[0, -1], [1, 2], [3, 3]])], {"axis": 1})],
        "Identity": [([x], {})],
        "Max": [([x, y], {}), ([i, i, i], {})],
        "Min": [([x, y], {})],
        "Not": [([b], {})],
        "Range": [([np.array(1), np.array(9), np.array(3)], {})],
        "Reshape": [([x, np.array([2, 6])], {})],
        "Slice": [([x, *map(np.array, ([0, -1], [2, -9], [0, 1], [1, -2]))], {})],
        "Split": [([x, np.array([1, 3])], {"axis": 1})],
        "Squeeze": [([x[:1], np.array([0])], {})],
        "Sqrt": [([np.abs(x)], {})],
        "Tile": [([x, np.array([2, 3])], {})],
        "Transpose": [([x], {"perm": (1, 0)})],
        "Unsqueeze": [([x, np.array([0, 3])], {})],
        "Where": [([b, x, y], {})],
    }
    for op in ("And", "Or"):
        table[op] = [([b, b[0]], {})]
    for op in ("Add", "Sub", "Mul", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        table[op] = [(list(operands), {}) for operands in two]
    table["Div"] = [([x, y], {})]
    for op in ("Abs", "Neg"):
        table[op] = [(list(operands), {}) for operands in one]
    for op in ("Ceil", "Floor"):
        table[op] = [([x], {})]
    assert set(table) == set(FAST)
    made = []
    for op, uses in table.items():
        for operands, attrs in uses:
            names = tuple(f"x{k}" for k in range(len(operands)))
            outputs = ("y", "z") if op == "Split" else ("y",)
            made.append((Node("n", op, names, outputs, attrs), list(map(np.asarray, operands))))
    return made


def test_fast_evaluation_agrees_with_onnx(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = sites(rng)
    fast = [evaluate(made, values) for made, values in cases]
    monkeypatch.setattr("toolkit.frontend.reference.FAST", {})
    for (made, values), got in zip(cases, fast, strict=True):
        for mine, theirs in zip(got, evaluate(made, values), strict=True):
            assert mine.dtype == theirs.dtype, made
            np.testing.assert_array_equal(mine, theirs, err_msg=str(made))


# -- the pass ---------------------------------------------------------------------------------


def graph_of(
    nodes: list[Node], inputs: dict[str, np.ndarray], outputs: list[str], consts: dict[str, Any]
) -> Graph:
    values = {n: np.asarray(v) for n, v in consts.items()}
    types = {n: type_of(v) for n, v in {**inputs, **values}.items()}
    return Graph("g", tuple(nodes), tuple(inputs), tuple(outputs), types, values, 17)


def test_pass_returns_the_same_graph_when_there_is_nothing(rng: np.random.Generator) -> None:
    x = f32(rng, 2, 3)
    graph = load_onnx(model([node("Relu", ["x"], ["y"])], {"x": x}, ["y"]))
    assert fold_constants(graph, infer) is graph


def test_pass_folds_constants_and_shapes(rng: np.random.Generator) -> None:
    x = f32(rng, 2, 3)
    nodes = [
        Node("a", "Constant", (), ("two",), {"value": np.float32(2) * np.ones((), "f4")}),
        Node("b", "Shape", ("x",), ("s",)),
        Node("c", "Cast", ("s",), ("f",), {"to": 1}),
        Node("d", "ReduceProd", ("f", "zero"), ("p",), {"keepdims": 0}),
        Node("e", "Mul", ("p", "two"), ("q",)),
        Node("f", "Mul", ("x", "q"), ("y",)),
    ]
    graph = graph_of(nodes, {"x": x}, ["y"], {"zero": [0]})
    folded = fold_constants(graph, infer)
    assert ops(folded) == ["Mul"]
    assert folded.consts["q"] == 12
    assert_typed(folded)


def branch(name: str, op: str, *inputs: str, consts: Any = None) -> Graph:
    one = np.zeros(3, np.float32)
    values = consts or {}
    names = [n for n in inputs if n not in values]
    return graph_of(
        [Node(f"{name}_node", op, inputs, (f"{name}_out",))],
        dict.fromkeys(names, one),
        [f"{name}_out"],
        values,
    ).with_(types={n: type_of(one) for n in (*inputs, f"{name}_out")})


@pytest.mark.parametrize("flag", [True, False])
def test_pass_replaces_an_if_by_its_branch(flag: bool, rng: np.random.Generator) -> None:
    x, z = f32(rng, 3), f32(rng, 3)
    then, els = branch("t", "Add", "x", "z"), branch("e", "Sub", "x", "z")
    attrs = {"then_branch": then, "else_branch": els}
    nodes = [
        Node("c", "Less", ("one", "limit"), ("cond",)),
        Node("i", "If", ("cond", "x", "z"), ("y",), attrs),
        Node("n", "Neg", ("y",), ("w",)),
    ]
    consts = {"one": np.float32(1), "limit": np.float32(2 if flag else 0)}
    graph = graph_of(nodes, {"x": x, "z": z}, ["w", "y"], consts)
    graph = graph.with_(types={**graph.types, "y": graph.types["x"], "w": graph.types["x"]})
    folded = fold_constants(graph, infer)
    assert ops(folded) == ["Add" if flag else "Sub", "Neg"]
    assert_typed(folded)
    got = run(folded, {"x": x, "z": z})
    np.testing.assert_array_equal(got["y"], x + z if flag else x - z)


def test_pass_moves_captured_constants_into_the_bodies(rng: np.random.Generator) -> None:
    x = f32(rng, 3)
    attrs = {
        "then_branch": branch("t", "Add", "x", "k"),
        "else_branch": branch("e", "Sub", "k", "k"),
    }
    els, kind = attrs["else_branch"], type_of(x)
    attrs["else_branch"] = els.with_(inputs=("x", "k"), types={**els.types, "x": kind})
    nodes = [
        Node("k", "Neg", ("w",), ("k",)),
        Node("i", "If", ("cond", "x", "k"), ("y",), attrs),
    ]
    given_ = {"x": x, "cond": np.array(True)}
    graph = graph_of(nodes, given_, ["y"], {"w": np.ones(3, np.float32)})
    graph = graph.with_(types={**graph.types, "y": graph.types["x"]})
    folded = fold_constants(graph, infer)
    (kept,) = folded.nodes
    assert kept.inputs == ("cond", "x")
    assert kept.attrs["then_branch"].inputs == kept.attrs["else_branch"].inputs == ("x",)
    assert "e_out" in kept.attrs["else_branch"].consts
    assert_typed(folded)
    np.testing.assert_array_equal(run(folded, given_)["y"], x - 1)


def test_pass_keeps_quantised_weights(rng: np.random.Generator) -> None:
    consts = {"w": np.ones((3, 3), np.int8), "s": np.float32(0.5), "z": np.array(0, np.int8)}
    nodes = [
        node("DequantizeLinear", ["w", "s", "z"], ["f"]),
        node("Transpose", ["f"], ["t"]),
        node("MatMul", ["x", "t"], ["y"]),
    ]
    x = f32(rng, 2, 3)
    graph = assert_same(model(nodes, {"x": x}, ["y"], consts), {"x": x})
    assert ops(graph) == ["DequantizeLinear", "Transpose", "MatMul"]
    assert fold_constants(graph, infer) is graph


@settings(max_examples=40)
@given(strategies.data())
def test_folding_does_not_change_what_a_graph_computes(data: strategies.DataObject) -> None:
    """Random graphs of elementwise nodes over an input and constants, before and after."""
    names = ["x", "k1", "k2", "k3"]
    values = {
        n: np.array(data.draw(strategies.lists(small_ints, min_size=3, max_size=3)), np.int64)
        for n in names
    }
    nodes = []
    for k in range(data.draw(strategies.integers(1, 8))):
        op = data.draw(strategies.sampled_from(("Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs")))
        count = 1 if op in ("Neg", "Abs") else 2
        inputs = tuple(data.draw(strategies.sampled_from(names)) for _ in range(count))
        nodes.append(Node(f"n{k}", op, inputs, (f"t{k}",)))
        names.append(f"t{k}")
    graph = graph_of(
        nodes, {"x": values["x"]}, [f"t{len(nodes) - 1}"], {n: values[n] for n in names[1:4]}
    )
    graph = graph.with_(types={n: type_of(values["x"]) for n in names})
    folded = fold_constants(graph, infer)
    assert_typed(folded)
    before, after = run(graph, {"x": values["x"]}), run(folded, {"x": values["x"]})
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
