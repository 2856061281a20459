"""What can be said against a candidate before it is compiled."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.codegen.lower import lower_func
from toolkit.ir.expr import variables
from toolkit.ir.loop import (
    answers,
    Block,
    blocks,
    CONST,
    Loop,
    nest_of,
    PrimFunc,
    SCRATCH,
    Seq,
    Stmt,
    UNROLL,
    VECTORIZE,
)
from toolkit.ir.regions import bound_expr
from toolkit.space.task import Candidate
from toolkit.targets.isa import Isa

STATEMENT_BYTES = 8
"""Machine code of a statement, at least: a multiply-add of vectors or floats with its operand."""

SPILLS = 1.25
"""Accumulators a core with so many times fewer registers may be given: some are spilt cheaply."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a candidate may take; None for no limit.

    `statements`: copies that unrolling prints, which cost compile time.  `scratch_bytes`: of RAM
    beside the operands; `ram_bytes`: with them; `flash_bytes`: code and constants, by an estimate
    from below.
    """

    statements: int = 2048
    scratch_bytes: int | None = None
    ram_bytes: int | None = None
    flash_bytes: int | None = None


def validate(candidate: Candidate, limits: Limits = Limits()) -> str | None:
    """Return why a candidate is hopeless, or None: extents, registers, scratch, flash.

    Cheap questions come first; buffers are placed, as for printing, only where they might not fit.
    """
    task = candidate.task
    asked = "validate", task.target.name, limits, task.scratch_limit_bytes
    known = answers(candidate.func)
    if asked not in known:
        known[asked] = _verdict(candidate, limits)
    verdict: str | None = known[asked]
    return verdict


def _verdict(candidate: Candidate, limits: Limits) -> str | None:
    func, isa = candidate.func, candidate.task.target.isa
    printed = count_statements(func.body, isa)
    if printed > limits.statements:
        return f"it prints {printed} statements, over {limits.statements}"
    for block in blocks(func.body):
        held = _accumulators(func, block, isa)
        if held > SPILLS * isa.registers:
            return f"block {block.name!r} holds {held} accumulators, of {isa.registers} registers"
    if limits.flash_bytes is not None:
        constants = sum(b.type.nbytes for b in func.inputs if b.scope == CONST)
        flash = constants + printed * STATEMENT_BYTES
        if flash > limits.flash_bytes:
            return f"it takes {flash} bytes of flash or more, over {limits.flash_bytes}"
    return _scratch(candidate, limits)


def _scratch(candidate: Candidate, limits: Limits) -> str | None:
    func = candidate.func
    operands = sum(b.type.nbytes for b in (*func.inputs, *func.outputs) if b.scope != CONST)
    given = (limits.scratch_bytes, candidate.task.scratch_limit_bytes)
    allowed = min((n for n in given if n is not None), default=None)
    if limits.ram_bytes is not None:
        rest = limits.ram_bytes - operands
        allowed = rest if allowed is None else min(allowed, rest)
    if allowed is None or sum(b.type.nbytes for b in func.locals) <= allowed:
        return None
    lowered = lower_func(func, isa=candidate.task.target.isa)
    scratch = sum(b.storage.nbytes for b in lowered.locals if b.scope == SCRATCH)
    return f"it takes {scratch} bytes of scratch, over {allowed}" if scratch > allowed else None


def count_statements(stmt: Stmt, isa: Isa) -> int:
    """Count the statements that a nest prints as, with all that is unrolled or vectorised."""
    match stmt:
        case Loop():
            inside = count_statements(stmt.body, isa)
            if stmt.kind == UNROLL:
                return inside * stmt.extent
            return inside * (_vectors(stmt, isa) if stmt.kind == VECTORIZE else 1)
        case Seq():
            return sum(count_statements(part, isa) for part in stmt.body)
    return 1


def _vectors(loop: Loop, isa: Isa) -> int:
    return -(-loop.extent // isa.lanes("float32"))


def _accumulators(func: PrimFunc, block: Block, isa: Isa) -> int:
    """Count the elements, or vectors of them, to which the copies in its innermost loop add."""
    if block.reduce is None:
        return 0
    stored = {name for i in block.indices for name in variables(bound_expr(block, i))}
    count = 1
    for loop in reversed(nest_of(func.body, block.name)[0]):
        if loop.kind not in (UNROLL, VECTORIZE) and loop.extent > 1:
            break
        if loop.var in stored:
            count *= _vectors(loop, isa) if loop.kind == VECTORIZE else loop.extent
    return count
