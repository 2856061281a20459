"""Inline: compute a value where it is read instead of storing it."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.ir.expr import Expr, Load, rewrite, Var
from toolkit.ir.loop import (
    Block,
    blocks,
    Loop,
    map_block,
    OpaqueCall,
    PrimFunc,
    rewrite_stmt,
    SCAN,
    Stmt,
    walk_stmt,
)
from toolkit.ir.regions import block_loads, reads, writes
from toolkit.schedule.examples import two_stages
from toolkit.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class Inline(Step):
    """Replace every load of the block's buffer by the block's value, and delete the block.

    Before::                        After::

        for i in 8:                     for i in 8:
          t: t[i] = a[i] + 1              y: y[i] = (a[i] + 1) * 2
        for i_2 in 8:
          y: y[i] = t[i] * 2
    """

    block: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return two_stages(), cls("t")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses reductions, guarded or scattering blocks, outputs, buffers read whole."""
        loops, block = self.find(func, self.block)
        if block.reduce is not None or block.guard is not None:
            self.refuse(func, f"block {block.name!r} is a reduction or guarded.")
        if not all(
            isinstance(i, Var) and i.name == a.name
            for i, a in zip(block.indices, block.axes, strict=False)
        ) or len(block.indices) != len(block.axes):
            self.refuse(func, f"block {block.name!r} does not store one element an axis in order.")
        if block.buffer not in {b.name for b in func.locals}:
            self.refuse(func, f"buffer {block.buffer!r} is a parameter of the function.")
        if sum(b.buffer == block.buffer for b in blocks(func.body)) > 1:
            self.refuse(func, f"buffer {block.buffer!r} is written by more than one block.")
        self.refuse_whole(func, block.buffer)
        self.check_sources(func, loops, block)
        names = [axis.name for axis in block.axes]

        def expand(expr: Expr) -> Expr | None:
            if isinstance(expr, Load) and expr.buffer == block.buffer:
                values = dict(zip(names, expr.indices, strict=True))
                return rewrite(
                    block.value, lambda e: values.get(e.name) if isinstance(e, Var) else None
                )
            return None

        def rule(s: Stmt) -> Stmt | tuple[()] | None:
            if not isinstance(s, Block):
                return None
            return () if s.name == block.name else map_block(s, expand)

        body = rewrite_stmt(func.body, rule)
        assert body is not None
        kept = tuple(b for b in func.locals if b.name != block.buffer)
        return func.with_(body=body, locals=kept)

    def check_sources(self, func: PrimFunc, loops: list[Loop], block: Block) -> None:
        """Refuse where what the block reads has changed by the time a consumer would read it."""
        sources = {load.buffer for load in block_loads(block)}
        order = [s for s in walk_stmt(func.body) if isinstance(s, Block | OpaqueCall)]
        at = next(i for i, s in enumerate(order) if s is block)
        readers = [i for i, s in enumerate(order) if block.buffer in reads(s)]
        scan = next((loop for loop in loops if loop.role == SCAN), None)
        inside = [] if scan is None else list(walk_stmt(scan))
        for i, s in enumerate(order):
            changed = sources & writes(s)
            late = at < i < max(readers, default=at)
            carried = any(s is t for t in inside) and any(
                r < at or not any(order[r] is t for t in inside) for r in readers
            )
            if changed and (late or carried):
                self.refuse(
                    func,
                    f"block {block.name!r} reads {min(changed)!r}, which {s.name!r} writes again "
                    "before the value is used.",
                )
