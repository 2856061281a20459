"""Loop IR: one kernel as a nest of named loops around blocks.

A `Block` is one store.  Its axes are bound to expressions of the loops around it, so that
splitting, fusing and reordering loops never rewrites the expressions inside.  Text form::

    func matmul(A: float32[8, 32], B: float32[32, 16]) -> (C: float32[8, 16])
      for i in 8:
        for j in 16:
          for k in 32:  # reduce
            block C[i, j] sum= A[i, k] * B[k, j]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from itertools import chain
from typing import Any, TypeVar

from toolkit.ir.compute import Axis
from toolkit.ir.expr import Const, Expr, Load, loads, rewrite
from toolkit.ir.types import DType, DTYPES, TensorType

SPATIAL, REDUCE, SCAN = "spatial", "reduce", "scan"
SERIAL, UNROLL, VECTORIZE, PARALLEL = "serial", "unroll", "vectorize", "parallel"
TENSORIZE = "tensorize"
"""A loop of a nest that is one tensor intrinsic, named by the note `intrinsic` of its outermost."""
PARAM, CONST, SCRATCH, REGISTER = "param", "const", "scratch", "register"
CACHE_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Buffer:
    """Dense row-major storage.  `scope`: 'param' (an argument), 'const' (an argument whose
    value is known when compiling), 'scratch' (planned in the arena), or 'register' (a C local).
    `multiples`, if any: lowering rounds each dimension of a local buffer up to one.  `copies`: of
    scratch that the parts of a parallel loop use, one for each.  `rolling`: of a local buffer whose
    elements live from one iteration of a loop to the next."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    scope: str
    multiples: tuple[int, ...] = ()
    copies: int = 1
    rolling: bool = False

    @property
    def type(self) -> TensorType:
        """Shape and element type."""
        return TensorType(self.shape, self.dtype)

    @property
    def copy_size(self) -> int:
        """Elements from one copy to the next: no two share a line of a cache."""
        width = DTYPES[self.dtype].nbytes
        return -(-self.type.nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES // width

    @property
    def storage(self) -> TensorType:
        """What holds all copies."""
        return (
            self.type if self.copies == 1 else TensorType((self.copies, self.copy_size), self.dtype)
        )

    def with_room(self) -> Buffer:
        """Return the buffer with each dimension rounded up."""
        if not self.multiples:
            return self
        shape = tuple(-(-n // m) * m for n, m in zip(self.shape, self.multiples, strict=True))
        return replace(self, shape=shape, multiples=())


class _Known:
    """Room beside the fields of a statement or function for what was asked of it: neither changes.

    A schedule step makes new statements only around what it changes, so most answers about the
    next function are put together from those about the parts that it shares with this one.
    """

    __slots__ = (
        "_answers",
        "_bound",
        "_inside",
        "_loads",
        "_loops",
        "_reads",
        "_stores",
        "_writes",
    )


@dataclass(frozen=True, slots=True)
class Loop(_Known):
    """`body` for var = 0..extent-1.  `role` is the strongest of the block axes it drives.

    `notes` are pairs of a key and a value, which change no meaning.
    """

    var: str
    extent: int
    role: str
    kind: str
    body: Stmt
    notes: tuple[tuple[str, str], ...] = ()

    def around(self, body: Stmt) -> Loop:
        """Return the loop around another body; faster than `replace`, which schedules need."""
        return Loop(self.var, self.extent, self.role, self.kind, body, self.notes)


@dataclass(frozen=True, slots=True)
class Seq(_Known):
    """Statements one after another."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Block(_Known):
    """One store: buffer[indices] = value, or with `reduce` buffer[indices] = reduce(.., value).

    All expressions are over `axes`, which `binds` maps to loops, position by position.  A reduction
    first sets its element to `init` (the neutral element if None), at the first step of its reduce
    loops;
    `update_only` says that another block does that.  Where split loops run beyond the extent of an
    axis, the guard keeps the store away, and nothing is initialised.  `guard`: store only where it
    holds.
    """

    name: str
    axes: tuple[Axis, ...]
    binds: tuple[Expr, ...]
    buffer: str
    indices: tuple[Expr, ...]
    value: Expr
    reduce: str | None = None
    init: Expr | None = None
    guard: Expr | None = None
    update_only: bool = False


@dataclass(frozen=True, slots=True)
class OpaqueCall(_Known):
    """A call of a C function on whole buffers: outputs, inputs, scratch, then literals."""

    name: str
    function: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    scratch: str | None
    params: tuple[Const, ...]
    reference: Callable[..., tuple[Any, ...]]


Stmt = Loop | Seq | Block | OpaqueCall


@dataclass(frozen=True, slots=True)
class PrimFunc(_Known):
    """One kernel: parameters (inputs, then outputs), local buffers, and the nest."""

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    locals: tuple[Buffer, ...]
    body: Stmt

    def with_(self, **changes: Any) -> PrimFunc:
        """Return a copy with the given fields replaced."""
        if changes.keys() == {"body"}:  # what nearly every schedule step changes
            return PrimFunc(self.name, self.inputs, self.outputs, self.locals, changes["body"])
        return replace(self, **changes)

    def buffers(self) -> dict[str, Buffer]:
        """Map every buffer's name to it."""
        return {b.name: b for b in (*self.inputs, *self.outputs, *self.locals)}

    def __str__(self) -> str:
        from toolkit.ir.text import func_text

        return func_text(self)


def seq(*stmts: Stmt) -> Stmt:
    """Join statements, flattening nested sequences; a single one stands alone."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.body if isinstance(stmt, Seq) else (stmt,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


_T = TypeVar("_T")


def kept(place: str) -> Callable[[Callable[[Any], _T]], Callable[[Any], _T]]:
    """Keep the answers of a question about one statement in a place of the statement's own."""

    def keeping(question: Callable[[Any], _T]) -> Callable[[Any], _T]:
        slot = getattr(_Known, place)
        read, write = slot.__get__, slot.__set__

        @wraps(question)
        def answer(stmt: Any) -> _T:
            try:
                found: _T = read(stmt)
            except AttributeError:
                found = question(stmt)
                write(stmt, found)
            return found

        return answer

    return keeping


@kept("_answers")
def answers(func: PrimFunc) -> dict[Any, Any]:
    """Return the room for answers about a function: of questions with further operands, by name."""
    return {}


# What is kept leaves out the statement itself, which would keep itself alive by it.


def statements(stmt: Stmt) -> tuple[Stmt, ...]:
    """Return `stmt` and every statement in it, each before its parts, in program order."""
    return (stmt, *_below(stmt)) if isinstance(stmt, Loop | Seq) else (stmt,)


@kept("_inside")
def _below(stmt: Loop | Seq) -> tuple[Stmt, ...]:
    if isinstance(stmt, Loop):
        return statements(stmt.body)
    return tuple(chain.from_iterable(map(statements, stmt.body)))


def loops_of(stmt: Stmt) -> tuple[Loop, ...]:
    """Return the loops of `stmt` in program order."""
    if isinstance(stmt, Loop):
        return (stmt, *_loops_below(stmt))
    return _loops_below(stmt) if isinstance(stmt, Seq) else ()


@kept("_loops")
def _loops_below(stmt: Loop | Seq) -> tuple[Loop, ...]:
    if isinstance(stmt, Loop):
        return loops_of(stmt.body)
    return tuple(chain.from_iterable(map(loops_of, stmt.body)))


def blocks_of(stmt: Stmt) -> tuple[Block, ...]:
    """Return the blocks of `stmt` in program order."""
    if isinstance(stmt, Block):
        return (stmt,)
    return _blocks_below(stmt) if isinstance(stmt, Loop | Seq) else ()


@kept("_stores")
def _blocks_below(stmt: Loop | Seq) -> tuple[Block, ...]:
    if isinstance(stmt, Loop):
        return blocks_of(stmt.body)
    return tuple(chain.from_iterable(map(blocks_of, stmt.body)))


def walk_stmt(stmt: Stmt) -> Iterator[Stmt]:
    """Yield `stmt` and every statement in it, each before its parts, in program order."""
    return iter(statements(stmt))


def blocks(stmt: Stmt) -> Iterator[Block]:
    """Yield the blocks of `stmt` in program order."""
    return iter(blocks_of(stmt))


def find_loop(stmt: Stmt, var: str) -> Loop | None:
    """Return the first loop in `stmt` of that name."""
    for loop in loops_of(stmt):
        if loop.var == var:
            return loop
    return None


def rewrite_stmt(stmt: Stmt, rule: Callable[[Stmt], Stmt | None | tuple[()]]) -> Stmt | None:
    """Rebuild bottom-up; `rule` may replace a statement, keep it (None), or delete it (`()`).

    Loops and sequences that become empty vanish; what nothing changed in is the same object.
    """
    if isinstance(stmt, Loop):
        body = rewrite_stmt(stmt.body, rule)
        if body is None:
            return None
        if body is not stmt.body:
            stmt = stmt.around(body)
    elif isinstance(stmt, Seq):
        parts = [rewrite_stmt(part, rule) for part in stmt.body]
        kept = [part for part in parts if part is not None]
        if not kept:
            return None
        if len(kept) != len(stmt.body) or any(
            a is not b for a, b in zip(kept, stmt.body, strict=True)
        ):
            stmt = seq(*kept)
            if not isinstance(stmt, Seq):
                return stmt  # its rule has been applied
    replaced = rule(stmt)
    if replaced is None:
        return stmt
    return None if isinstance(replaced, tuple) else replaced


def nest_of(stmt: Stmt, block: str) -> tuple[list[Loop], Block]:
    """Return the loops around the block named `block`, outermost first, and the block."""
    for found in blocks_of(stmt):
        if found.name == block:
            return enclosing(stmt, found) or [], found
    raise KeyError(block)


def enclosing(stmt: Stmt, target: Loop | Block) -> list[Loop] | None:
    """Return the loops from the root down to `target`, told by identity; None if it is absent.

    A target that is a loop is the last of them.
    """
    below: Callable[[Any], tuple[Stmt, ...]] = loops_of if isinstance(target, Loop) else blocks_of
    path: list[Loop] = []
    while True:
        if isinstance(stmt, Loop):
            path.append(stmt)
            if stmt is target:
                return path
            stmt = stmt.body
        elif stmt is target:
            return path
        elif isinstance(stmt, Seq):
            for part in stmt.body:
                if any(s is target for s in below(part)):
                    stmt = part
                    break
            else:
                return None
        else:
            return None


def own_loops(loops: list[Loop]) -> list[Loop]:
    """Return those of the loops around a block that hold nothing else and are no recurrence."""
    start = len(loops)
    inside: Stmt | None = None
    while start and loops[start - 1].role != SCAN:
        body = loops[start - 1].body
        if isinstance(body, Seq) or (inside is not None and body is not inside):
            break
        start -= 1
        inside = loops[start]
    return loops[start:]


def wrap(loops: list[tuple[str, int, str]], body: Stmt) -> Stmt:
    """Put serial loops (var, extent, role), outermost first, around `body`."""
    for var, extent, role in reversed(loops):
        body = Loop(var, extent, role, SERIAL, body)
    return body


def map_block(block: Block, rule: Callable[[Expr], Expr | None]) -> Block | None:
    """Rewrite every expression of a block bottom-up by `rule`; None if nothing changed."""

    def fix(expr: Expr | None) -> Expr | None:
        return None if expr is None else rewrite(expr, rule)

    value, guard, init = fix(block.value), fix(block.guard), fix(block.init)
    indices = tuple(rewrite(i, rule) for i in block.indices)
    assert value is not None
    same = (
        value is block.value
        and guard is block.guard
        and init is block.init
        and all(a is b for a, b in zip(indices, block.indices, strict=True))
    )
    if same:
        return None
    return replace(block, value=value, guard=guard, init=init, indices=indices)


def map_loads(block: Block, buffer: str, rule: Callable[[Load], Expr]) -> Block | None:
    """Rewrite the loads of a buffer; None if there is none.  Other expressions are not walked."""

    def move(e: Expr) -> Expr | None:
        return rule(e) if isinstance(e, Load) and e.buffer == buffer else None

    def fix(expr: Expr) -> Expr:
        return rewrite(expr, move) if any(l.buffer == buffer for l in loads(expr)) else expr

    value = fix(block.value)
    guard = None if block.guard is None else fix(block.guard)
    init = None if block.init is None else fix(block.init)
    indices = tuple(fix(i) for i in block.indices)
    same = value is block.value and guard is block.guard and init is block.init
    if same and all(a is b for a, b in zip(indices, block.indices, strict=True)):
        return None
    return replace(block, value=value, guard=guard, init=init, indices=indices)


def replace_loop(stmt: Stmt, old: Loop, new: Stmt) -> Stmt:
    """Return `stmt` with the loop `old`, found by identity, replaced."""
    changed = exchange(stmt, old, new)
    assert changed is not None
    return changed


def exchange(stmt: Stmt, old: Stmt, new: Stmt | None) -> Stmt | None:
    """Return `stmt` with `old`, found by identity, replaced, or without it where `new` is None.

    Loops and sequences that become empty vanish; only what lies around `old` is made anew.
    """
    if stmt is old:
        return new
    if isinstance(stmt, Loop):
        body = exchange(stmt.body, old, new)
        if body is stmt.body:
            return stmt
        return None if body is None else stmt.around(body)
    if isinstance(stmt, Seq):
        for at, part in enumerate(stmt.body):
            if any(s is old for s in statements(part)):
                changed = exchange(part, old, new)
                if changed is None and len(stmt.body) == 1:
                    return None
                kept_part = () if changed is None else (changed,)
                return seq(*stmt.body[:at], *kept_part, *stmt.body[at + 1 :])
    return stmt


def fresh_name(wanted: str, taken: set[str]) -> str:
    """Return `wanted`, numbered if it is taken, and add it to `taken`."""
    name, n = wanted, 1
    while name in taken:
        n += 1
        name = f"{wanted}_{n}"
    taken.add(name)
    return name
