"""`toolkit.backend` has the form of `onnxruntime.backend`, and ONNX's own runner can drive it."""

from __future__ import annotations

import unittest

import numpy as np
import onnx
import onnx.backend.test.loader
import pytest
from onnx import helper, TensorProto
from onnx.backend.test import BackendTest

import toolkit.backend
from tests.onnx_cases import node_tests
from toolkit.errors import NestlingError, UnsupportedError

INCLUDED = (
    r"test_(abs|clip_example|reflect_pad|slice_neg|reshape_zero_dim|top_k)_cpu",
    r"test_(Linear|MaxPool1d|operator_pow|sign_model)_cpu",
)


def test_the_runner_of_onnx_drives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Made anew, the node tests take ten seconds; these are the same, from a file.
    tests = node_tests()
    monkeypatch.setattr(onnx.backend.test.loader, "load_node_model_tests", lambda: tests)
    backend_test = BackendTest(toolkit.backend, __name__)
    for pattern in INCLUDED:
        backend_test.include(pattern)
    result = unittest.TestResult()
    backend_test.test_suite.run(result)
    assert not result.errors, result.errors[0][1]
    assert not result.failures, result.failures[0][1]
    assert result.testsRun - len(result.skipped) == 10
    assert {reason for _, reason in result.skipped} == {"no matched include pattern"}


def double(opset: int = 17) -> onnx.ModelProto:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ("N", 3)) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", *zip(info))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("inputs", [[X], (X,), {"x": X}, X], ids=["list", "tuple", "dict", "array"])
def test_inputs_come_in_order_or_by_name(inputs: object) -> None:
    prepared = toolkit.backend.prepare(double())
    (y,) = prepared.run(inputs)
    assert np.array_equal(y, 2 * X)
    prepared.close()


def test_a_prepared_model_runs_on_several_shapes() -> None:
    prepared = toolkit.backend.prepare(double().SerializeToString())
    for rows in (2, 5, 2):
        x = np.ones((rows, 3), np.float32)
        assert np.array_equal(prepared.run([x])[0], 2 * x)
    prepared.close()


def test_an_input_that_carries_a_shape_is_pinned_and_may_change() -> None:
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "reshape",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3)),
            helper.make_tensor_value_info("shape", TensorProto.INT64, (2,)),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (None, None))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    prepared = toolkit.backend.prepare(model)
    for shape in ((3, 2), (6, 1), (1, -1)):
        (y,) = prepared.run([X, np.array(shape)])
        assert np.array_equal(y, X.reshape(shape))
    prepared.close()


def test_run_model_takes_a_path(tmp_model_dir) -> None:
    path = tmp_model_dir / "m.onnx"
    onnx.save(double(), path)
    assert np.array_equal(toolkit.backend.run_model(path, [X])[0], 2 * X)


def test_run_node_runs_a_node() -> None:
    node = helper.make_node("Clip", ["x", "", "max"], ["y"])
    (y,) = toolkit.backend.run_node(node, [X, np.float32(2)])
    assert np.array_equal(y, np.minimum(X, 2))


def test_devices() -> None:
    assert toolkit.backend.supports_device("CPU")
    assert toolkit.backend.supports_device("cpu:0")
    assert not toolkit.backend.supports_device("CUDA")
    with pytest.raises(UnsupportedError, match="'CUDA' is not supported"):
        toolkit.backend.prepare(double(), "CUDA")


def test_compatible_means_that_inputs_and_outputs_have_types_of_c() -> None:
    model = double()
    assert toolkit.backend.is_compatible(model)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert not toolkit.backend.is_compatible(model)


def test_too_many_inputs_are_an_error() -> None:
    with pytest.raises(NestlingError, match="2 inputs given; the model has 1"):
        toolkit.backend.run_model(double(), [X, X])
