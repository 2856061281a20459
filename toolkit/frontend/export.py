"""`Graph` back to ONNX: to look at a graph, and to check it with another runtime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolkit.frontend.attributes import make
from toolkit.frontend.shapes import newest_opset, node_proto, TO_ONNX
from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType

OLDEST = 21
"""The first opset in which every canonical form is valid."""

OWN = frozenset(("carried", "coerce_2d"))
"""Attributes of canonical nodes that ONNX does not know."""


def to_onnx(graph: Graph) -> onnx.ModelProto:
    """Return a model of canonical nodes that computes the same."""
    opset = max(OLDEST, graph.opset)
    imports = [helper.make_opsetid("", opset)]
    every = [n for item in (graph, *graph.subgraphs()) for n in item.nodes]
    for domain in sorted({n.domain for n in every if n.domain}):
        newest = newest_opset(domain)
        if domain == "ai.onnx.ml" and not any(n.op == "TreeEnsemble" for n in every):
            newest = 3  # the separate tree operators ended there
        imports.append(helper.make_opsetid(domain, newest))
    proto = helper.make_graph(
        _named([p for node in graph.nodes for p in _node(graph, node)]),
        graph.name or "graph",
        [_info(n, graph.types[n]) for n in graph.inputs],
        [_info(n, graph.types[n]) for n in graph.outputs],
        [numpy_helper.from_array(_shown(graph, n, v), n) for n, v in graph.consts.items()],
    )
    return helper.make_model(proto, opset_imports=imports, ir_version=10)


def _named(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Make names of nodes differ, as other runtimes want it."""
    taken: set[str] = set()
    for node in nodes:
        name, n = node.name, 1
        while node.name and node.name in taken:
            n += 1
            node.name = f"{name}_{n}"
        taken.add(node.name)
    return nodes


def _info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TO_ONNX[kind.dtype], kind.shape)


def _node(graph: Graph, node: Node) -> Iterable[onnx.NodeProto]:
    if node.attrs.get("coerce_2d"):
        return _coerced(graph, node)
    plain = {k: v for k, v in node.attrs.items() if not isinstance(v, Graph) and k not in OWN}
    bodies = {k: v for k, v in node.attrs.items() if isinstance(v, Graph)}
    if node.op_id == "HalfToFloat":
        plain = {"to": TO_ONNX["float32"]}
        node = node.with_(op="Cast")
    if not bodies:
        return [node_proto(node.with_(attrs=plain))]
    count = {"If": 1, "Loop": 2 + node.attrs.get("carried", 0)}.get(
        node.op, node.attrs.get("carried", 0) + node.attrs.get("num_scan_inputs", 0)
    )
    proto = node_proto(node.with_(attrs=plain, inputs=node.inputs[:count]))
    for key, body in bodies.items():
        attribute = onnx.AttributeProto(name=key, type=onnx.AttributeProto.GRAPH)
        attribute.g.CopyFrom(_subgraph(graph, body, node.inputs[count:]))
        proto.attribute.append(attribute)
    return [proto]


def _subgraph(outer: Graph, body: Graph, captured: Sequence[str]) -> onnx.GraphProto:
    """ONNX subgraphs read outer tensors by name; a constant goes into one body only."""
    own = body.inputs[: len(body.inputs) - len(captured)]
    nodes = [
        helper.make_node("Identity", [there], [here])
        for there, here in zip(captured, body.inputs[len(own) :], strict=True)
        if there != here
    ]
    nodes += [p for node in body.nodes for p in _node(body, node)]
    consts = {n: v for n, v in body.consts.items() if n not in outer.consts}
    outputs = []
    for name in body.outputs:  # ONNX wants them computed in the body
        fresh = name
        if name in body.inputs or (name in body.consts and name not in consts):
            fresh = f"{name}/{body.name}/out"
            nodes.append(helper.make_node("Identity", [name], [fresh]))
        outputs.append(_info(fresh, body.types[name]))
    return helper.make_graph(
        _named(nodes),
        body.name or "body",
        [_info(n, body.types[n]) for n in own],
        outputs,
        [numpy_helper.from_array(_shown(body, n, v), n) for n, v in consts.items()],
    )


def _shown(graph: Graph, name: str, value: np.ndarray) -> np.ndarray:
    """Return a constant as ONNX has it: bits that are widened are float16."""
    widened = any(n.op_id == "HalfToFloat" and name in n.inputs for n in graph.nodes)
    return value.view(np.float16) if widened and value.dtype == np.uint16 else value


def _coerced(graph: Graph, node: Node) -> list[onnx.NodeProto]:
    """Flatten to 2-D at `axis`, apply the operator, and restore the shape."""
    source, target = node.inputs[0], node.outputs[0]
    shape = np.array(graph.types[source].shape, dtype=np.int64)
    flat, done, back = f"{target}/flat", f"{target}/2d", f"{target}/shape"
    constant = helper.make_node("Constant", [], [back])
    constant.attribute.append(make("value", shape))
    return [
        helper.make_node("Flatten", [source], [flat], axis=node.attrs["axis"]),
        helper.make_node(node.op, [flat], [done], axis=1),
        constant,
        helper.make_node("Reshape", [done, back], [target]),
    ]
