"""Partition: the range of a loop in consecutive pieces, each with a body of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from toolkit.ir.expr import (
    all_of,
    binary,
    conjuncts,
    Const,
    Expr,
    INDEX,
    Load,
    Select,
    select,
    substitute,
    Var,
)
from toolkit.ir.expr import variables as variables_of
from toolkit.ir.loop import (
    Block,
    blocks,
    Buffer,
    enclosing,
    fresh_name,
    Loop,
    map_block,
    OpaqueCall,
    PrimFunc,
    REDUCE,
    replace_loop,
    rewrite_stmt,
    SCAN,
    seq,
    Stmt,
    walk_stmt,
)
from toolkit.ir.regions import bind_map, bound_expr, loop_ranges, reads, writes
from toolkit.ir.simplify import Ranges, simplify
from toolkit.schedule.examples import padded_windows
from toolkit.schedule.steps.base import block_names, loop_names, Step


@dataclass(frozen=True, slots=True)
class Partition(Step):
    """Split the range of `loop` at the bounds `at`; guards and choices known in a piece vanish.

    Piece n of loop `i` is `i_p0`, `i_p1`, ...; so are the loops, blocks and local buffers within.

    Before::                            After (at=(1,))::

        for i in 8:                         for i_p0 in 1:
          y: y[i] = a[i - 1] where 1 <= i     y_p0: y[i] = a[i - 1] where 1 <= i
                                            for i_p1 in 7:
                                              y_p1: y[i] = a[i - 1]  # i=i_p1 + 1
    """

    loop: str
    at: tuple[int, ...]

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return padded_windows(), cls("i", (1, 7))

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses loops over which a reduction or recurrence runs, or inside one."""
        loop = self.find_loop(func, self.loop)
        bounds = (0, *self.at, loop.extent)
        if not self.at or any(a >= b for a, b in pairwise(bounds)):
            self.refuse(func, f"the bounds must ascend within 1 .. {loop.extent - 1}.")
        if loop.role == SCAN:
            self.refuse(func, f"loop {self.loop!r} is a {loop.role} loop.")
        call = next((s for s in walk_stmt(loop) if isinstance(s, OpaqueCall)), None)
        if call is not None:
            self.refuse(func, f"loop {self.loop!r} holds the call {call.name}.")
        around = enclosing(func.body, loop)
        assert around is not None
        outer = {l.var for l in around}
        for block in blocks(loop):
            for axis, bind in zip(block.axes, block.binds, strict=True):
                if block.reduce is not None and axis.role == REDUCE and variables_of(bind) & outer:
                    self.refuse(
                        func, f"the reduction of block {block.name!r} is not whole in {loop.var!r}."
                    )
        ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
        taken = (loop_names(func), block_names(func), set(func.buffers()))
        own = self._own_buffers(func, loop)
        pieces: list[Stmt] = []
        added: list[Buffer] = []
        for number, (first, end) in enumerate(pairwise(bounds)):
            piece, fresh = self._piece(loop, number, first, end, ranges, own, taken)
            pieces.append(piece)
            added.extend(fresh)
        kept = [b for b in func.locals if b not in own]
        return func.with_(body=replace_loop(func.body, loop, seq(*pieces)), locals=(*kept, *added))

    def _own_buffers(self, func: PrimFunc, loop: Loop) -> list[Buffer]:
        """Return the local buffers that nothing outside the loop touches."""

        def count(stmt: Stmt, buffer: str) -> int:
            leaves = (s for s in walk_stmt(stmt) if isinstance(s, Block | OpaqueCall))
            return sum(buffer in reads(s) | writes(s) for s in leaves)

        return [b for b in func.locals if 0 < count(loop, b.name) == count(func.body, b.name)]

    def _piece(
        self,
        loop: Loop,
        number: int,
        first: int,
        end: int,
        ranges: Ranges,
        own: list[Buffer],
        taken: tuple[set[str], set[str], set[str]],
    ) -> tuple[Stmt, list[Buffer]]:
        """Return the loop over first .. end-1 with names of its own, and its local buffers."""
        loops = [s for s in walk_stmt(loop) if isinstance(s, Loop)]
        names = {
            var: fresh_name(f"{var}_p{number}", taken[0])
            for var in dict.fromkeys(l.var for l in loops)
        }
        fresh = {b.name: replace(b, name=fresh_name(f"{b.name}_p{number}", taken[2])) for b in own}
        values: dict[str, Expr] = {var: Var(INDEX, name) for var, name in names.items()}
        values[loop.var] = binary("add", values[loop.var], first)
        known = dict(ranges) | {names[l.var]: (0, l.extent - 1) for l in loops}
        known[names[loop.var]] = (0, end - first - 1)

        def move(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.buffer in fresh:
                return replace(e, buffer=fresh[e.buffer].name)
            return None

        def rule(s: Stmt) -> Stmt | None:
            if isinstance(s, Loop):
                return replace(s, var=names[s.var])
            if not isinstance(s, Block):
                return None
            s = map_block(s, move) or s
            s = replace(
                s,
                name=fresh_name(f"{s.name}_p{number}", taken[1]),
                binds=tuple(substitute(b, values) for b in s.binds),
                buffer=fresh[s.buffer].name if s.buffer in fresh else s.buffer,
            )
            return _decided(replace(s, guard=_open_guard(s, known)), known)

        body = rewrite_stmt(loop.body, rule)
        assert body is not None
        piece = replace(loop, var=names[loop.var], extent=end - first, body=body)
        return piece, list(fresh.values())


def _decided(block: Block, ranges: Ranges) -> Block:
    """Return a block in whose expressions choices known by place are made."""
    binds = bind_map(block)

    def decide(e: Expr) -> Expr | None:
        if not isinstance(e, Select):
            return None
        left = []
        for test in conjuncts(e.cond):
            known = simplify(bound_expr(block, test, binds), ranges)
            if not isinstance(known, Const):
                left.append(test)
            elif not known.value:
                return e.b
        if len(left) == len(conjuncts(e.cond)):
            return None
        rest = all_of(*left)
        return e.a if rest is None else select(rest, e.a, e.b)

    return map_block(block, decide) or block


def _open_guard(block: Block, ranges: Ranges) -> Expr | None:
    """Return what of a block's guard is not known to hold."""

    if block.guard is None:
        return None
    left = []
    for test in conjuncts(block.guard):
        known = simplify(bound_expr(block, test), ranges)
        if not (isinstance(known, Const) and known.value):
            left.append(test)
    return all_of(*left)
