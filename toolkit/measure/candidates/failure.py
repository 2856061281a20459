"""A failure kept: a C program of the kernel, its operands, and the command that shows it."""

from __future__ import annotations

import shlex

import numpy as np

from toolkit.codegen.model import printable
from toolkit.codegen.render import render
from toolkit.ir.types import DTYPES, is_float
from toolkit.measure.candidates.builder import Builder
from toolkit.measure.candidates.data import operand_value, TaskState
from toolkit.measure.candidates.source import Printed, source_text
from toolkit.space.task import Candidate


def keep_failure(builder: Builder, state: TaskState, candidate: Candidate, printed: Printed) -> str:
    """Keep a program that runs the kernel on the operands it failed on, and compares; return the
    shell command that builds it, with an address sanitizer, and runs it."""
    operands = []
    given: list[bytes] = []
    wanted: list[bytes] = []
    expected = {e.name: e for e in state.expected}
    for o in printed.operands:
        value = operand_value(candidate, o, state.data.check)
        if value is not None:
            given.append(value.tobytes())
        if o.role == "output":
            want = expected[o.name]
            tolerance = np.broadcast_to(want.tolerance, want.value.shape)
            wanted += [want.value.tobytes(), np.ascontiguousarray(tolerance).tobytes()]
        operands.append({
            "name": printable(o.name), "what": printable(f"{o.role} {o.name}: {o.type}"),
            "c_type": DTYPES[o.type.dtype].c_name, "nbytes": o.type.nbytes, "size": o.type.size,
            "is_output": o.role == "output", "is_given": value is not None,
            "is_float": is_float(o.type.dtype),
        })  # fmt: skip
    text = render(
        "c/candidates_failure.c.j2", source=source_text([printed]), entry=printed.entry,
        operands=operands,
    )  # fmt: skip
    folder = builder.keep(
        printed.entry, {"kernel.c": text.encode(), "operands.bin": b"".join([*given, *wanted])}
    )
    program = shlex.quote(str(folder / "kernel"))
    compiling = builder.command_for(folder / "kernel.c", f"-g -fsanitize=address -o {program} -lm")
    return f"{compiling} && {program} {shlex.quote(str(folder / 'operands.bin'))}"
