"""MergeDims: two neighbouring dimensions of a local buffer become one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.compute import Axis
from toolkit.ir.expr import binary, Expr, INDEX, Load, Var, variables
from toolkit.ir.loop import (
    Block,
    blocks,
    fresh_name,
    Loop,
    map_block,
    own_loops,
    PrimFunc,
    replace_loop,
    rewrite_stmt,
    SERIAL,
    SPATIAL,
    Stmt,
)
from toolkit.ir.regions import writes
from toolkit.schedule.examples import matmul
from toolkit.schedule.steps.base import loop_names, Step


@dataclass(frozen=True, slots=True)
class MergeDims(Step):
    """Store dimensions `dim` and `dim` + 1 of local `buffer` as one, filled by one loop.

    A tile of its rows may then reach across what was the end of a row.

    Before::                            After (dim=0)::

        for i in 4:                         for i+j in 24:
          for j in 6:                         t: t[ij] = a[ij // 6, ij % 6]
            t: t[i, j] = a[i, j]            for i_2 in 4:
        for i_2 in 4:                         for j_2 in 6:
          for j_2 in 6:                         y: y[i, j] = t[i * 6 + j]
            y: y[i, j] = t[i, j]
    """

    buffer: str
    dim: int

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return matmul(), cls("t", 0)

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses buffers that are not filled, whole, by one block with a loop a dimension."""
        buffer = next((b for b in func.locals if b.name == self.buffer), None)
        if buffer is None:
            self.refuse(func, f"{self.buffer!r} is no local buffer.")
        rank = len(buffer.shape)
        if not 0 <= self.dim < rank - 1:
            self.refuse(func, f"{self.buffer!r} has {rank} dimensions.")
        if buffer.multiples:
            self.refuse(func, f"buffer {self.buffer!r} has room for more elements.")
        self.refuse_whole(func, self.buffer)
        writers = [b for b in blocks(func.body) if self.buffer in writes(b)]
        if len(writers) != 1 or writers[0].update_only:
            self.refuse(func, f"buffer {self.buffer!r} is not written by one block alone.")
        loops, block = self.find(func, writers[0].name)
        drive = {a.name: b for a, b in zip(block.axes, block.binds, strict=True)}
        own = {l.var: l for l in own_loops(loops)}
        pair: list[tuple[Axis, Loop]] = []
        for d in (self.dim, self.dim + 1):
            index, size = block.indices[d], buffer.shape[d]
            bind = drive.get(index.name) if isinstance(index, Var) else None
            loop = own.get(bind.name) if isinstance(bind, Var) else None
            axis = next((a for a in block.axes if a == index), None)
            alone = loop is not None and sum(loop.var in variables(b) for b in block.binds) == 1
            whole = loop is not None and loop.extent == size and loop.kind == SERIAL
            if axis is None or loop is None or not alone or not whole or axis.role != SPATIAL:
                self.refuse(func, f"dimension {self.dim} or the next is not filled by one loop.")
            pair.append((axis, loop))
        (first, outer), (second, inner) = pair
        if outer is inner or first.extent != outer.extent or second.extent != inner.extent:
            self.refuse(func, f"dimension {self.dim} or the next is not filled by one loop.")
        size = second.extent
        name = fresh_name(f"{first.name}_{second.name}", {a.name for a in block.axes})
        merged = Axis(INDEX, name, first.extent * size, SPATIAL)
        var = fresh_name(f"{outer.var}+{inner.var}", loop_names(func))
        values: dict[str, Expr] = {first.name: merged // size, second.name: merged % size}
        kept = [
            (a, b) for a, b in zip(block.axes, block.binds, strict=True) if a not in (first, second)
        ]
        at = block.axes.index(first)
        kept.insert(min(at, len(kept)), (merged, Var(INDEX, var)))
        moved = map_block(block, lambda e: values.get(e.name) if isinstance(e, Var) else None)
        moved = moved or block
        indices = (*moved.indices[: self.dim], merged, *moved.indices[self.dim + 2 :])
        moved = replace(
            moved, axes=tuple(a for a, _ in kept), binds=tuple(b for _, b in kept), indices=indices
        )

        def nest(loop: Stmt) -> Stmt:
            """Put the loops of the block around it anew."""
            if not isinstance(loop, Loop):
                return moved
            if loop is inner:
                return nest(loop.body)
            body = nest(loop.body)
            if loop is outer:
                return replace(loop, var=var, extent=merged.extent, body=body)
            return replace(loop, body=body)

        def read(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.buffer != self.buffer:
                return None
            d = self.dim
            place = binary("add", binary("mul", e.indices[d], size), e.indices[d + 1])
            return replace(e, indices=(*e.indices[:d], place, *e.indices[d + 2 :]))

        def rule(s: Stmt) -> Stmt | None:
            return map_block(s, read) if isinstance(s, Block) else None

        top = own_loops(loops)[0]
        body = rewrite_stmt(replace_loop(func.body, top, nest(top)), rule)
        assert body is not None
        shape = (*buffer.shape[: self.dim], merged.extent, *buffer.shape[self.dim + 2 :])
        return func.with_(
            body=body,
            locals=tuple(replace(b, shape=shape) if b is buffer else b for b in func.locals),
        )
