"""ShiftOperand: signed bytes counted from -128, for instructions that take unsigned ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.compute import Axis
from toolkit.ir.expr import Binary, binary, Cast, cast, Const, Expr, INDEX, Load, loads, Var
from toolkit.ir.expr import variables as variables_of
from toolkit.ir.loop import (
    Block,
    Buffer,
    fresh_name,
    PrimFunc,
    REDUCE,
    rewrite_stmt,
    SCRATCH,
    seq,
    SPATIAL,
    Stmt,
    wrap,
)
from toolkit.ir.types import DTYPES
from toolkit.schedule.examples import byte_products
from toolkit.schedule.steps.base import block_names, loop_names, Step

OFFSET = 128


@dataclass(frozen=True, slots=True)
class ShiftOperand(Step):
    """Sum (operand + 128) * w instead of operand * w, starting from -128 times the sums of w.

    operand + 128 is the byte with its sign changed over, unsigned.  Integers wrap, so that the
    result is the same to the bit.

    Before::                            After::

        for j in 4:                         for j_sums in 4:
          for k in 4:                         for k_sums in 4:
            t: t[j] sum= a[k] * w[j, k]         t_sums: t_sums[j] sum= w[j, k]
                                            for j in 4:
                                              for k in 4:
                                                t: t[j] sum= (a[k] ^ 128) * w[j, k]
                                                   # from t[j] = -128 * t_sums[j]
    """

    block: str
    operand: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return byte_products(), cls("t", "a")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses what is no sum of products with a signed byte, and loops changed before."""
        loops, block = self.find(func, self.block)
        factors = self._factors(block)
        if block.reduce != "sum" or factors is None:
            self.refuse(
                func, f"block {block.name!r} sums no products of {self.operand!r} in signed bytes."
            )
        if block.update_only or block.init is not None or block.guard is not None:
            self.refuse(func, f"block {block.name!r} is guarded or starts from a value.")
        _, other = factors
        inputs = {b.name for b in func.inputs}
        made = sorted(l.buffer for l in loads(other) if l.buffer not in inputs)
        if made:
            self.refuse(func, f"{made[0]!r} is no input: its sums are not known at the start.")
        extents = {l.var: l.extent for l in loops}
        for axis, bind in zip(block.axes, block.binds, strict=True):
            if not isinstance(bind, Var) or extents[bind.name] != axis.extent:
                self.refuse(func, f"the loops of block {block.name!r} were transformed before.")
        dtype = block.value.dtype
        axes = [a for a in block.axes if a.role == REDUCE or a.name in variables_of(other)]
        kept = [a for a in axes if a.role == SPATIAL]
        sums = Buffer(
            fresh_name(f"{block.name}_sums", set(func.buffers())),
            tuple(a.extent for a in kept), dtype, SCRATCH,
        )  # fmt: skip
        index = tuple(Var(INDEX, a.name) for a in kept)
        nest = self._nest(func, axes, sums, index, other)
        start = binary("mul", Const(dtype, -OFFSET), Load(dtype, sums.name, index))

        def rule(s: Stmt) -> Stmt | None:
            if not isinstance(s, Block) or s.name != block.name:
                return None
            return replace(s, init=start, value=self._shifted(s.value))

        body = rewrite_stmt(func.body, rule)
        assert body is not None
        return func.with_(body=seq(nest, body), locals=(*func.locals, sums))

    def _nest(
        self, func: PrimFunc, axes: list[Axis], sums: Buffer, index: tuple[Expr, ...], other: Expr
    ) -> Stmt:
        """Return the nest that sums the other factor over the reduce axes."""
        taken = loop_names(func)
        names = [fresh_name(f"{a.name}_sums", taken) for a in axes]
        block = Block(
            fresh_name(sums.name, block_names(func)), tuple(axes),
            tuple(Var(INDEX, n) for n in names), sums.name, index, other, "sum",
        )  # fmt: skip
        return wrap([(n, a.extent, a.role) for n, a in zip(names, axes, strict=True)], block)

    def _factors(self, block: Block) -> tuple[Expr, Expr] | None:
        """Return the operand's factor and the other one."""
        match block.value:
            case Binary(op="mul", a=a, b=b) if DTYPES[block.value.dtype].kind == "i":
                for own, other in ((a, b), (b, a)):
                    match own:
                        case Cast(a=Load(dtype="int8", buffer=buffer)) if buffer == self.operand:
                            if all(l.buffer != self.operand for l in loads(other)):
                                return own, other
        return None

    def _shifted(self, value: Expr) -> Expr:
        """Return the product with the operand's factor shifted."""
        assert isinstance(value, Binary)

        def factor(e: Expr) -> Expr:
            if isinstance(e, Cast) and isinstance(e.a, Load) and e.a.buffer == self.operand:
                return cast(binary("xor", cast(e.a, "uint8"), OFFSET), e.dtype)
            return e

        return Binary(value.dtype, "mul", factor(value.a), factor(value.b))
