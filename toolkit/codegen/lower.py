"""The last passes on a kernel: separate initialisation, shrink and place local buffers."""

from __future__ import annotations

import math
from dataclasses import replace

from toolkit.ir.expr import binary, Expr, INDEX, Load, Var, variables
from toolkit.ir.initialise import init_block, init_nest
from toolkit.ir.live import drop_idle
from toolkit.ir.loop import (
    Block,
    Buffer,
    enclosing,
    fresh_name,
    Loop,
    map_block,
    OpaqueCall,
    PARALLEL,
    PrimFunc,
    REGISTER,
    rewrite_stmt,
    SCRATCH,
    Seq,
    seq,
    SERIAL,
    Stmt,
    walk_stmt,
)
from toolkit.ir.regions import accesses, bind_map, block_loads, loop_ranges, region, Span
from toolkit.ir.simplify import Ranges, simplify
from toolkit.ir.types import DTYPES
from toolkit.schedule.threads import parts_apart
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS

REGISTER_LIMIT_BYTES = 2048
"""Local buffers up to this size become C locals, whatever the vectors; larger ones are planned in
the arena."""

REGISTER_FILLS = 2
"""Local buffers that fill the vector registers so many times become C locals too: compilers keep
part of them in registers, and forward stores to loads."""

NARROW_BYTES = 4
NARROW_LIMIT_BYTES = 64
"""Limit for elements of fewer than `NARROW_BYTES`: copies of operands, which need an address."""


def decompose_reductions(func: PrimFunc) -> PrimFunc:
    """Put the initialisation of each reduction in front of its outermost reduce loop."""
    ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
    body = _decompose(func.body, frozenset(), ranges)
    return func if body is func.body else func.with_(body=_named_apart(body))


def _named_apart(stmt: Stmt) -> Stmt:
    """Give blocks names of their own: an init may be named as one that a step has made."""
    taken: set[str] = set()

    def rule(s: Stmt) -> Stmt | None:
        if not isinstance(s, Block | OpaqueCall):
            return None
        name = fresh_name(s.name, taken)
        return None if name == s.name else replace(s, name=name)

    named = rewrite_stmt(stmt, rule)
    assert named is not None
    return named


def _decompose(stmt: Stmt, started: frozenset[str], ranges: Ranges) -> Stmt:
    """Return `stmt` with inits before the loops at which a reduction starts.

    `started` names the blocks whose init stands before a loop further out.
    """
    match stmt:
        case Seq():
            parts = [_decompose(p, started, ranges) for p in stmt.body]
            if all(a is b for a, b in zip(parts, stmt.body, strict=True)):
                return stmt
            return seq(*parts)
        case Loop():
            starting = [
                b for b in _reductions(stmt) if b.name not in started and _drives_reduce(stmt, b)
            ]
            body = _decompose(stmt.body, started | {b.name for b in starting}, ranges)
            inits = [init_nest(stmt, b, ranges) for b in starting]
            if body is not stmt.body:
                stmt = replace(stmt, body=body)
            return seq(*inits, stmt) if inits else stmt
        case Block() if stmt.reduce is not None and not stmt.update_only:
            update = replace(stmt, update_only=True)
            return update if stmt.name in started else seq(init_block(stmt, ranges), update)
    return stmt


def _reductions(stmt: Stmt) -> list[Block]:
    return [
        s
        for s in walk_stmt(stmt)
        if isinstance(s, Block) and s.reduce is not None and not s.update_only
    ]


def _drives_reduce(loop: Loop, block: Block) -> bool:
    return any(
        a.role == "reduce" and loop.var in variables(b)
        for a, b in zip(block.axes, block.binds, strict=True)
    )


def _touches(stmt: Stmt, buffer: str) -> bool:
    for part in walk_stmt(stmt):
        if isinstance(part, Block) and (
            part.buffer == buffer or any(l.buffer == buffer for l in block_loads(part))
        ):
            return True
        if isinstance(part, OpaqueCall) and buffer in (*part.inputs, *part.outputs, part.scratch):
            return True
    return False


def _common_loop(stmt: Stmt, buffer: str) -> Loop | None:
    """Return the innermost loop that holds every access to `buffer`; None if there is none."""
    found: Loop | None = None
    while True:
        if isinstance(stmt, Loop):
            found, stmt = stmt, stmt.body
            continue
        if not isinstance(stmt, Seq):
            return found
        parts = [p for p in stmt.body if _touches(p, buffer)]
        if len(parts) != 1:
            return found
        stmt = parts[0]


def register_limit(isa: Isa) -> int:
    """Return the largest size of a local buffer that becomes C locals, in bytes."""
    return max(REGISTER_LIMIT_BYTES, REGISTER_FILLS * isa.registers * isa.vector_bytes)


def compact_buffers(func: PrimFunc, threads: int = 1, isa: Isa = ISAS["scalar"]) -> PrimFunc:
    """Shrink each local buffer to what is alive at once, and make small ones registers of `isa`.

    Parallel loops, which are carried out as `threads` parts, get a copy of scratch a part where all
    of it is used inside; registers from outside are not theirs.
    """
    loops = [s for s in walk_stmt(func.body) if isinstance(s, Loop)]
    ranges = loop_ranges(loops)
    body = func.body
    placed: list[Buffer] = []
    for buffer in func.locals:
        home = _common_loop(body, buffer.name)
        outer = {l.var for l in (enclosing(body, home) or [])} if home is not None else set()
        found = accesses(home or body, buffer.name)
        within, across = _parallel_uses(body, buffer.name, home)
        copies = threads if within else 1
        if found is None or buffer.rolling:
            placed.append(replace(buffer.with_room(), scope=SCRATCH, copies=copies))
            continue
        if not found:
            continue
        spans = region(found, buffer.shape, outer, ranges) if home is not None else None
        if spans is not None and any(
            s.extent < n for s, n in zip(spans, buffer.shape, strict=True)
        ):
            body = _shift(body, buffer.name, spans)
            buffer = replace(buffer, shape=tuple(s.extent for s in spans))
        buffer = buffer.with_room()
        narrow = DTYPES[buffer.dtype].nbytes < NARROW_BYTES
        limit = NARROW_LIMIT_BYTES if narrow else register_limit(isa)
        small = buffer.type.nbytes <= limit and home is not None
        if (small or math.prod(buffer.shape) <= 1) and not across:
            placed.append(replace(buffer, scope=REGISTER))
        else:
            placed.append(replace(buffer, scope=SCRATCH, copies=copies))
    return func.with_(body=body, locals=tuple(placed))


def outermost_parallel(func: PrimFunc, threads: int) -> PrimFunc:
    """Make serial the parallel loops that cannot be cut into parts, and those inside another one.

    Those run where that one's part runs.
    """

    def fix(stmt: Stmt, left: int) -> Stmt:
        match stmt:
            case Loop():
                runs = (
                    stmt.kind == PARALLEL
                    and left > 1
                    and stmt.extent > 1
                    and parts_apart(stmt, threads)
                )
                body = fix(stmt.body, 1 if runs else left)
                kind = SERIAL if stmt.kind == PARALLEL and not runs else stmt.kind
                same = body is stmt.body and kind == stmt.kind
                return stmt if same else replace(stmt, kind=kind, body=body)
            case Seq():
                parts = [fix(part, left) for part in stmt.body]
                if any(a is not b for a, b in zip(parts, stmt.body, strict=True)):
                    return Seq(tuple(parts))
        return stmt

    body = fix(func.body, threads)
    return func if body is func.body else func.with_(body=body)


def _parallel_uses(stmt: Stmt, buffer: str, home: Loop | None) -> tuple[bool, bool]:
    """Tell whether a parallel loop holds all uses of a buffer, and whether one holds only some."""
    within = across = False
    for loop in walk_stmt(stmt):
        if isinstance(loop, Loop) and loop.kind == PARALLEL and _touches(loop, buffer):
            held = home is not None and _holds(loop, home)
            within, across = within or held, across or not held
    return within, across


def _holds(outer: Loop, inner: Loop) -> bool:
    return any(isinstance(s, Loop) and s.var == inner.var for s in walk_stmt(outer))


def _shift(stmt: Stmt, buffer: str, spans: list[Span]) -> Stmt:
    """Subtract the region's base from every subscript of `buffer`, over loop variables."""

    def moved(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(binary("sub", i, s.base) for i, s in zip(indices, spans, strict=True))

    def rule(s: Stmt) -> Stmt | None:
        if not isinstance(s, Block):
            return None
        reads_it = any(l.buffer == buffer for l in block_loads(s))
        if s.buffer != buffer and not reads_it:
            return None
        s = flatten_binds(s)
        changed = map_block(
            s,
            lambda e: (
                Load(e.dtype, buffer, moved(e.indices))
                if isinstance(e, Load) and e.buffer == buffer
                else None
            ),
        )
        s = changed or s
        return replace(s, indices=moved(s.indices)) if s.buffer == buffer else s

    result = rewrite_stmt(stmt, rule)
    assert result is not None
    return result


def flatten_binds(block: Block) -> Block:
    """Write a block's expressions over the loops themselves, leaving it without axes."""
    if not block.axes:
        return block
    binds = bind_map(block)
    fixed = map_block(block, lambda e: binds.get(e.name) if isinstance(e, Var) else None) or block
    return replace(fixed, axes=(), binds=())


def loops_apart(func: PrimFunc) -> PrimFunc:
    """Rename loops that are called like a buffer: in C they share their scope.

    Only for a function whose blocks are written over loop variables.
    """
    loops = {s.var for s in walk_stmt(func.body) if isinstance(s, Loop)}
    buffers = set(func.buffers())
    taken = loops | buffers
    names = {var: fresh_name(var, taken) for var in sorted(loops & buffers)}
    if not names:
        return func
    values: dict[str, Expr] = {old: Var(INDEX, new) for old, new in names.items()}

    def rule(s: Stmt) -> Stmt | None:
        match s:
            case Loop() if s.var in names:
                return replace(s, var=names[s.var])
            case Block():
                return map_block(s, lambda e: values.get(e.name) if isinstance(e, Var) else None)
        return None

    body = rewrite_stmt(func.body, rule)
    assert body is not None
    return func.with_(body=body)


def lower_func(func: PrimFunc, threads: int = 1, isa: Isa = ISAS["scalar"]) -> PrimFunc:
    """Run all passes of this module; every block ends up written over loop variables.

    `threads`: in how many parts parallel loops are carried out; with one, they are serial.
    `isa`: whose registers hold small buffers.
    """
    func = drop_idle(decompose_reductions(outermost_parallel(func, threads)))
    func = compact_buffers(func, threads, isa)
    ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))

    def flat(s: Stmt) -> Stmt | None:
        if not isinstance(s, Block):
            return None
        s = flatten_binds(s)
        return replace(
            s,
            value=simplify(s.value, ranges),
            indices=tuple(simplify(i, ranges) for i in s.indices),
        )

    body = rewrite_stmt(func.body, flat)
    assert body is not None
    return loops_apart(func.with_(body=body))
