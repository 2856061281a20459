"""A fused group of nodes to a scheduled kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from toolkit.ir.build import build
from toolkit.ir.compute import placeholder, Tensor, topological, whole_uses
from toolkit.ir.expr import Binary, Load, walk
from toolkit.ir.graph import Node
from toolkit.ir.loop import Block, blocks, map_block, OpaqueCall, PrimFunc, rewrite_stmt, walk_stmt
from toolkit.ir.regions import block_loads
from toolkit.ir.types import TensorType
from toolkit.ops.op import apply_op, Op, operand_name
from toolkit.schedule.algorithm import rounds
from toolkit.schedule.default import apply_trace, default_trace, Trace
from toolkit.schedule.threads import ALONE, parallel_steps, Team
from toolkit.targets.isa import Isa


@dataclass(frozen=True, slots=True)
class GroupKernel:
    """The base function of a group, and the tensors of the graph that are its parameters.

    `tables` holds the values of those inputs that an operator made itself, named after its node.
    """

    func: PrimFunc
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tables: Mapping[str, np.ndarray] = field(default_factory=dict)


def compose(
    ops: Mapping[str, Op],
    nodes: Sequence[Node],
    outputs: Sequence[str],
    types: Mapping[str, TensorType],
    consts: Mapping[str, np.ndarray],
    opset: int,
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Chain the compute expressions of `nodes`; return (external operands by name, output tensors).

    External operands are tensors of the graph, and tables: constants that an operator made, named
    NODE.TABLE.
    """
    known: dict[str, Tensor] = {}
    external: dict[str, Tensor] = {}
    for node in nodes:
        op = ops[node.op_id]
        operands: list[Tensor | None] = []
        for position, name in enumerate(node.inputs):
            if not name:
                operands.append(None)
                continue
            if name not in known:
                kind = types[name]
                known[name] = external[name] = placeholder(
                    kind.shape, kind.dtype, operand_name(op, position), consts.get(name)
                )
            operands.append(known[name])
        results = apply_op(op, node, operands, opset)
        for name, tensor in zip(node.outputs, results, strict=True):
            if name and tensor is not None:
                known[name] = tensor
        given = {id(t) for t in operands if t is not None}
        for table in topological([t for t in results if t is not None], stop=given):
            if table.stage is None and table.data is not None and id(table) not in given:
                base = name = f"{node.name}.{table.name}"
                while name in external or name in types:
                    name = f"{base}{len(external)}"
                external[name] = table
    return external, [known[name] for name in outputs]


def group_kernel(
    ops: Mapping[str, Op],
    nodes: Sequence[Node],
    outputs: Sequence[str],
    types: Mapping[str, TensorType],
    consts: Mapping[str, np.ndarray],
    opset: int,
) -> GroupKernel:
    """Build the base function of a group: every stage in a nest of its own."""
    external, results = compose(ops, nodes, outputs, types, consts, opset)
    order = topological(results)
    read, whole = {id(t) for t in order}, whole_uses(order)
    params = [
        (name, tensor)
        for name, tensor in external.items()
        if id(tensor) in read
        and (tensor.data is None or tensor.type.size != 1 or id(tensor) in whole)
    ]
    tables = {name: t.data for name, t in params if name not in types}
    base = re.sub(r"\W", "", "_".join(n.op.lower() for n in nodes[:3])) or "kernel"
    func = build(results, [t for _, t in params], base)
    return GroupKernel(func, tuple(name for name, _ in params), tuple(outputs), tables)


def schedule(
    func: PrimFunc,
    isa: Isa,
    traces: Mapping[str, Trace] | None = None,
    team: Team = ALONE,
    *,
    exact: bool = False,
) -> tuple[PrimFunc, Trace]:
    """Apply the trace that `traces` holds under the function's key, else the default one.

    Where it makes no loop parallel, those are that pay with this team of cores.  `exact`: no
    algorithm that rounds otherwise than the function as it is written.
    """
    trace = (traces or {}).get(func_key(func))
    if trace is None or (exact and rounds(trace)):
        trace = default_trace(func, isa, exact=exact)
    scheduled = apply_trace(func, trace)
    more = parallel_steps(scheduled, isa, team)
    return apply_trace(scheduled, more), (*trace, *more)


def packing(trace: Trace, operand: str) -> Trace:
    """Return the steps of a trace that change the layout of a constant operand."""
    return tuple(s for s in trace if s.laid_out() == operand)


def pack_constant(trace: Trace, operand: str, data: Callable[[str], np.ndarray]) -> np.ndarray:
    """Return the data of a constant operand in the layout that a trace gives it.

    `data` returns that of an operand as the base function reads it.
    """
    value = data(operand)
    for count, step in enumerate(trace):
        if step.laid_out() == operand:
            others = (pack_constant(trace[:count], name, data) for name in step.layout_from())
            value = step.layout_data(value, *others)
    return np.ascontiguousarray(value)


def inplace_pairs(func: PrimFunc) -> dict[str, str]:
    """Map each input that an output may overwrite to that output.

    Legal where one block alone writes the output, reads the input only at the element it writes,
    and no other block reads the input.  `func` is scheduled.
    """
    pairs: dict[str, str] = {}
    all_blocks = list(blocks(func.body))
    opaque = [s for s in walk_stmt(func.body) if isinstance(s, OpaqueCall)]
    for output in func.outputs:
        writers = [b for b in all_blocks if b.buffer == output.name]
        if len(writers) != 1 or any(output.name in (*o.outputs, *o.inputs) for o in opaque):
            continue
        writer = writers[0]
        if (
            writer.reduce is not None
            or _overlaps(writer)
            or any(load.buffer == output.name for b in all_blocks for load in block_loads(b))
        ):
            continue
        for source in func.inputs:
            if source.type != output.type or source.name in pairs:
                continue
            readers = [
                (b, load)
                for b in all_blocks
                for load in block_loads(b)
                if load.buffer == source.name
            ]
            if any(source.name in o.inputs for o in opaque) or not readers:
                continue
            if all(b is writer and load.indices == writer.indices for b, load in readers):
                pairs[source.name] = output.name
    return pairs


def _overlaps(block: Block) -> bool:
    """Tell whether shifted tiles make the block write some elements twice."""
    return any(isinstance(e, Binary) and e.op == "min" for b in block.binds for e in walk(b))


def merge_inplace(func: PrimFunc, pairs: Mapping[str, str]) -> PrimFunc:
    """Return the function in which each input of `pairs` is read through its output's storage."""
    if not pairs:
        return func

    def rule(s: object) -> Block | None:
        if not isinstance(s, Block):
            return None
        return map_block(
            s,
            lambda e: (
                replace(e, buffer=pairs[e.buffer])
                if isinstance(e, Load) and e.buffer in pairs
                else None
            ),
        )

    body = rewrite_stmt(func.body, rule)
    assert body is not None
    return func.with_(body=body, inputs=tuple(b for b in func.inputs if b.name not in pairs))


def func_key(func: PrimFunc) -> str:
    """Return a text equal for functions that compute and print the same."""
    return str(func.with_(name="k"))
