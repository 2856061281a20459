"""The meaning of a graph after passes: `frontend.reference`, which also knows `nestling_layout`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from toolkit.frontend import reference
from toolkit.ir.graph import Graph, Node


def run(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Evaluate a graph node by node."""
    known = {**graph.consts, **inputs}
    for node in graph.nodes:
        values = [known[n] if n else None for n in node.inputs]
        for name, value in zip(node.outputs, evaluate(node, values), strict=False):
            if name:
                kind = graph.types[name]
                assert value.shape == kind.shape, f"{name}: {value.shape}, not {kind.shape}"
                assert str(value.dtype) == kind.dtype, f"{name}: {value.dtype}, not {kind.dtype}"
                known[name] = value
    return {name: known[name] for name in graph.outputs}


def evaluate(node: Node, values: list[np.ndarray | None]) -> list[np.ndarray]:
    """Evaluate a node; one with `nestling_layout` through transposes around its ONNX meaning."""
    if node.op_id == "nestling:Group":
        body: Graph = node.attrs["body"]
        given = {n: v for n, v in zip(body.inputs, values, strict=True) if v is not None}
        found = run(body, given)
        return [found[n] for n in body.outputs]
    if node.op == "If":
        branch: Graph = node.attrs["then_branch" if bool(values[0]) else "else_branch"]
        found = run(branch, dict(zip(branch.inputs, values[1:], strict=True)))
        return [found[n] for n in branch.outputs]
    if node.op == "GlobalMaxPool" and not node.attrs:  # onnx.reference reduces the wrong axes
        x = values[0]
        assert x is not None
        return [x.max(axis=tuple(range(2, x.ndim)), keepdims=True)]
    if node.op == "ConvTranspose" and node.attrs.get("group", 1) > 1:
        if node.attrs.get("nestling_layout") != "NHWC":
            return [_grouped(node, values)]
    if node.op in ("LayerNormalization", "RMSNormalization") and len(node.outputs) == 1:
        return [_normalised(node, values)]  # onnx.reference computes in float32
    if node.op == "GatherElements":  # onnx.reference stops at 64 rows
        data, index = values
        assert data is not None
        assert index is not None
        axis = node.attrs["axis"]
        return [np.take_along_axis(data, index % data.shape[axis], axis)]
    if node.attrs.get("nestling_layout") != "NHWC":
        return reference._run_node(node, values)
    attrs = {k: v for k, v in node.attrs.items() if k != "nestling_layout"}
    plain = node.with_(attrs=attrs)
    x = values[0]
    assert x is not None
    moved: list[np.ndarray | None] = [np.moveaxis(x, -1, 1), *values[1:]]
    if node.op == "Conv":
        w = moved[1]
        assert w is not None
        moved[1] = np.moveaxis(w, (-2, -1), (1, 0))
    elif node.op == "ConvTranspose":
        w = moved[1]
        assert w is not None
        moved[1] = np.moveaxis(w, (-2, -1), (0, 1))
    results = evaluate(plain, [None if v is None else np.ascontiguousarray(v) for v in moved])
    return [np.ascontiguousarray(np.moveaxis(r, 1, -1)) for r in results]


def _grouped(node: Node, values: list[np.ndarray | None]) -> np.ndarray:
    """A transposed convolution group by group: onnx.reference knows them in 2-D only."""
    x, w = values[:2]
    assert x is not None
    assert w is not None
    group = node.attrs["group"]
    one = node.with_(inputs=node.inputs[:2], attrs={**node.attrs, "group": 1})
    parts = zip(np.split(x, group, axis=1), np.split(w, group, axis=0), strict=True)
    y = np.concatenate([evaluate(one, [a, b])[0] for a, b in parts], axis=1)
    bias = values[2] if len(values) > 2 else None
    return y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 2))


def _normalised(node: Node, values: list[np.ndarray | None]) -> np.ndarray:
    x, scale = values[:2]
    assert x is not None
    assert scale is not None
    axes = tuple(range(node.attrs["axis"], x.ndim))
    wide = x.astype(np.float64)
    if node.op == "LayerNormalization":
        wide = wide - wide.mean(axis=axes, keepdims=True)
    square = (wide * wide).mean(axis=axes, keepdims=True)
    y = wide / np.sqrt(square + node.attrs.get("epsilon", 1e-5)) * scale
    if len(values) > 2 and values[2] is not None:
        y = y + values[2]
    return y.astype(x.dtype)
