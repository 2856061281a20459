"""Integer products whose results are words: rows x columns of dot products in registers.

Convolutions and dense layers.  Columns are output channels, rows are neighbouring pixels.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import dataclass

from toolkit.errors import ScheduleError
from toolkit.ir.compute import Axis
from toolkit.ir.expr import Binary, Const, INDEX, Load, Select, variables
from toolkit.ir.loop import Block, blocks, CONST, nest_of, own_loops, PrimFunc, REDUCE
from toolkit.ir.regions import block_loads
from toolkit.schedule.sliding import cut_border
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.merge_dims import MergeDims
from toolkit.schedule.steps.merge_reduction import MergeReduction
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.pad import PadConstant
from toolkit.schedule.steps.pad_read import PadRead
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.split_choice import SplitChoice
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.schedule.steps.transform_layout import TransformLayout
from toolkit.schedule.steps.unfold import Unfold
from toolkit.schedule.tensor_default import (
    along,
    fold_zero,
    fuse_contiguous,
    operands_of,
    ProductSum,
    reach_of,
    stage_copy,
    sum_of,
    Way,
)
from toolkit.schedule.tiling import (
    copied,
    dim_of,
    drivers,
    flat_index,
    merge_axes,
    split_reader,
    stride_in,
    Take,
)
from toolkit.targets.isa import Isa
from toolkit.targets.isas import TENSOR_INTRINSICS

SHORT_COPY = 8
"""Neighbours that are copied one by one without a loop."""

AROUND = 15
"""Instructions around the reduction of a tile."""

COPIES, FEW = 10, 2
"""Most copies of an intrinsic for an element of a tile, where runs of steps are short."""

SUMS = 8
"""Sums, and as many weights as there are columns, that stay in registers."""

WINDOW_RUN = 6
"""Instructions that copy a vector of neighbouring elements of a window."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Operands as the intrinsic reads them.

    `weight`: the constant; the reduction goes through its dimension `deep` in the loop `loop`, a
    whole number of steps of the intrinsic; columns go through `dim`.  `copies`: blocks that copy
    activations, the one that the reduction reads last.
    """

    weight: Load
    deep: int
    dim: int
    loop: str
    copies: tuple[str, ...]


def word_products(func: PrimFunc, reduction: str, isa: Isa, take: Take, way: Way) -> PrimFunc:
    """Accumulate dot products along neighbouring activations, as they lie or padded and widened."""
    func = split_reader(func, reduction, take)
    func = merge_axes(func, reduction, take)
    found = _product(func, reduction)
    if way.alone and any(a.extent > 1 for a in found.spatial[:-1]):
        raise ScheduleError("there are several rows")
    factors, block, drive = found.factors, found.block, found.drive
    inner = along(func, block, factors.data)
    depth, extent = way.depth, inner.extent
    deep, dim = (dim_of(factors.weight, a.name) for a in (inner, found.spatial[-1]))
    if dim is None or deep is None:
        raise ScheduleError("the weights are laid out otherwise")
    runs = math.prod(a.extent for a in block.axes if a.role == REDUCE and a is not inner)
    loop = drive[inner.name]
    weight = factors.weight
    copies: tuple[str, ...] = ()
    if way.dtype or block.guard is not None or extent % depth:
        at = next(d for d, i in enumerate(factors.data.indices) if inner.name in variables(i))
        multiples = [1] * len(factors.data.indices)
        taps = _taps_beside(func, block, inner, depth) if extent % depth else None
        if taps is not None:
            multiples[at - 1] = taps.room
        elif extent % depth:
            size = func.buffers()[factors.data.buffer].shape[at]
            if 2 * extent <= depth:
                raise ScheduleError("more than half of each step would be padding")
            multiples[at] = depth
            if size != extent:  # windows along a row: room for the last one's whole steps
                room = reach_of(block, factors.data, inner) + -(-extent // depth) * depth
                multiples[at] = 1 if size >= room else room
        step = PadRead(reduction, factors.data.buffer, (), tuple(multiples), way.dtype)
        func, copy = copied(func, step, take)
        copies = (copy,)
        if taps is not None:
            take(MergeDims(nest_of(func.body, copy)[1].buffer, at - 1))
            deep = min(deep, taps.dim)
            func = take(MergeReduction(reduction, weight.buffer, deep))
            dim -= deep < dim
            loop = taps.loop
        else:
            func = _merge_copy(func, reduction, copy, take)
        weight = operands_of(func, reduction).weight
        if extent % depth:
            func = take(PadConstant(loop, weight.buffer, deep, depth))
    if not way.dtype:
        func = fold_zero(func, reduction, take)
    staged = Staged(weight, deep, dim, loop, copies)
    return _tile_words(func, reduction, isa, take, way, found, staged, runs * -(-extent // depth))


def window_products(func: PrimFunc, reduction: str, isa: Isa, take: Take, way: Way) -> PrimFunc:
    """Accumulate dot products along whole windows, each copied to one row.

    For convolutions of few channels, where what lies side by side fills no step of the intrinsic.
    Raises `ScheduleError` where the steps saved do not pay for the copies.
    """
    func = split_reader(func, reduction, take)
    found = _product(func, reduction)
    factors, block, drive = found.factors, found.block, found.drive
    column = found.spatial[-1]
    loops = [l.var for l in nest_of(func.body, reduction)[0]]
    taps = sorted(
        (a for a in block.axes if a.role == REDUCE), key=lambda a: loops.index(drive[a.name])
    )
    dims = [dim_of(factors.weight, a.name) for a in taps]
    dim, deep = dim_of(factors.weight, column.name), dims[0] if dims else None
    if dim is None or deep is None or dims != list(range(deep, deep + len(taps))):
        raise ScheduleError("the weights are laid out otherwise")
    inner = along(func, block, factors.data)
    flat = flat_index(func, block, factors.data)
    length = math.prod(a.extent for a in taps)
    run = 1
    for axis in reversed(taps):
        if axis.extent > 1 and stride_in(flat, drive[axis.name]) != run:
            break
        run *= axis.extent
    steps = -(-length // way.depth)
    if 2 * length <= steps * way.depth:
        raise ScheduleError("more than half of each step would be padding")
    apart = length // inner.extent * -(-inner.extent // way.depth)
    columns = _columns(column.extent, way.columns)
    saved = (apart - steps) * (2 * columns + 1) * -(-column.extent // columns)
    if saved <= WINDOW_RUN * (length // run) * -(-run // way.depth):
        raise ScheduleError("the steps saved do not pay for copies of windows")

    copies: tuple[str, ...] = ()
    data = factors.data.buffer
    if block.guard is not None:
        func, copy = copied(func, PadRead(reduction, data), take)
        copies, data = (copy,), nest_of(func.body, copy)[1].buffer
    func, copy = copied(func, Unfold(reduction, data, way.depth), take)
    loop = drive[taps[0].name]
    for axis in taps[1:]:
        func = take(MergeReduction(reduction, factors.weight.buffer, deep))
        loop = f"{loop}+{drive[axis.name]}"
    weight = operands_of(func, reduction).weight
    if length % way.depth:
        take(PadConstant(loop, weight.buffer, deep, way.depth))
    func = fold_zero(func, reduction, take)
    dim -= (len(taps) - 1) * (deep < dim)
    staged = Staged(weight, deep, dim, loop, (*copies, copy))
    return _tile_words(func, reduction, isa, take, way, found, staged, steps)


def _product(func: PrimFunc, reduction: str) -> ProductSum:
    """Return a sum of products whose activations are the same in all columns."""
    found = sum_of(func, reduction)
    flat = flat_index(func, found.block, found.factors.data)
    if stride_in(flat, found.drive[found.spatial[-1].name]) != 0:
        raise ScheduleError("activations differ from column to column")
    return found


def _tile_words(
    func: PrimFunc,
    reduction: str,
    isa: Isa,
    take: Take,
    way: Way,
    found: ProductSum,
    staged: Staged,
    count: int,
) -> PrimFunc:
    """Compute rows x columns of sums in registers, `count` steps of the intrinsic for each."""
    outer, spatial = found.outer, found.spatial
    column = spatial[-1]
    rows = [a for a in spatial[:-1] if a.extent > 1][-1:]
    height, columns = _tile(
        (rows[0].extent if rows else 1, column.extent),
        count,
        way,
        exact=any(_over(func, found.reader, load) for load in block_loads(found.reader)),
    )
    # Weights: in the order the tile reads them.
    if column.extent % columns:
        func = take(
            PadConstant(found.drive[column.name], staged.weight.buffer, staged.dim, columns)
        )
    _pack_words(staged, columns, way, take)

    # Rows x columns in registers, for rows in the outer loops.
    order = list(outer)
    inside = []
    for axis, out in zip(spatial, outer, strict=True):
        if axis is not column and axis not in rows:
            continue
        count = columns if axis is column else height
        tail = "perfect" if axis.extent % count == 0 else "guard" if axis is column else "shift"
        take(Split(out, (count,), tail))
        order[order.index(out)] = f"{out}.0"
        inside.append(f"{out}.1")
    func = take(Reorder((*order, *inside)))
    func = take(ComputeAt(reduction, order[-1]))
    for copy in reversed(staged.copies):
        func = finish_copy(stage_copy(func, copy, order[:-1], take), copy, way, take)

    # The reduction, a few steps of the intrinsic at a time.
    own, _ = nest_of(func.body, reduction)
    names = [l.var for l in own]
    steps = [*(l.var for l in own if l.role == REDUCE and l.var != staged.loop), staged.loop]
    tile = [v for v in names[names.index(order[-1]) + 1 :] if v not in steps]
    extents_in = [l.extent for l in TENSOR_INTRINSICS[way.intrinsic].loops]
    take(Split(steps[-1], tuple(extents_in)))
    parts = [f"{steps[-1]}.{n}" for n in range(len(extents_in) + 1)]
    func = take(Reorder((*steps[:-1], parts[0], *tile, *parts[1:])))
    around = [*steps[:-1], parts[0]]
    places = dict.fromkeys(block_loads(nest_of(func.body, reduction)[1]))
    func, outside = fuse_contiguous(func, reduction, list(places), around, take)
    extents = {l.var: l.extent for l in nest_of(func.body, reduction)[0]}
    count = extents[outside[-1]]
    most = max(way.unroll, way.windows) if len(outside) > 1 else way.unroll
    unroll = max(u for u in range(1, most + 1) if count % u == 0)
    take(Split(outside[-1], (unroll,)))
    around = [v for v in outside[:-1] if extents[v] > 1]
    if math.prod(extents[v] for v in around) * count <= way.unroll:
        for var in around:
            take(Unroll(var))
    elif around and unroll == count <= FEW:
        last = extents[around[-1]]
        part = max(
            u for u in range(1, last + 1) if last % u == 0 and (u == 1 or u * count <= COPIES)
        )
        take(Split(around[-1], (part,)))
        take(Unroll(f"{around[-1]}.1"))
    parts[:1] = [f"{outside[-1]}.0", f"{outside[-1]}.1"]
    for var in (parts[1], *tile):
        take(Unroll(var))
    func = take(Tensorize(parts[2], way.intrinsic))
    for var in inside[:-1]:
        func = take(Unroll(var))
    in_lanes = isa.lanes(found.block.value.dtype) > 1
    return take(Vectorize(inside[-1]) if in_lanes else Unroll(inside[-1]))


@dataclass(frozen=True, slots=True)
class Taps:
    """Taps whose elements lie side by side: the loop of both once merged, the dimension of the
    weights that the taps drive, and how many places a row of the data needs for whole steps."""

    loop: str
    dim: int
    room: int


def _taps_beside(func: PrimFunc, block: Block, inner: Axis, depth: int) -> Taps | None:
    """Return the axis of taps that goes on where `inner` ends, if steps pay across both."""
    factors, drive = operands_of(func, block.name), drivers(block)
    flat = flat_index(func, block, factors.data)
    loops = [l.var for l in nest_of(func.body, block.name)[0]]
    at = loops.index(drive[inner.name])
    axis = next((a for a in block.axes if drive[a.name] == loops[at - 1]), None) if at else None
    if axis is None or axis.role != REDUCE or stride_in(flat, loops[at - 1]) != inner.extent:
        return None
    dims = [dim_of(factors.weight, a.name) for a in (axis, inner)]
    length = axis.extent * inner.extent
    steps = -(-length // depth)
    if dims[0] is None or dims[1] != dims[0] + 1 or 2 * length <= steps * depth:
        return None
    if steps >= axis.extent * -(-inner.extent // depth):
        return None
    reach = reach_of(block, factors.data, axis)
    return Taps(f"{loops[at - 1]}+{loops[at]}", dims[0], reach + -(-steps * depth // inner.extent))


def _over(func: PrimFunc, reader: Block, load: Load) -> bool:
    """Tell whether a load reads an operand that the reader's result may take the place of."""
    operand = next((b for b in func.inputs if b.name == load.buffer), None)
    if operand is None or operand.scope == CONST:
        return False
    return load.indices == reader.indices and operand.type == func.buffers()[reader.buffer].type


def _columns(extent: int, most: int) -> int:
    """Return how many columns a tile has: a divisor of their number, if one is not much less."""
    best = max(c for c in range(1, most + 1) if extent % c == 0)
    return best if 2 * best > most or extent < most else most


def _tile(extents: tuple[int, int], steps: int, way: Way, *, exact: bool) -> tuple[int, int]:
    """Return the rows and columns of a tile: those that cost the fewest instructions in all.

    `extents`: rows and columns there are.  `steps`: of the intrinsic along the reduction.  `exact`:
    the last rows must not overlap those before.
    """
    rows, columns = extents
    if way.rows == 1:
        return 1, _columns(columns, way.columns)

    def cost(tile: tuple[int, int]) -> float:
        r, c = tile
        spilled = max(0, r * c + c - SUMS)
        step = 2 * r * c + 2 * r + 3 * c + 1 + 2.5 * spilled
        return -(-rows // r) * -(-columns // c) * (steps * step + 5 * r * c + AROUND)

    fitting = [
        (r, c)
        for r in range(1, min(way.rows, rows) + 1)
        for c in range(1, min(way.columns, columns) + 1)
        if rows % r == 0 or not exact
    ]
    return min(fitting, key=cost)


def _pack_words(staged: Staged, columns: int, way: Way, take: Take) -> None:
    """Lay out weights as [tile of columns, other dimensions, step, column, elements of a step]."""
    extents = [l.extent for l in TENSOR_INTRINSICS[way.intrinsic].loops]
    weight, name = staged.weight, staged.weight.buffer
    rest = [d for d in range(len(weight.indices)) if d not in (staged.deep, staged.dim)]
    # Of each dimension where it is now; a Pack puts the tiles first and what is inside them last.
    now: list[tuple[str, int]] = [("", d) for d in range(len(weight.indices))]

    def pack(
        which: tuple[str, int], factor: int, tiles: tuple[str, int], inside: tuple[str, int]
    ) -> None:
        at = now.index(which)
        take(Pack(name, at, factor))
        del now[at]
        now.insert(0, tiles)
        now.append(inside)

    pack(("", staged.deep), way.depth, ("step", 0), ("element", 0))
    elements = [("element", 0)]
    if len(extents) == 2:
        # Bytes 0 and 2, and 1 and 3, are widened together, beside elements in order.
        pack(("element", 0), extents[1], ("half", 0), ("element", 1))
        elements = [("element", 1), ("half", 0)]
    pack(("", staged.dim), columns, ("tile", 0), ("column", 0))
    wanted = [("tile", 0), *(("", d) for d in rest), ("step", 0), ("column", 0), *elements]
    take(TransformLayout(name, tuple(now.index(w) for w in wanted)))


def _merge_copy(func: PrimFunc, reduction: str, copy: str, take: Take) -> PrimFunc:
    """Merge the dimensions of a copy that are read at i // n and i % n of one loop."""
    buffer = nest_of(func.body, copy)[1].buffer
    while True:
        block = nest_of(func.body, reduction)[1]
        [load] = dict.fromkeys(l for l in block_loads(block) if l.buffer == buffer)
        shape = func.buffers()[buffer].shape
        for dim, (high, low) in enumerate(itertools.pairwise(load.indices)):
            match high, low:
                case Binary(op="floordiv"), Binary(op="floormod") if (high.a, high.b) == (
                    low.a, low.b,
                ) and high.b == Const(INDEX, shape[dim + 1]):  # fmt: skip
                    func = take(MergeDims(buffer, dim))
                    break
        else:
            return func


def finish_copy(func: PrimFunc, copy: str, way: Way, take: Take) -> PrimFunc:
    """Cut the border off a copy that has its place, and widen what is left by whole words."""
    buffer = nest_of(func.body, copy)[1].buffer
    if isinstance(nest_of(func.body, copy)[1].value, Select):
        with contextlib.suppress(ScheduleError):  # there is no border along its own loops
            func = cut_border(func, copy, take)
    for block in [b for b in blocks(func.body) if b.buffer == buffer]:
        if isinstance(block.value, Select):
            func = take(SplitChoice(block.name))
    for block in [b for b in blocks(func.body) if b.buffer == buffer]:
        if block_loads(block):
            func = _widen_words(func, block.name, way, take)
    return func


def _widen_words(func: PrimFunc, name: str, way: Way, take: Take) -> PrimFunc:
    """Copy neighbours by an intrinsic; unroll what is too short for it."""
    loops, block = nest_of(func.body, name)
    own = [l.var for l in own_loops(loops)]
    if not own:
        return func
    places = [
        *dict.fromkeys(block_loads(block)), Load(block.value.dtype, block.buffer, block.indices)
    ]  # fmt: skip
    func, own = fuse_contiguous(func, name, places, own, take)
    loops, block = nest_of(func.body, name)
    last = loops[-1]
    extents = {i: math.prod(l.extent for l in TENSOR_INTRINSICS[i].loops) for i in way.widen}
    for intrinsic, extent in extents.items():
        if last.extent % extent:
            continue
        count = last.extent // extent
        unroll = max(u for u in range(1, way.unroll + 1) if count % u == 0)
        steps: tuple[Step, ...] = (
            Split(last.var, (unroll, extent)),
            Unroll(f"{last.var}.1"),
            Tensorize(f"{last.var}.2", intrinsic),
        )
        after = func
        try:
            for step in steps:
                after = step.apply(after)
        except ScheduleError:
            continue
        for step in steps:
            func = take(step)
        return func
    return take(Unroll(last.var)) if 1 < last.extent <= SHORT_COPY else func
