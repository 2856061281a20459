"""Resize and Upsample.

Meaning: the ONNX operator specification.  Coordinates are known when compiling and worked out here
with NumPy: an axis becomes index arithmetic, or a table of first taps and one of weights, and the
kernel only looks up, multiplies and adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.ir.compute import (
    compute,
    reduce_axis,
    Tensor,
)
from toolkit.ir.compute import (
    sum as sum_over,
)
from toolkit.ir.expr import (
    all_of,
    cast,
    const,
    Expr,
    select,
)
from toolkit.ir.types import DTYPES, is_float
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


RESIZE_OPS: dict[str, Op] = {"Resize": Op(_resize), "Upsample": Op(_upsample)}
