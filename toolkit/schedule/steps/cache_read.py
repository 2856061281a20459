"""CacheRead: bring what one iteration of a loop reads of an operand into a buffer of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.compute import Axis
from toolkit.ir.expr import all_of, binary, Const, Expr, INDEX, Load, Var
from toolkit.ir.loop import (
    Block,
    Buffer,
    fresh_name,
    Loop,
    map_block,
    PrimFunc,
    replace_loop,
    rewrite_stmt,
    SCRATCH,
    seq,
    SPATIAL,
    Stmt,
    VECTORIZE,
    walk_stmt,
    wrap,
)
from toolkit.ir.regions import accesses, loop_ranges, region, Span, writes
from toolkit.ir.simplify import bounds, Ranges
from toolkit.schedule.examples import padded_windows
from toolkit.schedule.steps.base import block_names, loop_names, Step


@dataclass(frozen=True, slots=True)
class CacheRead(Step):
    """Copy the region of `operand` that an iteration of `loop` reads, at the head of the loop.

    The block reads the copy.  Elements of the region that lie outside the operand, which padding
    makes, are not copied: the block's guard keeps it away from them.

    Before::                        After::

        for i in 8:                     for i in 8:
          for k in 3:                     for r1 in 3:
            y: y[i] sum= a[i + k]           y_a: a_y[d] = a[d]  # d=i + r1
                                          for k in 3:
                                            y: y[i] sum= a_y[i + k]
    """

    block: str
    operand: str
    loop: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return padded_windows(), cls("y", "a", "i")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses operands that are written in the block's nest, and loops around other blocks."""
        loops, block = self.find(func, self.block)
        at = next((n for n, l in enumerate(loops) if l.var == self.loop), None)
        if at is None:
            self.refuse(func, f"loop {self.loop!r} is not around block {block.name!r}.")
        if loops[at].kind == VECTORIZE:
            self.refuse(func, f"loop {self.loop!r} is vectorised: it holds one statement.")
        buffers = func.buffers()
        found = accesses(block, self.operand, stores=False)
        if self.operand not in buffers or not found:
            self.refuse(func, f"block {block.name!r} does not read {self.operand!r}.")
        if self.operand in writes(loops[0]):
            self.refuse(func, f"{self.operand!r} is written in the nest of block {block.name!r}.")
        operand = buffers[self.operand]
        ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
        spans = region(found, operand.shape, {l.var for l in loops[: at + 1]}, ranges)
        cache = Buffer(
            fresh_name(f"{operand.name}_{block.name}", set(buffers)),
            operand.shape,
            operand.dtype,
            SCRATCH,
        )
        copy = self._copy(func, block, operand, cache, spans, ranges)

        def move(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.buffer == operand.name:
                return replace(e, buffer=cache.name)
            return None

        def rule(s: Stmt) -> Stmt | None:
            return map_block(s, move) if isinstance(s, Block) and s.name == block.name else None

        body = rewrite_stmt(loops[at].body, rule)
        assert body is not None
        staged = replace(loops[at], body=seq(copy, body))
        return func.with_(
            body=replace_loop(func.body, loops[at], staged), locals=(*func.locals, cache)
        )

    def _copy(
        self,
        func: PrimFunc,
        block: Block,
        operand: Buffer,
        cache: Buffer,
        spans: list[Span],
        ranges: Ranges,
    ) -> Stmt:
        """Return the nest that copies the region, clamped to the operand by a guard."""
        taken = loop_names(func)
        axes = tuple(Axis(INDEX, f"d{n}", size, SPATIAL) for n, size in enumerate(operand.shape))
        nest: list[tuple[str, int, str]] = []
        binds: list[Expr] = []
        inside: list[Expr] = []
        for n, (axis, span) in enumerate(zip(axes, spans, strict=True)):
            bind = span.base
            last = bounds(span.base, ranges)
            if span.extent != 1:
                var = fresh_name(f"r{n}", taken)
                nest.append((var, span.extent, SPATIAL))
                bind = binary("add", span.base, Var(INDEX, var))
            binds.append(bind)
            if last is None or last[0] < 0:
                inside.append(Const(INDEX, 0) <= axis)
            if last is None or last[1] + span.extent > axis.extent:
                inside.append(axis < axis.extent)
        copied = Block(
            fresh_name(f"{block.name}_{operand.name}", block_names(func)),
            axes,
            tuple(binds),
            cache.name,
            axes,
            Load(operand.dtype, operand.name, axes),
            guard=all_of(*inside),
        )
        return wrap(nest, copied)
