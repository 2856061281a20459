"""Many single nodes in one model, so that a sweep over attributes costs one C compilation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from toolkit.backend import BuiltModel, OPTIONS, prepare
from toolkit.frontend import load_onnx
from toolkit.ir.graph import Graph
from toolkit.ir.types import type_of
from toolkit.ops import OPS
from toolkit.pipeline import compile_model, Model

OPSET = 22


@dataclass(frozen=True)
class Case:
    """One node: an operator, its attributes, its operands (None: absent), how many outputs."""

    op: str
    attrs: dict[str, Any]
    operands: Sequence[np.ndarray | None]
    outputs: int = 1
    constant: frozenset[int] = field(default=frozenset())
    """Operands that are initialisers."""

    def __str__(self) -> str:
        shapes = [None if a is None else f"{a.dtype}{list(a.shape)}" for a in self.operands]
        return f"{self.op} {shapes} {self.attrs}"


def model_of(
    cases: Sequence[Case], opset: int | None = None
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model with the nodes side by side, and its inputs."""
    nodes, inputs, consts, outputs = [], {}, {}, []
    for number, case in enumerate(cases):
        names = []
        for position, array in enumerate(case.operands):
            names.append("" if array is None else f"x{number}_{position}")
            if array is not None:
                (consts if position in case.constant else inputs)[names[-1]] = array
        results = [f"y{number}_{i}" for i in range(case.outputs)]
        outputs += results
        nodes.append(onnx.helper.make_node(case.op, names, results, f"n{number}", **case.attrs))
    graph = onnx.helper.make_graph(
        nodes,
        "sweep",
        [
            onnx.helper.make_tensor_value_info(
                n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
            )
            for n, a in inputs.items()
        ],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [onnx.numpy_helper.from_array(a, n) for n, a in consts.items()],
    )
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset or OPSET)]
    ), inputs


def expected(cases: Sequence[Case], *, reference: bool = False) -> list[np.ndarray]:
    """Return all outputs as onnxruntime computes them, or `onnx.reference`."""
    model, inputs = model_of(cases)
    if reference:
        return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, inputs)]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    onnx_model = onnx.shape_inference.infer_shapes(model)
    for output, typed in zip(model.graph.output, onnx_model.graph.output, strict=True):
        output.CopyFrom(typed)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return [np.asarray(y) for y in session.run(None, inputs)]


def found(cases: Sequence[Case], opset: int | None = None) -> list[np.ndarray]:
    """Return all outputs as the generated C computes them."""
    model, inputs = model_of(cases, opset)
    prepared = prepare(model)
    try:
        return list(prepared.run(inputs))
    finally:
        prepared.close()


def compare(
    cases: Sequence[Case], got: Sequence[np.ndarray], want: Sequence[np.ndarray], rtol: float = 1e-4
) -> list[str]:
    """Return what differs: shape, type, or more than `rtol` of the largest value."""
    labels = [f"{case} output {i}" for case in cases for i in range(case.outputs)]
    problems = []
    for label, a, b in zip(labels, got, want, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            problems.append(f"{label}: {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}")
            continue
        finite = b[np.isfinite(b)]
        scale = float(np.abs(finite.astype(np.float64)).max()) if finite.size else 1.0
        exact = b.dtype.kind in "iub"
        if not np.allclose(
            a, b, rtol=0, atol=0 if exact else rtol * max(scale, 1e-3), equal_nan=True
        ):
            problems.append(f"{label}: differs by {np.nanmax(np.abs(a.astype(float) - b)):.3g}")
    return problems


def check(cases: Sequence[Case], *, reference: bool = False, rtol: float = 1e-5) -> None:
    """Assert that the generated C agrees with the reference on every case."""
    problems = compare(cases, found(cases), expected(cases, reference=reference), rtol)
    assert not problems, "\n".join(problems)


def found_nhwc(cases: Sequence[Case]) -> list[np.ndarray]:
    """Return the outputs, in NCHW, of the same nodes with `nestling_layout="NHWC"`."""
    model, inputs = model_of(cases)
    graph = load_onnx(model)
    arrays = {**inputs, **graph.consts}
    nodes = []
    for node in graph.nodes:
        nodes.append(node.with_(attrs={**node.attrs, "nestling_layout": "NHWC"}))
        x, *rest = node.inputs
        arrays[x] = np.moveaxis(arrays[x], 1, -1)
        if rest:
            places = (-2, -1) if node.op == "ConvTranspose" else (-1, -2)
            arrays[rest[0]] = np.moveaxis(arrays[rest[0]], (0, 1), places)
    arrays = {n: np.ascontiguousarray(a) for n, a in arrays.items()}
    moved = Graph(
        "nhwc",
        tuple(nodes),
        tuple(inputs),
        graph.outputs,
        {n: type_of(a) for n, a in arrays.items()},
        {n: arrays[n] for n in graph.consts},
        graph.opset,
    )
    compiled = compile_model(Model(moved, "nhwc", "0" * 64, (), OPS), OPTIONS)
    with BuiltModel(compiled) as built:
        results = built.run({n: arrays[n] for n in inputs})
    return [np.moveaxis(results[name], -1, 1) for name in graph.outputs]
