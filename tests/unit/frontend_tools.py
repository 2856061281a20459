"""Small ONNX models, and the comparison of what was imported with onnxruntime on the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from toolkit.frontend import load_onnx
from toolkit.frontend.export import to_onnx
from toolkit.ir.graph import Graph
from toolkit.ir.types import DTYPES

Dims = Sequence[int | str | None]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray | Dims],
    outputs: Sequence[str],
    consts: Mapping[str, np.ndarray] = {},
    *,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] = {},
    ir_version: int = 9,
) -> onnx.ModelProto:
    """Return a model; an input is given by a sample value, or by dimensions (then float32)."""
    graph = helper.make_graph(
        nodes,
        "test",
        [_info(name, what) for name, what in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in consts.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, v) for d, v in domains.items()]
    return helper.make_model(
        graph, opset_imports=imports, functions=functions, ir_version=ir_version
    )


def _info(name: str, what: np.ndarray | Dims) -> onnx.ValueInfoProto:
    if isinstance(what, np.ndarray):
        kind = helper.np_dtype_to_tensor_dtype(what.dtype)
        return helper.make_tensor_value_info(name, kind, what.shape)
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(what))


def run_ort(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run a model with onnxruntime as it is written, without graph optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = {i.name for i in session.get_inputs()}
    return list(session.run(None, {n: v for n, v in feeds.items() if n in wanted}))


def assert_typed(graph: Graph) -> None:
    """Check what the rest of the compiler takes for granted of an imported graph."""
    known = {*graph.inputs, *graph.consts}
    for node in graph.nodes:
        for name in node.inputs:
            assert not name or name in known, f"{node.name} reads {name} before it is made"
        for name in node.outputs:
            assert name not in known, f"{name} is made twice"
            known.add(name)
        for value in node.attrs.values():
            if isinstance(value, Graph):
                assert_typed(value)
    assert set(graph.outputs) <= known
    for name in known - {""}:
        assert graph.types[name].dtype in DTYPES, name
    for name, value in graph.consts.items():
        assert graph.types[name].shape == value.shape
        assert graph.types[name].dtype == str(value.dtype)
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == len(names)


def assert_same(
    proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *, rtol: float = 1e-5, **load: Any
) -> Graph:
    """Check that the imported graph computes what onnxruntime computes of the original model.

    The tolerance is for another order of the same float32 operations.
    """
    graph = load_onnx(proto, **load)
    assert_typed(graph)
    expected = run_ort(proto, feeds)
    found = run_ort(to_onnx(graph), feeds)
    for name, got, want in zip(graph.outputs, found, expected, strict=True):
        kind = graph.types[name]
        assert got.shape == want.shape == kind.shape, (name, got.shape, want.shape, kind)
        assert str(got.dtype) == str(want.dtype) == kind.dtype, (name, kind)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-6, err_msg=name)
    return graph


def ops(graph: Graph) -> list[str]:
    """Return the operators of a graph, in order."""
    return [node.op for node in graph.nodes]
