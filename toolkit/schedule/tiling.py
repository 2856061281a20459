"""Register tiles and vector loops for the default schedule, chosen by a model of the core.

A reduction whose operands are contiguous along its last axis gets a tile of rows x vectors of
accumulators, all in registers, around its reduce loops; the epilogue that reads it runs on the same
tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolkit.errors import ScheduleError
from toolkit.ir.compute import Axis
from toolkit.ir.expr import Binary, binary, Const, Expr, INDEX, Load, Var, variables, walk
from toolkit.ir.loop import (
    Block,
    blocks,
    CONST,
    Loop,
    nest_of,
    own_loops,
    PrimFunc,
    REDUCE,
    SCAN,
    SERIAL,
    SPATIAL,
)
from toolkit.ir.regions import block_loads, bound_expr, loop_ranges
from toolkit.ir.simplify import linear, simplify
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.base import block_names, Step
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.fuse import Fuse
from toolkit.schedule.steps.merge_dims import MergeDims
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.pad import PadConstant
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.rfactor import RFactor
from toolkit.schedule.steps.split import Split
from toolkit.targets.isa import Isa

PANEL_BYTES = 24 * 1024
"""What of a constant operand stays in the first-level cache beside the rows that are read."""

FAR_BYTES = 20
"""Bytes a cycle that come from the second-level cache."""

Take = Callable[[Step], PrimFunc]
"""Applies a step, records it in the trace, and returns the new function; raises `ScheduleError`."""


@dataclass(frozen=True, slots=True)
class Tile:
    """What one register tile holds: rows, elements of the last axis, and rows of a second axis."""

    rows: int
    columns: int
    beside: int = 1


def copied(func: PrimFunc, step: Step, take: Take) -> tuple[PrimFunc, str]:
    """Take a step that makes one block, a copy; return the function and the block's name."""
    before = block_names(func)
    func = take(step)
    [copy] = block_names(func) - before
    return func, copy


def vectorize_tile(
    func: PrimFunc, reduction: str, at: str, inside: Sequence[str], take: Take, *,
    unroll: bool = False,
) -> PrimFunc:  # fmt: skip
    """Keep the tile of sums that is computed at a loop in registers, its last loop in lanes.

    `inside`: the consumer's loops over the tile, outermost first.  `unroll`: also the reduction.
    """
    own, _ = nest_of(func.body, reduction)
    names = [l.var for l in own]
    steps = [l.var for l in own if l.role == REDUCE]
    tile = [v for v in names[names.index(at) + 1 :] if v not in steps]
    take(Reorder((*steps, *tile)))
    for var in (*(steps if unroll else ()), *tile[:-1]):
        take(Unroll(var))
    take(Vectorize(tile[-1]))
    for var in inside[:-1]:
        take(Unroll(var))
    return take(Vectorize(inside[-1]))


def flat_index(func: PrimFunc, block: Block, load: Load) -> Expr:
    """Return the row-major subscript of a load over loop variables."""
    shape = func.buffers()[load.buffer].shape
    flat: Expr | None = None
    stride = 1
    for index, extent in zip(reversed(load.indices), reversed(shape), strict=True):
        term = binary("mul", bound_expr(block, index), stride)
        flat = term if flat is None else binary("add", term, flat)
        stride *= extent
    loops, _ = nest_of(func.body, block.name)
    return simplify(flat if flat is not None else binary("add", 0, 0), loop_ranges(loops))


def stride_in(flat: Expr, var: str) -> int | None:
    """Return the distance between neighbours along a loop; None if it is not constant."""
    terms, _ = linear(flat)
    stride = 0
    for atom, k in terms.items():
        if isinstance(atom, Var) and atom.name == var:
            stride = k
        elif var in variables(atom):
            return None
    return stride


def choose_tile(
    rows: int, columns: int, isa: Isa, *, pad: bool, shift: bool = False, max_rows: int,
    depth: int = 1, limits: int = 1, overlap: int = 1, beside: int = 1, chunk: int = 1,
) -> Tile:  # fmt: skip
    """Choose the tile that takes the fewest cycles over the whole output, by a model of the core.

    A step of the reduction, of which there are `depth`, costs the largest of: its multiply-adds
    (two vectors a cycle), its loads (two a cycle), the latency of a multiply-add (4 cycles), and
    the transfer of columns that come from the second-level cache.  Cores without vectors issue one
    at a time.  Registers hold whole vectors, so rows of other lengths are taken one by one.
    `pad`, `shift`: whether columns may be added, or computed twice, for whole vectors.
    `limits`: how many numbers the epilogue compares with or multiplies by.
    `overlap`: how many taps of a step reach the same elements from neighbouring rows.
    `chunk`: how many steps take their broadcast operands from the lanes of one vector.
    `beside`: extent of a second axis of rows, for tiles that would not fit the first one well.
    """
    lanes = isa.lanes("float32")
    best: tuple[float, int, Tile] | None = None
    for vectors in (1, 2, 3, 4, 6, 8):
        if pad or lanes == 1:
            width = vectors * lanes
            if vectors > 1 and width - columns >= lanes:
                continue
            if not pad and columns % width:
                continue
        else:
            divisors = [
                d for d in range(1, columns + 1) if columns % d == 0 and -(-d // lanes) == vectors
            ]
            if shift and vectors * lanes < columns:
                divisors.append(vectors * lanes)
            if not divisors:
                continue
            width = divisors[-1]
        # Of 16, compilers also use some for what the epilogue reads, across the reduction.
        kept = limits if isa.registers <= 16 else 0
        heights = [(h, d) for d in range(1, min(beside, 4) + 1) for h in range(1, rows + 1)]
        for height, deep in heights:
            count = height * deep
            registers = count * vectors + overlap * (vectors + 1)
            if chunk > 1:
                registers = count * vectors + chunk * vectors + 1
            if count > max_rows or registers > isa.registers - 1:  # compilers want one to spare
                continue
            if lanes > 1 and ((count > 1 and width % lanes) or registers + kept > isa.registers):
                continue
            fma, loads = count * vectors * overlap, count / chunk + vectors
            if overlap > 1:
                loads = (count + overlap - 1) * vectors + overlap
            # Equal otherwise, fewer loads win, and rows of one axis.
            if lanes > 1:
                far = 4 * width / FAR_BYTES if 4 * depth * width > PANEL_BYTES else 0.0
                cycles = max(fma / 2, loads / 2, 5.0, far) + 0.04 * vectors + 0.02 * count
                cycles *= 1 + 0.01 * (deep - 1)
            else:
                cycles = fma + 1.1 * loads + 1.5
            tiles = -(-rows // height) * -(-columns // width) * -(-beside // deep)
            cost = tiles * cycles
            key = (cost, fma, Tile(height, width, deep))
            if best is None or key[:2] < best[:2]:
                best = key
    return best[2] if best is not None else Tile(1, columns)


def rows_in_cache(stride: int) -> int:
    """Return how many rows, `stride` bytes apart, a tile can read side by side.

    Addresses 4096 bytes apart share a set of the first-level cache; it holds 8 lines, and one is
    for what is read between.
    """
    return 7 * 4096 // math.gcd(stride, 4096)


def tile_product(func: PrimFunc, reduction: str, isa: Isa, take: Take) -> PrimFunc:
    """Tile a product with a constant that several blocks read, at whatever subscripts."""
    _, block = nest_of(func.body, reduction)
    if not any(is_constant(func, load) for load in block_loads(block)):
        raise ScheduleError("no operand is constant")
    return tile_reduction(take(CacheWrite(reduction)), reduction, isa, take)


def tile_reduction(
    func: PrimFunc, reduction: str, isa: Isa, take: Take, overlap: str | None = None
) -> PrimFunc:
    """Tile the reduction block and the element-wise block that reads it.

    `overlap`: the reduce loop whose steps reach what neighbouring rows reach.

    Raises `ScheduleError` where the pattern does not hold; the caller then rolls back.
    """
    func = split_reader(func, reduction, take)
    if isa.lanes("float32") > 1:
        func = merge_axes(func, reduction, take)
    found = product_of(func, reduction, isa, _sums(func, reduction, isa))
    columns, weight, dim = found.column.extent, found.weight, found.dim
    column_var, out_column = found.column.loop, found.column.out
    taps = next((l.extent for l in nest_of(func.body, reduction)[0] if l.var == overlap), 1)
    chunk = _chunk(func, reduction, isa) if overlap is None else 1
    rows, tile = default_tile(found, isa, overlap=taps, chunk=chunk)
    shift = found.streams
    if not 2 <= tile.columns <= 128:
        raise ScheduleError("no tile divides the last axis")

    uneven = columns % tile.columns != 0
    if uneven and not shift:
        if weight is None or dim is None:
            raise ScheduleError("the tail needs a padded constant operand")
        func = take(PadConstant(column_var, weight.buffer, dim, tile.columns))
    tail = "perfect" if not uneven else "shift" if shift else "guard"
    func = take(Split(out_column, (tile.columns,), tail))
    order = [v for v in found.outer if v != out_column]
    inner: list[str] = []
    for row, height in reversed(list(zip(rows, (tile.rows, tile.beside), strict=False))):
        if height == 1:
            continue
        func = take(Split(row.out, (height,), "shift" if row.extent % height else "perfect"))
        order[order.index(row.out)] = f"{row.out}.0"
        inner.append(f"{row.out}.1")
    inner.append(f"{out_column}.1")
    panel = math.prod(func.buffers()[weight.buffer].shape) * 4 if weight is not None else 0
    if panel > PANEL_BYTES:
        order.insert(0, f"{out_column}.0")
    else:
        order.append(f"{out_column}.0")
    func = take(Reorder((*order, *inner)))
    func = take(ComputeAt(reduction, order[-1]))
    own, _ = nest_of(func.body, reduction)
    names = [l.var for l in own]
    reduce_loops = [l.var for l in own if l.role == REDUCE]
    tile_loops = [v for v in names[names.index(order[-1]) + 1 :] if v not in reduce_loops]
    if chunk > 1:
        # Rows one by one, each with the lanes of what it broadcasts.
        func = take(Split(reduce_loops[-1], (chunk,)))
        overlap = f"{reduce_loops[-1]}.1"
        reduce_loops[-1:] = [f"{reduce_loops[-1]}.0", overlap]
    if overlap is not None and len(tile_loops) > 1:
        # An element is loaded once for all rows whose taps reach it.
        reduce_loops.remove(overlap)
        tile_loops.insert(-1, overlap)
    if len(reduce_loops) + len(tile_loops) > 1:
        func = take(Reorder((*reduce_loops, *tile_loops)))
    if reduce_loops and overlap is None:
        last = next(l for l in own if l.var == reduce_loops[-1])
        func = _unroll_reduction(func, last, isa, take)
    for var in tile_loops[:-1]:
        func = take(Unroll(var))
    func = take(Vectorize(tile_loops[-1]))
    for var in inner[:-1]:
        func = take(Unroll(var))
    func = take(Vectorize(inner[-1]))
    if (
        weight is not None
        and dim is not None
        and -(-columns // tile.columns) > 1
        and not found.depthwise
    ):
        func = take(Pack(weight.buffer, dim, tile.columns))
    return func


def _sums(func: PrimFunc, reduction: str, isa: Isa) -> str:
    """Return the type of sums in vectors: float32, or the int32 of a reduction where it has such.

    Products of integers for which there is no intrinsic are multiplied lane by lane.
    """
    dtype = nest_of(func.body, reduction)[1].value.dtype
    wide = dtype == "int32" and isa.lanes(dtype) == isa.lanes("float32") and isa.registers >= 16
    return dtype if wide else "float32"


def merge_axes(func: PrimFunc, reduction: str, take: Take) -> PrimFunc:
    """Make one axis of two that every operand goes through as if they were one.

    So tiles of a 1x1 convolution need not end with a row of its image.
    """
    while True:
        _, block = nest_of(func.body, reduction)
        reader = epilogue_of(func, block)
        dims = range(len(block.indices) - 2, -1, -1)
        dim = next((d for d in dims if _one_axis(func, block, reader, d)), None)
        if dim is None:
            break
        first, second = _outer_pair(func, reader, dim)
        take(MergeDims(block.buffer, dim))
        func = take(Fuse(first, second))
    return func


def _outer_pair(func: PrimFunc, reader: Block, dim: int) -> tuple[str, str]:
    """Return the reader's loops over two neighbouring dimensions."""
    own = [l.var for l in own_loops(nest_of(func.body, reader.name)[0])]
    return own[dim], own[dim + 1]


def _one_axis(func: PrimFunc, block: Block, reader: Block, dim: int) -> bool:
    """Tell whether dimensions `dim` and `dim` + 1 of a reduction step evenly in every operand."""
    drive = drivers(block)
    inside = tuple(drive[a.name] for a in block.indices[dim : dim + 2] if isinstance(a, Var))
    outside = _outer_pair(func, reader, dim)
    size = func.buffers()[block.buffer].shape[dim + 1]
    if block.guard is not None or func.buffers()[block.buffer].shape[dim] == 1 or size == 1:
        return False
    own = Load(reader.value.dtype, reader.buffer, reader.indices)
    for owner, (first, second), loads in (
        (block, inside, block_loads(block)),
        (reader, outside, (own, *block_loads(reader))),
    ):
        for load in loads:
            flat = flat_index(func, owner, load)
            steps = stride_in(flat, first), stride_in(flat, second)
            if None in steps or steps[0] != size * (steps[1] or 0):
                return False
    return True


@dataclass(frozen=True, slots=True)
class Dim:
    """One spatial axis of a product, with its loop in the reduction and in the block that reads it.

    `reused`: an operand that is contiguous along the columns does not depend on it.  `apart`: bytes
    between what neighbours read of the other operands, where that is a constant.
    """

    axis: str
    extent: int
    loop: str
    out: str
    reused: bool = False
    apart: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Product:
    """A reduction that a register tile of rows x columns fits, before anything was scheduled.

    Operands are contiguous along `column`, the last axis, or do not depend on it.  `rows`: the
    other spatial axes, innermost first.  `outer`: loops of the block that reads the result,
    `reduce`: reduce loops, both outermost first.  `weight`: the one constant operand that is
    contiguous along the columns, `dim` its dimension that they drive alone.  `depthwise`: other
    operands are contiguous along the columns too.  `limits`: how many numbers the reader has.
    """

    reduction: str
    reader: str
    column: Dim
    rows: tuple[Dim, ...]
    outer: tuple[str, ...]
    reduce: tuple[str, ...]
    depth: int
    weight: Load | None
    dim: int | None
    depthwise: bool
    streams: bool
    limits: int

    @property
    def pad(self) -> bool:
        """Whether a padded weight can give the columns room for whole vectors."""
        return self.weight is not None and self.dim is not None and not self.streams

    @property
    def windows(self) -> bool:
        """Whether only windows of the operand are reduced, which neighbours share."""
        return self.streams and self.weight is None


def product_of(func: PrimFunc, reduction: str, isa: Isa, dtype: str = "float32") -> Product:
    """Return what a register tile of a reduction rests on; raise `ScheduleError` if none fits.

    `dtype`: of sums in vectors.
    """
    loops, block = nest_of(func.body, reduction)
    reader = epilogue_of(func, block)
    outer = [l.var for l in own_loops(nest_of(func.body, reader.name)[0])]
    spatial = [a for a in block.axes if a.role == SPATIAL]
    drive = drivers(block)
    column_axis = spatial[-1]
    column_var = drive[column_axis.name]
    if column_axis.extent < 2:
        raise ScheduleError("the last axis has no extent")
    flats = {load: flat_index(func, block, load) for load in dict.fromkeys(block_loads(block))}
    strides = {load: stride_in(flat, column_var) for load, flat in flats.items()}
    if any(s not in (0, 1) for s in strides.values()):
        raise ScheduleError("an operand is not contiguous along the last axis")
    if block.value.dtype != dtype and isa.lanes("float32") > 1:
        raise ScheduleError(f"not a {dtype} reduction")
    weights = [l for l, s in strides.items() if s == 1 and is_constant(func, l)]
    weight = weights[0] if len(weights) == 1 else None
    streams = any(s == 1 and l is not weight for l, s in strides.items())
    numbers = (e for e in walk(reader.value) if isinstance(e, Const) and e.dtype != INDEX)

    def dim(axis: Axis, out: str) -> Dim:
        var = drive[axis.name]
        steps = {load: stride_in(flat, var) for load, flat in flats.items()}
        reused = any(strides[load] and steps[load] == 0 for load in flats)
        apart = tuple(4 * a for load, a in steps.items() if strides[load] == 0 and a)
        return Dim(axis.name, axis.extent, var, out, reused, apart)

    dims = [dim(axis, out) for axis, out in zip(spatial, outer, strict=True)]
    return Product(
        reduction, reader.name, dims[-1], tuple(reversed(dims[:-1])), tuple(outer),
        tuple(l.var for l in loops if l.role == REDUCE),
        math.prod(a.extent for a in block.axes if a.role == REDUCE),
        weight, dim_of(weight, column_axis.name) if weight is not None else None,
        streams and weight is not None, streams, len({e.value for e in numbers}),
    )  # fmt: skip


def default_tile(
    product: Product, isa: Isa, *, overlap: int = 1, chunk: int = 1
) -> tuple[tuple[Dim, ...], Tile]:
    """Return the axes of the rows, innermost first, and the tile that a model of the core chooses.

    `overlap`: how many neighbouring rows reach an element.  `chunk`: how many steps share a load of
    broadcast operands.
    """
    # The innermost axes with extent along which a column operand is reused.
    rows = tuple(d for d in product.rows if d.reused and d.extent > 1)[:2]
    if not rows and product.windows:
        rows = tuple(d for d in product.rows if d.extent > 1)
    if product.windows or product.depthwise or isa.lanes("float32") == 1:
        rows = rows[:1]
    most = 8 if product.depthwise else 32
    if rows:
        most = min([most, *(rows_in_cache(a) for a in rows[0].apart)])
    first, second = (*(d.extent for d in rows), 1, 1)[:2]
    apart = product.depthwise and product.column.extent % isa.lanes("float32") > 0
    tile = choose_tile(
        first, product.column.extent, isa, pad=product.pad, shift=product.windows or apart,
        max_rows=most,
        depth=product.depth, limits=product.limits, overlap=overlap, beside=second,
        chunk=chunk,
    )  # fmt: skip
    return rows, tile


def _chunk(func: PrimFunc, reduction: str, isa: Isa) -> int:
    """Return how many steps of a reduction can take their broadcast operands from one vector."""
    loops, block = nest_of(func.body, reduction)
    vector = isa.vectors.get(block.value.dtype)
    reduce = [l for l in loops if l.role == REDUCE]
    if vector is None or "fma_lane" not in vector.ops or not reduce:
        return 1
    if block.guard is not None and reduce[-1].var in variables(bound_expr(block, block.guard)):
        return 1
    strides = [stride_in(flat_index(func, block, l), reduce[-1].var) for l in block_loads(block)]
    return vector.lanes if 1 in strides and reduce[-1].extent % vector.lanes == 0 else 1


def _unroll_reduction(func: PrimFunc, loop: Loop, isa: Isa, take: Take) -> PrimFunc:
    """Unroll the innermost reduce loop: whole where short, by two on cores that issue singly."""
    if 1 < loop.extent <= (7 if isa.lanes("float32") > 1 else 4):
        return take(Unroll(loop.var))
    if isa.lanes("float32") == 1 and loop.extent % 2 == 0:
        func = take(Split(loop.var, (2,)))
        return take(Unroll(f"{loop.var}.1"))
    return func


def split_reader(func: PrimFunc, reduction: str, take: Take) -> PrimFunc:
    """Split the loops over i of blocks that read the reduction at i // n and i % n."""
    _, block = nest_of(func.body, reduction)
    wanted: dict[str, int] = {}
    for reader in blocks(func.body):
        drive = {a.name: b for a, b in zip(reader.axes, reader.binds, strict=True)}
        for load in block_loads(reader):
            for index in load.indices if load.buffer == block.buffer else ():
                match index:
                    case Binary(op="floordiv", a=Var() as axis, b=Const(value=int(size))):
                        loop = drive.get(axis.name)
                        if isinstance(loop, Var):
                            wanted[loop.name] = size
    for name, size in wanted.items():
        func = take(Split(name, (size,)))
    return func


def epilogue_of(func: PrimFunc, block: Block) -> Block:
    """Return the one block that reads the reduction, element by element, in a nest of its own."""
    readers = [
        b for b in blocks(func.body) if any(l.buffer == block.buffer for l in block_loads(b))
    ]
    if len(readers) != 1 or readers[0].reduce is not None or readers[0].guard is not None:
        raise ScheduleError("the reduction has no single element-wise consumer")
    reader = readers[0]
    loops, _ = nest_of(func.body, reader.name)
    ranges = loop_ranges(loops)
    wanted = tuple(Var(INDEX, l.var) for l in own_loops(loops))
    for load in block_loads(reader):
        found = tuple(simplify(bound_expr(reader, i), ranges) for i in load.indices)
        if load.buffer == block.buffer and found != wanted:
            raise ScheduleError("the consumer reads the reduction at other subscripts")
    if any(l.role != SCAN for l in loops[: len(loops) - len(own_loops(loops))]):
        raise ScheduleError("the consumer shares its loops")
    outer = own_loops(loops)
    if not outer:
        raise ScheduleError("the consumer is a single element")
    if len(outer) != len(wanted) or any(l.kind != SERIAL or l.role != SPATIAL for l in outer):
        raise ScheduleError("the consumer was scheduled before")
    return reader


def drivers(block: Block) -> dict[str, str]:
    """Map each axis to the loop that drives it alone; raise `ScheduleError` if one is not."""
    result = {}
    for axis, bind in zip(block.axes, block.binds, strict=True):
        if not isinstance(bind, Var):
            raise ScheduleError("the reduction was scheduled before")
        result[axis.name] = bind.name
    return result


def is_constant(func: PrimFunc, load: Load) -> bool:
    """Tell whether a load is of an operand whose value is known when compiling."""
    return func.buffers()[load.buffer].scope == CONST


def dim_of(load: Load, axis: str) -> int | None:
    """Return the dimension of a load that an axis alone drives."""
    dims = [d for d, i in enumerate(load.indices) if axis in variables(i)]
    if len(dims) != 1 or not isinstance(load.indices[dims[0]], Var):
        return None
    return dims[0]


def lane_loop(func: PrimFunc, reduction: str, isa: Isa) -> Loop:
    """Return the innermost reduce loop, along which operands are contiguous.

    Raises `ScheduleError` where the reduction cannot run in vectors along it.
    """
    loops, block = nest_of(func.body, reduction)
    lanes = isa.lanes(block.value.dtype)
    inner = next((loop for loop in reversed(loops) if loop.role == REDUCE), None)
    if lanes == 1 or inner is None or inner.kind != SERIAL or inner is not loops[-1]:
        raise ScheduleError("no vectors along the reduction")
    strides = [stride_in(flat_index(func, block, load), inner.var) for load in block_loads(block)]
    if any(s not in (0, 1) for s in strides) or 1 not in strides or block.guard is not None:
        raise ScheduleError("an operand is not contiguous along the reduction")
    if block.reduce not in ("sum", "max", "min") or inner.extent < lanes:
        raise ScheduleError("too short for vectors")
    return inner


def factor_reduction(func: PrimFunc, reduction: str, isa: Isa, take: Take) -> PrimFunc:
    """Reduce along contiguous elements in vectors: partial results in lanes, joined at the end.

    Raises `ScheduleError` where no operand is contiguous along the innermost reduce loop.
    """
    inner = lane_loop(func, reduction, isa)
    _, block = nest_of(func.body, reduction)
    lanes = isa.lanes(block.value.dtype)
    if inner.extent <= 4 * lanes:
        return take(Vectorize(inner.var))
    width = next((u * lanes for u in (4, 2, 1) if inner.extent % (u * lanes) == 0), 4 * lanes)
    take(Split(inner.var, (width,), "guard" if inner.extent % width else "perfect"))
    func = take(RFactor(reduction, f"{inner.var}.1"))
    last = nest_of(func.body, reduction)[0][-1].var
    take(Vectorize(f"{inner.var}.1"))
    return take(Vectorize(last))


def transposed_loops(func: PrimFunc, name: str, isa: Isa) -> tuple[Loop, Loop]:
    """Return the loops of a copy along which its source, and along which its result, is contiguous.

    Raises `ScheduleError` where a block copies no columns to rows.
    """
    loops, block = nest_of(func.body, name)
    if isa.lanes("float32") == 1 or block.reduce is not None or block.guard is not None:
        raise ScheduleError("not a copy on a core with vectors")
    if any(l.kind != SERIAL or l.role != SPATIAL for l in loops) or own_loops(loops) != loops:
        raise ScheduleError("the nest is shared or was scheduled before")
    to = flat_index(func, block, Load(block.value.dtype, block.buffer, block.indices))
    sources = [flat_index(func, block, load) for load in block_loads(block)]
    pairs = [
        (rows, columns)
        for columns in loops[-1:]
        for rows in loops[:-1]
        if any(
            stride_in(s, rows.var) == 1 and (stride_in(s, columns.var) or 0) > 1 for s in sources
        )
    ]
    if not pairs or stride_in(to, loops[-1].var) != 1:
        raise ScheduleError("no columns become rows")
    return pairs[0]


def tile_transpose(func: PrimFunc, name: str, isa: Isa, take: Take) -> PrimFunc:
    """Copy columns to rows in unrolled blocks: lines are used whole, compilers find shuffles."""
    pair = transposed_loops(func, name, isa)
    order = [l.var for l in nest_of(func.body, name)[0]]
    for loop, most in zip(pair, (8, 4), strict=True):
        factor = max(d for d in range(1, most + 1) if loop.extent % d == 0)
        if factor < 2:
            raise ScheduleError("no block divides the copy")
        func = take(Split(loop.var, (factor,)))
        order[order.index(loop.var)] = f"{loop.var}.0"
        order.append(f"{loop.var}.1")
    take(Reorder(tuple(order)))
    take(Unroll(order[-2]))
    return take(Unroll(order[-1]))


def leaf_loops(func: PrimFunc, name: str, isa: Isa) -> tuple[str, ...]:
    """Return the loops of an element-wise block to fuse and vectorise, outermost first.

    Raises `ScheduleError` where its operands are not contiguous along the last one.
    """
    loops, block = nest_of(func.body, name)
    chain: list[Loop] = []
    for loop in loops:
        if len(list(blocks(loop))) == 1 and loop.kind == SERIAL and loop.role == SPATIAL:
            chain.append(loop)
        else:
            chain = []
    if not chain or block.reduce is not None:
        raise ScheduleError("no loop to vectorise")
    same = all(load.indices == block.indices or not load.indices for load in block_loads(block))
    shape = func.buffers()[block.buffer].shape
    if not (
        same
        and len(chain) == len(shape)
        and len(chain) > 1
        and block.guard is None
        and len(chain) == len(loops)
    ):
        chain = chain[-1:]
        own = Load(block.value.dtype, block.buffer, block.indices)
        for load in (own, *block_loads(block)):
            if stride_in(flat_index(func, block, load), chain[0].var) not in (0, 1):
                raise ScheduleError("an operand is not contiguous")
        if stride_in(flat_index(func, block, own), chain[0].var) != 1:
            raise ScheduleError("the result is not contiguous")
    if isa.lanes(block.value.dtype) == 1 or math.prod(l.extent for l in chain) < 2:
        raise ScheduleError("no vectors")
    return tuple(l.var for l in chain)


def vectorize_leaf(func: PrimFunc, name: str, isa: Isa, take: Take) -> PrimFunc:
    """Fuse and vectorise the loops of an element-wise block whose operands are contiguous."""
    chain = leaf_loops(func, name, isa)
    loops, block = nest_of(func.body, name)
    extent = math.prod(l.extent for l in loops if l.var in chain)
    var = chain[0]
    for loop in chain[1:]:
        func = take(Fuse(var, loop))
        var = f"{var}+{loop}"
    lanes = isa.lanes(block.value.dtype)
    # What nobody outside sees may be written twice, which is quicker than part of a vector.
    local = block.buffer in {b.name for b in func.locals} and block.guard is None
    if local and extent > lanes:
        fewest = -(-extent // lanes)
        unroll = max(u for u in (1, 2, 3, 4) if u * lanes <= extent and fewest % u == 0)
        func = take(Split(var, (unroll * lanes,), "shift"))
        return take(Vectorize(f"{var}.1"))
    unroll = 4 if extent >= 4 * lanes else max(1, extent // lanes)
    width = unroll * lanes
    if extent > width:
        func = take(Split(var, (width,), "guard"))
        return take(Vectorize(f"{var}.1"))
    return take(Vectorize(var))
