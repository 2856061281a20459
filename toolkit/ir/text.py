"""The text form of loop IR and expressions, as errors and `--dump-passes` show it."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Var
from toolkit.ir.loop import Block, CONST, Loop, OpaqueCall, PrimFunc, Seq, SERIAL, SPATIAL, Stmt

_SYMBOL = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "rem",
    "floormod": "%", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "and", "or": "or",
    "xor": "^", "shl": "<<", "shr": ">>", "pow": "**",
}  # fmt: skip
_LEVEL = {
    "or": 1, "and": 2, "lt": 3, "le": 3, "eq": 3, "ne": 3, "xor": 4, "shl": 5, "shr": 5, "add": 6,
    "sub": 6, "mul": 7, "div": 7, "floordiv": 7, "floormod": 7, "mod": 7, "pow": 8,
}  # fmt: skip


def expr_text(expr: Expr, level: int = 0) -> str:
    """Return `expr` as one would write it, with the parentheses it needs."""
    match expr:
        case Const():
            return str(expr.value)
        case Var():
            return expr.name
        case Load():
            name = expr.buffer if isinstance(expr.buffer, str) else expr.buffer.name
            return f"{name}[{', '.join(map(expr_text, expr.indices))}]"
        case Call():
            return f"{expr.fn}({', '.join(map(expr_text, expr.args))})"
        case Cast():
            return f"{expr.dtype}({expr_text(expr.a)})"
        case Select():
            return f"select({expr_text(expr.cond)}, {expr_text(expr.a)}, {expr_text(expr.b)})"
        case Binary(op="min" | "max"):
            return f"{expr.op}({expr_text(expr.a)}, {expr_text(expr.b)})"
        case Binary():
            own = _LEVEL[expr.op]
            text = f"{expr_text(expr.a, own)} {_SYMBOL[expr.op]} {expr_text(expr.b, own + 1)}"
            return f"({text})" if own < level else text
    raise TypeError(f"not an expression: {expr!r}")


def stmt_lines(stmt: Stmt, indent: str = "") -> Iterator[str]:
    """Yield the lines of a statement."""
    match stmt:
        case Loop():
            notes = [n for n in (stmt.role, stmt.kind) if n not in (SPATIAL, SERIAL)]
            notes.extend(f"{key}: {value}" for key, value in stmt.notes)
            yield f"{indent}for {stmt.var} in {stmt.extent}:" + (
                f"  # {', '.join(notes)}" if notes else ""
            )
            yield from stmt_lines(stmt.body, indent + "  ")
        case Seq():
            for part in stmt.body:
                yield from stmt_lines(part, indent)
        case Block():
            moved = [
                f"{axis.name}={expr_text(bind)}"
                for axis, bind in zip(stmt.axes, stmt.binds, strict=True)
                if not (isinstance(bind, Var) and bind.name == axis.name)
            ]
            start = f" from {expr_text(stmt.init)}" if stmt.init is not None else ""
            where = f" where {expr_text(stmt.guard)}" if stmt.guard is not None else ""
            op = f"{stmt.reduce}=" if stmt.reduce else "="
            target = f"{stmt.buffer}[{', '.join(map(expr_text, stmt.indices))}]"
            binds = f"  # {', '.join(moved)}" if moved else ""
            yield f"{indent}{stmt.name}: {target} {op} {expr_text(stmt.value)}{start}{where}{binds}"
        case OpaqueCall():
            args = (*stmt.outputs, *stmt.inputs, *((stmt.scratch,) if stmt.scratch else ()))
            params = tuple(str(p.value) for p in stmt.params)
            yield f"{indent}{stmt.name}: {stmt.function}({', '.join((*args, *params))})"


def loops_line(stmt: Stmt) -> str:
    """Return the loops of a nest in one line: `i[32]  j[32]`, as error messages show them."""
    from toolkit.ir.loop import walk_stmt

    return "  ".join(f"{s.var}[{s.extent}]" for s in walk_stmt(stmt) if isinstance(s, Loop))


def func_text(func: PrimFunc) -> str:
    """Return a whole function: its signature, local buffers and nest."""
    ins = ", ".join(
        f"{'const ' if b.scope == CONST else ''}{b.name}: {b.type}" for b in func.inputs
    )
    outs = ", ".join(f"{b.name}: {b.type}" for b in func.outputs)
    lines = [f"func {func.name}({ins}) -> ({outs})"]
    for b in func.locals:
        room = f"  # room: {list(b.with_room().shape)}" if b.multiples else ""
        rolling = "  # rolling" if b.rolling else ""
        lines.append(f"  {b.scope} {b.name}: {b.type}{room}{rolling}")
    lines.extend(stmt_lines(func.body, "  "))
    return "\n".join(lines)
