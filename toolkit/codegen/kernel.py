"""A lowered `PrimFunc` to a tree of C statements, laid out by `templates/c/kernel.c.j2`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolkit.codegen.c_expr import C_INDEX, ExprPrinter, c_type
from toolkit.codegen.names import c_names
from toolkit.ir.expr import INDEX, Binary, Const, Expr, Select, Var, binary, const, variables
from toolkit.ir.loop import (
    REGISTER,
    SCRATCH,

    Block,
    Buffer,
    Loop,
    OpaqueCall,
    PrimFunc,
    Seq,
    Stmt,
    walk_stmt,
)
from toolkit.ir.regions import loop_ranges, reads, writes
from toolkit.ir.simplify import Ranges, simplify
from toolkit.codegen.lower import lower_func


@dataclass(frozen=True, slots=True)
class CLine:
    """One line of C: a declaration, an assignment or a call."""

    text: str
    head: bool = False
    body: tuple[CLine, ...] = ()


@dataclass(frozen=True, slots=True)
class CParam:
    """One parameter of a kernel: a pointer."""

    name: str
    c_type: str
    const: bool


@dataclass(frozen=True, slots=True)
class CKernel:
    """A kernel ready to print: `params` are outputs, inputs, then scratch, all pointers."""

    name: str
    params: tuple[CParam, ...]
    lines: tuple[CLine, ...]
    comment: tuple[str, ...]
    scratch: tuple[Buffer, ...]
    opaque: tuple[str, ...] = field(default=())


def conjuncts(expr: Expr) -> list[Expr]:
    """Split a condition at its `and`s."""
    if isinstance(expr, Binary) and expr.op == "and" and expr.dtype == "bool":
        return [*conjuncts(expr.a), *conjuncts(expr.b)]
    return [expr]


class _Printer:
    """Prints one function.  Lives for one call of `print_kernel`."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.buffers = func.buffers()
        loops = [s for s in walk_stmt(func.body) if isinstance(s, Loop)]
        self.ranges: Ranges = loop_ranges(loops)
        self.names = c_names([*self.buffers, *(l.var for l in loops)])
        self.expr = ExprPrinter(self.element, self.names)

    def element(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        """Return the lvalue text of one element."""
        info = self.buffers[buffer]
        if info.scope == REGISTER and math.prod(info.shape) == 1:
            return self.names[buffer]
        flat: Expr = Const(INDEX, 0)
        stride = 1
        for index, extent in zip(reversed(indices), reversed(info.shape), strict=True):
            if extent != 1:
                flat = binary("add", binary("mul", index, stride), flat)
            stride *= extent
        flat = simplify(flat, self.ranges)
        return f"{self.names[buffer]}[{self.expr.text(flat)}]"

    def block(self, block: Block) -> list[CLine]:
        """Print one store."""
        target = self.element(block.buffer, block.indices)
        value = simplify(block.value, self.ranges)
        dtype = self.buffers[block.buffer].dtype
        if block.reduce is None:
            return [CLine(f"{target} = {self.stored(value, dtype)};")]
        from toolkit.ir.expr import Load

        current = Load(dtype, block.buffer, block.indices)
        op = {"sum": "add", "prod": "mul", "add": "add"}.get(block.reduce, block.reduce)
        if op in ("add", "mul") and dtype in ("float32", "float64"):
            symbol = "+=" if op == "add" else "*="
            return [CLine(f"{target} {symbol} {self.expr.text(value)};")]
        return [CLine(f"{target} = {self.stored(Binary(dtype, op, current, value), dtype)};")]

    def stored(self, value: Expr, dtype: str) -> str:
        """Return `value` as text that converts to the C type of `dtype` without a warning."""
        text = self.expr.text(value)
        if dtype == "bool" or (
            isinstance(value, Select) and dtype in ("int8", "uint8", "int16", "uint16")
        ):
            return f"({c_type(dtype)})({text})"
        return text

    def stmt(self, stmt: Stmt, known: Sequence[str], tests: Sequence[Expr]) -> list[CLine]:
        """Print a statement; `tests` are pending guards of its only block, `known` the loops outside."""
        ready = [t for t in tests if variables(t) <= set(known)]
        if ready:
            rest = [t for t in tests if not any(t is r for r in ready)]
            body = self.stmt(stmt, known, rest)
            cond = " && ".join(self.expr.text(t, 3) for t in ready)
            return [CLine(f"if ({cond})", True, tuple(body))] if body else []
        match stmt:
            case Seq():
                lines: list[CLine] = []
                for part in stmt.body:
                    lines.extend(self.stmt(part, known, self.guards(part)))
                return lines
            case Loop():
                return self.loop(stmt, known, tests)
            case Block():
                return self.block(stmt)
            case OpaqueCall():
                args = [self.names[n] for n in (*stmt.outputs, *stmt.inputs)]
                if stmt.scratch:
                    args.append(self.names[stmt.scratch])
                args.extend(self.expr.text(p) for p in stmt.params)
                return [CLine(f"{stmt.function}({', '.join(args)});")]
        raise TypeError(stmt)

    def guards(self, stmt: Stmt) -> list[Expr]:
        """Return the simplified guards of the only block of a nest; [] if it has several parts."""
        while isinstance(stmt, Loop):
            stmt = stmt.body
        if not isinstance(stmt, Block) or stmt.guard is None:
            return []
        tests = [simplify(c, self.ranges) for c in conjuncts(stmt.guard)]
        return [t for t in tests if not (isinstance(t, Const) and t.value)]

    def loop(self, loop: Loop, known: Sequence[str], tests: Sequence[Expr]) -> list[CLine]:
        """Print a loop; extents 0 and 1 and unrolled loops leave no loop behind."""
        inner = [*known, loop.var]
        if loop.extent == 0:
            return []
        decls = self.local_decls(loop)
        pending = tests or self.guards(loop)
        body = self.stmt(loop.body, inner, pending)
        name = self.names[loop.var]
        if not body:
            return []
        if loop.extent == 1:
            decl = CLine(f"const {C_INDEX} {name} = 0;")
            used = any(name in line.text for line in flatten(body))
            head = [decl] if used else []
            return [CLine("", True, (*head, *decls, *body))] if used or decls else body
        head_text = f"for ({C_INDEX} {name} = 0; {name} < {loop.extent}; ++{name})"
        return [CLine(head_text, True, (*decls, *body))]

    def local_decls(self, loop: Loop | None) -> list[CLine]:
        """Declare the register buffers whose home is `loop`, or the function if None."""
        lines = []
        for buffer in self.func.locals:
            if buffer.scope != REGISTER or self.home(buffer) is not loop:
                continue
            size = math.prod(buffer.shape)
            suffix = "" if size == 1 else f"[{size}]"
            lines.append(CLine(f"{c_type(buffer.dtype)} {self.names[buffer.name]}{suffix};"))
        return lines

    def home(self, buffer: Buffer) -> Loop | None:
        """Return the innermost loop that holds every access to `buffer`."""
        found: Loop | None = None
        stmt = self.func.body
        while True:
            if isinstance(stmt, Loop):
                found, stmt = stmt, stmt.body
                continue
            if not isinstance(stmt, Seq):
                return found
            parts = [p for p in stmt.body if buffer.name in reads(p) | writes(p)]
            if len(parts) != 1:
                return found
            stmt = parts[0]


def flatten(lines: Sequence[CLine]) -> list[CLine]:
    """Return all lines of a tree, in order."""
    result: list[CLine] = []
    for line in lines:
        result.append(line)
        result.extend(flatten(line.body))
    return result


def print_kernel(func: PrimFunc, name: str, comment: Sequence[str] = ()) -> CKernel:
    """Lower a scheduled function and print it as C statements under the C name `name`."""
    func = lower_func(func)
    printer = _Printer(func)
    lines = [*printer.local_decls(None), *printer.stmt(func.body, (), printer.guards(func.body))]
    scratch = tuple(b for b in func.locals if b.scope == SCRATCH)
    params = tuple(
        CParam(printer.names[b.name], c_type(b.dtype), is_input)
        for b, is_input in (
            *((b, False) for b in func.outputs),
            *((b, True) for b in func.inputs),
            *((b, False) for b in scratch),
        )
    )
    calls = tuple(
        sorted({s.function for s in walk_stmt(func.body) if isinstance(s, OpaqueCall)})
    )
    used = {word for line in flatten(lines) for word in _words(line.text)}
    unused = [CLine(f"(void){p.name};") for p in params if p.name not in used]
    return CKernel(name, params, (*unused, *lines), tuple(comment), scratch, calls)


def _words(text: str) -> list[str]:
    import re

    return re.findall(r"[A-Za-z_]\w*", text)


