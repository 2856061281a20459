"""Resampling: Resize, Upsample, GridSample, AffineGrid, RoiAlign, Col2Im.

Meaning: the ONNX operator specification.  Where coordinates are known when compiling, they are
worked out here with NumPy: an axis becomes index arithmetic, or a table of first taps and weights,
and the kernel only looks up, multiplies and adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.ir.compute import (
    compute,
    opaque,
    reduce_axis,
    scatter,
    Tensor,
)
from toolkit.ir.compute import (
    sum as sum_over,
)
from toolkit.ir.expr import (
    all_of,
    binary,
    call,
    cast,
    Const,
    const,
    eq,
    Expr,
    INDEX,
    maximum,
    minimum,
    select,
)
from toolkit.ir.types import DTYPES, is_float, TensorType
from toolkit.ops.op import Ctx, Op
from toolkit.ops.quant import saturated
from toolkit.ops.shape import constant, Indices, interleaved, known_index

F32 = np.float32

# -- one axis of Resize -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a Resize.  `scale` is float32; `length` the resized extent, maybe fractional."""

    extent: int
    out: int
    scale: np.float32
    length: float
    roi: tuple[float, float]


def _halves(axis: Axis, x: np.ndarray) -> np.ndarray:
    return np.asarray((x + F32(0.5)) / axis.scale - F32(0.5))


def _align_corners(axis: Axis, x: np.ndarray) -> np.ndarray:
    if axis.length == 1:
        return np.zeros_like(x)
    return np.asarray(x * F32(axis.extent - 1) / F32(axis.length - 1))


def _crop(axis: Axis, x: np.ndarray) -> np.ndarray:
    start, end, last = F32(axis.roi[0]), F32(axis.roi[1]), F32(axis.extent - 1)
    if axis.out == 1:
        return np.full_like(x, F32(0.5) * (start + end) * last)
    return np.asarray(start * last + x * (end - start) * last / F32(axis.length - 1))


def _symmetric(axis: Axis, x: np.ndarray) -> np.ndarray:
    width = axis.scale * F32(axis.extent)
    offset = F32(axis.extent / 2) * (F32(1) - F32(axis.out) / width)
    return np.asarray((offset + (x.astype(np.float64) + 0.5) / axis.scale - 0.5).astype(F32))


_COORDINATES: dict[str, Callable[[Axis, np.ndarray], np.ndarray]] = {
    "half_pixel": _halves,
    "asymmetric": lambda axis, x: np.asarray(x / axis.scale),
    "pytorch_half_pixel": lambda axis, x: _halves(axis, x) if axis.out > 1 else np.zeros_like(x),
    "tf_half_pixel_for_nn": lambda axis, x: np.asarray((x + F32(0.5)) / axis.scale),
    "align_corners": _align_corners,
    "tf_crop_and_resize": _crop,
    "half_pixel_symmetric": _symmetric,
}
"""Where each output index lies on the input axis, in float32 as onnxruntime computes it."""

_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - F32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + F32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear_filter(x: np.ndarray, a: float) -> np.ndarray:
    return np.asarray(np.maximum(1 - np.abs(x), 0))


def _cubic_filter(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel (doi 10.1109/TASSP.1981.1163711) with parameter a."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.asarray(np.where(x <= 1, near, np.where(x < 2, far, 0)))


_FILTERS = {"linear": (_linear_filter, 1), "cubic": (_cubic_filter, 2)}
"""Interpolation kernels, and how far they reach."""


@dataclass(frozen=True, slots=True)
class Taps:
    """How an output axis is made: out[i] = sum over t of weights[i, t] * x[start[i] + t]."""

    start: np.ndarray
    weights: np.ndarray


def _taps(
    axis: Axis, at: np.ndarray, mode: str, a: float, antialias: bool, exclude_outside: bool
) -> Taps:
    """Return the window of each output index: taps beyond the edge fall on the edge element."""
    kernel, reach = _FILTERS[mode]
    stretch = max(1.0 / float(axis.scale), 1.0) if antialias else 1.0
    centre = at.astype(np.float64)
    first = np.floor(centre - reach * stretch).astype(np.int64)
    count = int(2 * math.ceil(reach * stretch) + 2)
    index = first[:, None] + np.arange(count)
    weights = kernel((index - centre[:, None]) / stretch, a)
    if exclude_outside:
        weights = np.where((index < 0) | (index >= axis.extent), 0, weights)
    total = weights.sum(axis=1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    dense = np.zeros((axis.out, axis.extent))
    rows = np.repeat(np.arange(axis.out)[:, None], count, axis=1)
    np.add.at(dense, (rows, np.clip(index, 0, axis.extent - 1)), weights)
    used = dense != 0
    low = np.where(used.any(axis=1), used.argmax(axis=1), 0)
    high = axis.extent - 1 - np.where(used.any(axis=1), used[:, ::-1].argmax(axis=1), 0)
    width = int((high - low).max(initial=0)) + 1
    start = np.minimum(low, axis.extent - width)
    window = start[:, None] + np.arange(width)
    return Taps(start, np.take_along_axis(dense, window, axis=1))


# -- Resize -----------------------------------------------------------------------------------


def _axes(
    ctx: Ctx, x: Tensor, roi: Tensor | None, scales: Tensor | None, sizes: Tensor | None
) -> list[Axis]:
    """Work out extents, scales and regions of all axes."""
    named = ctx.attr("axes")
    picked = range(x.rank) if named is None else [ctx.axis(a, x.rank) for a in named]
    given = scales if scales is not None and 0 not in scales.shape else sizes
    values = ctx.value(given, "scales" if given is scales else "sizes").reshape(-1)
    if len(values) != len(picked):
        raise ctx.refuse(f"{len(values)} scales or sizes for {len(picked)} axes.")
    mode = ctx.attr("coordinate_transformation_mode", "half_pixel")
    regions = dict.fromkeys(picked, (0.0, 1.0))
    if mode == "tf_crop_and_resize":
        bounds = ctx.value(roi, "roi").reshape(-1).tolist()
        if len(bounds) != 2 * len(picked):
            raise ctx.refuse(f"its roi has {len(bounds)} values, not {2 * len(picked)}.")
        regions = {a: (bounds[i], bounds[len(picked) + i]) for i, a in enumerate(picked)}
    result = [Axis(n, n, F32(1), n, (0.0, 1.0)) for n in x.shape]
    factors = {
        a: F32(v) if given is scales else F32(v) / F32(max(x.shape[a], 1))
        for a, v in zip(picked, values, strict=True)
    }
    policy = ctx.attr("keep_aspect_ratio_policy", "stretch")
    if given is not scales and policy != "stretch" and factors:
        common = min(factors.values()) if policy == "not_larger" else max(factors.values())
        factors = dict.fromkeys(factors, common)
    for position, (a, factor) in enumerate(factors.items()):
        n = x.shape[a]
        if not factor > 0 and n:
            raise ctx.refuse(f"scale {factor} of axis {a} is not positive.")
        if given is scales:
            out, length = int(factor * F32(n)), float(factor) * n
        elif policy != "stretch":
            out, length = int(factor * F32(n) + F32(0.5)), float(factor) * n
        else:
            out = int(values[position])
            length = float(out)
        result[a] = Axis(n, out, factor, length, regions[a])
    return result


def _resize(
    ctx: Ctx,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    """Integers are interpolated in floating point, then rounded half to even and saturated."""
    axes = _axes(ctx, x, roi, scales, sizes)
    shape = tuple(axis.out for axis in axes)
    if 0 in shape or 0 in x.shape:
        if 0 not in shape:
            raise ctx.refuse(f"an empty tensor of shape {list(x.shape)} has nothing to resize.")
        return compute(shape, lambda *i: const(0, x.dtype), "resize")
    system = ctx.attr("coordinate_transformation_mode", "half_pixel")
    mode = ctx.attr("mode", "nearest")
    rounding = ctx.attr("nearest_mode", "round_prefer_floor")
    if system not in _COORDINATES or mode not in ("nearest", *_FILTERS) or rounding not in _NEAREST:
        raise ctx.refuse(f"mode {mode!r}, {system!r} or {rounding!r} is not known.")
    if mode == "nearest" and ctx.attr("antialias", 0):
        raise ctx.refuse("antialias needs mode linear or cubic.")
    at = {
        a: _COORDINATES[system](axis, np.arange(axis.out, dtype=F32))
        for a, axis in enumerate(axes)
        if not (axis.scale == 1 and axis.out == axis.extent and axis.roi == (0.0, 1.0))
    }
    if mode == "nearest":
        index = {
            a: np.clip(_NEAREST[rounding](c), 0, axes[a].extent - 1).astype(np.int64)
            for a, c in at.items()
        }
        y = _picked(x, shape, index)
    else:
        taps = {
            a: _taps(
                axes[a], c, mode, ctx.attr("cubic_coeff_a", -0.75),
                bool(ctx.attr("antialias", 0)), bool(ctx.attr("exclude_outside", 0)),
            )
            for a, c in at.items()
        }  # fmt: skip
        y = _interpolated(x, shape, taps)
    if system != "tf_crop_and_resize":
        return y
    return _extrapolated(y, axes, at, ctx.attr("extrapolation_value", 0.0))


def _picked(x: Tensor, shape: tuple[int, ...], index: dict[int, np.ndarray]) -> Tensor:
    """Return x at the given indices of each axis; whole repeats become loops, the rest tables."""
    groups: list[tuple[int, ...]] = [(n,) for n in shape]
    pick: dict[int, Callable[..., Expr]] = {}
    for a, values in index.items():
        times = shape[a] // x.shape[a]
        repeats = np.repeat(np.arange(x.shape[a]), times)
        if times > 1 and np.array_equal(values, repeats):
            groups[a] = (x.shape[a], times)
        else:
            pick[a] = known_index(values, f"at{a}")

    def source(*i: Expr) -> Indices:
        rest = iter(i)
        outer = []
        for group in groups:
            outer.append(next(rest))
            if len(group) > 1:
                next(rest)  # the position in a repeat
        return [pick[a](v) if a in pick else v for a, v in enumerate(outer)]

    return interleaved(x, groups, source, "resize")


def _interpolated(x: Tensor, shape: tuple[int, ...], taps: dict[int, Taps]) -> Tensor:
    """Return weighted sums over windows: at once where four taps suffice, else axis by axis."""
    work = x.dtype if is_float(x.dtype) else "float32"
    if not is_float(x.dtype) and DTYPES[x.dtype].nbytes > 2:
        work = "float64"
    total = math.prod(t.weights.shape[1] for t in taps.values())

    def real(value: Expr) -> Expr:
        return cast(value, work)

    def stored(value: Expr) -> Expr:
        return value if work == x.dtype else saturated(value, x.dtype)

    tables = {
        a: (known_index(t.start, f"at{a}"), constant(t.weights.astype(work), f"weights{a}"))
        for a, t in taps.items()
    }
    if total <= 4:

        def element(*i: Expr) -> Expr:
            return stored(_unrolled(x, i, i, list(tables.items()), real))

        return compute(shape, element, "resize")
    y = x
    order = sorted(taps, key=lambda a: (shape[a] / x.shape[a], -a))
    for a in order:
        y = _along(y, a, shape[a], *tables[a], real)
    return y if work == x.dtype else compute(shape, lambda *i: stored(y[i]), "resize")


Table = tuple[Callable[..., Expr], Tensor]


def _unrolled(
    x: Tensor,
    out: tuple[Expr, ...],
    source: tuple[Expr, ...],
    tables: Sequence[tuple[int, Table]],
    real: Callable[[Expr], Expr],
) -> Expr:
    """Return the sum over the windows of some axes at output index `out`, written out.

    `source` is the index in x, as far as it is known: of the axes not in `tables`.
    """
    if not tables:
        return real(x[source])
    (a, (start, weights)), *rest = tables
    result: Expr | None = None
    for t in range(weights.shape[1]):
        inner = (*source[:a], start(out[a]) + t, *source[a + 1 :])
        value = _unrolled(x, out, inner, rest, real)
        term = value if np.all(weights.data == 1) else value * weights[out[a], t]
        result = term if result is None else result + term
    assert result is not None
    return result


def _along(
    x: Tensor, a: int, out: int, start: Callable[..., Expr], weights: Tensor, real: Any
) -> Tensor:
    """Return the weighted sums along one axis."""
    t = reduce_axis(weights.shape[1], "t")
    shape = (*x.shape[:a], out, *x.shape[a + 1 :])
    return compute(
        shape,
        lambda *i: sum_over(real(x[(*i[:a], start(i[a]) + t, *i[a + 1 :])]) * weights[i[a], t], t),
        "resize",
    )


def _extrapolated(
    y: Tensor, axes: Sequence[Axis], at: dict[int, np.ndarray], value: float
) -> Tensor:
    """Return `value` where a coordinate lies outside the input, else `y`."""
    ranges: dict[int, tuple[int, int]] = {}
    for a, c in at.items():
        inside = np.flatnonzero((c >= 0) & (c <= axes[a].extent - 1))
        low, high = (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)
        if (low, high) != (0, axes[a].out):
            ranges[a] = low, high
    if not ranges:
        return y
    fill = const(value, y.dtype)

    def element(*i: Expr) -> Expr:
        tests = [t for a, (low, high) in ranges.items() for t in (i[a] >= low, i[a] < high)]
        inside = all_of(*tests)
        assert inside is not None
        return select(inside, y[i], fill)

    return compute(y.shape, element, "resize")


def _upsample(ctx: Ctx, x: Tensor, scales: Tensor | None = None) -> Tensor:
    """Resize with asymmetric coordinates, nearest rounding down; deprecated since opset 10."""
    if scales is None:
        scales = constant(np.array(ctx.attr("scales"), F32), "scales")
    attrs = {
        "mode": "nearest" if ctx.attr("mode", "nearest") == "nearest" else "linear",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return _resize(Ctx(ctx.node.with_(attrs=attrs), ctx.opset), x, None, scales)


# -- grids ------------------------------------------------------------------------------------


def _affine_grid(ctx: Ctx, theta: Tensor, size: Tensor) -> Tensor:
    """[N, 2, 3] and size N, C, H, W give [N, H, W, 2]; one more axis for volumes."""
    extents = ctx.ints(size, "size")[2:]
    rank = len(extents)
    if theta.rank != 3 or theta.shape[1:] != (rank, rank + 1) or rank not in (2, 3):
        raise ctx.refuse(f"theta {list(theta.shape)} does not fit size {list(extents)}.")
    lines: list[Tensor] = []
    for n in extents:
        i = np.arange(n, dtype=np.float64)
        if ctx.attr("align_corners", 0):
            line = i * (2 / (n - 1)) - 1 if n > 1 else np.zeros(n)
        else:
            line = (2 * i + 1) / n - 1
        lines.append(constant(line.astype(theta.dtype), f"line{len(lines)}"))

    def element(*i: Expr) -> Expr:
        batch, where, row = i[0], i[1:-1], i[-1]
        value: Expr = theta[batch, row, rank]
        for column, (line, at) in enumerate(zip(reversed(lines), reversed(where), strict=True)):
            value = value + theta[batch, row, column] * line[at]
        return value

    return compute((theta.shape[0], *extents, rank), element, "grid")


def _cubic_weight(r: Expr, tap: int) -> Expr:
    """Return the weight of tap -1..2 of Keys' kernel, a = -0.75, at fraction r."""
    a = -0.75
    d = {0: r + 1.0, 1: r, 2: 1.0 - r, 3: 2.0 - r}[tap]
    if tap in (1, 2):
        return ((a + 2) * d - (a + 3)) * d * d + 1.0
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a


def _grid_sample(ctx: Ctx, x: Tensor, grid: Tensor) -> Tensor:
    """Sample x [N, C, D1..] at grid [N, O1.., rank].

    Padding acts on single taps, as in PyTorch and onnxruntime; with `zeros` a tap outside has
    weight 0.  Coordinates far outside are clamped first, which no padding mode can tell except
    `reflection` beyond a million periods.
    """
    extents = x.shape[2:]
    rank = len(extents)
    mode, padding = ctx.attr("mode", "linear"), ctx.attr("padding_mode", "zeros")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    align = bool(ctx.attr("align_corners", 0))
    if grid.rank != x.rank or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank or not rank:
        raise ctx.refuse(f"grid {list(grid.shape)} does not fit input {list(x.shape)}.")
    if mode not in ("nearest", "linear", "cubic") or padding not in _TAP_PADDING:
        raise ctx.refuse(f"mode {mode!r} or padding_mode {padding!r} is not known.")
    places = grid.shape[1:-1]
    if 0 in extents and 0 not in (*x.shape[:2], *places):
        raise ctx.refuse(f"an empty image of shape {list(x.shape)} cannot be sampled.")
    taps, first = {"nearest": (1, 0), "linear": (2, 0), "cubic": (4, -1)}[mode]
    real = grid.dtype
    work = x.dtype if is_float(x.dtype) else real

    def position(i: tuple[Expr, ...], axis: int) -> Expr:
        """Coordinate on an axis of x; the grid names axes from the last to the first."""
        n = extents[axis]
        value: Expr = grid[(*i, rank - 1 - axis)]
        value = (
            (value + 1.0) / 2.0 * float(n - 1) if align else ((value + 1.0) * float(n) - 1.0) / 2.0
        )
        far = min(2.0**20 * (n + 1), 2.0**30) if padding == "reflection" else 8.0
        low, high = const(-far, real), const(n + far, real)
        return select(value > low, select(value < high, value, high), low)

    floor = "round" if mode == "nearest" else "floor"
    points = (x.shape[0], *places)
    base = [
        compute(points, lambda *i, a=a: cast(call(floor, position(i, a)), "int32"), f"at{a}")
        for a in range(rank)
    ]

    def index(a: int, i: tuple[Expr, ...], tap: Expr | int) -> tuple[Expr, Expr | None]:
        return _TAP_PADDING[padding](cast(base[a][i], INDEX) + tap + first, extents[a], align)

    if mode == "nearest":
        return _point_sampled(x, points, lambda a, i: index(a, i, 0), rank)
    weights = []
    for a in range(rank):

        def fraction(i: tuple[Expr, ...], a: int = a) -> Expr:
            value = position(i, a)
            return value - call("floor", value)

        def weight(*i: Expr, a: int = a) -> Expr:
            *where, tap = i
            r = fraction(tuple(where), a)
            if mode == "linear":
                options = [1.0 - r, r]
            else:
                options = [_cubic_weight(r, t) for t in range(4)]
            value = options[-1]
            for t in reversed(range(taps - 1)):
                value = select(eq(tap, t), options[t], value)
            inside = index(a, tuple(where), tap)[1]
            return value if inside is None else select(inside, value, const(0, real))

        weights.append(compute((*points, taps), weight, f"weights{a}"))

    axes = tuple(reduce_axis(taps, f"t{a}") for a in range(rank))

    def element(*i: Expr) -> object:
        point = (i[0], *i[2:])
        where = tuple(index(a, point, t)[0] for a, t in enumerate(axes))
        value: Expr = cast(x[(i[0], i[1], *where)], work)
        for a, t in enumerate(axes):
            value = value * cast(weights[a][(*point, t)], work)
        return sum_over(value, axes)

    shape = (*x.shape[:2], *places)
    y = compute(shape, element, "sample")  # type: ignore[arg-type]
    if y.dtype == x.dtype:
        return y
    return compute(shape, lambda *i: saturated(y[i], x.dtype), "sample")


def _zeros(t: Expr, n: int, align: bool) -> tuple[Expr, Expr | None]:
    return minimum(maximum(t, 0), n - 1), all_of(t >= 0, t < n)


def _border(t: Expr, n: int, align: bool) -> tuple[Expr, Expr | None]:
    return minimum(maximum(t, 0), n - 1), None


def _reflection(t: Expr, n: int, align: bool) -> tuple[Expr, Expr | None]:
    """Reflect at the centres of the border elements (align_corners) or at their outer edges."""
    if n == 1:
        return Const(INDEX, 0), None
    period = 2 * (n - 1) if align else 2 * n
    inside = binary("floormod", t, period)
    return minimum(inside, (period if align else period - 1) - inside), None


_TAP_PADDING: dict[str, Callable[[Expr, int, bool], tuple[Expr, Expr | None]]] = {
    "zeros": _zeros,
    "border": _border,
    "reflection": _reflection,
}
"""Map a tap to (an index inside the axis, whether it counts; None if always)."""


def _point_sampled(
    x: Tensor,
    points: tuple[int, ...],
    index: Callable[[int, tuple[Expr, ...]], tuple[Expr, Expr | None]],
    rank: int,
) -> Tensor:
    shape = (*x.shape[:2], *points[1:])

    def element(*i: Expr) -> Expr:
        found = [index(a, (i[0], *i[2:])) for a in range(rank)]
        value = x[(i[0], i[1], *(at for at, _ in found))]
        inside = all_of(*(test for _, test in found if test is not None))
        return value if inside is None else select(inside, value, const(0, x.dtype))

    return compute(shape, element, "sample")


# -- RoiAlign and Col2Im ----------------------------------------------------------------------


def _roi_align(ctx: Ctx, x: Tensor, rois: Tensor, batch_indices: Tensor) -> Tensor:
    """A C function, since with sampling_ratio 0 the number of samples depends on the region.

    A batch index out of range is clamped; a bin takes at most 4096 samples an axis.
    """
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4:
        raise ctx.refuse(f"{list(x.shape)} and rois {list(rois.shape)} do not fit.")
    if not is_float(x.dtype) or rois.dtype != x.dtype or batch_indices.dtype != "int64":
        raise ctx.refuse(f"types {x.dtype}, {rois.dtype}, {batch_indices.dtype} are not supported.")
    height, width = ctx.attr("output_height", 1), ctx.attr("output_width", 1)
    mode = ctx.attr("mode", "avg")
    if mode not in ("avg", "max"):
        raise ctx.refuse(f"mode {mode!r} is not known.")
    half = ctx.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    n, c, h, w = x.shape
    ratio, scale = ctx.attr("sampling_ratio", 0), ctx.attr("spatial_scale", 1.0)
    count = rois.shape[0]
    sizes = (count, n, c, h, w, height, width, ratio, int(half), int(mode == "max"))

    def reference(*arrays: np.ndarray) -> tuple[np.ndarray]:
        from onnx.reference.ops.op_roi_align import RoiAlign

        shape = (count, c, height, width)
        y = np.zeros(math.prod(shape), x.dtype)
        RoiAlign.roi_align_forward(
            shape, arrays[0].ravel(), scale, h, w, ratio, arrays[1].ravel(), 4, y, mode, half,
            arrays[2].ravel(),
        )  # fmt: skip
        return (y.reshape(shape),)

    (y,) = opaque(
        f"nst_roi_align_{x.dtype}",
        (x, rois, batch_indices),
        [TensorType((count, c, height, width), x.dtype)],
        reference,
        params=(*(Const("int32", v) for v in sizes), const(scale, x.dtype)),
        name="roi",
    )
    return y


def _col2im(ctx: Ctx, x: Tensor, image_shape: Tensor, block_shape: Tensor) -> Tensor:
    """Sum the columns of sliding blocks into an image: [N, C * prod(block), L] -> [N, C, image]."""
    image, block = ctx.ints(image_shape, "image_shape"), ctx.ints(block_shape, "block_shape")
    rank = len(image)
    dilations = ctx.attr("dilations") or (1,) * rank
    strides = ctx.attr("strides") or (1,) * rank
    pads = ctx.attr("pads") or (0,) * (2 * rank)
    steps = [
        (n + pads[a] + pads[rank + a] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1
        for a, n in enumerate(image)
    ]
    if x.rank != 3 or x.shape[1] % math.prod(block) or x.shape[2] != math.prod(steps):
        raise ctx.refuse(
            f"columns {list(x.shape)} do not fit blocks {list(block)} at {steps} places."
        )
    batch, channels = x.shape[0], x.shape[1] // math.prod(block)
    zeros = compute((batch, channels, *image), lambda *i: const(0, x.dtype), "zeros")

    def parts(i: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], tuple[Expr, ...], list[Expr]]:
        inner, place = i[2 : 2 + rank], i[2 + rank :]
        at = [place[a] * strides[a] + inner[a] * dilations[a] - pads[a] for a in range(rank)]
        return inner, place, at

    def fn(*i: Expr) -> tuple[Indices, Expr]:
        inner, place, at = parts(i)
        row: Expr = i[1]
        for v, n in zip(inner, block, strict=True):
            row = row * n + v
        column: Expr = Const(INDEX, 0)
        for v, n in zip(place, steps, strict=True):
            column = column * n + v
        return (i[0], i[1], *at), x[i[0], row, column]

    def where(*i: Expr) -> Expr:
        tests = [t for v, n in zip(parts(i)[2], image, strict=True) for t in (v >= 0, v < n)]
        inside = all_of(*tests)
        return Const("bool", True) if inside is None else inside

    return scatter(
        zeros, (batch, channels, *block, *steps), fn, combine="sum", where=where, name="image"
    )


RESIZE_OPS: dict[str, Op] = {
    "Resize": Op(_resize),
    "Upsample": Op(_upsample),
    "AffineGrid": Op(_affine_grid),
    "GridSample": Op(_grid_sample),
    "RoiAlign": Op(_roi_align),
    "Col2Im": Op(_col2im),
}
