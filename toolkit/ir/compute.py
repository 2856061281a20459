"""Compute expressions: what an operator calculates, with nothing about how.

    M, N, K = 8, 16, 32
    A, B = placeholder((M, K), "float32", "A"), placeholder((K, N), "float32", "B")
    k = reduce_axis(K, "k")
    C = compute((M, N), lambda i, j: sum(A[i, k] * B[k, j], k))

A `Tensor` is a placeholder or is defined by a stage over other tensors; a kernel is the directed
acyclic graph of tensors behind its outputs.  `toolkit.ir.build` turns it into a `PrimFunc`.  The
form follows TVM's tensor expressions (Chen et al., OSDI 2018, section 4.1).
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.ir.expr import as_expr, Const, const, Expr, INDEX, Load, loads, Operand, Var, walk
from toolkit.ir.types import DType, DTYPES, int_range, is_float, TensorType


@dataclass(frozen=True, slots=True)
class Axis(Var):
    """A named index range 0 <= name < extent; `role` is 'spatial', 'reduce' or 'scan'."""

    extent: int
    role: str


def reduce_axis(extent: int, name: str = "k") -> Axis:
    """Return an axis to reduce over."""
    return Axis(INDEX, name, int(extent), "reduce")


@dataclass(frozen=True, slots=True)
class Reduce:
    """The value of a reduction stage: `op` over `axes` of `value`, where `where` holds."""

    op: str
    value: Expr
    axes: tuple[Axis, ...]
    where: Expr | None = None
    init: Expr | None = None


REDUCE_OPS = ("sum", "prod", "max", "min")


def reduce_identity(op: str, dtype: DType) -> Const:
    """Return the neutral element of a reduction: 0, 1, or the type's lowest or highest value."""
    if op in ("sum", "prod"):
        return const(0 if op == "sum" else 1, dtype)
    sign = -1 if op == "max" else 1
    if is_float(dtype):
        return Const(dtype, sign * float("inf"))
    return const(int_range(dtype)[0 if op == "max" else 1], dtype)


def _reduce(op: str, value: Expr, axes: Axis | Sequence[Axis], where: Expr | None) -> Reduce:
    return Reduce(op, value, (axes,) if isinstance(axes, Axis) else tuple(axes), where)


def sum(value: Expr, axes: Axis | Sequence[Axis], *, where: Expr | None = None) -> Reduce:
    """Sum over reduce axes; terms where `where` does not hold are skipped."""
    return _reduce("sum", value, axes, where)


def prod(value: Expr, axes: Axis | Sequence[Axis], *, where: Expr | None = None) -> Reduce:
    """Product over reduce axes."""
    return _reduce("prod", value, axes, where)


def max(value: Expr, axes: Axis | Sequence[Axis], *, where: Expr | None = None) -> Reduce:
    """Largest value over reduce axes; a NaN term gives NaN."""
    return _reduce("max", value, axes, where)


def min(value: Expr, axes: Axis | Sequence[Axis], *, where: Expr | None = None) -> Reduce:
    """Smallest value over reduce axes; a NaN term gives NaN."""
    return _reduce("min", value, axes, where)


@dataclass(eq=False, slots=True)
class Tensor:
    """A tensor of a kernel: `stage` is None for a placeholder, else what defines it.

    `data` holds the value of a placeholder that is a compile-time constant, as a NumPy array.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    stage: Stage | None = None
    data: Any = None

    def __getitem__(self, index: Any) -> Load:
        items = index if isinstance(index, tuple) else (index,)
        if len(items) != len(self.shape):
            raise IndexError(f"tensor {self.name!r} has {len(self.shape)} axes, not {len(items)}")
        return Load(self.dtype, self, tuple(as_expr(i, INDEX) for i in items))

    @property
    def type(self) -> TensorType:
        """Shape and element type."""
        return TensorType(self.shape, self.dtype)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)


def placeholder(shape: Iterable[int], dtype: DType, name: str = "x", data: Any = None) -> Tensor:
    """Return a tensor that is given: an input or a constant of the kernel."""
    return Tensor(name, tuple(map(int, shape)), dtype, None, data)


@dataclass(eq=False, slots=True)
class ComputeStage:
    """Each element at `axes` is `body`, or the reduction `body`."""

    axes: tuple[Axis, ...]
    body: Expr | Reduce


@dataclass(eq=False, slots=True)
class ScatterStage:
    """A copy of `base`, then for each index in order: out[..] = combine(out[..], value).

    `combine` is 'set' or one of `REDUCE_OPS`.  `where` skips elements.
    """

    base: Tensor
    axes: tuple[Axis, ...]
    indices: tuple[Expr, ...]
    value: Expr
    combine: str
    where: Expr | None = None


@dataclass(eq=False, slots=True)
class Part:
    """One piece of an assembled tensor: out[indices] = value for every index of `axes`."""

    axes: tuple[Axis, ...]
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(eq=False, slots=True)
class AssembleStage:
    """A tensor put together from parts that write disjoint regions and together cover it."""

    parts: tuple[Part, ...]


@dataclass(eq=False, slots=True)
class ScanStage:
    """A recurrence: for step in 0..extent-1, `states` become `updates`, and `collect` is stored.

    `states` are placeholders that stand for the state before a step; `init` its first values;
    `updates` the state after it, tensors computed from `states` and the variable `step`.  The stage
    defines, in this order, each collected tensor with a new axis of `extent` at `collect_axis`,
    stored at index `collect_at` of it, and each final state.
    """

    step: Axis
    collect_at: Expr
    states: tuple[Tensor, ...]
    init: tuple[Tensor, ...]
    updates: tuple[Tensor, ...]
    collect: tuple[Tensor, ...]
    collect_axis: int = 0
    results: tuple[Tensor, ...] = field(default=())


@dataclass(eq=False, slots=True)
class OpaqueStage:
    """What no loop nest can say: a C function of the runtime or a generated one.

    Called as `function(outputs..., inputs..., scratch?, params...)`: pointers to the dense tensors,
    then the literal `params`.  `reference` is its meaning: NumPy arrays in, tuple of NumPy arrays
    out.
    """

    function: str
    inputs: tuple[Tensor, ...]
    params: tuple[Const, ...]
    scratch: TensorType | None
    reference: Callable[..., tuple[Any, ...]]
    results: tuple[Tensor, ...] = field(default=())


Stage = ComputeStage | AssembleStage | ScatterStage | ScanStage | OpaqueStage


def _axis_names(fn: Callable[..., Any], rank: int) -> list[str]:
    parameters = [
        p.name
        for p in inspect.signature(fn).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return parameters if len(parameters) == rank else [f"i{axis}" for axis in range(rank)]


def compute(
    shape: Iterable[int],
    fn: Callable[..., Operand | Reduce],
    name: str = "out",
    dtype: DType | None = None,
) -> Tensor:
    """Define a tensor element by element: `fn` gets one index a dimension and returns its value.

    The names of `fn`'s parameters become the names of the loops.  `dtype` is needed only
    where `fn` returns a Python number.
    """
    extents = tuple(map(int, shape))
    axes = tuple(
        Axis(INDEX, axis, extent, "spatial")
        for axis, extent in zip(_axis_names(fn, len(extents)), extents, strict=True)
    )
    body = fn(*axes)
    if isinstance(body, Reduce):
        return Tensor(name, extents, body.value.dtype, ComputeStage(axes, body))
    if not isinstance(body, Expr):
        if dtype is None:
            raise TypeError(f"compute {name!r}: a number alone needs dtype=")
        body = const(body, dtype)
    if body.dtype == INDEX:
        raise TypeError(f"compute {name!r}: an index is not an element; cast it to an element type")
    return Tensor(name, extents, body.dtype, ComputeStage(axes, body))


def scatter(
    base: Tensor,
    extents: Iterable[int],
    fn: Callable[..., tuple[Sequence[Operand], Expr]],
    *,
    combine: str = "set",
    where: Callable[..., Expr] | None = None,
    name: str = "out",
) -> Tensor:
    """Define a copy of `base` with elements overwritten or combined, in row-major order.

    `fn` gets one index an extent and returns (indices in the output, value).
    """
    sizes = tuple(map(int, extents))
    axes = tuple(Axis(INDEX, f"u{i}", extent, "scan") for i, extent in enumerate(sizes))
    indices, value = fn(*axes)
    guard = where(*axes) if where else None
    stage = ScatterStage(
        base, axes, tuple(as_expr(i, INDEX) for i in indices), value, combine, guard
    )
    return Tensor(name, base.shape, base.dtype, stage)


def assemble(
    shape: Iterable[int],
    parts: Iterable[tuple[Iterable[int], Callable[..., tuple[Sequence[Operand], Expr]]]],
    *,
    name: str = "out",
) -> Tensor:
    """Define a tensor from parts: (extents, fn), where `fn` gets one index an extent and returns
    (indices in the output, value).  The parts are disjoint and cover the output."""
    built = []
    for extents, fn in parts:
        sizes = tuple(map(int, extents))
        axes = tuple(
            Axis(INDEX, n, extent, "spatial")
            for n, extent in zip(_axis_names(fn, len(sizes)), sizes, strict=True)
        )
        indices, value = fn(*axes)
        built.append(Part(axes, tuple(as_expr(i, INDEX) for i in indices), value))
    return Tensor(name, tuple(map(int, shape)), built[0].value.dtype, AssembleStage(tuple(built)))


def scan(
    extent: int,
    init: Sequence[Tensor],
    step: Callable[..., tuple[Sequence[Tensor], Sequence[Tensor]]],
    *,
    reverse: bool = False,
    collect_axis: int = 0,
    name: str = "scan",
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Define a recurrence over `extent` steps; return (collected tensors, final states).

    `step(t, *states)` returns (new states, tensors to collect).  `t` counts 0..extent-1, or down
    from extent-1 when `reverse`; what a step collects is stored at index `t` of a new axis at
    `collect_axis`.
    """
    axis = Axis(INDEX, "t", int(extent), "scan")
    index: Expr = (extent - 1) - axis if reverse else axis
    states = tuple(placeholder(s.shape, s.dtype, f"{name}_s{i}") for i, s in enumerate(init))
    updates, collected = step(index, *states)
    stage = ScanStage(
        axis, index, states, tuple(init), tuple(updates), tuple(collected), collect_axis
    )
    outs = tuple(
        Tensor(
            f"{name}_y{i}",
            (*c.shape[:collect_axis], int(extent), *c.shape[collect_axis:]),
            c.dtype,
            stage,
        )
        for i, c in enumerate(collected)
    )
    finals = tuple(Tensor(f"{name}_f{i}", s.shape, s.dtype, stage) for i, s in enumerate(states))
    stage.results = (*outs, *finals)
    return outs, finals


def opaque(
    function: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[TensorType],
    reference: Callable[..., tuple[Any, ...]],
    *,
    params: Sequence[Const] = (),
    scratch: TensorType | None = None,
    name: str = "out",
) -> tuple[Tensor, ...]:
    """Define tensors by a C function; see `OpaqueStage`."""
    stage = OpaqueStage(function, tuple(inputs), tuple(params), scratch, reference)
    stage.results = tuple(
        Tensor(f"{name}{i}", t.shape, t.dtype, stage) for i, t in enumerate(outputs)
    )
    return stage.results


def accumulator_dtype(dtype: DType) -> DType:
    """Return the type in which sums of `dtype` are held: int32 for narrow integers, else itself."""
    info = DTYPES[dtype]
    return "int32" if info.kind in "iu" and info.nbytes < 4 else dtype


def stage_inputs(tensor: Tensor) -> list[Tensor]:
    """Return the tensors that `tensor`'s stage reads, in order of first use, without repeats."""
    found: dict[int, Tensor] = {}

    def see(source: Tensor) -> None:
        found.setdefault(id(source), source)

    def see_expr(expr: Expr) -> None:
        for load in loads(expr):
            see(load.buffer)

    match tensor.stage:
        case ComputeStage() | AssembleStage() as stage:
            for expr in stage_exprs(stage):
                see_expr(expr)
        case ScatterStage() as stage:
            see(stage.base)
            for expr in stage_exprs(stage):
                see_expr(expr)
        case ScanStage() as stage:
            for source in stage.init:
                see(source)
            body = scan_body(stage)
            inside = {id(t) for t in (*stage.states, *body)}
            for inner in (*body, *stage.updates, *stage.collect):
                for source in (inner, *stage_inputs(inner)):
                    if id(source) not in inside:
                        see(source)
        case OpaqueStage() as stage:
            for source in stage.inputs:
                see(source)
    return list(found.values())


def whole_uses(tensors: Iterable[Tensor]) -> builtins.set[int]:
    """Return the ids of tensors that a stage of `tensors` takes as a whole."""
    found: builtins.set[int] = builtins.set()
    for tensor in tensors:
        match tensor.stage:
            case ScatterStage() as stage:
                found.add(id(stage.base))
            case ScanStage() as stage:
                found.update(id(t) for t in (*stage.init, *stage.updates, *stage.collect))
            case OpaqueStage() as stage:
                found.update(id(t) for t in stage.inputs)
    return found


def scan_body(stage: ScanStage) -> list[Tensor]:
    """Return, in order, the tensors computed anew at each step of a scan."""
    inside = {id(s) for s in stage.states}
    body: list[Tensor] = []
    for tensor in topological((*stage.updates, *stage.collect), stop=inside):
        if tensor.stage is None or id(tensor) in inside:
            continue
        reads_step = any(e is stage.step for expr in stage_exprs(tensor.stage) for e in walk(expr))
        if reads_step or any(id(source) in inside for source in stage_inputs(tensor)):
            inside.add(id(tensor))
            body.append(tensor)
    return body


def stage_exprs(stage: Stage) -> list[Expr]:
    """Return the scalar expressions of a compute or scatter stage."""
    match stage:
        case ComputeStage(body=Reduce() as body):
            return [e for e in (body.value, body.where, body.init) if e is not None]
        case ComputeStage(body=Expr() as expr):
            return [expr]
        case AssembleStage():
            return [e for part in stage.parts for e in (*part.indices, part.value)]
        case ScatterStage():
            return [e for e in (*stage.indices, stage.value, stage.where) if e is not None]
    return []


def topological(
    outputs: Iterable[Tensor], *, stop: builtins.set[int] | None = None
) -> list[Tensor]:
    """Return every tensor behind `outputs`, each after what it reads; not beyond `stop`."""
    order: list[Tensor] = []
    done: builtins.set[int] = set()
    stack: list[tuple[Tensor, bool]] = [(output, False) for output in reversed(list(outputs))]
    while stack:
        item, expanded = stack.pop()
        if id(item) in done:
            continue
        if expanded or (stop is not None and id(item) in stop):
            done.add(id(item))
            order.append(item)
            continue
        stack.append((item, True))
        stack.extend((source, False) for source in reversed(stage_inputs(item)))
    return order
