"""What each scalar operation means: exact rationals, or numbers rounded as generated C rounds them.

Values are Python ints (wrapped to their type), bools, and for floating types `Fraction`s with inf
and nan as floats (`Exact`) or NumPy scalars (`Typed`).  What is undefined in C raises
`MeaningError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from toolkit.ir.expr import BOOL_FUNCTIONS, COMPARISONS, INDEX
from toolkit.ir.types import DType, DTYPES, int_range

Value = Any
Unary = Callable[[Value], Value]
Operation = Callable[[Value, Value], Value]


class MeaningError(Exception):
    """A function has no meaning: reads what nobody wrote, or does what is undefined in C."""


def kind_of(dtype: DType) -> str:
    """Return 'f', 'i', 'u' or 'b', and 'x' for `INDEX`."""
    return "x" if dtype == INDEX else DTYPES[dtype].kind


def wrap(value: int, dtype: DType) -> int:
    """Return `value` modulo 2**bits as a value of an integer type; an `INDEX` never wraps."""
    if dtype == INDEX:
        return value
    bits = 8 * DTYPES[dtype].nbytes
    value &= (1 << bits) - 1
    return value - (1 << bits) if DTYPES[dtype].kind == "i" and value >> (bits - 1) else value


# ------------------------------------------------------------------------------------- integers


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _int_pow(a: int, b: int, dtype: DType) -> int:
    if b < 0:
        return 0 if abs(a) != 1 else a if b % 2 else 1
    return pow(a, b, 1 << 64) if dtype != INDEX else a**b


def _shift_count(b: int, dtype: DType) -> int | None:
    """Return a usable shift count, None when every bit is shifted out."""
    return b if 0 <= b < 8 * DTYPES[dtype].nbytes else None


def _shl(a: int, b: int, dtype: DType) -> int:
    count = _shift_count(b, dtype)
    return 0 if count is None else a << count


def _shr(a: int, b: int, dtype: DType) -> int:
    count = _shift_count(b, dtype)
    return (-1 if a < 0 else 0) if count is None else a >> count


def integer_operation(op: str, dtype: DType) -> Operation:
    """Return the meaning of an operation of `BINARY_OPS` on an integer type or `INDEX`."""

    def zero_checked(fn: Callable[[int, int], int]) -> Operation:
        def divide(a: int, b: int) -> int:
            if b == 0:
                if dtype == INDEX:
                    raise MeaningError("an index is divided by zero")
                return 0
            return wrap(fn(a, b), dtype)

        return divide

    match op:
        case "add":
            return lambda a, b: wrap(a + b, dtype)
        case "sub":
            return lambda a, b: wrap(a - b, dtype)
        case "mul":
            return lambda a, b: wrap(a * b, dtype)
        case "div":
            return zero_checked(_truncated)
        case "mod":
            return zero_checked(lambda a, b: a - b * _truncated(a, b))
        case "floordiv":
            return zero_checked(lambda a, b: a // b)
        case "floormod":
            return zero_checked(lambda a, b: a % b)
        case "min":
            return min
        case "max":
            return max
        case "pow":
            return lambda a, b: wrap(_int_pow(a, b, dtype), dtype)
        case "and":
            return lambda a, b: wrap(a & b, dtype)
        case "or":
            return lambda a, b: wrap(a | b, dtype)
        case "xor":
            return lambda a, b: wrap(a ^ b, dtype)
        case "shl":
            return lambda a, b: wrap(_shl(a, b, dtype), dtype)
        case "shr":
            return lambda a, b: wrap(_shr(a, b, dtype), dtype)
    return _comparison(op)


def _comparison(op: str) -> Operation:
    match op:
        case "lt":
            return lambda a, b: bool(a < b)
        case "le":
            return lambda a, b: bool(a <= b)
        case "eq":
            return lambda a, b: bool(a == b)
        case "ne":
            return lambda a, b: bool(a != b)
    raise MeaningError(f"operation {op!r} is not defined on this type")


def _bool_operation(op: str) -> Operation:
    """Bools compute as int32 and become bools again by != 0."""
    match op:
        case "and" | "min":
            return lambda a, b: a and b
        case "or" | "max":
            return lambda a, b: a or b
    inner = integer_operation(op, "int32")
    return lambda a, b: bool(inner(int(a), int(b)))


# --------------------------------------------------------------------------------------- floats


def float64_function(fn: str, x: float) -> float:
    """Return a transcendental function of a float64 as C's math library: inf and nan, no error."""
    if math.isnan(x):
        return x
    match fn:
        case "sigmoid":
            return 1.0 / (1.0 + float64_function("exp", -x))
        case "log" | "log1p":
            edge = 0.0 if fn == "log" else -1.0
            if x <= edge:
                return -math.inf if x == edge else math.nan
        case "sqrt":
            if x < 0:
                return math.nan
        case "atanh":
            if abs(x) >= 1:
                return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    try:
        return float(getattr(math, fn)(x))
    except OverflowError:
        return math.copysign(math.inf, x) if fn == "sinh" else math.inf
    except ValueError:
        return math.nan


_ROUNDING: dict[str, Callable[[Any], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
}


class Arithmetic:
    """Gives every operation on a type its meaning; subclasses say what a floating number is."""

    exact = False

    # What subclasses define.

    def number(self, value: Any, dtype: DType) -> Value:
        """Return a Python or NumPy number, or a Fraction, as a value of a floating type."""
        raise NotImplementedError

    def float_operation(self, op: str, dtype: DType) -> Operation:
        """Return the meaning of an operation on a floating type, comparisons aside."""
        raise NotImplementedError

    def float_function(self, fn: str, dtype: DType) -> Unary:
        """Return the meaning of a function of a floating argument that gives its type."""
        raise NotImplementedError

    # What they share.

    def const(self, value: Any, dtype: DType) -> Value:
        """Return a literal or an element of an input as a value."""
        match kind_of(dtype):
            case "f":
                return self.number(value, dtype)
            case "b":
                return bool(value)
        return int(value)

    def operation(self, op: str, dtype: DType) -> Operation:
        """Return the meaning of an operation of `BINARY_OPS` on operands of type `dtype`."""
        kind = kind_of(dtype)
        if op in COMPARISONS:
            return _comparison(op)
        if kind == "f":
            return self.float_operation(op, dtype)
        return _bool_operation(op) if kind == "b" else integer_operation(op, dtype)

    def function(self, fn: str, source: DType, target: DType) -> Unary:
        """Return the meaning of a function of `FUNCTIONS` from `source` to `target`."""
        kind = kind_of(source)
        if fn == "bits":
            return lambda x: self.const(
                np.array(self.to_numpy(x, source), np.dtype(source)).view(np.dtype(target))[()],
                target,
            )
        if fn == "not":
            return (lambda x: not x) if kind == "b" else (lambda x: wrap(~x, source))
        if fn in BOOL_FUNCTIONS:
            if kind != "f":
                return lambda _: False
            test = math.isnan if fn == "isnan" else math.isinf
            return lambda x: test(x) if isinstance(x, float | np.floating) else False
        if kind == "f":
            return self.float_function(fn, source)
        if fn in _ROUNDING:
            return lambda x: x
        if fn == "abs":
            return (lambda x: x) if kind in "ub" else (lambda x: wrap(abs(x), source))
        there, back = self.cast(source, "float64"), self.cast("float64", source)
        inner = self.float_function(fn, "float64")
        return lambda x: back(inner(there(x)))

    def cast(self, source: DType, target: DType) -> Unary:
        """Return the conversion between two types, as C converts."""
        kind = kind_of(target)
        if kind == "f":
            return lambda x: self.number(x, target)
        if kind == "b":
            return lambda x: bool(x != 0)
        if kind_of(source) != "f":
            return lambda x: wrap(int(x), target)

        def truncate(x: Value) -> int:
            if not isinstance(x, Fraction) and not math.isfinite(x):
                raise MeaningError(f"the cast of {float(x)} to {target} is undefined in C")
            value = math.trunc(x if isinstance(x, Fraction) else float(x))
            if target != INDEX:
                low, high = int_range(target)
                if not low <= value <= high:
                    raise MeaningError(f"the cast of {float(x)} to {target} is undefined in C")
            return value

        return truncate

    def to_numpy(self, value: Value, dtype: DType) -> Any:
        """Return a value as a NumPy scalar of its type, rounded if need be."""
        if isinstance(value, Fraction):
            value = _to_float(value)
        with np.errstate(over="ignore"):
            return np.dtype(dtype).type(value)


def _to_float(x: Fraction | float) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


class Exact(Arithmetic):
    """Floats as rationals; a transcendental function is the rational value of its float64 result.

    So reassociation, distribution and factoring are equalities, and rounding is tested apart.
    A zero has no sign: 1 / 0 is inf.
    """

    exact = True

    def number(self, value: Any, dtype: DType) -> Value:
        """Return an exact rational; inf and nan stay floats."""
        if isinstance(value, Fraction):
            return value
        if isinstance(value, float | np.floating):
            return Fraction(float(value)) if math.isfinite(value) else float(value)
        return Fraction(int(value))

    def float_operation(self, op: str, dtype: DType) -> Operation:
        """Exact where both operands are finite; IEEE 754 where one is inf or nan."""
        exact = _FRACTION.get(op)
        if exact is None:
            raise MeaningError(f"operation {op!r} is not defined on {dtype}")

        def apply(a: Value, b: Value) -> Value:
            if isinstance(a, Fraction) and isinstance(b, Fraction):
                return exact(a, b)
            if op in ("min", "max"):  # the operand itself, not what is left of it as a float64
                return _extreme(op, a, b)
            if op == "mod" and isinstance(a, Fraction) and not math.isnan(b):
                return a
            return self.number(_special(op, _to_float(a), _to_float(b)), dtype)

        return apply

    def float_function(self, fn: str, dtype: DType) -> Unary:
        """Rounding functions are exact; the others go through float64."""
        if fn == "abs":
            return abs
        if fn in _ROUNDING:
            whole = _ROUNDING[fn]
            return lambda x: Fraction(whole(x)) if isinstance(x, Fraction) else x
        return lambda x: self.number(float64_function(fn, _to_float(x)), dtype)


def _extreme(op: str, a: Value, b: Value) -> Value:
    for x in (a, b):
        if not isinstance(x, Fraction) and math.isnan(x):
            return x
    return min(a, b) if op == "min" else max(a, b)


def _over(a: Fraction, b: Fraction) -> Value:
    if b == 0:
        return math.nan if a == 0 else math.inf if a > 0 else -math.inf
    return a / b


def _power(a: Fraction, b: Fraction) -> Value:
    if b.denominator == 1 and abs(b) <= 16 and (a != 0 or b >= 0):
        return a ** int(b)
    return Exact().number(_special("pow", _to_float(a), _to_float(b)), "float64")


_FRACTION: dict[str, Callable[[Fraction, Fraction], Value]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _over,
    "floordiv": lambda a, b: Fraction(a // b) if b else _over(a, b),
    "mod": lambda a, b: a - b * math.trunc(a / b) if b else math.nan,
    "floormod": lambda a, b: a - b * math.floor(a / b) if b else math.nan,
    "min": min,
    "max": max,
    "pow": _power,
}


def _special(op: str, a: float, b: float) -> float:
    """Return a float64 operation as C computes it."""
    with np.errstate(all="ignore"):
        return float(_ieee(op, np.float64(a), np.float64(b)))


def _ieee(op: str, a: Any, b: Any) -> Any:
    """Return an operation of two NumPy floats, rounded once to their type; pow aside."""
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div":
            return a / b
        case "floordiv":
            return np.floor(a / b)
        case "mod":
            return np.fmod(a, b)
        case "floormod":
            rest = np.fmod(a, b)
            return rest + b if rest != 0 and (rest < 0) != (b < 0) else rest
        case "min":
            return b if b < a or b != b else a
        case "max":
            return b if a < b or b != b else a
        case "pow":
            return np.power(a, b)
    raise MeaningError(f"operation {op!r} is not defined on {a.dtype}")


class Typed(Arithmetic):
    """Floats as NumPy scalars, rounded at each operation as C without contraction rounds them.

    Transcendental functions of float32 are the rounded float64 ones: a C library may differ in the
    last place.
    """

    def number(self, value: Any, dtype: DType) -> Value:
        """Round to the type."""
        if isinstance(value, Fraction):
            value = _to_float(value)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.dtype(dtype).type(value)

    def float_operation(self, op: str, dtype: DType) -> Operation:
        """One rounding an operation."""
        if op == "pow":
            return lambda a, b: self.number(_special("pow", float(a), float(b)), dtype)

        def apply(a: Value, b: Value) -> Value:
            with np.errstate(all="ignore"):
                return _ieee(op, a, b)

        return apply

    def float_function(self, fn: str, dtype: DType) -> Unary:
        """Round the float64 result; sigmoid rounds at each of its operations."""
        if fn in ("floor", "ceil", "trunc", "abs", "round", "sqrt"):
            exact = getattr(np, "rint" if fn == "round" else fn)

            def apply(x: Value) -> Value:
                with np.errstate(all="ignore"):
                    return exact(x)

            return apply
        if fn == "sigmoid":
            exp, one = self.float_function("exp", dtype), self.number(1, dtype)
            over, plus = self.float_operation("div", dtype), self.float_operation("add", dtype)
            return lambda x: over(one, plus(one, exp(-x)))
        return lambda x: self.number(float64_function(fn, float(x)), dtype)
