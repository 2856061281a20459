"""TransformLayout: the dimensions of a buffer in another order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from toolkit.ir.expr import Expr, Load
from toolkit.ir.loop import Block, Buffer, CONST, map_loads, PrimFunc, rewrite_stmt, Stmt
from toolkit.schedule.examples import matmul
from toolkit.schedule.steps.base import Step

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TransformLayout(Step):
    """Store dimension order[0] of a local or constant `buffer` first, then order[1], ...

    Before::                        After (order=(1, 0))::

        t: t[i, j] = a[i, j]            t: t[j, i] = a[i, j]
        y: y[i] = t[i, 3]               y: y[i] = t[3, i]
    """

    buffer: str
    order: tuple[int, ...]

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return matmul(), cls("w", (1, 0))

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses inputs and outputs, which the caller lays out, and buffers read whole."""
        buffer = func.buffers().get(self.buffer)
        if buffer is None:
            self.refuse(func, f"there is no buffer {self.buffer!r}.")
        if buffer not in func.locals and buffer.scope != CONST:
            self.refuse(func, f"buffer {self.buffer!r} is a parameter that is no constant.")
        rank = len(buffer.shape)
        if sorted(self.order) != list(range(rank)):
            self.refuse(func, f"{self.order} is no order of the {rank} dimensions.")
        self.refuse_whole(func, self.buffer)
        moved = self._moved(buffer)

        def move(e: Load) -> Expr:
            return Load(e.dtype, e.buffer, self._permuted(e.indices))

        def rule(s: Stmt) -> Stmt | None:
            if not isinstance(s, Block):
                return None
            s = map_loads(s, self.buffer, move) or s
            return replace(s, indices=self._permuted(s.indices)) if s.buffer == self.buffer else s

        body = rewrite_stmt(func.body, rule)
        assert body is not None
        return func.with_(
            body=body,
            inputs=tuple(moved if b is buffer else b for b in func.inputs),
            locals=tuple(moved if b is buffer else b for b in func.locals),
        )

    def _permuted(self, items: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(items[d] for d in self.order)

    def _moved(self, buffer: Buffer) -> Buffer:
        multiples = self._permuted(buffer.multiples) if buffer.multiples else ()
        return replace(buffer, shape=self._permuted(buffer.shape), multiples=multiples)

    def laid_out(self) -> str:
        """Return the buffer: that its data is brought into the layout matters for constants."""
        return self.buffer

    def layout_data(self, data: np.ndarray, *others: np.ndarray) -> np.ndarray:
        """Return the data of a constant with its dimensions permuted."""
        return data.transpose(self.order)

    def layout_tag(self) -> str:
        """Return what names the layout among those of one constant."""
        return "order" + "x".join(map(str, self.order))
