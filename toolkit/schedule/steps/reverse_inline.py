"""ReverseInline: compute an element-wise consumer where its operand is stored."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.expr import Const, Expr, Load, rewrite, substitute, Var
from toolkit.ir.loop import (
    Block,
    blocks,
    OpaqueCall,
    own_loops,
    PrimFunc,
    rewrite_stmt,
    Stmt,
    walk_stmt,
)
from toolkit.ir.regions import block_loads, reads, writes
from toolkit.schedule.examples import two_stages
from toolkit.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class ReverseInline(Step):
    """Let the blocks that write the operand of an element-wise block write its result instead.

    Before::                        After::

        for i in 8:                     for i in 8:
          t: t[i] = a[i] + 1              t: y[i] = (a[i] + 1) * 2
        for i_2 in 8:
          y: y[i] = t[i] * 2
    """

    block: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return two_stages(), cls("y")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses consumers that are not element by element, and producers that reduce."""
        loops, block = self.find(func, self.block)
        if block.reduce is not None or block.guard is not None or block.update_only:
            self.refuse(func, f"block {block.name!r} is a reduction or guarded.")
        if len(own_loops(loops)) != len(loops):
            self.refuse(func, f"the loops of block {block.name!r} hold other blocks too.")
        source = self._operand(func, block)
        producers = [b for b in blocks(func.body) if b.buffer == source.buffer]
        for producer in producers:
            around, _ = self.find(func, producer.name)
            if producer.reduce is not None:
                self.refuse(func, f"block {producer.name!r} is a reduction.")
            if len(own_loops(around)) != len(around):
                self.refuse(func, f"the loops of block {producer.name!r} hold other blocks too.")
            if source.buffer in reads(producer):
                self.refuse(func, f"block {producer.name!r} reads {source.buffer!r} itself.")
        self._check_sources(func, block, producers)
        names = [i.name for i in source.indices if isinstance(i, Var)]

        def rule(s: Stmt) -> Stmt | tuple[()] | None:
            if s is block:
                return ()
            if not isinstance(s, Block) or s.buffer != source.buffer:
                return None
            values: dict[str, Expr] = dict(zip(names, s.indices, strict=True))
            stored = s.value

            def expand(e: Expr) -> Expr | None:
                if isinstance(e, Load) and e.buffer == source.buffer:
                    return stored
                return values.get(e.name) if isinstance(e, Var) else None

            return replace(
                s,
                buffer=block.buffer,
                indices=tuple(substitute(i, values) for i in block.indices),
                value=rewrite(block.value, expand),
            )

        body = rewrite_stmt(func.body, rule)
        assert body is not None
        kept = tuple(b for b in func.locals if b.name != source.buffer)
        return func.with_(body=body, locals=kept)

    def _operand(self, func: PrimFunc, block: Block) -> Load:
        """Return the one local operand that the block alone reads, at the element it writes."""
        buffers = {b.name: b for b in func.locals}
        extents = {a.name: a.extent for a in block.axes}
        if any(not isinstance(i, Var | Const) for i in block.indices) or sorted(extents) != sorted(
            i.name for i in block.indices if isinstance(i, Var)
        ):
            self.refuse(func, f"block {block.name!r} does not store one element an axis.")
        if sum(block.buffer in writes(s) for s in walk_stmt(func.body) if _leaf(s)) > 1:
            self.refuse(func, f"buffer {block.buffer!r} is written by more than one block.")
        leaves = [s for s in walk_stmt(func.body) if _leaf(s)]

        def suits(load: Load) -> bool:
            """Tell whether this reads every element of a local buffer, which is read nowhere else,
            where it is needed."""
            names = [i.name for i in load.indices if isinstance(i, Var)]
            return (
                load.buffer in buffers
                and all(o.indices == load.indices for o in _loads_of(block, load.buffer))
                and sum(load.buffer in reads(s) for s in leaves) == 1
                and any(load.buffer in writes(s) for s in leaves)
                and len(names) == len(load.indices)
                and sorted(names) == sorted(extents)
                and tuple(extents[name] for name in names) == buffers[load.buffer].shape
            )

        found = next((load for load in block_loads(block) if suits(load)), None)
        if found is None:
            why = "reads no local buffer, all of it and alone, element by element."
            self.refuse(func, f"block {block.name!r} {why}")
        self.refuse_whole(func, found.buffer)
        return found

    def _check_sources(self, func: PrimFunc, block: Block, producers: list[Block]) -> None:
        """Refuse where what the consumer reads is written between its producers and it."""
        sources = {load.buffer for load in block_loads(block)} - {producers[0].buffer}
        first = {p.name for p in producers}
        behind = False
        for s in walk_stmt(func.body):
            if not isinstance(s, Block | OpaqueCall):
                continue
            if s is block:
                break
            behind = behind or s.name in first
            if behind and sources & writes(s):
                changed = min(sources & writes(s))
                self.refuse(
                    func,
                    f"block {block.name!r} reads {changed!r}, which {s.name!r} writes after "
                    f"{producers[0].buffer!r}.",
                )


def _leaf(stmt: Stmt) -> bool:
    return isinstance(stmt, Block | OpaqueCall)


def _loads_of(block: Block, buffer: str) -> list[Load]:
    return [load for load in block_loads(block) if load.buffer == buffer]
