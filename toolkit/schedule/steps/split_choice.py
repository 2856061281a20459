"""SplitChoice: a block that stores one of two values becomes two blocks under guards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.expr import call, Expr, INDEX, Select, substitute, Var, variables
from toolkit.ir.loop import (
    Block,
    fresh_name,
    Loop,
    own_loops,
    PrimFunc,
    rewrite_stmt,
    SCAN,
    seq,
    SERIAL,
    Stmt,
    walk_stmt,
)
from toolkit.ir.regions import bound_expr
from toolkit.schedule.examples import chosen_rows
from toolkit.schedule.steps.base import block_names, loop_names, Step


@dataclass(frozen=True, slots=True)
class SplitChoice(Step):
    """Let two nests, under guards, store what `block` chooses between.

    A guard is tested before the loops that it does not depend on, and what it guards may be
    computed by vectors or a tensor intrinsic.

    Before::                                        After::

        for i in 6:                                 for i in 6:
          for j in 8:                                 for j in 8:
            y: y[i, j] = select(i < 4, a[i, j], 0)      y: y[i, j] = a[i, j] where i < 4
                                                      for j_else in 8:
                                                        y_else: y[i, j] = 0 where not (i < 4)
    """

    block: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return chosen_rows(), cls("y")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses blocks that make no choice, reductions, and loops that were scheduled."""
        loops, block = self.find(func, self.block)
        if block.reduce is not None or not isinstance(block.value, Select):
            self.refuse(func, f"block {block.name!r} stores no choice of two values.")
        if block.guard is not None:
            self.refuse(func, f"block {block.name!r} is guarded.")
        own = own_loops(loops)
        if any(l.kind != SERIAL or l.role == SCAN for l in own):
            self.refuse(func, f"the loops of block {block.name!r} were scheduled before.")
        # What the condition depends on stays around both.
        inside: list[Loop] = []
        while own and not _depends(block, own[-1].var):
            inside.insert(0, own.pop())
        top: Stmt = inside[0] if inside else block
        names, taken = block_names(func), loop_names(func)
        renamed = {l.var: fresh_name(f"{l.var}_else", taken) for l in inside}
        choice = block.value
        first = replace(block, value=choice.a, guard=choice.cond)
        other = replace(
            block,
            name=fresh_name(f"{block.name}_else", names),
            value=choice.b,
            guard=call("not", choice.cond),
            binds=tuple(_renamed(b, renamed) for b in block.binds),
        )
        parts: list[Stmt] = [first, other]
        for loop in reversed(inside):
            parts = [loop.around(parts[0]), replace(loop, var=renamed[loop.var], body=parts[1])]

        def rule(s: Stmt) -> Stmt | None:
            return seq(*parts) if s is top else None

        body = rewrite_stmt(func.body, rule)
        assert body is not None
        assert any(s is parts[0] for s in walk_stmt(body))
        return func.with_(body=body)


def _depends(block: Block, loop: str) -> bool:
    """Tell whether what a block chooses depends on a loop."""
    assert isinstance(block.value, Select)
    return loop in variables(bound_expr(block, block.value.cond))


def _renamed(expr: Expr, names: dict[str, str]) -> Expr:
    return substitute(expr, {old: Var(INDEX, new) for old, new in names.items()})
