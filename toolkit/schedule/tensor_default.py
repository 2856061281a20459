"""Default schedules of integer products by tensor intrinsics whose results are words.

A way computes the sums of one reduction by one intrinsic: it lays out the weights, stages the
activations as the intrinsic reads them, tiles rows x columns in registers, and tensorizes.
`tensor_ways` lists them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.errors import ScheduleError
from toolkit.ir.compute import Axis
from toolkit.ir.expr import Binary, Cast, Const, Expr, INDEX, Load, Select, variables, walk
from toolkit.ir.loop import Block, blocks, CONST, nest_of, own_loops, PrimFunc, REDUCE, SPATIAL
from toolkit.ir.regions import block_loads
from toolkit.ir.simplify import linear
from toolkit.ir.types import DTYPES, is_float
from toolkit.schedule.sliding import cut_border
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.fold_zero_point import FoldZeroPoint
from toolkit.schedule.steps.fuse import Fuse
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
from toolkit.schedule.tiling import (
    dim_of,
    drivers,
    epilogue_of,
    flat_index,
    is_constant,
    merge_axes,
    split_reader,
    stride_in,
    Take,
)
from toolkit.targets.isa import Isa
from toolkit.targets.isas import TENSOR_INTRINSICS


@dataclass(frozen=True, slots=True)
class Way:
    """How a kind of kernel is computed by `intrinsic`.

    `schedule(func, reduction, isa, take, way)` takes the steps, and raises `ScheduleError` for
    kernels that are of another kind.  `rows`, `columns`: of the register tile, at most.  `unroll`:
    copies of the intrinsic along the reduction, at most; along windows `windows`, if more.
    `dtype`: what activations are widened to first, once for all columns, by one of `widen` where it
    can; "" where the intrinsic widens as it loads.
    `alone`: only products of a single row are worth it.
    """

    intrinsic: str
    schedule: Callable[[PrimFunc, str, Isa, Take, Way], PrimFunc]
    rows: int = 1
    columns: int = 1
    unroll: int = 1
    windows: int = 0
    dtype: str = ""
    widen: tuple[str, ...] = ()
    alone: bool = False


COPY_BYTES = 2560
"""Most of a copy of activations in RAM at once, beside the tensors that the plan holds."""

SHORT_COPY = 8
"""Neighbours that are copied one by one without a loop."""

AROUND = 15
"""Instructions around the reduction of a tile."""

COPIES, FEW = 10, 2
"""Most copies of an intrinsic for an element of a tile, where runs of steps are short."""

SUMS = 8
"""Sums, and as many weights as there are columns, that stay in registers."""


@dataclass(frozen=True, slots=True)
class Operands:
    """The factors of a sum of integer products: activations, and constant weights."""

    data: Load
    weight: Load


def operands_of(func: PrimFunc, reduction: str) -> Operands:
    """Return what a reduction multiplies; raise `ScheduleError` where it sums something else."""
    _, block = nest_of(func.body, reduction)
    value = block.value
    if block.reduce != "sum" or not isinstance(value, Binary) or value.op != "mul":
        raise ScheduleError("no sum of products")
    loads = list(dict.fromkeys(block_loads(block)))
    weights = [l for l in loads if is_constant(func, l)]
    if len(loads) != 2 or len(weights) != 1 or is_float(value.dtype):
        raise ScheduleError("no integers times a constant")
    [weight] = weights
    return Operands(next(l for l in loads if l is not weight), weight)


@dataclass(frozen=True, slots=True)
class ProductSum:
    """A sum of integer products as a way of tensor intrinsics sees it.

    `reader`: the block that reads the sums, in the loops `outer` (outermost first); `drive`: the
    loop of each axis of `block`; `spatial`: its axes that are not summed over.
    """

    factors: Operands
    block: Block
    reader: Block
    outer: list[str]
    drive: dict[str, str]
    spatial: list[Axis]


def sum_of(func: PrimFunc, reduction: str) -> ProductSum:
    """Return what ways need of a reduction; raise `ScheduleError` where it is no such sum."""
    factors = operands_of(func, reduction)
    _, block = nest_of(func.body, reduction)
    reader = epilogue_of(func, block)
    outer = [l.var for l in own_loops(nest_of(func.body, reader.name)[0])]
    spatial = [a for a in block.axes if a.role == SPATIAL]
    return ProductSum(factors, block, reader, outer, drivers(block), spatial)


def word_products(func: PrimFunc, reduction: str, isa: Isa, take: Take, way: Way) -> PrimFunc:
    """Accumulate dot products along the reduction in words: rows x columns of them at once.

    Convolutions and dense layers; columns are output channels, rows are neighbouring pixels.
    """
    intrinsic = TENSOR_INTRINSICS[way.intrinsic]
    depth = math.prod(l.extent for l in intrinsic.loops)
    func = split_reader(func, reduction, take)
    func = merge_axes(func, reduction, take)
    found = sum_of(func, reduction)
    factors, block, reader = found.factors, found.block, found.reader
    outer, drive, spatial = found.outer, found.drive, found.spatial
    column = spatial[-1]
    flat = flat_index(func, block, factors.data)
    if stride_in(flat, drive[column.name]) != 0:
        raise ScheduleError("activations differ from column to column")
    if way.alone and any(a.extent > 1 for a in spatial[:-1]):
        raise ScheduleError("there are several rows")
    dim = dim_of(factors.weight, column.name)
    inner = along(func, block, factors.data)
    deep = dim_of(factors.weight, inner.name)
    if dim is None or deep is None:
        raise ScheduleError("the weights are laid out otherwise")
    rows = [a for a in spatial[:-1] if a.extent > 1][-1:]
    runs = math.prod(a.extent for a in block.axes if a.role == REDUCE and a is not inner)
    height, columns = _tile(
        (rows[0].extent if rows else 1, column.extent),
        runs * -(-inner.extent // depth),
        way,
        exact=any(_over(func, reader, load) for load in block_loads(reader)),
    )

    # Activations: padded, widened, a whole number of steps of the intrinsic.
    copy = taps = None
    if way.dtype or block.guard is not None or inner.extent % depth:
        at = next(d for d, i in enumerate(factors.data.indices) if inner.name in variables(i))
        multiples = [1] * len(factors.data.indices)
        taps = _taps_beside(func, block, inner, depth) if inner.extent % depth else None
        if taps is not None:
            multiples[at - 1] = taps.room
        elif inner.extent % depth:
            size = func.buffers()[factors.data.buffer].shape[at]
            if 2 * inner.extent <= depth:
                raise ScheduleError("more than half of each step would be padding")
            multiples[at] = depth
            if size != inner.extent:  # windows along a row: room for the last one's whole steps
                room = reach_of(block, factors.data, inner) + -(-inner.extent // depth) * depth
                multiples[at] = 1 if size >= room else room
        before = {b.name for b in blocks(func.body)}
        func = take(PadRead(reduction, factors.data.buffer, (), tuple(multiples), way.dtype))
        [copy] = (b.name for b in blocks(func.body) if b.name not in before)
        if taps is not None:
            take(MergeDims(nest_of(func.body, copy)[1].buffer, at - 1))
            deep = min(deep, taps.dim)
            func = take(MergeReduction(reduction, factors.weight.buffer, deep))
            dim -= deep < dim
            factors = operands_of(func, reduction)
            func = take(PadConstant(taps.loop, factors.weight.buffer, deep, depth))
        else:
            func = _merge_copy(func, reduction, copy, take)
            if inner.extent % depth:
                func = take(PadConstant(drive[inner.name], factors.weight.buffer, deep, depth))
    if not way.dtype:
        func = fold_zero(func, reduction, take)

    # Weights: in the order the tile reads them.
    if column.extent % columns:
        func = take(PadConstant(drive[column.name], factors.weight.buffer, dim, columns))
    _pack_words(factors.weight, deep, dim, depth, columns, way, take)

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
    if copy is not None:
        func = finish_copy(stage_copy(func, copy, order[:-1], take), copy, way, take)

    # The reduction, a few steps of the intrinsic at a time.
    own, _ = nest_of(func.body, reduction)
    names = [l.var for l in own]
    deepest = taps.loop if taps is not None else drive[inner.name]
    steps = [*(l.var for l in own if l.role == REDUCE and l.var != deepest), deepest]
    tile = [v for v in names[names.index(order[-1]) + 1 :] if v not in steps]
    take(Split(steps[-1], tuple(l.extent for l in intrinsic.loops)))
    parts = [f"{steps[-1]}.{n}" for n in range(len(intrinsic.loops) + 1)]
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
    in_lanes = isa.lanes(block.value.dtype) > 1
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


def reach_of(block: Block, data: Load, taps: Axis) -> int:
    """Return how far from the first place the last one lies, where the taps move along."""
    terms, _ = linear(next(i for i in data.indices if taps.name in variables(i)))
    places = (a for a in block.axes if a.role == SPATIAL)
    return sum((a.extent - 1) * max(terms.get(a, 0), 0) for a in places)


def fold_zero(func: PrimFunc, reduction: str, take: Take) -> PrimFunc:
    """Take the zero point of the activations out of a sum of products, into the bias of a reader.

    Raises `ScheduleError` where there is a zero point and no such bias.
    """
    _, block = nest_of(func.body, reduction)
    factors = operands_of(func, reduction)
    assert isinstance(block.value, Binary)
    for factor in (block.value.a, block.value.b):
        match factor:
            case Binary(op="sub", a=wide, b=Const(value=int(zero))):
                load = wide.a if isinstance(wide, Cast) else wide
                dim = dim_of(factors.weight, block.axes[_last_spatial(block)].name)
                found = _bias_of(func, block)
                if load != factors.data or dim is None or found is None:
                    raise ScheduleError("a zero point has no bias to go into")
                bias, multiplier = found
                weight = factors.weight.buffer
                return take(
                    FoldZeroPoint(
                        reduction, factors.data.buffer, weight, bias, zero, dim, multiplier
                    )
                )
    return func


def _last_spatial(block: Block) -> int:
    return max(n for n, a in enumerate(block.axes) if a.role == SPATIAL)


def _bias_of(func: PrimFunc, block: Block) -> tuple[str, str] | None:
    """Return the constant that the reader of a block's result adds to it, or to its product with
    another constant, and that one or ""."""

    def alone(e: Expr) -> str:
        """Return the buffer of a load, converted or not; "" of others."""
        inner = e.a if isinstance(e, Cast) else e
        return inner.buffer if isinstance(inner, Load) else ""

    consts = {b.name for b in func.inputs if b.scope == CONST}
    for reader in blocks(func.body):
        for e in walk(reader.value):
            if not isinstance(e, Binary) or e.op != "add":
                continue
            for own, other in ((e.a, e.b), (e.b, e.a)):
                if not isinstance(other, Load) or other.buffer not in consts:
                    continue
                if alone(own) == block.buffer:
                    return other.buffer, ""
                if isinstance(own, Binary) and own.op == "mul":
                    for x, y in ((own.a, own.b), (own.b, own.a)):
                        if alone(x) == block.buffer and alone(y) in consts:
                            return other.buffer, alone(y)
    return None


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


def along(func: PrimFunc, block: Block, data: Load) -> Axis:
    """Return the innermost reduce axis along which the activations are contiguous."""
    flat, drive = flat_index(func, block, data), drivers(block)
    found = [
        a for a in block.axes
        if a.role == REDUCE and a.extent > 1 and stride_in(flat, drive[a.name]) == 1
    ]  # fmt: skip
    if not found:
        raise ScheduleError("activations are not contiguous along the reduction")
    return found[-1]


def _pack_words(
    weight: Load, along: int, dim: int, depth: int, columns: int, way: Way, take: Take
) -> None:
    """Lay out weights as [tile of columns, other dimensions, step, column, elements of a step]."""
    extents = [l.extent for l in TENSOR_INTRINSICS[way.intrinsic].loops]
    name = weight.buffer
    rest = [d for d in range(len(weight.indices)) if d not in (along, dim)]
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

    pack(("", along), depth, ("step", 0), ("element", 0))
    elements = [("element", 0)]
    if len(extents) == 2:
        # Bytes 0 and 2, and 1 and 3, are widened together, beside elements in order.
        pack(("element", 0), extents[1], ("half", 0), ("element", 1))
        elements = [("element", 1), ("half", 0)]
    pack(("", dim), columns, ("tile", 0), ("column", 0))
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


def stage_copy(func: PrimFunc, copy: str, loops: list[str], take: Take) -> PrimFunc:
    """Make the copy of activations where no more of it than `COPY_BYTES` is alive at once.

    Of those loops, outermost first, the one where the fewest elements are made.
    """
    best: tuple[float, int, str] | None = None
    for depth, loop in enumerate(loops):
        step = ComputeAt(copy, loop)
        around, block = step.find(func, copy)
        buffer = func.buffers()[block.buffer]
        try:
            spans, _ = step.spans(func, around, block)
            done, _ = step.work(func)
        except ScheduleError:
            continue
        alive = math.prod(s.extent for s in spans) * DTYPES[buffer.dtype].nbytes
        if alive <= COPY_BYTES and (best is None or (done, -depth) < best[:2]):
            best = (done, -depth, loop)
    if best is None:
        raise ScheduleError("the copy of activations takes too much memory")
    return take(ComputeAt(copy, best[2]))


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


def fuse_contiguous(
    func: PrimFunc, name: str, places: Sequence[Load], loops: list[str], take: Take
) -> tuple[PrimFunc, list[str]]:
    """Fuse the last of some loops of a block with those before, where neighbours stay neighbours.

    `places`: elements that the block reads and stores.  Returns the function and the loops left.
    """
    while len(loops) > 1:
        around, block = nest_of(func.body, name)
        first, last = loops[-2:]
        extent = next(l.extent for l in around if l.var == last)
        for load in places:
            flat = flat_index(func, block, load)
            inner = stride_in(flat, last)
            if inner is None or stride_in(flat, first) != inner * extent:
                return func, loops
        func = take(Fuse(first, last))
        loops = [*loops[:-2], f"{first}+{last}"]
    return func, loops
