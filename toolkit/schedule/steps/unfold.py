"""Unfold: read an operand from a copy that holds each window that a block reads as one row."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from toolkit.ir.compute import Axis
from toolkit.ir.expr import const, Expr, INDEX, Load, select, Var, variables
from toolkit.ir.loop import (
    Block,
    Buffer,
    fresh_name,
    Loop,
    map_block,
    PrimFunc,
    REDUCE,
    rewrite_stmt,
    SCRATCH,
    seq,
    SPATIAL,
    Stmt,
    wrap,
)
from toolkit.ir.regions import block_loads, writes
from toolkit.ir.simplify import bounds
from toolkit.schedule.examples import pairs_of_taps
from toolkit.schedule.steps.base import block_names, loop_names, Step


@dataclass(frozen=True, slots=True)
class Unfold(Step):
    """Let `block` read `operand` from a copy of its windows, made before the block's nest.

    The copy has a dimension for each axis of the block that moves what is read: first those of
    places, then those that are reduced over, in the order of their loops, so that what one result
    needs lies side by side.  The first of these is rounded up until a window holds as many elements
    as the next multiple of `multiple`; what is added is 0.  `ComputeAt` decides how many windows
    lie in memory at once.  Other than `Im2col` it keeps the block's axes, and takes sums of any
    kind; padding is `PadRead`'s part.

    Before::                    After (multiple 4)::

        for i in 4:                 for u0 in 4:
          for k in 3:                 for u1 in 4:
            for c in 2:                 for u2 in 2:
              y: y[i] sum=                y_a: a_y[i, k, c] = a[(i + k) * 2 + c] if k < 3, else 0
                a[(i + k) * 2 + c]  for i in 4:
                * w[k, c]             for k in 3:
                                        for c in 2:
                                          y: y[i] sum= a_y[i, k, c] * w[k, c]
    """

    block: str
    operand: str
    multiple: int = 1

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return pairs_of_taps(), cls("y", "a", 4)

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses guarded blocks, and operands that are read at several places or written."""
        loops, block = self.find(func, self.block)
        top: Stmt = loops[0] if loops else block
        buffers = func.buffers()
        found = list(dict.fromkeys(l for l in block_loads(block) if l.buffer == self.operand))
        if self.operand not in buffers or len(found) != 1:
            self.refuse(
                func, f"block {block.name!r} does not read one element of {self.operand!r}."
            )
        if block.guard is not None:
            self.refuse(func, f"block {block.name!r} has a guard: PadRead takes that of padding.")
        if self.operand in writes(top):
            self.refuse(func, f"{self.operand!r} is written in the nest of block {block.name!r}.")
        if self.multiple < 1:
            self.refuse(func, "the multiple must be positive.")
        load = found[0]
        everywhere = {a.name: (0, a.extent - 1) for a in block.axes}  # the copy goes through all
        reach = [bounds(index, everywhere) for index in load.indices]
        shape = buffers[self.operand].shape
        if not all(r and r[0] >= 0 and r[1] < n for r, n in zip(reach, shape, strict=True)):
            self.refuse(func, f"block {block.name!r} may reach beyond {self.operand!r}.")
        used = set().union(*(variables(i) for i in load.indices))
        axes = [a for a in block.axes if a.name in used]
        order = [b.name for b in _driven(block, loops)]
        taps = sorted((a for a in axes if a.role == REDUCE), key=lambda a: order.index(a.name))
        places = [a for a in axes if a.role != REDUCE]
        if not taps:
            self.refuse(func, f"what {block.name!r} reads of {self.operand!r} is no window.")

        extents = [a.extent for a in taps]
        rest = math.prod(extents[1:])
        row = -(-rest * extents[0] // self.multiple) * self.multiple
        first = replace(taps[0], extent=-(-row // rest))
        own = [replace(a, role=SPATIAL) for a in (*places, first, *taps[1:])]
        dtype = load.dtype
        copy = Buffer(
            fresh_name(f"{self.operand}_{block.name}", set(buffers)),
            tuple(a.extent for a in own),
            dtype,
            SCRATCH,
        )
        value: Expr = load
        if first.extent > extents[0]:
            value = select(first < extents[0], load, const(0, dtype))
        taken = loop_names(func)
        names = [(fresh_name(f"u{n}", taken), a.extent, SPATIAL) for n, a in enumerate(own)]
        copied = Block(
            fresh_name(f"{block.name}_{self.operand}", block_names(func)),
            tuple(own),
            tuple(Var(INDEX, name) for name, _, _ in names),
            copy.name,
            tuple(own),
            value,
        )

        def move(e: Expr) -> Expr | None:
            return Load(dtype, copy.name, (*places, *taps)) if e == load else None

        def rule(s: Stmt) -> Stmt | None:
            return map_block(s, move) if isinstance(s, Block) and s.name == block.name else None

        moved = rewrite_stmt(top, rule)
        assert moved is not None
        whole = seq(wrap(names, copied), moved)
        body = rewrite_stmt(func.body, lambda s: whole if s is top else None)
        assert body is not None
        return func.with_(body=body, locals=(*func.locals, copy))


def _driven(block: Block, loops: list[Loop]) -> list[Axis]:
    """Return the axes of a block in the order of the loops that drive them."""
    depth = {l.var: n for n, l in enumerate(loops)}
    places = {
        a.name: max((depth[v] for v in variables(b) if v in depth), default=-1)
        for a, b in zip(block.axes, block.binds, strict=True)
    }
    return sorted(block.axes, key=lambda a: places[a.name])
