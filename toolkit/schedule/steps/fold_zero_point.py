"""FoldZeroPoint: a zero point leaves a sum of products, and its share goes into the bias."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder, reduce_axis, sum
from toolkit.ir.expr import Binary, Cast, cast, Const, Expr, Load, loads, Var, walk
from toolkit.ir.loop import Block, blocks, CONST, PrimFunc, rewrite_stmt, SPATIAL, Stmt
from toolkit.ir.regions import block_loads
from toolkit.ir.types import int_range
from toolkit.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class FoldZeroPoint(Step):
    """Sum x * w instead of (x - zero) * w, and add bias - zero * (sum of w) instead of the bias.

    The constant `bias`, added to the sums where they are read, gets other data; `dim` is the
    dimension of the weights that runs along it.  With a `multiplier`, the bias of int64 is added to
    the sums times that constant.  The result is the same to the bit.  Nothing may skip a product:
    `PadRead` first makes a copy with the zero point around it.

    Before::                                    After (zero=3)::

        for j in 4:                                 for j in 4:
          for k in 6:                                 for k in 6:
            t: t[j] sum= (a[k] - 3) * w[k, j]           t: t[j] sum= a[k] * w[k, j]
        for j_2 in 4:                               for j_2 in 4:
          y: y[j] = t[j] + b[j]                       y: y[j] = t[j] + b[j]    # other data
    """

    block: str
    operand: str
    weight: str
    bias: str
    zero: int
    dim: int
    multiplier: str = ""

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        a, k = placeholder((6,), "int8", "a"), reduce_axis(6, "k")
        w, b = placeholder((6, 4), "int8", "w", data=0), placeholder((4,), "int32", "b", data=0)
        t = compute((4,), lambda j: sum((cast(a[k], "int32") - 3) * cast(w[k, j], "int32"), k), "t")
        func = build([compute((4,), lambda j: t[j] + b[j], "y")], [a, w, b])
        return func, cls("t", "a", "w", "b", 3, 1)

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses sums of something else, guards, and a bias that is not added to every sum."""
        _, block = self.find(func, self.block)
        value = self._product(func, block)
        buffers = func.buffers()
        for name in (self.weight, self.bias, *((self.multiplier,) if self.multiplier else ())):
            if name not in buffers or buffers[name].scope != CONST:
                self.refuse(func, f"{name!r} is no constant.")
        if block.guard is not None or block.init is not None or block.update_only:
            self.refuse(func, f"block {block.name!r} skips products, or starts from a value.")
        [weight] = (l for l in block_loads(block) if l.buffer == self.weight)
        if not 0 <= self.dim < len(weight.indices):
            self.refuse(func, f"{self.weight!r} has {len(weight.indices)} dimensions.")
        channel = weight.indices[self.dim]
        spatial = {a.name for a in block.axes if a.role == SPATIAL}
        others = [i for n, i in enumerate(weight.indices) if n != self.dim]
        at = next((n for n, i in enumerate(block.indices) if i == channel), None)
        if at is None or not isinstance(channel, Var) or channel.name not in spatial:
            self.refuse(func, f"dimension {self.dim} of {self.weight!r} is none of the result's.")
        reduced = {i.name for i in others if isinstance(i, Var)}
        single = [i for i in others if isinstance(i, Const)]
        taps = {a.name for a in block.axes if a.role != SPATIAL}
        if reduced != taps or len(reduced) + len(single) != len(others):
            self.refuse(func, f"block {block.name!r} does not sum over all of {self.weight!r}.")
        self._check_bias(func, block, at)
        if self.multiplier and not self._fits(func, block):
            self.refuse(func, f"sums of block {block.name!r} may wrap, which products do not.")

        def rule(s: Stmt) -> Stmt | None:
            return replace(s, value=value) if isinstance(s, Block) and s is block else None

        body = rewrite_stmt(func.body, rule)
        assert body is not None
        return func.with_(body=body)

    def laid_out(self) -> str | None:
        """Return the bias."""
        return self.bias

    def layout_from(self) -> tuple[str, ...]:
        """Return the weights, and what sums are multiplied by."""
        return (self.weight, self.multiplier) if self.multiplier else (self.weight,)

    def layout_data(self, data: np.ndarray, *others: np.ndarray) -> np.ndarray:
        """Return the bias less the share of the zero point."""
        weight, *factor = others
        axes = tuple(d for d in range(weight.ndim) if d != self.dim)
        share = self.zero * weight.astype(np.int64).sum(axis=axes)
        if factor:
            share = share * factor[0].astype(np.int64)
        changed: np.ndarray = (data.astype(np.int64) - share).astype(data.dtype)
        return changed

    def layout_tag(self) -> str:
        """Return a tag of the zero point and the dimension; that of the weights is added to it."""
        return f"zero{self.zero}d{self.dim}{'m' if self.multiplier else ''}"

    def _product(self, func: PrimFunc, block: Block) -> Expr:
        """Return the product without its zero point."""
        product: Expr | None = None
        if block.reduce == "sum" and isinstance(block.value, Binary) and block.value.op == "mul":
            a, b = block.value.a, block.value.b
            for own, other in ((a, b), (b, a)):
                match own:
                    case Binary(op="sub", a=Cast(a=Load(buffer=x)) as wide, b=Const(value=zero)):
                        weights = [l.buffer for l in loads(other)]
                        if (x, zero, weights) == (self.operand, self.zero, [self.weight]):
                            pair = (wide, other) if own is a else (other, wide)
                            product = Binary(block.value.dtype, "mul", *pair)
        if product is None:
            what = f"{self.operand!r} - {self.zero} and {self.weight!r}"
            self.refuse(func, f"block {block.name!r} sums no products of {what}.")
        return product

    def _check_bias(self, func: PrimFunc, block: Block, at: int) -> None:
        """Refuse unless every sum that is read has its channel's bias added, and nothing else."""
        sums = block.buffer
        length = func.buffers()[self.bias].shape
        if length != (func.buffers()[sums].shape[at],):
            self.refuse(func, f"{self.bias!r} has not one element a channel.")
        if all(b.name != sums for b in func.locals):
            self.refuse(func, f"{sums!r} is a parameter of the function.")
        added = read = 0
        for reader in blocks(func.body):
            if reader is block:
                continue
            for e in walk(reader.value):
                read += isinstance(e, Load) and e.buffer in (sums, self.bias)
                if isinstance(e, Binary) and e.op == "add":
                    own, other = self._addends(e, sums)
                    if own is not None and other is not None:
                        added += other.indices == (own.indices[at],)
        if not added or read != 2 * added:
            self.refuse(func, f"{self.bias!r} is not added to every sum, or serves others too.")

    def _addends(self, e: Binary, sums: str) -> tuple[Load | None, Load | None]:
        """Return the loads of a sum and of the bias that is added to it, or to its product."""
        for own, other in ((e.a, e.b), (e.b, e.a)):
            if not isinstance(other, Load) or other.buffer != self.bias:
                continue
            if not self.multiplier:
                found = own if isinstance(own, Load) and own.buffer == sums else None
                return found, other
            match own:
                case Binary(op="mul", a=Cast(a=Load() as a), b=Cast(a=Load() as b)):
                    a, b = (a, b) if a.buffer == sums else (b, a)
                    same = b.buffer == self.multiplier and b.indices == other.indices
                    return (a if same and a.buffer == sums else None), other
        return None, None

    def _fits(self, func: PrimFunc, block: Block) -> bool:
        """Tell whether the sums, with and without the zero point, stay within their type."""
        types = [func.buffers()[n].dtype for n in (self.operand, self.weight)]
        most = math.prod(max(-low, high) for low, high in map(int_range, types))
        most += abs(self.zero) * max(-v if v < 0 else v for v in int_range(types[1]))
        depth = math.prod(a.extent for a in block.axes if a.role != SPATIAL)
        return depth * most <= int_range(block.value.dtype)[1]
