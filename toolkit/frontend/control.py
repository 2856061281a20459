"""If, Loop and Scan: resolved at import where that is possible, else kept with `Graph` attributes.

A node that is kept reads its own operands first, then every outer tensor its subgraphs read; the
subgraphs take those as their last graph inputs, in the same order (see `ir/graph.py`).

| node | inputs | inputs of the subgraphs | outputs of the subgraphs |
|---|---|---|---|
| If | cond, captured | captured (both branches the same) | the node's |
| Loop | M, cond, carried, captured | iteration, cond, carried, captured | cond, carried, slices |
| Scan | carried, scanned, captured | carried, slices, captured | carried, slices |

M and cond are '' when absent.  Loop and Scan have an attribute `carried`: the number of carried
values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from toolkit.errors import ModelError
from toolkit.frontend import shapes
from toolkit.frontend.builder import Builder
from toolkit.frontend.walk import add_node, define, output_name, Ref, Scope, Walk, walk_nodes
from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType

MAX_UNROLLED_NODES = 512
"""A loop is unrolled when trips times nodes of the body stay below this ..."""

MAX_FORCED_NODES = 4096
"""... or below this when the compiler does not implement the loop otherwise."""

Attrs = Mapping[str, Any]


def _none(proto: onnx.NodeProto) -> list[Ref]:
    return [None] * len(proto.output)


def _body(attrs: Attrs, key: str) -> onnx.GraphProto:
    graph = attrs.get(key)
    if not isinstance(graph, onnx.GraphProto):
        raise ModelError(f"attribute '{key}' must be a graph")
    return graph


# -- If ---------------------------------------------------------------------------------------


def visit_if(
    walk: Walk, name: str, proto: onnx.NodeProto, inputs: Sequence[str], attrs: Attrs
) -> None:
    """Inline the branch that is taken, or keep both."""
    builder, session = walk.builder, walk.session
    with session.at(name, "If"):
        if builder.types[inputs[0]].size != 1:
            raise ModelError(f"its condition has shape {list(builder.types[inputs[0]].shape)}")
        branches = {key: _body(attrs, key) for key in ("then_branch", "else_branch")}
        for key, graph in branches.items():
            if len(graph.output) != len(proto.output):
                raise ModelError(
                    f"{key} has {len(graph.output)} outputs, the node {len(proto.output)}"
                )
        cond = builder.value(inputs[0])
    if cond is not None:
        taken = branches["then_branch" if bool(cond.reshape(-1)[0]) else "else_branch"]
        _inline_branch(walk, name, proto, taken)
        return
    found = []
    for key, graph in branches.items():
        try:
            found.append(_subgraph(walk, f"{name}/{key.split('_')[0]}", graph, []))
        except ModelError as error:
            raise ModelError(
                error.what,
                state=[
                    *error.state,
                    f"in {key} of '{name}' (If), whose condition is known only at run time",
                ],
                hint=error.hint or "--set NAME=VALUE makes an input a constant, and decides an If",
            ) from error
    if None in found:
        define(walk, proto, _none(proto))
        return
    graphs = [graph for graph in found if graph is not None]
    for position, output in enumerate(proto.output):
        kinds = [g.types[g.outputs[position]] for g in graphs]
        if kinds[0] != kinds[1]:
            session.problem(
                name,
                "If",
                f"output '{output}' is {kinds[0]} in one branch and {kinds[1]} in the other, and "
                f"the condition '{inputs[0]}' is known only at run time",
            )
            define(walk, proto, _none(proto))
            return
    captured = list(dict.fromkeys(n for g in graphs for n in g.inputs))
    branch = [_with_inputs(g, captured, builder.types) for g in graphs]
    outputs = [output_name(walk, n) for n in proto.output]
    node = Node(
        name,
        "If",
        (inputs[0], *captured),
        tuple(outputs),
        {"then_branch": branch[0], "else_branch": branch[1]},
    )
    builder.append(node, [graphs[0].types[n] for n in graphs[0].outputs])
    define(walk, proto, outputs)


def _inline_branch(walk: Walk, name: str, proto: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    scope = Scope(walk.builder, walk.scope, prefix=f"{name}/")
    scope.define_initialisers(graph)
    targets: dict[str, str] = {}
    for inner, outer in zip(graph.output, proto.output, strict=True):
        if outer and inner.name not in targets:
            targets[inner.name] = output_name(walk, outer)
    wanted = [inner.name for inner, outer in zip(graph.output, proto.output, strict=True) if outer]
    walk_nodes(walk.nested(scope, targets=targets), graph.node, wanted)
    with walk.session.at(name, "If"):
        for inner, outer in zip(graph.output, proto.output, strict=True):
            if outer:
                walk.scope.names[outer] = scope.read(inner.name)


def _subgraph(
    walk: Walk,
    name: str,
    proto: onnx.GraphProto,
    inputs: Sequence[tuple[str, TensorType]],
) -> Graph | None:
    """Walk a branch or body into a `Graph`: its own inputs first, then the captured tensors.

    `inputs` are the body's own inputs by name.  None when the body holds problems.
    """
    session = walk.session
    builder = Builder(session, walk.builder)
    scope = Scope(builder, walk.scope, prefix=f"{name}/")
    scope.define_initialisers(proto)
    own: list[str] = []
    for formal, kind in inputs:
        ref = session.unique(formal, scope.prefix)
        scope.names[formal] = ref
        builder.types[ref] = kind
        own.append(ref)
    wanted = [o.name for o in proto.output]
    walk_nodes(walk.nested(scope), proto.node, wanted)
    with session.at(name, proto.name or "graph"):
        refs = [scope.read(n) for n in wanted]
    good = [ref for ref in refs if ref is not None]
    if len(good) < len(refs):
        return None
    outputs = builder.finish(good, [""] * len(good))
    graph = builder.graph(name, (*own, *builder.captures), outputs)
    read = {n for node in graph.nodes for n in node.inputs} | set(outputs)
    captured = [n for n in builder.captures if n in read]
    return _with_inputs(graph, [*own, *captured], graph.types)


def _with_inputs(graph: Graph, inputs: Sequence[str], outer: Mapping[str, TensorType]) -> Graph:
    types = {n: t for n, t in graph.types.items() if n in inputs or n not in graph.inputs}
    types |= {n: outer[n] for n in inputs if n not in types}
    return graph.with_(inputs=tuple(inputs), types=types)


# -- Loop and Scan ----------------------------------------------------------------------------


def visit_loop(
    walk: Walk, name: str, proto: onnx.NodeProto, inputs: Sequence[str], attrs: Attrs
) -> None:
    """Unroll a short loop of known length, or keep it."""
    builder, session = walk.builder, walk.session
    with session.at(name, "Loop"):
        body = _body(attrs, "body")
        operands = [*inputs, "", ""] if len(inputs) < 2 else list(inputs)
        trip_ref, cond_ref, start = operands[0], operands[1], list(inputs[2:])
        if len(body.input) != 2 + len(start) or len(body.output) < 1 + len(start):
            raise ModelError(
                f"its body has {len(body.input)} inputs and {len(body.output)} outputs for "
                f"{len(start)} carried values"
            )
        if len(proto.output) > len(body.output) - 1:
            raise ModelError(f"has {len(proto.output)} outputs, its body {len(body.output) - 1}")
        if "" in start:
            raise ModelError("a carried value is absent")
        trips = _scalar(builder, trip_ref)
        cond = _scalar(builder, cond_ref)
    if (cond is not None and not cond) or (trips is not None and trips <= 0):
        trips = 0
    if trips is not None and (not cond_ref or cond is not None):
        if _short(walk, "Loop", trips, body):
            if _unroll_loop(walk, name, proto, body, trips, start):
                return
    _keep_loop(walk, name, proto, body, (trip_ref, cond_ref, start), trips)


def _short(walk: Walk, op: str, trips: int, body: onnx.GraphProto) -> bool:
    implemented = walk.session.implemented
    forced = implemented is not None and op not in implemented
    limit = MAX_FORCED_NODES if forced else MAX_UNROLLED_NODES
    return trips * max(len(body.node), 1) <= limit


def _scalar(builder: Builder, ref: str) -> int | None:
    value = builder.value(ref) if ref else None
    if value is None:
        return None
    if value.size != 1:
        raise ModelError(f"'{ref}' must be a scalar, it has shape {list(value.shape)}")
    return int(value.reshape(-1)[0])


def _unroll_loop(
    walk: Walk,
    name: str,
    proto: onnx.NodeProto,
    body: onnx.GraphProto,
    trips: int,
    start: Sequence[str],
) -> bool:
    """Write the iterations one after another; False (and nothing written) if that fails."""
    mark = _Mark(walk)
    carried: list[Ref] = list(start)
    stacks: list[list[Ref]] = [[] for _ in body.output[1 + len(start) :]]
    for step in range(trips):
        index = walk.builder.new_const(np.array(step, np.int64), "iteration")
        going = walk.builder.new_const(np.array(True), "true")
        refs = _iteration(walk, f"{name}/{step}", body, [index, going, *carried])
        with walk.session.at(name, "Loop"):
            go = _scalar(walk.builder, refs[0]) if refs[0] else None
        if go is None or None in refs:
            mark.undo()
            return False
        carried = refs[1 : 1 + len(start)]
        for stack, ref in zip(stacks, refs[1 + len(start) :], strict=True):
            stack.append(ref)
        if not go:
            break
    scanned = proto.output[len(start) :]
    if not all(stacks[: len(scanned)]):
        mark.undo()
        return False
    _define_unrolled(walk, name, proto, carried, stacks, [0] * len(stacks))
    return True


def _iteration(walk: Walk, name: str, body: onnx.GraphProto, operands: Sequence[Ref]) -> list[Ref]:
    """Write the nodes of a body once; return its outputs."""
    scope = Scope(walk.builder, walk.scope, prefix=f"{name}/", always_prefix=True)
    scope.define_initialisers(body)
    for formal, ref in zip(body.input, operands, strict=True):
        scope.names[formal.name] = ref
    wanted = [o.name for o in body.output]
    walk_nodes(walk.nested(scope), body.node, wanted)
    with walk.session.at(name, body.name or "body"):
        return [scope.read(n) for n in wanted]


def _define_unrolled(
    walk: Walk,
    name: str,
    proto: onnx.NodeProto,
    carried: Sequence[Ref],
    stacks: Sequence[Sequence[Ref]],
    axes: Sequence[int],
) -> None:
    refs: list[Ref] = list(carried)
    scanned = proto.output[len(carried) :]
    for stack, output, axis in zip(stacks, scanned, axes, strict=False):
        refs.append(_stack(walk, name, stack, output, axis) if output else "")
    define(walk, proto, refs[: len(proto.output)])


class _Mark:
    """A point of the walk to which it can return; constants made since then stay, unused."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.nodes = len(walk.builder.nodes)
        self.problems = len(walk.session.problems)
        self.notes = len(walk.session.notes)

    def undo(self) -> None:
        builder, session = self.walk.builder, self.walk.session
        for node in builder.nodes[self.nodes :]:
            session.node_names.discard(node.name)
            for name in filter(None, node.outputs):
                del builder.types[name]
                builder.deferred.pop(name, None)
                builder.stored.discard(name)
        del builder.nodes[self.nodes :]
        del session.problems[self.problems :]
        del session.notes[self.notes :]


def _stack(walk: Walk, name: str, parts: Sequence[Ref], output: str, axis: int) -> Ref:
    """Join the slices that iterations gave along a new axis."""
    builder, session = walk.builder, walk.session
    refs = [p for p in parts if p is not None]
    if len(refs) < len(parts):
        return None
    axes = builder.new_const(np.array([axis], np.int64), "axes")
    wide = []
    for step, ref in enumerate(refs):
        item = session.unique(f"{name}/{output}/{step}")
        if not add_node(walk, Node(item, "Unsqueeze", (ref, axes), (item,)), shapes.OPSET):
            return None
        wide.append(item)
    target = output_name(walk, output)
    node = Node(f"{name}/{output}", "Concat", tuple(wide), (target,), {"axis": axis})
    return target if add_node(walk, node, shapes.OPSET) else None


def _keep_loop(
    walk: Walk,
    name: str,
    proto: onnx.NodeProto,
    body: onnx.GraphProto,
    operands: tuple[str, str, Sequence[str]],
    trips: int | None,
) -> None:
    builder, session = walk.builder, walk.session
    trip_ref, cond_ref, start = operands
    kinds = [TensorType((), "int64"), TensorType((), "bool")]
    kinds += [builder.types[ref] for ref in start]
    formal = [i.name for i in body.input]
    graph = _subgraph(walk, f"{name}/body", body, list(zip(formal, kinds, strict=True)))
    if graph is None:
        define(walk, proto, _none(proto))
        return
    if not _carried_agree(walk, name, "Loop", graph, kinds[2:], 1):
        define(walk, proto, _none(proto))
        return
    items = [graph.types[n] for n in graph.outputs[1 + len(start) :]]
    wanted = any(proto.output[len(start) :])
    go_on = _source(graph, graph.outputs[0])
    always = graph.consts.get(go_on)
    endless = (always is not None and bool(always.reshape(-1)[0])) or go_on == graph.inputs[1]
    known = not cond_ref or builder.value(cond_ref) is not None
    if wanted and not (trips is not None and endless and known):
        session.problem(
            name,
            "Loop",
            "the number of iterations, and with it the shape of "
            f"'{next(filter(None, proto.output[len(start) :]))}', is known only at run time",
        )
        define(walk, proto, _none(proto))
        return
    stacked = [TensorType((trips or 0, *k.shape), k.dtype) for k in items]
    outputs = [output_name(walk, n) for n in proto.output]
    captured = graph.inputs[2 + len(start) :]
    node = Node(
        name,
        "Loop",
        (trip_ref, cond_ref, *start, *captured),
        tuple(outputs),
        {"body": graph, "carried": len(start)},
    )
    builder.append(node, [*kinds[2:], *stacked][: len(outputs)])
    define(walk, proto, outputs)


def _source(graph: Graph, name: str) -> str:
    """Return the tensor that an output passes on through Identity."""
    made = {node.outputs[0]: node.inputs[0] for node in graph.nodes if node.op == "Identity"}
    while name in made:
        name = made[name]
    return name


def _carried_agree(
    walk: Walk, name: str, op: str, graph: Graph, kinds: Sequence[TensorType], first: int
) -> bool:
    for kind, output in zip(kinds, graph.outputs[first:], strict=False):
        if graph.types[output] != kind:
            walk.session.problem(
                name,
                op,
                f"a carried value starts as {kind} and becomes {graph.types[output]}; shapes "
                f"that change from one iteration to the next are not supported",
            )
            return False
    return True


def visit_scan(
    walk: Walk, name: str, proto: onnx.NodeProto, inputs: Sequence[str], attrs: Attrs
) -> None:
    """Unroll a short scan, or keep it."""
    builder, session = walk.builder, walk.session
    if walk.opsets[""] < 9:
        session.problem(name, "Scan", "Scan of opset 8 is not supported, only 9 and later")
        define(walk, proto, _none(proto))
        return
    with session.at(name, "Scan"):
        body = _body(attrs, "body")
        scans = attrs.get("num_scan_inputs", 0)
        count = len(inputs) - scans
        if scans < 1 or count < 0 or len(body.input) != len(inputs) or "" in inputs:
            raise ModelError(
                f"has {len(inputs)} inputs, {scans} of them scanned, its body {len(body.input)}"
            )
        made = len(body.output) - count
        if made < 0 or len(proto.output) > len(body.output):
            raise ModelError(f"has {len(proto.output)} outputs, its body {len(body.output)}")
        kinds = [builder.types[ref] for ref in inputs]
        axes = _list(attrs, "scan_input_axes", scans)
        axes = [_axis(a, len(k.shape)) for a, k in zip(axes, kinds[count:], strict=True)]
        out_axes = _list(attrs, "scan_output_axes", made)
        flips = _list(attrs, "scan_input_directions", scans)
        out_flips = _list(attrs, "scan_output_directions", made)
        lengths = {k.shape[a] for k, a in zip(kinds[count:], axes, strict=True)}
        if len(lengths) != 1:
            raise ModelError(f"the scanned inputs have lengths {sorted(lengths)}")
        trips = lengths.pop()
    slices = [
        TensorType(k.shape[:a] + k.shape[a + 1 :], k.dtype)
        for k, a in zip(kinds[count:], axes, strict=True)
    ]
    if trips and _short(walk, "Scan", trips, body):
        plan = _ScanPlan(count, trips, axes, flips, out_axes, out_flips)
        if _unroll_scan(walk, name, proto, body, inputs, plan):
            return
    formal = [i.name for i in body.input]
    typed = list(zip(formal, [*kinds[:count], *slices], strict=True))
    graph = _subgraph(walk, f"{name}/body", body, typed)
    if graph is None or not _carried_agree(walk, name, "Scan", graph, kinds[:count], 0):
        define(walk, proto, _none(proto))
        return
    stacked = []
    with session.at(name, "Scan"):
        for position, output in enumerate(graph.outputs[count:]):
            kind = graph.types[output]
            axis = out_axes[position] = _axis(out_axes[position], len(kind.shape) + 1)
            shape = (*kind.shape[:axis], trips, *kind.shape[axis:])
            stacked.append(TensorType(shape, kind.dtype))
    outputs = [output_name(walk, n) for n in proto.output]
    node = Node(
        name,
        "Scan",
        (*inputs, *graph.inputs[len(inputs) :]),
        tuple(outputs),
        {
            "body": graph,
            "carried": count,
            "num_scan_inputs": scans,
            "scan_input_axes": tuple(axes),
            "scan_input_directions": tuple(flips),
            "scan_output_axes": tuple(out_axes),
            "scan_output_directions": tuple(out_flips),
        },
    )
    builder.append(node, [*kinds[:count], *stacked][: len(outputs)])
    define(walk, proto, outputs)


@dataclass(frozen=True, slots=True)
class _ScanPlan:
    """How a Scan walks: the number of carried values and steps; axes and directions."""

    carried: int
    trips: int
    axes: Sequence[int]
    flips: Sequence[int]
    out_axes: Sequence[int]
    out_flips: Sequence[int]


def _unroll_scan(
    walk: Walk,
    name: str,
    proto: onnx.NodeProto,
    body: onnx.GraphProto,
    inputs: Sequence[str],
    plan: _ScanPlan,
) -> bool:
    """Write the steps one after another; False (and nothing written) if that fails."""
    mark = _Mark(walk)
    carried: list[Ref] = list(inputs[: plan.carried])
    stacks: list[list[Ref]] = [[] for _ in body.output[plan.carried :]]
    scanned = list(zip(inputs[plan.carried :], plan.axes, plan.flips, strict=True))
    for step in range(plan.trips):
        items: list[Ref] = []
        for source, axis, flip in scanned:
            at = plan.trips - 1 - step if flip else step
            index = walk.builder.new_const(np.array(at, np.int64), "step")
            item = walk.session.unique(f"{name}/{step}/{source}")
            node = Node(item, "Gather", (source, index), (item,), {"axis": axis})
            items.append(item if add_node(walk, node, shapes.OPSET) else None)
        refs = _iteration(walk, f"{name}/{step}", body, [*carried, *items])
        if None in refs:
            mark.undo()
            return False
        carried = refs[: plan.carried]
        for stack, ref in zip(stacks, refs[plan.carried :], strict=True):
            stack.append(ref)
    axes = []
    for position, stack in enumerate(stacks):
        if plan.out_flips[position]:
            stack.reverse()
        rank = len(walk.builder.types[stack[0] or ""].shape) + 1
        with walk.session.at(name, "Scan"):
            axes.append(_axis(plan.out_axes[position], rank))
    _define_unrolled(walk, name, proto, carried, stacks, axes)
    return True


def _list(attrs: Attrs, key: str, count: int) -> list[int]:
    values = list(attrs.get(key, ()) or (0,) * count)
    if len(values) != count:
        raise ModelError(f"attribute '{key}' must hold {count} numbers")
    return values


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


Visit = Callable[[Walk, str, onnx.NodeProto, Sequence[str], Attrs], None]

OPERATORS: Mapping[str, Visit] = {"If": visit_if, "Loop": visit_loop, "Scan": visit_scan}
