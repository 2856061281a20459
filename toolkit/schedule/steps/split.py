"""Split: one loop becomes two or more, the outer ones over tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from toolkit.ir.compute import Axis
from toolkit.ir.expr import all_of, binary, Const, Expr, INDEX, minimum, substitute, Var, variables
from toolkit.ir.loop import (
    Block,
    blocks,
    Loop,
    nest_of,
    PrimFunc,
    REDUCE,
    replace_loop,
    rewrite_stmt,
    SCAN,
    SERIAL,
    SPATIAL,
    Stmt,
)
from toolkit.schedule.examples import copy_rows
from toolkit.schedule.steps.base import Step

TAILS = ("perfect", "shift", "guard")


@dataclass(frozen=True, slots=True)
class Split(Step):
    """Split `loop` into loops: `loop.0` over tiles, then loops of the given extents.

    `tail` says what happens where the factors do not divide the extent: 'perfect' refuses, 'shift'
    moves the last tile back so that it overlaps its neighbour, 'guard' skips what lies beyond.

    Before::                        After (factors=(4,))::

        for i in 32:                    for i.0 in 8:
          y: y[i] = a[i]                  for i.1 in 4:
                                            y: y[i] = a[i]  # i=i.0 * 4 + i.1
    """

    loop: str
    factors: tuple[int, ...]
    tail: str = "perfect"

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return copy_rows(columns=10), cls("j", (4,), "shift")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses factors that do not divide, and a shift that would repeat an update."""
        loop = self.find_loop(func, self.loop)
        tile = math.prod(self.factors)
        if self.tail not in TAILS or not self.factors or any(f < 1 for f in self.factors):
            self.refuse(func, f"factors must be positive and tail one of {', '.join(TAILS)}.")
        uneven = loop.extent % tile != 0
        if uneven and self.tail == "perfect":
            divisors = ", ".join(str(d) for d in range(1, loop.extent + 1) if loop.extent % d == 0)
            self.refuse(
                func,
                f"{tile} does not divide the extent {loop.extent} of loop {self.loop!r}.",
                f"inner factors of {loop.extent}: {divisors}; or tail='shift' or 'guard'.",
            )
        if uneven and self.tail == "shift":
            self._check_shift(func, loop, tile)
        outer = -(-loop.extent // tile)
        names = [f"{loop.var}.{i}" for i in range(len(self.factors) + 1)]
        inside: Expr = Const(INDEX, 0)
        for name, factor in zip(names[1:], self.factors, strict=True):
            inside = binary("add", binary("mul", inside, factor), Var(INDEX, name))
        start: Expr = binary("mul", Var(INDEX, names[0]), tile)
        if uneven and self.tail == "shift":
            start = minimum(start, loop.extent - tile)
        value = binary("add", start, inside)
        guard = uneven and self.tail == "guard"

        def rule(s: Stmt) -> Stmt | None:
            if not isinstance(s, Block):
                return None
            driven = {
                a.role for a, b in zip(s.axes, s.binds, strict=True) if loop.var in variables(b)
            }
            role = next((r for r in (REDUCE, SCAN) if r in driven), SPATIAL)
            binds = tuple(substitute(b, {loop.var: value}) for b in s.binds)
            s = replace(s, binds=binds)
            if guard:
                name = f"{loop.var}.g"
                axis = Axis(INDEX, name, loop.extent, role)
                return replace(
                    s,
                    axes=(*s.axes, axis),
                    binds=(*s.binds, value),
                    guard=all_of(*(g for g in (axis < loop.extent, s.guard) if g is not None)),
                )
            return s

        body = rewrite_stmt(loop.body, rule)
        assert body is not None
        for name, extent in reversed(list(zip(names, (outer, *self.factors), strict=True))):
            body = Loop(name, extent, loop.role, SERIAL, body)
        return func.with_(body=replace_loop(func.body, loop, body))

    def _check_shift(self, func: PrimFunc, loop: Loop, tile: int) -> None:
        if loop.extent < tile:
            self.refuse(
                func, f"a tile of {tile} is larger than loop {self.loop!r} ({loop.extent})."
            )
        if loop.role != SPATIAL:
            self.refuse(
                func, f"loop {self.loop!r} is a {loop.role} loop: a shifted tile repeats steps."
            )
        for block in blocks(loop):
            if block.reduce is None:
                continue
            inner = {l.var for l in nest_of(loop, block.name)[0]}
            outer_reduce = any(
                a.role == REDUCE and variables(b) - inner
                for a, b in zip(block.axes, block.binds, strict=True)
            )
            if block.update_only or outer_reduce:
                self.refuse(func, f"block {block.name!r} accumulates: a shifted tile adds twice.")
