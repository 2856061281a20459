"""Random kernels mean the same at every stage: expression, nest, each step, lowered nest, C."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.meaning.batch import Batch, laid_out
from tests.meaning.dags import Case, dag_values, random_case
from tests.meaning.machines import MACHINES
from tests.meaning.shrinking import differs_in_c, smallest
from toolkit.codegen.lower import lower_func
from toolkit.ir import compute as T
from toolkit.ir.arithmetic import Exact
from toolkit.ir.build import build
from toolkit.ir.expr import all_of, Expr, maximum, select
from toolkit.ir.interp import interpret, same
from toolkit.ir.loop import PrimFunc
from toolkit.ir.verify import verify_func
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS
from toolkit.toolchain.compiler import STRICT_FLAGS

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


def check_stages(case: Case, isa: Isa) -> None:
    """Check every stage of a case exactly."""
    func = build(case.outputs, case.inputs)
    verify_func(func)
    want = expected(case, func)
    check_same(want, interpret(func, case.arrays), "build", func)
    arrays = dict(case.arrays)
    for step in default_trace(func, isa):
        after = step.apply(func)
        verify_func(after)
        arrays = laid_out(arrays, (step,))
        check_same(want, interpret(after, arrays), str(step), func, after)
        func = after
    lowered = lower_func(func)
    verify_func(lowered)
    check_same(want, interpret(lowered, arrays), "lower", func, lowered)


@pytest.mark.parametrize("isa", ISAS)
def test_every_stage_of_a_random_kernel_means_its_compute_expression(
    isa: str, rng: np.random.Generator
) -> None:
    for _ in range(80):
        seed = int(rng.integers(2**32))
        case = random_case(np.random.default_rng(seed), stages=3 + seed % 4)
        try:
            check_stages(case, ISAS[isa])
        except Exception as error:
            error.add_note(f"random_case(np.random.default_rng({seed}), stages={3 + seed % 4})")
            raise


def run_in_c(
    cases: list[Case],
    isa: Isa,
    folder: Path,
    *,
    scheduled: bool = True,
    program: bool = False,
    **how: object,
) -> None:
    """Compare printed C with the typed interpreter, bit for bit."""
    batch = Batch()
    checks = []
    for case in cases:
        func = build(case.outputs, case.inputs)
        want = interpret(func, case.arrays, exact=False)
        # Vector code may fuse and reassociate: take what needs no rounding.
        if isa.vectors and not same_values(want, interpret(func, case.arrays)):
            continue
        trace = default_trace(func, isa) if scheduled else ()
        after = apply_trace(func, trace)
        checks.append((func, trace, after, want, case.arrays))
        batch.add(after, [" ".join(case.made)], isa)
    assert len(checks) > len(cases) // 2
    calls = [(n, laid_out(arrays, trace)) for n, (_, trace, _, _, arrays) in enumerate(checks)]
    if program:
        found = batch.run_program(calls, folder, **how)  # type: ignore[arg-type]
    else:
        batch.build(folder, **how)  # type: ignore[arg-type]
        found = batch.run_all(calls)
    for number, ((func, trace, after, want, arrays), got) in enumerate(
        zip(checks, found, strict=True)
    ):
        try:
            check_same(want, got, f"kernel k{number} in C", func, after)
        except AssertionError as error:
            if not program:
                check = differs_in_c(isa, **how)  # type: ignore[arg-type]
                error.add_note(smallest(func, trace, lambda _, a=arrays: a, check, tests=40))
            raise


def same_values(a: Results, b: Results) -> bool:
    return all(same(a[name], b[name]) for name in a)


GCC = {"compiler": "gcc", "flags": ("-O2",)}
CLANG = {
    "compiler": "clang",
    "flags": ("-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-fsanitize-trap=all"),
}


@pytest.mark.parametrize(
    ("isa", "cpu", "flags", "how"),
    [
        ("scalar", None, (), GCC),
        ("scalar", None, (), CLANG),
        ("avx2", "AVX2", ("-mavx2", "-mfma"), GCC),
        ("avx512", "AVX-512", ("-march=x86-64-v4",), CLANG),
    ],
    ids=["scalar-gcc", "scalar-clang", "avx2-gcc", "avx512-clang"],
)
def test_printed_kernels_compute_what_the_typed_interpreter_computes(
    isa: str,
    cpu: str | None,
    flags: tuple[str, ...],
    how: dict[str, Any],
    rng: np.random.Generator,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:
    need_tool(how["compiler"])
    if cpu is not None:
        need_cpu(cpu)
    cases = [random_case(rng, stages=2 + n % 5, libm=False) for n in range(150)]
    # gcc -O2 warns of array bounds at masked loads of no lane.
    strict = STRICT_FLAGS
    flags = (*how["flags"], *flags)
    run_in_c(cases, ISAS[isa], tmp_path, compiler=how["compiler"], flags=flags, strict=strict)


def test_printed_kernels_compute_the_same_on_aarch64(
    rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    compiler = [need_tool("aarch64-linux-gnu-gcc"), "-O1", "-static"]
    cases = [random_case(rng, stages=2 + n % 5, libm=False) for n in range(100)]
    cases += [window(rng) for _ in range(40)]
    run_in_c(
        cases, ISAS["neon"], tmp_path, program=True, compiler=compiler,
        runner=[need_tool("qemu-aarch64")],
    )  # fmt: skip


def test_printed_kernels_compute_the_same_on_cortex_m55(
    rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    machine = MACHINES["helium"]
    compiler = [need_tool(machine.compiler[0]), *machine.compiler[1:], "-O1"]
    cases = [random_case(rng, stages=2 + n % 5, libm=False) for n in range(60)]
    cases += [window(rng) for _ in range(20)]
    run_in_c(
        cases, ISAS["helium"], tmp_path, program=True, compiler=compiler,
        runner=[need_tool(machine.runner[0]), *machine.runner[1:]],
    )  # fmt: skip


def test_unscheduled_kernels_print_too(rng: np.random.Generator, tmp_path: Path) -> None:
    cases = [random_case(rng, stages=2 + n % 5, libm=False) for n in range(60)]
    run_in_c(cases, ISAS["scalar"], tmp_path, scheduled=False)


def window(rng: np.random.Generator) -> Case:
    """A window over a wide row, whose terms are not zero where the row ends."""
    n, width = int(rng.integers(15, 70)), int(rng.integers(2, 5))
    stride, pad = int(rng.integers(1, 3)), int(rng.integers(0, 3))
    low = int(rng.integers(0, pad + 1)) if rng.random() < 0.5 else 0
    op, shift = ["sum", "max", "min", "prod"][int(rng.integers(4))], float(rng.integers(0, 2))
    x = T.placeholder((3, n), "float32", "x")
    k = T.reduce_axis(width, "k")
    out = (n + low + pad - width) // stride + 1

    def body(i: Expr, j: Expr) -> T.Reduce:
        at = j * stride + k - low
        reduce = {"sum": T.sum, "max": T.max, "min": T.min, "prod": T.prod}[op]
        return reduce(x[i, at] + shift, k, where=all_of(*([at >= 0] if low else []), at < n))

    t = T.compute((3, out), body, "t")
    y = T.compute((3, out), lambda i, j: maximum(t[i, j], -1.0), "y")
    array = (rng.integers(-9, 2, size=(3, n)) / 4).astype(np.float32)
    return Case([y], [x], {"x": array}, [op])


@pytest.mark.parametrize(
    ("isa", "cpu", "flag"),
    [("avx2", "AVX2", "-march=x86-64-v3"), ("avx512", "AVX-512", "-march=x86-64-v4")],
)
def test_lanes_beyond_the_end_of_a_row_stay_out_of_windows(
    isa: str, cpu: str, flag: str, rng: np.random.Generator, tmp_path: Path,
    need_tool: Callable[[str], str], need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    """Found by test_maxpool_2d_same_upper: lanes that a guard skips took part as zeros."""
    need_tool("gcc")
    need_cpu(cpu)
    cases = [window(rng) for _ in range(60)]
    run_in_c(cases, ISAS[isa], tmp_path, flags=("-O1", flag), strict=())


def test_a_read_or_write_beyond_an_operand_is_seen(
    tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    need_tool("gcc")
    x = T.placeholder((5,), "float32", "x")
    batch = Batch()
    batch.add(build([T.compute((5,), lambda i: x[i + 1], "y")], [x]))
    batch.add(build([T.compute((5,), lambda i: x[i - 1], "y")], [x]))
    write = T.assemble((5,), [((6,), lambda i: ([i], x[i % 5]))], name="y")
    batch.add(build([write], [x]))
    batch.build(tmp_path)
    arrays = {"x": np.ones(5, np.float32)}
    for number in (0, 2):
        with pytest.raises(AssertionError, match=rf"kernel k{number}: it crashed \(-11\)"):
            batch.run(number, arrays)
    assert batch.run(1, arrays)["y"][1] == 1


def test_a_load_that_a_condition_forbids_is_not_shared(
    tmp_path: Path, need_tool: Callable[[str], str], need_cpu: Callable[[str], None]
) -> None:
    """Found by random kernels: a vector load moved in front of the condition that guards it."""
    need_cpu("AVX2")
    x = T.placeholder((64, 16), "float32", "x")
    k = T.reduce_axis(16, "k")

    def padded(i: Expr, j: Expr) -> Expr:
        return select(all_of(i >= 1, i < 65), x[i - 1, j], 0.0)  # type: ignore[arg-type]

    y = T.compute((66,), lambda i: T.max(padded(i, k) * padded(i, k), k), "y")
    func = build([y], [x])
    batch = Batch()
    batch.add(apply_trace(func, default_trace(func, ISAS["avx2"])), (), ISAS["avx2"])
    batch.build(tmp_path, need_tool("gcc"), ("-O1", "-march=x86-64-v3"))
    array = np.arange(1024, dtype=np.float32).reshape(64, 16)
    wanted = np.pad((array * array).max(axis=1), 1)
    assert np.array_equal(batch.run(0, {"x": array})["y"], wanted)
