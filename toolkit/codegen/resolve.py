"""Expressions of the copies that unrolled loops leave: their values put in, and simplified.

Copies of a statement share most subexpressions.  So the answer about each subexpression is kept
with the values of the unrolled loops in it: a copy costs what is new in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from toolkit.ir.expr import (
    Binary,
    binary,
    Const,
    Expr,
    INDEX,
    Select,
    select,
    Var,
    variables,
    with_parts,
)
from toolkit.ir.loop import Buffer
from toolkit.ir.simplify import Simplifier

Env = Mapping[str, Expr]
"""Loops that are unrolled, with the value they have in this copy: one of `Resolver.value`."""

_Key = tuple[int, ...]


class Resolver:
    """Resolves the expressions of one function.  `unrolled`: the loops that may be given values.

    Expressions and values are told apart by identity, so whatever an answer depends on is kept.
    """

    def __init__(
        self,
        buffers: Mapping[str, Buffer],
        unrolled: Iterable[str],
        ranges: dict[str, tuple[int, int]],
    ) -> None:
        self.buffers = buffers
        self.unrolled = frozenset(unrolled)
        self.ranges = ranges
        self.simplify = Simplifier(ranges)
        self._values: dict[tuple[str, int], Expr] = {}
        self._names: dict[int, tuple[Expr, tuple[str, ...]]] = {}
        self._resolved: dict[_Key, tuple[Expr, Env]] = {}
        self._put: dict[_Key, tuple[Expr, Env]] = {}
        self._chosen: dict[_Key, tuple[Expr, Env]] = {}
        self._made: dict[tuple[str, int, int], tuple[Expr, Expr, Expr]] = {}
        self._subscripts: dict[tuple[str, _Key], tuple[tuple[Expr, ...], Expr]] = {}

    def value(self, number: int, lane: str = "") -> Expr:
        """Return a literal, or with `lane` that variable plus a literal; always the same object."""
        found = self._values.get((lane, number))
        if found is None:
            found = binary("add", Var(INDEX, lane), number) if lane else Const(INDEX, number)
            self._values[lane, number] = found
        return found

    def resolve(self, expr: Expr, env: Env) -> Expr:
        """Put the values of unrolled loops into an expression and simplify it."""
        key = self._key(expr, env)
        if key is None:
            return self.simplify(self.chosen(expr, env))
        found = self._resolved.get(key)
        if found is None:
            result = self.simplify(self.put(self.chosen(expr, env), env))
            found = self._resolved[key] = result, env
        return found[0]

    def flat(self, buffer: str, indices: tuple[Expr, ...], env: Env) -> Expr:
        """Return the simplified row-major subscript of an element."""
        key = buffer, tuple(map(id, indices))
        found = self._subscripts.get(key)
        if found is None:
            found = self._subscripts[key] = indices, self._row_major(buffer, indices)
        return self.resolve(found[1], env)

    def _row_major(self, buffer: str, indices: tuple[Expr, ...]) -> Expr:
        flat = self.value(0)
        stride = 1
        shape = self.buffers[buffer].shape
        for index, extent in zip(reversed(indices), reversed(shape), strict=True):
            if extent != 1:
                flat = self._same("add", self._same("mul", index, self.value(stride)), flat)
            stride *= extent
        return flat

    def _same(self, op: str, a: Expr, b: Expr) -> Expr:
        """Return `binary(op, a, b)`: the same object for the same operands."""
        key = op, id(a), id(b)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = binary(op, a, b), a, b
        return found[0]

    def put(self, expr: Expr, env: Env) -> Expr:
        """Put the values of unrolled loops into an expression."""
        key = self._key(expr, env)
        if key is None:
            return expr
        found = self._put.get(key)
        if found is None:
            if isinstance(expr, Var):
                result = env.get(expr.name, expr)
            else:
                result = with_parts(expr, lambda part: self.put(part, env))
            found = self._put[key] = result, env
        return found[0]

    def chosen(self, expr: Expr, env: Env) -> Expr:
        """Return the value without the sides that unrolled loops do not choose.

        From the top, so that nothing is put into those sides: a transform has one a row.
        """
        if not isinstance(expr, Select) and (
            not isinstance(expr, Binary) or expr.dtype in (INDEX, "bool")
        ):
            return expr
        key = self._key(expr, env) or (id(expr),)
        found = self._chosen.get(key)
        if found is None:
            found = self._chosen[key] = self._choose(expr, env), env
        return found[0]

    def _choose(self, expr: Select | Binary, env: Env) -> Expr:
        if isinstance(expr, Binary):
            a, b = self.chosen(expr.a, env), self.chosen(expr.b, env)
            return expr if a is expr.a and b is expr.b else binary(expr.op, a, b)
        cond = self.resolve(expr.cond, env)
        if isinstance(cond, Const):
            return self.chosen(expr.a if cond.value else expr.b, env)
        return select(expr.cond, self.chosen(expr.a, env), self.chosen(expr.b, env))

    def _key(self, expr: Expr, env: Env) -> _Key | None:
        """Return what the answer about an expression depends on; None if on no unrolled loop."""
        found = self._names.get(id(expr))
        if found is None:
            names = tuple(sorted(variables(expr) & self.unrolled))
            found = self._names[id(expr)] = expr, names
        names = found[1]
        if not names:
            return None
        return (id(expr), *map(id, map(env.get, names)))


__all__ = ["Env", "Resolver"]
