"""Vectorised stores: a block whose innermost loop runs in the lanes of vectors, as intrinsics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.codegen.tensor import lanes_left
from toolkit.ir.compute import reduce_identity
from toolkit.ir.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    INDEX,
    Load,
    loads,
    Select,
    substitute,
    Var,
    variables,
)
from toolkit.ir.loop import Block, REGISTER
from toolkit.ir.simplify import bounds, linear, simplify
from toolkit.targets.isa import VectorType

if TYPE_CHECKING:
    from toolkit.codegen.kernel import KernelPrinter

_SCALAR_CALL = {
    "exp": "expf", "log": "logf", "log1p": "log1pf", "sin": "sinf", "cos": "cosf", "tan": "tanf",
    "asin": "asinf", "acos": "acosf", "atan": "atanf", "sinh": "sinhf", "cosh": "coshf",
    "tanh": "tanhf", "asinh": "asinhf", "acosh": "acoshf", "atanh": "atanhf", "erf": "erff",
    "trunc": "truncf", "sigmoid": "nst_sigmoid_float32",
}  # fmt: skip


class NotVectorizable(Exception):
    """The statement has no vector form on this instruction set; it is printed as a plain loop."""


class VectorPrinter:
    """Prints stores with the loop `var` in vector lanes."""

    def __init__(self, outer: KernelPrinter, var: str, lanes: int) -> None:
        self.outer = outer
        self.var = var
        self.lanes = lanes
        self.count: str | None = None
        """C text of the number of lanes in use, None for all; `known_count`: at most so many."""
        self.known_count = lanes

    def store(
        self, block: Block, tests: Sequence[Expr], count: int
    ) -> tuple[list[str], list[Expr]]:
        """Return the statements of a vector of `count` elements, and tests that stay scalar."""
        outer = self.outer
        dtype = outer.buffers[block.buffer].dtype
        vector = outer.isa.vectors.get(dtype)
        if vector is None:
            raise NotVectorizable
        uniform: list[Expr] = []
        self.count = None if count == self.lanes else str(count)
        self.known_count = count
        whole: list[Expr] = []
        for test in tests:
            test = outer.resolve(test)
            if self.var not in variables(test):
                uniform.append(substitute(test, {}))
                continue
            left = self._lanes_left(test)
            low = bounds(left, outer.ranges)
            if low is not None and low[0] >= count:
                continue
            if self.count is not None:
                raise NotVectorizable
            lanes_text = outer.expr.text(left)
            self.count = f"nst_clamp_count({lanes_text}, {count})"
            whole.append(left)
        flat = outer.flat(block.buffer, block.indices)
        value = outer.resolve(block.value)
        stride = self._stride(flat)
        if stride == 0 and block.reduce in ("sum", "max", "min"):
            return [self._across(block, flat, value, vector)], uniform
        if stride != 1:
            raise NotVectorizable
        target = self._address_base(flat)
        register = outer.buffers[block.buffer].scope == REGISTER
        if block.reduce is None:
            return [
                self._write(block.buffer, target, self.vec(value, vector), vector, register)
            ], uniform
        current = self._read(block.buffer, target, vector)
        # Lanes that a guard skips keep their value: beyond the end of a masked load lie zeros.
        skips = bool(whole) and register and not self._zero_beyond(block, value)
        if skips:
            neutral = outer.expr.text(reduce_identity(block.reduce, block.value.dtype))
            term = self._op(vector, "fill_n", self.vec(value, vector), str(self.count), neutral)
        else:
            term = self.vec(value, vector)
        if block.reduce in ("sum", "add"):
            if isinstance(value, Binary) and value.op == "mul" and not skips:
                text = self._op(
                    vector, "fma", self.vec(value.a, vector), self.vec(value.b, vector), current
                )
            else:
                text = self._op(vector, "add", current, term)
        elif block.reduce in ("max", "min"):
            text = self._op(vector, f"nan{block.reduce}", current, term)
        elif block.reduce == "prod":
            text = self._op(vector, "mul", current, term)
        else:
            raise NotVectorizable
        return [self._write(block.buffer, target, text, vector, register)], uniform

    def _zero_beyond(self, block: Block, value: Expr) -> bool:
        """Tell whether a sum's term is zero beyond the end: it has a masked load as factor."""
        if block.reduce not in ("sum", "add"):
            return False
        factors = (
            (value.a, value.b) if isinstance(value, Binary) and value.op == "mul" else (value,)
        )
        return any(isinstance(f, Load) and self.var in variables(f) for f in factors)

    def _across(self, block: Block, flat: Expr, value: Expr, vector: VectorType) -> str:
        """Return the statement that reduces the lanes of a vector into one element."""
        assert block.reduce is not None
        text = self.vec(value, vector)
        if self.count is not None:  # what lies beyond the end may hold anything by now
            neutral = reduce_identity(block.reduce, block.value.dtype)
            text = self._op(vector, "fill_n", text, str(self.count), self.outer.expr.text(neutral))
        text = self._op(vector, f"h{block.reduce}", text)
        target = self.outer.at(block.buffer, flat)
        if block.reduce == "sum":
            return f"{target} += {text};"
        return f"{target} = nst_{block.reduce}_{block.value.dtype}({target}, {text});"

    def _lanes_left(self, test: Expr) -> Expr:
        """Return how many lanes satisfy an upper bound on the lane variable."""
        left = lanes_left(test, self.var)
        if left is None:
            raise NotVectorizable
        return left

    def _stride(self, flat: Expr) -> int:
        """Return the distance in elements between lanes."""
        terms, _ = linear(flat)
        stride = terms.pop(Var(INDEX, self.var), 0)
        if any(self.var in variables(atom) for atom in terms):
            raise NotVectorizable
        return stride

    def _address_base(self, flat: Expr) -> Expr:
        """Return the subscript of the first lane."""
        if id(flat) not in self.outer.bases:
            first = substitute(flat, {self.var: Const(INDEX, 0)})
            self.outer.bases[id(flat)] = simplify(first, self.outer.ranges), flat
        return self.outer.bases[id(flat)][0]

    def _read(self, buffer: str, base: Expr, vector: VectorType) -> str:
        outer = self.outer
        if outer.buffers[buffer].scope == REGISTER:
            local = outer.local(buffer, base, self.lanes, self.known_count)
            if local is not None:
                return local
        address = f"&{outer.names[buffer]}[{outer.expr.text(base)}]"
        if self.count is None:
            text = vector.ops["load"].c.format(address)
        else:
            text = vector.ops["load_n"].c.format(address, self.count)
        if outer.buffers[buffer].scope == REGISTER:
            return text  # a local array may be written between two such loads
        return self._shared(text, vector)

    def _shared(self, text: str, vector: VectorType) -> str:
        """Remember a load or broadcast that several statements may share."""
        self.outer.shareable[text] = vector.c_type
        return text

    def _write(self, buffer: str, base: Expr, text: str, vector: VectorType, register: bool) -> str:
        outer = self.outer
        if register:
            local = outer.local(buffer, base, self.lanes, self.known_count)
            if local is not None:
                return f"{local} = {text};"
        address = f"&{outer.names[buffer]}[{outer.expr.text(base)}]"
        if self.count is not None:
            return vector.ops["store_n"].c.format(address, text, self.count) + ";"
        return vector.ops["store"].c.format(address, text) + ";"

    def _op(self, vector: VectorType, name: str, *args: str) -> str:
        if name not in vector.ops:
            raise NotVectorizable
        return vector.ops[name].c.format(*args)

    def vec(self, expr: Expr, vector: VectorType) -> str:
        """Return the vector text of an expression of the vector's element type."""
        outer = self.outer
        if self.var not in variables(expr):
            return self._shared(self._op(vector, "set1", outer.expr.text(expr)), vector)
        match expr:
            case Load():
                flat = outer.flat(expr.buffer, expr.indices)
                stride = self._stride(flat)
                if stride == 0:
                    return self._shared(
                        self._op(vector, "set1", outer.at(expr.buffer, flat)), vector
                    )
                if stride != 1 or outer.buffers[expr.buffer].dtype != "float32":
                    raise NotVectorizable
                return self._read(expr.buffer, self._address_base(flat), vector)
            case Binary(op="max" | "min"):
                return self._minmax(expr, vector)
            case Binary(op="add") if isinstance(expr.a, Binary) and expr.a.op == "mul":
                a, b = self.vec(expr.a.a, vector), self.vec(expr.a.b, vector)
                return self._op(vector, "fma", a, b, self.vec(expr.b, vector))
            case Binary(op="add" | "sub" | "mul" | "div"):
                return self._op(vector, expr.op, self.vec(expr.a, vector), self.vec(expr.b, vector))
            case Call(args=(arg,)):
                text = self.vec(arg, vector)
                if expr.fn in vector.ops:
                    return self._op(vector, expr.fn, text)
                if expr.fn in _SCALAR_CALL and "map" in vector.ops:
                    return self._op(vector, "map", text, _SCALAR_CALL[expr.fn])
                raise NotVectorizable
            case Select():
                return self._select(expr, vector)
            case Cast():
                raise NotVectorizable
        raise NotVectorizable

    def _minmax(self, expr: Binary, vector: VectorType) -> str:
        """max(x, c) with a literal c needs no care for NaN when x is the second operand."""
        a, b = expr.a, expr.b
        if isinstance(a, Const):
            a, b = b, a
        if isinstance(b, Const) and b.value == b.value:
            return self._op(vector, expr.op, self.vec(b, vector), self.vec(a, vector))
        return self._op(vector, f"nan{expr.op}", self.vec(a, vector), self.vec(b, vector))

    def _check_loads(self, *arms: Expr) -> None:
        """Refuse sides that may lie outside their buffers where they are not chosen."""
        outer = self.outer
        for arm in arms:
            for load in loads(arm):
                for index, size in zip(load.indices, outer.buffers[load.buffer].shape, strict=True):
                    reach = bounds(outer.resolve(index), outer.ranges)
                    if reach is None or reach[0] < 0 or reach[1] >= size:
                        raise NotVectorizable

    def _select(self, expr: Select, vector: VectorType) -> str:
        cond = expr.cond
        a, b = self.vec(expr.a, vector), self.vec(expr.b, vector)
        if self.var not in variables(cond):
            return f"({self.outer.expr.text(cond)} ? {a} : {b})"
        if (
            isinstance(cond, Binary)
            and cond.op in ("lt", "le", "eq", "ne")
            and cond.a.dtype == "float32"
        ):
            self._check_loads(expr.a, expr.b)
            left, right = self.vec(cond.a, vector), self.vec(cond.b, vector)
            return self._op(vector, f"select_{cond.op}", left, right, a, b)
        raise NotVectorizable
