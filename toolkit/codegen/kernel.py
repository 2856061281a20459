"""A lowered `PrimFunc` to a tree of C statements, laid out by `templates/c/kernel.c.j2`.

Unrolled loops are printed once an iteration; vectorised loops as intrinsics of the target's
instruction set; small local buffers whose every subscript is then a constant become named locals,
one a vector or scalar.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from toolkit.codegen.c_expr import C_INDEX, c_type, ExprPrinter
from toolkit.codegen.collector import paused_collector
from toolkit.codegen.copies import Copying, Place, Texts
from toolkit.codegen.lines import (
    CLine,
    flatten,
    from_zero,
    in_phases,
    load_constants,
    share_loads,
    with_text,
    words,
)
from toolkit.codegen.lower import lower_func
from toolkit.codegen.names import c_names
from toolkit.codegen.offsets import Offsets
from toolkit.codegen.registers import add_lanes, add_uses, Kept, kept, RegisterUse
from toolkit.codegen.resolve import Env, Resolver
from toolkit.codegen.streams import clusters, in_order, Stream
from toolkit.codegen.tensor import TensorPrinter
from toolkit.codegen.vector import lanes_of, LanesAt, NotVectorizable, VectorPrinter
from toolkit.ir.expr import (
    Binary,
    binary,
    conjuncts,
    Const,
    Expr,
    INDEX,
    Load,
    Select,
    substitute,
    Var,
    variables,
)
from toolkit.ir.loop import (
    Block,
    Buffer,
    Loop,
    OpaqueCall,
    PARALLEL,
    PrimFunc,
    REDUCE,
    REGISTER,
    SCRATCH,
    Seq,
    SERIAL,
    Stmt,
    TENSORIZE,
    UNROLL,
    VECTORIZE,
    walk_stmt,
)
from toolkit.ir.regions import loop_ranges, reads, writes
from toolkit.ir.simplify import bounds, from_linear, linear, Ranges, simplify
from toolkit.ir.unify import Mismatch, nest_loops
from toolkit.schedule.steps.prefetch import lines_ahead
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS

NEAR = 100
"""Elements that lie within reach of one pointer, whatever the instruction set."""

COPIES_LIMIT = 64
"""Unrolled copies whose guards are looked at one by one."""


@dataclass(frozen=True, slots=True)
class CParam:
    """One parameter of a kernel: a pointer."""

    name: str
    c_type: str
    const: bool


@dataclass(frozen=True, slots=True)
class CPart:
    """The function that runs a range of iterations of a parallel loop.

    Where it stands in the kernel, `extent` iterations are cut into `count` parts.  `params`: the
    kernel's pointers that it uses; `args`: what a part passes for each; `variables`: of the loops
    around it.
    """

    name: str
    params: tuple[CParam, ...]
    args: tuple[str, ...]
    variables: tuple[str, ...]
    extent: int
    count: int
    lines: tuple[CLine, ...]


@dataclass(frozen=True, slots=True)
class CKernel:
    """A kernel ready to print: `params` are outputs, inputs, then scratch, all pointers."""

    name: str
    params: tuple[CParam, ...]
    lines: tuple[CLine, ...]
    comment: tuple[str, ...]
    scratch: tuple[Buffer, ...]
    opaque: tuple[str, ...] = field(default=())
    simd: bool = False
    parts: tuple[CPart, ...] = ()


class KernelPrinter:
    """Prints one function.  Lives for one call of `print_kernel`.

    A first pass records how register buffers are accessed; the second knows what holds them.  Both
    ask for the same expressions and texts, which are worked out once.
    """

    def __init__(self, func: PrimFunc, name: str, isa: Isa, threads: int) -> None:
        self.func, self.name, self.threads = func, name, threads
        self.homes = {b.name: self.home(b) for b in func.locals if b.scope == REGISTER}
        self.isa = isa
        self.buffers = func.buffers()
        loops = [s for s in walk_stmt(func.body) if isinstance(s, Loop)]
        self.resolver = Resolver(self.buffers, _unrolled(func.body), loop_ranges(loops))
        self.names = c_names([*self.buffers, *(l.var for l in loops)])
        self.stems = {name: self.stem(name) for name in self.homes}
        self.env: Env = {l.var: self.resolver.value(0) for l in loops if l.extent == 1}
        self.expr = ExprPrinter(self.element, self.names)
        self.lanes: dict[tuple[int, str], tuple[Expr, LanesAt]] = {}
        """How the lanes of a vector lie, by the identity of their subscript and the lane."""
        self.neighbours = _neighbours(func.body)
        guarded = {
            v for s in walk_stmt(func.body) if isinstance(s, Block) and s.guard is not None
            for v in variables(s.guard)
        }  # fmt: skip
        self.runs = {
            l.var: l.extent
            for l in loops
            if l.kind == UNROLL and l.role == REDUCE and l.var not in guarded
        }
        """Unrolled reduce loops all of whose copies run, with their extents."""
        self.copies: tuple[tuple[tuple[str, ...], frozenset[tuple[int, ...]]], ...] = ()
        """Sets of unrolled loops, and the combinations of their values to print."""
        self.around: tuple[str, ...] = ()
        """Variables of the C loops around what is printed."""
        self.copying = Copying(self.resolver.unrolled, self.runs)
        self.offsets = Offsets(self.expr.text)
        self.start(None)

    def start(self, uses: Mapping[str, RegisterUse] | None) -> None:
        """Begin a pass.  `uses`: of register buffers, as recorded by the pass before."""
        self.uses: Mapping[str, RegisterUse] = uses or {}
        self.kept: dict[str, Kept] = {}
        """What holds each register buffer, when that is known."""
        if uses is not None:
            self.offsets.start_naming()
            for name, stem in self.stems.items():
                self.kept[name] = kept(uses.get(name, RegisterUse()), self.names[name], stem)
        self.recorded: dict[str, RegisterUse] = {}
        self.simd = False
        self.addresses: dict[str, tuple[str, Expr]] = {}
        """Texts of addresses that tensor intrinsics load from: the buffer, and the subscript."""
        self.streams: dict[str, Stream] = {}
        """How tensor intrinsics load from these addresses, where loads can move pointers on."""
        self.written: set[str] = set()
        """Buffers that tensor intrinsics store to, by addresses."""
        self.shareable: dict[str, str] = {}
        """Texts of vector loads and broadcasts, with their C type."""
        self.parts: list[CPart] = []

    def body(self) -> list[CLine]:
        """Print the function's body."""
        return self.stmt(self.func.body, self.guards(self.func.body), ())

    @property
    def ranges(self) -> Ranges:
        """Bounds of loops and lanes."""
        return self.resolver.ranges

    # Copies

    def copied(self, kind: str, stmt: Stmt, block: Block, printed: Callable[[], Texts]) -> Texts:
        """Return the texts of a statement around `block` in this copy, which `printed` prints."""
        pattern = self.copying.pattern_of(kind, stmt, block, self.env, partial(self.unset, printed))
        return printed() if pattern is None else pattern.copy(self.env)

    def unset(self, printed: Callable[[], Texts], free: frozenset[str]) -> Texts:
        """Print with loops that have no value."""
        outer = self.env
        self.env = {name: value for name, value in outer.items() if name not in free}
        self.expr.free = free
        try:
            return printed()
        finally:
            self.env, self.expr.free = outer, frozenset()

    def share(self, text: str, c_type: str) -> str:
        """Remember a load or broadcast that several statements may share."""
        self.copying.note(lambda fill: self.shareable.__setitem__(fill(text), c_type))
        return text

    # Buffers

    def stem(self, buffer: str) -> str:
        """Return what, with a number behind it, names nothing else: a prefix for named locals."""
        stem = self.names[buffer]
        while any(re.fullmatch(rf"{stem}_\d+", other) for other in self.names.values()):
            stem += "_v"
        return stem

    def flat(self, buffer: str, indices: tuple[Expr, ...]) -> Expr:
        """Return the simplified row-major subscript of an element."""
        return self.resolver.flat(buffer, indices, self.env)

    def run_of(self, load: Load, lanes: int) -> tuple[Expr, int] | None:
        """Return the first subscript of `lanes` neighbours that copies of an unrolled reduce loop
        read, and which of them this copy reads; None where there are none."""
        if self.buffers[load.buffer].scope == REGISTER:
            return None
        outer = self.env
        for var, extent in self.runs.items():
            here = outer.get(var)
            if extent != lanes or not isinstance(here, Const):
                continue
            self.env = {name: value for name, value in outer.items() if name != var}
            terms, constant = linear(self.flat(load.buffer, load.indices))
            self.env = outer
            step = terms.pop(Var(INDEX, var), 0)
            if step == 1 and not any(var in variables(atom) for atom in terms):
                return from_linear(terms, constant), int(here.value)
        return None

    def element(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        """Return the lvalue text of one element."""
        return self.at(buffer, self.flat(buffer, indices))

    def at(self, buffer: str, flat: Expr) -> str:
        """Return the lvalue text of the element at a flat subscript."""
        return self.copying.placed(flat, partial(self.element_at, buffer))

    def element_at(self, buffer: str, place: Place) -> str:
        """Return `at` where no pattern is made."""
        name = self.names[buffer]
        if self.buffers[buffer].scope == REGISTER:
            local = self.local(buffer, place, 1)
            if local is not None:
                return local
        return f"{name}[{self.offsets.subscript(place)}]"

    def named(self, body: Sequence[CLine], var: str | None = None) -> list[CLine]:
        """Declare the sums of subscripts that `body` uses and that vary with `var`, or all."""

        def text() -> str:
            return "\n".join(line.text for line in flatten(body))

        return [CLine(line) for line in self.offsets.declared(text, var)]

    def local(
        self, buffer: str, place: Place, lanes: int, count: int | None = None,
        join: str | None = None,
    ) -> str | None:  # fmt: skip
        """Return the named local for an access to a register buffer; None if it stays an array.

        `count`: how many of the lanes are in use.  `join`: of a vector that is only read, the
        intrinsic that makes it of scalars, where there is one.
        """
        use = self.recorded.setdefault(buffer, RegisterUse())
        if place.terms:
            reach = bounds(place.expr(), self.ranges)
            use.reach = max(use.reach, reach[1] + lanes if reach is not None else 0)
            use.dynamic = True
            return None
        at = place.constant
        use.reach = max(use.reach, at + lanes)
        if lanes == 1:
            use.scalars.add(at)
        else:
            add_lanes(use.joined if join else use.vectors, {at: lanes if count is None else count})
        held = self.kept.get(buffer)
        if held is not None and held.kind == "scalar" and join:
            return join.format(*(held.names.get(at + i, "0") for i in range(lanes)))
        if held is None or held.kind != ("vector" if lanes > 1 else "scalar"):
            return None
        return held.names[at]

    def keep_array(self, buffer: str) -> None:
        """Record that a register buffer is accessed through an address."""
        self.recorded.setdefault(buffer, RegisterUse()).dynamic = True

    def local_decls(self, home: Loop | None) -> list[CLine]:
        """Declare the register buffers whose home is `home`."""
        lines = []
        for buffer in self.func.locals:
            if buffer.scope != REGISTER or self.homes[buffer.name] is not home:
                continue
            size = math.prod(buffer.shape)
            name, ctype = self.names[buffer.name], c_type(buffer.dtype)
            held = self.kept.get(buffer.name)
            if held is not None and held.kind == "vector":
                ctype = self.isa.vectors[buffer.dtype].c_type
            if held is not None and held.kind != "array":
                names = list(held.names.values())
                for i in range(0, len(names), 8):
                    lines.append(CLine(f"{ctype} {', '.join(names[i : i + 8])};"))
            else:
                known = self.uses.get(buffer.name, RegisterUse())
                whole = max(size, known.reach)
                lines.append(CLine(f"{ctype} {name}[{whole}] NST_ALIGNED(64);"))
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

    # Statements

    def block(self, block: Block) -> list[CLine]:
        """Print one store."""
        (lines,) = self.copied("scalar", block, block, lambda: (self.store(block),))
        return [CLine(text) for text in lines]

    def store(self, block: Block) -> list[str]:
        """Return the statement of one store."""
        target = self.element(block.buffer, block.indices)
        value = self.resolve(block.value)
        dtype = self.buffers[block.buffer].dtype
        if block.reduce is None:
            return [f"{target} = {self.stored(value, dtype)};"]
        op = {"sum": "add", "prod": "mul", "add": "add"}.get(block.reduce, block.reduce)
        if op in ("add", "mul") and dtype in ("float32", "float64"):
            if op == "add" and isinstance(value, Binary) and value.op == "mul":
                a, b = self.expr.text(value.a), self.expr.text(value.b)
                return [f"{target} = nst_fma_{dtype}({a}, {b}, {target});"]
            symbol = "+=" if op == "add" else "*="
            return [f"{target} {symbol} {self.expr.text(value)};"]
        current = Load(dtype, block.buffer, tuple(self.resolve(i) for i in block.indices))
        return [f"{target} = {self.stored(Binary(dtype, op, current, value), dtype)};"]

    def resolve(self, expr: Expr) -> Expr:
        """Put the values of unrolled loops into an expression and simplify it."""
        return self.resolver.resolve(expr, self.env)

    def stored(self, value: Expr, dtype: str) -> str:
        """Return `value` as text that converts to the C type of `dtype` without a warning."""
        text = self.expr.text(value)
        if dtype == "bool" or (
            isinstance(value, Select) and dtype in ("int8", "uint8", "int16", "uint16")
        ):
            return f"({c_type(dtype)})({text})"
        return text

    def tested(self, tests: Sequence[Expr], body: list[CLine]) -> list[CLine]:
        """Put `body` under an `if` on tests that are not known to hold."""
        conds = []
        for test in tests:
            test = self.resolve(test)
            if isinstance(test, Const):
                if not test.value:
                    return []
                continue
            text = self.expr.text(test, 3)
            if text not in conds:
                conds.append(text)
        if not conds or not body:
            return body
        return [CLine(f"if ({' && '.join(conds)})", True, tuple(body))]

    def stmt(self, stmt: Stmt, tests: Sequence[Expr], late: Sequence[Expr]) -> list[CLine]:
        """Print a statement.  `tests`: guards of its only block that wait for loops further in;
        `late`: guards to test at the block itself."""
        if tests:
            free = _serial_vars(stmt)
            unrolled = _unrolled(stmt)
            ready = [t for t in tests if not variables(self.resolve(t)) & free]
            if ready:
                rest = [t for t in tests if not any(t is r for r in ready)]
                plain = [t for t in ready if not variables(self.resolve(t)) & set(unrolled)]
                mixed = [t for t in ready if not any(t is p for p in plain)]
                if plain:
                    return self.tested(plain, self.stmt(stmt, [*rest, *mixed], late))
                return self.unswitch(stmt, mixed, rest, late, unrolled, bool(free))
        match stmt:
            case Seq():
                lines: list[CLine] = []
                for part in stmt.body:
                    lines.extend(self.stmt(part, self.guards(part), ()))
                return lines
            case Loop():
                return self.loop(stmt, tests, late)
            case Block():
                return self.tested([*tests, *late], self.block(stmt))
            case OpaqueCall():
                args = [self.names[n] for n in (*stmt.outputs, *stmt.inputs)]
                if stmt.scratch:
                    args.append(self.names[stmt.scratch])
                args.extend(self.expr.text(p) for p in stmt.params)
                return [CLine(f"{stmt.function}({', '.join(args)});")]
        raise TypeError(stmt)

    def unswitch(
        self, stmt: Stmt, mixed: list[Expr], rest: list[Expr], late: Sequence[Expr],
        unrolled: Mapping[str, int], has_loops: bool,
    ) -> list[CLine]:  # fmt: skip
        """Test once, before a loop, that guards hold in every unrolled copy; else in each."""
        conds: list[Expr] = []
        for test in mixed:
            worst = _worst_case(self.resolve(test), unrolled)
            if worst is None or not has_loops:
                return self.stmt(stmt, rest, [*late, *mixed])
            worst = self.resolve(worst)
            if isinstance(worst, Const):
                if not worst.value:
                    return self.stmt(stmt, rest, [*late, *mixed])
                continue
            conds.append(worst)
        clean = self.stmt(stmt, rest, late)
        if not conds or not clean:
            return clean
        texts = list(dict.fromkeys(self.expr.text(c, 3) for c in conds))
        careful = self.apart(stmt, mixed, rest, late)
        if careful is None:
            careful = self.stmt(stmt, rest, [*late, *mixed])
        return [
            CLine(f"if ({' && '.join(texts)})", True, tuple(clean)),
            CLine("else", True, tuple(careful)),
        ]

    def apart(
        self, stmt: Stmt, mixed: Sequence[Expr], rest: Sequence[Expr], late: Sequence[Expr]
    ) -> list[CLine] | None:
        """Print a nest once for the unrolled copies that share guards, each behind its guards.

        So no loop inside tests them.  None where the guards are of lanes, or of too many copies.
        """
        inside = {v for test in mixed for v in variables(self.resolve(test))}
        loops = [s for s in walk_stmt(stmt) if isinstance(s, Loop) and s.var in inside]
        names = tuple(l.var for l in loops if l.kind == UNROLL)
        extents = [l.extent for l in loops if l.kind == UNROLL]
        if (
            not names
            or math.prod(extents) > COPIES_LIMIT
            or any(l.kind == VECTORIZE for l in loops)
        ):
            return None
        groups: dict[tuple[str, ...], list[tuple[tuple[int, ...], list[Expr]]]] = {}
        outer = self.env
        for combination in itertools.product(*(range(n) for n in extents)):
            values = {n: self.resolver.value(i) for n, i in zip(names, combination, strict=True)}
            self.env = {**outer, **values}
            tests = [t for t in map(self.resolve, mixed) if not isinstance(t, Const) or not t.value]
            key = tuple(self.expr.text(t, 3) for t in tests)
            groups.setdefault(key, []).append((combination, tests))
        self.env = outer
        lines: list[CLine] = []
        around = self.copies
        for members in groups.values():
            self.copies = (*around, (names, frozenset(c for c, _ in members)))
            lines.extend(self.tested(members[0][1], self.stmt(stmt, rest, late)))
        self.copies = around
        return lines

    def printed(self, var: str, value: int) -> bool:
        """Tell whether a copy of an unrolled loop is among those to print."""
        if not self.copies:
            return True
        known = {n: int(v.value) for n, v in self.env.items() if isinstance(v, Const)}
        known[var] = value
        return all(
            var not in names
            or any(
                all(known.get(n, i) == i for n, i in zip(names, combination, strict=True))
                for combination in wanted
            )
            for names, wanted in self.copies
        )

    def guards(self, stmt: Stmt) -> list[Expr]:
        """Return the simplified guards of the only block of a nest; [] if it has several parts."""
        while isinstance(stmt, Loop):
            stmt = stmt.body
        if not isinstance(stmt, Block) or stmt.guard is None:
            return []
        tests = [self.resolve(c) for c in conjuncts(stmt.guard)]
        return [t for t in tests if not (isinstance(t, Const) and t.value)]

    def loop(self, loop: Loop, tests: Sequence[Expr], late: Sequence[Expr]) -> list[CLine]:
        """Print a loop; unrolled ones and those of one iteration leave no loop behind."""
        if loop.extent == 0:
            return []
        if loop.kind == TENSORIZE:
            tensor = self.tensor(loop, [*tests, *late])
            if tensor is not None:
                return tensor
        if loop.kind in (VECTORIZE, TENSORIZE):
            vector = self.vector(loop, [*tests, *late])
            if vector is not None:
                return vector
        if loop.extent == 1 or loop.kind == UNROLL:
            lines: list[CLine] = []
            outer = self.env
            for i in range(loop.extent):
                self.env = outer
                if not self.printed(loop.var, i):
                    continue
                self.env = {**outer, loop.var: self.resolver.value(i)}
                decls = self.local_decls(loop)
                body = self.stmt(loop.body, tests, late)
                body = [*self.ahead(loop), *self.late(loop, body)]
                lines.extend([CLine("", True, (*decls, *body))] if decls and body else body)
            self.env = outer
            return lines
        decls = self.local_decls(loop)
        name = self.names[loop.var]
        around, self.around = self.around, (*self.around, name)
        body = self.stmt(loop.body, tests, late)
        self.around = around
        offsets = self.named(body, loop.var)
        if not body:
            return []
        tensors = loop.kind == SERIAL and any(line.phase is not None for line in body)
        tensors = tensors and not any(line.head for line in body)
        if not self.offsets.counting:  # its texts are not complete
            body = share_loads(in_phases(from_zero(body)), self.shareable)
            if loop.var in self.neighbours:
                body = load_constants(body, self.shareable)
        body = self.late(loop, body)
        body = [*self.ahead(loop), *body]
        first, end = ("nst_first", "nst_end") if loop.kind == PARALLEL else (0, loop.extent)
        head = f"for ({C_INDEX} {name} = {first}; {name} < {end}; ++{name})"
        decls = [*decls, *offsets]
        lines = [CLine(head, True, (*decls, *body))]
        if tensors:
            lines = self.walked(loop, head, body, decls)
        if loop.kind == PARALLEL:
            lines = self.parallel(lines, loop.extent)
        comments = [CLine(f"/* {value} */") for key, value in loop.notes if key == "comment"]
        return [*comments, *lines]

    def ahead(self, loop: Loop) -> list[CLine]:
        """Ask for what a later iteration of a loop reads, where a note on it says so."""
        return [
            CLine(f"NST_PREFETCH({self.names[b.name]}, {self.expr.text(self.resolve(place))});")
            for b, place in lines_ahead(self.func, loop)
        ]

    def parallel(self, lines: list[CLine], extent: int) -> list[CLine]:
        """Move a loop from `nst_first` to `nst_end` to a function of its own, run in parts."""
        lines = [*self.named(lines), *lines]
        used = words(lines)
        buffers = [b for b in self.buffers.values() if self.names[b.name] in used]
        inputs = {b.name for b in self.func.inputs}
        params, args = [], []
        for buffer in buffers:
            if buffer.scope == REGISTER:
                continue
            name = self.names[buffer.name]
            params.append(CParam(name, c_type(buffer.dtype), buffer.name in inputs))
            apart = f" + part * {buffer.copy_size}u" if buffer.copies > 1 else ""
            args.append(f"it->{name}{apart}")
        variables = tuple(v for v in self.around if v in used)
        name = f"{self.name}_p{len(self.parts)}"
        self.parts.append(
            CPart(name, tuple(params), tuple(args), variables, extent, self.threads, tuple(lines))
        )
        values = ", ".join([*(p.name for p in params), *variables])
        return [
            CLine("", True, (
                CLine(f"{name}_operands nst_operands = {{{values}}};"),
                CLine(f"nst_parallel({name}, &nst_operands, {self.threads}u);"),
            ))
        ]  # fmt: skip

    def late(self, home: Loop, body: list[CLine]) -> list[CLine]:
        """Keep what follows a reduction from loading its operands before it.

        Compilers move such loads out of loops, and spill accumulators declared in `home` for them.
        """
        accumulators = [
            name
            for buffer, loop in self.homes.items()
            if loop is home and buffer in self.kept and self.kept[buffer].kind == "vector"
            for name in self.kept[buffer].names.values()
        ]
        if not accumulators:
            return body
        last = max((i for i, line in enumerate(body) if line.head), default=-1)
        tail = body[last + 1 :]
        used = {word for line in flatten(tail) for word in re.findall(r"[A-Za-z_]\w*", line.text)}
        started = {line.text.split(" = ")[0] for line in body[: max(last, 0)] if not line.head}
        held = next((name for name in accumulators if name in used & started), None)
        if held is None:
            return body
        operands = [n for b in self.func.inputs if (n := self.names[b.name]) in used]
        fences = [CLine(f"NST_LOAD_LATE({name}, {held});") for name in operands]
        return [*body[: last + 1], *fences, *tail]

    def vector(self, loop: Loop, tests: Sequence[Expr]) -> list[CLine] | None:
        """Print a vectorised loop with intrinsics; None where its statement cannot be."""
        if not isinstance(loop.body, Block):
            return None
        block = loop.body
        lanes = lanes_of(self.isa, block, self.buffers[block.buffer].dtype)
        if lanes == 1:
            # The compiler unrolls; named scalar locals still need constant subscripts.
            return self.loop(replace(loop, kind=UNROLL), tests, ()) if loop.extent <= 16 else None
        before, self.recorded = self.recorded, {}
        try:
            if tests:
                lines = self.vector_lines(loop, block, lanes, tests)
            else:

                def printed() -> Texts:
                    return ([line.text for line in self.vector_lines(loop, block, lanes, ())],)

                (texts,) = self.copied("vector", loop, block, printed)
                lines = [CLine(text) for text in texts]
        except NotVectorizable:
            return None
        else:
            add_uses(before, self.recorded)
        finally:
            self.recorded = before
        self.simd = True
        return lines

    def vector_lines(
        self, loop: Loop, block: Block, lanes: int, tests: Sequence[Expr]
    ) -> list[CLine]:
        """Print the vectors of a loop; raises `NotVectorizable`."""
        lane = f"{loop.var} lane"  # a name of its own, so that putting values in twice is harmless
        self.resolver.ranges[lane] = 0, lanes - 1
        printer = VectorPrinter(self, lane, lanes)
        lines: list[CLine] = []
        outer = self.env
        try:
            for start in range(0, loop.extent, lanes):
                count = min(lanes, loop.extent - start)
                self.env = {**outer, loop.var: self.resolver.value(start, lane)}
                text, conds = printer.store(block, tests, count)
                lines.extend(self.tested(conds, [CLine(t) for t in text]))
            if printer.pending:
                lines.append(CLine(printer.across(block)))
        finally:
            self.env = outer
        return lines

    def walked(
        self, loop: Loop, head: str, body: list[CLine], decls: Sequence[CLine]
    ) -> list[CLine]:
        """Print a loop of tensor intrinsics, whose operands are read through pointers that advance.

        With subscripts, compilers for cores of few registers compute each address anew.
        """
        used = [text for text in self.addresses if any(text in line.text for line in body)]
        groups: dict[tuple[str, int, Expr], dict[str, int]] = {}
        for text in used:
            buffer, flat = self.addresses[text]
            terms, constant = linear(flat)
            step = terms.pop(Var(INDEX, loop.var), 0)
            rest = from_linear(terms, 0)
            if step and loop.var not in variables(rest):
                groups.setdefault((buffer, step, rest), {})[text] = constant
        before, after = [], []
        for number, ((buffer, step, rest), texts) in enumerate(groups.items()):
            name, first = f"nst_p{number}", min(texts.values())
            before.append(self.pointer(name, buffer, rest, first))
            following = in_order([line.text for line in body], texts, self.streams, step)
            if following is not None:
                for stream in following:
                    body = with_text(body, stream.load, stream.following.format(f"&{name}"))
                continue
            after.append(CLine(f"{name} += {step};"))
            for text, constant in texts.items():
                body = with_text(body, text, f"&{name}[{constant - first}]")
        still, body = self.kept_loads(loop, used, body)
        return [CLine("", True, (*before, *still, CLine(head, True, (*decls, *body, *after))))]

    def pointer(self, name: str, buffer: str, rest: Expr, first: int) -> CLine:
        """Declare a pointer to an element of a buffer."""
        start = self.expr.text(simplify(binary("add", rest, first), self.ranges))
        ctype = c_type(self.buffers[buffer].dtype)
        const = "" if buffer in self.written else "const "
        return CLine(f"{const}{ctype} *{name} = &{self.names[buffer]}[{start}];")

    def kept_loads(
        self, loop: Loop, used: list[str], body: list[CLine]
    ) -> tuple[list[CLine], list[CLine]]:
        """Have the loads that are the same in each iteration made in each, where they are many.

        Compilers move them out of the loop, and then spill what registers do not hold.
        """
        groups: dict[tuple[str, Expr], dict[str, int]] = {}
        for text in used:
            buffer, flat = self.addresses[text]
            if text in self.streams and loop.var not in variables(flat):
                terms, constant = linear(flat)
                groups.setdefault((buffer, from_linear(terms, 0)), {})[text] = constant
        if sum(len(texts) for texts in groups.values()) <= self.isa.registers - 2:
            return [], body
        pointers: list[CLine] = []
        fences: list[CLine] = []
        for (buffer, rest), texts in groups.items():
            for near in clusters(texts, NEAR):
                name, first = f"nst_q{len(pointers)}", min(near.values())
                pointers.append(self.pointer(name, buffer, rest, first))
                fences.append(CLine(f"NST_LOADED_ANEW({name});"))
                for text, constant in near.items():
                    body = with_text(body, text, f"&{name}[{constant - first}]")
        return pointers, [*fences, *body]

    def tensor(self, loop: Loop, tests: Sequence[Expr]) -> list[CLine] | None:
        """Print the nest of a tensor intrinsic; None where it is not the nest of one we have."""
        intrinsic = self.isa.tensors.get(dict(loop.notes).get("intrinsic", ""))
        if intrinsic is None:
            return None
        before_uses, self.recorded = self.recorded, {}
        try:
            loops, block = nest_loops(loop)
            own = {l.var for l in loops}
            inside = [t for t in map(self.resolve, tests) if variables(t) & own]
            if inside:
                parts = TensorPrinter(self, intrinsic, loop).lines(inside)
            else:
                parts = self.copied(
                    "tensor", loop, block, lambda: TensorPrinter(self, intrinsic, loop).lines(())
                )
            before, statements, firsts, after = parts
        except Mismatch:
            return None
        else:
            add_uses(before_uses, self.recorded)
        finally:
            self.recorded = before_uses
        self.simd = True
        lines = [
            CLine(text, phase=phase, first=firsts[phase] if firsts else "")
            for phase, statement in enumerate(statements)
            for text in statement.splitlines()
        ]
        if before:
            around = (*map(CLine, before), *lines, *map(CLine, after))
            lines = [CLine("", True, around)]
        return self.tested([t for t in tests if not variables(t) & own], lines)


def _neighbours(stmt: Stmt, inside: bool = False) -> set[str]:
    """Return the loops that share an iteration of a loop around them with other loops."""
    match stmt:
        case Loop():
            own = {stmt.var} if inside else set()
            return own | _neighbours(stmt.body, inside or _loops_side_by_side(stmt.body))
        case Seq():
            return set().union(*(_neighbours(part, inside) for part in stmt.body))
    return set()


def _loops_side_by_side(stmt: Stmt) -> bool:
    return isinstance(stmt, Seq) and sum(isinstance(part, Loop) for part in stmt.body) > 1


def _serial_vars(stmt: Stmt) -> set[str]:
    """Return the variables of loops in `stmt` that stay loops."""
    return {
        s.var
        for s in walk_stmt(stmt)
        if isinstance(s, Loop) and s.kind not in (UNROLL, VECTORIZE, TENSORIZE) and s.extent > 1
    }


def _unrolled(stmt: Stmt) -> dict[str, int]:
    """Return the loops in `stmt` that are printed as copies, with their extents."""
    return {
        s.var: s.extent
        for s in walk_stmt(stmt)
        if isinstance(s, Loop) and (s.kind in (UNROLL, VECTORIZE, TENSORIZE) or s.extent == 1)
    }


def _worst_case(test: Expr, unrolled: Mapping[str, int]) -> Expr | None:
    """Return the test for the copy in which it is hardest to meet; None if that cannot be told."""
    if not isinstance(test, Binary) or test.op not in ("lt", "le") or test.a.dtype != INDEX:
        return None
    terms, _ = linear(binary("sub", test.a, test.b))
    values: dict[str, Expr] = {}
    for atom, k in terms.items():
        inside = variables(atom) & set(unrolled)
        if not inside:
            continue
        if not isinstance(atom, Var):
            return None
        values[atom.name] = Const(INDEX, unrolled[atom.name] - 1 if k > 0 else 0)
    return substitute(test, values)


def print_kernel(
    func: PrimFunc, name: str, comment: Sequence[str] = (), isa: Isa = ISAS["scalar"],
    threads: int = 1,
) -> CKernel:  # fmt: skip
    """Lower a scheduled function and print it as C statements under the C name `name`.

    `threads`: in how many parts parallel loops run.
    """
    with paused_collector():
        return _printed(lower_func(func, threads, isa), name, comment, isa, threads)


def _printed(func: PrimFunc, name: str, comment: Sequence[str], isa: Isa, threads: int) -> CKernel:
    """Print a lowered function."""
    printer = KernelPrinter(func, name, isa, threads)
    printer.body()
    printer.start(printer.recorded)
    body = printer.body()
    lines = [*printer.local_decls(None), *printer.named(body), *body]
    scratch = tuple(b for b in func.locals if b.scope == SCRATCH)
    params = tuple(
        CParam(printer.names[b.name], c_type(b.dtype), is_input)
        for b, is_input in (
            *((b, False) for b in func.outputs),
            *((b, True) for b in func.inputs),
            *((b, False) for b in scratch),
        )
    )
    calls = tuple(sorted({s.function for s in walk_stmt(func.body) if isinstance(s, OpaqueCall)}))
    used = words(lines)
    unused = [CLine(f"(void){p.name};") for p in params if p.name not in used]
    parts = tuple(p for p in printer.parts if p.name in used)
    lines = [*unused, *lines]
    return CKernel(name, params, tuple(lines), tuple(comment), scratch, calls, printer.simd, parts)


__all__ = ["CKernel", "CPart", "print_kernel"]
