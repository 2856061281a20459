"""Shapes of inputs: from the file, from flags, batch by default; inputs that are pinned."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.unit.frontend_tools import model
from toolkit.errors import ModelError, UnsupportedError
from toolkit.frontend import load_onnx

node = helper.make_node


def relu(dims: Any, **more: Any) -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"])], {"x": dims}, ["y"], **more)


# -- dimensions -------------------------------------------------------------------------------


def test_an_open_batch_is_one_and_is_said() -> None:
    for dims, said in ((("N", 3), "'N'"), ((None, 3), "input 'x'"), (("unk__7", 3), "'unk__7'")):
        notes: list[str] = []
        graph = load_onnx(relu(dims), notes=notes)
        assert graph.types["x"].shape == graph.types["y"].shape == (1, 3)
        assert len(notes) == 1
        assert said in notes[0]
        assert "set to 1" in notes[0]


def test_a_batch_that_is_given_is_not_mentioned() -> None:
    for given in ({"dims": {"N": 4}}, {"input_shapes": {"x": (4, 3)}}):
        notes: list[str] = []
        assert load_onnx(relu(("N", 3)), notes=notes, **given).types["y"].shape == (4, 3)
        assert not notes


def test_a_named_dimension_is_fixed_everywhere() -> None:
    nodes = [node("Concat", ["a", "b"], ["y"], axis=0)]
    proto = model(nodes, {"a": ["N", "L"], "b": [2, "L"]}, ["y"])
    assert load_onnx(proto, dims={"L": 5}).types["y"].shape == (3, 5)
    assert load_onnx(proto, input_shapes={"a": (7, 5)}).types["y"].shape == (9, 5)
    for flags in (
        {"dims": {"L": 5}, "input_shapes": {"a": (7, 6)}},
        {"input_shapes": {"a": (7, 5), "b": (2, 6)}},
    ):
        with pytest.raises(ModelError, match=r"dimension 'L' would be 5 .* and 6"):
            load_onnx(proto, **flags)


def test_all_open_dimensions_are_reported_at_once() -> None:
    nodes = [node("Add", ["a", "b"], ["t"]), node("Add", ["t", "c"], ["y"])]
    proto = model(nodes, {"a": ["N", "L", 4], "b": [1, None, None], "c": ["T"]}, ["y"])
    with pytest.raises(ModelError) as caught:
        load_onnx(proto)
    text = str(caught.value)
    assert "4 dimensions of its inputs are still open" in text
    for part in (
        "input 'a': axis 1 ('L')",
        "input 'b': axis 1\n",
        "input 'b': axis 2\n",
        "input 'c': axis 0 ('T')",
        "--dim L=N",
        "--input-shape b=1xNxN",
        "--dim T=N",
    ):
        assert part in text, part


@pytest.mark.parametrize("name", ["seq_len", "time", "sequence", "num_frames", "samples"])
def test_a_leading_axis_that_is_no_batch_stays_open(name: str) -> None:
    with pytest.raises(ModelError, match=f"--dim {name}=N"):
        load_onnx(relu((name, 3)))


def test_the_only_axis_of_an_input_is_no_batch() -> None:
    with pytest.raises(ModelError, match=r"axis 0 \('N'\)"):
        load_onnx(relu(("N",)))


@pytest.mark.parametrize("dim", ["-1", "?", "", None, 0, -1])
def test_dimensions_without_a_name(dim: Any) -> None:
    proto = relu((1, 3))
    value = proto.graph.input[0].type.tensor_type.shape.dim[1]
    value.Clear()
    if isinstance(dim, str):
        value.dim_param = dim
    elif dim is not None:
        value.dim_value = dim
    with pytest.raises(ModelError, match="--input-shape x=1xN"):
        load_onnx(proto)
    assert load_onnx(proto, input_shapes={"x": (1, 5)}).types["y"].shape == (1, 5)


def test_an_input_without_a_shape_needs_one() -> None:
    proto = relu((1, 3))
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match=r"the whole shape\n.*--input-shape x=1x3x224x224"):
        load_onnx(proto)
    assert load_onnx(proto, input_shapes={"x": (2, 2)}).types["y"].shape == (2, 2)


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ({"dims": {"M": 2}}, r"--dim M=2: no input has.*\n  named: N\n  inputs:\n    x: float32"),
        ({"dims": {"N": 0}}, "the size must be positive"),
        ({"input_shapes": {"z": (1, 3)}}, r"--input-shape z: the model has no such input\n"),
        ({"input_shapes": {"x": (1, 3, 1)}}, "1x3x1 has rank 3, input 'x' has rank 2"),
        ({"input_shapes": {"x": (1, 4)}}, "axis 1 of input 'x' is fixed to 3 by the model, not 4"),
        ({"pins": {"q": np.array(1)}}, "--set q: the model has no such input"),
        ({"pins": {"x": np.zeros((1, 4))}}, "axis 1 of input 'x' is fixed to 3"),
        ({"pins": {"x": np.array("a")}}, "cannot be float32"),
    ],
)
def test_wrong_flags_are_explained(flags: dict[str, Any], match: str) -> None:
    with pytest.raises(ModelError, match=match):
        load_onnx(relu(("N", 3)), **flags)


# -- pins -------------------------------------------------------------------------------------


def test_a_pinned_input_is_a_constant() -> None:
    nodes = [node("Mul", ["x", "gain"], ["y"])]
    proto = model(nodes, {"x": [2], "gain": np.zeros((), np.float32)}, ["y"])
    graph = load_onnx(proto, pins={"gain": np.array(3)})
    assert graph.inputs == ("x",)
    assert graph.consts["gain"] == np.float32(3)
    assert graph.consts["gain"].dtype == np.float32


def test_a_scalar_fits_an_input_of_one_element() -> None:
    nodes = [node("Reshape", ["x", "s"], ["y"])]
    proto = model(nodes, {"x": [6], "s": np.array([0])}, ["y"])
    assert load_onnx(proto, pins={"s": np.array(6)}).types["y"].shape == (6,)
    with pytest.raises(ModelError, match="does not fit type int64"):
        load_onnx(proto, pins={"s": np.array(2.5)})


def test_what_needs_a_pin_says_so() -> None:
    nodes = [node("Reshape", ["x", "s"], ["y"], name="shaper")]
    proto = model(nodes, {"x": [6], "s": np.array([2, 3])}, ["y"])
    with pytest.raises(UnsupportedError, match=r"(?s)'shaper'.*the value of 's'.*--set NAME=VALUE"):
        load_onnx(proto)
    assert load_onnx(proto, pins={"s": np.array([2, 3])}).types["y"].shape == (2, 3)
