"""Signal operators: DFT and STFT, as products with a table of sines and cosines.

Meaning: the ONNX operator specification.  A table of N x K costs N * K multiply-adds a transform,
which for the frame sizes of audio on small cores is near what an FFT costs, and vectorises.
"""

from __future__ import annotations

import numpy as np

from toolkit.ir.compute import compute, Reduce, reduce_axis, sum, Tensor
from toolkit.ir.expr import Expr
from toolkit.ops.op import Ctx, Op
from toolkit.ops.shape import constant


def _table(length: int, read: int, made: int, parts: int, sign: int) -> np.ndarray:
    """Return t[n, d, k, c]: what part d of sample n gives to part c of frequency k.

    exp(sign * 2 pi i k n / length), for `made` frequencies and `read` samples, as real numbers.
    """
    n, k = np.arange(read)[:, None], np.arange(made)[None, :]
    angle = 2 * np.pi * (n * k % length) / length
    cos, sin = np.cos(angle), sign * np.sin(angle)
    return np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1)[:, :parts]


def _real_table(length: int, read: int) -> np.ndarray:
    """Return t[k, d, n, 0]: the real signal whose spectrum's first half is read."""
    table = _table(length, read, length, 2, 1)[..., :1] / length
    table[1 : (length + 1) // 2] *= 2
    return table


def _parts(ctx: Ctx, x: Tensor) -> int:
    """Return how many numbers a sample has: 1 real, 2 complex."""
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise ctx.refuse(f"its input {list(x.shape)} has no last axis of 1 (real) or 2 (complex).")
    return x.shape[-1]


def _dft(ctx: Ctx, x: Tensor, length: Tensor | None = None, at: Tensor | None = None) -> Tensor:
    parts = _parts(ctx, x)
    place = ctx.axis(-2 if at is None else ctx.ints(at, "axis")[0], x.rank)
    if place == x.rank - 1:
        raise ctx.refuse("the last axis holds real and imaginary part; it has no transform.")
    inverse, onesided = bool(ctx.attr("inverse", 0)), bool(ctx.attr("onesided", 0))
    extent = x.shape[place]
    count = 2 * (extent - 1) if inverse and onesided else extent
    if length is not None:
        count = ctx.ints(length, "dft_length")[0]
    if count < 1:
        raise ctx.refuse(f"dft_length is {count}.")
    if inverse and onesided:
        if parts == 1:
            raise ctx.refuse("the inverse of a one-sided transform needs a complex input.")
        table = _real_table(count, min(extent, count // 2 + 1))
    else:
        made = count // 2 + 1 if onesided else count
        table = _table(count, min(extent, count), made, parts, 1 if inverse else -1)
        table = table / count if inverse else table
    weights = constant(table.astype(x.dtype), "twiddles")
    shape = (*x.shape[:place], *table.shape[2:3], *x.shape[place + 1 : -1], table.shape[3])

    def element(*i: Expr) -> Reduce:
        n, d = reduce_axis(table.shape[0], "n"), reduce_axis(parts, "d")
        sample = x[(*i[:place], n, *i[place + 1 : -1], d)]
        return sum(sample * weights[n, d, i[place], i[-1]], (n, d))

    return compute(shape, element, "dft")


def _stft(
    ctx: Ctx, x: Tensor, step: Tensor, window: Tensor | None = None, length: Tensor | None = None
) -> Tensor:
    parts = _parts(ctx, x)
    hop = ctx.ints(step, "frame_step")[0]
    if length is not None:
        count = ctx.ints(length, "frame_length")[0]
    elif window is not None:
        count = window.shape[0]
    else:
        raise ctx.refuse("it has neither a window nor a frame_length.")
    if x.rank != 3 or hop < 1 or not 1 <= count <= x.shape[1]:
        raise ctx.refuse(f"a frame of {count}, every {hop}, does not fit {list(x.shape)}.")
    if window is not None and window.shape != (count,):
        raise ctx.refuse(f"its window {list(window.shape)} is not of frame_length, {count}.")
    made = count // 2 + 1 if ctx.attr("onesided", 1) else count
    table = _table(count, count, made, parts, -1)
    if window is not None and window.data is not None:
        table = table * np.asarray(window.data, np.float64)[:, None, None, None]
        window = None
    weights = constant(table.astype(x.dtype), "twiddles")

    def element(b: Expr, f: Expr, k: Expr, c: Expr) -> Reduce:
        n, d = reduce_axis(count, "n"), reduce_axis(parts, "d")
        sample: Expr = x[b, f * hop + n, d]
        if window is not None:
            sample = sample * window[n]
        return sum(sample * weights[n, d, k, c], (n, d))

    return compute((x.shape[0], (x.shape[1] - count) // hop + 1, made, 2), element, "stft")


SIGNAL_OPS: dict[str, Op] = {"DFT": Op(_dft), "STFT": Op(_stft)}
