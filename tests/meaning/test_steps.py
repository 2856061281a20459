"""Schedule steps keep the meaning: each example, and random traces on random kernels."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.meaning.batch import Batch
from tests.meaning.dags import random_case
from tests.meaning.shrinking import differs, differs_in_c, smallest
from tests.meaning.test_random_kernels import check_same, laid_out, Results, same_values
from toolkit.codegen.lower import lower_func
from toolkit.errors import ScheduleError
from toolkit.ir.build import build
from toolkit.ir.interp import interpret
from toolkit.ir.loop import blocks, CONST, Loop, nest_of, PARAM, PrimFunc, walk_stmt
from toolkit.ir.regions import reads
from toolkit.ir.types import is_float
from toolkit.ir.verify import verify_func
from toolkit.schedule.steps import STEPS
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_read import CacheRead
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.inline import Inline
from toolkit.schedule.steps.pad_read import PadRead
from toolkit.schedule.steps.reverse_compute_at import ReverseComputeAt
from toolkit.schedule.steps.roll_storage import RollStorage
from toolkit.schedule.steps.unfold import Unfold
from toolkit.schedule.steps.widen_read import WidenRead
from toolkit.targets.isas import ISAS, TENSOR_INTRINSICS


def random_inputs(func: PrimFunc, rng: np.random.Generator) -> Results:
    """Return small exact values for every input."""
    result = {}
    for buffer in func.inputs:
        values = rng.integers(-16, 17, size=buffer.shape)
        scale = 8 if is_float(buffer.dtype) else 1
        result[buffer.name] = (values / scale).astype(buffer.dtype)
    return result


def as_fractions(array: np.ndarray) -> np.ndarray:
    """Return the values of floats exactly: what a step makes of a constant is not rounded then."""
    if not is_float(str(array.dtype)):
        return array
    exact = np.empty(array.size, dtype=object)
    exact[:] = [Fraction(float(v)) for v in array.reshape(-1)]
    return exact.reshape(array.shape)


@pytest.mark.parametrize("name", STEPS)
def test_the_example_of_a_step_keeps_its_meaning(name: str, rng: np.random.Generator) -> None:
    func, step = STEPS[name].example()
    assert type(step) is STEPS[name]
    after = step.apply(func)
    assert after != func, "the example changes nothing"
    verify_func(after)
    arrays = {n: as_fractions(a) for n, a in random_inputs(func, rng).items()}
    want = interpret(func, arrays)
    moved = laid_out(arrays, (step,))
    check_same(want, interpret(after, moved), str(step), func, after)
    check_same(want, interpret(lower_func(after), moved), f"lower after {step}", after)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_shows_its_before_and_after(name: str) -> None:
    doc = STEPS[name].__doc__ or ""
    assert "Before::" in doc
    assert "After" in doc


# ---------------------------------------------------------------------------------- random traces


def loop_names(func: PrimFunc) -> list[str]:
    return [s.var for s in walk_stmt(func.body) if isinstance(s, Loop)]


def _pick(items: Sequence[Any], rng: np.random.Generator) -> Any:
    return items[int(rng.integers(len(items)))] if items else ""


def _some_loops(func: PrimFunc, rng: np.random.Generator) -> tuple[str, ...]:
    """Return two or three neighbouring loops in random order."""
    names = loop_names(func)
    start = int(rng.integers(max(len(names) - 1, 1)))
    found = names[start : start + int(rng.integers(2, 4))]
    return tuple(found[i] for i in rng.permutation(len(found)))


Domain = Callable[[PrimFunc, np.random.Generator], Any]

DOMAINS: dict[str, Domain] = {
    "loop": lambda func, rng: _pick(loop_names(func), rng),
    "outer": lambda func, rng: _pick(loop_names(func), rng),
    "inner": lambda func, rng: _pick(loop_names(func), rng),
    "loops": _some_loops,
    "block": lambda func, rng: _pick([b.name for b in blocks(func.body)], rng),
    "operand": lambda func, rng: _pick(
        [b.name for b in func.inputs if b.scope == CONST or rng.random() < 0.5]
        + [b.name for b in func.locals if rng.random() < 0.3],
        rng,
    ),
    "buffer": lambda func, rng: _pick(
        [b.name for b in (*func.locals, *func.inputs) if b.scope != PARAM], rng
    ),
    "order": lambda func, rng: tuple(int(d) for d in rng.permutation(int(rng.integers(2, 4)))),
    "factors": lambda func, rng: tuple(int(f) for f in rng.integers(1, 5, int(rng.integers(1, 3)))),
    "at": lambda func, rng: tuple(sorted(int(b) for b in rng.integers(1, 8, rng.integers(1, 3)))),
    "key": lambda func, rng: _pick(["comment", "remark"], rng),
    "value": lambda func, rng: _pick(["y", "several words", "*/", "a\nb"], rng),
    "tail": lambda func, rng: _pick(["perfect", "shift", "guard"], rng),
    "dim": lambda func, rng: int(rng.integers(0, 3)),
    "multiple": lambda func, rng: int(rng.integers(1, 9)),
    "phases": lambda func, rng: tuple(int(s) for s in rng.integers(1, 3, int(rng.integers(0, 4)))),
    "multiples": lambda func, rng: tuple(
        int(m) for m in rng.integers(1, 4, int(rng.integers(0, 4)))
    ),
    "factor": lambda func, rng: int(rng.integers(1, 5)),
    "kernel": lambda func, rng: tuple(int(d) for d in rng.permutation(4)[:2]),
    "m": lambda func, rng: int(rng.choice([2, 4])),
    "dtype": lambda func, rng: _pick(["int16", "int32", "uint16", "int64"], rng),
    "distance": lambda func, rng: int(rng.integers(1, 4)),
    "rows": lambda func, rng: int(rng.integers(0, 5)),
    "weight": lambda func, rng: _pick([b.name for b in func.inputs], rng),
    "bias": lambda func, rng: _pick([b.name for b in func.inputs], rng),
    "multiplier": lambda func, rng: _pick(["", *(b.name for b in func.inputs)], rng),
    "zero": lambda func, rng: int(rng.integers(-128, 128)),
    "intrinsic": lambda func, rng: _pick(list(TENSOR_INTRINSICS), rng),
}
"""Random values of the fields of steps, legal or not."""


RARELY_LEGAL = [
    "MergeDims", "ComputeAt", "ReverseComputeAt", "ReverseInline", "RFactor", "Fuse", "PadRead",
    "RollStorage", "Unfold", "SplitChoice",
]  # fmt: skip


def random_step(func: PrimFunc, rng: np.random.Generator) -> Step:
    """Return a random step; most are illegal."""
    kind = STEPS[_pick([*STEPS, *RARELY_LEGAL * 2], rng)]
    values = {f.name: DOMAINS[f.name](func, rng) for f in dataclasses.fields(kind)}
    own = {"block", "loop"} <= set(values) and kind not in (ComputeAt, ReverseComputeAt)
    if own and rng.random() < 0.5:  # one of the loops around the block
        values["loop"] = _pick([l.var for l in nest_of(func.body, values["block"])[0]], rng)
    if kind in (CacheRead, PadRead, Unfold, WidenRead):
        values["operand"] = _pick(sorted(reads(nest_of(func.body, values["block"])[1])), rng)
    if kind is PadRead and rng.random() < 0.7:  # most kernels are of floats
        values["dtype"] = ""
    if kind is RollStorage and func.locals:  # a loop around a block that reads the buffer
        values["buffer"] = _pick([b.name for b in func.locals], rng)
        around = [
            nest_of(func.body, b.name)[0] for b in blocks(func.body) if values["buffer"] in reads(b)
        ]
        values["loop"] = _pick([l.var for loops in around for l in loops], rng)
    return kind(**values)


def random_trace(
    func: PrimFunc, rng: np.random.Generator, tries: int
) -> list[tuple[Step, PrimFunc]]:
    """Return the steps out of `tries` random ones that were legal, each with its result."""
    trace: list[tuple[Step, PrimFunc]] = []
    for _ in range(tries):
        if not loop_names(func):
            break
        step = random_step(func, rng)
        try:
            func = step.apply(func)
        except ScheduleError:
            continue
        trace.append((step, func))
    return trace


def test_every_field_of_a_step_has_random_values() -> None:
    for kind in STEPS.values():
        for field in dataclasses.fields(kind):
            assert field.name in DOMAINS, f"{kind.__name__}.{field.name}: add it to DOMAINS"


@pytest.mark.parametrize("part", range(4))
def test_random_traces_keep_the_meaning(part: int, rng: np.random.Generator) -> None:
    taken: Counter[str] = Counter()
    for _ in range(60):
        seed = int(rng.integers(2**32))
        own = np.random.default_rng(seed)
        case = random_case(own, stages=1 + seed % 4)
        func = build(case.outputs, case.inputs)
        want = interpret(func, case.arrays)
        arrays, before = case.arrays, func
        trace = random_trace(func, own, 70)
        try:
            for step, after in trace:
                verify_func(after)
                arrays = laid_out(arrays, (step,))
                check_same(want, interpret(after, arrays), str(step), before, after)
                before = after
            lowered = lower_func(before)
            verify_func(lowered)
            check_same(want, interpret(lowered, arrays), "lower", before, lowered)
        except Exception as error:
            steps = "\n  ".join(str(step) for step, _ in trace)
            error.add_note(f"seed {seed}, trace:\n  {steps}\n{func}")
            taken_steps = [step for step, _ in trace]
            error.add_note(smallest(func, taken_steps, lambda _, a=case.arrays: a, differs))
            raise
        taken.update(type(step).__name__ for step, _ in trace)
    print("steps taken:", dict(taken))
    rare = {name for name in STEPS if taken[name] == 0}
    rare -= {"PadConstant", "ShiftOperand", "Tensorize", "WidenRead", "Winograd", "Im2col"}
    rare -= {"FoldZeroPoint", "MergeReduction"}
    assert not rare, f"never legal: {rare}"


@pytest.mark.parametrize(
    ("isa", "cpu", "flags"),
    [("scalar", None, ()), ("avx2", "AVX2", ("-mavx2", "-mfma"))],
    ids=["scalar", "avx2"],
)
def test_random_traces_compute_the_same_in_c(
    isa: str,
    cpu: str | None,
    flags: tuple[str, ...],
    rng: np.random.Generator,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:
    need_tool("gcc")
    if cpu is not None:
        need_cpu(cpu)
    batch = Batch()
    checks = []
    while len(checks) < 80:
        case = random_case(rng, stages=1 + int(rng.integers(4)), libm=False)
        func = build(case.outputs, case.inputs)
        trace = random_trace(func, rng, 40)
        after = trace[-1][1] if trace else func
        steps = tuple(step for step, _ in trace)
        # Steps may reassociate sums: compare with the typed meaning of the scheduled function.
        arrays = laid_out(case.arrays, steps)
        want = interpret(after, arrays, exact=False)
        # Vector code fuses multiply and add: take what needs no rounding.
        if cpu is not None and not same_values(want, interpret(after, arrays)):
            continue
        checks.append((func, steps, case.arrays, after, want))
        batch.add(after, [str(step) for step in steps], ISAS[isa])
    # Random guards leave variables unused, or set only where compilers do not see it.
    how: dict[str, Any] = {"flags": ("-O1", *flags), "strict": ()}
    batch.build(tmp_path, **how)
    found = batch.run_all(
        [(n, laid_out(arrays, steps)) for n, (_, steps, arrays, _, _) in enumerate(checks)]
    )
    for number, ((func, steps, arrays, after, want), got) in enumerate(
        zip(checks, found, strict=True)
    ):
        try:
            check_same(want, got, f"kernel k{number} in C", after)
        except AssertionError as error:
            check = differs_in_c(ISAS[isa], **how)
            error.add_note(smallest(func, steps, lambda _, a=arrays: a, check, tests=40))
            raise


def test_inline_refuses_a_state_that_has_moved_on(rng: np.random.Generator) -> None:
    """Found by random kernels: what a recurrence collects is not what its state is at the end."""
    from toolkit.ir import compute as T

    x = T.placeholder((4, 3), "float32", "x")
    init = T.compute((3,), lambda i: 0.0, "init", "float32")

    def step(t: Any, s: T.Tensor) -> tuple[list[T.Tensor], list[T.Tensor]]:
        new = T.compute((3,), lambda i: s[i] * 0.5 + x[t, i], "new")
        return [new], [new]

    (ys,), _ = T.scan(4, [init], step)
    func = build([T.compute((4, 3), lambda i, j: ys[i, j] * 2.0, "z")], [x])
    with pytest.raises(ScheduleError, match="writes again before the value is used"):
        Inline("scan_y0_put").apply(func)


def test_compute_at_counts_calls_among_the_consumers() -> None:
    """Found by random kernels: a call reads its operands whole, outside any loop."""
    from toolkit.ir import compute as T

    x = T.placeholder((4,), "float32", "x")
    t = T.compute((4,), lambda i: x[i] + 1.0, "t")
    (y,) = T.opaque("f", [t], [t.type], lambda a: (a,))
    func = build([T.compute((4,), lambda i: t[i] * y[i], "z")], [x])
    with pytest.raises(ScheduleError, match="a consumer of 't' lies outside"):
        ComputeAt("t", "i_2").apply(func)


def test_named_locals_do_not_meet_other_names(tmp_path: Path) -> None:
    """Found by random traces: element 2 of `t_acc` and a buffer `t_acc_2`."""
    from toolkit.ir import compute as T
    from toolkit.schedule.default import apply_trace
    from toolkit.schedule.steps.annotate import Unroll
    from toolkit.schedule.steps.cache_write import CacheWrite

    x = T.placeholder((4,), "float32", "x")
    t = T.compute((4,), lambda i: x[i] * 2.0, "t")
    func = build([T.compute((4,), lambda i: t[3 - i] + t[i], "y")], [x])
    trace = (CacheWrite("t"), CacheWrite("t"), Unroll("i"), Unroll("i_2"), Unroll("i_3"))
    after = apply_trace(func, trace)
    batch = Batch()
    batch.add(after)
    batch.build(tmp_path)
    arrays = {"x": np.array([1, 2, 3, 4], np.float32)}
    check_same({"y": np.array([10, 10, 10, 10], np.float32)}, batch.run(0, arrays), "C", after)


def test_loops_named_like_buffers_do_not_meet_them_in_c(tmp_path: Path) -> None:
    from toolkit.ir import compute as T

    a, i = T.placeholder((4, 3), "float32", "a"), T.placeholder((3,), "float32", "i")
    table = {"a": a, "i": i}
    func = build([T.compute((4, 3), lambda i, a: table["a"][i, a] * table["i"][a], "y")], [a, i])
    batch = Batch()
    batch.add(func)
    batch.build(tmp_path)
    arrays = {"a": np.arange(12, dtype=np.float32).reshape(4, 3), "i": np.array([1, 2, 4], "f4")}
    check_same({"y": arrays["a"] * arrays["i"]}, batch.run(0, arrays), "C", func)


def test_a_guarded_split_starts_each_element_that_its_loop_counts(
    rng: np.random.Generator,
) -> None:
    """Found by random traces: a partial result computed in the loop that reduces it."""
    from toolkit.schedule.default import apply_trace
    from toolkit.schedule.examples import row_sums
    from toolkit.schedule.steps.rfactor import RFactor
    from toolkit.schedule.steps.split import Split

    func = row_sums()
    trace = (RFactor("y", "k"), ComputeAt("y_rf", "r"), Split("r", (5,), "guard"))
    after = apply_trace(func, trace)
    arrays = random_inputs(func, rng)
    check_same(interpret(func, arrays), interpret(after, arrays), "split", after)
    check_same(interpret(func, arrays), interpret(lower_func(after), arrays), "lower", after)
