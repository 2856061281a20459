"""WidenRead: a copy of what one iteration of a loop reads of an operand, in a wider type."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.expr import Cast, cast, Expr, Load
from toolkit.ir.loop import Block, map_block, PrimFunc, rewrite_stmt, Stmt
from toolkit.ir.types import DTYPES, int_range, is_float
from toolkit.schedule.examples import byte_products
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_read import CacheRead


@dataclass(frozen=True, slots=True)
class WidenRead(Step):
    """Copy the region of `operand` that an iteration of `loop` reads, as elements of `dtype`.

    What the block computes from the operand by casts, it computes from the copy: once for all that
    is computed in the loop.

    Before::                            After (loop="j", dtype="int16")::

        for j in 4:                         for j in 4:
          for k in 4:                         for r0 in 4:
            t: t[j] sum= a[k] * w[j, k]         t_a: a_t[d0] = int16(a[d0])  # d0=r0
                                              for k in 4:
                                                t: t[j] sum= a_t[k] * w[j, k]
    """

    block: str
    operand: str
    loop: str
    dtype: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return byte_products(), cls("t", "a", "j", "int16")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses what `CacheRead` refuses, and types that do not hold every value."""
        kinds = {b.name: b.dtype for b in func.buffers().values()}
        own = kinds.get(self.operand)
        if own is not None and not _holds(own, self.dtype):
            self.refuse(func, f"{self.dtype} does not hold every value of {own}.")
        copied = CacheRead(self.block, self.operand, self.loop).apply(func)
        cache = copied.locals[-1]
        wide = replace(cache, dtype=self.dtype)

        def read(e: Expr) -> Expr | None:
            match e:
                case Load(buffer=buffer) if buffer == cache.name and e.dtype == cache.dtype:
                    return Cast(cache.dtype, Load(wide.dtype, e.buffer, e.indices))
                case Cast(a=Cast(a=Load(buffer=buffer) as load)) if buffer == cache.name:
                    return cast(load, e.dtype)
            return None

        def rule(s: Stmt) -> Stmt | None:
            if not isinstance(s, Block):
                return None
            if s.buffer == cache.name:
                return replace(s, value=cast(s.value, wide.dtype))
            return map_block(s, read)

        body = rewrite_stmt(copied.body, rule)
        assert body is not None
        return copied.with_(body=body, locals=(*copied.locals[:-1], wide))


def _holds(narrow: str, wide: str) -> bool:
    """Tell whether an integer type holds every value of another, smaller one."""
    if wide not in DTYPES or is_float(wide) or is_float(narrow) or "bool" in (narrow, wide):
        return False
    (low, high), (least, most) = int_range(narrow), int_range(wide)
    return least <= low and high <= most and narrow != wide
