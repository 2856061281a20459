"""CacheWrite: let a block write a buffer of its own, copied to the target afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.compute import Axis
from toolkit.ir.expr import INDEX, Load, Var
from toolkit.ir.expr import variables as variables_of
from toolkit.ir.loop import (
    Block,
    blocks,
    Buffer,
    fresh_name,
    Loop,
    nest_of,
    own_loops,
    PrimFunc,
    rewrite_stmt,
    SCRATCH,
    seq,
    Stmt,
    walk_stmt,
    wrap,
)
from toolkit.ir.regions import loop_ranges, writes
from toolkit.ir.simplify import bounds
from toolkit.schedule.examples import row_sums
from toolkit.schedule.steps.base import block_names, loop_names, Step


@dataclass(frozen=True, slots=True)
class CacheWrite(Step):
    """Write `BUFFER_acc`, then copy it to the buffer in a nest behind it.

    Before::                        After::

        for i in 8:                     for i in 8:
          for k in 16:                    for k in 16:
            y: y[i] sum= a[i, k]            y: y_acc[i] sum= a[i, k]
                                        for i_w in 8:
                                          y_write: y[i] = y_acc[i]
    """

    block: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return row_sums(), cls("y")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses blocks that only update, and those whose place other loops decide."""
        loops, block = self.find(func, self.block)
        if block.update_only:
            self.refuse(func, f"block {block.name!r} updates what another block wrote.")
        own = own_loops(loops)
        shared = {l.var for l in loops[: len(loops) - len(own)]}
        for bind in block.binds:
            if variables_of(bind) & shared:
                self.refuse(func, f"a loop around block {block.name!r} holds other blocks too.")
        buffers = func.buffers()
        target = buffers[block.buffer]
        self._check_whole(func, block, target)
        cached = Buffer(
            fresh_name(f"{block.buffer}_acc", set(buffers)), target.shape, target.dtype, SCRATCH
        )
        taken = loop_names(func)
        axes = [Axis(INDEX, f"w{i}", n, "spatial") for i, n in enumerate(target.shape)]
        lead = {b.name: b for b in block.axes if b.role == "spatial"}
        for i, index in enumerate(block.indices):
            if isinstance(index, Var) and index.name in lead:
                axes[i] = replace(axes[i], name=index.name)
        variables = [fresh_name(axis.name, taken) for axis in axes]
        copy = Block(
            fresh_name(f"{block.name}_write", block_names(func)),
            tuple(axes),
            tuple(Var(INDEX, v) for v in variables),
            block.buffer,
            tuple(axes),
            Load(target.dtype, cached.name, tuple(axes)),
        )
        nest = wrap([(v, a.extent, "spatial") for v, a in zip(variables, axes, strict=True)], copy)
        top: Stmt = own[0] if own else block
        moved = rewrite_stmt(top, lambda s: replace(s, buffer=cached.name) if s is block else None)
        assert moved is not None
        body = rewrite_stmt(func.body, lambda s: seq(moved, nest) if s is top else None)
        assert body is not None
        result = func.with_(body=body, locals=(*func.locals, cached))
        nest_of(result.body, block.name)
        return result

    def _check_whole(self, func: PrimFunc, block: Block, target: Buffer) -> None:
        """Refuse where the copy would bring elements that the block does not write."""
        if sum(target.name in writes(s) for s in blocks(func.body)) > 1:
            self.refuse(func, f"buffer {target.name!r} is written by more than one block.")
        every = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
        extents = {}
        for axis, bind in zip(block.axes, block.binds, strict=True):
            reach = bounds(bind, every)
            if axis.role == "spatial" and reach is not None and reach[0] <= 0:
                extents[axis.name] = reach[1] + 1
        names = [i.name for i in block.indices if isinstance(i, Var)]
        whole = len(set(names)) == len(target.shape) and all(
            extents.get(name, -1) >= n for name, n in zip(names, target.shape, strict=True)
        )
        if not whole:
            self.refuse(func, f"block {block.name!r} does not store one element an axis.")
