"""Candidates as C: each kernel `static`, behind a function that takes an array of operands.

Both are named after a digest of the kernel's own text, so that equal code has one name wherever it
stands, and a cache can find it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from toolkit.codegen.kernel import print_kernel
from toolkit.codegen.render import render
from toolkit.errors import NestlingError
from toolkit.ir.loop import Block, Loop, PrimFunc, UNROLL, VECTORIZE
from toolkit.ir.types import TensorType
from toolkit.lowering.kernels import packing
from toolkit.schedule.default import Trace
from toolkit.search.result import Status
from toolkit.space.task import Candidate
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS

HEADER = "candidates.h"
COPIES_LIMIT = 2048
"""Statements that unrolling may print: more is no kernel that anybody would ship."""

_NAME = "nst_candidate"

Alter = Callable[[Candidate, str], str]
"""A change to a candidate's text, by which tests inject faults."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A pointer a kernel takes.  `role`: 'output', 'input', 'const' or 'scratch'; `layout`: the
    steps that pack a constant."""

    name: str
    role: str
    type: TensorType
    layout: str = ""


@dataclass(frozen=True, slots=True)
class Printed:
    """A kernel as C text.  `entry`: the function that calls it, `void (void *const *operands)`."""

    entry: str
    text: str
    operands: tuple[Operand, ...]

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch the kernel takes."""
        return sum(o.type.nbytes for o in self.operands if o.role == "scratch")


def copies(func: PrimFunc) -> int:
    """Count the statements that a scheduled function prints as, with all that is unrolled."""

    def count(stmt: object) -> int:
        match stmt:
            case Loop(kind=kind, extent=extent, body=body):
                times = extent if kind == UNROLL else max(extent // 16, 1)
                return count(body) * (times if kind in (UNROLL, VECTORIZE) else 1)
            case Block():
                return 1
        return sum(count(part) for part in getattr(stmt, "body", ())) or 1

    return count(func.body)


def print_trial(
    func: PrimFunc,
    trace: Trace = (),
    isa: Isa = ISAS["scalar"],
    alter: Callable[[str], str] | None = None,
) -> Printed:
    """Print a scheduled function; `trace` says how its constants are packed."""
    kernel = print_kernel(func, _NAME, (), isa)
    arguments = tuple(
        f"({'const ' if p.const else ''}{p.c_type} *)p[{i}]" for i, p in enumerate(kernel.params)
    )
    text = render("c/candidates_kernel.c.j2", kernel=kernel, entry=f"{_NAME}_entry", args=arguments)
    if alter is not None:
        text = alter(text)
    name = "nst_c" + hashlib.sha256(text.encode()).hexdigest()[:20]
    operands = (
        *(Operand(b.name, "output", b.type) for b in func.outputs),
        *(_input(b.name, b.scope, b.type, trace) for b in func.inputs),
        *(Operand(b.name, "scratch", b.type) for b in kernel.scratch),
    )
    return Printed(f"{name}_entry", text.replace(_NAME, name), operands)


class Unfit(Exception):
    """A candidate that is not worth compiling."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def print_candidate(candidate: Candidate, isa: Isa, alter: Alter | None = None) -> Printed:
    """Print a candidate; raise `Unfit` where it is too big, or cannot be printed."""
    count = copies(candidate.func)
    if count > COPIES_LIMIT:
        detail = f"unrolls to {count} statements, more than {COPIES_LIMIT}"
        raise Unfit(Status.TOO_BIG, detail)
    change = None if alter is None else partial(alter, candidate)
    try:
        printed = print_trial(candidate.func, candidate.trace, isa, change)
    except NestlingError as error:
        raise Unfit(Status.ILLEGAL, error.what) from None
    limit = candidate.task.scratch_limit_bytes
    if limit is not None and printed.scratch_bytes > limit:
        detail = f"takes {printed.scratch_bytes} bytes of scratch, more than {limit}"
        raise Unfit(Status.TOO_BIG, detail)
    return printed


def _input(name: str, scope: str, kind: TensorType, trace: Trace) -> Operand:
    if scope != "const":
        return Operand(name, "input", kind)
    return Operand(name, "const", kind, "; ".join(map(str, packing(trace, name))))


def header_text() -> str:
    """Return the header that every file of kernels includes first."""
    return render("c/candidates.h.j2")


def source_text(kernels: Sequence[Printed], header: str = HEADER) -> str:
    """Return a C file of kernels, equal ones once."""
    texts = dict.fromkeys(k.text for k in kernels)
    return render("c/candidates.c.j2", header=header, kernels=list(texts))
