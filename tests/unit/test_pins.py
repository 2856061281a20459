"""Which inputs decide about branches and loops."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper, TensorProto

from tests import small_models
from toolkit.pins import control_inputs


def test_a_scalar_that_chooses_a_branch(tmp_path: Path) -> None:
    model = onnx.load(small_models.switched(tmp_path / "m.onnx"))
    assert control_inputs(model.graph) == {"mode"}


def test_an_input_whose_shape_alone_decides_does_not() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N] x, int64 trips, bool go) => (float[N] y) {
      s = Shape(x)
      y = Loop(trips, go, x) <body = b (int64 i, bool c, float[N] v) => (bool d, float[N] w)
        { d = Identity(c) w = Add(v, v) }>
    }"""
    model = onnx.parser.parse_model(text)
    assert control_inputs(model.graph) == {"trips", "go"}


def test_a_condition_inside_a_body_that_comes_from_outside() -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [2])
        return helper.make_graph([helper.make_node(op, ["x"], [f"{name}_y"])], name, [], [out])

    inner = helper.make_graph(
        [helper.make_node("If", ["flag"], ["z"], then_branch=branch("a", "Relu"),
                          else_branch=branch("b", "Abs"))],
        "inner", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("If", ["always"], ["y"], then_branch=inner,
                          else_branch=branch("c", "Neg"))],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
         helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
         helper.make_tensor_value_info("other", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [helper.make_tensor("always", TensorProto.BOOL, [], [True])],
    )  # fmt: skip
    assert control_inputs(graph) == {"flag"}
