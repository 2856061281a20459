"""Operators that move elements or make them from a shape: Transpose, Slice, Concat, Pad, Tile.

Meaning: the ONNX operator specification, newest version of each operator.  What is split, joined
or padded along an axis is an assembly of parts, so that no inner loop tests where it is or divides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from toolkit.ir.compute import assemble, compute, placeholder, Tensor
from toolkit.ir.expr import (
    binary,
    cast,
    Const,
    const,
    eq,
    Expr,
    INDEX,
    Load,
    maximum,
    minimum,
    select,
)
from toolkit.ir.types import DTYPES, FROM_ONNX
from toolkit.ops.op import Ctx, Op

Indices = Sequence[Expr | int]
Subscript = Callable[..., Expr]
"""Maps a position, one index an axis, to a subscript."""


def scalar_load(x: Tensor) -> Load:
    """Return the only element of a tensor of one element, whatever its rank."""
    assert math.prod(x.shape) == 1, x.shape
    return x[(0,) * x.rank]


def one_element(ctx: Ctx, x: Tensor, what: str) -> Load:
    """Return the element of an operand that must have just one."""
    if math.prod(x.shape) != 1:
        raise ctx.refuse(f"its {what} must be one element, not a tensor of shape {list(x.shape)}.")
    return scalar_load(x)


def constant(values: np.ndarray, name: str) -> Tensor:
    """Return a compile-time constant as a tensor of the kernel."""
    return placeholder(values.shape, str(values.dtype), name, np.ascontiguousarray(values))


def narrowed(values: np.ndarray) -> np.ndarray:
    """Return non-negative indices in the smallest type that holds them."""
    top = int(values.max(initial=0))
    return values.astype(np.uint8 if top < 2**8 else np.uint16 if top < 2**16 else np.int32)


def known_index(values: np.ndarray, name: str = "at") -> Subscript:
    """Return the function from a position to values[position], non-negative compile-time indices.

    Values that are a linear function of their position become arithmetic, others a table.
    """
    affine = _affine(values)
    if affine is None:
        table = constant(narrowed(values), name)
        return lambda *i: cast(table[i], INDEX)
    start, strides = affine

    def arithmetic(*i: Expr) -> Expr:
        total: Expr = Const(INDEX, 0)
        for v, stride in zip(i, strides, strict=True):
            total = total + v * stride
        return total + start

    return arithmetic


def _affine(values: np.ndarray) -> tuple[int, tuple[int, ...]] | None:
    """Return (start, stride an axis) if the values are a linear function of their position."""
    if values.size == 0:
        return 0, (0,) * values.ndim
    values = values.astype(np.int64)
    start = int(values.flat[0])
    strides = tuple(
        int(values[tuple(int(a == axis) for a in range(values.ndim))]) - start if n > 1 else 0
        for axis, n in enumerate(values.shape)
    )
    expected = np.full(values.shape, start, np.int64)
    for axis, stride in enumerate(strides):
        along = [-1 if a == axis else 1 for a in range(values.ndim)]
        expected = expected + np.arange(values.shape[axis]).reshape(along) * stride
    return (start, strides) if np.array_equal(expected, values) else None


def _transpose(ctx: Ctx, x: Tensor) -> Tensor:
    perm = tuple(ctx.attr("perm") or reversed(range(x.rank)))
    if sorted(p % max(x.rank, 1) for p in perm) != list(range(x.rank)):
        raise ctx.refuse(f"perm {list(perm)} does not permute {x.rank} axes.")
    place = {ctx.axis(p, x.rank): at for at, p in enumerate(perm)}
    shape = tuple(x.shape[p] for p in perm)
    return compute(shape, lambda *i: x[tuple(i[place[a]] for a in range(x.rank))], "transpose")


def slice_range(start: int, end: int, step: int, extent: int) -> range:
    """Return the indices a slice takes of an axis.

    Unlike Python's, a backward slice whose start lies before the axis starts at its first element.
    """
    if extent == 0:
        return range(0)
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    start = start + extent if start < 0 else start
    end = end + extent if end < 0 else end
    return range(min(max(start, 0), high), min(max(end, low), high), step)


def _slice(
    ctx: Ctx,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    first, last = ctx.ints(starts, "starts"), ctx.ints(ends, "ends")
    places = tuple(range(len(first))) if axes is None else ctx.ints(axes, "axes")
    strides = (1,) * len(first) if steps is None else ctx.ints(steps, "steps")
    if not len(first) == len(last) == len(places) == len(strides) or 0 in strides:
        raise ctx.refuse(f"{len(first)} starts, {len(last)} ends and steps {list(strides)}.")
    taken = [range(n) for n in x.shape]
    for start, end, axis, step in zip(first, last, places, strides, strict=True):
        at = ctx.axis(axis, x.rank)
        taken[at] = slice_range(start, end, step, x.shape[at])
    return compute(
        tuple(map(len, taken)),
        lambda *i: x[tuple(v * r.step + r.start for v, r in zip(i, taken, strict=True))],
        "slice",
    )


def _part_of(x: Tensor, axis: int, start: int, size: int, name: str) -> Tensor:
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return compute(
        shape, lambda *i: x[tuple(v + start if a == axis else v for a, v in enumerate(i))], name
    )


def _split(ctx: Ctx, x: Tensor, split: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = ctx.axis(ctx.attr("axis", 0), x.rank)
    extent = x.shape[axis]
    if split is None:
        count = ctx.attr("num_outputs") or ctx.output_count
        size = math.ceil(extent / count)
        sizes = tuple(max(min(size, extent - i * size), 0) for i in range(count))
    else:
        sizes = ctx.ints(split, "split")
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise ctx.refuse(f"sizes {list(sizes)} do not split {extent} elements of axis {axis}.")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(
        _part_of(x, axis, start, size, f"part{i}")
        for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )


def _concat(ctx: Ctx, *xs: Tensor) -> Tensor:
    first = xs[0]
    axis = ctx.axis(ctx.attr("axis"), first.rank)
    for x in xs[1:]:
        rest = [
            (a, b) for i, (a, b) in enumerate(zip(first.shape, x.shape, strict=False)) if i != axis
        ]
        if x.rank != first.rank or any(a != b for a, b in rest) or x.dtype != first.dtype:
            raise ctx.refuse(f"{first.type} and {x.type} cannot be joined on axis {axis}.")
    total = sum(x.shape[axis] for x in xs)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    parts: list[tuple[tuple[int, ...], Callable[..., tuple[Indices, Expr]]]] = []
    start = 0
    for x in xs:

        def part(*i: Expr, x: Tensor = x, start: int = start) -> tuple[Indices, Expr]:
            return tuple(v + start if a == axis else v for a, v in enumerate(i)), x[i]

        if x.shape[axis] or x is first:
            parts.append((x.shape, part))
        start += x.shape[axis]
    if len(parts) > 1 and not first.shape[axis]:
        parts = parts[1:]
    return assemble(shape, parts, name="concat")


def bordered(
    shape: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    inside: Callable[[tuple[Expr, ...]], Expr],
    outside: Callable[[tuple[Expr, ...]], Expr],
    name: str,
) -> Tensor:
    """Define a tensor as `inside(index)` where low[a] <= index[a] < high[a] on every axis a, else
    `outside(index)`.  The interior is a part of its own, and so are the slabs of each border."""
    parts: list[tuple[tuple[int, ...], Callable[..., tuple[Indices, Expr]]]] = []
    whole = inside

    def add(
        first: Sequence[int], last: Sequence[int], value: Callable[[tuple[Expr, ...]], Expr]
    ) -> None:
        extents = tuple(b - a for a, b in zip(first, last, strict=True))

        def part(*i: Expr) -> tuple[Indices, Expr]:
            index = tuple(v + a for v, a in zip(i, first, strict=True))
            return index, value(index)

        if math.prod(extents):
            nonlocal whole
            whole = value
            parts.append((extents, part))

    for axis, extent in enumerate(shape):
        before = [*low[:axis]], [*high[:axis]]
        after = [0] * (len(shape) - axis - 1), [*shape[axis + 1 :]]
        for first, last in ((0, low[axis]), (high[axis], extent)):
            add([*before[0], first, *after[0]], [*before[1], last, *after[1]], outside)
    add(low, high, inside)
    if len(parts) <= 1:
        return compute(shape, lambda *i: whole(i), name)
    return assemble(shape, parts, name=name)


def _mirror(t: Expr, extent: int) -> Expr:
    """Reflect an index at 0 and extent - 1, repeatedly; the edge element is not repeated."""
    if extent == 1:
        return Const(INDEX, 0)
    period = 2 * (extent - 1)
    inside = binary("floormod", t, period)
    return minimum(inside, period - inside)


_BORDER: dict[str, Callable[[Expr, int], Expr]] = {
    "edge": lambda t, n: minimum(maximum(t, 0), n - 1),
    "reflect": _mirror,
    "wrap": lambda t, n: binary("floormod", t, n),
}


def _pad(
    ctx: Ctx, x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    """Pad, after cutting off what negative pads take away."""
    mode = ctx.attr("mode", "constant")
    amounts = ctx.ints(pads, "pads")
    places = (
        range(x.rank) if axes is None else [ctx.axis(a, x.rank) for a in ctx.ints(axes, "axes")]
    )
    if len(amounts) != 2 * len(places):
        raise ctx.refuse(f"{len(amounts)} pads for {len(places)} axes; two an axis are needed.")
    begin, end = [0] * x.rank, [0] * x.rank
    for at, axis in enumerate(places):
        begin[axis], end[axis] = amounts[at], amounts[len(places) + at]
    if mode not in ("constant", *_BORDER):
        raise ctx.refuse(f"mode {mode!r} is not known.")
    return padded(ctx, x, begin, end, mode, value)


def padded(
    ctx: Ctx,
    x: Tensor,
    begin: Sequence[int],
    end: Sequence[int],
    mode: str = "constant",
    value: Tensor | None = None,
) -> Tensor:
    """Return `x` with begin[a] elements put before axis a, end[a] after it; negative ones cut."""
    shape = tuple(b + n + e for b, n, e in zip(begin, x.shape, end, strict=True))
    kept = [n + min(b, 0) + min(e, 0) for b, n, e in zip(begin, x.shape, end, strict=True)]
    if min(shape, default=0) < 0 or (mode != "constant" and min(kept, default=0) < 0):
        raise ctx.refuse(f"pads {list(begin)} and {list(end)} cut more than shape {list(x.shape)}.")
    if mode != "constant" and 0 not in shape and 0 in kept:
        raise ctx.refuse(f"mode {mode!r} has no element to repeat in shape {kept}.")
    low = [min(max(b, 0), n) for b, n in zip(begin, shape, strict=True)]
    high = [max(min(b + n, m), at) for b, n, m, at in zip(begin, x.shape, shape, low, strict=True)]

    def outside(index: tuple[Expr, ...]) -> Expr:
        if mode == "constant":
            return const(0, x.dtype) if value is None else one_element(ctx, value, "value")
        border = _BORDER[mode]
        return x[
            tuple(
                border(i - max(b, 0), n) - min(b, 0)
                for i, b, n in zip(index, begin, kept, strict=True)
            )
        ]

    def inside(index: tuple[Expr, ...]) -> Expr:
        return x[tuple(i - b for i, b in zip(index, begin, strict=True))]

    return bordered(shape, low, high, inside, outside, "pad")


def _center_crop_pad(ctx: Ctx, x: Tensor, shape: Tensor) -> Tensor:
    axes = ctx.attr("axes")
    places = range(x.rank) if axes is None else [ctx.axis(a, x.rank) for a in axes]
    begin, end = [0] * x.rank, [0] * x.rank
    for axis, wanted in zip(places, ctx.ints(shape, "shape"), strict=False):
        extra = wanted - x.shape[axis]
        begin[axis] = extra // 2 if extra >= 0 else -(-extra // 2)
        end[axis] = extra - begin[axis]
    return padded(ctx, x, begin, end)


def _expand(ctx: Ctx, x: Tensor, shape: Tensor) -> Tensor:
    wanted = ctx.ints(shape, "shape")
    try:
        full = tuple(map(int, np.broadcast_shapes(x.shape, wanted)))
    except ValueError:
        raise ctx.refuse(f"shape {list(x.shape)} cannot be expanded to {list(wanted)}.") from None
    lead = len(full) - x.rank
    return compute(
        full,
        lambda *i: x[tuple(0 if n == 1 else v for n, v in zip(x.shape, i[lead:], strict=True))],
        "expand",
    )


def interleaved(
    x: Tensor, extents: Sequence[Sequence[int]], source: Callable[..., Indices], name: str
) -> Tensor:
    """Define a tensor whose axis a is the row-major product of the axes extents[a].

    `source` gets one index a factor, in order, and returns the indices in `x`.
    """
    flat = [n for group in extents for n in group]

    def part(*i: Expr) -> tuple[Indices, Expr]:
        rest = iter(i)
        out: list[Expr] = []
        for group in extents:
            at: Expr = Const(INDEX, 0)
            for n in group:
                at = at * n + next(rest)
            out.append(at)
        return out, x[tuple(source(*i))]

    if all(len(group) == 1 for group in extents):
        return compute(flat, lambda *i: x[tuple(source(*i))], name)
    return assemble([math.prod(group) for group in extents], [(flat, part)], name=name)


def _tile(ctx: Ctx, x: Tensor, repeats: Tensor) -> Tensor:
    times = ctx.ints(repeats, "repeats")
    if len(times) != x.rank or min(times, default=0) < 0:
        raise ctx.refuse(f"repeats {list(times)} do not fit a tensor of rank {x.rank}.")
    extents = [(t, n) if t != 1 else (n,) for t, n in zip(times, x.shape, strict=True)]

    def source(*i: Expr) -> Indices:
        rest = iter(i)
        return [[next(rest) for _ in group][-1] for group in extents]

    return interleaved(x, extents, source, "tile")


def _depth_to_space(ctx: Ctx, x: Tensor) -> Tensor:
    if x.rank != 4:
        raise ctx.refuse(f"its input must have rank 4, not {x.rank}.")
    block, mode = ctx.attr("blocksize"), ctx.attr("mode", "DCR")
    n, c, h, w = x.shape
    if c % block**2:
        raise ctx.refuse(f"blocksize {block} squared does not divide {c} channels.")
    depth = c // block**2

    def source(b: Expr, d: Expr, y: Expr, by: Expr, z: Expr, bz: Expr) -> Indices:
        inner = by * block + bz
        return b, (inner * depth + d if mode == "DCR" else d * block**2 + inner), y, z

    return interleaved(x, [(n,), (depth,), (h, block), (w, block)], source, "depth_to_space")


def _space_to_depth(ctx: Ctx, x: Tensor) -> Tensor:
    if x.rank != 4:
        raise ctx.refuse(f"its input must have rank 4, not {x.rank}.")
    block, mode = ctx.attr("blocksize"), ctx.attr("mode", "DCR")
    n, c, h, w = x.shape
    if h % block or w % block:
        raise ctx.refuse(f"blocksize {block} does not divide {h} x {w}.")
    if mode == "CRD":

        def crd(b: Expr, d: Expr, by: Expr, bz: Expr, y: Expr, z: Expr) -> Indices:
            return b, d, y * block + by, z * block + bz

        groups = [(n,), (c, block, block), (h // block,), (w // block,)]
        return interleaved(x, groups, crd, "space_to_depth")

    def dcr(b: Expr, by: Expr, bz: Expr, d: Expr, y: Expr, z: Expr) -> Indices:
        return b, d, y * block + by, z * block + bz

    groups = [(n,), (block, block, c), (h // block,), (w // block,)]
    return interleaved(x, groups, dcr, "space_to_depth")


def _constant_of_shape(ctx: Ctx, shape: Tensor) -> Tensor:
    value = np.asarray(ctx.attr("value", np.zeros(1, np.float32))).reshape(())
    literal = const(value.item(), str(value.dtype))
    return compute(ctx.ints(shape, "shape"), lambda *i: literal, "fill")


def _shape(ctx: Ctx, x: Tensor) -> Tensor:
    part = x.shape[slice(ctx.attr("start", 0), ctx.attr("end"))]
    return constant(np.array(part, np.int64), "shape")


def _size(ctx: Ctx, x: Tensor) -> Tensor:
    return constant(np.array(math.prod(x.shape), np.int64), "size")


def _range(ctx: Ctx, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    first, last, step = (
        ctx.value(t, what).reshape(()).item()
        for t, what in ((start, "start"), (limit, "limit"), (delta, "delta"))
    )
    if step == 0:
        raise ctx.refuse("its delta is 0.")
    count = max(math.ceil((last - first) / step), 0)
    dtype = start.dtype
    return compute((count,), lambda i: cast(i, dtype) * step + first, "range")


def _eye_like(ctx: Ctx, x: Tensor) -> Tensor:
    if x.rank != 2:
        raise ctx.refuse(f"its input must have rank 2, not {x.rank}.")
    k = ctx.attr("k", 0)
    to = ctx.attr("dtype")
    dtype = x.dtype if to is None else FROM_ONNX.get(to)
    if dtype is None:
        raise ctx.refuse(f"element type {to} is not supported.")
    return compute(x.shape, lambda i, j: select(eq(i + k, j), const(1, dtype), 0), "eye")


def _trilu(ctx: Ctx, x: Tensor, k: Tensor | None = None) -> Tensor:
    if x.rank < 2:
        raise ctx.refuse("its input must have at least two axes.")
    upper = ctx.attr("upper", 1)
    size = x.shape[-2] + x.shape[-1]

    def element(*i: Expr) -> Expr:
        offset: Expr = Const(INDEX, 0)
        if k is not None and k.data is not None:
            value = int(ctx.ints(k, "k")[0])
            offset = Const(INDEX, max(min(value, size), -size))
        elif k is not None:
            given: Expr = one_element(ctx, k, "k")
            offset = cast(minimum(maximum(given, -size), size), INDEX)
        diagonal = i[-2] + offset
        kept = diagonal <= i[-1] if upper else i[-1] <= diagonal
        return select(kept, x[i], 0)

    return compute(x.shape, element, "trilu")


def _index_number(value: Expr) -> Expr:
    """Return an index given as a number of any type in a wide integer type, floats truncated."""
    info = DTYPES[value.dtype]
    if info.kind == "f":  # clamped, since converting what no integer holds is undefined in C
        return cast(select(value > -(2.0**30), minimum(value, 2.0**30), -(2.0**30)), "int32")
    if info.nbytes < 4:
        return cast(value, "int32")
    return value


def _one_hot(ctx: Ctx, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    """An index outside -depth..depth-1 gives a row of the off value."""
    count = int(ctx.value(depth, "depth").reshape(-1)[0])
    if values.shape != (2,):
        raise ctx.refuse(f"its values must be [off, on], not of shape {list(values.shape)}.")
    rank = indices.rank + 1
    axis = ctx.axis(ctx.attr("axis", -1), rank)
    shape = (*indices.shape[:axis], count, *indices.shape[axis:])

    def element(*i: Expr) -> Expr:
        index = _index_number(indices[i[:axis] + i[axis + 1 :]])
        if DTYPES[index.dtype].kind != "u":
            index = select(index < 0, index + count, index)
        hit = eq(index, cast(i[axis], index.dtype))
        return select(hit, values[1], values[0])

    return compute(shape, element, "one_hot")


def _reverse_sequence(ctx: Ctx, x: Tensor, sequence_lens: Tensor) -> Tensor:
    """A length outside 0..extent is taken as the nearest of the two."""
    time, batch = ctx.attr("time_axis", 0), ctx.attr("batch_axis", 1)
    if x.rank < 2 or sorted((time, batch)) != [0, 1]:
        raise ctx.refuse(f"time_axis {time} and batch_axis {batch} must be 0 and 1.")
    extent = x.shape[time]

    def element(*i: Expr) -> Expr:
        length = minimum(cast(sequence_lens[i[batch]], INDEX), extent)
        at = select(i[time] < length, length - 1 - i[time], i[time])
        return x[tuple(at if a == time else v for a, v in enumerate(i))]

    return compute(x.shape, element, "reverse")


def _compress(ctx: Ctx, x: Tensor, condition: Tensor) -> Tensor:
    """Keep the elements, or slices of `axis`, at which a compile-time condition holds."""
    kept = np.flatnonzero(ctx.value(condition, "condition"))
    axis = ctx.attr("axis")
    if axis is None:
        at = known_index(kept, "kept")
        sizes = x.shape

        def flat(i: Expr) -> Expr:
            rest = at(i)
            index: list[Expr] = []
            for n in reversed(sizes):
                index.insert(0, rest % n)
                rest = rest // n
            return x[tuple(index)]

        return compute((len(kept),), flat, "compress")
    axis = ctx.axis(axis, x.rank)
    kept = kept[kept < x.shape[axis]]
    at = known_index(kept, "kept")
    shape = (*x.shape[:axis], len(kept), *x.shape[axis + 1 :])
    return compute(
        shape,
        lambda *i: x[tuple(at(v) if a == axis else v for a, v in enumerate(i))],
        "compress",
    )


SHAPE_OPS: dict[str, Op] = {
    "Transpose": Op(_transpose),
    "Slice": Op(_slice),
    "Split": Op(_split),
    "Concat": Op(_concat),
    "Pad": Op(_pad),
    "CenterCropPad": Op(_center_crop_pad),
    "Expand": Op(_expand),
    "Tile": Op(_tile),
    "DepthToSpace": Op(_depth_to_space),
    "SpaceToDepth": Op(_space_to_depth),
    "ConstantOfShape": Op(_constant_of_shape),
    "Shape": Op(_shape),
    "Size": Op(_size),
    "Range": Op(_range),
    "EyeLike": Op(_eye_like),
    "Trilu": Op(_trilu),
    "OneHot": Op(_one_hot),
    "ReverseSequence": Op(_reverse_sequence),
    "Compress": Op(_compress),
}
