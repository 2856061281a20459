"""Random typed expression trees over extreme values; float functions of the host's C library."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from functools import cache
from typing import Any

import numpy as np

from toolkit.ir.arithmetic import MeaningError, Typed, Unary, Value
from toolkit.ir.compute import Axis
from toolkit.ir.expr import (
    binary,
    BINARY_OPS,
    BOOL_FUNCTIONS,
    Call,
    call,
    cast,
    COMPARISONS,
    Const,
    const,
    Expr,
    FUNCTIONS,
    INDEX,
    Load,
    loads,
    maximum,
    minimum,
    select,
    Var,
)
from toolkit.ir.interp import compile_expr
from toolkit.ir.loop import Block, Buffer, Loop, PARAM, PrimFunc, SERIAL, SPATIAL
from toolkit.ir.types import DType, DTYPES, int_range, is_float

POINTS = 24
TYPES = tuple(DTYPES)
BITS = {
    "float32": ("int32", "uint32"),
    "float64": ("int64", "uint64"),
    "int32": ("float32",),
    "uint32": ("float32",),
    "int64": ("float64",),
    "uint64": ("float64",),
}


class LibmTyped(Typed):
    """Typed arithmetic with the transcendental functions of the C library of this machine."""

    def float_function(self, fn: str, dtype: DType) -> Unary:
        function = _libm(fn, dtype)
        if function is None:
            return super().float_function(fn, dtype)
        return lambda x: self.number(function(float(x)), dtype)

    def float_operation(self, op: str, dtype: DType) -> Any:
        if op == "pow":
            power = _libm("pow", dtype)
            assert power is not None
            return lambda a, b: self.number(power(float(a), float(b)), dtype)
        return super().float_operation(op, dtype)


@cache
def _libm(fn: str, dtype: DType) -> Any:
    if fn in ("floor", "ceil", "trunc", "abs", "round", "sqrt", "sigmoid"):
        return None
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    function = getattr(library, fn + ("f" if dtype == "float32" else ""))
    kind = ctypes.c_float if dtype == "float32" else ctypes.c_double
    function.restype = kind
    function.argtypes = [kind, kind] if fn == "pow" else [kind]
    return function


def extreme_values(dtype: DType, rng: np.random.Generator) -> list[Any]:
    """Return values at the edges of a type, and common ones."""
    if dtype == "bool":
        return [False, True]
    if is_float(dtype):
        info = np.finfo(dtype)
        edges = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, -7.25, 100.0, 1e-3]
        far = [math.inf, -math.inf, math.nan, float(info.max), float(info.min), float(info.tiny)]
        far += [float(info.smallest_subnormal), 2.0**31, -(2.0**63), 1e10]
        return [*edges, *edges, *far, *(float(x) for x in rng.normal(size=8) * 10)]
    low, high = int_range(dtype)
    near = [0, 1, 2, 3, 5, 7, 8, 31, 32, 63, 64, 100]
    if low < 0:
        near += [-1, -2, -3, -8]
    return [*near, low, low + 1, high, high - 1, (low + high) // 2]


class TreeGenerator:
    """Makes expressions over the buffers `x_<dtype>` and the axis `i`."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def pick(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def leaf(self, dtype: DType) -> Expr:
        roll = self.rng.random()
        if roll < 0.35:
            return const(self.pick(extreme_values(dtype, self.rng)), dtype)
        if roll < 0.42:
            return cast(self.index(1), dtype)
        return self.load(dtype)

    def load(self, dtype: DType) -> Expr:
        return Load(dtype, f"{self.pick('xy')}_{dtype}", (Var(INDEX, "i"),))

    def index(self, depth: int) -> Expr:
        """An index expression of small values."""
        roll = self.rng.random()
        if depth <= 0 or roll < 0.3:
            if roll < 0.1:
                return Const(INDEX, int(self.rng.integers(-9, 10)))
            if roll < 0.15:
                return cast(self.leaf(self.pick(["int8", "uint8", "bool"])), INDEX)
            return Var(INDEX, "i")
        op = self.pick(["add", "sub", "mul", "floordiv", "floormod", "min", "max", "select"])
        if op == "select":
            return select(self.tree("bool", 1), self.index(depth - 1), self.index(depth - 1))
        b = self.index(depth - 1)
        if op.startswith("floor"):
            b = Const(INDEX, self.pick([1, 2, 3, 8, -3]))
        if op == "mul":
            b = Const(INDEX, int(self.rng.integers(-5, 6)))
        return binary(op, self.index(depth - 1), b)

    def tree(self, dtype: DType, depth: int) -> Expr:
        """An expression of type `dtype`."""
        if depth <= 0:
            return self.leaf(dtype)
        kind = DTYPES[dtype].kind
        roll = self.rng.random()
        if roll < 0.12:
            arms = [self.tree(dtype, depth - 1) for _ in range(2)]
            if any(isinstance(arm, Const) for arm in arms):
                # g++ 14 warns of (int8_t)((uint32_t)(int8_t)((uint32_t)(c ? -8 : y) * 7u) ^ z),
                # where every conversion is explicit.
                arms = [self.load(dtype), self.load(dtype)]
            return select(self.tree("bool", depth - 1), *arms)
        if roll < 0.27:
            return self.conversion(dtype, depth)
        if roll < 0.45:
            return self.function(dtype, depth)
        if kind == "b" and roll < 0.75:
            op = self.pick(sorted(COMPARISONS))
            if self.rng.random() < 0.2:
                return binary(op, self.index(depth - 1), self.index(depth - 1))
            of = self.pick(TYPES)
            return binary(op, self.tree(of, depth - 1), self.tree(of, depth - 1))
        ops = [op for op in BINARY_OPS if op not in COMPARISONS]
        if kind == "f":
            ops = [op for op in ops if op not in ("and", "or", "xor", "shl", "shr")]
        op = self.pick(ops)
        right = dtype
        if op in ("shl", "shr") and self.rng.random() < 0.3:
            right = self.pick([t for t in TYPES if DTYPES[t].kind in "iu"])
        return binary(op, self.tree(dtype, depth - 1), self.tree(right, depth - 1))

    def conversion(self, dtype: DType, depth: int) -> Expr:
        source = self.pick(TYPES)
        inner = self.tree(source, depth - 1)
        if is_float(source) and DTYPES[dtype].kind in "iu" and self.rng.random() < 0.8:
            low, high = int_range(dtype)
            near = max(low, -1000), min(high, 1000)
            inner = minimum(maximum(inner, float(near[0])), float(near[1]))
        return cast(inner, dtype)

    def function(self, dtype: DType, depth: int) -> Expr:
        kind = DTYPES[dtype].kind
        if kind == "b" and self.rng.random() < 0.6:
            return call(self.pick(sorted(BOOL_FUNCTIONS)), self.tree(self.pick(TYPES), depth - 1))
        if dtype in BITS and self.rng.random() < 0.2:
            return Call(dtype, "bits", (self.tree(self.pick(BITS[dtype]), depth - 1),))
        names = [f for f in FUNCTIONS if f not in BOOL_FUNCTIONS and f not in ("bits", "not")]
        if kind == "b":
            return call("not", self.tree(dtype, depth - 1))
        if kind in "iu":
            names = ["abs", "floor", "ceil", "trunc", "round", "sqrt", "atan", "not", "not"]
        return call(self.pick(names), self.tree(dtype, depth - 1))


Sample = dict[str, list[Any]]


def sample(expr: Expr, rng: np.random.Generator) -> tuple[Sample, list[Value]] | None:
    """Choose values for the buffers of `expr` where it is defined; return them and its values.

    Element i of every buffer belongs to point i.  None if hardly any point is defined.
    """
    names = sorted({(load.buffer, load.dtype) for load in loads(expr)})
    edges = {name: extreme_values(dtype, rng) for name, dtype in names}
    values: Sample = {name: [] for name, _ in names}
    results: list[Value] = []
    point: dict[str, Value] = {}
    arithmetic = LibmTyped()
    run = compile_expr(expr, arithmetic, lambda buffer, _: point[buffer])
    for _ in range(4 * POINTS):
        raw = {name: edges[name][int(rng.integers(len(edges[name])))] for name, _ in names}
        point.update({name: arithmetic.const(raw[name], dtype) for name, dtype in names})
        try:
            result = run({"i": len(results)})
        except MeaningError:
            continue
        results.append(result)
        for name, value in raw.items():
            values[name].append(value)
        if len(results) == POINTS:
            return values, results
    return None


def function_of(expr: Expr, number: int) -> PrimFunc:
    """Return a function that stores `expr` at every point."""
    names = sorted({(load.buffer, load.dtype) for load in loads(expr)})
    buffers = tuple(Buffer(name, (POINTS,), dtype, PARAM) for name, dtype in names)
    out = Buffer("out", (POINTS,), expr.dtype, PARAM)
    axis = Axis(INDEX, "i", POINTS, "spatial")
    block = Block("out", (axis,), (Var(INDEX, "i"),), "out", (axis,), expr)
    return PrimFunc(f"e{number}", buffers, (out,), (), Loop("i", POINTS, SPATIAL, SERIAL, block))


def systematic() -> list[Expr]:
    """Return every operation, function and cast once on every type it has."""

    def x(dtype: DType, name: str = "x") -> Load:
        return Load(dtype, f"{name}_{dtype}", (Var(INDEX, "i"),))

    found: list[Expr] = []
    for dtype, info in DTYPES.items():
        bitwise = () if info.kind == "f" else ("and", "or", "xor", "shl", "shr")
        for op in BINARY_OPS:
            if op in bitwise or op not in ("and", "or", "xor", "shl", "shr"):
                found.append(binary(op, x(dtype), x(dtype, "y")))
        for fn in FUNCTIONS:
            if fn == "bits":
                found.extend(Call(t, fn, (x(dtype),)) for t in BITS.get(dtype, ()))
            elif fn == "not":
                found.extend([call(fn, x(dtype))] if info.kind != "f" else [])
            elif info.kind != "b" or fn in BOOL_FUNCTIONS:
                found.append(call(fn, x(dtype)))
        found.extend(cast(x(dtype), t) for t in TYPES if t != dtype)
        found.append(cast(Var(INDEX, "i"), dtype))
        found.append(select(x(dtype) < x(dtype, "y"), x(dtype), x(dtype, "y")))
    return found
