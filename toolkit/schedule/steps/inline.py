"""Inline: compute a value where it is read instead of storing it."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.ir.expr import Expr, Load, Var, rewrite
from toolkit.ir.loop import Block, OpaqueCall, PrimFunc, Stmt, blocks, map_block, rewrite_stmt, walk_stmt
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

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses reductions, guarded or scattering blocks, outputs, and buffers read as a whole."""
        _, block = self.find(func, self.block)
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
        for s in walk_stmt(func.body):
            if isinstance(s, OpaqueCall) and block.buffer in (*s.inputs, *s.outputs):
                self.refuse(func, f"buffer {block.buffer!r} is passed whole to {s.function}.")
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
