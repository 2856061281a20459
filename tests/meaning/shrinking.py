"""What a failing test of random traces says of them: the smallest that still fails."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.meaning.batch import Batch, laid_out
from toolkit.codegen.lower import lower_func
from toolkit.ir.arithmetic import MeaningError
from toolkit.ir.interp import interpret, same
from toolkit.ir.loop import PrimFunc
from toolkit.ir.verify import verify_func
from toolkit.schedule.default import apply_trace, Trace
from toolkit.schedule.shrink import shrink
from toolkit.schedule.steps.base import Step
from toolkit.schedule.trace import trace_to_python
from toolkit.targets.isa import Isa

Arrays = dict[str, np.ndarray]
Check = Callable[[PrimFunc, PrimFunc, Arrays, Arrays], bool]
"""Whether a scheduled function is as wrong as before; of its base function, itself, the inputs of
the one, and of the other, where constants have another layout."""


def smallest(
    func: PrimFunc,
    trace: Sequence[Step],
    inputs: Callable[[PrimFunc], Arrays],
    check: Check,
    *,
    tests: int = 300,
    smaller: Sequence[PrimFunc] = (),
) -> str:
    """Say which trace is the smallest for which `check` tells a fault; see `shrink`."""

    def bad(base: PrimFunc, steps: Trace) -> bool:
        arrays = inputs(base)
        return check(base, apply_trace(base, steps), arrays, laid_out(arrays, steps))

    if not bad(func, tuple(trace)):
        return "the trace as a whole shows no fault when it is run again"
    found = shrink(func, trace, bad, tests=tests, smaller=smaller)
    how = "the smallest trace" if found.complete else "a smaller trace"
    return (
        f"{how} that shows it: {trace_to_python(found.trace)}\n{found.func}\n"
        f"becomes\n{apply_trace(found.func, found.trace)}"
    )


def differs(base: PrimFunc, func: PrimFunc, arrays: Arrays, moved: Arrays) -> bool:
    """Tell whether a function, or what lowering makes of it, means something else than its base."""
    want = interpret(base, arrays)
    try:
        for one in (func, lower_func(func)):
            verify_func(one)
            got = interpret(one, moved)
            if not all(same(want[name], got[name]) for name in want):
                return True
    except (MeaningError, AssertionError):
        return True
    return False


def differs_in_c(isa: Isa, **how: Any) -> Check:
    """Return what tells whether C, built so, is something else than the typed interpreter."""

    def check(base: PrimFunc, func: PrimFunc, arrays: Arrays, moved: Arrays) -> bool:
        batch = Batch()
        batch.add(func, (), isa)
        want = interpret(func, moved, exact=False)
        with tempfile.TemporaryDirectory() as folder:
            try:
                batch.build(Path(folder), **how)
                got = batch.run(0, moved)
            except AssertionError:  # it does not compile, or crashes
                return True
        return not all(same(want[name], got[name]) for name in want)

    return check
