"""What is reported of a model, in one error; names, order and dead code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.unit.frontend_tools import assert_typed, model, ops
from toolkit.errors import UnsupportedError
from toolkit.frontend import load_onnx

node = helper.make_node


# -- the report -------------------------------------------------------------------------------


def test_everything_unsupported_is_reported_at_once() -> None:
    nodes = [
        node("NonZero", ["x"], ["a"], name="first"),
        node("SequenceConstruct", ["x", "x"], ["s"], name="second"),
        node("SequenceAt", ["s", "zero"], ["b"]),
        node("RandomNormalLike", ["x"], ["c"], name="third"),
        node("Mystery", ["x"], ["d"], domain="com.foo", name="fourth"),
        node("NonZero", ["x"], ["dead"], name="dead"),
    ]
    proto = model(
        nodes, {"x": [3]}, ["a", "b", "c", "d"], {"zero": np.array(0)}, domains={"com.foo": 1}
    )
    with pytest.raises(UnsupportedError) as caught:
        load_onnx(proto)
    text = str(caught.value)
    assert "4 nodes cannot be compiled" in text
    for part in (
        "node 'first' (NonZero): its output shape depends on the data",
        "node 'second' (SequenceConstruct): sequences of tensors are not supported",
        "node 'third' (RandomNormalLike): gives random values",
        "node 'fourth' (com.foo:Mystery): no type rule is known",
    ):
        assert part in text, part
    assert "dead" not in text


def test_what_the_operators_refuse_is_in_the_same_report() -> None:
    def check(made: Any, types: Any, consts: Any, opset: int) -> list[Any]:
        if made.op == "Sin":
            raise UnsupportedError(f"node {made.name!r}: no sines here")
        return [types[n] for n in made.outputs]

    nodes = [
        node("Sin", ["x"], ["t"], name="wave"),
        node("NonZero", ["t"], ["y"], name="pick"),
        node("Sin", ["x"], ["z"], name="other"),
    ]
    with pytest.raises(UnsupportedError) as caught:
        load_onnx(model(nodes, {"x": [3]}, ["y", "z"]), check=check)
    text = str(caught.value)
    assert "3 nodes" in text
    assert "node 'wave': no sines here" in text
    assert "node 'other': no sines here" in text


def test_operators_of_foreign_domains_get_their_types_from_outside() -> None:
    nodes = [node("Twice", ["x"], ["y"], domain="my"), node("Relu", ["y"], ["z"])]
    proto = model(nodes, {"x": [3, 2]}, ["z"], domains={"my": 1})
    graph = load_onnx(proto, infer=lambda made, types, consts, opset: [types[made.inputs[0]]])
    assert [n.op_id for n in graph.nodes] == ["my:Twice", "Relu"]
    assert graph.types["z"].shape == (3, 2)


def test_unknown_attributes_are_ignored_and_said() -> None:
    notes: list[str] = []
    proto = model([node("Relu", ["x"], ["y"], name="r", color="red")], {"x": [3]}, ["y"])
    graph = load_onnx(proto, notes=notes)
    assert not graph.nodes[0].attrs
    assert notes == ["node 'r' (Relu): attribute 'color' is unknown in opset 17 and was ignored"]


# -- names and order --------------------------------------------------------------------------


def test_names_are_kept_and_made_unique() -> None:
    nodes = [
        node("Relu", ["x"], ["a b"], name="same"),
        node("Relu", ["a b"], ["b/c"], name="same"),
        node("Neg", ["b/c"], ["y"]),
        node("Abs", ["x"], ["z"], domain="ai.onnx"),
    ]
    graph = load_onnx(model(nodes, {"x": [3]}, ["y", "z"]))
    assert [n.name for n in graph.nodes] == ["same", "same_2", "Neg_y", "Abs_z"]
    assert [n.outputs for n in graph.nodes] == [("a b",), ("b/c",), ("y",), ("z",)]
    assert graph.nodes[3].domain == ""


def test_nodes_out_of_order_are_sorted_and_dead_ones_dropped() -> None:
    nodes = [
        node("Neg", ["t"], ["y"]),
        node("Relu", ["x"], ["t"]),
        node("Abs", ["x"], ["dead"]),
    ]
    graph = load_onnx(model(nodes, {"x": [3]}, ["y"], {"unused": np.ones(3)}))
    assert ops(graph) == ["Relu", "Neg"]
    assert not graph.consts
    assert_typed(graph)


def test_inputs_and_constants_can_be_outputs() -> None:
    nodes = [node("Identity", ["x"], ["y"]), node("Identity", ["w"], ["v"])]
    proto = model(nodes, {"x": [2]}, ["y", "v", "w", "x"], {"w": np.ones(2, np.float32)})
    graph = load_onnx(proto)
    assert graph.outputs == ("y", "v", "w", "x")
    assert_typed(graph)
