"""Which part of a buffer the statements under a loop touch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from toolkit.ir.expr import Expr, Load, loads, rewrite, Var, variables
from toolkit.ir.loop import Block, kept, Loop, OpaqueCall, Stmt, walk_stmt
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


@kept("_loads")
def block_loads(block: Block) -> tuple[Load, ...]:
    """Return the loads of a block; a reduction's read of its own element is not among them."""
    return tuple(chain.from_iterable(map(loads, block_exprs(block))))


def count_readers(stmts: Iterable[Stmt], buffer: str) -> int:
    """Count those of some statements, blocks and calls, that read a buffer."""
    return sum(isinstance(s, Block | OpaqueCall) and buffer in reads(s) for s in stmts)


@kept("_reads")
def reads(stmt: Stmt) -> frozenset[str]:
    """Return the names of the buffers read in `stmt` (a reduction does not count as reading)."""
    if isinstance(stmt, Block):
        return frozenset(load.buffer for load in block_loads(stmt))
    if isinstance(stmt, OpaqueCall):
        return frozenset(stmt.inputs)
    if isinstance(stmt, Loop):
        return reads(stmt.body)
    return frozenset().union(*map(reads, stmt.body))


@kept("_writes")
def writes(stmt: Stmt) -> frozenset[str]:
    """Return the names of the buffers written in `stmt`."""
    if isinstance(stmt, Block):
        return frozenset((stmt.buffer,))
    if isinstance(stmt, OpaqueCall):
        return frozenset((*stmt.outputs, *((stmt.scratch,) if stmt.scratch else ())))
    if isinstance(stmt, Loop):
        return writes(stmt.body)
    return frozenset().union(*map(writes, stmt.body))


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
            if stores and s.buffer == buffer:
                found.append(_subscripts(s)[0])
            if buffer in reads(s):
                at = enumerate(block_loads(s), 1)
                found.extend(_subscripts(s)[n] for n, load in at if load.buffer == buffer)
    return found


@kept("_bound")
def _subscripts(block: Block) -> tuple[tuple[Expr, ...], ...]:
    """Return the subscripts, over loops, of a block's store and of its loads.

    Equal subscripts are the same object, so that questions about them are answered once.
    """
    binds = bind_map(block)
    same: dict[Expr, Expr] = {}

    def bound(index: Expr) -> Expr:
        found = same.get(index)
        if found is None:
            found = same[index] = bound_expr(block, index, binds)
        return found

    return tuple(
        tuple(map(bound, indices))
        for indices in (block.indices, *(load.indices for load in block_loads(block)))
    )


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
        different = {id(indices[dim]): indices[dim] for indices in found}
        parts = [span_of(index, outer, ranges) for index in different.values()]
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
