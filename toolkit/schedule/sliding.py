"""Windows along contiguous elements, for the default schedule: padding is staged, never tested.

A reduction that slides over its innermost axis (a convolution or pooling with the channel outside)
reads a copy of its operand with the padding around it, made where a plane of it is needed, so that
every tap of a register tile is a plain vector load.
"""

from __future__ import annotations

import math

from toolkit.errors import ScheduleError
from toolkit.ir.expr import (
    Binary,
    binary,
    conjuncts,
    Const,
    Expr,
    INDEX,
    Load,
    Select,
    substitute,
    Var,
    variables,
)
from toolkit.ir.loop import Block, blocks, Loop, nest_of, own_loops, PrimFunc, REDUCE, SPATIAL
from toolkit.ir.regions import bind_map, block_loads, bound_expr, loop_ranges
from toolkit.ir.simplify import linear, simplify
from toolkit.schedule.steps.compute_at import candidate_loops, ComputeAt
from toolkit.schedule.steps.pad_read import PadRead
from toolkit.schedule.steps.partition import Partition
from toolkit.schedule.tiling import copied, Take, tile_reduction
from toolkit.targets.isa import Isa

PLANE_BYTES = 256 * 1024
"""Most of a copy that is alive at once: it stays in the second-level cache."""

NEAR_BYTES = 24 * 1024
"""Size of a copy that stays in the first-level cache beside what else is read."""

MOST_WORK = 1.5
"""How often elements of a copy may be made, on average: windows of neighbouring tiles overlap."""

LONGEST_PHASE = 4
"""Strides up to this store their phases apart."""


def tile_windows(func: PrimFunc, reduction: str, isa: Isa, take: Take) -> PrimFunc:
    """Tile a reduction over windows whose operand is padded or strided along the last axis.

    Raises `ScheduleError` where there is no such operand, or a copy of it is too large.
    """
    _, block = nest_of(func.body, reduction)
    spatial = [a for a in block.axes if a.role == SPATIAL]
    if isa.lanes(block.value.dtype) == 1 or not spatial:
        raise ScheduleError("no vectors")
    column = spatial[-1]
    sliding = {
        l: k
        for l in block_loads(block)
        if l.indices and (k := linear(l.indices[-1])[0].get(column))
    }
    if len(sliding) != 1:
        raise ScheduleError("no window slides along the last axis")
    [(load, stride)] = sliding.items()
    guarded = any(column.name in variables(t) for t in conjuncts(block.guard))
    if not guarded and stride == 1:
        raise ScheduleError("the windows need no copy")
    if not 1 <= stride <= LONGEST_PHASE:
        raise ScheduleError("the windows are too far apart")
    phases = (1,) * (len(load.indices) - 1) + (stride,) if stride > 1 else ()
    func, copy = copied(func, PadRead(reduction, load.buffer, phases), take)
    func = tile_reduction(func, reduction, isa, take, _overlap(block, load, isa))
    return take(ComputeAt(copy, _place(func, copy)))


def _overlap(block: Block, load: Load, isa: Isa) -> str | None:
    """Return the loop of a tap along which windows of neighbouring rows overlap.

    None where elements and weights of all its steps leave too few registers for the rows.
    """
    binds = bind_map(block)
    rows = [a for a in block.axes if a.role == SPATIAL and a.extent > 1][-2:-1]
    for index in load.indices if rows else ():
        terms, _ = linear(index)
        taps = [a for a in block.axes if a.role == REDUCE and a in terms]
        if rows[0] in terms and len(taps) == 1 and 1 < taps[0].extent <= isa.registers // 3:
            bind = binds[taps[0].name]
            return bind.name if isinstance(bind, Var) else None
    return None


def _place(func: PrimFunc, copy: str) -> str:
    """Return the loop to make the copy in: little of it alive at once, and little made twice."""
    size = 4 * math.prod(func.buffers()[nest_of(func.body, copy)[1].buffer].shape)
    best: tuple[float, str] | None = None
    for loop in candidate_loops(func, copy):
        step = ComputeAt(copy, loop)
        loops, block = step.find(func, copy)
        spans, _ = step.spans(func, loops, block)
        alive = 4 * math.prod(s.extent for s in spans)
        done, whole = step.work(func)
        if alive > PLANE_BYTES or done > MOST_WORK * whole:
            continue
        # Making an element costs about what bringing it from the second-level cache does.
        cost = done / whole + (alive > NEAR_BYTES)
        if best is None or cost <= best[0]:
            best = (cost, loop)
    if best is None:
        raise ScheduleError(f"a copy of {size} bytes is too large")
    return best[1]


def peel_border(func: PrimFunc, name: str, isa: Isa, take: Take) -> PrimFunc:
    """Cut the loops of a block that chooses by its place, so that in each piece the choice is made.

    Raises `ScheduleError` where the block makes no such choice.
    """
    if isa.lanes("float32") == 1:
        raise ScheduleError("no vectors to clear the way for")
    return cut_border(func, name, take)


def cut_border(func: PrimFunc, name: str, take: Take) -> PrimFunc:
    """Cut the loops of a block as `peel_border` does, whatever the core."""
    loops, _ = nest_of(func.body, name)
    pending = [(name, len(loops) - len(own_loops(loops)))]
    done = False
    while pending:
        piece, depth = pending.pop(0)
        loops, block = nest_of(func.body, piece)
        if depth == len(loops) or not isinstance(block.value, Select):
            continue
        pieces = [piece]
        cuts = _cuts(block, loops, depth)
        if cuts:
            before = {b.name for b in blocks(func.body)}
            func = take(Partition(loops[depth].var, cuts))
            pieces = [b.name for b in blocks(func.body) if b.name not in before]
            done = True
        pending += [(b, depth + 1) for b in pieces]
    if not done:
        raise ScheduleError("the block makes no choice that depends on a loop of its own")
    return func


def _cuts(block: Block, loops: list[Loop], depth: int) -> tuple[int, ...]:
    """Return where along a loop a choice of the block changes.

    A short loop is cut everywhere, if that lets loops inside be cut.
    """
    assert isinstance(block.value, Select)
    loop, inner = loops[depth], {l.var for l in loops[depth + 1 :]}
    single: dict[str, Expr] = {l.var: Const(INDEX, 0) for l in loops if l.extent == 1}
    cuts: set[int] = set()
    condition = simplify(
        substitute(bound_expr(block, block.value.cond), single), loop_ranges(loops)
    )
    for test in conjuncts(condition):
        if not isinstance(test, Binary) or test.op not in ("lt", "le") or test.a.dtype != INDEX:
            continue
        terms, room = linear(binary("sub", test.b, test.a))
        room -= test.op == "lt"
        step = terms.pop(Var(INDEX, loop.var), 0)
        others = {name for atom in terms for name in variables(atom)}
        if step and not others:  # holds where step * loop + room >= 0
            cuts.add(-(room // step) if step > 0 else room // -step + 1)
        elif step and others <= inner and loop.extent <= LONGEST_PHASE:
            cuts |= set(range(1, loop.extent))
    return tuple(sorted(c for c in cuts if 0 < c < loop.extent))
