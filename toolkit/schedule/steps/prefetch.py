"""Prefetch: ask for what a later iteration of a loop reads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toolkit.ir.expr import binary, Const, Expr, INDEX, substitute, Var, variables
from toolkit.ir.loop import (
    Buffer,
    CACHE_LINE_BYTES,
    Loop,
    PrimFunc,
    REGISTER,
    replace_loop,
    TENSORIZE,
    VECTORIZE,
    walk_stmt,
)
from toolkit.ir.regions import accesses, loop_ranges, region, Span
from toolkit.ir.types import DTYPES
from toolkit.schedule.examples import matmul
from toolkit.schedule.steps.base import Step

LINES_LIMIT = 32
"""Lines of a cache that one iteration may ask for: a core has about a dozen on their way."""

NOTE = "prefetch "
"""Keys of notes on a loop: this and the operand.  The value: how many iterations ahead."""


@dataclass(frozen=True, slots=True)
class Prefetch(Step):
    """Let each iteration of `loop` ask for what of `operand` the one `distance` later reads.

    Before::                          After (distance=2)::

        for k in 64:                    for k in 64:  # prefetch w: 2
          for j in 16:                    for j in 16:
            y: y[j] sum= w[k, j]            y: y[j] sum= w[k, j]
    """

    operand: str
    loop: str
    distance: int

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return matmul(columns=20), cls("w", "k", 2)

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses operands that do not advance with the loop, and more than LINES_LIMIT lines."""
        loop = self.find_loop(func, self.loop)
        buffer = func.buffers().get(self.operand)
        if loop.kind in (VECTORIZE, TENSORIZE):
            self.refuse(func, f"loop {self.loop!r} is no loop in C, but {loop.kind}d.")
        if buffer is None or not accesses(loop, self.operand, stores=False):
            self.refuse(func, f"loop {self.loop!r} does not read elements of {self.operand!r}.")
        if not 1 <= self.distance < loop.extent:
            self.refuse(func, f"the distance must lie in 1 .. {loop.extent - 1}.")
        spans = _spans(func, loop, buffer)
        if not any(loop.var in variables(span.base) for span in spans):
            self.refuse(
                func, f"what is read of {self.operand!r} does not change with loop {self.loop!r}."
            )
        lines = len(_offsets(spans, buffer))
        if lines > LINES_LIMIT:
            self.refuse(
                func, f"an iteration reads {lines} lines of {self.operand!r}, over {LINES_LIMIT}."
            )
        key = NOTE + self.operand
        kept = tuple(note for note in loop.notes if note[0] != key)
        noted = replace(loop, notes=(*kept, (key, str(self.distance))))
        return func.with_(body=replace_loop(func.body, loop, noted))


def lines_ahead(func: PrimFunc, loop: Loop) -> list[tuple[Buffer, Expr]]:
    """Return the lines that an iteration of a loop of a lowered function asks for.

    Each as a buffer and a place in it, in bytes, over the loops around.  Steps that came after
    `Prefetch` may have left more lines than its limit: then there are none.
    """
    found: list[tuple[Buffer, Expr]] = []
    for key, value in loop.notes:
        buffer = func.buffers().get(key.removeprefix(NOTE))
        if not key.startswith(NOTE) or buffer is None or buffer.scope == REGISTER:
            continue
        if not accesses(loop, buffer.name, stores=False):
            continue
        spans = _spans(func, loop, buffer)
        offsets = _offsets(spans, buffer)
        if len(offsets) > LINES_LIMIT:
            continue
        width = DTYPES[buffer.dtype].nbytes
        start: Expr = Const(INDEX, 0)
        stride = width
        for span, extent in zip(reversed(spans), reversed(buffer.shape), strict=True):
            start = binary("add", binary("mul", span.base, stride), start)
            stride *= extent
        later = binary("add", Var(INDEX, loop.var), int(value))
        ahead = substitute(start, {loop.var: later})
        found += [(buffer, binary("add", ahead, offset)) for offset in offsets]
    return found


def _spans(func: PrimFunc, loop: Loop, buffer: Buffer) -> list[Span]:
    """Return the box of a buffer that one iteration reads."""
    ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
    inside = {s.var for s in walk_stmt(loop.body) if isinstance(s, Loop)}
    found = accesses(loop, buffer.name, stores=False) or []
    return region(found, buffer.shape, ranges.keys() - inside, ranges)


def _offsets(spans: Sequence[Span], buffer: Buffer) -> list[int]:
    """Return where lines of a box start, in bytes from its first element."""
    run, inner = DTYPES[buffer.dtype].nbytes, len(spans)
    while inner:  # dimensions that are whole lie side by side
        inner -= 1
        run *= spans[inner].extent
        if spans[inner].extent != buffer.shape[inner]:
            break
    strides = [math.prod(buffer.shape[d + 1 :]) * DTYPES[buffer.dtype].nbytes for d in range(inner)]
    rows = itertools.product(*(range(span.extent) for span in spans[:inner]))
    starts = [sum(i * s for i, s in zip(row, strides, strict=True)) for row in rows]
    return [start + at for start in starts for at in range(0, run, CACHE_LINE_BYTES)]
