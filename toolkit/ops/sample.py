"""Sampling at run-time coordinates: GridSample, AffineGrid, RoiAlign; and Col2Im.

Meaning: the ONNX operator specification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.ir.compute import (
    assemble,
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
    Expr,
    INDEX,
    maximum,
    minimum,
    select,
)
from toolkit.ir.types import is_float, TensorType
from toolkit.ops.op import Ctx, Op
from toolkit.ops.quant import clamped, saturated
from toolkit.ops.shape import constant, Indices

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


@dataclass(frozen=True, slots=True)
class _Line:
    """One axis of x under a grid: what stands at the sampled points, [N, O1..] each.

    `at` is the coordinate, a finite number near the axis; `low` its integer part.
    """

    extent: int
    mode: str
    padding: str
    align: bool
    at: Tensor
    low: Tensor

    @property
    def offsets(self) -> range:
        """Taps of a point, relative to `low`."""
        return {"nearest": range(1), "linear": range(2), "cubic": range(-1, 3)}[self.mode]

    def tap(self, i: tuple[Expr, ...], offset: int) -> tuple[Expr, Expr | None]:
        """Return an index inside the axis, and whether the tap counts (None: always)."""
        at = cast(self.low[i], INDEX) + offset
        return _TAP_PADDING[self.padding](at, self.extent, self.align)

    def per_tap(self, value: Callable[[tuple[Expr, ...], int], Expr], name: str) -> Tensor:
        """Define a tensor [N, O1.., taps], one part a tap."""
        points = self.low.shape

        def part(t: int, offset: int) -> Callable[..., tuple[Indices, Expr]]:
            return lambda *i: ((*i, t), value(i, offset))

        parts = [(points, part(t, offset)) for t, offset in enumerate(self.offsets)]
        return assemble((*points, len(parts)), parts, name=name)

    def index(self, name: str) -> Tensor:
        """Return the tensor of the taps' indices."""
        return self.per_tap(lambda i, t: cast(self.tap(i, t)[0], "int32"), name)

    def weights(self, name: str) -> Tensor:
        """Return the tensor of the taps' weights, 0 for those that do not count."""
        share = compute(
            self.at.shape, lambda *i: self.at[i] - call("floor", self.at[i]), f"{name}_share"
        )

        def weight(i: tuple[Expr, ...], offset: int) -> Expr:
            r: Expr = share[i]
            if self.mode == "linear":
                value = r if offset else 1.0 - r
            else:
                value = _cubic_weight(r, offset)
            counts = self.tap(i, offset)[1]
            return value if counts is None else select(counts, value, 0.0)

        return self.per_tap(weight, name)


def _cubic_weight(r: Expr, offset: int) -> Expr:
    """Return the weight of a tap of Keys' kernel, a = -0.75, at fraction r."""
    a = -0.75
    distance = {-1: r + 1.0, 0: r, 1: 1.0 - r, 2: 2.0 - r}[offset]
    if offset in (0, 1):
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1.0
    return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a


def _grid_sample(ctx: Ctx, x: Tensor, grid: Tensor) -> Tensor:
    """Sample x [N, C, D1..] at grid [N, O1.., rank].

    Padding acts on single taps, as in PyTorch and onnxruntime; with `zeros` a tap outside has
    weight 0.  Coordinates far outside, and NaN, are clamped first, which no padding mode can tell
    except `reflection` beyond a million periods.
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
    shape = (*x.shape[:2], *grid.shape[1:-1])
    if 0 in extents and 0 not in shape:
        raise ctx.refuse(f"an empty image of shape {list(x.shape)} cannot be sampled.")

    def line(a: int) -> _Line:
        n = extents[a]

        def coordinate(*i: Expr) -> Expr:
            value: Expr = grid[(*i, rank - 1 - a)]  # the grid names axes from last to first
            if align:
                value = (value + 1.0) / 2.0 * float(n - 1)
            else:
                value = ((value + 1.0) * float(n) - 1.0) / 2.0
            far = min(2.0**20 * (n + 1), 2.0**30) if padding == "reflection" else 8.0
            value = clamped(value, -far, n + far)
            return call("round", value) if mode == "nearest" else value

        at = compute((x.shape[0], *shape[2:]), coordinate, f"at{a}")
        low = compute(at.shape, lambda *i: cast(call("floor", at[i]), "int32"), f"low{a}")
        return _Line(n, mode, padding, align, at, low)

    lines = [line(a) for a in range(rank)]
    index = [axis.index(f"index{a}") for a, axis in enumerate(lines)]
    if mode == "nearest":
        return _point_sampled(x, shape, lines, index)
    weights = [axis.weights(f"weights{a}") for a, axis in enumerate(lines)]
    work = x.dtype if is_float(x.dtype) else grid.dtype
    taps = tuple(reduce_axis(len(axis.offsets), f"t{a}") for a, axis in enumerate(lines))

    def element(*i: Expr) -> object:
        point = (i[0], *i[2:])
        where = [cast(index[a][(*point, t)], INDEX) for a, t in enumerate(taps)]
        value: Expr = cast(x[(i[0], i[1], *where)], work)
        for a, t in enumerate(taps):
            value = value * cast(weights[a][(*point, t)], work)
        return sum_over(value, taps)

    y = compute(shape, element, "sample")  # type: ignore[arg-type]
    if y.dtype == x.dtype:
        return y
    return compute(shape, lambda *i: saturated(y[i], x.dtype), "sample")


def _point_sampled(
    x: Tensor, shape: tuple[int, ...], lines: Sequence[_Line], index: Sequence[Tensor]
) -> Tensor:
    """Return single elements of x, 0 where they do not count."""
    points = (shape[0], *shape[2:])

    def counts(*i: Expr) -> Expr:
        test = all_of(*(t for axis in lines if (t := axis.tap(i, 0)[1]) is not None))
        return Const("bool", True) if test is None else test

    inside = compute(points, counts, "counts")

    def element(*i: Expr) -> Expr:
        point = (i[0], *i[2:])
        value = x[(i[0], i[1], *(cast(t[(*point, 0)], INDEX) for t in index))]
        return select(inside[point], value, 0) if lines[0].padding == "zeros" else value

    return compute(shape, element, "sample")


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


SAMPLE_OPS: dict[str, Op] = {
    "AffineGrid": Op(_affine_grid),
    "GridSample": Op(_grid_sample),
    "RoiAlign": Op(_roi_align),
    "Col2Im": Op(_col2im),
}
