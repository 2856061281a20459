"""The default schedule: a good trace for any kernel, chosen without measuring.

Element-wise stages are inlined, reductions get an accumulator, and every other stage is computed at
the innermost loop of its consumers that repeats no work, so that its buffer shrinks to a row or a
scalar.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from toolkit.errors import ScheduleError
from toolkit.ir.expr import Binary, Call, Expr, Load, Select, walk
from toolkit.ir.loop import Block, blocks, nest_of, OpaqueCall, PrimFunc, walk_stmt
from toolkit.ir.regions import block_loads, reads
from toolkit.schedule.algorithm import algorithms, WinogradPlan
from toolkit.schedule.attention import place_product, stage_product
from toolkit.schedule.depthwise import tile_taps
from toolkit.schedule.parts import tile_parts
from toolkit.schedule.sliding import peel_border, tile_windows
from toolkit.schedule.steps.base import block_names, Step
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import candidate_loops, ComputeAt
from toolkit.schedule.steps.inline import Inline
from toolkit.schedule.tensor_ways import tile_tensor
from toolkit.schedule.tiling import (
    factor_reduction,
    flat_index,
    stride_in,
    tile_product,
    tile_reduction,
    tile_transpose,
    vectorize_leaf,
)
from toolkit.schedule.winograd_default import schedule_winograd
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS

Trace = tuple[Step, ...]

REUSE = 16
"""How often an element is read that is worth a copy in another order."""

LONG_ROW = 16
"""Extent from which neighbours in a row that lie far apart before it cost cache lines."""

LONGEST = 400
"""Operations and operands of an expression that inlining may make: keeps printing linear."""


def apply_trace(func: PrimFunc, trace: Trace) -> PrimFunc:
    """Apply the steps of a trace in order."""
    for step in trace:
        func = step.apply(func)
    return func


def operations(expr: Expr) -> int:
    """Estimate the operations one evaluation of an element takes; index arithmetic is free."""
    total = 0
    for e in walk(expr):
        if e.dtype == "index":
            continue
        if isinstance(e, Call):
            total += 20 if e.fn not in ("abs", "not", "bits") else 1
        elif isinstance(e, Binary):
            total += 8 if e.op in ("div", "mod", "pow", "floordiv", "floormod") else 1
        elif isinstance(e, Select):
            total += 1
    return total


def _domain(block: Block) -> int:
    return math.prod(a.extent for a in block.axes)


def _transposes(func: PrimFunc, block: Block) -> bool:
    """Tell whether a block copies elements that lie far apart to places side by side."""
    loops, _ = nest_of(func.body, block.name)
    if not isinstance(block.value, Load) or not loops or loops[-1].extent < LONG_ROW:
        return False
    return (stride_in(flat_index(func, block, block.value), loops[-1].var) or 0) > 1


def _inline_wanted(func: PrimFunc, block: Block, isa: Isa) -> bool:
    """Inline what costs nothing to repeat, and what each consumer reads once an element."""
    size = math.prod(func.buffers()[block.buffer].shape)
    consumers = [b for b in blocks(func.body) if block.buffer in reads(b)]
    if not consumers or any(
        isinstance(s, OpaqueCall) and block.buffer in s.inputs for s in walk_stmt(func.body)
    ):
        return False
    times = 0
    for consumer in consumers:
        uses = len({l for l in block_loads(consumer) if l.buffer == block.buffer})
        times += uses * math.prod(max(l.extent, 1) for l in nest_of(func.body, consumer.name)[0])
    if isa.lanes(block.value.dtype) > 1 and times >= REUSE * size and _transposes(func, block):
        return False  # what is read so often is worth storing in the order it is read
    cost = operations(block.value)
    return cost == 0 or times <= size or (cost <= 2 and times <= 2 * size)


def _stays_short(func: PrimFunc, block: Block) -> bool:
    """Tell whether readers stay short when each load of the block's buffer becomes its value."""
    size = _length(block.value)
    for reader in blocks(func.body):
        loads = sum(isinstance(e, Load) and e.buffer == block.buffer for e in walk(reader.value))
        if loads and _length(reader.value) + loads * size > LONGEST:
            return False
    return True


def _length(expr: Expr) -> int:
    return sum(e.dtype != "index" for e in walk(expr))


class _Scheduler:
    """A function under transformation and the trace so far."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.trace: list[Step] = []

    def take(self, step: Step) -> PrimFunc:
        """Apply a step and record it."""
        self.func = step.apply(self.func)
        self.trace.append(step)
        return self.func

    def attempt(self, steps: Callable[..., PrimFunc]) -> bool:
        """Call `steps(func, take=...)`, which takes steps that may be refused: all, or none."""
        func, count = self.func, len(self.trace)
        try:
            self.func = steps(self.func, take=self.take)
        except ScheduleError:
            self.func = func
            del self.trace[count:]
            return False
        return True


def inline_wanted(func: PrimFunc, name: str, isa: Isa) -> bool:
    """Tell whether a block should be computed where it is read; False if there is no such block."""
    block = next((b for b in blocks(func.body) if b.name == name), None)
    if block is None or block.reduce is not None or block.guard is not None:
        return False
    local = any(b.name == block.buffer for b in func.locals)
    return local and _inline_wanted(func, block, isa) and _stays_short(func, block)


def inline_stages(
    current: Callable[[], PrimFunc],
    attempt: Callable[[Step], bool],
    isa: Isa,
) -> None:
    """Inline what costs nothing to repeat, and what each consumer reads once an element.

    `attempt` applies a legal step to the function that `current` returns.
    """
    inlined = True
    while inlined:  # what had several readers may have one now that these became one
        inlined = False
        for block in list(blocks(current().body)):
            if inline_wanted(current(), block.name, isa) and attempt(Inline(block.name)):
                inlined = True


def default_trace(func: PrimFunc, isa: Isa = ISAS["scalar"], *, exact: bool = False) -> Trace:
    """Return the default trace of `func` for an instruction set.

    `exact`: no algorithm that rounds otherwise than the function as it is written.
    """
    for plan in () if exact else algorithms(func, isa):
        try:
            return trace_with(func, isa, plan)
        except ScheduleError:
            continue
    return trace_with(func, isa, None)


def trace_with(func: PrimFunc, isa: Isa, plan: WinogradPlan | None) -> Trace:
    """Return the default trace of a function in a form: None is as it is written.

    Raises `ScheduleError` where a step of that form is refused.
    """
    work = _Scheduler(func)
    stages: set[str] = set()
    if plan is not None:
        stages = {plan.step.block} | block_names(work.take(plan.step)) - block_names(func)

    def one(step: Step) -> bool:
        if isinstance(step, Inline) and step.block in stages:
            return False
        return work.attempt(lambda _, take: take(step))

    def rest() -> list[Block]:
        return [b for b in blocks(work.func.body) if b.name not in stages]

    inline_stages(lambda: work.func, one, isa)
    if plan is not None:
        before = block_names(work.func)
        work.func = schedule_winograd(work.func, plan, isa, work.take)
        stages |= block_names(work.func) - before

    outputs = {b.name for b in work.func.outputs}
    for block in rest():
        if block.reduce is not None and not block.update_only and block.buffer in outputs:
            if any(a.role == "spatial" for a in block.axes):
                one(CacheWrite(block.name))

    for block in rest():
        if block.reduce is not None and block.buffer not in outputs and not block.update_only:
            for way in (
                tile_tensor, tile_windows, tile_taps, tile_reduction, tile_product,
                stage_product, factor_reduction, tile_parts,
            ):  # fmt: skip
                if work.attempt(partial(way, reduction=block.name, isa=isa)):
                    break

    for block in reversed(rest()):
        if block.buffer in outputs or block.update_only:
            continue
        if work.attempt(partial(place_product, name=block.name, isa=isa)):
            continue
        for loop in reversed(candidate_loops(work.func, block.name)):
            step = ComputeAt(block.name, loop)
            try:
                done, size = step.work(work.func)
            except ScheduleError:
                continue
            if done <= size and one(step):
                break

    for block in rest():
        if block.reduce is None:
            work.attempt(partial(peel_border, name=block.name, isa=isa))
    for block in rest():
        if block.reduce is None:
            for leaf in (vectorize_leaf, tile_transpose):
                if work.attempt(partial(leaf, name=block.name, isa=isa)):
                    break
    return tuple(work.trace)
