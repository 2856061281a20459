"""A graph of fused groups to a `Program`: kernels shared by equal groups, steps, arena plan."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from toolkit.codegen.lower import lower_func
from toolkit.codegen.names import c_name
from toolkit.ir.graph import Graph
from toolkit.ir.loop import fresh_name, PrimFunc, SCRATCH
from toolkit.ir.program import Call, Fork, JumpIfNot, Kernel, Program, Step
from toolkit.ir.types import TensorType, type_of
from toolkit.lowering.kernels import (
    func_key,
    inplace_pairs,
    merge_inplace,
    pack_constant,
    packing,
    schedule,
)
from toolkit.lowering.plan_memory import Plan, plan, Storage
from toolkit.lowering.side_by_side import fork_steps, Span, Work
from toolkit.lowering.steps import RawCall, Steps
from toolkit.ops.op import Op
from toolkit.schedule.default import Trace
from toolkit.schedule.threads import ALONE, kernel_cycles, Team, team_cycles
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS


def lower(
    graph: Graph,
    ops: Mapping[str, Op],
    *,
    name: str,
    isa: Isa = ISAS["scalar"],
    align: int = 8,
    digest: str | None = None,
    traces: Mapping[str, Trace] | None = None,
    team: Team = ALONE,
    exact: bool = False,
) -> Program:
    """Lower a graph in which fusion has run.

    `align`: bytes, of every tensor in the arena.  `traces`: schedules for functions, by `func_key`;
    others take the default schedule.  `team`: the cores that run it.  `exact`: no algorithm that
    rounds otherwise than the operators as they are written.
    """
    work = Steps(ops, dict(graph.types), dict(graph.consts), opset=graph.opset)
    work.graph(graph)
    outputs = _own_outputs(work, graph)
    last = _last_reads(work, outputs)
    kernels, steps, scratch, merged = _share_kernels(work, last, isa, traces or {}, team, exact)
    spans = _spans(work, scratch, merged)
    cost = {k.name: _cost(k.func, isa, team) for k in kernels}
    steps = fork_steps(
        steps,
        {
            n: Work(spans(s.inputs), spans((*s.outputs, *s.scratch)), *cost[s.kernel])
            for n, s in enumerate(steps)
            if isinstance(s, Call)
        },
        team,
    )
    result, offsets = _plan(work, graph, outputs, steps, scratch, merged, align)
    used = {n for s in steps if isinstance(s, Call) for n in s.inputs if n in work.consts}
    consts, same = _dedupe({n: work.consts[n] for n in work.consts if n in used})
    steps = [
        Call(s.kernel, s.outputs, tuple(same.get(n, n) for n in s.inputs), s.scratch, s.nodes)
        if isinstance(s, Call)
        else s
        for s in steps
    ]
    types = {**work.types, **scratch, **{n: type_of(v) for n, v in consts.items()}}
    return Program(
        name, tuple(kernels), tuple(steps), types, consts, offsets, graph.inputs, outputs,
        graph.outputs, result.arena_bytes, result.lower_bound_bytes, digest or graph.digest(),
        team.threads,
    )  # fmt: skip


def _own_outputs(work: Steps, graph: Graph) -> tuple[str, ...]:
    """Give every graph output a place in the arena: constants and conditional steps are copied."""
    outputs = []
    for position, out in enumerate(graph.outputs):
        if work.root(out) in work.consts:
            target = f"{out}.copy{position}"
            work.types[target] = graph.types[out]
            work.copy(out, target)
            outputs.append(target)
        else:
            outputs.append(out)
    return tuple(outputs)


def _last_reads(work: Steps, outputs: tuple[str, ...]) -> dict[str, int]:
    """Return the last step that touches each storage root (the end for outputs)."""
    last: dict[str, int] = {}
    end = len(work.steps)
    for index, step in enumerate(work.steps):
        names: tuple[str, ...] = ()
        if isinstance(step, RawCall):
            names = (*step.group.inputs, *step.group.outputs)
        elif isinstance(step, JumpIfNot):
            names = (step.cond,)
        for n in names:
            last[work.root(n)] = index
    for n in outputs:
        last[work.root(n)] = end
    return last


def _share_kernels(
    work: Steps,
    last: dict[str, int],
    isa: Isa,
    traces: Mapping[str, Trace],
    team: Team,
    exact: bool,
) -> tuple[list[Kernel], list[Step], dict[str, TensorType], dict[str, str]]:
    """Schedule each group, decide in-place storage, and give equal functions one kernel.

    Returns the kernels, the steps, the types of scratch tensors, and the tensors that are written
    over another one, with that one.  `last` is kept up to date as results take over storage.
    """
    kernels: list[Kernel] = []
    by_key: dict[str, Kernel] = {}
    scheduled: dict[str, tuple[PrimFunc, Trace, dict[str, str]]] = {}
    names: set[str] = set()
    steps: list[Step] = []
    scratch_types: dict[str, TensorType] = {}
    merged: dict[str, str] = {}
    written = _write_counts(work)

    def storage(n: str) -> str:
        return _storage(work, merged, n)[0]

    for index, step in enumerate(work.steps):
        if not isinstance(step, RawCall):
            steps.append(step)
            continue
        base_key = func_key(step.group.func)
        if base_key not in scheduled:
            func, trace = schedule(step.group.func, isa, traces, team, exact=exact)
            scheduled[base_key] = (func, trace, inplace_pairs(func))
        func, trace, pairs = scheduled[base_key]
        chosen: dict[str, str] = {}
        formal_in = [b.name for b in func.inputs]
        formal_out = [b.name for b in func.outputs]
        for formal, target in pairs.items():
            actual = step.group.inputs[formal_in.index(formal)]
            out = step.group.outputs[formal_out.index(target)]
            source = storage(actual)
            free = (
                actual not in work.consts
                and source not in work.consts
                and max(last.get(n, -1) for n in (work.root(actual), source)) == index
                and sum(storage(n) == source for n in step.group.inputs) == 1
                and written.get(work.root(out), 0) == 1
                and written.get(source, 0) <= 1
                and target not in chosen.values()
                and work.root(out) == out
            )
            if free:
                chosen[formal] = target
                merged[out] = actual
                last[source] = last.get(out, index)
        key = base_key + repr(sorted(chosen.items()))
        if key not in by_key:
            kernel_name = fresh_name(c_name(step.group.func.name), names)
            kernel = Kernel(
                kernel_name, merge_inplace(func, chosen), _comment(step, trace, work), dict(chosen)
            )
            by_key[key] = kernel
            kernels.append(kernel)
        kernel = by_key[key]
        scratch = []
        for b in lower_func(kernel.func, team.threads, isa).locals:
            if b.scope == SCRATCH:
                scratch_name = f"{index}.{b.name}"
                scratch_types[scratch_name] = b.storage
                scratch.append(scratch_name)
        named = dict(zip(formal_in, step.group.inputs, strict=True))
        inputs = tuple(
            _packed(work, formal, named, trace) for formal in formal_in if formal not in chosen
        )
        steps.append(
            Call(
                kernel.name, step.group.outputs, inputs, tuple(scratch),
                tuple(n.name for n in step.nodes),
            )
        )  # fmt: skip
    return kernels, steps, scratch_types, merged


def _cost(func: PrimFunc, isa: Isa, team: Team) -> tuple[float, float]:
    """Return the cycles that a kernel takes on one core, and with its loops shared by all."""
    return kernel_cycles(func, isa), team_cycles(func, isa, team)


def _spans(
    work: Steps, scratch: Mapping[str, TensorType], merged: Mapping[str, str]
) -> Callable[[Sequence[str]], tuple[Span, ...]]:
    """Return what tells the bytes where tensors lie; of constants, none."""

    def spans(names: Sequence[str]) -> tuple[Span, ...]:
        found = []
        for n in names:
            root, at = _storage(work, merged, n)
            if root not in work.consts:
                kind = scratch.get(n) or work.types[n]
                found.append(Span(root, at, at + kind.nbytes))
        return tuple(found)

    return spans


def _storage(work: Steps, merged: Mapping[str, str], name: str) -> tuple[str, int]:
    """Return the storage of a tensor, and its first byte there, with in-place results `merged`."""
    name, at = work.place(name)
    while name in merged:
        name, step = work.place(merged[name])
        at += step
    return name, at


def _packed(work: Steps, formal: str, actual: Mapping[str, str], trace: Trace) -> str:
    """Return the name of a kernel's operand: of a constant, in the layout its trace wants.

    `actual`: the tensors of the graph by the names that the kernel gives them.
    """
    name = actual[formal]
    if name not in work.consts:
        return name
    steps = packing(trace, formal)
    if not steps:
        return name
    others = (actual[o] for s in steps for o in s.layout_from())
    packed = ".".join([name, *(s.layout_tag() for s in steps), *others])
    if packed not in work.consts:
        work.consts[packed] = pack_constant(trace, formal, lambda n: work.consts[actual[n]])
    return packed


def _write_counts(work: Steps) -> dict[str, int]:
    """Count the steps that write each storage root: two for the outputs of an `If`."""
    counts: dict[str, int] = {}
    for step in work.steps:
        if isinstance(step, RawCall):
            for n in step.group.outputs:
                counts[work.root(n)] = counts.get(work.root(n), 0) + 1
    return counts


def _comment(step: RawCall, trace: Trace, work: Steps) -> tuple[str, ...]:
    """Say above a kernel what it computes and the trace that made it."""
    lines = [
        f"{node.op_id}: "
        + ", ".join(str(work.types[i]) for i in node.inputs if i and i in work.types)
        + " -> "
        + ", ".join(str(work.types[o]) for o in node.outputs if o and o in work.types)
        for node in step.nodes
    ]
    lines.append("trace: " + ("; ".join(map(str, trace)) or "none"))
    return tuple(line.replace("*/", "* /") for line in lines)


def _plan(
    work: Steps,
    graph: Graph,
    outputs: tuple[str, ...],
    steps: list[Step],
    scratch: dict[str, TensorType],
    merged: dict[str, str],
    align: int,
) -> tuple[Plan, dict[str, int]]:
    """Plan the arena; return the plan and the offset of every tensor in it."""

    first: dict[str, int] = {}
    last: dict[str, int] = {}
    size: dict[str, int] = {}
    since, until = 0, -1  # steps that run side by side: what they touch is alive during all

    def touch(n: str, at: int) -> None:
        root, offset = _storage(work, merged, n)
        if root in work.consts:
            return
        kind = scratch.get(n) or work.types[n]
        size[root] = max(size.get(root, 0), offset + kind.nbytes)
        first[root] = min(first.get(root, at), at)
        last[root] = max(last.get(root, at), at)

    for n in graph.inputs:
        touch(n, 0)
    for index, step in enumerate(steps):
        if isinstance(step, Fork):
            since, until = index, index + sum(step.counts)
        elif isinstance(step, Call):
            for n in (*step.outputs, *step.inputs, *step.scratch):
                touch(n, index)
                if index <= until:
                    touch(n, since)
                    touch(n, until)
        elif isinstance(step, JumpIfNot):
            touch(step.cond, index)
    for n in outputs:
        touch(n, len(steps))
    result = plan([Storage(n, size[n], first[n], last[n]) for n in size], align)
    names = {*graph.inputs, *outputs, *work.types, *scratch, *merged}
    offsets = {}
    for n in names:
        root, offset = _storage(work, merged, n)
        if root in result.offsets:
            offsets[n] = result.offsets[root] + offset
    return result, offsets


def _dedupe(consts: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Keep one of equal constants; return them and the renames."""
    kept: dict[str, np.ndarray] = {}
    same: dict[str, str] = {}
    seen: dict[bytes, str] = {}
    for name, value in consts.items():
        data = np.ascontiguousarray(value)
        digest = hashlib.sha256(f"{data.dtype}{data.shape}".encode() + data.tobytes()).digest()
        if digest in seen:
            same[name] = seen[digest]
        else:
            seen[digest] = name
            kept[name] = data
    return kept, same
