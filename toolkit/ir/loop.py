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
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Loop:
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
class Seq:
    """Statements one after another."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Block:
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
class OpaqueCall:
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
class PrimFunc:
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


def walk_stmt(stmt: Stmt) -> Iterator[Stmt]:
    """Yield `stmt` and every statement in it, each before its parts, in program order."""
    stack = [stmt]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Loop):
            stack.append(node.body)
        elif isinstance(node, Seq):
            stack.extend(reversed(node.body))


def blocks(stmt: Stmt) -> Iterator[Block]:
    """Yield the blocks of `stmt` in program order."""
    return (s for s in walk_stmt(stmt) if isinstance(s, Block))


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
    path = _path_to(stmt, lambda s: isinstance(s, Block) and s.name == block)
    if path is None:
        raise KeyError(block)
    found = path[-1]
    assert isinstance(found, Block)
    return [s for s in path if isinstance(s, Loop)], found


def _path_to(stmt: Stmt, wanted: Callable[[Stmt], bool]) -> list[Stmt] | None:
    """Return the statements from the root down to the first that is wanted, both included."""
    if wanted(stmt):
        return [stmt]
    if isinstance(stmt, Loop):
        below = _path_to(stmt.body, wanted)
        return None if below is None else [stmt, *below]
    if isinstance(stmt, Seq):
        for part in stmt.body:
            below = _path_to(part, wanted)
            if below is not None:
                return [stmt, *below]
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


def enclosing(stmt: Stmt, target: Loop) -> list[Loop] | None:
    """Return the loops from the root down to `target`, it included; None if it is absent."""
    path = _path_to(stmt, lambda s: s is target)
    return None if path is None else [s for s in path if isinstance(s, Loop)]


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
    if stmt is old:
        return new
    if isinstance(stmt, Loop):
        body = replace_loop(stmt.body, old, new)
        return stmt if body is stmt.body else stmt.around(body)
    for at, part in enumerate(stmt.body if isinstance(stmt, Seq) else ()):
        changed = replace_loop(part, old, new)
        if changed is not part:
            assert isinstance(stmt, Seq)
            return seq(*stmt.body[:at], changed, *stmt.body[at + 1 :])
    return stmt


def fresh_name(wanted: str, taken: set[str]) -> str:
    """Return `wanted`, numbered if it is taken, and add it to `taken`."""
    name, n = wanted, 1
    while name in taken:
        n += 1
        name = f"{wanted}_{n}"
    taken.add(name)
    return name
