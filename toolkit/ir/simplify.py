"""Index arithmetic: linear forms, bounds, and simplification under known variable ranges."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from toolkit.ir.expr import (
    Binary,
    binary,
    Const,
    Expr,
    INDEX,
    rewrite,
    Select,
    Var,
)

Ranges = Mapping[str, tuple[int, int]]
"""Inclusive bounds of variables."""

Linear = tuple[dict[Expr, int], int]
"""Coefficients of atoms (variables and non-linear terms), and a constant."""


def linear(expr: Expr) -> Linear:
    """Write an index expression as a sum of atoms times integers plus a constant."""
    match expr:
        case Const():
            return {}, int(expr.value)
        case Binary(op="add" | "sub"):
            left, c = linear(expr.a)
            right, d = linear(expr.b)
            sign = 1 if expr.op == "add" else -1
            terms = dict(left)
            for atom, k in right.items():
                k = terms.get(atom, 0) + sign * k
                if k:
                    terms[atom] = k
                else:
                    del terms[atom]
            return terms, c + sign * d
        case Binary(op="mul"):
            for this, other in ((expr.a, expr.b), (expr.b, expr.a)):
                terms, c = linear(this)
                if not terms:
                    scaled, d = linear(other)
                    return ({atom: k * c for atom, k in scaled.items()} if c else {}), c * d
    return {expr: 1}, 0


def from_linear(terms: Mapping[Expr, int], constant: int) -> Expr:
    """Rebuild an expression; positive terms come first so that no term needs a unary minus."""
    result: Expr | None = None
    for atom, k in sorted(terms.items(), key=lambda item: item[1] < 0):
        term = atom if abs(k) == 1 else binary("mul", atom, abs(k))
        if result is None:
            result = term if k > 0 else binary("mul", atom, k)
        else:
            result = binary("add" if k > 0 else "sub", result, term)
    if result is None:
        return Const(INDEX, constant)
    return binary("add" if constant >= 0 else "sub", result, abs(constant))


def bounds(expr: Expr, ranges: Ranges) -> tuple[int, int] | None:
    """Return inclusive bounds of an index expression, None where they are not known."""
    match expr:
        case Const():
            return int(expr.value), int(expr.value)
        case Var():
            return ranges.get(expr.name)
        case Binary():
            left, right = bounds(expr.a, ranges), bounds(expr.b, ranges)
            if expr.op == "floormod" and right and right[0] > 0:
                inside = left and 0 <= left[0] and left[1] < right[0]
                return left if inside else (0, right[1] - 1)
            if left is None or right is None:
                return None
            (a, b), (c, d) = left, right
            match expr.op:
                case "add":
                    return a + c, b + d
                case "sub":
                    return a - d, b - c
                case "mul":
                    corners = (a * c, a * d, b * c, b * d)
                    return min(corners), max(corners)
                case "floordiv" if c > 0:
                    return min(a // c, a // d), max(b // c, b // d)
                case "min":
                    return min(a, c), min(b, d)
                case "max":
                    return max(a, c), max(b, d)
        case Select():
            left, right = bounds(expr.a, ranges), bounds(expr.b, ranges)
            if left and right:
                return min(left[0], right[0]), max(left[1], right[1])
    return None


def _linear_bounds(
    terms: Mapping[Expr, int], constant: int, ranges: Ranges
) -> tuple[int, int] | None:
    lo = hi = constant
    for atom, k in terms.items():
        inner = bounds(atom, ranges)
        if inner is None:
            return None
        lo += min(k * inner[0], k * inner[1])
        hi += max(k * inner[0], k * inner[1])
    return lo, hi


def _divide(a: Expr, c: int, ranges: Ranges, want_mod: bool) -> Expr | None:
    """Simplify a // c or a % c by splitting off the multiples of c; None if nothing is gained."""
    terms, constant = linear(a)
    whole = {atom: k // c for atom, k in terms.items() if k % c == 0}
    rest = {atom: k for atom, k in terms.items() if k % c}
    high, low = divmod(constant, c)
    inside = _linear_bounds(rest, low, ranges)
    if inside is not None and inside[0] // c == inside[1] // c:
        step = inside[0] // c
        if want_mod:
            return from_linear(rest, low - step * c)
        return from_linear(whole, high + step)
    if not whole and not high:
        return None
    remainder = from_linear(rest, low)
    if want_mod:
        return binary("floormod", remainder, c)
    return binary("add", from_linear(whole, high), binary("floordiv", remainder, c))


def _join(terms: Mapping[Expr, int]) -> Linear | None:
    """Put x // c * c + x % c together to x in the terms of a sum; None if there is no such pair."""
    for rest, k in terms.items():
        if not isinstance(rest, Binary) or rest.op != "floormod":
            continue
        whole = Binary(INDEX, "floordiv", rest.a, rest.b)
        if isinstance(rest.b, Const) and terms.get(whole) == k * int(rest.b.value):
            others = {a: n for a, n in terms.items() if a not in (rest, whole)}
            return linear(binary("add", from_linear(others, 0), binary("mul", rest.a, k)))
    return None


def _compare(op: str, a: Expr, b: Expr, ranges: Ranges) -> Expr | None:
    terms, constant = linear(binary("sub", a, b))
    known = _linear_bounds(terms, constant, ranges)
    if known is None:
        return None
    lo, hi = known
    match op:
        case "lt":
            verdict = True if hi < 0 else False if lo >= 0 else None
        case "le":
            verdict = True if hi <= 0 else False if lo > 0 else None
        case _:
            verdict = True if lo == hi == 0 else False if lo > 0 or hi < 0 else None
            if verdict is not None and op == "ne":
                verdict = not verdict
    return None if verdict is None else Const("bool", verdict)


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """Simplify the index arithmetic and conditions in `expr`, given inclusive variable bounds."""

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Binary):
            return None
        if e.dtype == INDEX:
            if e.op in ("add", "sub", "mul"):
                terms, constant = linear(e)
                if (joined := _join(terms)) is not None:
                    whole = from_linear(joined[0], constant + joined[1])
                    again = rule(whole)
                    return whole if again is None else again
                if len(terms) < 2 or any(isinstance(x, Const) for x in (e.a, e.b)) or _repeats(e):
                    collected = from_linear(terms, constant)
                    return None if collected == e else collected
                return None
            if e.op in ("floordiv", "floormod") and isinstance(e.b, Const) and e.b.value > 0:
                return _divide(e.a, int(e.b.value), ranges, e.op == "floormod")
            if e.op in ("min", "max"):
                order = _compare("le", e.a, e.b, ranges)
                if isinstance(order, Const):
                    return e.a if order.value == (e.op == "min") else e.b
                order = _compare("le", e.b, e.a, ranges)
                if isinstance(order, Const):
                    return e.b if order.value == (e.op == "min") else e.a
        elif e.op in ("lt", "le", "eq", "ne") and e.a.dtype == INDEX:
            return _compare(e.op, e.a, e.b, ranges)
        return None

    return rewrite(expr, rule)


@lru_cache(maxsize=4096)
def _repeats(expr: Binary) -> bool:
    """Tell whether collecting the terms of a sum makes it shorter."""

    def count(e: Expr) -> int:
        if isinstance(e, Binary) and e.dtype == INDEX and e.op in ("add", "sub"):
            return count(e.a) + count(e.b)
        return 1

    terms, constant = linear(expr)
    return count(expr) > len(terms) + (1 if constant else 0)
