"""Random compute expressions, and what they mean evaluated tensor by tensor, without loop IR."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toolkit.ir import compute as T
from toolkit.ir.arithmetic import Arithmetic, Value
from toolkit.ir.compute import (
    AssembleStage,
    Axis,
    ComputeStage,
    OpaqueStage,
    Reduce,
    scan_body,
    ScanStage,
    ScatterStage,
    Tensor,
    topological,
)
from toolkit.ir.expr import (
    all_of,
    binary,
    call,
    cast,
    Const,
    const,
    eq,
    Expr,
    INDEX,
    maximum,
    minimum,
    rewrite,
    select,
)
from toolkit.ir.interp import compile_expr, REDUCE_TO_OP
from toolkit.ir.types import is_float

# ------------------------------------------------------------------------------------ the meaning


def dag_values(
    outputs: Sequence[Tensor], arrays: dict[str, np.ndarray], arithmetic: Arithmetic
) -> list[dict[tuple[int, ...], Value]]:
    """Return the elements of each output.  Placeholders take `arrays[name]`, or their `data`."""
    values: dict[int, dict[tuple[int, ...], Value]] = {}

    def read(tensor: Any, index: tuple[int, ...]) -> Value:
        return values[id(tensor)][index]

    def ready(expr: Expr) -> Callable[[dict[str, int]], Value]:
        return compile_expr(expr, arithmetic, read)

    def envs(axes: Sequence[Axis], outer: dict[str, int]) -> Iterator[dict[str, int]]:
        for point in itertools.product(*(range(a.extent) for a in axes)):
            yield outer | {a.name: p for a, p in zip(axes, point, strict=True)}

    def evaluate(tensor: Tensor, step: dict[str, int]) -> None:
        if id(tensor) in values:
            return
        match tensor.stage:
            case None:
                array = arrays.get(tensor.name, tensor.data)
                values[id(tensor)] = {
                    index: arithmetic.const(v, tensor.dtype) for index, v in np.ndenumerate(array)
                }
            case ComputeStage(axes=axes, body=Reduce() as body):
                body = own_names(body)
                operation = arithmetic.operation(REDUCE_TO_OP[body.op], tensor.dtype)
                value = ready(body.value)
                where = None if body.where is None else ready(body.where)
                first = T.reduce_identity(body.op, tensor.dtype) if body.init is None else body.init
                start = ready(first)
                out = {}
                for env in envs(axes, step):
                    total = start(env)
                    for inner in envs(body.axes, env):
                        if where is None or where(inner):
                            total = operation(total, value(inner))
                    out[tuple(env[a.name] for a in axes)] = total
                values[id(tensor)] = out
            case ComputeStage(axes=axes, body=body):
                value = ready(body)  # type: ignore[arg-type]
                values[id(tensor)] = {
                    tuple(env[a.name] for a in axes): value(env) for env in envs(axes, step)
                }
            case AssembleStage() as stage:
                values[id(tensor)] = {}
                for part in stage.parts:
                    where_to, value = [ready(i) for i in part.indices], ready(part.value)
                    for env in envs(part.axes, step):
                        values[id(tensor)][tuple(i(env) for i in where_to)] = value(env)
            case ScatterStage() as stage:
                values[id(tensor)] = out = dict(values[id(stage.base)])
                where_to, value = [ready(i) for i in stage.indices], ready(stage.value)
                guard = None if stage.where is None else ready(stage.where)
                for env in envs(stage.axes, step):
                    if guard is not None and not guard(env):
                        continue
                    at, new = tuple(i(env) for i in where_to), value(env)
                    if stage.combine != "set":
                        op = REDUCE_TO_OP[stage.combine]
                        new = arithmetic.operation(op, tensor.dtype)(out[at], new)
                    out[at] = new
            case OpaqueStage() as stage:
                given = [
                    np.array(
                        [arithmetic.to_numpy(v, t.dtype) for v in values[id(t)].values()],
                        dtype=t.dtype,
                    ).reshape(t.shape)
                    for t in stage.inputs
                ]
                for result, array in zip(stage.results, stage.reference(*given), strict=True):
                    values[id(result)] = {
                        index: arithmetic.const(v, result.dtype)
                        for index, v in np.ndenumerate(array)
                    }
            case ScanStage() as stage:
                scan(stage)

    def scan(stage: ScanStage) -> None:
        count = len(stage.collect)
        collected, finals = stage.results[:count], stage.results[count:]
        for out in collected:
            values[id(out)] = {}
        for state, init in zip(stage.states, stage.init, strict=True):
            values[id(state)] = dict(values[id(init)])
        at = ready(stage.collect_at)
        axis = getattr(stage, "collect_axis", 0)
        body = scan_body(stage)
        for t in range(stage.step.extent):
            env = {stage.step.name: t}
            for tensor in body:
                evaluate(tensor, env)
            for out, source in zip(collected, stage.collect, strict=True):
                for index, v in values[id(source)].items():
                    values[id(out)][(*index[:axis], at(env), *index[axis:])] = v
            after = [dict(values[id(u)]) for u in stage.updates]
            for tensor in body:
                del values[id(tensor)]
            for state, value in zip(stage.states, after, strict=True):
                values[id(state)] = value
        for final, state in zip(finals, stage.states, strict=True):
            values[id(final)] = values[id(state)]

    for tensor in topological(outputs):
        evaluate(tensor, {})
    return [values[id(t)] for t in outputs]


def own_names(body: Reduce) -> Reduce:
    """Return a reduction whose axes are told apart by name, not only by identity."""
    fresh = {id(a): replace(a, name=f"{a.name}.r{n}") for n, a in enumerate(body.axes)}

    def fix(expr: Expr | None) -> Any:
        return None if expr is None else rewrite(expr, lambda e: fresh.get(id(e)))

    axes = tuple(fresh[id(a)] for a in body.axes)
    return Reduce(body.op, fix(body.value), axes, fix(body.where), fix(body.init))


# -------------------------------------------------------------------------------- random kernels


@dataclass
class Case:
    """A random kernel: outputs over inputs, and values for the inputs."""

    outputs: list[Tensor]
    inputs: list[Tensor]
    arrays: dict[str, np.ndarray]
    made: list[str] = field(default_factory=list)


OPAQUE_C = """
void nst_test_sort_float32(float *NST_RESTRICT y, const float *NST_RESTRICT x, int32_t n);
void nst_test_sort_float32(float *NST_RESTRICT y, const float *NST_RESTRICT x, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
        int32_t at = i;
        while (at > 0 && (y[at - 1] > x[i] || (isnan(y[at - 1]) && !isnan(x[i])))) {
            y[at] = y[at - 1];
            --at;
        }
        y[at] = x[i];
    }
}
"""


def _sorted(x: np.ndarray) -> tuple[np.ndarray]:
    return (np.sort(x.reshape(-1)).reshape(x.shape),)


class Generator:
    """Grows a pool of tensors by random stages."""

    def __init__(self, rng: np.random.Generator, *, libm: bool = True, opaque: bool = True) -> None:
        self.rng = rng
        self.case = Case([], [], {})
        self.pool: list[Tensor] = []
        self.count = 0
        self.libm, self.with_opaque = libm, opaque

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def input(self, dtype: str | None = None, rank: int | None = None) -> Tensor:
        """Add an input: eighths for floats, so that rationals stay small."""
        dtype = dtype or self.pick(["float32"] * 6 + ["float64", "int32", "int8", "uint8", "bool"])
        rank = int(self.rng.integers(0, 4)) if rank is None else rank
        shape = tuple(int(n) for n in self.rng.integers(1, 5, size=rank))
        if rank and self.chance(0.4):
            shape = (*shape[:-1], int(self.rng.integers(5, 36 if rank < 3 else 10)))
        if self.chance(0.03) and rank:
            shape = (0, *shape[1:])
        name = f"x{len(self.case.inputs)}"
        if is_float(dtype):
            array = (self.rng.integers(-16, 17, size=shape) / 8).astype(dtype)
        elif dtype == "bool":
            array = self.rng.integers(0, 2, size=shape).astype(bool)
        else:
            array = self.rng.integers(0 if dtype[0] == "u" else -9, 10, size=shape).astype(dtype)
        fixed = self.chance(0.4) and array.size != 1
        tensor = T.placeholder(shape, dtype, name, array if fixed else None)
        self.case.inputs.append(tensor)
        self.case.arrays[name] = np.asarray(array)
        self.pool.append(tensor)
        return tensor

    def tensor(self, wanted: Callable[[Tensor], bool] = lambda t: True) -> Tensor:
        """Return a tensor of the pool, recent ones more often."""
        found = [t for t in self.pool if wanted(t)]
        if not found:
            return self.input("float32", 2)
        back = min(int(self.rng.geometric(0.35)), len(found))
        return found[-back]

    def number(self, wanted: Callable[[Tensor], bool] = lambda t: True) -> Tensor:
        return self.tensor(lambda t: t.dtype != "bool" and wanted(t))

    # The stages.

    def unary(self) -> Tensor:
        x = self.tensor()
        if x.dtype == "bool":
            return T.compute(x.shape, lambda *i: call("not", x[i]), self.name())
        if is_float(x.dtype):
            fns = ["abs", "floor", "ceil", "trunc", "round"]
            if self.libm:
                fns += ["tanh", "sigmoid", "erf", "atan", "sqrt"]
            fn = self.pick(fns)
            return T.compute(x.shape, lambda *i: call(fn, x[i]), self.name())
        fn = self.pick(["abs", "not"])
        return T.compute(x.shape, lambda *i: call(fn, x[i]) + 1, self.name())

    def affine(self) -> Tensor:
        x = self.number()
        a, b = int(self.rng.integers(-3, 4)), int(self.rng.integers(0, 4))
        a = abs(a) if x.dtype[0] == "u" else a
        if self.chance(0.3):
            return T.compute(x.shape, lambda *i: maximum(x[i] * a + b, b), self.name())
        return T.compute(x.shape, lambda *i: x[i] * a + b, self.name())

    def combine(self) -> Tensor:
        x = self.number()
        y = self.number(lambda t: t.dtype == x.dtype and _broadcast(t.shape, x.shape) is not None)
        if y.dtype != x.dtype or (shape := _broadcast(x.shape, y.shape)) is None:
            y, shape = x, x.shape
        op = self.pick(["add", "sub", "mul", "min", "max", "lt", "select"] + ["floormod"] * (
            not is_float(x.dtype)))  # fmt: skip

        def at(t: Tensor, index: Sequence[Expr]) -> Expr:
            tail = index[len(index) - t.rank :]
            return t[tuple(0 if n == 1 else i for i, n in zip(tail, t.shape, strict=True))]

        def body(*i: Expr) -> Expr:
            a, b = at(x, i), at(y, i)
            match op:
                case "lt":
                    return a < b
                case "select":
                    return select(a < b, a + 1, b)
            return binary(op, a, b)

        return T.compute(shape, body, self.name())

    def convert(self) -> Tensor:
        x = self.tensor()
        target = self.pick(["float32", "float32", "float64", "int32", "int8", "uint8", "bool"])

        def body(*i: Expr) -> Expr:
            value = x[i]
            if is_float(x.dtype) and not is_float(target) and target != "bool":
                value = select(eq(value, value), minimum(maximum(value, 0.0), 100.0), 0.0)
            return cast(value, target)

        return T.compute(x.shape, body, self.name())

    def index_value(self) -> Tensor:
        x = self.tensor(lambda t: t.rank > 0)
        if x.rank == 0:
            return self.unary()

        def body(*i: Expr) -> Expr:
            return cast(i[0] * 3 - i[-1], "int32")

        return T.compute(x.shape, body, self.name())

    def reduce(self) -> Tensor:
        x = self.number(lambda t: t.rank > 0)
        if x.rank == 0:
            return self.affine()
        over = [d for d in range(x.rank) if self.chance(0.5)] or [int(self.rng.integers(x.rank))]
        axes = {d: T.reduce_axis(x.shape[d], self.pick(["k", "r"])) for d in over}
        ops = ["sum", "sum", "max", "min"] + (["prod"] if x.type.size < 20 else [])
        op = self.pick(ops)
        keep = self.chance(0.3)
        kept = [d for d in range(x.rank) if d not in axes]
        shape = [1 if d in axes else x.shape[d] for d in range(x.rank)] if keep else [
            x.shape[d] for d in kept]  # fmt: skip
        gated = self.chance(0.4)
        limit = int(self.rng.integers(0, 4))

        def body(*i: Expr) -> Reduce:
            spatial = dict(enumerate(i)) if keep else dict(zip(kept, i, strict=True))
            index = tuple(axes[d] if d in axes else spatial[d] for d in range(x.rank))
            where = None
            if gated:
                where = index[over[0]] < limit if self.chance(0.5) else x[index] < const(1, x.dtype)
            value = x[index]
            if self.chance(0.3):
                value = value * value
            return getattr(T, op)(value, list(axes.values()), where=where)

        return T.compute(shape, body, self.name())

    def matmul(self) -> Tensor:
        a = self.number(lambda t: t.rank == 2)
        b = self.number(lambda t: t.rank == 2 and t.dtype == a.dtype and t.shape[0] == a.shape[-1])
        if self.chance(0.5):
            b = self.input(a.dtype, 2)
        if a.rank != 2 or b.rank != 2 or a.dtype != b.dtype:
            return self.reduce()
        depth = min(a.shape[1], b.shape[0])
        k = T.reduce_axis(depth, "k")
        return T.compute(
            (a.shape[0], b.shape[1]), lambda i, j: T.sum(a[i, k] * b[k, j], k), self.name()
        )

    def permute(self) -> Tensor:
        x = self.tensor(lambda t: t.rank > 0)
        order = [int(d) for d in self.rng.permutation(x.rank)]
        flip = [self.chance(0.3) for _ in order]
        shape = [x.shape[d] for d in order]

        def body(*i: Expr) -> Expr:
            index: list[Expr] = [Const(INDEX, 0)] * x.rank
            for position, d in enumerate(order):
                index[d] = (x.shape[d] - 1) - i[position] if flip[position] else i[position]
            return x[tuple(index)]

        return T.compute(shape, body, self.name())

    def reshape(self) -> Tensor:
        x = self.tensor(lambda t: t.type.size > 0)
        size = x.type.size
        first = self.pick([n for n in range(1, size + 1) if size % n == 0])
        shape = (first, size // first)

        def body(i: Expr, j: Expr) -> Expr:
            flat = i * shape[1] + j
            index: list[Expr] = []
            for n in reversed(x.shape):
                index.insert(0, flat % n)
                flat = flat // n
            return x[tuple(index)]

        return T.compute(shape, body, self.name())

    def window(self) -> Tensor:
        x = self.number(lambda t: t.rank > 0 and t.type.size > 0)
        if x.rank == 0:
            return self.affine()
        n = x.shape[-1]
        width, stride = int(self.rng.integers(1, 4)), int(self.rng.integers(1, 3))
        dilation, pad = int(self.rng.integers(1, 3)), int(self.rng.integers(0, 3))
        out = max((n + 2 * pad - (width - 1) * dilation - 1) // stride + 1, 1)
        k = T.reduce_axis(width, "k")
        op = self.pick(["sum", "max", "min"])

        def body(*i: Expr) -> Reduce:
            at = i[-1] * stride + k * dilation - pad
            where = all_of(at >= 0, at < n)
            return getattr(T, op)(x[(*i[:-1], at)], k, where=where)

        return T.compute((*x.shape[:-1], out), body, self.name())

    def padded(self) -> Tensor:
        x = self.number(lambda t: t.rank > 0 and t.type.size > 0)
        if x.rank == 0:
            return self.affine()
        n, pad = x.shape[0], int(self.rng.integers(1, 3))

        def body(*i: Expr) -> Expr:
            at = i[0] - pad
            inside = all_of(at >= 0, at < n)
            assert inside is not None
            return select(inside, x[(at, *i[1:])], const(0, x.dtype))

        return T.compute((n + 2 * pad, *x.shape[1:]), body, self.name())

    def gather(self) -> Tensor:
        x = self.tensor(lambda t: t.rank > 0 and t.type.size > 0)
        where = self.tensor(lambda t: t.dtype in ("int32", "int8", "uint8") and t.rank <= 2)
        if x.rank == 0 or where.dtype not in ("int32", "int8", "uint8"):
            return self.permute()
        n = x.shape[0]

        def body(*i: Expr) -> Expr:
            at = cast(where[i[: where.rank]], INDEX)
            return x[(minimum(maximum(at, 0), n - 1), *i[where.rank :])]

        return T.compute((*where.shape, *x.shape[1:]), body, self.name())

    def concat(self) -> Tensor:
        x = self.tensor(lambda t: t.rank > 0)
        if x.rank == 0:
            return self.unary()
        axis = int(self.rng.integers(x.rank))

        def fits(t: Tensor) -> bool:
            return (
                t.rank == x.rank
                and t.dtype == x.dtype
                and all(a == b for d, (a, b) in enumerate(zip(t.shape, x.shape, strict=True))
                        if d != axis)
            )  # fmt: skip

        y = self.tensor(fits) if any(fits(t) for t in self.pool) else x
        parts = []
        start = 0
        for t in (x, y, x)[: int(self.rng.integers(2, 4))]:

            def part(*i: Expr, t: Tensor = t, start: int = start) -> tuple[list[Expr], Expr]:
                index = list(i)
                index[axis] = i[axis] + start
                return index, t[i]

            parts.append((t.shape, part))
            start += t.shape[axis]
        shape = list(x.shape)
        shape[axis] = start
        return T.assemble(shape, parts, name=self.name())

    def scatter(self) -> Tensor:
        base = self.number(lambda t: t.rank > 0 and t.type.size > 0)
        if base.rank == 0:
            return self.affine()
        n = base.shape[0]
        source = self.number(lambda t: t.dtype == base.dtype and t.rank > 0 and t.type.size > 0)
        if source.dtype != base.dtype or source.rank == 0 or source.type.size == 0:
            source = base
        combine = self.pick(["set", "sum", "max", "min", "prod"])
        scale = int(self.rng.integers(1, 4))
        extents = (source.shape[0], *base.shape[1:])
        inner = [min(a, b) for a, b in zip(base.shape[1:], source.shape[1:], strict=False)]
        extents = (source.shape[0], *inner, *base.shape[1 + len(inner) :])

        def value(u: Sequence[Expr]) -> Expr:
            index = (*u[: min(len(u), source.rank)], *[0] * (source.rank - len(u)))
            return source[tuple(index)]

        where = (lambda *u: value(u) < const(1, base.dtype)) if self.chance(0.3) else None
        return T.scatter(
            base, extents, lambda *u: ([(u[0] * scale) % n, *u[1:]], value(u)),
            combine=combine, where=where, name=self.name(),
        )  # fmt: skip

    def scan(self) -> Tensor:
        x = self.number(lambda t: t.rank >= 1 and is_float(t.dtype) and t.type.size > 0)
        if x.rank == 0 or not is_float(x.dtype):
            return self.affine()
        steps, shape = x.shape[0], x.shape[1:]
        init = T.compute(shape, lambda *i: const(1, x.dtype), self.name())
        deep = self.chance(0.5) and len(shape) == 1
        name = self.name()

        def step(t: Expr, state: Tensor) -> tuple[list[Tensor], list[Tensor]]:
            mixed = state
            if deep:
                k = T.reduce_axis(shape[0], "k")
                mixed = T.compute(
                    shape, lambda i: T.sum(state[k] * cast(i + 1 - k, x.dtype), k), f"{name}_m"
                )
            new = T.compute(shape, lambda *i: mixed[i] * 0.5 + x[(t, *i)], f"{name}_n")
            kept = new
            if self.chance(0.5):
                kept = T.compute(shape, lambda *i: new[i] * 2.0 - state[i], f"{name}_k")
            return [new], [kept]

        outs, finals = T.scan(steps, [init], step, reverse=self.chance(0.4), name=name)
        self.pool.append(finals[0])
        return outs[0]

    def opaque(self) -> Tensor:
        x = self.tensor(lambda t: t.dtype == "float32")
        if x.dtype != "float32" or not self.with_opaque:
            return self.unary()
        (out,) = T.opaque(
            "nst_test_sort_float32", [x], [x.type], _sorted,
            params=[const(x.type.size, "int32")], name=self.name(),
        )  # fmt: skip
        return out


STAGES = (
    "unary affine combine combine convert index_value reduce reduce matmul permute reshape window "
    "padded gather concat scatter scan opaque"
).split()


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return tuple(np.broadcast_shapes(a, b))
    except ValueError:
        return None


def random_case(
    rng: np.random.Generator, *, stages: int = 5, libm: bool = True, opaque: bool = True
) -> Case:
    """Return a random kernel of about `stages` stages, of bounded size."""
    made = Generator(rng, libm=libm, opaque=opaque)
    for _ in range(2):
        made.input()
    made.input("float32", 2)
    while len(made.case.made) < stages:
        kind = made.pick(STAGES)
        tensor = getattr(made, kind)()
        if tensor.type.size > 150:
            continue
        made.case.made.append(kind)
        made.pool.append(tensor)
    computed = [t for t in made.pool if t.stage is not None]
    outputs = [computed[-1]]
    if made.chance(0.4):
        outputs.append(made.pick(computed))
    read = {id(t) for t in topological(outputs)}
    case = made.case
    case.outputs = outputs
    case.inputs = [t for t in case.inputs if id(t) in read]
    return case
