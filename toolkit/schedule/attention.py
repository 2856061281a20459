"""Products of two operands that are computed for a block of rows: the scores of attention.

Several stages read such a product (the softmax of its rows), so no one of them can be its epilogue,
and neither operand is constant.  The rows that a tile of the next product needs are computed
together, as register tiles, right before their softmax.
"""

from __future__ import annotations

from toolkit.errors import ScheduleError
from toolkit.ir.expr import Load
from toolkit.ir.loop import Block, blocks, nest_of, own_loops, PrimFunc
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import candidate_loops, ComputeAt
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.split import Split
from toolkit.schedule.tiling import choose_tile, Dim, Product, product_of, rows_in_cache, Take
from toolkit.targets.isa import Isa


def stage_product(func: PrimFunc, reduction: str, isa: Isa, take: Take) -> PrimFunc:
    """Give a product that several blocks read accumulators of its own, for `place_product`."""
    func = take(CacheWrite(reduction))
    _row_of(product_of(func, reduction, isa))
    return func


def place_product(func: PrimFunc, name: str, isa: Isa, take: Take) -> PrimFunc:
    """Compute a product of `stage_product`, which block `name` copies, for as many rows as its
    readers use in one place, and tile it there.

    Raises `ScheduleError` where block `name` is no such copy.
    """
    found = product_of(func, _source(func, name), isa)
    row = _row_of(found)
    place = _place(func, name, row)
    func = take(place) if place is not None else func
    extents = {l.var: l.extent for l in own_loops(nest_of(func.body, name)[0])}
    rows, columns = extents.get(row.out, 1), extents.get(found.column.out, 1)
    tile = choose_tile(
        rows, columns, isa, pad=False, shift=True, depth=found.depth,
        max_rows=min([32, *(rows_in_cache(a) for a in row.apart)]),
    )  # fmt: skip
    if tile.columns < 2:
        raise ScheduleError("no tile divides the last axis")
    order = [v for v in found.outer if v in extents]
    inner = []
    for var, size in ((row.out, tile.rows), (found.column.out, tile.columns)):
        if var not in extents:
            continue
        take(Split(var, (size,), "shift" if extents[var] % size else "perfect"))
        order[order.index(var)] = f"{var}.0"
        inner.append(f"{var}.1")
    take(Reorder((*order, *inner)))
    func = take(ComputeAt(found.reduction, order[-1]))
    loops, _ = nest_of(func.body, found.reduction)
    tiled = [l.var for l in own_loops(loops) if l.var not in found.reduce]
    take(Reorder((*found.reduce, *tiled)))
    for var in (*tiled[:-1], *inner[:-1]):
        take(Unroll(var))
    take(Vectorize(tiled[-1]))
    return take(Vectorize(inner[-1]))


def _row_of(found: Product) -> Dim:
    """Return the axis along which the operand with the columns is reused."""
    row = next((d for d in found.rows if d.reused and d.extent > 1), None)
    if row is None or found.weight is not None or found.depthwise:
        raise ScheduleError("no operand is reused from row to row")
    return row


def _source(func: PrimFunc, name: str) -> str:
    """Return the reduction whose result block `name` copies."""
    _, copy = nest_of(func.body, name)
    if copy.reduce is not None or not isinstance(copy.value, Load):
        raise ScheduleError("not a copy")
    made: list[Block] = [b for b in blocks(func.body) if b.buffer == copy.value.buffer]
    if len(made) != 1 or made[0].reduce is None:
        raise ScheduleError("not a copy of a reduction")
    return made[0].name


def _place(func: PrimFunc, name: str, row: Dim) -> ComputeAt | None:
    """Return the step to the innermost loop that needs several rows and repeats no work.

    Without one, to the innermost that repeats none; None where no loop holds all readers.
    """
    loops, copy = nest_of(func.body, name)
    dim = [a.name for a in copy.axes].index(row.axis)
    innermost: ComputeAt | None = None
    for loop in reversed(candidate_loops(func, name)):
        step = ComputeAt(name, loop)
        try:
            done, size = step.work(func)
            spans, _ = step.spans(func, loops, copy)
        except ScheduleError:
            continue
        if done > size:
            continue
        innermost = innermost or step
        if spans[dim].extent > 1:
            return step
    return innermost
