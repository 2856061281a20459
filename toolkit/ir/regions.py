"""Which part of a buffer the statements under a loop touch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolkit.ir.expr import Expr, Load, loads, rewrite, Var, variables
from toolkit.ir.loop import Block, Loop, OpaqueCall, Stmt, walk_stmt
from toolkit.ir.simplify import bounds, from_linear, linear, Ranges, simplify


@dataclass(frozen=True, slots=True)
class Span:
    """One dimension of a region: indices base .. base+extent-1; `base` is over outer loops only."""

    base: Expr
    extent: int


def bind_map(block: Block) -> dict[str, Expr]:
    """Map the block's axis names to the loop expressions they are bound to."""
    return {axis.name: bind for axis, bind in zip(block.axes, block.binds, strict=True)}


def bound_expr(block: Block, expr: Expr, binds: Mapping[str, Expr] | None = None) -> Expr:
    """Rewrite an expression over the block's axes into one over loops."""
    values = bind_map(block) if binds is None else binds
    return rewrite(expr, lambda e: values.get(e.name) if isinstance(e, Var) else None)


def block_exprs(block: Block) -> Iterator[Expr]:
    """Yield every expression the block evaluates: subscripts of the store, value, guard, init."""
    yield from block.indices
    for expr in (block.value, block.guard, block.init):
        if expr is not None:
            yield expr


def block_loads(block: Block) -> Iterator[Load]:
    """Yield the loads of a block; a reduction's read of its own element is not among them."""
    for expr in block_exprs(block):
        yield from loads(expr)


def count_readers(stmts: Iterable[Stmt], buffer: str) -> int:
    """Count those of some statements, blocks and calls, that read a buffer."""
    count = 0
    for s in stmts:
        if isinstance(s, Block):
            count += any(load.buffer == buffer for load in block_loads(s))
        elif isinstance(s, OpaqueCall):
            count += buffer in s.inputs
    return count


def reads(stmt: Stmt) -> set[str]:
    """Return the names of the buffers read in `stmt` (a reduction does not count as reading)."""
    names: set[str] = set()
    for s in walk_stmt(stmt):
        if isinstance(s, Block):
            names.update(load.buffer for load in block_loads(s))
        elif isinstance(s, OpaqueCall):
            names.update(s.inputs)
    return names


def writes(stmt: Stmt) -> set[str]:
    """Return the names of the buffers written in `stmt`."""
    names: set[str] = set()
    for s in walk_stmt(stmt):
        if isinstance(s, Block):
            names.add(s.buffer)
        elif isinstance(s, OpaqueCall):
            names.update(s.outputs)
            if s.scratch:
                names.add(s.scratch)
    return names


def loop_ranges(loops: Iterable[Loop]) -> dict[str, tuple[int, int]]:
    """Return inclusive ranges of loop variables."""
    return {loop.var: (0, loop.extent - 1) for loop in loops}


def accesses(stmt: Stmt, buffer: str, *, stores: bool = True) -> list[tuple[Expr, ...]] | None:
    """Return the subscripts, over loops, of every access to `buffer`; None if used as a whole."""
    found: list[tuple[Expr, ...]] = []
    for s in walk_stmt(stmt):
        if isinstance(s, OpaqueCall) and buffer in (*s.inputs, *s.outputs, s.scratch):
            return None
        if isinstance(s, Block):
            binds = bind_map(s)
            if stores and s.buffer == buffer:
                found.append(tuple(bound_expr(s, i, binds) for i in s.indices))
            for load in block_loads(s):
                if load.buffer == buffer:
                    found.append(tuple(bound_expr(s, i, binds) for i in load.indices))
    return found


def span_of(
    index: Expr, outer: set[str], ranges: Ranges
) -> tuple[dict[Expr, int], int, int] | None:
    """Split an index into terms over `outer` loops and inclusive bounds of the rest."""
    terms, constant = linear(index)
    if not all(isinstance(atom, Var) for atom in terms):
        terms, constant = linear(simplify(index, ranges))
    base: dict[Expr, int] = {}
    lo = hi = constant
    for atom, k in terms.items():
        if variables(atom) <= outer and not any(True for _ in loads(atom)):
            base[atom] = k
            continue
        inside = bounds(atom, ranges)
        if inside is None or (variables(atom) & outer):
            return None
        lo += min(k * inside[0], k * inside[1])
        hi += max(k * inside[0], k * inside[1])
    return base, lo, hi


def region(
    found: Sequence[tuple[Expr, ...]], shape: Sequence[int], outer: set[str], ranges: Ranges
) -> list[Span]:
    """Return the box that holds all accesses `found`, for fixed `outer` loops.

    A dimension that cannot be told is taken whole.
    """
    spans: list[Span] = []
    for dim, size in enumerate(shape):
        parts = [span_of(indices[dim], outer, ranges) for indices in found]
        first = parts[0] if parts else None
        if first is None or any(p is None or p[0] != first[0] for p in parts):
            spans.append(Span(from_linear({}, 0), size))
            continue
        lo = min(p[1] for p in parts if p is not None)
        hi = max(p[2] for p in parts if p is not None)
        if hi - lo + 1 >= size:
            spans.append(Span(from_linear({}, 0), size))
        else:
            spans.append(Span(from_linear(first[0], lo), hi - lo + 1))
    return spans
