"""Which loops of a kernel run in parts side by side: by an analytic cost, without measuring.

Small kernels stay serial: waking the other cores costs more than they save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from toolkit.errors import ScheduleError
from toolkit.ir.expr import Binary, variables, walk
from toolkit.ir.loop import (
    Block,
    blocks,
    Loop,
    OpaqueCall,
    PARALLEL,
    PrimFunc,
    Seq,
    SERIAL,
    SPATIAL,
    Stmt,
    UNROLL,
    VECTORIZE,
    walk_stmt,
)
from toolkit.ir.regions import block_loads
from toolkit.schedule.default import operations, Trace
from toolkit.schedule.steps.annotate import Parallel
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.fuse import Fuse
from toolkit.targets.isa import Isa
from toolkit.targets.target import Target

BYTES_A_CYCLE = 16
"""What one core takes from the caches behind its first, about."""

OPAQUE_CYCLES = 8
"""Of a C function, for each element it reads or writes, about."""


@dataclass(frozen=True, slots=True)
class Team:
    """Cores that share the work of a model.

    `fork_cycles`: from the call until all parts run, and from the last one's end until the caller
    goes on.  `grain_cycles`: the least worth giving to a core.
    """

    threads: int = 1
    fork_cycles: int = 3_000
    grain_cycles: int = 15_000


ALONE = Team()
"""One core."""


def team_of(target: Target, threads: int) -> Team:
    """Return the team of `threads` cores of a target.

    Cores with a second-level cache run a system whose threads are woken; those without wait in a
    loop for the other's word (runtime_c/port/rp2).
    """
    return Team(threads) if target.l2_bytes else Team(threads, 400, 4_000)


def kernel_cycles(func: PrimFunc, isa: Isa) -> float:
    """Estimate what a scheduled kernel takes on one core: arithmetic, or moving its operands."""
    moved = sum(b.type.nbytes for b in (*func.inputs, *func.outputs)) / BYTES_A_CYCLE
    return max(_cycles(func, func.body, isa), moved)


def _cycles(func: PrimFunc, stmt: Stmt, isa: Isa) -> float:
    match stmt:
        case Seq():
            return sum(_cycles(func, part, isa) for part in stmt.body)
        case Loop(kind=kind):
            inside = _cycles(func, stmt.body, isa)
            if kind == VECTORIZE and isinstance(stmt.body, Block):
                lanes = isa.lanes(func.buffers()[stmt.body.buffer].dtype)
                return -(-stmt.extent // lanes) * inside
            return stmt.extent * (inside + (0.0 if kind == UNROLL else 1.0))
        case Block():
            loads = len(set(block_loads(stmt)))
            work = operations(stmt.value) + (stmt.reduce is not None)
            # Fused multiply-adds count once; register tiles share their loads.
            return work / 4 if stmt.reduce and work == 2 else (work + loads + 1) / 2
        case OpaqueCall():
            sizes = func.buffers()
            names = (*stmt.inputs, *stmt.outputs)
            return OPAQUE_CYCLES * sum(math.prod(sizes[n].shape) for n in names)


def parts_apart(loop: Loop, threads: int) -> bool:
    """Tell whether no two parts of a loop write the same elements.

    Shifted tiles overlap: the last one computes elements of the last but one again.  Both are the
    same part's where each part has two iterations.
    """
    for block in blocks(loop):
        for bind in block.binds:
            for e in walk(bind):
                if loop.var not in variables(e) or not isinstance(e, Binary):
                    continue
                if e.op == "min" and loop.extent // threads < 2:
                    return False
                folded = e.op in ("floordiv", "floormod")
                if folded and any(isinstance(x, Binary) and x.op == "min" for x in walk(bind)):
                    return False
    return True


def team_cycles(func: PrimFunc, isa: Isa, team: Team) -> float:
    """Estimate what a kernel takes with its parallel loops run by all cores."""
    alone = kernel_cycles(func, isa)
    arithmetic = _cycles(func, func.body, isa)
    shared = saved = 0.0
    for loop in walk_stmt(func.body):
        if isinstance(loop, Loop) and loop.kind == PARALLEL and loop.extent:
            times = _times(func.body, loop)
            cycles = times * _cycles(func, loop, isa)
            saved += cycles * (1 - math.ceil(loop.extent / team.threads) / loop.extent)
            shared += times * team.fork_cycles
    return alone * (1 - saved / max(arithmetic, 1.0)) + shared


def _times(stmt: Stmt, loop: Loop) -> int:
    """Return how often a loop is entered."""
    if stmt is loop:
        return 1
    match stmt:
        case Loop():
            return stmt.extent * _times(stmt.body, loop)
        case Seq():
            return sum(_times(part, loop) for part in stmt.body)
    return 0


def parallel_steps(func: PrimFunc, isa: Isa, team: Team) -> Trace:
    """Return the steps that make loops of a scheduled kernel parallel: none for small kernels.

    Of nested loops at most one, or several fused into one where none has enough iterations.
    """
    if team.threads == 1 or any(
        isinstance(s, Loop) and s.kind == PARALLEL for s in walk_stmt(func.body)
    ):
        return ()
    # What waits for memory is shared too.
    scale = kernel_cycles(func, isa) / max(_cycles(func, func.body, isa), 1.0)
    return _best(func, func.body, isa, team, scale)[1]


def _best(
    func: PrimFunc, stmt: Stmt, isa: Isa, team: Team, scale: float
) -> tuple[float, tuple[Step, ...]]:
    """Return the cycles of a statement with the best of its loops parallel, and the steps."""
    if isinstance(stmt, Seq):
        parts = [_best(func, part, isa, team, scale) for part in stmt.body]
        return sum(c for c, _ in parts), tuple(step for _, steps in parts for step in steps)
    cycles = scale * _cycles(func, stmt, isa)
    best: tuple[float, tuple[Step, ...]] = cycles, ()
    if cycles <= team.threads * team.grain_cycles:
        return best
    loops: list[Loop] = []
    inside: Stmt = stmt
    while isinstance(inside, Loop) and inside.role == SPATIAL and inside.kind == SERIAL:
        loops.append(inside)
        inside = inside.body
    for took, way in _ways(loops, cycles, team):
        if took < best[0] and _legal(func, way, team):
            best = took, way
            break
    if loops and isinstance(inside, Seq):
        each, way = _best(func, inside, isa, team, scale)
        took = each * math.prod(l.extent for l in loops)
        if took < best[0]:
            best = took, way
    return best


def _legal(func: PrimFunc, steps: tuple[Step, ...], team: Team) -> bool:
    try:
        for step in steps:
            func = step.apply(func)
    except ScheduleError:
        return False
    made = (l for l in walk_stmt(func.body) if isinstance(l, Loop) and l.kind == PARALLEL)
    return all(parts_apart(loop, team.threads) for loop in made)


def _ways(loops: list[Loop], cycles: float, team: Team) -> list[tuple[float, tuple[Step, ...]]]:
    """Return the cycles and the steps with each loop of a nest parallel that pays, best first."""
    found: list[tuple[float, tuple[Step, ...]]] = []
    for first in range(len(loops)):
        times = math.prod(l.extent for l in loops[:first])
        name, extent, fused = loops[first].var, 1, []
        for position, loop in enumerate(loops[first:]):
            extent *= loop.extent
            if position:
                fused.append(Fuse(name, loop.var))
                name = f"{name}+{loop.var}"
            if extent < 2 or loop.extent == 1:
                continue
            each = cycles / times / extent
            rounds = math.ceil(extent / team.threads)
            # Fused loops divide in each iteration; where it is close, none are fused.
            took = times * (
                team.fork_cycles + rounds * (each * (1 + 0.02 * position) + 20 * position)
            )
            if rounds * each >= team.grain_cycles and took < cycles:
                found.append((took, (*fused, Parallel(name))))
    return sorted(found, key=lambda item: item[0])
