"""MergeReduction: two reduce axes that go through a constant as one become one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from toolkit.ir.compute import Axis
from toolkit.ir.expr import Expr, INDEX, Load, Var, variables
from toolkit.ir.loop import (
    blocks,
    CONST,
    fresh_name,
    Loop,
    map_block,
    PrimFunc,
    REDUCE,
    replace_loop,
)
from toolkit.ir.regions import block_loads
from toolkit.ir.simplify import simplify
from toolkit.schedule.examples import pairs_of_taps
from toolkit.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class MergeReduction(Step):
    """Reduce over dimensions `dim` and `dim` + 1 of the constant `operand` as over one.

    Their two axes, and loops, become one; the constant's data stays as it lies.  `PadConstant` can
    then round their product up.

    Before::                                    After::

        for i in 4:                                 for i in 4:
          for k in 3:                                 for k+c in 6:
            for c in 2:                                 y: y[i] sum= a[i * 2 + kc] * w[kc]
              y: y[i] sum= a[(i + k) * 2 + c]
                           * w[k, c]
    """

    block: str
    operand: str
    dim: int

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return pairs_of_taps(), cls("y", "w", 0)

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses dimensions that two nested reduce loops of the block do not go through alone."""
        loops, block = self.find(func, self.block)
        buffers = func.buffers()
        operand = buffers.get(self.operand)
        if operand is None or operand.scope != CONST:
            self.refuse(func, f"{self.operand!r} is no constant.")
        if not 0 <= self.dim < len(operand.shape) - 1:
            self.refuse(func, f"{self.operand!r} has {len(operand.shape)} dimensions.")
        if any(self.operand in {l.buffer for l in block_loads(b)} for b in blocks(func.body)
               if b is not block):  # fmt: skip
            self.refuse(func, f"other blocks read {self.operand!r} too.")
        found = list(dict.fromkeys(l for l in block_loads(block) if l.buffer == self.operand))
        pair: list[tuple[Axis, Loop]] = []
        for d in (self.dim, self.dim + 1):
            index = found[0].indices[d] if len(found) == 1 else None
            axis = next((a for a in block.axes if a == index and a.role == REDUCE), None)
            bind = (
                dict(zip(block.axes, block.binds, strict=True)).get(axis)
                if axis is not None
                else None
            )
            loop = next((l for l in loops if isinstance(bind, Var) and l.var == bind.name), None)
            if axis is None or loop is None or axis.extent != loop.extent:
                self.refuse(func, f"no reduce loop drives dimension {d} of {self.operand!r} alone.")
            if loop.extent != operand.shape[d]:
                self.refuse(func, f"loop {loop.var!r} does not go through dimension {d} whole.")
            pair.append((axis, loop))
        (first, outer), (second, inner) = pair
        if outer.body is not inner:
            self.refuse(func, f"loop {inner.var!r} is not the only statement in {outer.var!r}.")
        used = [b for b in block.binds if variables(b) & {outer.var, inner.var}]
        if len(used) != 2 or len(list(blocks(inner))) != 1:
            self.refuse(func, f"loops {outer.var!r} and {inner.var!r} drive more than their axes.")
        name = fresh_name(f"{first.name}_{second.name}", {a.name for a in block.axes})
        merged = Axis(INDEX, name, first.extent * second.extent, REDUCE)
        values: dict[str, Expr] = {
            first.name: merged // second.extent, second.name: merged % second.extent
        }  # fmt: skip
        ranges = {a.name: (0, a.extent - 1) for a in (*block.axes, merged)}

        def move(e: Expr) -> Expr | None:
            if isinstance(e, Var):
                return values.get(e.name)
            if isinstance(e, Load) and e.buffer == self.operand:
                rest = tuple(i for n, i in enumerate(e.indices) if n != self.dim + 1)
                return replace(e, indices=(*rest[: self.dim], merged, *rest[self.dim + 1 :]))
            return None

        var = f"{outer.var}+{inner.var}"
        kept = [
            (a, b) for a, b in zip(block.axes, block.binds, strict=True) if a not in (first, second)
        ]
        place = block.axes.index(first)
        kept.insert(min(place, len(kept)), (merged, Var(INDEX, var)))
        moved = map_block(replace(block, axes=(), binds=()), move) or block
        moved = replace(
            moved,
            axes=tuple(a for a, _ in kept),
            binds=tuple(b for _, b in kept),
            value=simplify(moved.value, ranges),
        )

        def nest(stmt: object) -> Loop:
            assert isinstance(stmt, Loop)
            body = moved if stmt.body is block else nest(stmt.body)
            return replace(stmt, body=body)

        inside = moved if inner.body is block else nest(inner.body)
        loop = Loop(var, merged.extent, REDUCE, outer.kind, inside)
        shape = (*operand.shape[: self.dim], merged.extent, *operand.shape[self.dim + 2 :])
        grown = replace(operand, shape=shape)
        return func.with_(
            body=replace_loop(func.body, outer, loop),
            inputs=tuple(grown if b is operand else b for b in func.inputs),
        )

    def laid_out(self) -> str | None:
        """Return the constant."""
        return self.operand

    def layout_data(self, data: np.ndarray, *others: np.ndarray) -> np.ndarray:
        """Return the data with the two dimensions as one."""
        return data.reshape((*data.shape[: self.dim], -1, *data.shape[self.dim + 2 :]))

    def layout_tag(self) -> str:
        """Return a tag of the dimension."""
        return f"merge{self.dim}"
