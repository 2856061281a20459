"""Im2col: a convolution as a product of matrices, of which one holds the windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolkit.ir.compute import Axis
from toolkit.ir.expr import const, INDEX, Load, select
from toolkit.ir.loop import Block, Buffer, fresh_name, PrimFunc, rewrite_stmt, SCRATCH, seq
from toolkit.ir.types import DType
from toolkit.schedule.examples import convolution
from toolkit.schedule.steps.base import block_names, loop_names, Step
from toolkit.schedule.steps.windows import nest_around, unravel, windows_of


@dataclass(frozen=True, slots=True)
class Im2col(Step):
    """Compute a convolution as a product: pixels x taps and channels, by those x output channels.

    The rows of the first matrix are windows, padded with zeros; `ComputeAt` decides how many lie in
    memory at once.  Of a 1x1 convolution of stride 1 they are the pixels as they lie, so `Inline`
    takes the copy away.  Nothing is tested in the inner loop, one loop reduces, and one runs over
    all pixels.  Where a broadcast costs no more than a load, as with AVX, direct loops stay ahead
    of copied windows: first layers of 3 channels take 1.2 to 1.6 times as long.  Weights are
    finite.

    Before::                                    After (k counts 18 taps and channels, p pixels)::

        for oh, ow, oc, kh, kw, ic:                 for p, kh, kw, ic:
          y: y[oh, ow, oc] sum=                       y_p: y_p[p, kh, kw, ic] = x[...] or 0
            x[oh + kh - 1, ow + kw - 1, ic]         for p, oc, k:
            * w[kh, kw, ic, oc]                       y: y_m[p, oc] sum=
                                                        y_p[p, k // 6, k // 2 % 3, k % 2]
                                                        * w[k // 6, k // 2 % 3, k % 2, oc]
                                                    for p, oc:
                                                      y_q: y[p // 4, p % 4, oc] = y_m[p, oc]
    """

    block: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return convolution(), cls("y")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses blocks that slide no windows over two axes of an operand."""
        windows = windows_of(self, func, self.block)
        buffers, names = set(func.buffers()), block_names(func)
        loops = loop_names(func)
        block, dtype = windows.block, windows.data.dtype
        taken = {a.name for a in (*block.axes, *windows.tap_axes, windows.inner)}
        sizes = (windows.batch.extent, *windows.out)
        p = Axis(INDEX, fresh_name("p", taken), math.prod(sizes), "spatial")
        image, *places = unravel(p, sizes)
        taps = [replace(a, role="spatial") for a in (*windows.tap_axes, windows.inner)]
        at = [
            place * stride + tap * dilation
            for place, stride, tap, dilation in zip(
                places, windows.strides, taps[:2], windows.dilations, strict=True
            )
        ]
        data, inside = windows.read(image, at, windows.reach, taps[2])
        value = data if inside is None else select(inside, data, const(0, dtype))
        patches = self._buffer(block, "p", buffers, (p, *taps), dtype)
        copy = Block(
            fresh_name(f"{self.block}_p", names), (p, *taps), (), patches.name, (p, *taps), value
        )
        extents = [a.extent for a in taps]
        k = Axis(INDEX, fresh_name("k", taken), math.prod(extents), "reduce")
        steps = unravel(k, extents)
        outer = windows.outer
        result = self._buffer(block, "m", buffers, (p, outer), block.value.dtype)
        load = Load(dtype, patches.name, (p, *steps))
        product = replace(
            block,
            axes=(p, outer, k),
            buffer=result.name,
            indices=(p, outer),
            value=load * windows.weighted(steps[:2], steps[2], outer),
            guard=None,
        )
        back = Block(
            fresh_name(f"{self.block}_q", names), (p, outer), (), block.buffer,
            windows.place(image, places, outer),
            Load(block.value.dtype, result.name, (p, outer)),
        )  # fmt: skip
        nests = [nest_around(b, loops) for b in (copy, product, back)]
        body = rewrite_stmt(func.body, lambda s: seq(*nests) if s is windows.top else None)
        assert body is not None
        return func.with_(body=body, locals=(*func.locals, patches, result))

    def _buffer(
        self, block: Block, suffix: str, taken: set[str], axes: Sequence[Axis], dtype: DType
    ) -> Buffer:
        """Return a local buffer of an element an axis."""
        name = fresh_name(f"{block.buffer}_{suffix}", taken)
        return Buffer(name, tuple(a.extent for a in axes), dtype, SCRATCH)
