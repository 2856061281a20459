"""Functions inlined: those a model defines, and those that define an ONNX operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto

from toolkit.errors import ModelError
from toolkit.frontend import shapes
from toolkit.frontend.attributes import make
from toolkit.frontend.builder import Builder, Session
from toolkit.frontend.walk import output_name, Ref, Scope, Walk, walk_nodes
from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType


def call(
    walk: Walk,
    name: str,
    function: onnx.FunctionProto,
    inputs: Sequence[str],
    attributes: Mapping[str, AttributeProto],
    outputs: Sequence[str],
) -> None:
    """Inline one call; `outputs` are the caller's names, bound in its scope."""
    label = walk.session.label
    key = (function.domain, function.name, function.overload)
    shown = f"{label}: node '{name}': function '{function.domain}:{function.name}'"
    if key in walk.calls:
        raise ModelError(f"{shown} calls itself")
    if len(inputs) > len(function.input) or len(outputs) > len(function.output):
        raise ModelError(
            f"{shown} has {len(function.input)} inputs and {len(function.output)} outputs, the "
            f"node {len(inputs)} and {len(outputs)}"
        )
    given = {a.name: a for a in function.attribute_proto}
    given |= {k: _renamed(a, k) for k, a in attributes.items()}
    wanted = [n for n in outputs if n]
    targets = {
        formal: output_name(walk, actual)
        for formal, actual in zip(function.output, outputs, strict=False)
        if actual
    }
    refs = run(
        walk,
        name,
        function,
        inputs,
        given,
        targets,
        calls=(*walk.calls, key),
    )
    for actual, ref in zip(wanted, refs, strict=True):
        walk.scope.names[actual] = ref


def _renamed(attribute: AttributeProto, name: str) -> AttributeProto:
    copy = AttributeProto()
    copy.CopyFrom(attribute)
    copy.name = name
    return copy


def run(
    walk: Walk,
    name: str,
    function: onnx.FunctionProto,
    inputs: Sequence[str],
    given: Mapping[str, AttributeProto],
    targets: Mapping[str, str],
    calls: tuple[tuple[str, str, str], ...],
) -> list[Ref]:
    """Walk a function's body; return the tensors of the outputs named in `targets`."""
    scope = Scope(walk.builder, prefix=f"{name}/", always_prefix=True)
    for position, formal in enumerate(function.input):
        scope.names[formal] = inputs[position] if position < len(inputs) else ""
    opsets = dict(walk.opsets)
    for entry in function.opset_import:
        opsets["" if entry.domain == "ai.onnx" else entry.domain] = entry.version
    inner = walk.nested(
        scope, opsets=opsets, bindings=dict(given), targets=dict(targets), calls=calls
    )
    walk_nodes(inner, function.node, targets)
    with walk.session.at(name, function.name):
        return [scope.read(formal) for formal in targets]


def body_of(node: Node, kinds: Sequence[TensorType | None]) -> onnx.FunctionProto | None:
    """Return the function by which ONNX defines an operator, for these input types, or None."""
    # The stubs of onnx lack what follows.
    schema: Any = shapes.schema_of(node.op, node.domain, shapes.newest_opset(node.domain))
    if schema is None or node.attrs.get("coerce_2d"):
        return None
    raw = b""
    if schema.has_context_dependent_function:
        types = [shapes.type_proto(kind).SerializeToString() if kind else b"" for kind in kinds]
        version = max(schema.context_dependent_function_opset_versions)
        proto = shapes.node_proto(node).SerializeToString()
        raw = schema.get_context_dependent_function_with_opset_version(version, proto, types)
    if not raw and schema.has_function:
        version = max(schema.function_opset_versions)
        raw = schema.get_function_with_opset_version(version)
    if not raw:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(raw)
    return function


def expand(walk: Walk, node: Node) -> bool:
    """Write a node as the function that defines it; False when ONNX has none."""
    key = (node.domain, node.op, "")
    kinds = [walk.builder.types[n] if n else None for n in node.inputs]
    if key in walk.calls:
        return False
    with walk.session.at(node.name, node.op_id):
        function = body_of(node, kinds)
    if function is None:
        return False
    schema = shapes.schema_of(node.op, node.domain, shapes.newest_opset(node.domain))
    assert schema is not None
    given = {k: a.default_value for k, a in schema.attributes.items() if a.default_value.type} | {
        k: make(k, v) for k, v in node.attrs.items()
    }
    targets = {
        formal: actual
        for formal, actual in zip(function.output, node.outputs, strict=False)
        if actual
    }
    refs = run(walk, node.name, function, node.inputs, given, targets, (*walk.calls, key))
    if any(ref is None for ref in refs):
        return False
    builder = walk.builder
    for ref, actual in zip(refs, targets.values(), strict=True):
        assert ref is not None
        if ref != actual:
            builder.add(Node(f"{node.name}/{actual}", "Identity", (ref,), (actual,)))
    return True


def expand_function_graph(
    node: Node,
    input_types: Sequence[TensorType | None],
    opset: int,
    values: Mapping[str, np.ndarray] | None = None,
) -> Graph | None:
    """Return the function body by which ONNX defines a canonical node, or None if it has none.

    The graph reads and writes the node's own tensor names, is in canonical form, typed and
    folded; `values` are the node's inputs that are constants.
    """
    session = Session(label="function", opset=opset, prefix=f"{node.name}/")
    builder = Builder(session)
    session.used.update(n for n in (*node.inputs, *node.outputs) if n)
    for name, kind in zip(node.inputs, input_types, strict=True):
        if name and kind is not None:
            builder.types[name] = kind
        if name and values and name in values:
            builder.add_const(name, values[name])
    walk = Walk(Scope(builder, always_prefix=True), {"": shapes.OPSET})
    if not expand(walk, node):
        return None
    inputs = tuple(dict.fromkeys(n for n in node.inputs if n and n not in builder.consts))
    outputs = [n for n in node.outputs if n]
    return builder.graph(node.name, inputs, builder.finish(outputs, outputs))


def expand_function_op(
    node: Node,
    input_types: Sequence[TensorType | None],
    opset: int,
    values: Mapping[str, np.ndarray] | None = None,
) -> list[Node] | None:
    """Return the nodes by which ONNX defines a canonical node, or None if it has no function.

    Constants come as `Constant` nodes (attribute `value`), which `fold_constants` takes up; all
    new names start with the node's name.
    """
    graph = expand_function_graph(node, input_types, opset, values)
    if graph is None:
        return None
    constants = [
        Node(f"{node.name}/{name}", "Constant", (), (name,), {"value": value})
        for name, value in graph.consts.items()
        if name not in node.inputs
    ]
    return [*constants, *graph.nodes]
