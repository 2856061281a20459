"""Default schedules of integer products by tensor intrinsics whose results are words.

A way computes the sums of one reduction by one intrinsic: it lays out the weights, stages the
activations as the intrinsic reads them, tiles rows x columns in registers, and tensorizes.
`tensor_ways` lists them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.errors import ScheduleError
from toolkit.ir.compute import Axis
from toolkit.ir.expr import Binary, Cast, Const, Expr, Load, variables, walk
from toolkit.ir.loop import Block, blocks, CONST, nest_of, own_loops, PrimFunc, REDUCE, SPATIAL
from toolkit.ir.regions import block_loads
from toolkit.ir.simplify import linear
from toolkit.ir.types import DTYPES, is_float
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.fold_zero_point import FoldZeroPoint
from toolkit.schedule.steps.fuse import Fuse
from toolkit.schedule.tiling import (
    dim_of,
    drivers,
    epilogue_of,
    flat_index,
    is_constant,
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

    @property
    def depth(self) -> int:
        """How many products one step of the intrinsic adds up."""
        return math.prod(l.extent for l in TENSOR_INTRINSICS[self.intrinsic].loops)


COPY_BYTES = 2560
"""Most of a copy of activations in RAM at once, beside the tensors that the plan holds."""


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
