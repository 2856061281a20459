"""Convolutions: Conv, ConvTranspose, ConvInteger, DeformConv, and the windows pools use as well.

Meaning: the ONNX operator specification, newest version of each operator, `pads` explicit (the
frontend resolves `auto_pad` and `output_shape`).  One function serves 1-D, 2-D, 3-D and more; the
layout is a permutation of axes.  The attribute `nestling_layout="NHWC"`, set by a layout pass, puts
the channel last: x [N, spatial.., C], result [N, spatial.., M].  Weights are then
[kernel.., C/group, M] for Conv and ConvInteger (also depthwise), and [kernel.., C, M/group] for
ConvTranspose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from toolkit.ir.compute import Axis, ComputeStage, Reduce, reduce_axis, sum, Tensor
from toolkit.ir.expr import (
    all_of,
    call,
    cast,
    Const,
    eq,
    Expr,
    INDEX,
    maximum,
    minimum,
    select,
)
from toolkit.ir.types import is_float
from toolkit.ops.op import Ctx, Op

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the channel stands in a tensor of batch, channel and `rank` spatial axes."""

    rank: int
    channel_last: bool

    def order(self, batch: T, channel: T, spatial: Sequence[T]) -> tuple[T, ...]:
        """Arrange one item an axis as the layout does."""
        if self.channel_last:
            return (batch, *spatial, channel)
        return (batch, channel, *spatial)

    def split(self, items: Sequence[T]) -> tuple[T, T, tuple[T, ...]]:
        """Return (batch, channel, spatial) of items in the order of the layout."""
        if self.channel_last:
            return items[0], items[-1], tuple(items[1:-1])
        return items[0], items[1], tuple(items[2:])

    def weight(self, outer: T, inner: T, kernel: Sequence[T]) -> tuple[T, ...]:
        """Arrange a weight's axes: [outer, inner, kernel..] or [kernel.., inner, outer]."""
        return (*kernel, inner, outer) if self.channel_last else (outer, inner, *kernel)

    def split_weight(self, items: Sequence[T]) -> tuple[T, T, tuple[T, ...]]:
        """Return (outer, inner, kernel) of items in the order of the weight."""
        if self.channel_last:
            return items[-1], items[-2], tuple(items[:-2])
        return items[0], items[1], tuple(items[2:])

    def spatial_names(self, prefix: str) -> tuple[str, ...]:
        """Name the spatial axes: oh, ow for the prefix o and rank 2."""
        letters = {1: "l", 2: "hw", 3: "dhw"}.get(self.rank)
        if letters is None:
            return tuple(f"{prefix}{i}" for i in range(self.rank))
        return tuple(prefix + letter for letter in letters)

    def names(self, channel: str = "c") -> tuple[str, ...]:
        """Name the loops over a result."""
        return self.order("n", channel, self.spatial_names("o"))


def layout_of(ctx: Ctx, x: Tensor) -> Layout:
    """Return the layout of a node whose data operand is `x`; refuse fewer than 3 axes."""
    if x.rank < 3:
        raise ctx.refuse(f"its input {list(x.shape)} needs a batch, a channel and a spatial axis.")
    layout = ctx.attr("nestling_layout", "NCHW")
    if layout not in ("NCHW", "NHWC"):
        raise ctx.refuse(f"layout {layout!r} is not known; NCHW and NHWC are.")
    return Layout(x.rank - 2, layout == "NHWC")


def nest(
    names: Sequence[str], shape: Sequence[int], fn: Callable[..., Expr | Reduce], name: str
) -> Tensor:
    """Define a tensor as `compute` does, with the loops named by `names`."""
    axes = tuple(Axis(INDEX, n, int(e), "spatial") for n, e in zip(names, shape, strict=True))
    body = fn(*axes)
    dtype = body.value.dtype if isinstance(body, Reduce) else body.dtype
    return Tensor(name, tuple(map(int, shape)), dtype, ComputeStage(axes, body))


def taps(names: Sequence[str], extents: Sequence[int]) -> tuple[list[Expr], list[Axis]]:
    """Return an index an axis of a kernel, and the reduce axes: an extent of 1 needs none."""
    index: list[Expr] = []
    axes: list[Axis] = []
    for name, extent in zip(names, extents, strict=True):
        if extent == 1:
            index.append(Const(INDEX, 0))
        else:
            axes.append(reduce_axis(extent, name))
            index.append(axes[-1])
    return index, axes


def reduced(
    op: Callable[..., Reduce], value: Expr, axes: Sequence[Axis], where: Expr | None
) -> Expr | Reduce:
    """Reduce over `axes`; a reduction of one unguarded term is that term."""
    if not axes:
        if where is None:
            return value
        axes = [reduce_axis(1)]
    return op(value, axes, where=where)


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """One spatial axis under a sliding window, of input extent `size` and output extent `out`."""

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    out: int

    @property
    def reach(self) -> int:
        """Input index of the last tap of the last window."""
        return (self.out - 1) * self.stride + (self.kernel - 1) * self.dilation - self.begin

    def source(self, o: Expr, k: Expr) -> Expr:
        """Return the input index that tap `k` of window `o` reads; it may lie in the padding."""
        return o * self.stride + k * self.dilation - self.begin

    def inside(self, o: Expr, k: Expr) -> list[Expr]:
        """Return the conditions under which a tap lies in the input: none where every tap does."""
        tests = []
        if self.begin > 0:
            tests.append(self.source(o, k) >= 0)
        if self.reach >= self.size:
            tests.append(self.source(o, k) < self.size)
        return tests

    def count(self, o: Expr, *, padding: bool) -> Expr:
        """Return how many taps of window `o` lie in the input, with `padding` in the padded one."""
        start = o * self.stride - self.begin
        limit = self.size + (self.end if padding else 0)
        first: Expr = Const(INDEX, 0)
        last: Expr = Const(INDEX, self.kernel)
        if self.begin > 0 and not padding:
            first = maximum((self.dilation - 1 - start) // self.dilation, 0)
        if self.reach >= limit:
            last = minimum((limit + self.dilation - 1 - start) // self.dilation, last)
        return last - first


def ints_attr(ctx: Ctx, name: str, count: int, default: int) -> tuple[int, ...]:
    """Return a list attribute of `count` integers; refuse another length."""
    values = tuple(ctx.attr(name) or (default,) * count)
    if len(values) != count:
        raise ctx.refuse(f"attribute {name!r} must hold {count} numbers, not {list(values)}.")
    return values


def _explicit(ctx: Ctx) -> None:
    for name in ("auto_pad", "output_shape"):
        if ctx.attr(name, "NOTSET") not in ("NOTSET", ""):
            raise ctx.refuse(f"attribute {name!r} must be resolved to 'pads' by the frontend.")


def windows(ctx: Ctx, spatial: Sequence[int], kernel: Sequence[int]) -> list[WindowAxis]:
    """Return the window of each spatial axis as the node's attributes say; refuse an empty result.

    With `ceil_mode` the last window may overrun the padding, but not start in the right padding.
    """
    _explicit(ctx)
    rank = len(spatial)
    if len(kernel) != rank:
        raise ctx.refuse(f"a kernel {list(kernel)} does not fit spatial axes {list(spatial)}.")
    strides = ints_attr(ctx, "strides", rank, 1)
    dilations = ints_attr(ctx, "dilations", rank, 1)
    pads = ints_attr(ctx, "pads", 2 * rank, 0)
    result = []
    for i, (size, k) in enumerate(zip(spatial, kernel, strict=True)):
        stride, dilation, begin, end = strides[i], dilations[i], pads[i], pads[rank + i]
        if min(k, stride, dilation) < 1 or min(begin, end) < 0:
            raise ctx.refuse("kernel, strides and dilations must be positive, pads not negative.")
        room = size + begin + end - (k - 1) * dilation - 1
        if ctx.attr("ceil_mode", 0):
            out = -(-room // stride) + 1
            if (out - 1) * stride >= size + begin:
                out -= 1
        else:
            out = room // stride + 1
        if room < 0 or out < 1:
            raise ctx.refuse(
                f"a window of {(k - 1) * dilation + 1} does not fit the padded extent "
                f"{size + begin + end} of spatial axis {i}."
            )
        result.append(WindowAxis(size, k, stride, dilation, begin, end, out))
    return result


def _groups(ctx: Ctx, channels: int, weight_channels: int, outputs: int) -> int:
    """Return the `group` attribute; refuse channels that do not fit it."""
    group: int = ctx.attr("group", 1)
    if group < 1 or channels != weight_channels * group or outputs % group:
        raise ctx.refuse(
            f"{channels} input channels, weights of {weight_channels} by {outputs} channels and "
            f"group={group} do not fit together."
        )
    return group


@dataclass(frozen=True, slots=True)
class SplitAxes:
    """Axes of a result of which some are two in the stage that computes it: i = q * factor + r.

    Groups and strides make subscripts with `//` and `%`; where those stand in the last stage only,
    they vanish as soon as its loops are split by the same factors, and no reduction sees them.
    """

    names: tuple[tuple[str, str], ...]
    """Of each axis: of the whole or q, and of r."""
    factors: tuple[int, ...]

    def stage(self, shape: Sequence[int], fn: Callable[..., Expr | Reduce], name: str) -> Tensor:
        """Define the split tensor; `fn` gets a pair (q, r) an axis, r = 0 where it is not split."""
        names: list[str] = []
        extents: list[int] = []
        for (whole, rest), extent, factor in zip(self.names, shape, self.factors, strict=True):
            names += [whole] if factor == 1 else [whole, rest]
            extents += [extent] if factor == 1 else [-(-extent // factor), factor]

        def element(*index: Expr) -> Expr | Reduce:
            items = iter(index)
            zero = Const(INDEX, 0)
            return fn(*((next(items), next(items) if f > 1 else zero) for f in self.factors))

        return nest(names, extents, element, name)

    def read(self, x: Tensor, index: Sequence[Expr]) -> Expr:
        """Return the element of the split tensor that is element `index` of the result."""
        pieces: list[Expr] = []
        for i, factor in zip(index, self.factors, strict=True):
            pieces += [i] if factor == 1 else [i // factor, i % factor]
        return x[tuple(pieces)]


def _finish(
    ctx: Ctx,
    y: Tensor,
    split: SplitAxes,
    layout: Layout,
    shape: Sequence[int],
    bias: Tensor | None,
    name: str,
) -> Tensor:
    """Join split axes and add the bias in a stage of its own, so that it becomes an epilogue."""
    channels = layout.split(shape)[1]
    if bias is not None and bias.shape != (channels,):
        raise ctx.refuse(f"the bias has shape {list(bias.shape)}, not {[channels]}.")
    if bias is None and y.shape == tuple(shape):
        return y

    def element(*index: Expr) -> Expr:
        value = split.read(y, index)
        return value if bias is None else value + bias[layout.split(index)[1]]

    return nest(layout.names("oc"), shape, element, name)


def _window_conv(
    ctx: Ctx,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    term: Callable[[Expr, Expr, Expr], Expr],
) -> Tensor:
    """Sum term(x, w, output channel) over kernel and channel; taps in the padding are skipped."""
    layout = layout_of(ctx, x)
    if w.rank != x.rank:
        raise ctx.refuse(f"weights {list(w.shape)} do not fit an input of shape {list(x.shape)}.")
    batch, channels, spatial = layout.split(x.shape)
    outputs, per_group, kernel = layout.split_weight(w.shape)
    group = _groups(ctx, channels, per_group, outputs)
    axes = windows(ctx, spatial, kernel)
    k, kernel_axes = taps(layout.spatial_names("k"), kernel)
    (c,), channel_axes = taps(["ic"], [per_group])
    split = _split_axes(layout, layout.spatial_names("o"), group, outputs, [1] * layout.rank)

    def element(*index: tuple[Expr, Expr]) -> Expr | Reduce:
        (n, _), pair, places = layout.split(index)
        g, m = _channel(pair, group, outputs)
        o = [q for q, _ in places]
        source = [a.source(oi, ki) for a, oi, ki in zip(axes, o, k, strict=True)]
        tests = chain(*(a.inside(oi, ki) for a, oi, ki in zip(axes, o, k, strict=True)))
        data = x[layout.order(n, g * per_group + c, source)]
        value = term(data, w[layout.weight(m, c, k)], m)
        return reduced(sum, value, [*kernel_axes, *channel_axes], all_of(*tests))

    shape = layout.order(batch, outputs, [a.out for a in axes])
    return _finish(ctx, split.stage(shape, element, "conv"), split, layout, shape, bias, "conv_out")


def _split_axes(
    layout: Layout, spatial: Sequence[str], group: int, outputs: int, strides: Sequence[int]
) -> SplitAxes:
    """Split the channel into group and rest, if it is more than either, and places by strides."""
    rest = outputs // group if group > 1 else 1
    phases = zip(spatial, layout.spatial_names("r"), strict=True)
    return SplitAxes(
        layout.order(("n", ""), ("g", "oc") if rest > 1 else ("oc", ""), list(phases)),
        layout.order(1, rest, strides),
    )


def _channel(pair: tuple[Expr, Expr], group: int, outputs: int) -> tuple[Expr, Expr]:
    """Return (group, output channel) of what `_split_axes` made of the channel."""
    if group == 1:
        return Const(INDEX, 0), pair[0]
    return pair[0], pair[0] * (outputs // group) + pair[1]


def _conv(ctx: Ctx, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """y[n, m, o] = b[m] + sum_ck x[n, c, o * stride + k * dilation - pad] * w[m, c, k]."""
    return _window_conv(ctx, x, w, b, lambda xv, wv, m: xv * wv)


def _conv_integer(
    ctx: Ctx,
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
) -> Tensor:
    """Conv of (x - x_zero_point) and (w - w_zero_point) in int32; padding is the zero point."""

    def minus(value: Expr, zero: Tensor | None, m: Expr) -> Expr:
        wide = cast(value, "int32")
        if zero is None or (zero.data is not None and not zero.data.any()):
            return wide
        return wide - cast(zero[tuple(0 if n == 1 else m for n in zero.shape)], "int32")

    outputs = layout_of(ctx, x).split_weight(w.shape)[0]
    for zero, sizes in ((x_zero_point, (1,)), (w_zero_point, (1, outputs))):
        if zero is not None and (zero.rank > 1 or math.prod(zero.shape) not in sizes):
            raise ctx.refuse(f"a zero point of shape {list(zero.shape)} does not fit.")
    return _window_conv(
        ctx, x, w, None,
        lambda xv, wv, m: minus(xv, x_zero_point, m) * minus(wv, w_zero_point, m),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PhaseAxis:
    """One spatial axis of a transposed convolution, output split by its phase in the stride.

    Output o = q * stride + r gathers the inputs i and taps k with i * stride + k * dilation =
    o + begin.  With g = gcd(stride, dilation), taps exist only where g divides r + begin, and they
    are k = k0(r) + j * (stride / g) at i = q + i0(r) - j * (dilation / g), j = 0, 1, ...: no
    division depends on the reduction, and few are left when the loop over o is split by the stride.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    out: int

    @property
    def common(self) -> int:
        """gcd(stride, dilation)."""
        return math.gcd(self.stride, self.dilation)

    @property
    def step(self) -> int:
        """Distance of the taps of one phase."""
        return self.stride // self.common

    @property
    def tap_count(self) -> int:
        """Number of taps of the phase that has most."""
        return -(-self.kernel // self.step)

    @property
    def steps(self) -> int:
        """Number of values of q."""
        return -(-self.out // self.stride)

    def tap(self, r: Expr, j: Expr) -> Expr:
        """Return the kernel index of tap `j` of phase `r`."""
        return self._tap0(r) + j * self.step

    def _tap0(self, r: Expr) -> Expr:
        if self.step == 1:
            return Const(INDEX, 0)
        inverse = pow(self.dilation // self.common, -1, self.step)
        return ((r + self.begin) // self.common * inverse) % self.step

    def source(self, q: Expr, r: Expr, j: Expr) -> Expr:
        """Return the input index that tap `j` reads at `q`."""
        shifted = r + self.begin
        if self.dilation > 1:  # else k0(r) is the remainder, and drops out
            shifted = shifted - self._tap0(r) * self.dilation
        offset = shifted // self.stride
        return q + offset - j * (self.dilation // self.common)

    def inside(self, q: Expr, r: Expr, j: Expr) -> list[Expr]:
        """Return the conditions under which a tap exists and reads the input."""
        tests: list[Expr] = []
        if self.common > 1:
            tests.append(eq((r + self.begin) % self.common, 0))
        if self.kernel % self.step:
            tests.append(self.tap(r, j) < self.kernel)
        source = self.source(q, r, j)
        return [*tests, source >= 0, source < self.size]


def _phases(ctx: Ctx, spatial: Sequence[int], kernel: Sequence[int]) -> list[PhaseAxis]:
    _explicit(ctx)
    rank = len(spatial)
    strides = ints_attr(ctx, "strides", rank, 1)
    dilations = ints_attr(ctx, "dilations", rank, 1)
    pads = ints_attr(ctx, "pads", 2 * rank, 0)
    extra = ints_attr(ctx, "output_padding", rank, 0)
    result = []
    for i, (size, k) in enumerate(zip(spatial, kernel, strict=True)):
        if min(strides[i], dilations[i]) < 1:
            raise ctx.refuse("strides and dilations must be positive.")
        full = strides[i] * (size - 1) + extra[i] + (k - 1) * dilations[i] + 1
        out = full - pads[i] - pads[rank + i]
        if out < 1:
            raise ctx.refuse(
                f"padding {pads[i]} + {pads[rank + i]} leaves nothing of the extent {full} "
                f"of spatial axis {i}."
            )
        result.append(PhaseAxis(size, k, strides[i], dilations[i], pads[i], out))
    return result


def _conv_transpose(ctx: Ctx, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """y[n, m, o] = b[m] + sum of x[n, c, i] * w[c, m, k] over i * stride + k * dilation = o + pad.

    Axes with a stride have two loops in the gathering stage, q and r; see `PhaseAxis`.
    """
    layout = layout_of(ctx, x)
    if w.rank != x.rank:
        raise ctx.refuse(f"weights {list(w.shape)} do not fit an input of shape {list(x.shape)}.")
    batch, channels, spatial = layout.split(x.shape)
    if layout.channel_last:
        kernel, (weight_in, per_group) = w.shape[:-2], w.shape[-2:]
    else:
        (weight_in, per_group), kernel = w.shape[:2], w.shape[2:]
    group: int = ctx.attr("group", 1)
    if weight_in != channels or group < 1 or channels % group:
        raise ctx.refuse(
            f"{channels} input channels, weights of {weight_in} by {per_group} channels and "
            f"group={group} do not fit together."
        )
    axes = _phases(ctx, spatial, kernel)
    outputs = per_group * group
    j, kernel_axes = taps(layout.spatial_names("k"), [a.tap_count for a in axes])
    (c,), channel_axes = taps(["ic"], [channels // group])
    split = _split_axes(layout, layout.spatial_names("o"), group, outputs, [a.stride for a in axes])

    def element(*index: tuple[Expr, Expr]) -> Expr | Reduce:
        (n, _), pair, places = layout.split(index)
        g, m = _channel(pair, group, outputs)
        tests: list[Expr] = []
        source: list[Expr] = []
        tap: list[Expr] = []
        for a, (q, r), ji in zip(axes, places, j, strict=True):
            tests += a.inside(q, r, ji)
            source.append(a.source(q, r, ji))
            tap.append(a.tap(r, ji))
        outer = g * (channels // group) + c
        inner = m if group == 1 else pair[1]
        weight = w[(*tap, outer, inner)] if layout.channel_last else w[(outer, inner, *tap)]
        value = x[layout.order(n, outer, source)] * weight
        return reduced(sum, value, [*kernel_axes, *channel_axes], all_of(*tests))

    shape = layout.order(batch, outputs, [a.out for a in axes])
    return _finish(ctx, split.stage(shape, element, "gather"), split, layout, shape, b, "deconv")


def _deform_conv(
    ctx: Ctx,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Conv with taps moved by offsets, weighted by a mask and read bilinearly; 0 outside of x."""
    if x.rank != 4 or layout_of(ctx, x).channel_last:
        raise ctx.refuse("only images in layout NCHW are supported.")
    layout = Layout(2, False)
    batch, channels, spatial = layout.split(x.shape)
    outputs, per_group, kernel = layout.split_weight(w.shape)
    group = _groups(ctx, channels, per_group, outputs)
    offset_group: int = ctx.attr("offset_group", 1)
    axes = windows(ctx, spatial, kernel)
    taps_total = math.prod(kernel)
    out = tuple(a.out for a in axes)
    if offset_group < 1 or channels % offset_group:
        raise ctx.refuse(f"offset_group={offset_group} does not divide {channels} channels.")
    if offset.shape != (batch, offset_group * taps_total * 2, *out):
        raise ctx.refuse(
            f"offset has shape {list(offset.shape)}, "
            f"not {[batch, offset_group * taps_total * 2, *out]}."
        )
    if mask is not None and mask.shape != (batch, offset_group * taps_total, *out):
        raise ctx.refuse(
            f"mask has shape {list(mask.shape)}, not {[batch, offset_group * taps_total, *out]}."
        )
    if not is_float(x.dtype):
        raise ctx.refuse("its input must be of a floating type.")
    k, kernel_axes = taps(("kh", "kw"), kernel)
    (c,), channel_axes = taps(["ic"], [per_group])

    def sample(n: Expr, channel: Expr, at: Sequence[Expr]) -> Expr:
        low = [call("floor", p) for p in at]
        # Clamped in the floating type first: converting what no index can hold is undefined in C.
        cells = [
            cast(maximum(minimum(p, float(size)), -2.0), INDEX)
            for p, size in zip(low, spatial, strict=True)
        ]
        total: Expr | None = None
        for corner in ((0, 0), (0, 1), (1, 0), (1, 1)):
            cell = [i + step for i, step in zip(cells, corner, strict=True)]
            inside = all_of(
                *chain(*((i >= 0, i < size) for i, size in zip(cell, spatial, strict=True)))
            )
            assert inside is not None
            share = [
                (p - f) if step else (1 - (p - f))
                for p, f, step in zip(at, low, corner, strict=True)
            ]
            part = select(inside, x[(n, channel, *cell)] * (share[0] * share[1]), 0.0)
            total = part if total is None else total + part
        assert total is not None
        return total

    def element(*index: Expr) -> Expr | Reduce:
        n, m, o = layout.split(index)
        channel = c if group == 1 else (m // (outputs // group)) * per_group + c
        place = (channel // (channels // offset_group)) * taps_total + k[0] * kernel[1] + k[1]
        at = [
            cast(a.source(oi, ki), x.dtype) + offset[(n, place * 2 + i, *o)]
            for i, (a, oi, ki) in enumerate(zip(axes, o, k, strict=True))
        ]
        value = sample(n, channel, at) * w[(m, c, *k)]
        if mask is not None:
            value = value * mask[(n, place, *o)]
        return reduced(sum, value, [*kernel_axes, *channel_axes], None)

    shape = layout.order(batch, outputs, out)
    y = nest(layout.names("oc"), shape, element, "deform")
    plain = _split_axes(layout, layout.spatial_names("o"), 1, outputs, [1] * layout.rank)
    return _finish(ctx, y, plain, layout, shape, b, "deform_out")


CONV_OPS: dict[str, Op] = {
    "Conv": Op(_conv),
    "ConvInteger": Op(_conv_integer),
    "ConvTranspose": Op(_conv_transpose),
    "DeformConv": Op(_deform_conv),
}

__all__ = ["CONV_OPS", "Layout", "WindowAxis", "layout_of", "nest", "windows"]
