"""Index arithmetic: linear forms, bounds, and simplification under known variable ranges."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.ir.expr import (
    Binary,
    binary,
    by_identity,
    Const,
    Expr,
    INDEX,
    Select,
    Var,
    with_parts,
)

Ranges = Mapping[str, tuple[int, int]]
"""Inclusive bounds of variables."""

Linear = tuple[dict[Expr, int], int]
"""Coefficients of atoms (variables and non-linear terms), and a constant."""


def linear(expr: Expr) -> Linear:
    """Write an index expression as a sum of atoms times integers plus a constant."""
    terms, constant = _linear(expr)
    return dict(terms), constant


@by_identity
def _linear(expr: Expr) -> Linear:
    """Return `linear(expr)`, which nobody may change."""
    if isinstance(expr, Const):
        return {}, int(expr.value)
    if isinstance(expr, Binary):
        if expr.op in ("add", "sub"):
            left, c = _linear(expr.a)
            right, d = _linear(expr.b)
            sign = 1 if expr.op == "add" else -1
            if not right:
                return left, c + sign * d
            terms = dict(left)
            for atom, k in right.items():
                k = terms.get(atom, 0) + sign * k
                if k:
                    terms[atom] = k
                else:
                    del terms[atom]
            return terms, c + sign * d
        if expr.op == "mul":
            for this, other in ((expr.a, expr.b), (expr.b, expr.a)):
                terms, c = _linear(this)
                if not terms:
                    scaled, d = _linear(other)
                    return ({atom: k * c for atom, k in scaled.items()} if c else {}), c * d
    return {expr: 1}, 0


def from_linear(terms: Mapping[Expr, int], constant: int) -> Expr:
    """Rebuild an expression; positive terms come first so that no term needs a unary minus."""
    result: Expr | None = None
    for atom, k in terms.items():
        if k > 0:
            term = atom if k == 1 else binary("mul", atom, k)
            result = term if result is None else binary("add", result, term)
    for atom, k in terms.items():
        if k < 0:
            if result is None:
                result = binary("mul", atom, k)
            else:
                term = atom if k == -1 else binary("mul", atom, -k)
                result = binary("sub", result, term)
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
    terms, constant = _linear(a)
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
    terms, constant = _linear(binary("sub", a, b))
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


def _undivided(e: Binary) -> Expr | None:
    """Return a // c < n as a < n * c, and so on; None for other comparisons."""
    match e:
        case Binary(
            op="lt" | "le", a=Binary(op="floordiv", a=a, b=Const(value=c)), b=Const(value=n)
        ):
            return binary("lt", a, (int(n) + (e.op == "le")) * int(c)) if c > 0 else None
        case Binary(
            op="lt" | "le", a=Const(value=n), b=Binary(op="floordiv", a=a, b=Const(value=c))
        ):
            return binary("le", (int(n) + (e.op == "lt")) * int(c), a) if c > 0 else None
    return None


class Simplifier:
    """Simplifies index arithmetic and conditions, given inclusive variable bounds.

    Answers are kept by the identity of expressions, which are kept too.
    """

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self._known: dict[int, tuple[Expr, Expr]] = {}

    def __call__(self, expr: Expr) -> Expr:
        """Return the expression simplified, from its leaves up."""
        if isinstance(expr, Const | Var):
            return expr
        found = self._known.get(id(expr))
        if found is None:
            simple = with_parts(expr, self)
            replaced = self._rule(simple) if isinstance(simple, Binary) else None
            found = expr, simple if replaced is None else replaced
            self._known[id(expr)] = found
        return found[1]

    def _rule(self, e: Binary) -> Expr | None:
        """Simplify a node of simplified parts; None if there is nothing to do."""
        if e.dtype == INDEX:
            if e.op in ("add", "sub", "mul"):
                return self._sum(e)
            if e.op in ("floordiv", "floormod") and isinstance(e.b, Const) and e.b.value > 0:
                return _divide(e.a, int(e.b.value), self.ranges, e.op == "floormod")
            if e.op in ("min", "max"):
                order = _compare("le", e.a, e.b, self.ranges)
                if isinstance(order, Const):
                    return e.a if order.value == (e.op == "min") else e.b
                order = _compare("le", e.b, e.a, self.ranges)
                if isinstance(order, Const):
                    return e.b if order.value == (e.op == "min") else e.a
        elif e.op in ("lt", "le", "eq", "ne") and e.a.dtype == INDEX:
            known = _compare(e.op, e.a, e.b, self.ranges)
            return _undivided(e) if known is None else known
        return None

    def _sum(self, e: Binary) -> Expr | None:
        """Put quotients and remainders together, and collect terms where that is shorter."""
        terms, constant = _linear(e)
        if (joined := _join(terms)) is not None:
            whole = from_linear(joined[0], constant + joined[1])
            again = self._rule(whole) if isinstance(whole, Binary) else None
            return whole if again is None else again
        if len(terms) < 2 or isinstance(e.a, Const) or isinstance(e.b, Const) or _repeats(e):
            collected = from_linear(terms, constant)
            return None if collected == e else collected
        return None


def simplify(expr: Expr, ranges: Ranges) -> Expr:
    """Simplify the index arithmetic and conditions in `expr`, given inclusive variable bounds."""
    return Simplifier(ranges)(expr)


@by_identity
def _repeats(expr: Expr) -> bool:
    """Tell whether collecting the terms of a sum makes it shorter."""
    terms, constant = _linear(expr)
    return _summands(expr) > len(terms) + (1 if constant else 0)


def _summands(expr: Expr) -> int:
    if isinstance(expr, Binary) and expr.dtype == INDEX and expr.op in ("add", "sub"):
        return _summands(expr.a) + _summands(expr.b)
    return 1
