"""Tensorize: one instruction, or a few, instead of a small nest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.expr import conjuncts, variables
from toolkit.ir.loop import (
    Block,
    Loop,
    nest_of,
    PrimFunc,
    REDUCE,
    replace_loop,
    rewrite_stmt,
    Stmt,
    TENSORIZE,
    walk_stmt,
)
from toolkit.ir.regions import bound_expr, loop_ranges
from toolkit.ir.simplify import Ranges, simplify
from toolkit.ir.unify import flat_of, Mismatch, nest_loops, unify
from toolkit.schedule.examples import byte_products
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.decompose_reduction import DecomposeReduction
from toolkit.targets.isas import TENSOR_INTRINSICS


@dataclass(frozen=True, slots=True)
class Tensorize(Step):
    """Compute the nest at `loop` by the tensor intrinsic of that name (`targets/isas/`).

    The loops from `loop` on are those of the intrinsic: of its extents, around one block of its
    value, whose operands lie in memory as it reads them.  The nest keeps its meaning; other
    instruction sets print it as loops.  Where the block's reduction starts inside the nest, its
    initial value is set in front of it.

    Before::                            After (intrinsic="neon_dot4_s8s8")::

        for j in 4:                         for j_init in 4:
          for k in 4:                         t_init: t[j] = 0
            t: t[j] sum= a[k] * w[j, k]     for j in 4:  # intrinsic: neon_dot4_s8s8
                                              for k in 4:
                                                t: t[j] sum= a[k] * w[j, k]
    """

    loop: str
    intrinsic: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return byte_products(), cls("j", "neon_dot4_s8s8")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses unknown intrinsics and nests that compute something else, saying what differs."""
        intrinsic = TENSOR_INTRINSICS.get(self.intrinsic)
        if intrinsic is None:
            self.refuse(
                func,
                f"there is no tensor intrinsic {self.intrinsic!r}.",
                f"known: {', '.join(TENSOR_INTRINSICS)}",
            )
        loop = self.find_loop(func, self.loop)
        ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
        buffers = func.buffers()
        over = {name: operand.over for name, operand in intrinsic.operands.items()}
        dtypes = {name: b.dtype for name, b in buffers.items()}
        why: Mismatch | None = None
        try:
            loops, block = nest_loops(loop)
            flat = flat_of(block, buffers, ranges)
            _, names = unify(intrinsic.nest, loop, flat, dtypes, over)
        except Mismatch as error:
            why = error
        if why is not None:
            self.refuse(func, str(why), why.hint)
        tail = names[intrinsic.tail] if intrinsic.tail else None
        self._check_guard(func, block, {l.var for l in loops}, tail, ranges)
        around, _ = nest_of(func.body, block.name)
        if not block.update_only and self._starts_inside(around, loops, block):
            func = DecomposeReduction(block.name, self.loop).apply(func)
            loop = self.find_loop(func, self.loop)
        note = ("intrinsic", self.intrinsic)
        inner = {l.var for l in loops}

        def mark(s: Stmt) -> Stmt | None:
            if not isinstance(s, Loop) or s.var not in inner:
                return None
            kept = tuple(n for n in s.notes if n[0] != "intrinsic")
            return replace(s, kind=TENSORIZE, notes=(*kept, note) if s.var == self.loop else kept)

        marked = rewrite_stmt(loop, mark)
        assert marked is not None
        return func.with_(body=replace_loop(func.body, loop, marked))

    def _check_guard(
        self, func: PrimFunc, block: Block, inner: set[str], tail: str | None, ranges: Ranges
    ) -> None:
        """Refuse guards that skip some iterations of the nest and not others, but for a tail."""
        for test in conjuncts(block.guard):
            test = simplify(bound_expr(block, test), ranges)
            inside = variables(test) & inner
            if inside and inside != {tail}:
                self.refuse(
                    func,
                    f"the guard of block {block.name!r} skips iterations of loop {min(inside)!r}.",
                    "pad the constant operand, or partition the loop outside.",
                )

    def _starts_inside(self, around: list[Loop], loops: list[Loop], block: Block) -> bool:
        """Tell whether the outermost of the block's reduce loops lies below `loop`."""
        driving: set[str] = set()
        for axis, bind in zip(block.axes, block.binds, strict=True):
            if axis.role == REDUCE:
                driving |= variables(bind)
        first = next((l.var for l in around if l.var in driving), None)
        return first in {l.var for l in loops[1:]}
