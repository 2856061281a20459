"""RollStorage: make the rows of a buffer as windows reach them, and keep only those in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from toolkit.ir.build import build
from toolkit.ir.compute import Axis, compute, placeholder
from toolkit.ir.expr import all_of, binary, Const, Expr, INDEX, substitute, Var, variables
from toolkit.ir.loop import (
    Block,
    blocks,
    enclosing,
    fresh_name,
    Loop,
    map_loads,
    nest_of,
    OpaqueCall,
    PrimFunc,
    REDUCE,
    replace_loop,
    rewrite_stmt,
    SCAN,
    seq,
    SERIAL,
    SPATIAL,
    Stmt,
    UNROLL,
    walk_stmt,
)
from toolkit.ir.regions import accesses, count_readers, loop_ranges, reads, span_of, writes
from toolkit.ir.simplify import bounds, from_linear, linear, Ranges
from toolkit.schedule.steps.base import Step

_ZERO: Expr = Const(INDEX, 0)


class _Windows(NamedTuple):
    """Iteration j of a loop reads, of dimension `dim`, rows step * j + lo .. step * j + hi."""

    dim: int
    step: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class RollStorage(Step):
    """Move the nest that makes `buffer` row by row into `loop`, whose windows slide over the rows.

    Each row is made once, right before the first window that needs it; the buffer holds `rows` rows
    (0: as many as a window), each at its number modulo `rows`.  The first iterations only make
    rows.

    Before::                          After::

        for r in 8:                     for i in 8:  # scan
          t: t[r] = a[r] * 2              t: t[i % 3] = a[i] * 2
        for i in 6:                       y: y[i - 2] = t[(i - 2) % 3] + t[i % 3]  where 2 <= i
          y: y[i] = t[i] + t[i + 2]
    """

    buffer: str
    loop: str
    rows: int = 0

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        a = placeholder((7, 4), "float32", "a")
        t = compute((7, 4), lambda r, c: a[r, c] * 2.0, "t")
        y = compute((5, 4), lambda i, j: t[i, j] + t[i + 1, j] * 3.0 + t[i + 2, j], "y")
        return build([y], [a]), cls("t", "i")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses windows that do not advance with the loop, and rows that are used elsewhere."""
        target = self._target(func)
        maker = self._maker(func, target)
        found = self._windows(func, maker, target)
        kept = self._kept(func, found)
        ahead = found.hi - found.step + 1  # the first row that iteration 0 makes
        lead = max(-(-ahead // found.step), 0)
        at = Var(INDEX, target.var)
        terms: dict[Expr, int] = {at: found.step}
        if found.step > 1:
            terms[Var(INDEX, maker.var)] = 1
        row = from_linear(terms, ahead - found.step * lead)
        ranges = {target.var: (0, target.extent + lead - 1), maker.var: (0, found.step - 1)}
        zero = {l.var: _ZERO for l in self._around(func, maker) if l is not maker}
        made = _placed(maker.body, maker, row, ranges, zero)
        if found.step > 1:
            made = Loop(maker.var, found.step, SPATIAL, SERIAL, made)
        used = _placed(target.body, target, binary("sub", at, lead), ranges, {})
        rolled = replace(target, extent=target.extent + lead, role=SCAN, body=seq(made, used))
        body = replace_loop(func.body, target, rolled)
        left = rewrite_stmt(body, lambda s: () if s is maker else None)
        assert left is not None
        folded = rewrite_stmt(left, lambda s: self._folded(s, found.dim, kept))
        assert folded is not None
        return func.with_(
            body=folded,
            locals=tuple(
                replace(
                    b,
                    shape=(*b.shape[: found.dim], kept, *b.shape[found.dim + 1 :]),
                    rolling=True,
                )
                if b.name == self.buffer
                else b
                for b in func.locals
            ),
        )

    def _target(self, func: PrimFunc) -> Loop:
        """Return the loop of the windows; refuse one whose iterations have no order to rely on."""
        target = self.find_loop(func, self.loop)
        self._check_name(func, self.loop)
        if target.kind not in (SERIAL, UNROLL):
            self.refuse(func, f"loop {self.loop!r} is {target.kind}: windows slide one by one.")
        driven = {
            axis.role
            for block in blocks(target)
            for axis, bind in zip(block.axes, block.binds, strict=True)
            if target.var in variables(bind)
        }
        if target.role == REDUCE or SCAN in driven:
            self.refuse(func, f"loop {self.loop!r} is a {target.role} loop.")
        return target

    def _check_name(self, func: PrimFunc, name: str) -> None:
        """Refuse to change the extent of one of several loops of a name."""
        if sum(isinstance(s, Loop) and s.var == name for s in walk_stmt(func.body)) > 1:
            self.refuse(func, f"several loops are named {name!r}.")

    def _maker(self, func: PrimFunc, target: Loop) -> Loop:
        """Return the loop over rows that makes the buffer and nothing that is used elsewhere."""
        buffer = next((b for b in func.locals if b.name == self.buffer), None)
        if buffer is None:
            self.refuse(func, f"{self.buffer!r} is no local buffer.")
        if buffer.rolling:
            self.refuse(func, f"{self.buffer!r} holds only some of its rows already.")
        self.refuse_whole(func, self.buffer)
        writers = [b for b in blocks(func.body) if b.buffer == self.buffer]
        around = [l for l in nest_of(func.body, writers[0].name)[0] if l.extent != 1]
        if not around:
            self.refuse(func, f"no loop makes rows of {self.buffer!r}.")
        maker = around[0]
        inside = list(walk_stmt(maker))
        if any(s is target for s in inside):
            self.refuse(func, f"{self.buffer!r} is made inside loop {maker.var!r} already.")
        if any(s is maker for s in walk_stmt(target)):
            self.refuse(func, f"{self.buffer!r} is made inside loop {target.var!r} already.")
        if maker.role != SPATIAL:
            self.refuse(func, f"loop {maker.var!r} is a {maker.role} loop.")
        self._check_name(func, maker.var)
        for outer in self._around(func, target):
            if outer is not target and outer.extent != 1:
                self.refuse(func, f"each iteration of loop {outer.var!r} would make all rows.")
        for s in (*inside, *walk_stmt(target)):
            if isinstance(s, OpaqueCall):
                self.refuse(func, f"a call of {s.function} does not wait for its rows.")
        for name in sorted(writes(maker)):
            elsewhere = _uses(func.body, name) - _uses(maker, name)
            if name == self.buffer:
                elsewhere -= count_readers(walk_stmt(target), name)
            if elsewhere or name not in {b.name for b in func.locals}:
                where = "outside it" if name != self.buffer else f"outside loop {self.loop!r}"
                self.refuse(func, f"loop {maker.var!r} makes {name!r}, which is used {where}.")
        self._check_order(func, maker, target)
        return maker

    def _check_order(self, func: PrimFunc, maker: Loop, target: Loop) -> None:
        """Refuse where what the rows are made of is overwritten before they are made."""
        operands, passed = reads(maker), False
        for s in walk_stmt(func.body):
            passed = passed or s is maker
            if s is target and not passed:
                self.refuse(func, f"loop {target.var!r} runs before {self.buffer!r} is made.")
        own = {b.name for b in blocks(maker)}
        behind = False
        for block in blocks(func.body):
            behind = behind or block.name in own
            if behind and block.name not in own and block.buffer in operands:
                self.refuse(func, f"block {block.name!r} overwrites {block.buffer!r} in between.")

    def _windows(self, func: PrimFunc, maker: Loop, target: Loop) -> _Windows:
        """Return which dimension is made row by row, and what of it an iteration reads."""
        stored = accesses(maker, self.buffer) or []
        around = [*self._around(func, target), *self._around(func, maker)]
        single = {l.var: _ZERO for l in around if l.extent == 1 and l is not target}
        dim = next(
            (
                d
                for d in range(len(stored[0]))
                if all(
                    linear(substitute(i[d], single)) == ({Var(INDEX, maker.var): 1}, 0)
                    and not any(maker.var in variables(e) for e in (*i[:d], *i[d + 1 :]))
                    for i in stored
                )
            ),
            None,
        )
        if dim is None:
            self.refuse(
                func,
                f"an iteration of loop {maker.var!r} does not make one row of {self.buffer!r}.",
                "roll the storage before the loop of the rows is split.",
            )
        ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
        steps: set[int] = set()
        reach: list[int] = []
        for indices in accesses(target, self.buffer, stores=False) or []:
            part = span_of(substitute(indices[dim], single), {target.var}, ranges)
            if part is None or not part[0].keys() <= {Var(INDEX, target.var)}:
                self.refuse(func, f"the rows of {self.buffer!r} that are read are not windows.")
            steps.add(part[0].get(Var(INDEX, target.var), 0))
            reach += part[1:]
        if len(steps) != 1 or min(steps) < 1:
            self.refuse(
                func, f"what is read of {self.buffer!r} does not advance with loop {self.loop!r}."
            )
        return _Windows(dim, steps.pop(), min(reach), max(reach))

    def _kept(self, func: PrimFunc, found: _Windows) -> int:
        """Return how many rows to keep."""
        have = func.buffers()[self.buffer].shape[found.dim]
        window = found.hi - found.lo + 1
        if window >= have:
            self.refuse(func, f"a window holds all {have} rows of {self.buffer!r}.")
        if self.rows and not window <= self.rows < have:
            self.refuse(func, f"the rows kept must lie in {window} .. {have - 1}.")
        return self.rows or window

    def _around(self, func: PrimFunc, loop: Loop) -> list[Loop]:
        around = enclosing(func.body, loop)
        assert around is not None
        return around

    def _folded(self, stmt: Stmt, dim: int, kept: int) -> Stmt | None:
        """Return a block with its subscripts of rows modulo their number."""
        if not isinstance(stmt, Block):
            return None

        def fold(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
            slot = binary("floormod", indices[dim], kept)
            return (*indices[:dim], slot, *indices[dim + 1 :])

        block = map_loads(stmt, self.buffer, lambda l: replace(l, indices=fold(l.indices))) or stmt
        if block.buffer == self.buffer:
            block = replace(block, indices=fold(block.indices))
        return None if block is stmt else block


def _placed(
    body: Stmt, loop: Loop, value: Expr, ranges: Ranges, others: Mapping[str, Expr]
) -> Stmt:
    """Return the body of a loop for the iteration `value`, which does nothing outside the range."""
    reach = bounds(value, ranges)
    assert reach is not None

    def rule(s: Stmt) -> Stmt | None:
        if not isinstance(s, Block):
            return None
        binds = tuple(substitute(b, {**others, loop.var: value}) for b in s.binds)
        axis = Axis(
            INDEX, fresh_name(f"{loop.var}.w", {a.name for a in s.axes}), loop.extent, SPATIAL
        )
        inside = [axis >= 0] if reach[0] < 0 else []
        if reach[1] >= loop.extent:
            inside.append(axis < loop.extent)
        if not inside:
            return replace(s, binds=binds)
        return replace(
            s,
            axes=(*s.axes, axis),
            binds=(*binds, value),
            guard=all_of(*inside, *(() if s.guard is None else (s.guard,))),
        )

    placed = rewrite_stmt(body, rule)
    assert placed is not None
    return placed


def _uses(stmt: Stmt, buffer: str) -> int:
    leaves = (s for s in walk_stmt(stmt) if isinstance(s, Block | OpaqueCall))
    return sum(buffer in reads(s) | writes(s) for s in leaves)
