"""Expressions to C text, free of warnings and undefined behaviour under the strict flags."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from toolkit.codegen.copies import Varies
from toolkit.codegen.fixed_point import long_sum, LongSum, saturated
from toolkit.ir.expr import (
    Binary,
    binary,
    Call,
    call,
    Cast,
    cast,
    Const,
    Expr,
    INDEX,
    Load,
    Select,
    Var,
)
from toolkit.ir.types import DType, DTYPES, int_range

C_INDEX = "ptrdiff_t"

_LEVEL = {
    "or": 1,
    "and": 2,
    "eq": 5,
    "ne": 5,
    "lt": 6,
    "le": 6,
    "add": 8,
    "sub": 8,
    "mul": 9,
    "div": 9,
}
_UNARY, _ATOM = 10, 12
_SYMBOL = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
}
_INT_SYMBOL = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<"}
_LIBM = {"exp", "log", "log1p", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
         "tanh", "asinh", "acosh", "atanh", "erf", "floor", "ceil", "trunc"}  # fmt: skip


def c_type(dtype: DType) -> str:
    """Return the C type of an element."""
    return C_INDEX if dtype == INDEX else DTYPES[dtype].c_name


def float_text(value: float, dtype: DType) -> str:
    """Return the shortest literal that reads back as the same float."""
    suffix = "f" if dtype == "float32" else ""
    if math.isnan(value):
        return "NAN" if dtype == "float32" else "(double)NAN"
    if math.isinf(value):
        name = "INFINITY" if dtype == "float32" else "(double)INFINITY"
        return f"-{name}" if value < 0 else name
    text = repr(float(value))
    if dtype == "float32":
        text = str(np.float32(value))
    if "e" in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa if '.' in mantissa else mantissa + '.0'}e{int(exponent)}"
    elif "." not in text:
        text += ".0"
    return text + suffix


def int_text(value: int, dtype: DType) -> str:
    """Return an integer literal of `dtype`, without a warning at the type's limits."""
    info = DTYPES[dtype]
    if info.kind == "u":
        if info.nbytes == 8:
            return f"UINT64_C({value})"
        return f"{value}u" if info.nbytes == 4 else str(value)
    if info.nbytes == 8:
        if value == -(2**63):
            return "INT64_MIN"
        return f"INT64_C({value})"
    if value == -(2**31):
        return "INT32_MIN"
    return str(value)


class ExprPrinter:
    """Prints expressions over loop variables; `element(buffer, indices)` prints an lvalue."""

    def __init__(
        self, element: Callable[[str, tuple[Expr, ...]], str], names: Mapping[str, str]
    ) -> None:
        self.element = element
        self.names = names
        self._sums: dict[int, tuple[Expr, tuple[str, int]]] = {}
        """Texts of index arithmetic by identity; copies of a statement share much of it."""
        self.free: frozenset[str] = frozenset()
        """Loops that have no value while a pattern is made: see `copies`."""
        self._loads = 0
        """Loads printed so far: a text with one holds at its place alone."""

    def text(self, expr: Expr, level: int = 0) -> str:
        """Return C text for `expr`, in parentheses where its operator binds weaker than `level`."""
        text, own = self._print(expr)
        return f"({text})" if own < level else text

    def _print(self, expr: Expr) -> tuple[str, int]:
        if isinstance(expr, Binary):
            return self._index(expr) if expr.a.dtype == INDEX else self._binary(expr)
        match expr:
            case Const():
                return self._const(expr)
            case Var():
                if expr.name in self.free:
                    raise Varies(frozenset((expr.name,)))
                return self.names.get(expr.name, expr.name), _ATOM
            case Load():
                self._loads += 1
                return self.element(expr.buffer, expr.indices), _ATOM
            case Cast():
                return self._cast(expr)
            case Select():
                cond = self.text(expr.cond, 1)
                return f"{cond} ? {self.text(expr.a, 1)} : {self.text(expr.b, 1)}", 0
            case Call():
                return self._call(expr)
        raise TypeError(f"not an expression: {expr!r}")

    def _index(self, expr: Binary) -> tuple[str, int]:
        found = self._sums.get(id(expr))
        if found is None:
            before = self._loads
            found = expr, self._binary(expr)
            if self._loads == before:
                self._sums[id(expr)] = found
        return found[1]

    def _const(self, expr: Const) -> tuple[str, int]:
        if expr.dtype == INDEX:
            return str(expr.value), _ATOM if expr.value >= 0 else _UNARY
        kind = DTYPES[expr.dtype].kind
        if kind == "f":
            text = float_text(float(expr.value), expr.dtype)
        elif kind == "b":
            text = "1" if expr.value else "0"
        else:
            text = int_text(int(expr.value), expr.dtype)
        return text, _UNARY if text.startswith(("-", "(")) else _ATOM

    def _cast(self, expr: Cast) -> tuple[str, int]:
        source, target = expr.a.dtype, expr.dtype
        if target == "bool":
            zero = Const(source, 0 if source == INDEX or DTYPES[source].kind != "f" else 0.0)
            if source == "bool":
                return self._print(expr.a)
            return f"{self.text(expr.a, 6)} != {self.text(zero, 6)}", 5
        limited = saturated(expr) if target in ("int8", "uint8") else None
        if limited is not None:
            return self._saturated(limited, target), _ATOM
        long = long_sum(expr)
        if long is not None and long.below is None:
            text = self._long_sum(long)
            return (f"{text} >> {long.bits}", 0) if long.bits else (text, _ATOM)
        return f"({c_type(target)}){self.text(expr.a, _UNARY)}", _UNARY

    def _saturated(self, value: Expr, dtype: DType) -> str:
        """Return an int32 limited to a type of 8 bits; shifting right first costs nothing more."""
        long, bits = long_sum(value), 0
        if long is not None and long.below is None:
            text, bits = self._long_sum(long), long.bits
        elif isinstance(value, Binary) and value.op == "shr" and isinstance(value.b, Const):
            text, bits = self.text(value.a), int(value.b.value)
        else:
            text = self.text(value)
        if 0 < bits < 32:
            return f"nst_saturate_{dtype}_shr({text}, {bits})"
        return f"nst_saturate_{dtype}({text})"

    def _long_sum(self, long: LongSum) -> str:
        a, b, offset = (self.text(e) for e in (long.a, long.b, long.offset))
        return f"nst_long_sum({a}, {b}, {offset})"

    def _call(self, expr: Call) -> tuple[str, int]:
        dtype, fn = expr.args[0].dtype, expr.fn
        args = [self.text(a) for a in expr.args]
        suffix = "f" if dtype == "float32" else ""
        info = DTYPES[dtype]
        if fn == "not":
            if dtype == "bool":
                return f"!{self.text(expr.args[0], _UNARY)}", _UNARY
            if info.kind == "u" and info.nbytes < 4:
                # gcc warns of (uint8_t)~x != 0 as if ~x were not cut to 8 bits.
                return f"nst_not_{dtype}({args[0]})", _ATOM
            return f"({info.c_name})~{self.text(expr.args[0], _UNARY)}", _UNARY
        if fn == "bits":
            return f"nst_bits_{dtype}_{expr.dtype}({args[0]})", _ATOM
        if info.kind != "f":
            if fn == "abs":
                if info.kind == "u":
                    return self._print(expr.args[0])
                return f"nst_abs_{dtype}({args[0]})", _ATOM
            if fn in ("floor", "ceil", "trunc", "round"):
                return self._print(expr.args[0])
            if fn in ("isnan", "isinf"):
                return "0", _ATOM
            inner = Cast("float64", expr.args[0])
            return f"({info.c_name}){self.text(Call('float64', fn, (inner,)), _UNARY)}", _UNARY
        if fn == "abs":
            return f"fabs{suffix}({args[0]})", _ATOM
        if fn == "round":
            return f"rint{suffix}({args[0]})", _ATOM
        if fn in ("isnan", "isinf"):
            return f"{fn}({args[0]}) != 0", 5
        if fn == "sigmoid":
            return f"nst_sigmoid_{dtype}({args[0]})", _ATOM
        assert fn in _LIBM, fn
        return f"{fn}{suffix}({args[0]})", _ATOM

    def _binary(self, expr: Binary) -> tuple[str, int]:
        op, dtype = expr.op, expr.a.dtype
        if op in ("min", "max"):
            a, b = self.text(expr.a), self.text(expr.b)
            if dtype == "bool":
                return self._print(binary("or" if op == "max" else "and", expr.a, expr.b))
            return f"nst_{op}_{dtype}({a}, {b})", _ATOM
        if dtype == INDEX:
            if op in ("floordiv", "floormod"):
                return f"nst_{op}_index({self.text(expr.a)}, {self.text(expr.b)})", _ATOM
            return self._infix(op, expr.a, expr.b)
        if op in ("eq", "ne", "lt", "le"):
            return self._comparison(op, expr.a, expr.b)
        info = DTYPES[dtype]
        if info.kind == "f":
            suffix = "f" if dtype == "float32" else ""
            if op == "pow":
                return f"pow{suffix}({self.text(expr.a)}, {self.text(expr.b)})", _ATOM
            if op == "mod":
                return f"fmod{suffix}({self.text(expr.a)}, {self.text(expr.b)})", _ATOM
            if op == "floordiv":
                return f"floor{suffix}({self._infix('div', expr.a, expr.b)[0]})", _ATOM
            if op == "floormod":
                return f"nst_floormod_{dtype}({self.text(expr.a)}, {self.text(expr.b)})", _ATOM
            return self._infix(op, expr.a, expr.b)
        if info.kind == "b":
            if op == "xor":
                return self._comparison("ne", expr.a, expr.b)
            if op in ("and", "or"):
                # gcc warns about && within || without parentheses, so operands are taken as atoms.
                a, b = self.text(expr.a, 5), self.text(expr.b, 5)
                return (f"{a} && {b}", 2) if op == "and" else (f"{a} || {b}", 1)
            right = cast(expr.b, "int32") if expr.b.dtype == "bool" else expr.b
            return self._print(cast(binary(op, cast(expr.a, "int32"), right), "bool"))
        return self._integer(expr)

    def _comparison(self, op: str, a: Expr, b: Expr) -> tuple[str, int]:
        """Compilers warn where both sides read the same, or the type's range decides."""
        if a.dtype == "bool" and op in ("lt", "le"):
            negated = call("not", a)
            return self._print(binary("and" if op == "lt" else "or", negated, b))
        verdict = _known(op, a, b)
        if verdict is not None:
            other = self.text(b if isinstance(a, Const) else a, 9)
            return f"{other} - {other} {'==' if verdict else '!='} 0", 5
        (left, own), text = self._print(a), self.text(b, 9)
        if text != (f"({left})" if own < 9 else left):
            left = f"({left})" if own < 8 else left
            return f"{left} {_SYMBOL[op]} {text}", _LEVEL[op]
        symbol = "==" if op in ("eq", "le") else "!="
        if a.dtype != INDEX and DTYPES[a.dtype].kind == "f":
            never = "0 * " if op == "lt" else ""
            return f"{never}isnan({self.text(a)}) {symbol} 0", 5
        return f"{text} - {text} {symbol} 0", 5

    def _integer(self, expr: Binary) -> tuple[str, int]:
        """Print wrapping integer arithmetic: in an unsigned type wide enough not to promote."""
        op, dtype = expr.op, expr.dtype
        info = DTYPES[dtype]
        name = info.c_name
        # Operands are printed once: twice a level would take time exponential in the depth.
        if op in ("div", "mod", "floordiv", "floormod"):
            return f"nst_{op}_{dtype}({self.text(expr.a)}, {self.text(expr.b)})", _ATOM
        if op == "pow":
            wide = "uint64" if info.kind == "u" else "int64"
            return f"({name})nst_pow_{wide}({self.text(expr.a)}, {self.text(expr.b)})", _UNARY
        wide = "uint64_t" if info.nbytes == 8 else "uint32_t"
        if op in ("shl", "shr"):
            within = isinstance(expr.b, Const) and 0 <= expr.b.value < 8 * info.nbytes
            if not within:
                bits = self.text(expr.b, _UNARY)
                return f"nst_{op}_{dtype}({self.text(expr.a)}, (uint64_t){bits})", _ATOM
        left, right = self.text(expr.a, _UNARY), self.text(expr.b, _UNARY)
        if op == "shr":
            return f"({name})({left} >> {right})", _UNARY
        symbol = _INT_SYMBOL[op]
        bitwise = op in ("and", "or", "xor")
        if (bitwise and name != wide) or (
            # gcc 12 warns of (uint32_t)(f(x) & (uint32_t)i16), not when f(x) is cast too.
            name == wide and not (bitwise and isinstance(expr.b, Cast))
        ):
            return f"({name})({left} {symbol} {right})", _UNARY
        return f"({name})(({wide}){left} {symbol} ({wide}){right})", _UNARY

    def _infix(self, op: str, a: Expr, b: Expr) -> tuple[str, int]:
        level = _LEVEL[op]
        inner = 8 if op in ("lt", "le", "eq", "ne") else level
        return f"{self.text(a, inner)} {_SYMBOL[op]} {self.text(b, inner + 1)}", level


def _known(op: str, a: Expr, b: Expr) -> bool | None:
    """Return what an integer type's range says about a comparison with a literal, or None."""
    if a.dtype == INDEX or DTYPES[a.dtype].kind not in "iu":
        return None
    if isinstance(a, Const):
        low, high = _range(b)
        value = a.value
        below, above = value < low, value > high
        decided = {"lt": (below, value >= high), "le": (value <= low, above)}
    elif isinstance(b, Const):
        low, high = _range(a)
        value = b.value
        below, above = value < low, value > high
        decided = {"lt": (above, value <= low), "le": (value >= high, below)}
    else:
        return None
    beyond = below or above
    true, false = decided.get(op, (op == "ne" and beyond, op == "eq" and beyond))
    return True if true else False if false else None


def _range(expr: Expr) -> tuple[int, int]:
    """Return the range of an integer expression's type, or of the type it was widened from."""
    low, high = (-(2**31), 2**31 - 1) if expr.dtype == INDEX else int_range(expr.dtype)
    if isinstance(expr, Cast) and (expr.a.dtype == INDEX or DTYPES[expr.a.dtype].kind in "iub"):
        inner = _range(expr.a)
        if low <= inner[0] and inner[1] <= high:
            return inner
    return low, high
