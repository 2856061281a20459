"""Random kernels mean the same at every stage: expression, nest, each step, lowered nest, C."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.meaning.batch import Batch
from tests.meaning.dags import Case, dag_values, random_case
from toolkit.codegen.lower import lower_func
from toolkit.ir.arithmetic import Exact
from toolkit.ir.build import build
from toolkit.ir.interp import interpret, same
from toolkit.ir.loop import PrimFunc
from toolkit.ir.verify import verify_func
from toolkit.schedule.default import apply_trace, default_trace

Results = dict[str, np.ndarray]


def check_same(want: Results, got: Results, what: str, *funcs: PrimFunc) -> None:
    for name in want:
        if not same(want[name], got[name]):
            nests = "\n".join(map(str, funcs))
            raise AssertionError(
                f"{what}: {name} differs\nwant {want[name].tolist()}\n"
                f"got  {got[name].tolist()}\n{nests}"
            )


def expected(case: Case, func: PrimFunc) -> Results:
    """Return the meaning of the compute expression, as `interpret` would."""
    result = {}
    values = dag_values(case.outputs, case.arrays, Exact())
    for buffer, elements in zip(func.outputs, values, strict=True):
        array = np.empty(buffer.shape, dtype=object)
        for index, value in elements.items():
            array[index] = value
        result[buffer.name] = array
    return result


def check_stages(case: Case) -> PrimFunc:
    """Check every stage of a case exactly; return the scheduled function."""
    func = build(case.outputs, case.inputs)
    verify_func(func)
    want = expected(case, func)
    check_same(want, interpret(func, case.arrays), "build", func)
    for step in default_trace(func):
        after = step.apply(func)
        verify_func(after)
        check_same(want, interpret(after, case.arrays), str(step), func, after)
        func = after
    lowered = lower_func(func)
    verify_func(lowered)
    check_same(want, interpret(lowered, case.arrays), "lower", func, lowered)
    return func


@pytest.mark.parametrize("part", range(4))
def test_every_stage_of_a_random_kernel_means_its_compute_expression(
    part: int, rng: np.random.Generator
) -> None:
    for _ in range(100):
        seed = int(rng.integers(2**32))
        case = random_case(np.random.default_rng(seed), stages=3 + seed % 4)
        try:
            check_stages(case)
        except Exception as error:
            error.add_note(f"random_case(np.random.default_rng({seed}), stages={3 + seed % 4})")
            raise


def run_in_c(
    cases: list[Case], scheduled: Callable[[PrimFunc], PrimFunc], folder: Path, **how: object
) -> None:
    """Compare printed C with the typed interpreter, bit for bit."""
    batch = Batch()
    funcs = []
    for case in cases:
        func = build(case.outputs, case.inputs)
        funcs.append(func)
        batch.add(scheduled(func), [" ".join(case.made)])
    batch.build(folder, **how)  # type: ignore[arg-type]
    for number, (case, func) in enumerate(zip(cases, funcs, strict=True)):
        want = interpret(func, case.arrays, exact=False)
        got = batch.run(number, case.arrays)
        check_same(want, got, f"kernel k{number} in C", func, batch.kernels[number][1])


def default(func: PrimFunc) -> PrimFunc:
    return apply_trace(func, default_trace(func))


@pytest.mark.parametrize(
    ("compiler", "flags"), [("gcc", ("-O2",)), ("clang", ("-O1", "-fsanitize=undefined",
    "-fno-sanitize-recover=all", "-fsanitize-trap=all"))]
)  # fmt: skip
def test_printed_kernels_compute_what_the_typed_interpreter_computes(
    compiler: str,
    flags: tuple[str, ...],
    rng: np.random.Generator,
    tmp_path: Path,
    need_tool: Callable[[str], str],
) -> None:
    need_tool(compiler)
    cases = [random_case(rng, stages=2 + n % 5, libm=False) for n in range(150)]
    run_in_c(cases, default, tmp_path, compiler=compiler, flags=flags)


def test_unscheduled_kernels_print_too(rng: np.random.Generator, tmp_path: Path) -> None:
    cases = [random_case(rng, stages=2 + n % 5, libm=False) for n in range(60)]
    run_in_c(cases, lambda func: func, tmp_path)
