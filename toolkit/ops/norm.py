"""Normalisation: Batch-, Layer-, Instance-, Group- and RMSNormalization, for inference.

Meaning: the ONNX operator specification, newest version of each.  A node attribute
`nestling_layout` of 'NHWC' says that channels are the last axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from toolkit.ir.compute import Axis, compute, placeholder, Reduce, sum, Tensor
from toolkit.ir.expr import call, cast, Expr, Load
from toolkit.ir.types import DType, FROM_ONNX
from toolkit.ops.elementwise import broadcast_load, broadcast_shape
from toolkit.ops.op import Ctx, Op
from toolkit.ops.reduce import Index, kept, reduced


def _channel_axis(ctx: Ctx, x: Tensor) -> int:
    """Return the axis of the channels of [N, C, D1, ..] or, as NHWC, [N, D1, .., C]."""
    if x.rank < 2:
        return max(x.rank - 1, 0)
    return x.rank - 1 if ctx.attr("nestling_layout") == "NHWC" else 1


def _check_vectors(ctx: Ctx, channels: int, **vectors: Tensor | None) -> None:
    for name, vector in vectors.items():
        if vector is not None and vector.shape != (channels,):
            raise ctx.refuse(f"{name} has shape {list(vector.shape)}, not [{channels}].")


def _batch_normalization(
    ctx: Ctx, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    """x * (scale / sqrt(var + epsilon)) + (bias - mean * that), folded here for constants."""
    if ctx.attr("training_mode", 0) or any(ctx.wants(i) for i in range(1, ctx.output_count)):
        raise ctx.refuse(
            "training mode computes batch statistics.",
            "export the model for inference (model.eval()).",
        )
    epsilon = ctx.attr("epsilon", 1e-5)
    channel = _channel_axis(ctx, x)
    channels = x.shape[channel] if x.rank > 1 else 1
    _check_vectors(ctx, channels, scale=scale, B=bias, mean=mean, var=var)
    vectors = (scale, bias, mean, var)
    if all(v.data is not None for v in vectors):
        s, b, m, v = (np.asarray(t.data, np.float64) for t in vectors)
        with np.errstate(all="ignore"):
            factors = s / np.sqrt(v + epsilon)
            offsets = (b - m * factors).astype(x.dtype)
        factor = placeholder((channels,), x.dtype, "factor", factors.astype(x.dtype))
        offset = placeholder((channels,), x.dtype, "offset", offsets)
    else:
        factor = compute(
            (channels,),
            lambda c: cast(scale[c], x.dtype) / call("sqrt", cast(var[c] + epsilon, x.dtype)),
            "factor",
        )
        offset = compute(
            (channels,),
            lambda c: cast(bias[c], x.dtype) - cast(mean[c], x.dtype) * factor[c],
            "offset",
        )

    def element(*i: Expr) -> Expr:
        c: Expr | int = i[channel] if x.rank > 1 else 0
        return x[i] * factor[c] + offset[c]

    return compute(x.shape, element, "batch_norm")


def _moments(
    x: Callable[..., Expr], shape: Sequence[int], axes: Sequence[int], count: int
) -> tuple[Tensor, Tensor]:
    """Define mean and biased variance of `x` over `axes` of `shape`, which are dropped."""

    def first(at: Index, k: tuple[Axis, ...]) -> Reduce:
        return sum(x(*at), k)

    def second(at: Index, k: tuple[Axis, ...]) -> Reduce:
        d = x(*at) - mean[kept(at, axes)]
        return sum(d * d, k)

    total = reduced(shape, axes, first, "mean_sum")
    mean = compute(total.shape, lambda *i: total[i] / count, "mean")
    squares = reduced(shape, axes, second, "var_sum")
    return mean, compute(total.shape, lambda *i: squares[i] / count, "var")


def _inverse_deviation(var: Tensor, epsilon: float) -> Tensor:
    return compute(var.shape, lambda *i: 1 / call("sqrt", var[i] + epsilon), "rstd")


def _instance_normalization(ctx: Ctx, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Mean and variance of each sample and channel."""
    if x.rank < 3:
        raise ctx.refuse(f"its input {list(x.shape)} must have spatial axes.")
    channel = _channel_axis(ctx, x)
    _check_vectors(ctx, x.shape[channel], scale=scale, B=bias)
    axes = tuple(a for a in range(1, x.rank) if a != channel)
    mean, var = _moments(lambda *i: x[i], x.shape, axes, math.prod(x.shape[a] for a in axes))
    rstd = _inverse_deviation(var, ctx.attr("epsilon", 1e-5))

    def element(*i: Expr) -> Expr:
        row, c = kept(i, axes), i[channel]
        return (x[i] - mean[row]) * (rstd[row] * scale[c]) + bias[c]

    return compute(x.shape, element, "instance_norm")


def _group_normalization(ctx: Ctx, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Mean and variance of each sample and group of channels.

    Scale and bias are of each channel (opset 21), or of each group (opset 18), as their shape says.
    """
    groups = ctx.attr("num_groups")
    if x.rank < 2:
        raise ctx.refuse(f"its input {list(x.shape)} must have channels.")
    channel = _channel_axis(ctx, x)
    channels = x.shape[channel]
    if groups is None or groups < 1 or channels % groups:
        raise ctx.refuse(f"{groups} groups do not divide {channels} channels.")
    each = channels // groups
    by_group = groups != channels and scale.shape == (groups,)
    _check_vectors(ctx, groups if by_group else channels, scale=scale, bias=bias)
    wide = _stash(ctx, x)
    # The channel axis as two: group, and channel in the group.
    split = (*x.shape[:channel], groups, each, *x.shape[channel + 1 :])
    axes = tuple(a for a in range(1, len(split)) if a != channel)

    def merged(*i: Expr) -> Expr:
        c = i[channel] * each + i[channel + 1]
        return cast(x[(*i[:channel], c, *i[channel + 2 :])], wide)

    mean, var = _moments(merged, split, axes, math.prod(split[a] for a in axes))
    rstd = _inverse_deviation(var, ctx.attr("epsilon", 1e-5))

    def element(*i: Expr) -> Expr:
        c = i[channel]
        row, own = (i[0], c // each), c // each if by_group else c
        normal = (cast(x[i], wide) - mean[row]) * rstd[row]
        return cast(normal * cast(scale[own], wide) + cast(bias[own], wide), x.dtype)

    return compute(x.shape, element, "group_norm")


def _stash(ctx: Ctx, x: Tensor) -> DType:
    """Return the type to compute in: at least that of `stash_type`, never less than the input's."""
    stash = FROM_ONNX.get(ctx.attr("stash_type", 1))
    if stash not in ("float32", "float64"):
        raise ctx.refuse(f"stash_type {ctx.attr('stash_type')} is not supported.")
    return "float64" if "float64" in (stash, x.dtype) else "float32"


def _layer_normalization(
    ctx: Ctx, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Mean and variance over the axes from `axis` on; also returns mean and 1 / deviation."""
    axis = ctx.axis(ctx.attr("axis", -1), x.rank)
    axes = tuple(range(axis, x.rank))
    _check_affine(ctx, x, scale, bias)
    wide = _stash(ctx, x)
    stash = FROM_ONNX[ctx.attr("stash_type", 1)]
    number = math.prod(x.shape[axis:])
    mean, var = _moments(lambda *i: cast(x[i], wide), x.shape, axes, number)
    rstd = _inverse_deviation(var, ctx.attr("epsilon", 1e-5))

    def element(*i: Expr) -> Expr:
        row = kept(i, axes)
        value = (cast(x[i], wide) - mean[row]) * rstd[row]
        return _affine(value, i, scale, bias, x.dtype, wide)

    outs = [compute(x.shape, element, "layer_norm")]
    rows = (*x.shape[:axis], *(1 for _ in axes))
    for position, moment, name in ((1, mean, "mean_out"), (2, rstd, "rstd_out")):
        if ctx.wants(position):
            outs.append(_column(moment, rows, axis, stash, name))
        else:
            outs.append(moment)
    return tuple(outs)


def _column(x: Tensor, shape: Sequence[int], axis: int, dtype: DType, name: str) -> Tensor:
    return compute(shape, lambda *i: cast(x[i[:axis]], dtype), name)


def _check_affine(ctx: Ctx, x: Tensor, scale: Tensor, bias: Tensor | None) -> None:
    for name, operand in (("scale", scale), ("bias", bias)):
        if operand is not None and broadcast_shape(ctx, x.shape, operand.shape) != x.shape:
            raise ctx.refuse(
                f"{name} of shape {list(operand.shape)} does not broadcast to {list(x.shape)}."
            )


def _affine(
    value: Expr, i: tuple[Expr, ...], scale: Tensor, bias: Tensor | None, dtype: DType, wide: DType
) -> Expr:
    factor: Load = broadcast_load(scale, i)
    value = value * cast(factor, wide)
    if bias is not None:
        value = value + cast(broadcast_load(bias, i), wide)
    return cast(value, dtype)


def _rms_normalization(ctx: Ctx, x: Tensor, scale: Tensor) -> Tensor:
    """x / sqrt(mean(x * x) + epsilon) * scale over the axes from `axis` on."""
    axis = ctx.axis(ctx.attr("axis", -1), x.rank)
    axes = tuple(range(axis, x.rank))
    _check_affine(ctx, x, scale, None)
    wide = _stash(ctx, x)
    epsilon, number = ctx.attr("epsilon", 1e-5), math.prod(x.shape[axis:])

    def square(at: Index, k: tuple[Axis, ...]) -> Reduce:
        value = cast(x[at], wide)
        return sum(value * value, k)

    total = reduced(x.shape, axes, square, "squares")
    scales = compute(total.shape, lambda *i: 1 / call("sqrt", total[i] / number + epsilon), "rrms")

    def element(*i: Expr) -> Expr:
        return _affine(cast(x[i], wide) * scales[kept(i, axes)], i, scale, None, x.dtype, wide)

    return compute(x.shape, element, "rms_norm")


NORM_OPS: dict[str, Op] = {
    "BatchNormalization": Op(_batch_normalization),
    "InstanceNormalization": Op(_instance_normalization),
    "GroupNormalization": Op(_group_normalization),
    "LayerNormalization": Op(_layer_normalization),
    "RMSNormalization": Op(_rms_normalization),
}
