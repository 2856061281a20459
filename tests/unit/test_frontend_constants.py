"""Constants of every kind: initialisers, Constant nodes, sparse, external, exotic types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import external_data_helper, helper, numpy_helper

from tests.unit.frontend_tools import model, ops
from toolkit.errors import ModelError, UnsupportedError
from toolkit.frontend import load_onnx

node = helper.make_node


@pytest.mark.parametrize("ir_version", [3, 9])
def test_initialisers_listed_as_inputs_are_constants(ir_version: int) -> None:
    nodes = [node("Add", ["x", "w"], ["y"])]
    weight = np.ones(2, np.float32)
    proto = model(nodes, {"x": [2], "w": weight}, ["y"], {"w": weight}, ir_version=ir_version)
    notes: list[str] = []
    graph = load_onnx(proto, notes=notes)
    assert graph.inputs == ("x",)
    assert set(graph.consts) == {"w"}
    assert bool(notes) == (ir_version >= 4)
    other = load_onnx(proto, pins={"w": np.array([5, 6])})
    assert other.consts["w"].tolist() == [5, 6]


def test_constants_of_every_kind() -> None:
    nodes = [
        node("Constant", [], ["a"], value_float=1.5),
        node("Constant", [], ["b"], value_floats=[1.0, 2.0]),
        node("Constant", [], ["c"], value_int=2),
        node("Constant", [], ["d"], value_ints=[3, 4]),
        node("Constant", [], ["e"], value=numpy_helper.from_array(np.array([7.0], np.float32))),
        *(node("Identity", [n], [f"{n}_out"]) for n in "abcde"),
    ]
    proto = model(nodes, {}, [f"{n}_out" for n in "abcde"])
    graph = load_onnx(proto)
    assert not graph.nodes
    got = [graph.consts[n].tolist() for n in graph.outputs]
    assert got == [1.5, [1, 2], 2, [3, 4], [7]]
    assert [graph.types[n].dtype for n in graph.outputs] == ["float32"] * 2 + ["int64"] * 2 + [
        "float32"
    ]


def sparse(linear: bool) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.array([5.0, 6.0], np.float32), "w")
    index = np.array([1, 5]) if linear else np.array([[0, 1], [1, 2]])
    return helper.make_sparse_tensor(values, numpy_helper.from_array(index, "i"), [2, 3])


@pytest.mark.parametrize("linear", [True, False])
def test_sparse_constants_become_dense(linear: bool) -> None:
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": [2, 3]}, ["y"])
    proto.graph.sparse_initializer.append(sparse(linear))
    assert load_onnx(proto).consts["w"].tolist() == [[0, 5, 0], [0, 0, 6]]
    made = node("Constant", [], ["w"])
    kind = onnx.AttributeProto.SPARSE_TENSOR
    made.attribute.append(
        onnx.AttributeProto(name="sparse_value", type=kind, sparse_tensor=sparse(linear))
    )
    proto = model([made, node("Add", ["x", "w"], ["y"])], {"x": [2, 3]}, ["y"])
    assert load_onnx(proto).consts["w"].tolist() == [[0, 5, 0], [0, 0, 6]]


def test_external_data_lies_beside_the_model(tmp_model_dir: Path, rng: np.random.Generator) -> None:
    weight = rng.standard_normal((40, 50)).astype(np.float32)
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 40]}, ["y"], {"w": weight})
    path = tmp_model_dir / "größe.onnx"
    external_data_helper.convert_model_to_external_data(proto, location="data ä.bin")
    onnx.save_model(proto, str(path))
    assert path.stat().st_size < 1000
    np.testing.assert_array_equal(load_onnx(path).consts["w"], weight)
    with pytest.raises(ModelError, match="not read from a file"):
        load_onnx(path.read_bytes())
    (tmp_model_dir / "data ä.bin").unlink()
    with pytest.raises(ModelError, match=r"'w'.*'data ä.bin'.* is not there"):
        load_onnx(path)


def test_external_data_that_is_too_short(tmp_path: Path) -> None:
    weight = np.ones((40, 50), np.float32)
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 40]}, ["y"], {"w": weight})
    external_data_helper.convert_model_to_external_data(proto, location="w.bin")
    onnx.save_model(proto, str(tmp_path / "m.onnx"))
    (tmp_path / "w.bin").write_bytes(b"1234")
    with pytest.raises(ModelError, match="'w'"):
        load_onnx(tmp_path / "m.onnx")


def test_half_precision_weights_of_a_float_model() -> None:
    weight = np.array([1, 2, 3], np.float16)
    nodes = [node("Cast", ["w"], ["f"], to=1), node("Add", ["x", "f"], ["y"])]
    graph = load_onnx(model(nodes, {"x": [3]}, ["y"], {"w": weight}))
    assert ops(graph) == ["Add"]
    assert graph.consts["f"].dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.complex64])
def test_element_types_that_cannot_be_compiled(dtype: Any) -> None:
    x = np.zeros(3, dtype)
    nodes = [node("Mul", ["x", "x"], ["t"], name="a"), node("Add", ["t", "t"], ["y"], name="b")]
    if dtype is np.complex64:
        nodes = [node("Identity", ["x"], ["t"], name="a"), node("Identity", ["t"], ["y"], name="b")]
    proto = model(nodes, {"x": x}, ["y"])
    with pytest.raises(UnsupportedError) as caught:
        load_onnx(proto)
    text = str(caught.value)
    assert "2 nodes cannot be compiled" in text
    assert f"node 'a' ({nodes[0].op_type}): element type not supported: {x.dtype} 'x'" in text
    assert "node 'b'" in text


def test_nan_weights_are_noted() -> None:
    weight = np.array([1, np.nan, 3], np.float32)
    notes: list[str] = []
    consts = {"w": weight, "fine": np.array([np.inf, -np.inf, 0], np.float32)}
    nodes = [node("Add", ["x", "w"], ["t"]), node("Add", ["t", "fine"], ["y"])]
    load_onnx(model(nodes, {"x": [3]}, ["y"], consts), notes=notes)
    assert notes == ["initialiser 'w' holds NaN"]
