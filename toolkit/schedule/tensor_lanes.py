"""Integer products in the lanes of vectors: output channels side by side, a dot product in each.

The intrinsics are those in which a few elements along the reduction, the same for all lanes, meet a
block of weights: `vpdpbusd`, `sdot`, `vpmaddwd`.
"""

from __future__ import annotations

import math

from toolkit.errors import ScheduleError
from toolkit.ir.expr import variables
from toolkit.ir.loop import nest_of, PrimFunc, REDUCE
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.pad import PadConstant
from toolkit.schedule.steps.pad_read import PadRead
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.schedule.steps.transform_layout import TransformLayout
from toolkit.schedule.tensor_default import along, drivers, operands_of, Way
from toolkit.schedule.tiling import (
    default_tile,
    dim_of,
    flat_index,
    merge_axes,
    PANEL_BYTES,
    product_of,
    split_reader,
    stride_in,
    Take,
)
from toolkit.targets.isa import Isa
from toolkit.targets.isas import TENSOR_INTRINSICS

BODY = 160
"""Copies of the intrinsic that one iteration of the reduction has, at most about."""


def lane_products(func: PrimFunc, reduction: str, isa: Isa, take: Take, way: Way) -> PrimFunc:
    """Tile rows x vectors of output channels, each lane a dot product along the reduction.

    `way.dtype`: data is read from a padded copy of that type; else as it lies.
    """
    intrinsic = TENSOR_INTRINSICS[way.intrinsic]
    depth, lanes = intrinsic.loops[-1].extent, intrinsic.lanes()
    func = split_reader(func, reduction, take)
    func = merge_axes(func, reduction, take)
    factors = operands_of(func, reduction)
    _, block = nest_of(func.body, reduction)
    inner = along(func, block, factors.data)
    odd = inner.extent % depth != 0
    if not way.dtype and (block.guard is not None or odd):
        raise ScheduleError("windows need a copy")
    if way.dtype and block.guard is None and not odd:
        raise ScheduleError("nothing needs a copy")
    found = product_of(func, reduction, isa, block.value.dtype)
    weight = factors.weight
    dim, deep = dim_of(weight, found.column.axis), dim_of(weight, inner.name)
    if (
        dim is None
        or deep is None
        or stride_in(flat_index(func, block, factors.data), found.column.loop) != 0
    ):
        raise ScheduleError("columns are no output channels of a constant")
    drive = drivers(block)

    if way.dtype:
        multiples = [1] * len(factors.data.indices)
        if odd:
            at = next(d for d, i in enumerate(factors.data.indices) if inner.name in variables(i))
            if func.buffers()[factors.data.buffer].shape[at] != inner.extent:
                raise ScheduleError("windows of an odd number of elements")
            multiples[at] = depth
        func = take(PadRead(reduction, factors.data.buffer, (), tuple(multiples), way.dtype))
        if odd:
            func = take(PadConstant(drive[inner.name], weight.buffer, deep, depth))

    rows, tile = default_tile(found, isa)
    column, out_column = found.column.loop, found.column.out
    uneven = found.column.extent % tile.columns != 0
    if uneven:
        func = take(PadConstant(column, weight.buffer, dim, tile.columns))
    func = take(Split(out_column, (tile.columns,), "guard" if uneven else "perfect"))
    order = [v for v in found.outer if v != out_column]
    inside: list[str] = []
    for row, height in reversed(list(zip(rows, (tile.rows, tile.beside), strict=False))):
        if height == 1:
            continue
        func = take(Split(row.out, (height,), "shift" if row.extent % height else "perfect"))
        order[order.index(row.out)] = f"{row.out}.0"
        inside.append(f"{row.out}.1")
    inside.append(f"{out_column}.1")
    panel = math.prod(func.buffers()[weight.buffer].shape)
    order.insert(0 if panel > PANEL_BYTES else len(order), f"{out_column}.0")
    func = take(Reorder((*order, *inside)))
    func = take(ComputeAt(reduction, order[-1]))
    _lay_out(func, weight.buffer, deep, dim, depth, tile.columns, take)

    own, _ = nest_of(func.body, reduction)
    names = [l.var for l in own]
    steps = [l for l in own if l.role == REDUCE]
    tiled = [v for v in names[names.index(order[-1]) + 1 :] if v not in {l.var for l in steps}]
    last = next(l for l in steps if l.var == drive[inner.name])
    outer = [l for l in steps if l is not last]
    take(Split(last.var, (depth,)))
    take(Split(tiled[-1], (lanes,)))
    vectors = [*tiled[:-1], f"{tiled[-1]}.0"]
    within = (f"{tiled[-1]}.1", f"{last.var}.1")
    func = take(Reorder((*(l.var for l in outer), f"{last.var}.0", *vectors, *within)))
    func = _unroll(func, reduction, [*(l.var for l in outer), f"{last.var}.0"], vectors, take)
    for var in vectors:
        func = take(Unroll(var))
    func = take(Tensorize(within[0], way.intrinsic))
    for var in inside[:-1]:
        func = take(Unroll(var))
    return take(Vectorize(inside[-1]))


def _lay_out(
    func: PrimFunc, weight: str, along: int, dim: int, depth: int, columns: int, take: Take
) -> None:
    """Store weights as [tile of columns, other dimensions, step, column, elements of a step]."""
    rank = len(func.buffers()[weight].shape)
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
) -> PrimFunc:
    """Unroll reduce loops from the innermost one while the body does not grow too long."""
    extents = {l.var: l.extent for l in nest_of(func.body, reduction)[0]}
    body = math.prod(extents[v] for v in vectors)
    for var in reversed(steps):
        if body * extents[var] > BODY:
            whole = max(u for u in range(1, extents[var] + 1)
                        if extents[var] % u == 0 and (u == 1 or body * u <= BODY))  # fmt: skip
            if whole > 1:
                take(Split(var, (whole,)))
                func = take(Unroll(f"{var}.1"))
            break
        body *= extents[var]
        if extents[var] > 1:
            func = take(Unroll(var))
    return func
