"""PadRead: read an operand from a copy with its padding around it, where no tap needs a guard."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.compute import Axis, reduce_identity
from toolkit.ir.expr import (
    all_of,
    Binary,
    binary,
    Cast,
    cast,
    conjuncts,
    Const,
    const,
    Expr,
    INDEX,
    Load,
    loads,
    rewrite,
    select,
    Var,
)
from toolkit.ir.loop import (
    Block,
    Buffer,
    fresh_name,
    Loop,
    map_block,
    PrimFunc,
    rewrite_stmt,
    SCRATCH,
    seq,
    SPATIAL,
    Stmt,
    walk_stmt,
    wrap,
)
from toolkit.ir.regions import accesses, block_loads, bound_expr, loop_ranges, writes
from toolkit.ir.simplify import bounds, linear, Ranges
from toolkit.ir.types import int_range, is_float
from toolkit.schedule.examples import padded_windows
from toolkit.schedule.steps.base import block_names, loop_names, Step


@dataclass(frozen=True, slots=True)
class PadRead(Step):
    """Let `block` read `operand` from a padded copy, made before the block's nest.

    The copy holds, around the operand, the value that adds nothing to the block's reduction; guards
    that only keep the block inside the operand vanish.  A dimension with s > 1 in `phases` is
    stored as two, index % s and index // s, so that windows of stride s read neighbours.
    `multiples`: each dimension of the copy is rounded up to one.  With a `dtype`, the copy holds
    the integers that the block multiplies by, the zero point taken off, and 0 around them.

    Before::                            After::

        for i in 8:                         for p0 in 10:
          for k in 3:                         a_pad: y_a[d] = a[d - 1] if inside, else 0
            y: y[i] sum= a[i + k - 1]       for i in 8:
               where inside a                 for k in 3:
                                                y: y[i] sum= y_a[i + k]
    """

    block: str
    operand: str
    phases: tuple[int, ...] = ()
    multiples: tuple[int, ...] = ()
    dtype: str = ""

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return padded_windows(), cls("y", "a")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses where no value of the operand leaves the reduction as it is."""
        loops, block = self.find(func, self.block)
        top: Stmt = loops[0] if loops else block
        buffers = func.buffers()
        found = list(dict.fromkeys(l for l in block_loads(block) if l.buffer == self.operand))
        if self.operand not in buffers or len(found) != 1 or not accesses(block, self.operand):
            self.refuse(
                func, f"block {block.name!r} does not read one element of {self.operand!r}."
            )
        if self.operand in writes(top):
            self.refuse(func, f"{self.operand!r} is written in the nest of block {block.name!r}.")
        load, operand = found[0], buffers[self.operand]
        rank = len(operand.shape)
        phases, multiples = self.phases or (1,) * rank, self.multiples or (1,) * rank
        for what, numbers in (("phases", phases), ("multiples", multiples)):
            if len(numbers) != rank or any(s < 1 for s in numbers):
                self.refuse(
                    func, f"{what} must be positive, one for each dimension of {operand.name!r}."
                )
        value: Expr = load
        fill = _neutral(block, load)
        if self.dtype:
            value, fill = self._factor(func, block, load), const(0, self.dtype)
        if fill is None:
            self.refuse(func, f"no value of {operand.name!r} leaves {block.name!r} as it is.")
        ranges = loop_ranges(s for s in walk_stmt(func.body) if isinstance(s, Loop))
        around: list[tuple[int, int]] = []
        for index, size in zip(load.indices, operand.shape, strict=True):
            reach = bounds(bound_expr(block, index), ranges)
            if reach is None:
                self.refuse(func, f"how far {block.name!r} reads {operand.name!r} is not known.")
            around.append((max(0, -reach[0]), max(0, reach[1] + 1 - size)))
        guard = all_of(*(t for t in conjuncts(block.guard) if not _implied(t, load, operand)))
        for other in block_loads(block):
            if other.buffer != operand.name and not _inside(block, other, buffers, ranges):
                self.refuse(func, f"the guard keeps {block.name!r} inside {other.buffer!r} too.")
        margins = [
            (before, -(size + before + after) % m + after)
            for (before, after), size, m in zip(around, operand.shape, multiples, strict=True)
        ]
        copy, cache = self._copy(func, block, operand, value, fill, margins, phases)
        at: list[Expr] = []
        for index, (before, _), s in zip(load.indices, around, phases, strict=True):
            place = binary("add", index, before)
            at += [place] if s == 1 else [place % s, place // s]
        copied = cast(Load(cache.dtype, cache.name, tuple(at)), value.dtype)

        def move(e: Expr) -> Expr | None:
            return copied if e == value else None

        def rule(s: Stmt) -> Stmt | None:
            if isinstance(s, Block) and s.name == block.name:
                s = replace(s, guard=guard)
                return map_block(s, move) or s
            return None

        moved = rewrite_stmt(top, rule)
        assert moved is not None

        def put(s: Stmt) -> Stmt | None:
            return seq(copy, moved) if s is top else None

        body = rewrite_stmt(func.body, put)
        assert body is not None
        return func.with_(body=body, locals=(*func.locals, cache))

    def _copy(
        self,
        func: PrimFunc,
        block: Block,
        operand: Buffer,
        element: Expr,
        fill: Const,
        around: list[tuple[int, int]],
        phases: tuple[int, ...],
    ) -> tuple[Stmt, Buffer]:
        """Return the nest that makes the copy, and the copy."""
        taken = loop_names(func)
        axes: list[Axis] = []
        source: list[Expr] = []
        inside: list[Expr] = []
        for n, (size, (before, after), s) in enumerate(
            zip(operand.shape, around, phases, strict=True)
        ):
            whole = -(-(size + before + after) // s)
            names = [(f"d{n}", whole)] if s == 1 else [(f"d{n}r", s), (f"d{n}", whole)]
            own = [Axis(INDEX, name, extent, SPATIAL) for name, extent in names]
            axes += own
            place = own[0] if s == 1 else own[1] * s + own[0]
            source.append(binary("sub", place, before))
            if before:
                inside.append(binary("le", before, place))
            if whole * s > before + size:
                inside.append(place < before + size)
        names = [(fresh_name(a.name.replace("d", "p", 1), taken), a.extent) for a in axes]
        cache = Buffer(
            fresh_name(f"{operand.name}_{block.name}", set(func.buffers())),
            tuple(a.extent for a in axes),
            fill.dtype,
            SCRATCH,
        )
        moved = Load(operand.dtype, operand.name, tuple(source))
        value = cast(rewrite(element, lambda e: moved if isinstance(e, Load) else None), fill.dtype)
        condition = all_of(*inside)
        copied = Block(
            fresh_name(f"{block.name}_{operand.name}", block_names(func)),
            tuple(axes),
            tuple(Var(INDEX, name) for name, _ in names),
            cache.name,
            tuple(axes),
            value if condition is None else select(condition, value, fill),
        )
        return wrap([(name, extent, SPATIAL) for name, extent in names], copied), cache

    def _factor(self, func: PrimFunc, block: Block, load: Load) -> Expr:
        """Return the factor of the block's product that holds the load, or refuse."""
        factor = None
        if block.reduce == "sum" and isinstance(block.value, Binary) and block.value.op == "mul":
            sides = (block.value.a, block.value.b)
            factor = next((s for s in sides if list(dict.fromkeys(loads(s))) == [load]), None)
        match factor:
            case Cast(a=inner) if inner == load:
                zero = 0
            case Binary(op="sub", a=Cast(a=inner), b=Const(value=int(zero))) if inner == load:
                pass
            case _:
                self.refuse(func, f"block {block.name!r} sums no products of {load.buffer!r}.")
        if is_float(factor.dtype) or is_float(load.dtype) or is_float(self.dtype):
            self.refuse(func, f"{load.buffer!r} holds no integers.")
        (low, high), (least, most) = int_range(load.dtype), int_range(self.dtype)
        if low - zero < least or high - zero > most:
            self.refuse(
                func, f"{self.dtype} does not hold every factor {low - zero}..{high - zero}."
            )
        return factor


def _neutral(block: Block, load: Load) -> Const | None:
    """Return the value of the load with which the block's step changes nothing; None if unknown."""
    if block.reduce in ("max", "min") and block.value == load:
        return reduce_identity(block.reduce, load.dtype)
    return _zero(block.value, load) if block.reduce == "sum" else None


def _zero(expr: Expr, load: Load) -> Const | None:
    """Return the value of the load that makes an expression zero, other operands being finite."""
    if expr == load:
        return const(0, load.dtype)
    match expr:
        case Cast():
            return _zero(expr.a, load)
        case Binary(op="mul"):
            for factor in (expr.a, expr.b):
                if any(e == load for e in loads(factor)):
                    return _zero(factor, load)
        case Binary(op="sub", a=Load() | Cast() as wide, b=Const() as less):
            zero = const(less.value, load.dtype)
            source = wide.a if isinstance(wide, Cast) else wide
            if source == load and const(zero.value, less.dtype) == less:
                return zero
    return None


def _implied(test: Expr, load: Load, operand: Buffer) -> bool:
    """Tell whether a test holds wherever the load lies inside its operand."""
    if not isinstance(test, Binary) or test.op not in ("lt", "le") or test.a.dtype != INDEX:
        return False
    terms, room = linear(binary("sub", test.b, test.a))
    room -= test.op == "lt"
    for index, size in zip(load.indices, operand.shape, strict=True):
        for least in (index, binary("sub", size - 1, index)):
            inside, constant = linear(least)
            if inside == terms and constant <= room:
                return True
    return False


def _inside(block: Block, load: Load, buffers: dict[str, Buffer], ranges: Ranges) -> bool:
    """Tell whether a load stays inside its buffer whatever the guard."""
    for index, size in zip(load.indices, buffers[load.buffer].shape, strict=True):
        reach = bounds(bound_expr(block, index), ranges)
        if reach is None or reach[0] < 0 or reach[1] >= size:
            return False
    return True
