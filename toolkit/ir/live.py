"""What of a nest matters: statements that run, and whose results an output depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from toolkit.ir.expr import (
    Binary,
    conjuncts,
    Const,
    Expr,
    INDEX,
    Load,
    loads,
    rewrite,
    Select,
    walk,
)
from toolkit.ir.loop import Block, Loop, OpaqueCall, PrimFunc, rewrite_stmt, Stmt, walk_stmt
from toolkit.ir.regions import block_exprs, block_loads, bound_expr, loop_ranges, reads, writes
from toolkit.ir.simplify import Ranges, simplify


def live_part(body: Stmt, outputs: Iterable[str]) -> Stmt | None:
    """Drop what no output depends on: what a recurrence collects or carries for nobody."""
    makers = [s for s in walk_stmt(body) if isinstance(s, Block | OpaqueCall)]
    live, before = set(outputs), 0
    while len(live) > before:
        before = len(live)
        for maker in makers:
            if live & writes(maker):
                live |= reads(maker) | writes(maker)
    if all(live & writes(maker) for maker in makers):
        return body
    return rewrite_stmt(
        body, lambda s: () if isinstance(s, Block | OpaqueCall) and not live & writes(s) else None
    )


def drop_idle(func: PrimFunc) -> PrimFunc:
    """Drop loops of no iteration, blocks whose guard never holds, and then what nothing reads.

    Only for a function whose reductions are initialised by blocks of their own.
    """
    ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
    shapes = {name: buffer.shape for name, buffer in func.buffers().items()}

    def rule(s: Stmt) -> Stmt | tuple[()] | None:
        if isinstance(s, Loop) and s.extent == 0:
            return ()
        if not isinstance(s, Block):
            return None
        if s.guard is not None:
            tests = [simplify(bound_expr(s, test), ranges) for test in conjuncts(s.guard)]
            if any(isinstance(test, Const) and not test.value for test in tests):
                return ()
        return _without_idle_loads(s, ranges, shapes)

    running = rewrite_stmt(func.body, rule)
    body = None if running is None else live_part(running, [b.name for b in func.outputs])
    if body is None or body is func.body:
        return func
    used = reads(body) | writes(body)
    return func.with_(body=body, locals=tuple(b for b in func.locals if b.name in used))


def _without_idle_loads(
    block: Block, ranges: Ranges, shapes: Mapping[str, tuple[int, ...]]
) -> Block | None:
    """Return the block without loads that index arithmetic makes idle; None if there are none.

    Such loads stand in subscripts of an extent of 1, and behind conditions on indices.
    """

    def decides(e: Expr) -> bool:
        match e:
            case Load():
                return any(True for index in e.indices for _ in loads(index))
            case Select(cond=Binary() as cond):
                return cond.a.dtype in (INDEX, "bool")
        return False

    if not any(decides(e) for expr in block_exprs(block) for e in walk(expr)):
        return None

    def only(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        sizes = shapes[e.buffer]
        indices = tuple(
            Const(INDEX, 0) if n == 1 and any(True for _ in loads(i)) else i
            for i, n in zip(e.indices, sizes, strict=True)
        )
        return replace(e, indices=indices)

    known = {**ranges, **{a.name: (0, a.extent - 1) for a in block.axes}}
    simple = replace(
        block,
        value=simplify(rewrite(block.value, only), known),
        indices=tuple(simplify(rewrite(i, only), known) for i in block.indices),
    )
    return None if set(block_loads(simple)) == set(block_loads(block)) else simple
