"""Integer products in the lanes of vectors: output channels side by side, a dot product in each.

The intrinsics are those in which a few elements along the reduction, the same for all lanes, meet a
block of weights: `vpdpbusd`, `sdot`, `vpmaddwd`.
"""

from __future__ import annotations

import math

from toolkit.errors import ScheduleError
from toolkit.ir.compute import Axis
from toolkit.ir.expr import Load, variables
from toolkit.ir.loop import Block, nest_of, PrimFunc, REDUCE
from toolkit.ir.types import DTYPES
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.pad import PadConstant
from toolkit.schedule.steps.pad_read import PadRead
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.schedule.steps.transform_layout import TransformLayout
from toolkit.schedule.tensor_default import along, operands_of, reach_of, Way
from toolkit.schedule.tiling import (
    default_tile,
    dim_of,
    drivers,
    merge_axes,
    PANEL_BYTES,
    Product,
    product_of,
    split_reader,
    Take,
    Tile,
)
from toolkit.targets.isa import Isa
from toolkit.targets.isas import TENSOR_INTRINSICS

BODY = 120
"""Copies of the intrinsic that one iteration of the reduction has, at most about."""


def lane_products(func: PrimFunc, reduction: str, isa: Isa, take: Take, way: Way) -> PrimFunc:
    """Tile rows x vectors of output channels, each lane a dot product along the reduction.

    `way.dtype`: data is read from a padded copy of that type; else as it lies.
    """
    loops = TENSOR_INTRINSICS[way.intrinsic].loops
    deeps = tuple(l.extent for l in loops if l.role == REDUCE)
    sides = tuple(l.extent for l in loops if l.role != REDUCE)
    depth = math.prod(deeps)
    func = merge_axes(split_reader(func, reduction, take), reduction, take)
    factors = operands_of(func, reduction)
    _, block = nest_of(func.body, reduction)
    inner = along(func, block, factors.data)
    found = product_of(func, reduction, isa, block.value.dtype)
    weight = factors.weight.buffer
    dim, deep = dim_of(factors.weight, found.column.axis), dim_of(factors.weight, inner.name)
    if found.depthwise or dim is None or deep is None:
        raise ScheduleError("columns are no output channels of a constant")
    var = drivers(block)[inner.name]
    odd = inner.extent % depth != 0
    func = _copied(func, block, factors.data, take, way, inner if odd else None, depth)
    if odd:
        func = take(PadConstant(var, weight, deep, depth))

    func, place, inside, columns = _tile(func, found, isa, dim, math.prod(sides), take)
    _lay_out(func, weight, deep, dim, deeps[-1] if deeps else 1, columns, take)
    steps, tiled = _around(func, reduction, place)
    if deeps:
        take(Split(var, deeps))
        steps = [*(v for v in steps if v != var), f"{var}.0"]
    take(Split(tiled[-1], sides))
    vectors = [*tiled[:-1], f"{tiled[-1]}.0"]
    parts = {True: iter(f"{var}.{n}" for n in range(1, 9)),
             False: iter(f"{tiled[-1]}.{n}" for n in range(1, 9))}  # fmt: skip
    within = [next(parts[l.role == REDUCE]) for l in loops]
    func = take(Reorder((*steps, *vectors, *within)))
    _unroll(func, reduction, steps, vectors, take)
    return _finish(vectors, inside, within[0], take, way)


def lane_taps(func: PrimFunc, reduction: str, isa: Isa, take: Take, way: Way) -> PrimFunc:
    """Tile rows x vectors of channels of a depthwise convolution: lanes of data times weights."""
    intrinsic = TENSOR_INTRINSICS[way.intrinsic]
    extents = tuple(l.extent for l in intrinsic.loops)
    func = split_reader(func, reduction, take)
    factors = operands_of(func, reduction)
    _, block = nest_of(func.body, reduction)
    found = product_of(func, reduction, isa, block.value.dtype)
    dim = dim_of(factors.weight, found.column.axis)
    if not found.depthwise or dim is None:
        raise ScheduleError("no depthwise convolution")
    lanes = math.prod(extents)
    column = next(a for a in block.axes if a.name == found.column.axis)
    odd = column.extent % lanes != 0
    func = _copied(func, block, factors.data, take, way, column if odd else None, lanes)
    if odd:
        func = take(PadConstant(found.column.loop, factors.weight.buffer, dim, lanes))
        found = product_of(func, reduction, isa, block.value.dtype)
    func, place, inside, columns = _tile(func, found, isa, dim, lanes, take)
    if columns % lanes:
        raise ScheduleError("channels do not fill whole vectors")
    steps, tiled = _around(func, reduction, place)
    take(Split(tiled[-1], extents))
    vectors = [*tiled[:-1], f"{tiled[-1]}.0"]
    within = [f"{tiled[-1]}.{n + 1}" for n in range(len(extents))]
    func = take(Reorder((*steps, *vectors, *within)))
    _unroll(func, reduction, steps, vectors, take)
    return _finish(vectors, inside, within[0], take, way)


def _copied(
    func: PrimFunc, block: Block, data: Load, take: Take, way: Way, odd: Axis | None, depth: int
) -> PrimFunc:
    """Let the reduction read a padded copy of its data, where the way has one and it is needed.

    `odd`: the axis along which the copy has a whole number of `depth` elements.
    """
    if not way.dtype:
        if block.guard is not None or odd is not None:
            raise ScheduleError("windows need a copy")
        return func
    wider = DTYPES[way.dtype].nbytes > DTYPES[data.dtype].nbytes
    if block.guard is None and odd is None and not wider:
        raise ScheduleError("nothing needs a copy")
    multiples = [1] * len(data.indices)
    if odd is not None:
        at = next(d for d, i in enumerate(data.indices) if odd.name in variables(i))
        size, whole = func.buffers()[data.buffer].shape[at], -(-odd.extent // depth) * depth
        multiples[at] = depth
        if size != odd.extent:  # windows along a row: room for the last one's whole steps
            room = reach_of(block, data, odd) + whole
            multiples[at] = 1 if size >= room else room
    return take(PadRead(block.name, data.buffer, (), tuple(multiples), way.dtype))


def _tile(
    func: PrimFunc, found: Product, isa: Isa, dim: int, lanes: int, take: Take
) -> tuple[PrimFunc, str, list[str], int]:
    """Split the loops of the block that reads the sums into tiles, and compute the sums there.

    `lanes`: columns that the intrinsic computes at once.  Returns the function, the loop where the
    sums are computed, those inside it, and the columns.
    """
    rows, tile = default_tile(found, isa)
    if tile.columns % lanes and not found.depthwise:
        columns = -(-tile.columns // lanes) * lanes
        most = (isa.registers - 2) * isa.lanes("int32") // columns - 1
        tile = Tile(max(1, min(tile.rows, most)), columns)
    assert found.weight is not None
    weight, out = found.weight.buffer, found.column.out
    if found.column.extent % tile.columns:
        func = take(PadConstant(found.column.loop, weight, dim, tile.columns))
    extents = {l.var: l.extent for l in nest_of(func.body, found.reader)[0]}
    uneven = extents[out] % tile.columns != 0
    func = take(Split(out, (tile.columns,), "guard" if uneven else "perfect"))
    order = [v for v in found.outer if v != out]
    inside: list[str] = []
    for row, height in reversed(list(zip(rows, (tile.rows, tile.beside), strict=False))):
        if height > 1:
            func = take(Split(row.out, (height,), "shift" if row.extent % height else "perfect"))
            order[order.index(row.out)] = f"{row.out}.0"
            inside.append(f"{row.out}.1")
    inside.append(f"{out}.1")
    panel = math.prod(func.buffers()[weight].shape)
    order.insert(0 if panel > PANEL_BYTES else len(order), f"{out}.0")
    take(Reorder((*order, *inside)))
    func = take(ComputeAt(found.reduction, order[-1]))
    return func, order[-1], inside, tile.columns


def _around(func: PrimFunc, reduction: str, place: str) -> tuple[list[str], list[str]]:
    """Return the reduce loops of a reduction, and the loops of its tile, inside a loop."""
    own, _ = nest_of(func.body, reduction)
    inner = own[[l.var for l in own].index(place) + 1 :]
    steps = [l.var for l in inner if l.role == REDUCE]
    return steps, [l.var for l in inner if l.role != REDUCE]


def _finish(vectors: list[str], inside: list[str], loop: str, take: Take, way: Way) -> PrimFunc:
    """Print the tile of vectors as locals, by the intrinsic, and what reads it."""
    for var in vectors:
        take(Unroll(var))
    take(Tensorize(loop, way.intrinsic))
    for var in inside[:-1]:
        take(Unroll(var))
    return take(Vectorize(inside[-1]))


def _lay_out(
    func: PrimFunc, weight: str, along: int, dim: int, depth: int, columns: int, take: Take
) -> None:
    """Store weights as [tile of columns, other dimensions, step, column, elements of a step]."""
    rank = len(func.buffers()[weight].shape)
    if depth == 1:  # no elements: [tile of columns, other dimensions, column]
        take(Pack(weight, dim, columns))
        return
    # A Pack puts the tiles first and what is inside them last.
    take(Pack(weight, along, depth))
    order = [along, *(d for d in range(rank) if d != along)]
    at = order.index(dim)
    take(Pack(weight, at, columns))
    # Now: tile of columns, step, others, element, column.
    now = [
        "tile",
        "step",
        *(str(d) for d in range(rank) if d not in (along, dim)),
        "element",
        "column",
    ]
    others = [n for n in now if n.isdigit()]
    wanted = ["tile", *others, "step", "column", "element"]
    take(TransformLayout(weight, tuple(now.index(w) for w in wanted)))


def _unroll(
    func: PrimFunc, reduction: str, steps: list[str], vectors: list[str], take: Take
) -> None:
    """Unroll reduce loops from the innermost one while the body does not grow too long."""
    extents = {l.var: l.extent for l in nest_of(func.body, reduction)[0]}
    body = math.prod(extents[v] for v in vectors)
    for var in reversed(steps):
        if body * extents[var] > BODY:
            whole = max(u for u in range(1, extents[var] + 1)
                        if extents[var] % u == 0 and (u == 1 or body * u <= BODY))  # fmt: skip
            if whole > 1:
                take(Split(var, (whole,)))
                take(Unroll(f"{var}.1"))
            break
        body *= extents[var]
        if extents[var] > 1:
            take(Unroll(var))
