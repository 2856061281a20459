"""ReverseComputeAt: consume, inside a loop of the producer, just what that iteration made."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.coverage import apart, each_once, inner_terms, Terms, without_gaps
from toolkit.ir.expr import all_of, Binary, binary, Const, Expr, INDEX, Var, walk
from toolkit.ir.expr import variables as variables_of
from toolkit.ir.loop import (
    Block,
    blocks,
    enclosing,
    Loop,
    OpaqueCall,
    own_loops,
    PrimFunc,
    REDUCE,
    replace_loop,
    rewrite_stmt,
    seq,
    SPATIAL,
    Stmt,
    VECTORIZE,
    walk_stmt,
)
from toolkit.ir.regions import block_loads, bound_expr, loop_ranges, reads, Span, span_of, writes
from toolkit.ir.simplify import bounds, from_linear, linear, Ranges, simplify
from toolkit.schedule.examples import matmul
from toolkit.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class ReverseComputeAt(Step):
    """Move a block's nest to the end of `loop`, shrunk to what the producer has written there.

    Before::                        After::

        for i in 8:                     for i in 8:
          for k in 16:                    for k in 16:
            t: t[i] sum= a[i, k]            t: t[i] sum= a[i, k]
        for i_2 in 8:                     for j in 4:
          for j in 4:                       y: y[i, j] = t[i] * b[j]  # i=i
            y: y[i, j] = t[i] * b[j]
    """

    block: str
    loop: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return matmul(), cls("y", "i")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses consumers of more than the element, and loops in which it is not complete."""
        loops, block = self.find(func, self.block)
        if len(own_loops(loops)) != len(loops):
            self.refuse(func, f"the loops of block {block.name!r} hold other blocks too.")
        if not all(isinstance(b, Var) for b in block.binds):
            self.refuse(func, f"the loops of block {block.name!r} were transformed before.")
        target = self.find_loop(func, self.loop)
        if target.kind == VECTORIZE:
            self.refuse(func, f"loop {self.loop!r} is vectorised: it holds one statement.")
        producer = self._producer(func, block, target)
        dims = self._dims(func, block, producer.buffer)
        spans = self._spans(func, producer, target)
        self._check_order(func, block, target, producer)

        ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
        spanned: dict[str, Span] = {}
        binds: list[Expr] = []
        inside: list[Expr] = []
        for axis, bind in zip(block.axes, block.binds, strict=True):
            assert isinstance(bind, Var)
            if axis.name not in dims:
                binds.append(bind)
                continue
            span = spans[dims[axis.name]]
            spanned[bind.name] = span
            binds.append(span.base if span.extent == 1 else binary("add", span.base, bind))
            reach = bounds(span.base, ranges)
            if reach is None or reach[0] < 0:
                inside.append(Const(INDEX, 0) <= axis)
            if reach is None or reach[1] + span.extent > axis.extent:
                inside.append(axis < axis.extent)
        guards = [*inside, *(() if block.guard is None else (block.guard,))]
        moved: Stmt = replace(block, binds=tuple(binds), guard=all_of(*guards))
        for loop in reversed(loops):
            extent = spanned[loop.var].extent if loop.var in spanned else loop.extent
            if extent != 1 or loop.var not in spanned:
                moved = replace(loop, extent=extent, body=moved)
        rest = rewrite_stmt(
            func.body, lambda s: () if s is (loops[0] if loops else block) else None
        )
        assert rest is not None
        joined = replace(target, body=seq(target.body, moved))
        return func.with_(body=replace_loop(rest, target, joined))

    def _producer(self, func: PrimFunc, block: Block, target: Loop) -> Block:
        """Return the one block in the loop that makes an operand of `block`."""
        made = [b for b in blocks(target) if b.buffer in reads(block)]
        if not made:
            self.refuse(func, f"loop {self.loop!r} makes no operand of block {block.name!r}.")
        producer = made[0]
        leaves = [s for s in walk_stmt(func.body) if isinstance(s, Block | OpaqueCall)]
        if len(made) > 1 or sum(producer.buffer in writes(s) for s in leaves) > 1:
            self.refuse(func, f"more than one block makes the operands of block {block.name!r}.")
        if producer.update_only or (producer.reduce is None and producer.guard is not None):
            self.refuse(func, f"block {producer.name!r} does not write all of its elements.")
        return producer

    def _dims(self, func: PrimFunc, block: Block, operand: str) -> dict[str, int]:
        """Map the axes that index the operand to its dimensions."""
        found = {load.indices for load in block_loads(block) if load.buffer == operand}
        first = next(iter(found))
        roles = {a.name: a.role for a in block.axes}
        names = [i.name for i in first if isinstance(i, Var)]
        plain = len(set(names)) == len(first) and all(roles[n] == SPATIAL for n in names)
        if len(found) > 1 or not plain:
            self.refuse(
                func, f"block {block.name!r} reads more of {operand!r} than an element an axis."
            )
        return {name: dim for dim, name in enumerate(names)}

    def _spans(self, func: PrimFunc, producer: Block, target: Loop) -> list[Span]:
        """Return the region that one iteration of the loop writes, all of it and to the end."""
        around = enclosing(func.body, target)
        assert around is not None
        outer = {l.var for l in around}
        ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
        driving: set[str] = set()
        for axis, bind in zip(producer.axes, producer.binds, strict=True):
            if axis.role == REDUCE and variables_of(bind) & outer:
                self.refuse(
                    func,
                    f"the reduction of block {producer.name!r} is not complete in {target.var!r}.",
                )
            driving |= variables_of(bind)
        idle = next((l for l in around if l.role != SPATIAL or l.var not in driving), None)
        if idle is not None:
            self.refuse(func, f"block {producer.name!r} is repeated by loop {idle.var!r}.")
        spans: list[Span] = []
        parts = []
        for index in producer.indices:
            over_loops = simplify(bound_expr(producer, index), ranges)
            terms = inner_terms(over_loops, outer, ranges)
            span = span_of(over_loops, outer, ranges)
            if not isinstance(index, Var) or terms is None or span is None:
                terms = None
            if terms is None or span is None or not without_gaps(terms):
                self.refuse(func, f"what {producer.name!r} writes in {target.var!r} is no box.")
            if _overlapping(over_loops, ranges):
                self.refuse(func, f"block {producer.name!r} writes some elements more than once.")
            parts.append(terms)
            base, low, high = span
            spans.append(Span(from_linear(base, low), high - low + 1))
        if not apart(parts):
            self.refuse(func, f"what {producer.name!r} writes in {target.var!r} is no box.")
        return spans

    def _check_order(self, func: PrimFunc, block: Block, target: Loop, producer: Block) -> None:
        """Refuse where another operand, or the result, is written from the producer's nest on."""
        around = enclosing(func.body, target)
        assert around is not None
        nest = {s.name for s in blocks(around[0])}
        own = {load.buffer for load in block_loads(block)} - {producer.buffer} | {block.buffer}
        leaves = [s for s in walk_stmt(func.body) if isinstance(s, Block | OpaqueCall)]
        if sum(block.buffer in writes(s) for s in leaves) > 1:
            self.refuse(func, f"buffer {block.buffer!r} is written by more than one block.")
        behind = False
        for s in leaves:
            if s is block:
                break
            behind = behind or s.name in nest
            if behind and own & writes(s):
                self.refuse(
                    func,
                    f"block {block.name!r} needs {min(own & writes(s))!r}, which {s.name!r} "
                    "writes in between.",
                )


def _overlapping(index: Expr, ranges: Ranges) -> bool:
    """Tell whether iterations may share values, as halos do; shifted tiles are known to."""
    terms: Terms = []
    for atom, factor in linear(index)[0].items():
        reach = bounds(atom, ranges)
        if any(isinstance(e, Binary) and e.op == "min" for e in walk(atom)):
            return False
        if reach is None:
            return True
        terms.append(("", factor, reach[1] - reach[0] + 1))
    return not each_once(terms)


def producer_loops(func: PrimFunc, block: str) -> list[str]:
    """Return the loops around the blocks that make operands of a block, in program order."""
    wanted = next(b for b in blocks(func.body) if b.name == block)
    operands = reads(wanted)
    return [
        s.var
        for s in walk_stmt(func.body)
        if isinstance(s, Loop) and any(b.buffer in operands for b in blocks(s))
    ]
