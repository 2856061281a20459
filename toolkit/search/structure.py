"""Which kernels are alike: the same nest of the same operators, whatever its extents.

A sketch of one kernel replays on another of the same structure, since it finds the same names
there; its decisions are projected to the other extents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from toolkit.ir.expr import Binary, Call, Cast, Const, Expr, INDEX, Load, Select
from toolkit.ir.loop import Block, Loop, OpaqueCall, PrimFunc, walk_stmt
from toolkit.space.task import stable_hash


def structure_key(func: PrimFunc) -> str:
    """Return a key equal for functions that differ in extents, strides and borders alone."""
    return stable_hash(_lines(func))


def _lines(func: PrimFunc) -> list[str]:
    lines = [f"{b.scope} {b.name} {b.dtype} {len(b.shape)}" for b in func.buffers().values()]
    for stmt in walk_stmt(func.body):
        match stmt:
            case Loop():
                lines.append(f"for {stmt.var} {stmt.role}")
            case Block():
                target = f"{stmt.name}: {stmt.buffer} {stmt.reduce or ''}="
                lines.append(f"{target} {_skeleton(stmt.value)}")
            case OpaqueCall():
                lines.append(f"{stmt.name}: {stmt.function}")
    return lines


def _skeleton(expr: Expr) -> str:
    """Return an expression without literals and subscripts."""
    if expr.dtype == INDEX:
        return "i"
    match expr:
        case Const():
            return str(expr.dtype)
        case Load():
            return str(expr.buffer)
        case Binary():
            return f"{expr.op}({_skeleton(expr.a)},{_skeleton(expr.b)})"
        case Call():
            return f"{expr.fn}({','.join(map(_skeleton, expr.args))})"
        case Cast():
            return f"{expr.dtype}({_skeleton(expr.a)})"
        case Select():  # its condition is where a border is
            return f"select({_skeleton(expr.a)},{_skeleton(expr.b)})"
    raise TypeError(f"not a value: {expr!r}")


def extents(func: PrimFunc) -> tuple[int, ...]:
    """Return the extents of all loops, in program order."""
    return tuple(s.extent for s in walk_stmt(func.body) if isinstance(s, Loop))


def distance(a: Sequence[int], b: Sequence[int]) -> float:
    """Return how far the extents of two functions of one structure lie apart, in octaves."""
    return sum(abs(math.log2(max(x, 1) / max(y, 1))) for x, y in zip(a, b, strict=True))
