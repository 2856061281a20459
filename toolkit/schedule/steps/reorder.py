"""Reorder: nested loops in another order."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.ir.expr import Binary, variables, walk
from toolkit.ir.loop import (
    Block,
    blocks,
    Loop,
    PrimFunc,
    REDUCE,
    replace_loop,
    SCAN,
    Stmt,
    walk_stmt,
)
from toolkit.schedule.examples import matmul
from toolkit.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class Reorder(Step):
    """Put perfectly nested loops in the order `loops`; other loops of the nest keep their places.

    Before::                        After (loops=("k", "j"))::

        for j in 8:                     for k in 16:
          for k in 16:                    for j in 8:
            y: y[j] += a[j, k]              y: y[j] += a[j, k]
    """

    loops: tuple[str, ...]

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return matmul(), cls(("k", "i", "j"))

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses loops that are not perfectly nested, and recurrences."""
        if len(set(self.loops)) != len(self.loops) or len(self.loops) < 2:
            self.refuse(func, "needs two or more different loops.")
        by_name = {
            s.var: s for s in walk_stmt(func.body) if isinstance(s, Loop) and s.var in self.loops
        }
        for name in self.loops:
            if name not in by_name:
                self.find_loop(func, name)  # refuses
        top = next(iter(by_name.values()))
        chain, inside = _chain(top, set(self.loops))
        if len(chain) != len(self.loops):
            self.refuse(func, f"loops {', '.join(self.loops)} are not perfectly nested.")
        whole: list[Loop] = []
        stmt: Stmt = top
        while True:
            assert isinstance(stmt, Loop)
            whole.append(stmt)
            if stmt is chain[-1]:
                break
            stmt = stmt.body
        if any(l.role == SCAN for l in whole):
            self.refuse(func, "a recurrence runs in its own order.")
        if len(list(blocks(inside))) > 1 and any(l.role != "spatial" for l in whole):
            self.refuse(func, "several blocks share these loops.")
        order = iter(self.loops)
        placed = [by_name[next(order)] if l.var in by_name else l for l in whole]
        for block in blocks(inside):
            self._check_tiles(func, block, [l.var for l in placed])
        body = inside
        for loop in reversed(placed):
            body = loop.around(body)
        return func.with_(body=replace_loop(func.body, top, body))

    def _check_tiles(self, func: PrimFunc, block: Block, order: list[str]) -> None:
        """Refuse a reduce loop outside a shifted tile: it would update shared elements twice."""
        if block.reduce is None:
            return
        reducing: set[str] = set()
        shifted: set[str] = set()
        for axis, bind in zip(block.axes, block.binds, strict=True):
            if axis.role == REDUCE:
                reducing |= variables(bind)
            for e in walk(bind):
                if isinstance(e, Binary) and e.op == "min":
                    shifted |= variables(e)
        first = next((n for n, var in enumerate(order) if var in reducing), len(order))
        late = [var for var in order[first:] if var in shifted]
        if late:
            self.refuse(
                func,
                f"block {block.name!r} would update elements twice where the shifted tiles of loop "
                f"{late[0]!r} overlap, inside reduce loop {order[first]!r}.",
            )


def _chain(top: Loop, names: set[str]) -> tuple[list[Loop], Stmt]:
    """Return the loops of `names` straight down from `top`, and what the last one holds."""
    chain: list[Loop] = []
    stmt: Stmt = top
    while isinstance(stmt, Loop):
        if stmt.var in names:
            chain.append(stmt)
            if len(chain) == len(names):
                return chain, stmt.body
        stmt = stmt.body
    return chain, stmt
