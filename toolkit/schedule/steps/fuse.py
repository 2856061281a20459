"""Fuse: two nested loops become one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.expr import binary, INDEX, substitute, Var
from toolkit.ir.loop import Block, Loop, PrimFunc, replace_loop, rewrite_stmt, Stmt
from toolkit.schedule.examples import copy_rows
from toolkit.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class Fuse(Step):
    """Fuse `outer` and the loop `inner` directly inside it into one loop named `outer+inner`.

    Before::                        After::

        for i in 4:                     for i+j in 32:
          for j in 8:                     y: y[i, j] = a[i, j]  # i=i+j // 8, j=i+j % 8
            y: y[i, j] = a[i, j]
    """

    outer: str
    inner: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return copy_rows(), cls("i", "j")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses loops that are not directly nested or of different roles."""
        outer = self.find_loop(func, self.outer)
        inner = outer.body
        if not isinstance(inner, Loop) or inner.var != self.inner:
            self.refuse(func, f"loop {self.inner!r} is not the only statement in {self.outer!r}.")
        if inner.role != outer.role:
            self.refuse(func, f"loop {self.outer!r} is {outer.role}, {self.inner!r} {inner.role}.")
        name = f"{outer.var}+{inner.var}"
        fused = Var(INDEX, name)
        values = {
            outer.var: binary("floordiv", fused, inner.extent),
            inner.var: binary("floormod", fused, inner.extent),
        }

        def rule(s: Stmt) -> Stmt | None:
            if not isinstance(s, Block):
                return None
            return replace(s, binds=tuple(substitute(b, values) for b in s.binds))

        body = rewrite_stmt(inner.body, rule)
        assert body is not None
        loop = Loop(name, outer.extent * inner.extent, outer.role, outer.kind, body)
        return func.with_(body=replace_loop(func.body, outer, loop))
