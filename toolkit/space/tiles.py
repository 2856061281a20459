"""The register tile of a product as a part of a schedule program, its numbers left open.

What `schedule/tiling.py` chooses by a model of the core is sampled here: columns in vectors, rows
along up to two axes, the order of the loops around the tile, a block of rows for the second-level
cache, how much of the reduction is unrolled, and whether the weights are packed.
"""

from __future__ import annotations

from toolkit.errors import ScheduleError
from toolkit.ir.loop import nest_of, own_loops, SERIAL, SPATIAL
from toolkit.ir.regions import block_loads
from toolkit.schedule.derived import ExtentOf, IfLoop, LoopAround
from toolkit.schedule.hole import Hole
from toolkit.schedule.program import Recorder
from toolkit.schedule.tiling import flat_index, Product, stride_in
from toolkit.targets.isa import Isa

STATEMENTS = 224
"""Most copies of the innermost statement: more cost compile time and instruction cache."""


def tile_product(sch: Recorder, product: Product, isa: Isa) -> None:
    """Tile the block that reads a product, and compute the product tile by tile in registers."""
    lanes = isa.lanes("float32")
    tail = "guard" if product.pad else "shift"
    columns = sch.sample_vector_tile(lanes, tail=tail, name="columns")
    c0, c1 = sch.split(product.column.out, columns, tail)
    sch.vectorize(c1)
    if product.weight is not None and product.pad:
        sch.pad_constant(product.column.loop, product.weight.buffer, product.dim or 0, ExtentOf(c1))
    rows = [d for d in product.rows if d.extent > 1 and (d.reused or product.windows)][:2]
    outer = {loop: [loop] for loop in product.outer if loop != product.column.out}
    inner = [c1]
    for number, row in enumerate(rows):
        tile = sch.sample_register_tile(
            inner, lanes, isa.registers, name="rows" if not number else "more_rows"
        )
        r0, r1 = sch.split(row.out, tile, "shift")
        sch.unroll(r1)
        outer[row.out] = [r0]
        inner.append(r1)
    if rows:
        far = outer[rows[-1].out]
        far[:] = sch.split(far[0], sch.sample_perfect_tile(2, name="row_block"))
    sch.reorder(_orders(sch, c0, outer, rows[-1].out if rows else None, inner[::-1]))
    sch.compute_at(product.reduction, LoopAround(inner[-1]))

    tile_loops = [product.column.loop, *(d.loop for d in rows)]
    copies = tile_loops
    reduce = list(product.reduce)
    if reduce:
        size = sch.sample_unroll_tile(copies, lanes, STATEMENTS, name="unroll")
        reduce[-1:] = sch.split(reduce[-1], size)
        copies = [*copies, reduce[-1]]
    inmost = tile_loops[::-1]
    orders = [(*reduce, *inmost)]
    if product.streams and reduce:  # an element is loaded once for all rows whose taps reach it
        orders.append((*reduce[:-1], *inmost[:-1], reduce[-1], inmost[-1]))
    sch.reorder(sch.sample_order(*orders, name="tile_order"))
    if len(reduce) > 2:
        sch.unroll(sch.sample_unrolled(reduce[-3], copies, lanes, STATEMENTS, name="unroll_taps"))
    for loop in (*reduce[-1:], *tile_loops[1:]):
        sch.unroll(IfLoop(loop))
    sch.vectorize(IfLoop(tile_loops[0]))


def tile_alone(sch: Recorder, block: str, isa: Isa) -> None:
    """Tile a reduction in its own loops; its elements are in memory while they accumulate.

    Raises `ScheduleError` where an operand is not contiguous along the last axis.
    """
    loops, found = nest_of(sch.func.body, block)
    spatial = [l for l in loops if l.role == SPATIAL and l.extent > 1]
    if own_loops(loops) != loops or any(l.kind != SERIAL for l in loops) or not spatial:
        raise ScheduleError("the reduction was scheduled before")
    column, lanes = spatial[-1].var, isa.lanes("float32")
    flats = [flat_index(sch.func, found, load) for load in block_loads(found)]
    if any(stride_in(flat, column) not in (0, 1) for flat in flats):
        raise ScheduleError("an operand is not contiguous along the last axis")
    tile = sch.sample_vector_tile(lanes, name=f"{block} columns")
    outer, inner = sch.split(column, tile, "guard")
    order = {l.var: l.var for l in loops}
    order[column] = outer
    tiled = [inner]
    for row in spatial[-2:-1]:
        size = sch.sample_unroll_tile(tiled, lanes, isa.registers, name=f"{block} rows")
        order[row.var], unrolled = sch.split(row.var, size)
        tiled.insert(0, unrolled)
    first = [order[l.var] for l in loops if l.role == SPATIAL]
    reduce = [l.var for l in loops if l.role != SPATIAL]
    sch.reorder(*first, *reduce, *tiled)
    for loop in tiled[:-1]:
        sch.unroll(loop)
    sch.vectorize(tiled[-1])


def _orders(
    sch: Recorder, column: str, outer: dict[str, list[str]], block: str | None, inner: list[str]
) -> Hole:
    """Return the hole for the order of the loops around the tile: where the columns' loop stands.

    Outermost, a panel of the weights stays in the first-level cache; innermost, the rows do;
    between, a block of rows stays in the second-level cache.
    """
    flat = [loop for loops in outer.values() for loop in loops]
    places = {0, len(flat)}
    if block is not None:
        places.add(flat.index(outer[block][0]) + 1)
    orders = tuple((*flat[:at], column, *flat[at:], *inner) for at in sorted(places))
    return sch.sample_order(*orders, name="order")
