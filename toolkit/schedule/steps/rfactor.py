"""RFactor: split a reduction into independent partial results, reduced at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.compute import Axis
from toolkit.ir.expr import Expr, INDEX, Load, substitute, Var, variables
from toolkit.ir.loop import (
    Block,
    blocks,
    Buffer,
    fresh_name,
    Loop,
    PrimFunc,
    REDUCE,
    replace_loop,
    rewrite_stmt,
    SCRATCH,
    seq,
    SPATIAL,
    Stmt,
    wrap,
)
from toolkit.ir.regions import loop_ranges, writes
from toolkit.ir.simplify import linear
from toolkit.schedule.examples import row_sums
from toolkit.schedule.steps.base import block_names, loop_names, Step
from toolkit.schedule.steps.split import Split


@dataclass(frozen=True, slots=True)
class RFactor(Step):
    """Make a reduce loop a spatial one of a partial block, which the block then reduces.

    Before::                          After (loop="k.1")::

        for k.0 in 4:                     for k.0 in 4:
          for k.1 in 8:                     for k.1 in 8:
            y: y[] sum= a[k]                  y_rf: y_rf[r] sum= a[k * 8 + r]
                                          for r in 8:
                                            y: y[] sum= y_rf[r]
    """

    block: str
    loop: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return Split("k", (4,)).apply(row_sums()), cls("y", "k.1")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses loops that drive axes otherwise than in sums, and nests that hold other blocks.

        Where a split left a guard, the loop drives an axis of the guard as well.
        """
        loops, block = self.find(func, self.block)
        target = next((loop for loop in loops if loop.var == self.loop), None)
        if target is None or target.role != REDUCE:
            self.refuse(func, f"{self.loop!r} is no reduce loop of block {self.block!r}.")
        if block.reduce is None or block.update_only or block.init is not None:
            self.refuse(func, f"block {self.block!r} is no plain reduction.")
        top = loops[0]
        if len(list(blocks(top))) != 1:
            self.refuse(func, f"the loops of block {self.block!r} hold other blocks too.")
        driven = [
            (axis, bind)
            for axis, bind in zip(block.axes, block.binds, strict=True)
            if self.loop in variables(bind)
        ]
        assert driven, "a reduce loop drives an axis"
        taken = {a.name for a in block.axes}
        ranges = loop_ranges(loops)
        factored = Axis(INDEX, fresh_name("r", taken), target.extent, SPATIAL)
        parts: dict[str, Axis] = {}  # the other loops of driven axes: of the axis, and of its guard
        values: dict[str, Expr] = {}
        for axis, bind in driven:
            terms, constant = linear(bind)
            if constant or any(not isinstance(atom, Var) for atom in terms):
                self.refuse(func, f"axis {axis.name!r} is not a plain sum of loops.")
            value: Expr | None = None
            for atom, k in terms.items():
                assert isinstance(atom, Var)
                part: Axis = factored
                if atom.name != self.loop:
                    if atom.name not in parts:
                        name = fresh_name(axis.name, taken)
                        parts[atom.name] = Axis(INDEX, name, ranges[atom.name][1] + 1, REDUCE)
                    part = parts[atom.name]
                term = part * k
                value = term if value is None else value + term
            assert value is not None
            values[axis.name] = value
        buffers = func.buffers()
        own = buffers[block.buffer]
        if sum(own.name in writes(s) for s in blocks(func.body)) > 1:
            self.refuse(func, f"buffer {own.name!r} is written by more than one block.")
        partial = Buffer(
            fresh_name(f"{own.name}_rf", set(buffers)),
            (*own.shape, target.extent),
            own.dtype,
            SCRATCH,
        )

        def moved(expr: Expr | None) -> Expr | None:
            return None if expr is None else substitute(expr, values)

        kept = [
            (a, b) for a, b in zip(block.axes, block.binds, strict=True) if a.name not in values
        ]
        new_value = moved(block.value)
        assert new_value is not None
        partial_block = replace(
            block,
            name=fresh_name(f"{block.name}_rf", block_names(func)),
            axes=(*(a for a, _ in kept), *parts.values(), factored),
            binds=(*(b for _, b in kept), *(Var(INDEX, v) for v in parts), Var(INDEX, self.loop)),
            buffer=partial.name,
            indices=(*block.indices, factored),
            value=new_value,
            guard=moved(block.guard),
        )
        names = loop_names(func)
        stored = {name for index in block.indices for name in variables(index)}
        spatial = [a for a in block.axes if a.role == SPATIAL and a.name in stored]
        outer = [(fresh_name(f"{a.name}_f", names), a) for a in spatial]
        last = fresh_name("r", names)
        final_reduce = Axis(INDEX, factored.name, target.extent, REDUCE)
        final = Block(
            block.name,
            (*spatial, final_reduce),
            (*(Var(INDEX, v) for v, _ in outer), Var(INDEX, last)),
            block.buffer,
            block.indices,
            Load(own.dtype, partial.name, (*block.indices, final_reduce)),
            block.reduce,
        )
        final_nest = wrap(
            [*((v, a.extent, SPATIAL) for v, a in outer), (last, target.extent, REDUCE)], final
        )

        def rule(s: Stmt) -> Stmt | None:
            if isinstance(s, Block):
                return partial_block
            if isinstance(s, Loop) and s.var == self.loop:
                return replace(s, role=SPATIAL)
            return None

        first = rewrite_stmt(top, rule)
        assert first is not None
        return func.with_(
            body=replace_loop(func.body, top, seq(first, final_nest)),
            locals=(*func.locals, partial),
        )
