"""Scalar expressions: what one element of a tensor is, and where in a buffer it lies.

Expressions are frozen and typed.  The type `INDEX` is that of loop variables and subscripts: a
mathematical integer in interpreters, `ptrdiff_t` in C.  Python numbers take the type of the other
operand.
`==` compares structure; the element-wise comparison is `eq(a, b)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar, Union

from toolkit.ir.types import DType, DTYPES

INDEX: DType = "index"
Operand = Union["Expr", int, float, bool]


@dataclass(frozen=True, slots=True)
class Expr:
    """Base of all expressions; carries the operator overloads."""

    dtype: DType

    def __add__(self, other: Operand) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return binary("floordiv", self, other)

    def __mod__(self, other: Operand) -> Expr:
        return binary("floormod", self, other)

    def __neg__(self) -> Expr:
        return binary("sub", Const(self.dtype, 0), self)

    def __lt__(self, other: Operand) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return binary("lt", other, self)

    def __ge__(self, other: Operand) -> Expr:
        return binary("le", other, self)

    def __and__(self, other: Operand) -> Expr:
        return binary("and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return binary("or", self, other)

    def __xor__(self, other: Operand) -> Expr:
        return binary("xor", self, other)

    def __bool__(self) -> bool:
        raise TypeError(
            "the value of a tensor element is not known while its expression is built; "
            "use select(cond, a, b) instead of `if`"
        )


@dataclass(frozen=True, slots=True)
class Const(Expr):
    """A literal; floats may be inf or nan."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A loop variable or block axis; always of type `INDEX`."""

    name: str

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """One element of a buffer: of a `Tensor` in compute expressions, a name in loop IR."""

    buffer: Any
    indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """`op` is a key of `BINARY_OPS`."""

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A scalar function; `fn` is a key of `FUNCTIONS`."""

    fn: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """`a` converted as in C: floats truncate to integers, integers wrap; x != 0 for bool."""

    a: Expr


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """`a` where `cond` holds, else `b`; only the chosen side is evaluated."""

    cond: Expr
    a: Expr
    b: Expr


BINARY_OPS: dict[str, str] = {
    "add": "sum; integers wrap",
    "sub": "difference; integers wrap",
    "mul": "product; integers wrap",
    "div": "quotient; integers truncate towards zero (0 for a zero divisor, as all four)",
    "floordiv": "quotient rounded down",
    "mod": "remainder with the sign of the dividend (C's % and fmod)",
    "floormod": "remainder with the sign of the divisor (Python's %)",
    "min": "smaller; a NaN operand gives NaN",
    "max": "larger; a NaN operand gives NaN",
    "pow": "a to the power b",
    "lt": "a < b, bool",
    "le": "a <= b, bool",
    "eq": "a == b, bool",
    "ne": "a != b, bool",
    "and": "logical and of bools, bitwise and of integers",
    "or": "logical or of bools, bitwise or of integers",
    "xor": "exclusive or",
    "shl": "a * 2**b, wrapped; 0 for b outside 0..bits-1",
    "shr": "a / 2**b rounded down; 0 or -1 for b outside 0..bits-1",
}

COMPARISONS = frozenset({"lt", "le", "eq", "ne"})

FUNCTIONS: dict[str, str] = {
    "exp": "e**x",
    "log": "natural logarithm",
    "log1p": "log(1 + x)",
    "sqrt": "square root",
    "sin": "sine",
    "cos": "cosine",
    "tan": "tangent",
    "asin": "arc sine",
    "acos": "arc cosine",
    "atan": "arc tangent",
    "sinh": "hyperbolic sine",
    "cosh": "hyperbolic cosine",
    "tanh": "hyperbolic tangent",
    "asinh": "inverse of sinh",
    "acosh": "inverse of cosh",
    "atanh": "inverse of tanh",
    "erf": "error function",
    "sigmoid": "1 / (1 + exp(-x))",
    "floor": "largest integer not above x",
    "ceil": "smallest integer not below x",
    "trunc": "x without its fraction",
    "round": "nearest integer, ties to even",
    "abs": "absolute value",
    "isnan": "x is not a number, bool",
    "isinf": "x is infinite, bool",
    "not": "logical not of a bool, bitwise not of an integer",
    "bits": "the bits of a value as another type of the same size",
}

BOOL_FUNCTIONS = frozenset({"isnan", "isinf"})


@lru_cache(maxsize=1 << 12)
def _index(value: int) -> Const:
    """Return a literal subscript: the same object for the same number, as far as remembered."""
    return Const(INDEX, value)


def const(value: int | float | bool, dtype: DType) -> Const:
    """Return a literal of type `dtype`; an integer beyond the type's range wraps."""
    if dtype == INDEX:
        return _index(int(value))
    info = DTYPES[dtype]
    if info.kind == "f":
        return Const(dtype, float(value))
    if info.kind == "b":
        return Const(dtype, bool(value))
    bits = 8 * info.nbytes
    number = int(value) & ((1 << bits) - 1)
    negative = info.kind == "i" and number >> (bits - 1)
    return Const(dtype, number - (1 << bits) if negative else number)


def _folded(expr: Binary | Call | Cast, args: tuple[Expr, ...]) -> Expr:
    """Return the literal that an integer or bool expression of literals is.

    Floats stay: an exact evaluation must not see their rounding.
    """
    if expr.dtype != INDEX and DTYPES[expr.dtype].kind == "f":
        return expr
    for arg in args:
        if not isinstance(arg, Const):
            return expr
    from toolkit.ir.arithmetic import Exact, MeaningError
    from toolkit.ir.interp import compile_expr

    try:
        return Const(expr.dtype, compile_expr(expr, Exact(), lambda *_: None)({}))
    except MeaningError:
        return expr


def as_expr(value: Operand, dtype: DType) -> Expr:
    """Return `value` as an expression; a Python number becomes a literal of type `dtype`."""
    return value if isinstance(value, Expr) else const(value, dtype)


_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def binary(op: str, a: Operand, b: Operand) -> Expr:
    """Return `a op b`, folding index arithmetic on literals; `TypeError` on mixed types."""
    dtype = a.dtype if isinstance(a, Expr) else b.dtype if isinstance(b, Expr) else INDEX
    left = a if isinstance(a, Expr) else const(a, dtype)
    right = b if isinstance(b, Expr) else const(b, dtype)
    if left.dtype != right.dtype and op not in ("shl", "shr"):
        raise TypeError(f"{op}: operand types differ: {left.dtype} and {right.dtype}; use cast()")
    result = "bool" if op in COMPARISONS else dtype
    if dtype == INDEX:
        return _index_binary(result, op, left, right)
    if dtype == "bool" and op in ("and", "or"):
        for this, other in ((left, right), (right, left)):
            if isinstance(this, Const):
                if op == "and":
                    return other if this.value else this
                return this if this.value else other
    return _folded(Binary(result, op, left, right), (left, right))


def _index_binary(result: DType, op: str, left: Expr, right: Expr) -> Expr:
    if isinstance(right, Const):
        value = right.value
        if isinstance(left, Const):
            return Const(result, _FOLD[op](left.value, value))
        if value == 0:
            if op in ("add", "sub"):
                return left
            if op == "mul":
                return right
        elif value == 1:
            if op in ("mul", "floordiv"):
                return left
            if op == "floormod":
                return Const(INDEX, 0)
    elif isinstance(left, Const):
        if op == "add" and left.value == 0:
            return right
        if op == "mul" and left.value in (0, 1):
            return right if left.value else left
    return Binary(result, op, left, right)


def minimum(a: Operand, b: Operand) -> Expr:
    """Return the smaller of two values; NaN if either is NaN."""
    return binary("min", a, b)


def maximum(a: Operand, b: Operand) -> Expr:
    """Return the larger of two values; NaN if either is NaN."""
    return binary("max", a, b)


def eq(a: Operand, b: Operand) -> Expr:
    """Return the element-wise a == b."""
    return binary("eq", a, b)


def ne(a: Operand, b: Operand) -> Expr:
    """Return the element-wise a != b."""
    return binary("ne", a, b)


def call(fn: str, *args: Expr) -> Expr:
    """Return `fn(args)` for a key of `FUNCTIONS`."""
    if fn not in FUNCTIONS:
        raise KeyError(f"unknown scalar function {fn!r}; known: {', '.join(FUNCTIONS)}")
    return _folded(Call("bool" if fn in BOOL_FUNCTIONS else args[0].dtype, fn, args), args)


def cast(value: Expr, dtype: DType) -> Expr:
    """Return `value` converted to `dtype` as C does; the same expression if it has it already."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Const) and value.dtype == INDEX:
        return const(value.value, dtype)
    return _folded(Cast(dtype, value), (value,))


def select(cond: Expr, a: Operand, b: Operand) -> Expr:
    """Return `a` where `cond` holds, else `b`."""
    dtype = a.dtype if isinstance(a, Expr) else b.dtype if isinstance(b, Expr) else INDEX
    left, right = as_expr(a, dtype), as_expr(b, dtype)
    if left.dtype != right.dtype:
        raise TypeError(f"select: types differ: {left.dtype} and {right.dtype}; use cast()")
    if isinstance(cond, Const):
        return left if cond.value else right
    return Select(dtype, cond, left, right)


def all_of(*conds: Expr) -> Expr | None:
    """Return the conjunction of conditions, None when every one is the literal true."""
    result: Expr | None = None
    for cond in conds:
        if isinstance(cond, Const) and cond.value:
            continue
        result = cond if result is None else binary("and", result, cond)
    return result


def conjuncts(expr: Expr | None) -> list[Expr]:
    """Split a condition at its `and`s; None, which always holds, has none."""
    if expr is None:
        return []
    if isinstance(expr, Binary) and expr.op == "and" and expr.dtype == "bool":
        return [*conjuncts(expr.a), *conjuncts(expr.b)]
    return [expr]


def children(expr: Expr) -> tuple[Expr, ...]:
    """Return the direct subexpressions."""
    if isinstance(expr, Const | Var):
        return ()
    if isinstance(expr, Binary):
        return (expr.a, expr.b)
    if isinstance(expr, Load):
        return expr.indices
    if isinstance(expr, Call):
        return expr.args
    if isinstance(expr, Cast):
        return (expr.a,)
    assert isinstance(expr, Select)
    return (expr.cond, expr.a, expr.b)


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield `expr` and all its subexpressions, each before its children."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


_T = TypeVar("_T")


def by_identity(question: Callable[[Expr], _T]) -> Callable[[Expr], _T]:
    """Remember the answers about the last expressions, told apart by identity.

    Schedule steps leave expressions alone and ask the same of them again and again.
    """
    known: dict[int, tuple[Expr, _T]] = {}

    @wraps(question)
    def answer(expr: Expr) -> _T:
        found = known.get(id(expr))
        if found is None or found[0] is not expr:
            if len(known) >= 1 << 14:
                known.clear()
            known[id(expr)] = found = expr, question(expr)
        return found[1]

    return answer


@by_identity
def loads(expr: Expr) -> tuple[Load, ...]:
    """Return every load in `expr`, each before those in its subscripts."""
    found = [load for part in children(expr) for load in loads(part)]
    return (expr, *found) if isinstance(expr, Load) else tuple(found)


def with_parts(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return `expr` over its changed children; the same object where they are the same objects."""
    match expr:
        case Const() | Var():
            return expr
        case Binary():
            a, b = change(expr.a), change(expr.b)
            if a is not expr.a or b is not expr.b:
                return binary(expr.op, a, b)
        case Load():
            indices = tuple([change(i) for i in expr.indices])
            if _changed(indices, expr.indices):
                return Load(expr.dtype, expr.buffer, indices)
        case Call():
            args = tuple([change(x) for x in expr.args])
            if _changed(args, expr.args):
                return Call(expr.dtype, expr.fn, args)
        case Cast():
            a = change(expr.a)
            if a is not expr.a:
                return cast(a, expr.dtype)
        case Select():
            cond, a, b = change(expr.cond), change(expr.a), change(expr.b)
            if cond is not expr.cond or a is not expr.a or b is not expr.b:
                return select(cond, a, b)
    return expr


def _changed(new: tuple[Expr, ...], old: tuple[Expr, ...]) -> bool:
    return any(x is not y for x, y in zip(new, old, strict=True))


def rewrite(expr: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `expr` bottom-up: `rule` sees a node with rewritten children and may replace it.

    A node that nothing changed in is returned as the same object.
    """

    def rewritten(node: Expr) -> Expr:
        node = with_parts(node, rewritten)
        replaced = rule(node)
        return node if replaced is None else replaced

    return rewritten(expr)


def substitute(expr: Expr, values: dict[str, Expr]) -> Expr:
    """Replace variables by name."""
    if not values:
        return expr
    return rewrite(expr, lambda e: values.get(e.name) if isinstance(e, Var) else None)


_NO_NAMES: frozenset[str] = frozenset()


@by_identity
def variables(expr: Expr) -> frozenset[str]:
    """Return the names of all variables in `expr`."""
    if isinstance(expr, Var):
        return frozenset((expr.name,))
    names: frozenset[str] = _NO_NAMES
    for part in children(expr):
        names = names | variables(part) if names else variables(part)
    return names
