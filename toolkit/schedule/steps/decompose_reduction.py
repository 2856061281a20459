"""DecomposeReduction: the initialisation of a reduction as a block of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.coverage import apart, each_once, inner_terms
from toolkit.ir.expr import Expr, INDEX, loads, substitute, Var
from toolkit.ir.expr import variables as variables_of
from toolkit.ir.initialise import init_nest
from toolkit.ir.loop import (
    Block,
    blocks,
    fresh_name,
    Loop,
    PrimFunc,
    REDUCE,
    replace_loop,
    rewrite_stmt,
    seq,
    Stmt,
    walk_stmt,
)
from toolkit.ir.regions import loop_ranges, writes
from toolkit.schedule.examples import row_sums
from toolkit.schedule.steps.base import block_names, loop_names, Step


@dataclass(frozen=True, slots=True)
class DecomposeReduction(Step):
    """Initialise, in a nest before `loop`, the elements that the block updates in the loop.

    Without this step that happens before the outermost of the block's reduce loops.

    Before::                        After (loop="i")::

        for i in 8:                     for i_init in 8:
          for k in 16:                    y_init: y[i] = 0
            y: y[i] sum= a[i, k]        for i in 8:
                                          for k in 16:
                                            y: y[i] sum= a[i, k]
    """

    block: str
    loop: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return row_sums(), cls("y", "i")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses loops inside the reduction, and those that update an element anew."""
        loops, block = self.find(func, self.block)
        at = next((n for n, l in enumerate(loops) if l.var == self.loop), None)
        if at is None:
            self.refuse(func, f"loop {self.loop!r} is not around block {block.name!r}.")
        if block.reduce is None or block.update_only:
            self.refuse(func, f"block {block.name!r} initialises nothing.")
        reducing: set[str] = set()
        for axis, bind in zip(block.axes, block.binds, strict=True):
            if axis.role == REDUCE:
                reducing |= variables_of(bind)
        first = next((n for n, l in enumerate(loops) if l.var in reducing), len(loops))
        if at > first:
            self.refuse(
                func,
                f"loop {self.loop!r} is inside reduce loop {loops[first].var!r} of block "
                f"{block.name!r}.",
            )
        if at < first:
            self._check_once(func, loops, at, first)
        top = loops[at]
        if sum(b.buffer == block.buffer for b in blocks(top)) > 1:
            self.refuse(func, f"buffer {block.buffer!r} is written by more than one block.")
        needed = set() if block.init is None else {load.buffer for load in loads(block.init)}
        if needed & writes(top):
            self.refuse(func, f"the initial value of block {block.name!r} is made in the loop.")
        ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
        nest = init_nest(top, block, ranges)
        taken = loop_names(func)
        names = {
            s.var: fresh_name(f"{s.var}_init", taken)
            for s in walk_stmt(nest)
            if isinstance(s, Loop)
        }
        name = fresh_name(f"{block.name}_init", block_names(func))
        values: dict[str, Expr] = {var: Var(INDEX, fresh) for var, fresh in names.items()}

        def own(s: Stmt) -> Stmt | None:
            if isinstance(s, Loop):
                return replace(s, var=names[s.var])
            assert isinstance(s, Block)
            return replace(s, name=name, binds=tuple(substitute(b, values) for b in s.binds))

        def update(s: Stmt) -> Stmt | None:
            return replace(block, update_only=True) if s is block else None

        init, updating = rewrite_stmt(nest, own), rewrite_stmt(top, update)
        assert init is not None
        assert updating is not None
        return func.with_(body=replace_loop(func.body, top, seq(init, updating)))

    def _check_once(self, func: PrimFunc, loops: list[Loop], at: int, first: int) -> None:
        """Refuse where iterations of the loops up to the reduction start the same element anew."""
        _, block = self.find(func, self.block)
        ranges = loop_ranges(loops)
        parts = []
        for axis, bind in zip(block.axes, block.binds, strict=True):
            if axis.name not in {i.name for i in block.indices if isinstance(i, Var)}:
                continue
            terms = inner_terms(bind, {l.var for l in loops[:at]}, ranges)
            if terms is None or not each_once(terms):
                self.refuse(func, f"loop {self.loop!r} starts elements of {block.buffer!r} anew.")
            parts.append(terms)
        driving = {name for terms in parts for name, _, _ in terms}
        if not apart(parts) or any(l.var not in driving for l in loops[at:first]):
            self.refuse(func, f"loop {self.loop!r} starts elements of {block.buffer!r} anew.")
