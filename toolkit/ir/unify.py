"""Finding a small nest in a kernel: is what these loops compute what that nest computes?

The answer is structural: the same loops, the same expression, operands whose elements lie at the
same distances from one another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.ir.expr import (
    Binary,
    binary,
    Call,
    Cast,
    Const,
    Expr,
    INDEX,
    Load,
    Select,
    substitute,
    Var,
    variables,
)
from toolkit.ir.loop import Block, Buffer, Loop, PrimFunc, Stmt
from toolkit.ir.regions import bind_map, block_loads, bound_expr, loop_ranges
from toolkit.ir.simplify import linear, Ranges, simplify
from toolkit.ir.text import expr_text, loops_line

Flat = Callable[[str, tuple[Expr, ...]], Expr]
"""Gives the row-major subscript, over loops, of an element of a buffer."""


class Mismatch(Exception):
    """The nest computes something else; the text says what differs."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        self.hint = hint
        super().__init__(what)


@dataclass(frozen=True, slots=True)
class Access:
    """Where an operand of the pattern lies: its buffer, and the subscript over loops.

    A literal in its place is `flat` itself, and lies in no buffer: "".
    """

    buffer: str
    flat: Expr


def flat_of(block: Block, buffers: Mapping[str, Buffer], ranges: Ranges) -> Flat:
    """Return the function that gives row-major subscripts, over loops, of the loads of a block."""
    binds = bind_map(block)

    def flat(buffer: str, indices: tuple[Expr, ...]) -> Expr:
        result: Expr = Const(INDEX, 0)
        stride = 1
        for index, extent in zip(reversed(indices), reversed(buffers[buffer].shape), strict=True):
            at = bound_expr(block, index, binds) if binds else index
            result = binary("add", binary("mul", at, stride), result)
            stride *= extent
        return simplify(result, ranges)

    return flat


def nest_loops(stmt: Stmt) -> tuple[list[Loop], Block]:
    """Return the loops of a perfect nest and its block; refuse others."""
    loops: list[Loop] = []
    while isinstance(stmt, Loop):
        loops.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, Block):
        raise Mismatch("the loops hold more than one block.")
    return loops, stmt


def unify(
    pattern: PrimFunc,
    nest: Stmt,
    flat: Flat,
    dtypes: Mapping[str, str],
    over: Mapping[str, Sequence[str]],
) -> tuple[dict[str, Access], dict[str, str]]:
    """Return where each buffer of `pattern` lies in `nest`, and its loops by those of the pattern.

    `over`: loops of the pattern along which elements of a buffer may lie anywhere.  A buffer of the
    pattern without dimensions may be a literal.  Raises `Mismatch`.
    """
    wanted, model = nest_loops(pattern.body)
    loops, block = nest_loops(nest)
    if [l.extent for l in loops] != [l.extent for l in wanted]:
        raise Mismatch(
            f"the loops are {loops_line(nest)}, those of the intrinsic {loops_line(pattern.body)}."
        )
    names = {w.var: l.var for w, l in zip(wanted, loops, strict=True)}
    if block.reduce != model.reduce:
        raise Mismatch(f"block {block.name!r} combines by {block.reduce}, not {model.reduce}.")
    found: dict[str, Load] = {}
    values = _Values(found)
    if not values.same(model.value, block.value):
        raise Mismatch(
            f"the value is {expr_text(block.value)}, that of the intrinsic "
            f"{expr_text(model.value)}."
        )
    target = Load(dtypes[block.buffer], block.buffer, block.indices)
    found[model.buffer] = target
    shapes = pattern.buffers()
    own = flat_of(model, shapes, loop_ranges(wanted))
    loads = {model.buffer: model.indices, **values.patterns}
    result = {name: Access("", number) for name, number in values.numbers.items()}
    for name, load in found.items():
        if load.dtype != shapes[name].dtype:
            raise Mismatch(f"{load.buffer!r} is {load.dtype}, not {shapes[name].dtype}.")
        at = flat(load.buffer, load.indices)
        want = strides(own(name, loads[name]), list(names))
        have = strides(at, list(names.values()))
        for var, mine in names.items():
            if var in over.get(name, ()) and have[mine] is not None:
                continue
            if have[mine] is None or have[mine] != want[var]:
                far = "no fixed number of" if have[mine] is None else have[mine]
                raise Mismatch(
                    f"neighbours of {load.buffer!r} along loop {mine!r} lie {far} elements apart, "
                    f"not {want[var]}.",
                    f"operands lie as {_layout(pattern, name)}: constants by Pack and "
                    "TransformLayout before this step.",
                )
        result[name] = Access(load.buffer, at)
    return result, names


def _layout(pattern: PrimFunc, name: str) -> str:
    """Return the accesses to a buffer of the pattern as text: `B[i, k] of int8[16, 4]`."""
    buffer = pattern.buffers()[name]
    _, model = nest_loops(pattern.body)
    found = next((l.indices for l in block_loads(model) if l.buffer == name), model.indices)
    return f"{name}[{', '.join(map(expr_text, found))}] of {buffer.type}"


def strides(flat: Expr, names: Sequence[str]) -> dict[str, int | None]:
    """Return the distance between neighbours along each loop; None where it is not constant."""
    terms, _ = linear(flat)
    result: dict[str, int | None] = dict.fromkeys(names, 0)
    for atom, k in terms.items():
        if isinstance(atom, Var):
            if atom.name in result:
                result[atom.name] = k
            continue
        for name in variables(atom) & set(names):
            result[name] = None
    return result


def at_point(flat: Expr, point: Mapping[str, int], ranges: Ranges) -> Expr:
    """Return a subscript with some loops at the given iterations."""
    return simplify(substitute(flat, {n: Const(INDEX, v) for n, v in point.items()}), ranges)


class _Values:
    """Compares value expressions, and collects which load stands for which."""

    def __init__(self, found: dict[str, Load]) -> None:
        self.found = found
        self.patterns: dict[str, tuple[Expr, ...]] = {}
        self.numbers: dict[str, Const] = {}

    def same(self, a: Expr, b: Expr) -> bool:
        """Tell whether `b` is the pattern `a`; products and sums match either way round."""
        if isinstance(a, Load) and not a.indices and isinstance(b, Const):
            return a.dtype == b.dtype and self.numbers.setdefault(a.buffer, b) == b
        if isinstance(a, Load):
            if not isinstance(b, Load) or a.dtype != b.dtype:
                return False
            known = self.found.setdefault(a.buffer, b)
            self.patterns.setdefault(a.buffer, a.indices)
            return known == b
        if type(a) is not type(b) or a.dtype != b.dtype:
            return False
        match a, b:
            case Const(), Const():
                return a.value == b.value
            case Binary(), Binary():
                if a.op != b.op:
                    return False
                kept, patterns = dict(self.found), dict(self.patterns)
                if self.same(a.a, b.a) and self.same(a.b, b.b):
                    return True
                self.found.clear()
                self.found.update(kept)
                self.patterns = patterns
                return a.op in ("add", "mul") and self.same(a.a, b.b) and self.same(a.b, b.a)
            case Cast(), Cast():
                return self.same(a.a, b.a)
            case Call(), Call():
                return a.fn == b.fn and all(
                    self.same(x, y) for x, y in zip(a.args, b.args, strict=True)
                )
            case Select(), Select():
                return self.same(a.cond, b.cond) and self.same(a.a, b.a) and self.same(a.b, b.b)
        return False
