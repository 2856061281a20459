"""The walk over the nodes of a model in execution order: names resolved, functions inlined.

One walk is one list of nodes (of the main graph, a branch, a body, a function) read in a scope
and written to a builder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto

from toolkit.errors import ModelError, UnsupportedError
from toolkit.frontend import reference, shapes
from toolkit.frontend.attributes import bind, Bindings, value_of
from toolkit.frontend.builder import Builder, Session
from toolkit.frontend.canonical import canonicalise
from toolkit.frontend.canonical.before_7 import BEFORE_7
from toolkit.frontend.canonical.site import Site
from toolkit.frontend.order import execution_order
from toolkit.frontend.read import sparse_to_array, to_array
from toolkit.ir.graph import Node

OLDEST_OPSET = 7
"""Operators that changed up to this opset are read only as they are from there on."""

Ref = str | None
"""A tensor of the graph under construction; '' an absent one; None one that has no type."""


@dataclass
class Scope:
    """The names one list of nodes can read, and where each lives."""

    builder: Builder
    parent: Scope | None = None
    names: dict[str, Ref] = field(default_factory=dict)
    initialisers: dict[str, onnx.TensorProto | onnx.SparseTensorProto] = field(default_factory=dict)
    verbatim: bool = False
    """Names of the main graph stay as they are; others are made unique."""
    prefix: str = ""
    always_prefix: bool = False

    def has(self, name: str) -> bool:
        """Tell whether a name can be read here."""
        return (
            name in self.names
            or name in self.initialisers
            or (self.parent is not None and self.parent.has(name))
        )

    def read(self, name: str) -> Ref:
        """Return the tensor of that name, made readable in this scope's graph."""
        return self.read_into(name, self.builder)

    def read_into(self, name: str, reader: Builder) -> Ref:
        """Return the tensor of that name, made readable in the reader's graph."""
        if not name:
            return ""
        if name in self.names:
            ref = self.names[name]
        elif name in self.initialisers:
            ref = self.names[name] = self._load(name)
        elif self.parent is not None:
            return self.parent.read_into(name, reader)
        else:
            raise ModelError(f"reads '{name}', which nothing defines")
        return reader.capture(ref, self.builder) if ref else ref

    def new_name(self, name: str) -> str:
        """Return the name under which this scope's tensor `name` enters the graph."""
        session = self.builder.session
        if self.verbatim:
            return name
        return session.unique(self.prefix + name if self.always_prefix else name, self.prefix)

    def label_of(self, proto: onnx.NodeProto) -> str:
        """Return the name under which a node enters the graph, before it is made unique."""
        return self.prefix + label_of(proto) if self.always_prefix else label_of(proto)

    def _load(self, name: str) -> str:
        session = self.builder.session
        tensor = self.initialisers[name]
        try:
            if isinstance(tensor, onnx.TensorProto):
                value = to_array(tensor, session.folder)
            else:
                value = sparse_to_array(tensor, session.folder)
        except ModelError as error:
            raise ModelError(f"{session.label}: {error.what}") from None
        ref = self.new_name(name)
        session.initialisers[ref] = name
        return self.builder.add_const(ref, value)

    def define_initialisers(self, graph: onnx.GraphProto) -> None:
        """Make a graph's initialisers readable; their values are converted when first read."""
        session = self.builder.session
        every: list[tuple[str, onnx.TensorProto | onnx.SparseTensorProto]] = []
        every += [(t.name, t) for t in graph.initializer]
        every += [(s.values.name, s) for s in graph.sparse_initializer]
        for name, tensor in every:
            if name in self.initialisers:
                raise ModelError(f"{session.label}: initialiser '{name}' is given twice")
            self.initialisers[name] = tensor


@dataclass(frozen=True)
class Walk:
    """Where the walk is: the graph it writes, the names it reads, the meaning of operators."""

    scope: Scope
    opsets: Mapping[str, int]
    bindings: Bindings = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)
    """Names that outputs of this walk must have in the graph."""
    calls: tuple[tuple[str, str, str], ...] = ()
    """Functions being inlined, outermost first."""

    @property
    def builder(self) -> Builder:
        return self.scope.builder

    @property
    def session(self) -> Session:
        return self.scope.builder.session

    def nested(self, scope: Scope, **changes: Any) -> Walk:
        """Return a walk in another scope."""
        return replace(self, scope=scope, **({"targets": {}} | changes))


def walk_nodes(walk: Walk, nodes: Sequence[onnx.NodeProto], wanted: Iterable[str]) -> None:
    """Visit the nodes that the wanted outputs need, in execution order."""
    scope, label = walk.scope, walk.session.label
    taken = {*scope.names, *scope.initialisers}
    for proto in execution_order(nodes, wanted, scope.has, taken, label):
        visit(walk, proto)


def label_of(proto: onnx.NodeProto) -> str:
    """Return the name of a node, or one made from its operator and output."""
    first = next((o for o in proto.output if o), "")
    return proto.name or f"{proto.op_type}_{first}"


def visit(walk: Walk, proto: onnx.NodeProto) -> None:
    """Add what one ONNX node means to the graph."""
    from toolkit.frontend import control, functions

    session, scope = walk.session, walk.scope
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    op, name = proto.op_type, scope.label_of(proto)
    shown = f"{domain}:{op}" if domain else op
    with session.at(name, shown):
        refs = [scope.read(n) for n in proto.input]
        attributes = bind(proto.attribute, walk.bindings)
    if any(ref is None for ref in refs):
        session.reads += [(walk.builder, ref) for ref in refs if ref]
        define(walk, proto, [None] * len(proto.output))
        return
    inputs = [ref for ref in refs if ref is not None]
    function = session.functions.get((domain, op, proto.overload))
    if function is not None:
        functions.call(walk, name, function, inputs, attributes, proto.output)
        return
    with session.at(name, shown):
        version = _check(walk, domain, op, proto, attributes)
        attrs = {k: value_of(a, k, session.folder) for k, a in attributes.items()}
    if not domain and op in control.OPERATORS:
        control.OPERATORS[op](walk, name, proto, inputs, attrs)
        return
    if version is None:
        session.problem(name, shown, f"opset {walk.opsets.get(domain)} has no such operator")
        define(walk, proto, [None] * len(proto.output))
        return
    if any(isinstance(v, onnx.GraphProto) for v in attrs.values()):
        session.problem(name, shown, "only If, Loop and Scan may hold subgraphs")
        define(walk, proto, [None] * len(proto.output))
        return
    if not domain and op == "Constant":
        with session.at(name, shown):
            value = _constant(attrs)
            ref = output_name(walk, proto.output[0])
            walk.builder.add_const(ref, value)
            session.initialisers[ref] = proto.output[0]
        scope.names[proto.output[0]] = ref
        return
    outputs = [output_name(walk, n) for n in proto.output]
    node = Node(name, op, tuple(inputs), tuple(outputs), attrs, domain)
    good = add_node(walk, node, version)
    if not good:
        session.reads += [(walk.builder, ref) for ref in inputs if ref]
    define(walk, proto, outputs if good else [None] * len(outputs))


def add_node(walk: Walk, node: Node, version: int) -> bool:
    """Add one operator application, in canonical form; False when that is not possible."""
    from toolkit.frontend import functions

    builder, session = walk.builder, walk.session
    reason = UNSUPPORTED.get(node.op) if not node.domain else None
    if reason is not None:
        session.problem(node.name, node.op_id, reason)
        return False
    site = Site(
        node,
        version,
        builder.types.__getitem__,
        builder.small_value,
        builder.new_const,
        lambda hint: session.unique(f"{node.name}/{hint}"),
        lambda text: session.notes.append(f"node '{node.name}' ({node.op_id}): {text}"),
        builder.value,
    )
    with session.at(node.name, node.op_id):
        try:
            parts = canonicalise(site)
        except UnsupportedError as error:
            session.problem(node.name, node.op_id, error.what)
            return False
    for part in parts:
        done = False
        if session.implemented is not None and part.op_id not in session.implemented:
            done = functions.expand(walk, part)
        if not done:
            with session.at(node.name, node.op_id):
                done = builder.add(part)
        if not done:
            return False
    return True


def define(walk: Walk, proto: onnx.NodeProto, refs: Sequence[Ref]) -> None:
    """Bind a node's outputs to tensors of the graph."""
    for name, ref in zip(proto.output, refs, strict=True):
        if name:
            walk.scope.names[name] = ref


def output_name(walk: Walk, name: str) -> str:
    """Return the graph's name for a node's output, before the node defines it."""
    if not name:
        return ""
    target = walk.targets.pop(name, None)
    return target if target is not None else walk.scope.new_name(name)


def _check(
    walk: Walk,
    domain: str,
    op: str,
    proto: onnx.NodeProto,
    attributes: dict[str, AttributeProto],
) -> int | None:
    """Check a node against its schema; return the opset version, None if it has no operator."""
    opset = walk.opsets.get(domain)
    if opset is None:
        raise ModelError(f"the model imports no opset of domain '{domain or 'ai.onnx'}'")
    schema = shapes.schema_of(op, domain, opset)
    if schema is not None and not domain and opset < OLDEST_OPSET:
        later = shapes.schema_of(op, domain, OLDEST_OPSET)
        changed = later is None or later.since_version != schema.since_version
        if changed and not (opset == 6 and op in BEFORE_7):
            raise ModelError(
                f"has the meaning of opset {opset}, which is too old; {OLDEST_OPSET} to "
                f"{shapes.OPSET} can be read",
                hint="onnx.version_converter converts older models",
            )
    if schema is None:
        return opset if domain else None
    if domain and schema.since_version > opset:
        return opset
    for what, given, low, high in (
        ("inputs", len(proto.input), schema.min_input, schema.max_input),
        ("outputs", len(proto.output), schema.min_output, schema.max_output),
    ):
        if not low <= given <= high:
            allowed = f"{low}" if low == high else f"{low} to {high}"
            raise ModelError(f"has {given} {what}; opset {opset} has {allowed}")
    for position, formal in enumerate(schema.inputs):
        needed = formal.option == onnx.defs.OpSchema.FormalParameterOption.Single
        if needed and (position >= len(proto.input) or not proto.input[position]):
            raise ModelError(f"input '{formal.name}' is required")
    for key in list(attributes):
        known = schema.attributes.get(key)
        if known is None:
            del attributes[key]
            walk.session.ignored.setdefault((op, key), []).append(label_of(proto))
        elif int(getattr(known.type, "value", 0)) != attributes[key].type:
            raise ModelError(f"attribute '{key}' has the wrong type")
        elif not _is_text(attributes[key]):
            raise ModelError(f"attribute '{key}' is not valid text")
    for key, known in schema.attributes.items():
        if known.required and key not in attributes:
            raise ModelError(f"attribute '{key}' is required")
    return opset


def _is_text(attribute: AttributeProto) -> bool:
    try:
        for raw in (attribute.s, *attribute.strings):
            raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _constant(attrs: Mapping[str, Any]) -> np.ndarray:
    if len(attrs) != 1:
        raise ModelError(f"has {len(attrs)} values; 1 is needed")
    key, value = next(iter(attrs.items()))
    match key:
        case "value" | "sparse_value":
            assert isinstance(value, np.ndarray)
            return value
        case "value_int" | "value_ints":
            return np.array(value, dtype=np.int64)
        case "value_float" | "value_floats":
            return np.array(value, dtype=np.float32)
        case _:
            return np.array(value, dtype=object)


_SEQUENCE = "sequences of tensors are not supported"
_OPTIONAL = "optional types are not supported"
_STRING = "strings are not supported"
_RANDOM = "gives random values, which are not supported"

UNSUPPORTED: Mapping[str, str] = {
    "ConcatFromSequence": _SEQUENCE,
    "ImageDecoder": "decoding of image files is not supported",
    "Optional": _OPTIONAL,
    "RegexFullMatch": _STRING,
    "SequenceAt": _SEQUENCE,
    "SequenceConstruct": _SEQUENCE,
    "SequenceEmpty": _SEQUENCE,
    "SequenceErase": _SEQUENCE,
    "SequenceInsert": _SEQUENCE,
    "SequenceLength": _SEQUENCE,
    "SequenceMap": _SEQUENCE,
    "SplitToSequence": _SEQUENCE,
    "StringConcat": _STRING,
    "StringNormalizer": _STRING,
    "StringSplit": _STRING,
    "TfIdfVectorizer": _STRING,
    **dict.fromkeys(reference.RANDOM, _RANDOM),
}
