"""The tuning tasks of a lowered graph: one for each different kernel, weighted by its calls."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.ir.graph import Graph
from toolkit.ir.loop import PrimFunc
from toolkit.ir.program import Call, Fork, Program
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
    return [task for task, _ in calls_of(graph, ops, program, target)]


def calls_of(
    graph: Graph, ops: Mapping[str, Op], program: Program, target: Target
) -> list[tuple[Task, tuple[int, ...]]]:
    """Return the tasks of a graph, each with the steps of the program that call its kernel."""
    work = Steps(ops, dict(graph.types), dict(graph.consts), opset=graph.opset)
    work.graph(graph)
    kernels = {k.name: k for k in program.kernels}
    funcs: dict[str, PrimFunc] = {}
    calls: dict[str, list[int]] = {}
    shared: dict[str, dict[str, str]] = {}
    nodes: dict[str, list[str]] = {}
    steps = [(i, step) for i, step in enumerate(program.steps) if not isinstance(step, Fork)]
    # `lower` may append copies of outputs behind these steps; they are nobody's task.
    for raw, (index, step) in zip(work.steps, steps, strict=False):
        if not isinstance(raw, RawCall) or not isinstance(step, Call):
            continue
        key = func_key(raw.group.func)
        funcs.setdefault(key, raw.group.func)
        calls.setdefault(key, []).append(index)
        shared.setdefault(key, {}).update(kernels[step.kernel].inplace)
        nodes.setdefault(key, []).extend(n.name for n in raw.nodes)
    result = []
    for key, func in funcs.items():
        inplace = tuple(sorted(shared[key].items()))
        task = Task(func, target, inplace, float(len(calls[key])), tuple(nodes[key]))
        result.append((task, tuple(calls[key])))
    return result
