"""Random kernels cut into parts mean the same, without a race: each part's scratch is its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.meaning.batch import Batch
from tests.meaning.dags import random_case
from tests.meaning.test_random_kernels import check_same, laid_out, same_values
from toolkit.codegen import lower
from toolkit.ir.build import build
from toolkit.ir.interp import interpret
from toolkit.ir.loop import Loop, PARALLEL, PrimFunc, walk_stmt
from toolkit.ir.verify import verify_func
from toolkit.paths import RUNTIME_C
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.schedule.threads import parallel_steps, Team
from toolkit.targets.isas import ISAS

PORT = RUNTIME_C / "port" / "host" / "nst_threads.c"


def parallel_loops(func: PrimFunc) -> int:
    return sum(isinstance(s, Loop) and s.kind == PARALLEL for s in walk_stmt(func.body))


def test_random_kernels_in_parts_compute_what_the_interpreter_computes(
    rng: np.random.Generator,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lower, "register_limit", lambda isa: 8)  # else no buffer here is scratch
    batch, checks, cut, copies = Batch(), [], 0, 0
    for number in range(150):
        seed, threads = int(rng.integers(2**32)), 2 + number % 2
        case = random_case(np.random.default_rng(seed), stages=3 + seed % 4)
        func = build(case.outputs, case.inputs)
        want = interpret(func, case.arrays, exact=False)
        trace = default_trace(func, ISAS["scalar"])
        after = apply_trace(func, trace)
        steps = parallel_steps(after, ISAS["scalar"], Team(threads, 0, 0))
        after = apply_trace(after, steps)
        verify_func(after)
        arrays = laid_out(case.arrays, trace)
        exact = interpret(func, case.arrays)
        check_same(exact, interpret(after, arrays), f"{steps} of seed {seed}", func, after)
        if not same_values(want, exact):
            continue  # the default schedule may have reassociated
        cut += parallel_loops(after) > 0
        number = batch.add(after, [f"seed {seed}"], threads=threads)
        copies += any(b.copies > 1 for b in batch.kernels[number][0].scratch)
        checks.append((number, after, want, arrays))
    assert cut > 60
    assert copies > 3
    batch.build(tmp_path, need_tool("gcc"), ("-O1", "-DNST_PARALLEL=2", "-pthread", str(PORT)), ())
    found = batch.run_all([(number, arrays) for number, _, _, arrays in checks])
    for (number, after, want, _), got in zip(checks, found, strict=True):
        check_same(want, got, f"kernel k{number} in parts", after)
