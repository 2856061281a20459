"""Operands to check and to time candidates with, and the reference they are checked against.

The values are seeded, so every machine and every run makes the same, and a board can make them too
(`rpc.pattern`), so that they need not be sent.  Inputs to check with hold
awkward ones (zeros of both signs, denormals, values far larger than the rest); those to time with
do not, because denormals take a slow path in some cores that would be counted as the kernel's.

The reference is the base function, unscheduled, with float32 widened to float64, compiled by the
same compiler: no step, no unrolling and no vector code can be wrong in the same way.  It is run a
second time in float32: where the two differ by more than the tolerance, the function is ill
conditioned, and an element may be as far off as they are apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from toolkit.ir.expr import Call, Cast, cast, Const, Expr, INDEX, Load, walk
from toolkit.ir.loop import (
    Block,
    blocks,
    Buffer,
    CONST,
    map_block,
    OpaqueCall,
    PrimFunc,
    rewrite_stmt,
    Stmt,
    walk_stmt,
)
from toolkit.ir.regions import block_loads
from toolkit.ir.types import DTYPES, is_float
from toolkit.lowering.kernels import inplace_pairs, pack_constant
from toolkit.measure.candidates.check import Expected
from toolkit.measure.candidates.source import Operand, Printed
from toolkit.measure.rpc.pattern import KINDS, pattern, words
from toolkit.space.task import Candidate, Task

_AWKWARD = (0.0, -0.0, 1e-40, -1e-42, 100.0, -100.0, 1e-6, -1.0)
AWKWARD_STEP = 61
"""Every how manieth element of an input is awkward: few enough that the others set the scale."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the values of an input are made: the arguments of `pattern`, and which are awkward."""

    dtype: str
    seed: int
    low: int = 0
    span: int = 0
    positive: bool = False
    awkward: bool = False

    def make(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the values, awkward ones and all."""
        count = math.prod(shape)
        values = pattern(
            self.dtype, self.seed, count, low=self.low, span=self.span, positive=self.positive
        )
        if self.awkward:
            values[::AWKWARD_STEP] = np.resize(self.awkward_values(), -(-count // AWKWARD_STEP))
        return values.reshape(shape)

    def awkward_values(self) -> np.ndarray:
        """Return the awkward values, which are taken in turns."""
        values = np.asarray(_AWKWARD, dtype=np.float64).astype(self.dtype)
        return np.abs(values) if self.positive else values


@dataclass(frozen=True, slots=True, eq=False)
class TaskData:
    """Values of a base function's inputs, by name: to check with, and to time with.

    `recipes`: of those to check with; none where a board cannot make them.
    """

    check: Mapping[str, np.ndarray]
    time: Mapping[str, np.ndarray]
    recipes: Mapping[str, Recipe]


def task_data(func: PrimFunc, seed: int, *, positive: bool = False) -> TaskData:
    """Make the operands of a base function.  `positive`: no negative floats, for functions that
    have no value there (logarithms, roots)."""
    check: dict[str, np.ndarray] = {}
    time: dict[str, np.ndarray] = {}
    recipes: dict[str, Recipe] = {}
    for number, buffer in enumerate(func.inputs):
        name, shape = buffer.name, buffer.shape
        recipe = _recipe(buffer, _index_limit(func, name), seed, number, positive)
        time[name] = check[name] = recipe.make(shape).astype(buffer.dtype)
        if buffer.scope != CONST and is_float(buffer.dtype):
            recipe = replace(recipe, awkward=True)
            check[name] = recipe.make(shape).astype(buffer.dtype)
        if recipe.dtype == buffer.dtype:
            recipes[name] = recipe
    return TaskData(check, time, recipes)


def _recipe(buffer: Buffer, limit: int | None, seed: int, number: int, positive: bool) -> Recipe:
    """Say how the values of an input are made, in a type that every board can make."""
    info = DTYPES[buffer.dtype]
    own = int(words(seed, number, 1)[0])
    if info.kind == "f":
        return Recipe("float32", own, positive=positive)
    dtype = buffer.dtype if buffer.dtype in KINDS else "int32"
    if info.kind == "b":
        return Recipe(dtype, own, span=2)
    if limit is not None:
        return Recipe(dtype, own, span=max(limit, 1))
    return Recipe(dtype, own, span=0 if info.nbytes == 1 else 10)


def _index_limit(func: PrimFunc, name: str) -> int | None:
    """Return the shortest dimension that values of a buffer are subscripts of; None for none."""
    shapes = {n: b.shape for n, b in func.buffers().items()}
    found: list[int] = []

    def look(buffer: str, indices: tuple[Expr, ...]) -> None:
        for extent, index in zip(shapes[buffer], indices, strict=True):
            if any(isinstance(e, Load) and e.buffer == name for e in walk(index)):
                found.append(extent)

    for block in blocks(func.body):
        look(block.buffer, block.indices)
        for load in block_loads(block):
            look(load.buffer, load.indices)
    return min(found, default=None)


class _Narrow(Exception):
    """The function has no float64 form: it looks at the bits of a float32, or calls C."""


def widen(func: PrimFunc) -> PrimFunc:
    """Return the function with float32 replaced by float64; unchanged where that has no meaning."""

    def expr(e: Expr) -> Expr | None:
        match e:
            case Call(fn="bits"):
                raise _Narrow
            case Const(dtype="float32"):
                return Const("float64", float(np.float32(e.value)))
            case Load(dtype="float32") | Call(dtype="float32"):
                return replace(e, dtype="float64")
            case Cast(dtype="float32"):
                return cast(e.a, "float64")
        return None

    def stmt(s: Stmt) -> Stmt | None:
        if isinstance(s, OpaqueCall):
            raise _Narrow
        return map_block(s, expr) if isinstance(s, Block) else None

    def wide(parts: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(replace(b, dtype="float64") if b.dtype == "float32" else b for b in parts)

    try:
        body = rewrite_stmt(func.body, stmt)
    except _Narrow:
        return func
    assert body is not None
    return PrimFunc(func.name, wide(func.inputs), wide(func.outputs), wide(func.locals), body)


def is_exact(func: PrimFunc) -> bool:
    """Tell whether no float takes part, so that every element is exactly one value."""
    kinds = {b.dtype for b in func.buffers().values()}
    for s in walk_stmt(func.body):
        if isinstance(s, Block):
            kinds.update(e.dtype for e in walk(s.value))
    return not any(k != INDEX and is_float(k) for k in kinds)


@dataclass(slots=True)
class TaskState:
    """What is known of a task: operands, expected outputs, the time of the reference, and the best
    cost so far, in the measurer's unit."""

    task: Task
    data: TaskData
    expected: tuple[Expected, ...]
    reference_s: float
    best: float | None = None


def operand_value(
    candidate: Candidate, operand: Operand, values: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """Return the data of an input, or of a constant as a candidate lays it out; None for others."""
    if operand.role == "const":
        packed = pack_constant(candidate.trace, operand.name, values.__getitem__)
        return packed.reshape(operand.type.shape)  # which NumPy takes from scalars
    return values[operand.name] if operand.role == "input" else None


def flash_bytes(printed: Printed, code_bytes: int) -> int:
    """Return the bytes of a kernel's code and of its constants as it lays them out."""
    return code_bytes + sum(o.type.nbytes for o in printed.operands if o.role == "const")


def ram_bytes(candidate: Candidate, printed: Printed) -> int:
    """Return a kernel's scratch, and the operands that the default plan shares and it cannot."""
    lost = 0
    if candidate.task.inplace:
        pairs = inplace_pairs(candidate.func)
        sizes = {b.name: b.type.nbytes for b in candidate.task.func.inputs}
        lost = sum(sizes[a] for a, b in candidate.task.inplace if pairs.get(a) != b)
    return printed.scratch_bytes + lost
