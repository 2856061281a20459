"""The tuning tasks of a lowered graph: one for each different kernel, weighted by its calls."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.ir.graph import Graph
from toolkit.ir.loop import PrimFunc
from toolkit.ir.program import Call, Program
from toolkit.lowering.kernels import func_key
from toolkit.lowering.steps import RawCall, Steps
from toolkit.ops.op import Op
from toolkit.space.task import Task
from toolkit.targets.target import Target


def tasks_of(graph: Graph, ops: Mapping[str, Op], program: Program, target: Target) -> list[Task]:
    """Return the tasks of `graph`, a graph in which fusion has run, in the order of first calls.

    `program`: what `lower` made of it with the default schedules, whose plan says which results
    lie in their operands' storage.
    """
    work = Steps(ops, dict(graph.types), dict(graph.consts), opset=graph.opset)
    work.graph(graph)
    kernels = {k.name: k for k in program.kernels}
    funcs: dict[str, PrimFunc] = {}
    calls: dict[str, int] = {}
    shared: dict[str, dict[str, str]] = {}
    nodes: dict[str, list[str]] = {}
    # `lower` may append copies of outputs behind these steps; they are nobody's task.
    for raw, step in zip(work.steps, program.steps, strict=False):
        if not isinstance(raw, RawCall) or not isinstance(step, Call):
            continue
        key = func_key(raw.group.func)
        funcs.setdefault(key, raw.group.func)
        calls[key] = calls.get(key, 0) + 1
        shared.setdefault(key, {}).update(kernels[step.kernel].inplace)
        nodes.setdefault(key, []).extend(n.name for n in raw.nodes)
    return [
        Task(
            func,
            target,
            tuple(sorted(shared[key].items())),
            float(calls[key]),
            tuple(nodes[key]),
        )
        for key, func in funcs.items()
    ]
