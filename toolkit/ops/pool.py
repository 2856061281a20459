"""Pools: average, max and Lp over sliding windows or whole images, MaxUnpool, and LRN.

Meaning: the ONNX operator specification, newest version of each operator.  Layouts as in `conv`:
with `nestling_layout="NHWC"` the channel stands last in x and in the result.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from itertools import chain

from toolkit.ir.compute import compute, max, min, Reduce, reduce_axis, scatter, sum, Tensor
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
    ne,
)
from toolkit.ir.types import is_float
from toolkit.ops.conv import (
    ints_attr,
    Layout,
    layout_of,
    nest,
    reduced,
    taps,
    WindowAxis,
    windows,
)
from toolkit.ops.op import Ctx, Op


def image_windows(ctx: Ctx, x: Tensor) -> tuple[Layout, list[WindowAxis]]:
    """Return the layout of a pool's operand, and the window of each of its spatial axes."""
    layout = layout_of(ctx, x)
    kernel = ints_attr(ctx, "kernel_shape", layout.rank, 0)
    return layout, windows(ctx, layout.split(x.shape)[2], kernel)


def window_reduction(
    x: Tensor,
    layout: Layout,
    axes: Sequence[WindowAxis],
    op: Callable[..., Reduce],
    term: Callable[[Expr], Expr],
    name: str,
) -> Tensor:
    """Reduce term(x) over each window; taps in the padding are skipped."""
    k, kernel_axes = taps(layout.spatial_names("k"), [a.kernel for a in axes])

    def element(*index: Expr) -> Expr | Reduce:
        n, c, o = layout.split(index)
        source = [a.source(oi, ki) for a, oi, ki in zip(axes, o, k, strict=True)]
        tests = chain(*(a.inside(oi, ki) for a, oi, ki in zip(axes, o, k, strict=True)))
        return reduced(op, term(x[layout.order(n, c, source)]), kernel_axes, all_of(*tests))

    batch, channels, _ = layout.split(x.shape)
    shape = layout.order(batch, channels, [a.out for a in axes])
    return nest(layout.names(), shape, element, name)


def _average_pool(ctx: Ctx, x: Tensor) -> Tensor:
    """Mean over each window; `count_include_pad` counts padding, but never what overruns it."""
    layout, axes = image_windows(ctx, x)
    total = window_reduction(x, layout, axes, sum, lambda v: v, "window_sum")
    padding = bool(ctx.attr("count_include_pad", 0))

    def element(*index: Expr) -> Expr:
        count: Expr = Const(INDEX, 1)
        for a, o in zip(axes, layout.split(index)[2], strict=True):
            count = count * a.count(o, padding=padding)
        return total[index] / cast(count, x.dtype)

    return nest(layout.names(), total.shape, element, "avg_pool")


def _max_pool(ctx: Ctx, x: Tensor) -> tuple[Tensor, ...]:
    """Largest value of each window, and where it lies in the flat x: the first of equal ones."""
    layout, axes = image_windows(ctx, x)
    y = window_reduction(x, layout, axes, max, lambda v: v, "max_pool")
    if not ctx.wants(1):
        return (y,)
    _, channels, spatial = layout.split(x.shape)
    k, kernel_axes = taps(layout.spatial_names("k"), [a.kernel for a in axes])

    def first(*index: Expr) -> Expr | Reduce:
        n, c, o = layout.split(index)
        source = [a.source(oi, ki) for a, oi, ki in zip(axes, o, k, strict=True)]
        tests = chain(*(a.inside(oi, ki) for a, oi, ki in zip(axes, o, k, strict=True)))
        value = x[layout.order(n, c, source)]
        found = eq(value, y[index])
        if is_float(x.dtype):
            found = found | ne(value, value)
        place: Expr = Const(INDEX, 0)
        for size, i in zip(spatial, source, strict=True):
            place = place * size + i
        return reduced(min, cast(place, "int64"), kernel_axes, all_of(*tests, found))

    at = nest(layout.names(), y.shape, first, "place")
    image = math.prod(spatial)
    column_major = bool(ctx.attr("storage_order", 0))

    def flat(*index: Expr) -> Expr:
        n, c, _ = layout.split(index)
        base = cast((n * channels + c) * image, "int64")
        place: Expr = at[index]
        if not column_major:
            return base + place
        stride = 1
        total = base
        rest = image
        for size in spatial:
            rest //= size
            i = binary("mod", binary("div", place, rest), size)
            total = total + i * stride
            stride *= size
        return total

    return y, nest(layout.names(), y.shape, flat, "indices")


def _lp_term(p: int, x: Expr) -> Expr:
    if p == 2:
        return x * x
    return call("abs", x) if p == 1 else binary("pow", call("abs", x), float(p))


def _lp_root(p: int, x: Expr) -> Expr:
    if p == 2:
        return call("sqrt", x)
    return x if p == 1 else binary("pow", x, 1.0 / p)


def _lp_norm(ctx: Ctx, x: Tensor, layout: Layout, axes: Sequence[WindowAxis]) -> Tensor:
    p = ctx.attr("p", 2)
    if p < 1:
        raise ctx.refuse(f"p={p} is not a norm.")
    total = window_reduction(x, layout, axes, sum, lambda v: _lp_term(p, v), "power_sum")
    if p == 1:
        return total
    return nest(layout.names(), total.shape, lambda *i: _lp_root(p, total[i]), "lp_pool")


def _lp_pool(ctx: Ctx, x: Tensor) -> Tensor:
    """Lp norm of each window: (sum of |x|**p)**(1/p)."""
    layout, axes = image_windows(ctx, x)
    return _lp_norm(ctx, x, layout, axes)


def _whole(ctx: Ctx, x: Tensor) -> tuple[Layout, list[WindowAxis]]:
    """Return one window an axis that covers the image."""
    layout = layout_of(ctx, x)
    return layout, [WindowAxis(n, n, 1, 1, 0, 0, 1) for n in layout.split(x.shape)[2]]


def _global_average_pool(ctx: Ctx, x: Tensor) -> Tensor:
    layout, axes = _whole(ctx, x)
    total = window_reduction(x, layout, axes, sum, lambda v: v, "image_sum")
    count = const(math.prod(a.size for a in axes), x.dtype)
    return nest(layout.names(), total.shape, lambda *i: total[i] / count, "avg_pool")


def _global_max_pool(ctx: Ctx, x: Tensor) -> Tensor:
    layout, axes = _whole(ctx, x)
    return window_reduction(x, layout, axes, max, lambda v: v, "max_pool")


def _global_lp_pool(ctx: Ctx, x: Tensor) -> Tensor:
    layout, axes = _whole(ctx, x)
    return _lp_norm(ctx, x, layout, axes)


def _max_unpool(ctx: Ctx, x: Tensor, indices: Tensor, output_shape: Tensor | None = None) -> Tensor:
    """Zeros, with x at its indices into the flat tensor that MaxPool had read.

    A larger `output_shape` adds zeros behind; an index out of range is skipped.
    """
    layout = layout_of(ctx, x)
    if layout.channel_last:
        raise ctx.refuse("layout NHWC is not supported.")
    if indices.shape != x.shape:
        raise ctx.refuse(f"indices of shape {list(indices.shape)} do not fit x {list(x.shape)}.")
    rank = layout.rank
    kernel = ints_attr(ctx, "kernel_shape", rank, 0)
    strides, pads = ints_attr(ctx, "strides", rank, 1), ints_attr(ctx, "pads", 2 * rank, 0)
    inner = [
        (n - 1) * strides[i] - pads[i] - pads[rank + i] + kernel[i]
        for i, n in enumerate(x.shape[2:])
    ]
    pooled = (*x.shape[:2], *inner)
    shape = pooled if output_shape is None else ctx.ints(output_shape, "output_shape")
    if len(shape) != x.rank or any(a < b for a, b in zip(shape, pooled, strict=True)):
        raise ctx.refuse(f"output shape {list(shape)} is smaller than {list(pooled)}.")
    zero = const(0, x.dtype)
    base = compute(shape, lambda *i: zero, "zeros")

    def element(*index: Expr) -> tuple[list[Expr], Expr]:
        flat = cast(indices[index], INDEX)
        place: list[Expr] = []
        stride = math.prod(pooled)
        for size in pooled:
            stride //= builtins.max(size, 1)
            place.append(Const(INDEX, 0) if size == 1 else (flat // stride) % size)
        return place, x[index]

    def inside(*index: Expr) -> Expr:
        flat = indices[index]
        return (flat >= 0) & (flat < math.prod(pooled))

    return scatter(base, x.shape, element, where=inside, name="unpool")


def _lrn(ctx: Ctx, x: Tensor) -> Tensor:
    """x / (bias + alpha / size * sum of squares over `size` channels around)**beta."""
    layout = Layout(x.rank - 2, ctx.attr("nestling_layout", "NCHW") == "NHWC")
    if x.rank < 2:
        raise ctx.refuse(f"its input {list(x.shape)} has no channel axis.")
    size: int = ctx.attr("size")
    alpha, beta, bias = ctx.attr("alpha", 1e-4), ctx.attr("beta", 0.75), ctx.attr("bias", 1.0)
    channels = layout.split(x.shape)[1]
    before = (size - 1) // 2
    window = WindowAxis(channels, size, 1, 1, before, size - 1 - before, channels)
    j = reduce_axis(size, "j")

    def squares(*index: Expr) -> Expr | Reduce:
        n, c, o = layout.split(index)
        value = x[layout.order(n, window.source(c, j), o)]
        return reduced(sum, value * value, [j], all_of(*window.inside(c, j)))

    total = nest(layout.names(), x.shape, squares, "squares")

    def element(*index: Expr) -> Expr:
        base = total[index] * (alpha / size) + bias
        if beta == 0.75:
            root = call("sqrt", base)
            return x[index] / (root * call("sqrt", root))
        if beta in (0.5, 1.0):
            return x[index] / (base if beta == 1.0 else call("sqrt", base))
        return x[index] / binary("pow", base, beta)

    return nest(layout.names(), x.shape, element, "lrn")


POOL_OPS: dict[str, Op] = {
    "AveragePool": Op(_average_pool),
    "GlobalAveragePool": Op(_global_average_pool),
    "GlobalLpPool": Op(_global_lp_pool),
    "GlobalMaxPool": Op(_global_max_pool),
    "LpPool": Op(_lp_pool),
    "LRN": Op(_lrn),
    "MaxPool": Op(_max_pool),
    "MaxUnpool": Op(_max_unpool),
}
