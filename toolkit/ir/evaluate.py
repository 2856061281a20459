"""Functions of constants evaluated at compile time, vectorised by NumPy.

The results are those of `interpret(func, inputs, exact=False)`, to the bit.  Nests of one block run
as array operations: packing, padding, gathering, sums.  What is not that simple (several blocks
that share loops, recurrences) is interpreted element by element.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.ir.arithmetic import MeaningError, Typed
from toolkit.ir.compute import reduce_identity
from toolkit.ir.expr import Binary, Call, Cast, Const, Expr, INDEX, Load, Select, Var, variables
from toolkit.ir.interp import interpret, REDUCE_TO_OP
from toolkit.ir.loop import Block, Loop, OpaqueCall, PrimFunc, SCAN, Seq, Stmt
from toolkit.ir.types import int_range, is_float

Env = Mapping[str, Any]
Mask = Any
"""Where a value is needed: a bool array, or None for everywhere."""

_TYPED = Typed()
_UFUNCS = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint}
_REDUCERS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
_LOOSE_ELEMENTS = 1 << 22
"""Reductions of integers take their terms at once when there are no more than this."""


class _Slow(Exception):
    """The function is not one that arrays can run."""


def evaluate(func: PrimFunc, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of a function by name; raise `MeaningError` where it has no meaning."""
    try:
        with np.errstate(all="ignore"):
            return _Arrays(func, inputs).run()
    except _Slow:
        return interpret(func, inputs, exact=False)


class _Arrays:
    """Runs one function on arrays.  Lives for one `evaluate`."""

    def __init__(self, func: PrimFunc, inputs: Mapping[str, np.ndarray]) -> None:
        self.func = func
        self.arrays: dict[str, np.ndarray] = {}
        self.written: dict[str, np.ndarray] = {}
        for name, buffer in func.buffers().items():
            given = inputs.get(name)
            if given is not None:
                array = np.array(given, dtype=buffer.dtype)
                assert array.shape == buffer.shape, f"{name} is {array.shape}, not {buffer.type}"
                self.arrays[name] = array
            else:
                self.arrays[name] = np.zeros(buffer.shape, dtype=buffer.dtype)
                self.written[name] = np.zeros(buffer.shape, dtype=bool)

    def run(self) -> dict[str, np.ndarray]:
        """Run the nests in order."""
        body = self.func.body
        for nest in body.body if isinstance(body, Seq) else (body,):
            self.nest(nest)
        for buffer in self.func.outputs:
            if not self.known(buffer.name).all():
                raise MeaningError(f"{self.func.name}: output {buffer.name} is not written whole")
        return {b.name: self.arrays[b.name] for b in self.func.outputs}

    def known(self, name: str) -> np.ndarray:
        """Return where a buffer has been written."""
        return self.written.get(name, np.ones((), dtype=bool))

    def nest(self, stmt: Stmt) -> None:
        """Run loops around one block, or a call."""
        loops: list[Loop] = []
        while isinstance(stmt, Loop):
            if stmt.role == SCAN:
                raise _Slow
            loops.append(stmt)
            stmt = stmt.body
        match stmt:
            case Block():
                self.block(stmt, loops)
            case OpaqueCall() if not loops:
                self.call(stmt)
            case _:
                raise _Slow

    def call(self, call: OpaqueCall) -> None:
        for name in call.inputs:
            if not self.known(name).all():
                raise MeaningError(f"call {call.name}: reads {name} before it is written")
        results = call.reference(*(self.arrays[n].copy() for n in call.inputs))
        for name, result in zip(call.outputs, results, strict=True):
            self.arrays[name][...] = result
            self.written[name][...] = True

    def block(self, block: Block, loops: Sequence[Loop]) -> None:
        reducing: set[str] = set()
        for axis, bind in zip(block.axes, block.binds, strict=True):
            if axis.role == "reduce":
                reducing |= variables(bind)
            elif axis.role == SCAN:
                raise _Slow
        outer = [l for l in loops if l.var not in reducing]
        inner = [l for l in loops if l.var in reducing]
        if block.reduce is None:
            self.store(block, self.grid(block, outer, inner))
            return
        if any(variables(e) & reducing for e in self.places(block)):
            raise _Slow
        if not block.update_only:
            start = {**self.grid(block, outer, []), **{l.var: 0 for l in inner}}
            self.initialise(block, self.bind(block, start))
        dtype = block.value.dtype
        every = int(np.prod([l.extent for l in loops], dtype=np.int64))
        loose = not is_float(dtype) and block.reduce in _REDUCERS and every <= _LOOSE_ELEMENTS
        if loose and inner and all(l.extent for l in loops):
            self.reduce_at_once(block, outer, inner)
            return
        spatial = self.grid(block, outer, [])
        for point in itertools.product(*(range(l.extent) for l in inner)):
            self.update(block, {**spatial, **dict(zip((l.var for l in inner), point, strict=True))})

    # One block

    def grid(self, block: Block, outer: Sequence[Loop], inner: Sequence[Loop]) -> dict[str, Any]:
        """Return each loop variable as an array along a dimension of its own."""
        rank = len(outer) + len(inner)
        result: dict[str, Any] = {}
        for d, loop in enumerate((*outer, *inner)):
            shape = [1] * rank
            shape[d] = loop.extent
            result[loop.var] = np.arange(loop.extent, dtype=np.int64).reshape(shape)
        return result

    def places(self, block: Block) -> list[Expr]:
        """Return what decides where a block stores, over loops."""
        names = {a.name: b for a, b in zip(block.axes, block.binds, strict=True)}
        used = set().union(*(variables(i) for i in block.indices)) if block.indices else set()
        return [names[n] if n in names else Var(INDEX, n) for n in sorted(used)]

    def bind(self, block: Block, env: Env) -> Env:
        """Return the values of the axes, or of the loops when the block has none."""
        if not block.axes:
            return env
        return {
            a.name: self.value(b, env, None) for a, b in zip(block.axes, block.binds, strict=True)
        }

    def inside(self, block: Block, env: Env, mask: Mask) -> Mask:
        """Return the mask without what a guard skips; refuse axes beyond their extents."""
        if block.guard is not None:
            mask = _both(mask, self.value(block.guard, env, mask))
        for axis in block.axes:
            at = env[axis.name]
            fits = (at >= 0) & (at < axis.extent)
            if not np.all(fits if mask is None else fits | ~np.asarray(mask)):
                raise MeaningError(f"block {block.name}: axis {axis.name} leaves its extent")
        return mask

    def subscripts(self, block: Block, env: Env, mask: Mask, shape: tuple[int, ...]) -> Any:
        """Return the places of all stores, as flat arrays of the points in `mask`."""
        buffer = self.arrays[block.buffer]
        found = []
        for index, extent in zip(block.indices, buffer.shape, strict=True):
            at = np.broadcast_to(self.value(index, env, mask), shape)
            at = at.reshape(-1) if mask is None else at[np.broadcast_to(mask, shape)]
            if at.size and (at.min() < 0 or at.max() >= extent):
                raise MeaningError(f"block {block.name}: stores outside {block.buffer}")
            found.append(at)
        return tuple(found)

    def put(self, block: Block, env: Env, mask: Mask, value: Any) -> None:
        """Store `value` at the block's places."""
        parts = [np.shape(v) for v in env.values()]
        shape = np.broadcast_shapes(np.shape(value), np.shape(mask), *parts)
        if 0 in shape:
            return
        at = self.subscripts(block, env, mask, shape)
        spread = np.broadcast_to(value, shape)
        spread = spread.reshape(-1) if mask is None else spread[np.broadcast_to(mask, shape)]
        target = self.arrays[block.buffer]
        if not at:
            if spread.size:
                target[()] = spread[-1]
                self.mark(block.buffer, ())
            return
        target[at] = spread
        self.mark(block.buffer, at)

    def mark(self, name: str, at: Any) -> None:
        if name in self.written:
            self.written[name][at] = True

    def store(self, block: Block, grid: Env) -> None:
        env = self.bind(block, grid)
        mask = self.inside(block, env, None)
        if any(np.size(v) == 0 for v in grid.values()):
            return
        self.put(block, {**grid, **env}, mask, self.value(block.value, env, mask))

    def initialise(self, block: Block, env: Env) -> None:
        assert block.reduce is not None
        mask: Mask = None
        for axis in block.axes:
            if axis.role != "reduce":
                fits = (env[axis.name] >= 0) & (env[axis.name] < axis.extent)
                mask = mask if np.all(fits) else _both(mask, fits)
        identity = reduce_identity(block.reduce, block.value.dtype)
        start = identity if block.init is None else block.init
        self.put(block, env, mask, self.value(start, env, mask))

    def update(self, block: Block, grid: Env) -> None:
        """Take one term of a reduction into every element."""
        assert block.reduce is not None
        if any(np.size(v) == 0 for v in grid.values()):
            return
        env = self.bind(block, grid)
        mask = self.inside(block, env, None)
        own = Load(block.value.dtype, block.buffer, block.indices)
        current = self.value(own, env, mask)
        term = self.value(block.value, env, mask)
        combined = self.binary(REDUCE_TO_OP[block.reduce], block.value.dtype, current, term)
        self.put(block, env, mask, combined)

    def reduce_at_once(self, block: Block, outer: Sequence[Loop], inner: Sequence[Loop]) -> None:
        """Reduce integers, whose order does not matter."""
        assert block.reduce is not None
        shape = tuple(l.extent for l in (*outer, *inner))
        env = self.bind(block, self.grid(block, outer, inner))
        mask = self.inside(block, env, None)
        dtype = block.value.dtype
        identity = self.value(reduce_identity(block.reduce, dtype), env, None)
        terms = self.value(block.value, env, mask)
        if mask is not None:
            terms = np.where(mask, terms, identity)
        terms = np.broadcast_to(terms, shape).astype(dtype)
        axes = tuple(range(len(outer), len(shape)))
        if dtype == "bool":
            reducer: Any = np.logical_or if block.reduce in ("sum", "max") else np.logical_and
            total = reducer.reduce(terms, axis=axes)
        else:
            total = _REDUCERS[block.reduce].reduce(terms, axis=axes, dtype=dtype)
        start = {**self.grid(block, outer, []), **{l.var: 0 for l in inner}}
        place = self.bind(block, start)
        own = Load(dtype, block.buffer, block.indices)
        fits: Mask = None
        for axis in block.axes:
            if axis.role != "reduce":
                good = (place[axis.name] >= 0) & (place[axis.name] < axis.extent)
                fits = fits if np.all(good) else _both(fits, good)
        combined = self.binary(
            REDUCE_TO_OP[block.reduce], dtype, self.value(own, place, fits), total
        )
        self.put(block, place, fits, combined)

    # Expressions

    def value(self, expr: Expr, env: Env, mask: Mask) -> Any:
        """Return an expression at every point, right wherever `mask` holds."""
        match expr:
            case Const():
                return expr.value if expr.dtype == INDEX else np.dtype(expr.dtype).type(expr.value)
            case Var():
                return env[expr.name]
            case Load():
                return self.load(expr, env, mask)
            case Binary(op="and" | "or") if expr.dtype == "bool":
                a = self.value(expr.a, env, mask)
                needed = a if expr.op == "and" else ~np.asarray(a)
                b = self.value(expr.b, env, _both(mask, needed))
                return np.where(needed, b, a)
            case Binary():
                a, b = self.value(expr.a, env, mask), self.value(expr.b, env, mask)
                return self.binary(expr.op, expr.a.dtype, a, b)
            case Call():
                return self.function(expr, self.value(expr.args[0], env, mask))
            case Cast():
                return self.cast(expr, self.value(expr.a, env, mask), mask)
            case Select():
                cond = np.asarray(self.value(expr.cond, env, mask))
                a = self.value(expr.a, env, _both(mask, cond))
                b = self.value(expr.b, env, _both(mask, ~cond))
                return np.where(cond, a, b)
        raise TypeError(f"not an expression: {expr!r}")

    def load(self, expr: Load, env: Env, mask: Mask) -> Any:
        array = self.arrays[expr.buffer]
        at = []
        for index, extent in zip(expr.indices, array.shape, strict=True):
            i = np.asarray(self.value(index, env, mask))
            outside = (i < 0) | (i >= extent)
            if outside.any():
                if np.any(outside if mask is None else outside & mask):
                    raise MeaningError(f"{expr.buffer} is read outside its {extent} elements")
                i = np.where(outside, 0, i)
            at.append(i)
        if array.size == 0:
            return np.zeros(np.broadcast_shapes(*(i.shape for i in at)), array.dtype)
        known = self.known(expr.buffer)
        if known.shape:
            fine = known[tuple(at)]
            if not np.all(fine if mask is None else fine | ~np.asarray(mask)):
                raise MeaningError(f"{expr.buffer} is read before it is written")
        elif not known:
            raise MeaningError(f"{expr.buffer} is read before it is written")
        return array[tuple(at)]

    def binary(self, op: str, dtype: str, a: Any, b: Any) -> Any:
        """Return an operation of `BINARY_OPS` on two arrays of type `dtype`."""
        match op:
            case "lt":
                return np.less(a, b)
            case "le":
                return np.less_equal(a, b)
            case "eq":
                return np.equal(a, b)
            case "ne":
                return np.not_equal(a, b)
        if dtype != "bool":
            match op:
                case "add":
                    return np.add(a, b)
                case "sub":
                    return np.subtract(a, b)
                case "mul":
                    return np.multiply(a, b)
                case "div" if is_float_type(dtype):
                    return np.divide(a, b)
                case "min":
                    return np.where(np.less(b, a) | np.not_equal(b, b), b, a)
                case "max":
                    return np.where(np.less(a, b) | np.not_equal(b, b), b, a)
                case "floordiv" if dtype == INDEX and np.all(np.asarray(b) != 0):
                    return np.floor_divide(a, b)
                case "floormod" if dtype == INDEX and np.all(np.asarray(b) != 0):
                    return np.remainder(a, b)
        return _each(_TYPED.operation(op, dtype), dtype, dtype, a, b)

    def function(self, expr: Call, x: Any) -> Any:
        source = expr.args[0].dtype
        if is_float_type(source) and expr.fn in _UFUNCS:
            return _UFUNCS[expr.fn](x)
        if is_float_type(source) and expr.fn in ("abs", "sqrt"):
            return np.abs(x) if expr.fn == "abs" else np.sqrt(x)
        return _each(_TYPED.function(expr.fn, source, expr.dtype), source, expr.dtype, x)

    def cast(self, expr: Cast, x: Any, mask: Mask) -> Any:
        source, target = expr.a.dtype, expr.dtype
        if target == "bool":
            return np.not_equal(x, 0)
        array = np.asarray(x)
        if is_float_type(source) and not is_float_type(target):
            low, high = int_range("int64" if target == INDEX else target)
            whole = np.trunc(array.astype(np.float64))
            fits = np.isfinite(whole) & (whole >= low) & (whole <= high)
            if not np.all(fits if mask is None else fits | ~np.asarray(mask)):
                raise MeaningError(f"a cast to {target} is undefined in C")
            array = np.where(fits, array, 0)
        return array.astype(np.int64 if target == INDEX else target)


def is_float_type(dtype: str) -> bool:
    """Tell whether a type of expressions is a floating one; `INDEX` is not."""
    return dtype != INDEX and is_float(dtype)


def _both(a: Mask, b: Mask) -> Mask:
    return b if a is None else a & b


def _each(operation: Any, source: str, target: str, *operands: Any) -> np.ndarray:
    """Apply an operation of the typed arithmetic element by element."""
    shape = np.broadcast_shapes(*(np.shape(x) for x in operands))
    rows = [np.broadcast_to(x, shape).reshape(-1) for x in operands]
    result = [operation(*(_TYPED.const(x, source) for x in row)) for row in zip(*rows, strict=True)]
    dtype: Any = np.int64 if target == INDEX else target
    return np.array(result, dtype=dtype).reshape(shape)
