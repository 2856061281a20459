"""Pack: the layout in memory of a constant operand, in the order the inner loop reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from toolkit.ir.expr import Expr, Load
from toolkit.ir.loop import Block, CONST, map_loads, PrimFunc, rewrite_stmt, Stmt
from toolkit.schedule.examples import matmul
from toolkit.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class Pack(Step):
    """Split dimension `dim` of constant `operand` by `factor`: tiles first, rest last.

    Before::                        After (dim=1, factor=16)::

        ... w[k, j]  # [32, 64]         ... w[j // 16, k, j % 16]  # [4, 32, 16]
    """

    operand: str
    dim: int
    factor: int

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return matmul(), cls("w", 1, 4)

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses operands that are not inputs, and factors that do not divide the dimension."""
        buffer = next((b for b in func.inputs if b.name == self.operand), None)
        if buffer is None:
            self.refuse(func, f"{self.operand!r} is not an input of the function.")
        if buffer.scope != CONST:
            self.refuse(func, f"{self.operand!r} is no constant: its data comes at run time.")
        if not 0 <= self.dim < len(buffer.shape):
            self.refuse(func, f"{self.operand!r} has {len(buffer.shape)} dimensions.")
        self.refuse_whole(func, self.operand)
        size = buffer.shape[self.dim]
        if size % self.factor:
            self.refuse(func, f"{self.factor} does not divide dimension {self.dim} ({size}).")
        rest = [n for d, n in enumerate(buffer.shape) if d != self.dim]
        packed = replace(buffer, shape=(size // self.factor, *rest, self.factor))

        def move(e: Load) -> Expr:
            at = e.indices[self.dim]
            others = [i for d, i in enumerate(e.indices) if d != self.dim]
            return Load(e.dtype, e.buffer, (at // self.factor, *others, at % self.factor))

        def rule(s: Stmt) -> Stmt | None:
            return map_loads(s, self.operand, move) if isinstance(s, Block) else None

        body = rewrite_stmt(func.body, rule)
        assert body is not None
        inputs = tuple(packed if b.name == self.operand else b for b in func.inputs)
        return func.with_(body=body, inputs=inputs)

    def laid_out(self) -> str:
        """Return the operand."""
        return self.operand

    def layout_data(self, data: np.ndarray, *others: np.ndarray) -> np.ndarray:
        """Return the data in tiles."""
        at, factor = self.dim, self.factor
        tiles = data.reshape(
            *data.shape[:at], data.shape[at] // factor, factor, *data.shape[at + 1 :]
        )
        rest = [d for d in range(tiles.ndim) if d not in (at, at + 1)]
        return tiles.transpose(at, *rest, at + 1)

    def layout_tag(self) -> str:
        """Return what names the layout among those of one constant."""
        return f"pack{self.dim}x{self.factor}"
