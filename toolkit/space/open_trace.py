"""A sketch around a trace: its numbers as holes in which the trace's own values are likely.

Whatever chose the trace, the default schedule or a record, its structure stays, and the search
varies tiles, the order of the loops around them, and what is unrolled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from toolkit.errors import ScheduleError
from toolkit.ir.loop import blocks, Loop, nest_of, PrimFunc, REDUCE, walk_stmt
from toolkit.schedule.derived import Derived, ExtentOf, IfLoop, LoopAround
from toolkit.schedule.hole import (
    Around,
    Decisions,
    FittingLoop,
    FittingTile,
    Hole,
    holes_of,
    LoopOrder,
    PerfectTile,
    Replayer,
    Sketch,
    VectorTile,
)
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.pad import PadConstant
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.split import Split
from toolkit.targets.isa import Isa

_S = TypeVar("_S", bound=Step)

STATEMENTS = 224
"""Most copies of the innermost statement."""

COPIES = 32
"""Most vectors that are printed for a statement without sums, unrolled loops counted in: more only
cost compile time, since nothing is shared between them."""

TRIED = 12
"""Values of a hole that are tried before it is opened, spread over its domain."""


def open_trace(func: PrimFunc, trace: Sequence[Step], isa: Isa) -> Sketch:
    """Return a sketch that contains a trace of `func`.

    A field is opened where the values tried are legal in the rest of the trace.  The sketch's most
    probable decisions give the function that the trace gives.
    """
    replayer = Replayer(func, every_step=True)
    sketch: Sketch = tuple(_pads_last(trace))
    if not _legal(replayer, sketch, [{}]):
        sketch = tuple(trace)
    for openings in (_following, _holes):  # what follows from a tile comes before the tile itself
        for number in range(len(sketch)):
            before = replayer.replay(sketch[:number], {}).func
            for step in openings(before, sketch, number, isa):
                opened = (*sketch[:number], step, *sketch[number + 1 :])
                if _usual(before, step) and _legal(replayer, opened, _trials(before, step)):
                    sketch = opened
                    break
    return sketch


def _usual(func: PrimFunc, step: Step) -> bool:
    """Tell whether a step's holes can be what they were in the trace."""
    holes = [hole for _, hole in holes_of(step) if isinstance(hole, Around)]
    return all(hole.usual in hole.values(func, step) for hole in holes)


def _trials(func: PrimFunc, step: Step) -> list[Decisions]:
    """Return decisions in which a step's holes take many of their values, one after another."""
    trials: list[Decisions] = [{}]
    for _, hole in holes_of(step):
        values = hole.values(func, step)
        spread = values[:: max(1, len(values) // TRIED)]
        trials.extend({hole.name: value} for value in (*spread, values[-1]))
    return trials


def _legal(replayer: Replayer, sketch: Sketch, trials: Iterable[Decisions]) -> bool:
    """Tell whether a sketch is legal under each of some decisions, the others as usual."""
    try:
        for decisions in trials:
            replayer.replay(sketch, decisions)
    except ScheduleError:
        return False
    return True


def _pads_last(trace: Sequence[Step]) -> Iterator[Step]:
    """Move each padding of a constant behind the split of its reader, whose factor it follows."""
    held: Step | None = None
    for step in trace:
        if isinstance(step, PadConstant) and held is None:
            held = step
            continue
        yield step
        if held is not None:
            yield held
            held = None
    if held is not None:
        yield held


def _following(func: PrimFunc, sketch: Sketch, number: int, isa: Isa) -> Iterator[Step]:
    """Yield a step with what follows from other steps left to the state of the nest."""
    step = sketch[number]
    match step:
        case PadConstant() | Pack():
            field = "multiple" if isinstance(step, PadConstant) else "factor"
            loops = {s.var: s.extent for s in walk_stmt(func.body) if isinstance(s, Loop)}
            splits = [s for s in sketch[:number][::-1] if isinstance(s, Split)]
            splits.sort(key=lambda s: not _ends(sketch, f"{s.loop}.1", Vectorize))
            for split in splits:
                if loops.get(f"{split.loop}.1") == getattr(step, field):
                    yield _with(step, field, ExtentOf(f"{split.loop}.1"))
        case Reorder():
            yield _with(step, "loops", LoopOrder(f"order {number}", (step.loops,)))
        case ComputeAt():
            before = sketch[number - 1] if number else None
            order = before.loops if isinstance(before, Reorder) else ()
            order = order.orders[0] if isinstance(order, LoopOrder) else order
            if step.loop in order[:-1]:
                yield _with(step, "loop", LoopAround(order[order.index(step.loop) + 1]))
        case Unroll() | Vectorize():
            yield _with(step, "loop", IfLoop(step.loop))


def _holes(func: PrimFunc, sketch: Sketch, number: int, isa: Isa) -> Iterator[Step]:
    """Yield ways to leave a choice of a step open, the widest first."""
    step = sketch[number]
    loops = {s.var: s for s in walk_stmt(func.body) if isinstance(s, Loop)}
    match step:
        case Split(factors=(int(),)) if step.loop in loops:
            yield from _tiles(step, func, loops[step.loop], sketch, number, isa)
        case Reorder(loops=LoopOrder() as hole):
            orders = _orders(hole.orders[0], sketch)
            if len(orders) > 1:
                wider = replace(hole, orders=orders)
                yield _with(step, "loops", Around(hole.name, wider, orders[0]))
        case Unroll():
            name = _named(step)
            if name not in loops or loops[name].role != REDUCE:
                return
            fits = FittingLoop(f"unroll {name}", name, (), 1, STATEMENTS)
            yield _with(step, "loop", Around(fits.name, fits, name, 0.75))


def _with(step: _S, field: str, value: Hole | Derived) -> _S:
    """Return a step with a field left open, of which its type does not know."""
    changes: dict[str, Any] = {field: value}
    return replace(step, **changes)


def _tiles(
    step: Split, func: PrimFunc, loop: Loop, sketch: Sketch, number: int, isa: Isa
) -> Iterator[Step]:
    """Yield a split with its factor open, by what becomes of the inner loop."""
    inner, name, lanes = f"{step.loop}.1", f"tile {step.loop}", isa.lanes("float32")
    spatial = loop.role != REDUCE
    tails = ("shift", "perfect") if step.tail == "perfect" and spatial else (step.tail,)
    for tail in tails:
        hole: Hole = PerfectTile(name, 2, 256)
        if _ends(sketch, inner, Vectorize):
            hole = VectorTile(name, lanes, _vectors(func, loop, sketch), tail)
        elif _ends(sketch, inner, Unroll):
            limit = isa.registers if spatial else STATEMENTS
            waste = 0.25 if tail != "perfect" else 0.0
            hole = FittingTile(name, _beside(sketch, number), lanes, limit, spatial, waste, 32)
        opened = _with(step, "factors", Around(name, hole, step.factors))
        yield replace(opened, tail=tail)


def _vectors(func: PrimFunc, loop: Loop, sketch: Sketch) -> int:
    """Return how many vectors a loop may be cut into pieces of, by what is unrolled around it."""
    for block in blocks(func.body):
        around, _ = nest_of(func.body, block.name)
        if loop in around and block.reduce is None:
            copies = math.prod(l.extent for l in around if _ends(sketch, l.var, Unroll))
            return max(1, min(8, COPIES // copies))
    return 8


def _ends(sketch: Sketch, loop: str, kind: type[Unroll] | type[Vectorize]) -> bool:
    """Tell whether a loop will be unrolled, or vectorised."""
    return any(isinstance(s, kind) and _named(s) == loop for s in sketch)


def _named(step: Unroll | Vectorize) -> str:
    name: object = step.loop
    return name.loop if isinstance(name, IfLoop) else step.loop


def _beside(sketch: Sketch, number: int) -> tuple[str, ...]:
    """Return the inner loops of earlier splits that are unrolled too, the one of vectors first."""
    inner = [f"{s.loop}.1" for s in sketch[:number] if isinstance(s, Split)]
    vectors = [loop for loop in inner if _ends(sketch, loop, Vectorize)]
    others = [loop for loop in inner if _ends(sketch, loop, Unroll)]
    return (*vectors[-1:], *others[-1:]) if vectors else ()


def _orders(loops: tuple[str, ...], sketch: Sketch) -> tuple[tuple[str, ...], ...]:
    """Return an order, and others in which the loop over vectors stands first or last outside."""
    splits = (s for s in sketch if isinstance(s, Split))
    vectors = {s.loop for s in splits if _ends(sketch, f"{s.loop}.1", Vectorize)}
    inside = len(loops)
    while inside and loops[inside - 1].endswith(".1"):
        inside -= 1
    outer, tile = loops[:inside], loops[inside:]
    column = next((l for l in outer if l.removesuffix(".0") in vectors and l.endswith(".0")), None)
    if column is None or not tile:
        return (loops,)
    rest = tuple(l for l in outer if l != column)
    return tuple(dict.fromkeys([loops, (column, *rest, *tile), (*rest, column, *tile)]))
