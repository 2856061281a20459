"""ComputeAt: compute, inside a loop of the consumers, just what that iteration needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from toolkit.ir.expr import binary, Expr, INDEX, Var
from toolkit.ir.loop import (
    Block,
    blocks,
    enclosing,
    exchange,
    find_loop,
    Loop,
    loops_of,
    nest_of,
    own_loops,
    PrimFunc,
    replace_loop,
    seq,
    SERIAL,
    SPATIAL,
    Stmt,
    VECTORIZE,
    walk_stmt,
)
from toolkit.ir.regions import (
    accesses,
    block_loads,
    count_readers,
    loop_ranges,
    reads,
    region,
    Span,
)
from toolkit.ir.simplify import bounds
from toolkit.schedule.examples import matmul
from toolkit.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class ComputeAt(Step):
    """Move a block's nest to the head of `loop`, shrunk to the region its consumers read there.

    Before::                          After::

        for i in 8:                       for i_2 in 8:
          for k in 16:                      for k in 16:
            t: t[i] sum= a[i, k]              t: t[i] sum= a[i, k]  # i=i_2
        for i_2 in 8:                       for j in 4:
          for j in 4:                         y: y[i, j] = t[i] * b[j]
            y: y[i, j] = t[i] * b[j]
    """

    block: str
    loop: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return matmul(), cls("t", "j_2")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses a consumer outside `loop`, and a block that shares its nest."""
        loops, block = self.find(func, self.block)
        spans, target = self.spans(func, loops, block)
        indices = {i.name: dim for dim, i in enumerate(block.indices) if isinstance(i, Var)}
        new_loops: list[tuple[str, int, str]] = []
        binds: list[Expr] = []
        own = own_loops(loops)
        drive = {l.var: l for l in own}
        for axis, bind in zip(block.axes, block.binds, strict=True):
            if axis.role == "spatial":
                span = spans[indices[axis.name]]
                if span.extent == 1:
                    binds.append(span.base)
                else:
                    var = bind.name if isinstance(bind, Var) else axis.name
                    new_loops.append((var, span.extent, SPATIAL))
                    binds.append(binary("add", span.base, Var(INDEX, var)))
            else:
                binds.append(bind)
                if isinstance(bind, Var) and bind.name in drive:
                    inner = drive[bind.name]
                    new_loops.append((inner.var, inner.extent, inner.role))
        kinds = {loop.var: loop.kind for loop in loops}
        moved: Stmt = replace(block, binds=tuple(binds))
        for var, extent, role in reversed(new_loops):
            moved = Loop(var, extent, role, kinds.get(var, SERIAL), moved)
        top: Stmt = own[0] if own else block

        rest = exchange(func.body, top, None)
        assert rest is not None
        joined = target.around(seq(moved, target.body))
        return func.with_(body=replace_loop(rest, target, joined))

    def spans(self, func: PrimFunc, loops: list[Loop], block: Block) -> tuple[list[Span], Loop]:
        """Return the region of the buffer that one iteration of `loop` needs, and the loop."""
        shared = loops[: len(loops) - len(own_loops(loops))]
        if any(l.role != "scan" for l in shared):
            self.refuse(func, f"the loops of block {block.name!r} hold other blocks too.")
        if not all(isinstance(b, Var) for b in block.binds):
            self.refuse(func, f"the loops of block {block.name!r} were transformed before.")
        spatial = [a.name for a in block.axes if a.role == "spatial"]
        if [i.name for i in block.indices if isinstance(i, Var)] != spatial or len(
            block.indices
        ) != len(spatial):
            self.refuse(func, f"block {block.name!r} does not store one element an axis in order.")
        if block.buffer not in {b.name for b in func.locals}:
            self.refuse(func, f"buffer {block.buffer!r} is a parameter of the function.")
        if sum(b.buffer == block.buffer for b in blocks(func.body)) > 1:
            self.refuse(func, f"buffer {block.buffer!r} is written by more than one block.")
        target = find_loop(func.body, self.loop)
        if target is None:
            self.refuse(func, f"there is no loop {self.loop!r}.")
        if target.kind == VECTORIZE:
            self.refuse(func, f"loop {self.loop!r} is vectorised: it holds one statement.")
        if count_readers(walk_stmt(target), block.buffer) != count_readers(
            walk_stmt(func.body), block.buffer
        ):
            self.refuse(func, f"a consumer of {block.buffer!r} lies outside loop {self.loop!r}.")
        outer = enclosing(func.body, target)
        assert outer is not None
        if outer[: len(shared)] != shared or len(outer) == len(shared):
            self.refuse(func, f"loop {self.loop!r} is not inside the recurrence of {block.name!r}.")
        if shared:
            self._check_order(func, shared[-1], block, target)
        found = accesses(target, block.buffer, stores=False)
        if not found:
            self.refuse(func, f"{block.buffer!r} is not read element by element in the loop.")
        ranges = loop_ranges(loops_of(func.body))
        shape = next(b.shape for b in func.locals if b.name == block.buffer)
        spans = region(found, shape, {l.var for l in outer}, ranges)
        for span, size in zip(spans, shape, strict=True):
            reach = bounds(span.base, ranges)
            if reach is None or reach[0] < 0 or reach[1] + span.extent > size:
                self.refuse(func, f"the region of {block.buffer!r} reaches beyond the buffer.")
        return spans, target

    def _check_order(self, func: PrimFunc, scan: Loop, block: Block, target: Loop) -> None:
        """Refuse where the recurrence overwrites what the block reads before it is used."""
        operands = {load.buffer for load in block_loads(block)}
        last = list(blocks(target))[-1].name
        behind = False
        for other in blocks(scan):
            if behind and other.buffer in operands:
                self.refuse(func, f"block {other.name!r} overwrites {other.buffer!r} in between.")
            behind = behind or other.name == block.name
            if other.name == last:
                break

    def work(self, func: PrimFunc) -> tuple[int, int]:
        """Return (elements then computed, elements of the buffer): equal means no rework."""
        loops, block = self.find(func, self.block)
        spans, target = self.spans(func, loops, block)
        outer = enclosing(func.body, target)
        assert outer is not None
        times = math.prod(l.extent for l in outer[len(loops) - len(own_loops(loops)) :])
        shape = func.buffers()[block.buffer].shape
        return times * math.prod(s.extent for s in spans), math.prod(shape)


def candidate_loops(func: PrimFunc, block: str) -> list[str]:
    """Return the spatial loops that hold every consumer of a block's buffer, outermost first."""
    _, producer = nest_of(func.body, block)
    common: list[Loop] | None = None
    for consumer in blocks(func.body):
        if consumer.buffer == producer.buffer and consumer.name != block:
            return []
        if producer.buffer not in reads(consumer):
            continue
        usable: list[Loop] = []
        for loop in nest_of(func.body, consumer.name)[0]:
            if loop.role != SPATIAL:
                break
            usable.append(loop)
        if common is None:
            common = usable
        else:
            common = [a for a, b in zip(common, usable, strict=False) if a is b]
    return [loop.var for loop in common or []]
