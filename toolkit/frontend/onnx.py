"""ONNX models to `Graph`: the one entry point, and the report of what cannot be compiled."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

import numpy as np
import onnx

from toolkit.errors import ModelError, NestlingError, UnsupportedError
from toolkit.frontend import inputs as model_inputs
from toolkit.frontend.builder import Builder, Infer, Session
from toolkit.frontend.inputs import Input
from toolkit.frontend.read import base_folder, check_text, read_model
from toolkit.frontend.shapes import OPSET, static_type, TO_ONNX, Underivable
from toolkit.frontend.walk import OLDEST_OPSET, Scope, Walk, walk_nodes
from toolkit.ir.graph import Graph
from toolkit.ir.types import DTYPES, TensorType


def load_onnx(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    pins: Mapping[str, np.ndarray] | None = None,
    notes: list[str] | None = None,
    infer: Infer | None = None,
    implemented: Collection[str] | None = None,
    check: Infer | None = None,
) -> Graph:
    """Import a model: static shapes, canonical operators, everything known at import folded.

    `dims` fixes named dimensions, `input_shapes` whole inputs; `pins` makes inputs constants.
    `notes` receives sentences for the user.  `infer` is asked for the types of operators ONNX has
    no rule for.  With `implemented` (op ids), any other operator that ONNX defines by a function
    is replaced by the function's body.  `check` (`ops.infer_node`) is asked for every operator of
    the result, and what it refuses is in the same report as everything else.

    Raises `ModelError` for a file that is not a valid model or leaves dimensions open, and one
    `UnsupportedError` that lists everything that cannot be compiled.
    """
    label = "model" if isinstance(source, bytes | onnx.ModelProto) else str(source)
    model = read_model(source)
    session = Session(
        label=label,
        folder=base_folder(source),
        infer=infer,
        implemented=None if implemented is None else frozenset(implemented),
        check=check,
        notes=notes if notes is not None else [],
    )
    try:
        check_text(model, label)
        graph = _import(session, model, dims or {}, input_shapes or {}, pins or {})
        _report(session, graph)
    except (AssertionError, NestlingError):
        raise
    except Exception as error:  # what a broken file makes onnx, NumPy and protobuf raise
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelError(f"{label}: is not a valid model: {text}") from error
    return graph


def _opsets(session: Session, model: onnx.ModelProto) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                f"{session.label}: imports opset {opsets[domain]} and {entry.version} of domain "
                f"'{domain or 'ai.onnx'}'"
            )
    if not 1 <= opsets.get("", 1) <= OPSET:
        raise ModelError(
            f"{session.label}: has opset {opsets['']}; {OLDEST_OPSET} to {OPSET} can be read",
            hint="a newer release of the Python package 'onnx' may know it",
        )
    return opsets


def _import(
    session: Session,
    model: onnx.ModelProto,
    dims: Mapping[str, int],
    input_shapes: Mapping[str, tuple[int, ...]],
    pins: Mapping[str, np.ndarray],
) -> Graph:
    opsets, proto, label = _opsets(session, model), model.graph, session.label
    session.opset = opsets.get("", 0)
    session.functions = {
        ("" if f.domain == "ai.onnx" else f.domain, f.name, f.overload): f for f in model.functions
    }
    builder = Builder(session)
    scope = Scope(builder, verbatim=True)
    scope.define_initialisers(proto)
    given = _inputs(session, scope, proto, model.ir_version, pins)
    names = [o.name for o in proto.output]
    _check_names(label, [i.name for i in proto.input], names)
    types, pinned, bound = model_inputs.resolve(
        label, given, dims, input_shapes, pins, session.notes
    )
    session.used.update(i.name for i in proto.input)
    session.used.update(scope.initialisers)
    session.used.update(o for node in proto.node for o in node.output)
    session.declared = _declared(proto, bound)
    for item in given:
        if item.name in pinned:
            scope.names[item.name] = builder.add_const(item.name, pinned[item.name])
            scope.initialisers.pop(item.name, None)
        elif item.kind == "tensor":
            scope.names[item.name] = item.name
            builder.types[item.name] = types[item.name]
        else:
            session.problem(item.name, "input", f"the input is of type {item.kind}")
            scope.names[item.name] = None
    for name in names:
        if not any(name in node.output for node in proto.node) and not scope.has(name):
            raise ModelError(f"{label}: output '{name}' is not computed by any node")
    walk = Walk(scope, opsets)
    walk_nodes(walk, proto.node, names)
    refs = [scope.read(name) for name in names]
    if session.problems:
        reads = [ref for owner, ref in session.reads if owner is builder]
        wanted = [*reads, *(ref for ref in refs if ref is not None)]
        _check_nodes(session, builder.graph(proto.name, (), wanted))
        raise _unsupported(session)
    outputs = builder.finish([ref for ref in refs if ref is not None], names)
    inputs = tuple(i.name for i in given if i.name not in pinned and i.kind == "tensor")
    return builder.graph(proto.name, inputs, outputs)


def _inputs(
    session: Session,
    scope: Scope,
    proto: onnx.GraphProto,
    ir_version: int,
    pins: Mapping[str, np.ndarray],
) -> list[Input]:
    """Return the graph's inputs without those that initialisers define (unless pinned)."""
    result, defaults = [], []
    for info in proto.input:
        if info.name not in scope.initialisers or info.name in pins:
            result.append(model_inputs.declared(info))
        else:
            defaults.append(info.name)
    if defaults and ir_version >= 4:
        session.notes.append(
            f"{len(defaults)} inputs with a default value are constants here: "
            f"{', '.join(defaults[:4])}{', ...' * (len(defaults) > 4)} "
            f"(--set NAME=VALUE sets another)"
        )
    return result


def _check_names(label: str, inputs: list[str], outputs: list[str]) -> None:
    if not outputs:
        raise ModelError(f"{label}: the graph has no outputs")
    for what, names in (("input", inputs), ("output", outputs)):
        for name in names:
            if not name:
                raise ModelError(f"{label}: a graph {what} has no name")
            if names.count(name) > 1:
                raise ModelError(f"{label}: the graph {what} '{name}' is listed twice")


def _declared(proto: onnx.GraphProto, bound: Mapping[str, int]) -> dict[str, TensorType]:
    """Return the types the file states for intermediate tensors and outputs, where static."""
    result: dict[str, TensorType] = {}
    for info in (*proto.value_info, *proto.output):
        kind = onnx.TypeProto()
        kind.CopyFrom(info.type)
        for dim in kind.tensor_type.shape.dim:
            if dim.dim_param in bound:
                dim.dim_value = bound[dim.dim_param]
        try:
            result[info.name] = static_type(kind)
        except (Underivable, ModelError):
            continue
    return result


def _report(session: Session, graph: Graph) -> None:
    """Note what a user should know; refuse element types that cannot be compiled."""
    _check_nodes(session, graph)
    if session.problems:
        raise _unsupported(session)
    for (op, key), nodes in session.ignored.items():
        more = f" and {len(nodes) - 1} more nodes" if len(nodes) > 1 else ""
        session.notes.append(
            f"node '{nodes[0]}' ({op}){more}: attribute '{key}' is unknown in opset "
            f"{session.opset} and was ignored"
        )
    for item in (graph, *graph.subgraphs()):
        for name, value in item.consts.items():
            # min and max carry a NaN through, without a temporary array.
            if value.dtype.kind == "f" and value.size and np.isnan(value.max()):
                shown = session.initialisers.get(name, name)
                note = f"initialiser '{shown}' holds NaN"
                if note not in session.notes:
                    session.notes.append(note)


def _check_nodes(session: Session, graph: Graph) -> None:
    """Record operators and element types that cannot be compiled."""
    for node in graph.nodes:
        bodies = [v for v in node.attrs.values() if isinstance(v, Graph)]
        names = [n for n in (*node.inputs, *node.outputs) if n]
        odd = [n for n in names if graph.types[n].dtype not in DTYPES]
        if odd:
            kinds = ", ".join(dict.fromkeys(f"{graph.types[n].dtype} '{n}'" for n in odd))
            session.problem(node.name, node.op_id, f"element type not supported: {kinds}")
        elif session.check is not None and not bodies:
            try:
                session.check(node, graph.types, graph.consts, graph.opset)
            except UnsupportedError as error:
                session.problem("", node.op_id, error.what)
        for body in bodies:
            _check_nodes(session, body)
        if bodies and session.implemented is not None and node.op_id not in session.implemented:
            if node.op != "If":
                session.problem(
                    node.name,
                    node.op_id,
                    "the number of iterations is known only at run time, or is too large to unroll",
                )
    for name in (*graph.inputs, *graph.outputs):
        if graph.types[name].dtype not in DTYPES and not graph.nodes:
            dtype = graph.types[name].dtype
            session.problem(name, "tensor", f"element type not supported: {dtype}")


def _unsupported(session: Session) -> UnsupportedError:
    count = len(session.problems)
    what = "1 node" if count == 1 else f"{count} nodes"
    return UnsupportedError(
        f"{session.label}: {what} cannot be compiled",
        state=[str(problem) for problem in session.problems],
        hint=_hint(session),
    )


def _hint(session: Session) -> str | None:
    if any("only at run time" in p.reason for p in session.problems):
        return "--set NAME=VALUE makes an input a constant, and what depends on it static"
    return None


assert set(DTYPES) <= set(TO_ONNX)
