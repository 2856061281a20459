"""Im2col: a convolution as a product of matrices, of which one holds the windows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.compute import Axis
from toolkit.ir.expr import const, INDEX, Load, select
from toolkit.ir.loop import Block, Buffer, fresh_name, PrimFunc, rewrite_stmt, SCRATCH, seq
from toolkit.schedule.examples import convolution
from toolkit.schedule.steps.base import block_names, loop_names, Step
from toolkit.schedule.steps.windows import nest_around, windows_of


@dataclass(frozen=True, slots=True)
class Im2col(Step):
    """Copy the windows of a convolution, padded with zeros, and reduce over them in one loop.

    `ComputeAt` decides how many windows lie in memory at once.  Nothing is tested in the inner loop
    any more, and taps times few channels make one loop, which intrinsics that reduce several steps
    at once can fill.  Where a broadcast costs a load, as with AVX, direct loops stay ahead: first
    layers of 3 channels take 1.2 to 1.6 times as long.  Weights are finite.

    Before::                                    After (k counts 3 * 3 * 2 taps and channels)::

        for oh, ow, oc, kh, kw, ic:                 for oh, ow, kh, kw, ic:
          y: y[oh, ow, oc] sum=                       p: p[oh, ow, kh, kw, ic] =
            x[oh + kh - 1, ow + kw - 1, ic]             x[oh + kh - 1, ow + kw - 1, ic] or 0
            * w[kh, kw, ic, oc]                     for oh, ow, oc, k:
                                                      y: y[oh, ow, oc] sum=
                                                        p[oh, ow, k // 6, k // 2 % 3, k % 2]
                                                        * w[k // 6, k // 2 % 3, k % 2, oc]
    """

    block: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return convolution(), cls("y")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses blocks that slide no windows of three reduce axes over two axes of an operand."""
        windows = windows_of(self, func, self.block)
        buffers = set(func.buffers())
        loops = loop_names(func) | buffers
        kernel = [replace(a, role="spatial") for a in windows.tap_axes]
        inner = replace(windows.inner, role="spatial")
        axes = (windows.batch, *windows.places, *kernel, inner)
        at = [
            place * stride + tap * dilation
            for place, stride, tap, dilation in zip(
                windows.places, windows.strides, kernel, windows.dilations, strict=True
            )
        ]
        data, inside = windows.read(windows.batch, at, windows.reach, inner)
        dtype = windows.data.dtype
        value = data if inside is None else select(inside, data, const(0, dtype))
        shape = tuple(a.extent for a in axes)
        patches = Buffer(fresh_name(f"{windows.block.buffer}_p", buffers), shape, dtype, SCRATCH)
        name = fresh_name(f"{self.block}_p", block_names(func))
        copy = nest_around(Block(name, axes, (), patches.name, axes, value), loops)

        taken = {a.name for a in windows.block.axes}
        width, depth = windows.taps[1], inner.extent
        every = windows.taps[0] * width * depth
        k = Axis(INDEX, fresh_name("k", taken), every, "reduce")
        steps = (k // (width * depth), k // depth % width, k % depth)
        load = Load(dtype, patches.name, (windows.batch, *windows.places, *steps))
        product = nest_around(
            replace(
                windows.block,
                axes=(*(a for a in windows.block.axes if a.role != "reduce"), k),
                value=load * windows.weighted(steps[:2], steps[2], windows.outer),
                guard=None,
            ),
            loops,
        )
        body = rewrite_stmt(func.body, lambda s: seq(copy, product) if s is windows.top else None)
        assert body is not None
        return func.with_(body=body, locals=(*func.locals, patches))
