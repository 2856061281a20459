"""PadConstant: give a block elements that nobody reads, fed by a padded constant."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from toolkit.ir.expr import Binary, Cast, Load, Var, variables
from toolkit.ir.loop import (
    Block,
    blocks,
    CONST,
    Loop,
    PrimFunc,
    REDUCE,
    replace_loop,
    rewrite_stmt,
    SPATIAL,
    Stmt,
    walk_stmt,
)
from toolkit.ir.regions import block_loads, bound_expr, loop_ranges, writes
from toolkit.ir.simplify import bounds
from toolkit.ir.types import DTYPES
from toolkit.schedule.examples import matmul
from toolkit.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class PadConstant(Step):
    """Round the extent of `loop` up to a multiple, padding dimension `dim` of constant `operand`.

    The extra elements of the block's own buffer are computed and never read.  Of a reduce loop, the
    extra steps add products with 0, of integers.

    Before::                            After (multiple=8)::

        for j in 10:                        for j in 16:
          for k in 32:                        for k in 32:
            t: t[j] sum= a[k] * w[k, j]         t: t[j] sum= a[k] * w[k, j]   # w: [32, 16]
    """

    loop: str
    operand: str
    dim: int
    multiple: int

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return matmul(), cls("j", "w", 1, 16)

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses when a load of the block, or its buffer, has no room for more elements."""
        loop = self.find_loop(func, self.loop)
        extent = -(-loop.extent // self.multiple) * self.multiple
        if loop.role not in (SPATIAL, REDUCE):
            self.refuse(func, f"loop {self.loop!r} is a {loop.role} loop.")
        inside = list(blocks(loop))
        if len(inside) != 1:
            self.refuse(func, f"loop {self.loop!r} holds more than one block.")
        block = inside[0]
        buffers = func.buffers()
        if self.operand not in {b.name for b in func.inputs}:
            self.refuse(func, f"{self.operand!r} is not an input of the function.")
        if buffers[self.operand].scope != CONST:
            self.refuse(func, f"{self.operand!r} is no constant: its data comes at run time.")
        own = buffers[block.buffer]
        reduces = loop.role == REDUCE
        if reduces and not _adds_products(block, self.operand):
            self.refuse(func, f"block {block.name!r} sums no products of integers.")
        if not reduces and own not in func.locals:
            self.refuse(func, f"buffer {own.name!r} is a parameter of the function.")
        if not reduces and sum(own.name in writes(s) for s in blocks(func.body)) > 1:
            self.refuse(func, f"buffer {own.name!r} is written by more than one block.")
        axis = next(
            (a for a, b in zip(block.axes, block.binds, strict=True)
             if isinstance(b, Var) and b.name == loop.var), None,
        )  # fmt: skip
        position = next(
            (d for d, i in enumerate(block.indices)
             if axis is not None and isinstance(i, Var) and i.name == axis.name), None,
        )  # fmt: skip
        if axis is None or (position is None and not reduces):
            self.refuse(func, f"loop {self.loop!r} does not drive one dimension of {own.name!r}.")
        operand = buffers[self.operand]
        if not 0 <= self.dim < len(operand.shape):
            self.refuse(func, f"{self.operand!r} has {len(operand.shape)} dimensions.")
        self.refuse_whole(func, self.operand)
        self.refuse_whole(func, own.name)
        shape = list(operand.shape)
        shape[self.dim] = -(-shape[self.dim] // self.multiple) * self.multiple
        grown = replace(operand, shape=tuple(shape))
        own_shape = list(own.shape)
        if position is not None:
            own_shape[position] = max(own_shape[position], extent)
        wider = replace(loop, extent=extent)
        ranges = loop_ranges(_loops(func, loop, wider))
        for load in block_loads(block):
            target = grown.shape if load.buffer == self.operand else buffers[load.buffer].shape
            for index, size in zip(load.indices, target, strict=True):
                if axis.name not in variables(index):
                    continue
                reach = bounds(bound_expr(block, index), ranges)
                unwritten = buffers[load.buffer] in func.locals and not _filled(func, load.buffer)
                if reach is None or reach[0] < 0 or reach[1] >= size or unwritten:
                    self.refuse(func, f"the load of {load.buffer!r} would reach beyond its {size}.")
        new_axis = replace(axis, extent=extent)

        def rule(s: Stmt) -> Stmt | None:
            if isinstance(s, Block) and s.name == block.name:
                axes = tuple(new_axis if a.name == axis.name else a for a in s.axes)
                return replace(s, axes=axes)
            return None

        body = rewrite_stmt(loop.body, rule)
        assert body is not None
        return func.with_(
            body=replace_loop(func.body, loop, replace(wider, body=body)),
            inputs=tuple(grown if b.name == self.operand else b for b in func.inputs),
            locals=tuple(
                replace(b, shape=tuple(own_shape)) if b.name == own.name else b for b in func.locals
            ),
        )

    def laid_out(self) -> str:
        """Return the operand."""
        return self.operand

    def layout_data(self, data: np.ndarray, *others: np.ndarray) -> np.ndarray:
        """Return the data with zeros behind it."""
        widths = [(0, 0)] * data.ndim
        widths[self.dim] = (0, -data.shape[self.dim] % self.multiple)
        return np.pad(data, widths)

    def layout_tag(self) -> str:
        """Return what names the layout among those of one constant."""
        return f"pad{self.dim}x{self.multiple}"


def _adds_products(block: Block, operand: str) -> bool:
    """Tell whether a block sums integer products with an element of the operand as a factor."""
    value = block.value
    if block.reduce != "sum" or not isinstance(value, Binary) or value.op != "mul":
        return False
    factors = [f.a if isinstance(f, Cast) else f for f in (value.a, value.b)]
    named = any(isinstance(f, Load) and f.buffer == operand for f in factors)
    return named and DTYPES[value.dtype].kind in "iu"


def _filled(func: PrimFunc, buffer: str) -> bool:
    """Tell whether one block writes every element of a buffer."""
    writers = [b for b in blocks(func.body) if b.buffer == buffer]
    shape = func.buffers()[buffer].shape
    return (
        len(writers) == 1
        and writers[0].reduce is None
        and writers[0].guard is None
        and writers[0].indices == writers[0].axes
        and tuple(a.extent for a in writers[0].axes) == shape
        and all(isinstance(b, Var) for b in writers[0].binds)
    )


def _loops(func: PrimFunc, old: Loop, new: Loop) -> list[Loop]:
    return [new if s is old else s for s in walk_stmt(func.body) if isinstance(s, Loop)]
