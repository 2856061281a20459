"""The slow exact interpreter that gives loop IR its meaning.

A transformation is right when the function before and after it interprets to equal outputs.  The
interpreter also checks what a function promises: it refuses, naming the block, a subscript outside
its buffer, an axis outside its extent, a read of what nobody wrote, and an output left unwritten.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.ir.arithmetic import Arithmetic, Exact, MeaningError, Typed, Value
from toolkit.ir.compute import reduce_identity
from toolkit.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Var, variables
from toolkit.ir.loop import (
    Block,
    Buffer,
    Loop,
    OpaqueCall,
    PrimFunc,
    REGISTER,
    Seq,
    Stmt,
    walk_stmt,
)
from toolkit.ir.regions import reads, writes

Env = dict[str, int]
Eval = Callable[[Env], Value]

REDUCE_TO_OP = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "add": "add", "mul": "mul"}


class _Unset:
    def __repr__(self) -> str:
        return "unset"


UNSET = _Unset()


class Storage:
    """The elements of one buffer, row-major; `UNSET` where nothing was written."""

    def __init__(self, buffer: Buffer, values: list[Value] | None = None) -> None:
        self.buffer = buffer
        self.values = [UNSET] * buffer.type.size if values is None else values

    def clear(self) -> None:
        """Forget all elements."""
        self.values[:] = [UNSET] * len(self.values)

    def position(self, index: Sequence[int], where: str) -> int:
        """Return the place of an element; refuse subscripts outside the buffer."""
        at = 0
        for i, extent in zip(index, self.buffer.shape, strict=True):
            if not 0 <= i < extent:
                raise MeaningError(
                    f"{where}: {self.buffer.name}[{', '.join(map(str, index))}] lies outside "
                    f"{self.buffer.type}"
                )
            at = at * extent + i
        return at

    def read(self, index: Sequence[int], where: str) -> Value:
        """Return an element; refuse one that was never written."""
        value = self.values[self.position(index, where)]
        if value is UNSET:
            raise MeaningError(
                f"{where}: reads {self.buffer.name}[{', '.join(map(str, index))}] "
                "before it is written"
            )
        return value


def compile_expr(
    expr: Expr, arithmetic: Arithmetic, read: Callable[[Any, tuple[int, ...]], Value]
) -> Eval:
    """Turn an expression into a Python function of the variables; `read` fetches elements."""
    match expr:
        case Const():
            value = arithmetic.const(expr.value, expr.dtype)
            return lambda env: value
        case Var():
            name = expr.name
            return lambda env: env[name]
        case Load():
            buffer = expr.buffer
            subscripts = [compile_expr(i, arithmetic, read) for i in expr.indices]
            return lambda env: read(buffer, tuple(s(env) for s in subscripts))
        case Binary():
            a, b = (compile_expr(e, arithmetic, read) for e in (expr.a, expr.b))
            if expr.dtype == "bool" and expr.a.dtype == "bool" and expr.op in ("and", "or"):
                if expr.op == "and":
                    return lambda env: a(env) and b(env)
                return lambda env: a(env) or b(env)
            operation = arithmetic.operation(expr.op, expr.a.dtype)
            return lambda env: operation(a(env), b(env))
        case Call():
            (arg,) = (compile_expr(e, arithmetic, read) for e in expr.args)
            function = arithmetic.function(expr.fn, expr.args[0].dtype, expr.dtype)
            return lambda env: function(arg(env))
        case Cast():
            inner = compile_expr(expr.a, arithmetic, read)
            convert = arithmetic.cast(expr.a.dtype, expr.dtype)
            return lambda env: convert(inner(env))
        case Select():
            cond, a, b = (compile_expr(e, arithmetic, read) for e in (expr.cond, expr.a, expr.b))
            return lambda env: a(env) if cond(env) else b(env)
    raise TypeError(f"not an expression: {expr!r}")


class _Block:
    """A block ready to run."""

    def __init__(self, block: Block, machine: _Machine) -> None:
        where = f"block {block.name}"

        def read(buffer: Any, index: tuple[int, ...]) -> Value:
            return machine.storages[buffer].read(index, where)

        def ready(expr: Expr) -> Eval:
            return compile_expr(expr, machine.arithmetic, read)

        self.block, self.where = block, where
        self.target = machine.storages[block.buffer]
        self.axes = [(a, ready(b)) for a, b in zip(block.axes, block.binds, strict=True)]
        self.indices = [ready(i) for i in block.indices]
        self.value = ready(block.value)
        self.guard = None if block.guard is None else ready(block.guard)
        self.init: Eval | None = None
        if block.reduce is not None:
            op = REDUCE_TO_OP[block.reduce]
            self.combine = machine.arithmetic.operation(op, block.value.dtype)
            if not block.update_only:
                identity = reduce_identity(block.reduce, block.value.dtype)
                self.init = ready(identity if block.init is None else block.init)

    def bind(self, env: Env) -> Env:
        """Return the values of the axes, or the loop variables when the block has none."""
        return {a.name: bind(env) for a, bind in self.axes} if self.axes else env

    def check(self, env: Env) -> None:
        for axis, _ in self.axes:
            if not 0 <= env[axis.name] < axis.extent:
                raise MeaningError(
                    f"{self.where}: axis {axis.name} is {env[axis.name]}, its extent {axis.extent}"
                )

    def place(self, env: Env) -> int:
        return self.target.position([i(env) for i in self.indices], self.where)

    def start(self, loops: Env) -> None:
        """Initialise the element of a reduction, if the block has it."""
        assert self.init is not None
        env = self.bind(loops)
        if all(0 <= env[a.name] < a.extent for a, _ in self.axes if a.role != "reduce"):
            self.target.values[self.place(env)] = self.init(env)

    def run(self, loops: Env) -> None:
        env = self.bind(loops)
        if self.init is not None and all(
            env[a.name] == 0 for a, _ in self.axes if a.role == "reduce"
        ):
            self.start(loops)
        if self.guard is not None and not self.guard(env):
            return
        self.check(env)
        value = self.value(env)
        at = self.place(env)
        if self.block.reduce is not None:
            current = self.target.values[at]
            if current is UNSET:
                raise MeaningError(f"{self.where}: updates an element before it is initialised")
            value = self.combine(current, value)
        self.target.values[at] = value


class _Machine:
    """Runs one function.  Lives for one `interpret`."""

    def __init__(self, func: PrimFunc, inputs: Mapping[str, Any], arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self.func = func
        self.storages: dict[str, Storage] = {}
        for buffer in func.buffers().values():
            given = inputs.get(buffer.name)
            if given is None:
                self.storages[buffer.name] = Storage(buffer)
                continue
            array = np.asarray(given)
            assert array.shape == buffer.shape, f"{buffer.name} is {array.shape}, not {buffer.type}"
            self.storages[buffer.name] = Storage(
                buffer, [arithmetic.const(v, buffer.dtype) for v in array.reshape(-1)]
            )
        for buffer in func.inputs:
            assert buffer.name in inputs, f"input {buffer.name} is missing"
        self.ready: dict[int, _Block] = {}
        self.empty = {id(s): self.never_started(s) for s in walk_stmt(func.body) if _is_empty(s)}
        self.fresh: dict[int, list[Storage]] = {}
        for buffer in func.locals:
            home = home_loop(func.body, buffer.name) if buffer.scope == REGISTER else None
            if home is not None:
                self.fresh.setdefault(id(home), []).append(self.storages[buffer.name])

    def run(self, stmt: Stmt, env: Env) -> None:
        match stmt:
            case Loop():
                fresh = self.fresh.get(id(stmt), ())
                for value in range(stmt.extent):
                    env[stmt.var] = value
                    for storage in fresh:
                        storage.clear()
                    self.run(stmt.body, env)
                env.pop(stmt.var, None)
                if stmt.extent == 0:
                    self.run_empty(stmt, env)
            case Seq():
                for part in stmt.body:
                    self.run(part, env)
            case Block():
                self.block(stmt).run(env)
            case OpaqueCall():
                self.opaque(stmt)

    def block(self, block: Block) -> _Block:
        found = self.ready.get(id(block))
        if found is None:
            found = self.ready[id(block)] = _Block(block, self)
        return found

    def never_started(self, stmt: Stmt) -> list[tuple[list[Loop], Block]]:
        """Return the reductions under a loop of extent 0, with the loops of their other axes."""
        assert isinstance(stmt, Loop)
        found = []

        def visit(s: Stmt, loops: list[Loop]) -> None:
            match s:
                case Loop():
                    visit(s.body, [*loops, s])
                case Seq():
                    for part in s.body:
                        visit(part, loops)
                case Block() if s.reduce is not None and not s.update_only:
                    driving: set[str] = set()
                    for axis, bind in zip(s.axes, s.binds, strict=True):
                        if axis.role != "reduce":
                            driving |= variables(bind)
                    found.append(([l for l in loops if l.var in driving], s))

        visit(stmt, [])
        return found

    def run_empty(self, stmt: Loop, env: Env) -> None:
        """A reduction over nothing is its initial value."""
        for loops, block in self.empty[id(stmt)]:
            for values in itertools.product(*(range(l.extent) for l in loops)):
                inner = {name: 0 for b in block.binds for name in variables(b)} | env
                inner.update({l.var: v for l, v in zip(loops, values, strict=True)})
                ready = self.block(block)
                outside = [
                    variables(b)
                    for a, b in zip(block.axes, block.binds, strict=True)
                    if a.role == "reduce"
                ]
                if all(inner.get(v, 0) == 0 for names in outside for v in names):
                    ready.start(inner)

    def opaque(self, call: OpaqueCall) -> None:
        where = f"call {call.name}"
        arrays = []
        for name in call.inputs:
            storage = self.storages[name]
            if any(v is UNSET for v in storage.values):
                raise MeaningError(f"{where}: reads {name} before it is written")
            arrays.append(self.array(storage, typed=True))
        results = call.reference(*arrays)
        for name, result in zip(call.outputs, results, strict=True):
            storage = self.storages[name]
            array = np.asarray(result)
            if array.shape != storage.buffer.shape or str(array.dtype) != storage.buffer.dtype:
                raise MeaningError(
                    f"{where}: the reference gives {array.dtype}{list(array.shape)} for {name}, "
                    f"which is {storage.buffer.type}"
                )
            dtype = storage.buffer.dtype
            storage.values[:] = [self.arithmetic.const(v, dtype) for v in array.reshape(-1)]

    def array(self, storage: Storage, *, typed: bool) -> np.ndarray:
        """Return the elements as an array, of its element type or of exact objects."""
        buffer = storage.buffer
        if typed:
            values = [self.arithmetic.to_numpy(v, buffer.dtype) for v in storage.values]
            return np.array(values, np.dtype(buffer.dtype)).reshape(buffer.shape)
        result = np.empty(buffer.type.size, dtype=object)
        result[:] = storage.values
        return result.reshape(buffer.shape)


def _is_empty(stmt: Stmt) -> bool:
    return isinstance(stmt, Loop) and stmt.extent == 0


def home_loop(stmt: Stmt, buffer: str) -> Loop | None:
    """Return the innermost loop that holds every access to `buffer`: where a local is declared."""
    found: Loop | None = None
    while True:
        if isinstance(stmt, Loop):
            found, stmt = stmt, stmt.body
            continue
        if not isinstance(stmt, Seq):
            return found
        parts = [p for p in stmt.body if buffer in reads(p) | writes(p)]
        if len(parts) != 1:
            return found
        stmt = parts[0]


def interpret(
    func: PrimFunc,
    inputs: Mapping[str, Any],
    exact: bool = True,
    *,
    arithmetic: Arithmetic | None = None,
) -> dict[str, np.ndarray]:
    """Run a function at any stage of scheduling and lowering; return its outputs by name.

    `exact`: outputs are object arrays of Fraction, int or bool; else arrays of the outputs' types,
    each operation rounded as in C.  `inputs` may also hold what lies in an output before the call.
    Raises `MeaningError` where the function has no meaning.
    """
    machine = _Machine(func, inputs, arithmetic or (Exact() if exact else Typed()))
    machine.run(func.body, {})
    result = {}
    for buffer in func.outputs:
        storage = machine.storages[buffer.name]
        for at, value in enumerate(storage.values):
            if value is UNSET:
                index = ", ".join(map(str, np.unravel_index(at, buffer.shape)))
                raise MeaningError(f"{func.name}: output {buffer.name}[{index}] is never written")
        result[buffer.name] = machine.array(storage, typed=not machine.arithmetic.exact)
    return result


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two results of `interpret` are equal, element by element; nan equals nan."""

    def is_nan(x: Any) -> bool:
        return isinstance(x, float | np.floating) and math.isnan(x)

    return a.shape == b.shape and all(
        (is_nan(x) and is_nan(y)) or x == y
        for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)
    )
