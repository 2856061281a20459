"""An input that an output may overwrite: the merged kernel means the same, interpreted and in C."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.meaning.batch import Batch
from tests.meaning.dags import random_case
from tests.meaning.test_random_kernels import check_same, laid_out
from tests.meaning.test_steps import random_trace
from toolkit.codegen.lower import lower_func
from toolkit.ir.build import build
from toolkit.ir.interp import interpret
from toolkit.ir.loop import PrimFunc
from toolkit.lowering.kernels import inplace_pairs, merge_inplace
from toolkit.schedule.default import apply_trace, default_trace, Trace
from toolkit.targets.isas import ISAS

Results = dict[str, np.ndarray]


def random_traces(func: PrimFunc, rng: np.random.Generator) -> Trace:
    """Return a default trace for some instruction set, or a random one."""
    if rng.random() < 0.6:
        return default_trace(func, list(ISAS.values())[int(rng.integers(len(ISAS)))])
    return tuple(step for step, _ in random_trace(func, rng, 25))


def moved(arrays: Results, pairs: dict[str, str]) -> Results:
    """Return the inputs, those of `pairs` under the name of the output they lie in."""
    return {pairs.get(name, name): array for name, array in arrays.items()}


def test_overwriting_an_input_keeps_the_meaning(rng: np.random.Generator) -> None:
    found = 0
    for _ in range(600):
        seed = int(rng.integers(2**32))
        own = np.random.default_rng(seed)
        case = random_case(own, stages=1 + seed % 3)
        func = build(case.outputs, case.inputs)
        want = interpret(func, case.arrays)
        trace = random_traces(func, own)
        after, arrays = apply_trace(func, trace), laid_out(case.arrays, trace)
        for name, target in inplace_pairs(after).items():
            merged = merge_inplace(after, {name: target})
            given = moved(arrays, {name: target})
            what = f"seed {seed}: {name} in {target}"
            check_same(want, interpret(merged, given), what, after, merged)
            lowered = lower_func(merged)
            check_same(want, interpret(lowered, given), f"{what}, lowered", merged, lowered)
            found += 1
    assert found > 30


def test_overwriting_an_input_computes_the_same_in_c(
    rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    need_tool("gcc")
    batch = Batch()
    checks: list[tuple[PrimFunc, Results, Results]] = []
    while len(checks) < 60:
        case = random_case(rng, stages=1 + int(rng.integers(3)), libm=False)
        func = build(case.outputs, case.inputs)
        trace = random_traces(func, rng)
        after, arrays = apply_trace(func, trace), laid_out(case.arrays, trace)
        pairs = inplace_pairs(after)
        if pairs:
            merged, given = merge_inplace(after, pairs), moved(arrays, pairs)
            checks.append((merged, interpret(merged, given, exact=False), given))
            batch.add(merged)
    batch.build(tmp_path, strict=())
    found = batch.run_all([(n, given) for n, (_, _, given) in enumerate(checks)])
    for number, ((merged, want, _), got) in enumerate(zip(checks, found, strict=True)):
        check_same(want, got, f"kernel k{number} in C", merged)
