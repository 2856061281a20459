"""Per-statement features of scheduled functions, for cost models.

After Zheng et al., Ansor (OSDI 2020), appendix B: every store of a program is described by its
arithmetic, its loops, its accesses and its arithmetic intensity; a model's predictions for the
stores of a program add up to the program's.  Two halves: `describe` reads one function into plain
numbers without simplifying any expression, and `featurise` turns the descriptions of a whole
population into one matrix by array operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from toolkit.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Var, walk
from toolkit.ir.loop import (
    answers,
    Block,
    CONST,
    Loop,
    OpaqueCall,
    PARALLEL,
    PrimFunc,
    REDUCE,
    REGISTER,
    SCRATCH,
    Stmt,
    UNROLL,
    VECTORIZE,
)
from toolkit.ir.types import DTYPES
from toolkit.targets.target import Target

MAX_LOOPS = 14
"""Loops around a statement that are told apart; more outer ones are multiplied into the first."""

MAX_ACCESSES = 5
"""Accesses of a statement that have features of their own: the store, then the largest loads."""

LINE_BYTES = 64
_KINDS = {UNROLL: 1, VECTORIZE: 2, PARALLEL: 3}
_OPS = ("fma", "add", "mul", "div", "compare", "call", "select", "integer")


@dataclass(frozen=True, slots=True)
class _Access:
    """One access: its distance in elements along each axis of its block, and its buffer."""

    buffer: str
    strides: tuple[float, ...]
    size: int
    item_bytes: int
    const: bool
    local: bool
    write: bool


@dataclass(frozen=True, slots=True)
class _Body:
    """What does not depend on loops: operations per execution, and accesses."""

    ops: tuple[int, ...]
    accesses: tuple[_Access, ...]
    guarded: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """One store as numbers.  `loops`: (extent, kind, reduces), outermost first; `steps`: of each
    axis, its change per step of each loop; `homes`: for each access, how many outer loops hold all
    accesses to its buffer (0 for operands)."""

    body: _Body
    loops: tuple[tuple[int, int, bool], ...]
    steps: tuple[dict[str, float], ...]
    names: tuple[str, ...]
    homes: tuple[int, ...]


def describe(func: PrimFunc) -> list[Statement]:
    """Read a scheduled function into numbers; no expression is simplified or rewritten."""
    buffers = func.buffers()
    found = list(_nests(func.body, ()))
    paths: dict[str, tuple[Loop, ...]] = {}
    shapes = tuple((n, b.shape, b.dtype, b.scope) for n, b in buffers.items())
    bodies = []
    for loops, block in found:
        body = _body(block.value, block.indices, block.guard, block.buffer, block.reduce,
                     tuple(a.name for a in block.axes), shapes)  # fmt: skip
        bodies.append(body)
        for access in body.accesses:
            if access.local:
                held = paths.get(access.buffer)
                paths[access.buffer] = loops if held is None else _shared(held, loops)
    result = []
    for (loops, block), body in zip(found, bodies, strict=True):
        result.append(
            Statement(
                body,
                tuple((l.extent, _KINDS.get(l.kind, 0), l.role == REDUCE) for l in loops),
                tuple(_steps(bind) for bind in block.binds),
                tuple(l.var for l in loops),
                tuple(len(paths[a.buffer]) if a.local else 0 for a in body.accesses),
            )
        )
    return result


def _nests(stmt: Stmt, loops: tuple[Loop, ...]) -> Iterator[tuple[tuple[Loop, ...], Block]]:
    if isinstance(stmt, Block):
        yield loops, stmt
    elif isinstance(stmt, Loop):
        yield from _nests(stmt.body, (*loops, stmt))
    elif not isinstance(stmt, OpaqueCall):
        for part in stmt.body:
            yield from _nests(part, loops)


def _shared(a: tuple[Loop, ...], b: tuple[Loop, ...]) -> tuple[Loop, ...]:
    n = 0
    while n < len(a) and n < len(b) and a[n] is b[n]:
        n += 1
    return a[:n]


def _steps(bind: Expr) -> dict[str, float]:
    """Return how far an axis moves per step of each loop, loops of one axis added by maximum."""
    match bind:
        case Var():
            return {bind.name: 1.0}
        case Binary(op="add", a=a, b=b):
            result = dict(_steps(a))
            for name, k in _steps(b).items():
                result[name] = max(result.get(name, 0.0), k)
            return result
        case Binary(op="sub", a=a):
            return _steps(a)
        case Binary(op="mul", a=a, b=Const(value=k)) | Binary(op="mul", a=Const(value=k), b=a):
            return {name: step * abs(k) for name, step in _steps(a).items()}
        case Binary(op="floordiv", a=a, b=Const(value=k)):
            return {name: step / max(abs(k), 1) for name, step in _steps(a).items()}
        case Binary(op="floormod" | "min" | "max", a=a, b=Const()):
            return _steps(a)
        case Binary(a=a, b=b):
            return {**_steps(a), **_steps(b)}
    return {}


@lru_cache(maxsize=4096)
def _body(
    value: Expr,
    indices: tuple[Expr, ...],
    guard: Expr | None,
    buffer: str,
    reduce: str | None,
    axes: tuple[str, ...],
    shapes: tuple[tuple[str, tuple[int, ...], str, str], ...],
) -> _Body:
    """Count the operations of a store and find its accesses; equal stores are looked at once."""
    known = {name: (shape, dtype, scope) for name, shape, dtype, scope in shapes}
    counts = dict.fromkeys(_OPS, 0)
    for expr in walk(value):
        match expr:
            case Binary(op="mul" | "add" | "sub", dtype="float32" | "float64"):
                counts["mul" if expr.op == "mul" else "add"] += 1
            case Binary(op="div"):
                counts["div"] += 1
            case Binary(op="lt" | "le" | "eq" | "ne" | "min" | "max"):
                counts["compare"] += 1
            case Binary() if expr.dtype != "index":
                counts["integer"] += 1
            case Call():
                counts["call"] += 1
            case Select():
                counts["select"] += 1
            case Cast():
                counts["integer"] += 1
    if reduce in ("sum", "add"):
        fused = isinstance(value, Binary) and value.op == "mul" and counts["mul"] > 0
        counts["fma" if fused else "add"] += 1
        counts["mul"] -= fused
    elif reduce is not None:
        counts["compare"] += 1
    found: dict[tuple[str, tuple[float, ...]], _Access] = {}
    store = Load("", buffer, indices)
    # Loads are kept by buffer and strides: the taps of a window unrolled by hand count once.
    for load in (store, *(e for e in walk(value) if isinstance(e, Load))):
        shape, dtype, scope = known[load.buffer]
        strides = dict.fromkeys(axes, 0.0)
        size = 1
        for index, extent in zip(reversed(load.indices), reversed(shape), strict=True):
            for name, k in _steps(index).items():
                if name in strides:
                    strides[name] = max(strides[name], k * size)
            size *= extent
        key = (load.buffer, tuple(strides.values()))
        found.setdefault(
            key,
            _Access(
                load.buffer, key[1], size, DTYPES[dtype].nbytes, scope == CONST,
                scope in (SCRATCH, REGISTER), load is store,
            ),
        )  # fmt: skip
    first, *rest = found.values()
    rest.sort(key=lambda a: (-a.size * a.item_bytes, a.buffer))
    return _Body(
        tuple(counts[op] for op in _OPS), (first, *rest[: MAX_ACCESSES - 1]), guard is not None
    )


def featurise(
    programs: Sequence[Sequence[Statement]], target: Target
) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of all statements, [statements, F], and the program each belongs to."""
    statements = [s for program in programs for s in program]
    owner = np.repeat(np.arange(len(programs)), [len(p) for p in programs])
    if not statements:
        return np.zeros((0, len(feature_names())), np.float32), owner
    columns = _columns(_arrays(statements), target)
    # The last bits of NumPy's logarithms depend on where in an array a number stands.
    matrix = np.stack([*columns.values()], axis=1).round(3).astype(np.float32)
    return matrix, owner


def features(funcs: Sequence[PrimFunc], target: Target) -> tuple[np.ndarray, np.ndarray]:
    """Return what `featurise` does; functions that were asked about before are not read again."""
    name = "features", target.name
    new = list({id(f): f for f in funcs if name not in answers(f)}.values())
    if new:
        described = [describe(f) for f in new]
        matrix, _ = featurise(described, target)
        ends = itertools.accumulate(map(len, described))
        for func, rows in zip(new, np.split(matrix, list(ends)[:-1]), strict=True):
            # A copy, so that one function kept does not keep the whole matrix.
            answers(func)[name] = rows.copy()
    parts = [answers(f)[name] for f in funcs]
    owner = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    empty = np.zeros((0, len(feature_names())), np.float32)
    return np.concatenate([empty, *parts]), owner


def feature_names() -> tuple[str, ...]:
    """Return the names of the columns of `featurise`."""
    return _names()


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    from toolkit.targets.target import TARGETS

    empty = Statement(_Body((0,) * len(_OPS), (), False), (), (), (), ())
    return tuple(_columns(_arrays([empty]), TARGETS["generic"]))


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Statements as arrays, loops right-aligned: the innermost is last.

    `extent`, `kind`, `reduces`: [statements, loops]; `stride` [statements, accesses, loops] in
    elements; `size`, `item`, `const`, `local`, `write`, `home` [statements, accesses]; `ops`
    [statements, kinds of operations].
    """

    extent: np.ndarray
    kind: np.ndarray
    reduces: np.ndarray
    stride: np.ndarray
    size: np.ndarray
    item: np.ndarray
    const: np.ndarray
    local: np.ndarray
    write: np.ndarray
    home: np.ndarray
    ops: np.ndarray
    guarded: np.ndarray
    loops: np.ndarray


def _arrays(statements: Sequence[Statement]) -> _Arrays:
    rows, depth = len(statements), MAX_LOOPS
    extent = np.ones((rows, depth))
    kind = np.zeros((rows, depth), np.int8)
    reduces = np.zeros((rows, depth), bool)
    stride = np.zeros((rows, MAX_ACCESSES, depth))
    facts = np.zeros((rows, MAX_ACCESSES, 5))
    home = np.zeros((rows, MAX_ACCESSES), np.int64)
    for row, s in enumerate(statements):
        n = len(s.loops)
        shift = depth - n
        if n:
            kept = s.loops[max(-shift, 0) :]
            at = max(shift, 0)
            extent[row, at:] = [l[0] for l in kept]
            kind[row, at:] = [l[1] for l in kept]
            reduces[row, at:] = [l[2] for l in kept]
            for l in s.loops[: max(-shift, 0)]:
                extent[row, 0] *= l[0]
        position = {name: p + shift for p, name in enumerate(s.names)}
        for a, access in enumerate(s.body.accesses):
            line = stride[row, a]
            for along, steps in zip(access.strides, s.steps, strict=True):
                if along:
                    for name, k in steps.items():
                        p = position.get(name, -1)
                        if p >= 0 and along * k > line[p]:
                            line[p] = along * k
            facts[row, a] = (
                access.size, access.item_bytes, access.const, access.local, access.write,
            )  # fmt: skip
            home[row, a] = max(s.homes[a] + shift, 0) if access.local else 0
    return _Arrays(
        extent, kind, reduces, stride, facts[:, :, 0], facts[:, :, 1], facts[:, :, 2] > 0,
        facts[:, :, 3] > 0, facts[:, :, 4] > 0, home,
        np.array([s.body.ops for s in statements], float).reshape(rows, len(_OPS)),
        np.array([s.body.guarded for s in statements], float),
        np.array([len(s.loops) for s in statements], float),
    )  # fmt: skip


def _suffix_product(x: np.ndarray) -> np.ndarray:
    """Return products of x[..., d:], with one more entry for the empty suffix."""
    tail = np.cumprod(x[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate([tail, np.ones_like(tail[..., :1])], axis=-1)


def _suffix_sum(x: np.ndarray) -> np.ndarray:
    tail = np.cumsum(x[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate([tail, np.zeros_like(tail[..., :1])], axis=-1)


def _log(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.log2(1.0 + np.maximum(x, 0.0))
    return result


def _columns(a: _Arrays, target: Target) -> dict[str, np.ndarray]:
    """Compute the features by name; sizes and counts in octaves."""
    rows = np.arange(len(a.extent))
    lanes = float(target.isa.lanes("float32"))
    inside = _suffix_product(a.extent)
    total = inside[:, 0]
    outside = total[:, None] / inside
    present = a.size > 0

    # Elements and lines that the loops from depth d inwards touch, per access.
    moves = a.stride > 0
    cells = _suffix_product(np.where(moves, a.extent[:, None, :], 1.0))
    reach = 1.0 + _suffix_sum(np.where(moves, a.stride * (a.extent[:, None, :] - 1), 0.0))
    foot = np.minimum(np.minimum(cells, reach), np.maximum(a.size, 1.0)[:, :, None])
    near = np.where((a.stride > 0) & (a.stride <= 1), a.extent[:, None, :], 1.0)
    run = np.minimum(_suffix_product(near), foot)
    item = a.item[:, :, None]
    lines = foot * np.maximum(item / LINE_BYTES, 1.0 / np.maximum(run, 1.0))
    bytes_at = foot * item * present[:, :, None]
    working_set = bytes_at.sum(axis=1)

    def pick(x: Any, depth: np.ndarray) -> Any:
        """Return x[row, ..., depth[row]]."""
        return x[rows, ..., depth]

    def level(capacity: float) -> np.ndarray:
        """Return the outermost depth whose working set fits."""
        fits = working_set <= capacity
        return np.where(fits.any(axis=1), fits.argmax(axis=1), MAX_LOOPS)

    # The register tile: the innermost run of loops that are printed as copies.
    copies = (a.kind == 1) | (a.kind == 2) | (a.extent == 1)
    tile = MAX_LOOPS - np.cumprod(copies[:, ::-1], axis=1).sum(axis=1)
    vector = np.where(a.kind == 2, a.extent, 1.0).prod(axis=1)
    unroll = np.where(a.kind == 1, a.extent, 1.0).prod(axis=1)
    parallel = np.where(a.kind == 3, a.extent, 1.0).prod(axis=1)
    vectors = np.ceil(vector / lanes) if lanes > 1 else vector
    copies_in_tile = pick(inside, tile)
    contiguous = ((a.kind == 2)[:, None, :] & moves & (a.stride <= 1)).any(axis=2)
    at_tile = pick(foot, tile) * present
    in_lanes = vector / np.maximum(vectors, 1)
    per_vector = np.where(contiguous, np.maximum(in_lanes, 1)[:, None], 1)
    ops_in_tile = copies_in_tile / np.maximum(in_lanes, 1)
    loads = np.where(a.write | a.local, 0.0, at_tile / per_vector)
    homed = np.where(a.local & present, at_tile / per_vector, 0.0)
    held = homed.sum(axis=1)
    pressure = held + np.minimum(loads, vectors[:, None]).max(axis=1) + 1.0
    fma = a.ops[:, 0] * ops_in_tile
    tile_runs = total / np.maximum(copies_in_tile, 1)
    cycles = np.maximum(np.maximum(fma / 2, loads.sum(axis=1) / 2), 4.0 * (a.ops[:, 0] > 0))

    l1, l2 = float(target.l1_bytes or 1 << 14), float(target.l2_bytes or 1 << 18)
    flops = total * (2 * a.ops[:, 0] + a.ops[:, 1] + a.ops[:, 2] + a.ops[:, 3])
    traffic = {}
    for name, capacity in (("l1", l1), ("l2", l2)):
        depth = level(capacity)
        traffic[name] = (
            pick(outside, depth)[:, None] * pick(lines, depth) * present * LINE_BYTES
        ).sum(axis=1)

    columns: dict[str, np.ndarray] = {
        **{f"ops_{op}": _log(total * a.ops[:, i]) for i, op in enumerate(_OPS)},
        **{f"each_{op}": a.ops[:, i] for i, op in enumerate(_OPS)},
        "runs": _log(total),
        "loops": a.loops,
        "guarded": a.guarded,
        "vector": _log(vector),
        "vectors": vectors,
        "lane_waste": np.where(vector > 1, vectors * lanes / np.maximum(vector, 1), 1.0),
        "unroll": _log(unroll),
        "parallel": _log(parallel),
        "vectorised": (vector > 1).astype(float),
        "tile_copies": _log(copies_in_tile),
        "tile_ops": _log(ops_in_tile),
        "tile_runs": _log(tile_runs),
        "tile_fma": fma,
        "tile_loads": loads.sum(axis=1),
        "loads_per_fma": loads.sum(axis=1) / np.maximum(fma, 1.0),
        "registers": pressure,
        "registers_over": np.maximum(pressure - target.isa.registers, 0.0),
        "cycles": _log(tile_runs * cycles),
        "reduce_in_tile": _log(np.where(a.reduces & copies, a.extent, 1.0).prod(axis=1)),
        "reduce": _log(np.where(a.reduces, a.extent, 1.0).prod(axis=1)),
        "reduce_next": _log(np.where(tile > 0, a.extent[rows, np.maximum(tile - 1, 0)], 1.0)),
        "l1_traffic": _log(traffic["l1"]),
        "l2_traffic": _log(traffic["l2"]),
        "flops_per_l1": _log(flops / np.maximum(traffic["l1"], 1.0)),
        "flops_per_l2": _log(flops / np.maximum(traffic["l2"], 1.0)),
        "working_set": _log(working_set[:, 0]),
        "working_set_over_l2": (working_set[:, 0] > l2).astype(float),
    }  # fmt: skip
    for back in range(1, 6):
        columns[f"extent_{back}"] = _log(a.extent[:, -back])
        columns[f"kind_{back}"] = a.kind[:, -back].astype(float)
        columns[f"reduces_{back}"] = a.reduces[:, -back].astype(float)
    for back in range(10):  # the curve of arithmetic intensity, from the innermost loop outwards
        d = MAX_LOOPS - back
        per_run = 2 * a.ops[:, 0] + a.ops[:, 1] + a.ops[:, 2]
        columns[f"intensity_{back}"] = _log(
            inside[:, d] * per_run / np.maximum(working_set[:, d], 1.0)
        )
    for i in range(MAX_ACCESSES):
        here = present[:, i].astype(float)
        at_home = foot[rows, i, a.home[:, i]]
        columns[f"a{i}_bytes"] = _log(bytes_at[:, i, 0])
        columns[f"a{i}_home_bytes"] = _log(np.where(a.local[:, i], at_home * a.item[:, i], 0.0))
        columns[f"a{i}_tile"] = _log(at_tile[:, i])
        columns[f"a{i}_lines"] = _log(lines[:, i, 0] * here)
        columns[f"a{i}_reuse"] = _log(total / np.maximum(foot[:, i, 0], 1.0)) * here
        columns[f"a{i}_stride_1"] = _log(a.stride[:, i, -1])
        columns[f"a{i}_stride_2"] = _log(a.stride[:, i, -2])
        columns[f"a{i}_next_stride"] = _log(a.stride[rows, i, np.maximum(tile - 1, 0)])
        columns[f"a{i}_contiguous"] = contiguous[:, i].astype(float)
        columns[f"a{i}_const"] = a.const[:, i].astype(float)
        columns[f"a{i}_local"] = a.local[:, i].astype(float)
    return columns
