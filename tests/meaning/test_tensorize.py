"""Tensorize keeps the meaning of random nests around every intrinsic, and computes it in C."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.meaning.batch import Batch
from tests.meaning.machines import run_on
from tests.meaning.test_random_kernels import check_same
from tests.meaning.test_tensor_intrinsics import WITH_TENSORS
from toolkit.codegen.lines import flatten
from toolkit.codegen.lower import lower_func
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.expr import const, Expr, Load, loads, rewrite, substitute, Var, variables
from toolkit.ir.interp import interpret
from toolkit.ir.loop import CONST, nest_of, PrimFunc
from toolkit.ir.types import int_range
from toolkit.ir.verify import verify_func
from toolkit.schedule.default import apply_trace
from toolkit.schedule.steps.annotate import Unroll
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.targets.isas import ISAS, TENSOR_INTRINSICS
from toolkit.targets.tensor import TensorIntrinsic

ROWS, STEPS = 2, 2
LITERAL = "Z"
"""The operand of intrinsics that is a number in the kernel."""


def grown(
    intrinsic: TensorIntrinsic, rng: np.random.Generator, *, tail: bool = False
) -> tuple[PrimFunc, dict[str, str]]:
    """Return a nest of one to three times each loop's extent, and its loops by the intrinsic's.

    Around it run rows, and steps that are summed.  Operands lie in blocks as the intrinsic reads
    them.  `tail`: the extent of its tail does not divide.
    """
    extents = {l.var: l.extent for l in intrinsic.loops}
    times = {var: int(rng.integers(1, 4)) for var in extents}
    sizes = {var: times[var] * n for var, n in extents.items()}
    if tail:
        assert intrinsic.tail is not None
        sizes[intrinsic.tail] -= int(rng.integers(1, extents[intrinsic.tail]))
    block = intrinsic.block
    letters = {
        l.buffer: [v for v in extents if any(v in variables(i) for i in l.indices)]
        for l in loads(block.value)
    }
    kept = [v.name for v in block.indices if isinstance(v, Var)]
    tensors = {}
    for buffer in intrinsic.nest.inputs:
        if buffer.name == LITERAL:
            continue
        blocks = [times[v] for v in letters[buffer.name]]
        shape = (STEPS, *blocks, *buffer.shape)
        if buffer.name == "A":
            tensors["A"] = T.placeholder((ROWS, *shape), buffer.dtype, "A")
        else:
            tensors["B"] = T.placeholder(shape, buffer.dtype, "B", data=0)
    reduced = {v: T.reduce_axis(sizes[v], v) for v in extents if v not in kept}
    step = T.reduce_axis(STEPS, "step")

    def element(row: Expr, *index: Expr) -> T.Reduce | Expr:
        nonlocal step
        if block.reduce is None:
            step, *index = index
        at: dict[str, Expr] = {**dict(zip(kept, index, strict=True)), **reduced}

        def place(e: Expr) -> Expr | None:
            if not isinstance(e, Load):
                return None
            if e.buffer == LITERAL:
                return const(7, e.dtype)
            names = letters[e.buffer]
            blocks = (at[v] // extents[v] for v in names)
            within = {v: at[v] % extents[v] for v in names}
            indices = (step, *blocks, *(substitute(i, within) for i in e.indices))
            return tensors[e.buffer][(row, *indices) if e.buffer == "A" else indices]

        value = rewrite(block.value, place)
        return T.sum(value, [step, *reduced.values()]) if block.reduce else value

    shape = (ROWS, *(sizes[v] for v in kept))
    if block.reduce is None:
        shape = (ROWS, STEPS, *shape[1:])
    func = build([T.compute(shape, element, "c")], list(tensors.values()))
    loops = [l.var for l in nest_of(func.body, "c")[0]]
    names = ["row", *kept, "step"] if block.reduce else ["row", "step", *kept]
    return func, dict(zip([*names, *reduced], loops, strict=True))


def random_trace(
    func: PrimFunc, intrinsic: TensorIntrinsic, loops: dict[str, str], rng: np.random.Generator
) -> list[Step]:
    """Return steps that bring the nest of the intrinsic innermost, its outer loops in any order."""
    trace: list[Step] = [CacheWrite("c")] if rng.random() < 0.5 else []
    outer, inner = [loops["row"], loops["step"]], []
    for loop in intrinsic.loops:
        name = loops[loop.var]
        trace.append(Split(name, (loop.extent,), "guard"))
        outer.append(f"{name}.0")
        inner.append(f"{name}.1")
    order = [outer[n] for n in rng.permutation(len(outer))]
    trace.append(Reorder((*order, *inner)))
    trace += [Unroll(name) for name in outer if rng.random() < 0.4]
    return [*trace, Tensorize(inner[0], intrinsic.name)]


def operands(func: PrimFunc, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Values of the whole range of their types."""
    arrays = {}
    for buffer in func.inputs:
        low, high = int_range(buffer.dtype)
        arrays[buffer.name] = rng.integers(low, high, buffer.shape, buffer.dtype, endpoint=True)
    return arrays


@pytest.mark.parametrize("isa", WITH_TENSORS)
def test_random_nests_around_an_intrinsic_mean_the_same(
    isa: str, rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    batch = Batch()
    calls, checks = [], []
    for name, intrinsic in ISAS[isa].tensors.items():
        for tail in (False, True)[: 1 + (intrinsic.tail is not None)]:
            for _ in range(3):
                func, loops = grown(intrinsic, rng, tail=tail)
                assert not intrinsic.block.reduce or any(b.scope == CONST for b in func.inputs)
                arrays = operands(func, rng)
                want = interpret(func, arrays)
                before = func
                for step in random_trace(func, intrinsic, loops, rng):
                    after = step.apply(before)
                    verify_func(after)
                    check_same(want, interpret(after, arrays), str(step), before, after)
                    before = after
                lowered = lower_func(before)
                check_same(want, interpret(lowered, arrays), "lower", before, lowered)
                number = batch.add(before, (name,), ISAS[isa])
                statements = (*intrinsic.c, *intrinsic.c_partial)
                used = {c.split("(")[0].split()[-1] for c in statements}
                text = "\n".join(line.text for line in flatten(batch.kernels[number][0].lines))
                assert any(c in text for c in used), f"{name} is not used\n{before}\n{text}"
                calls.append((number, arrays))
                checks.append((before, want))
    found = run_on(isa, batch, calls, tmp_path, need_tool, need_cpu)
    for (func, want), got in zip(checks, found, strict=True):
        check_same(want, got, "in C", func)


def test_without_the_instruction_the_nest_is_printed_as_loops(
    rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    """And where a later step has changed the nest, also on a processor that has it."""
    for isa in ("scalar", "avx2"):
        batch = Batch()
        calls, checks = [], []
        for name, intrinsic in TENSOR_INTRINSICS.items():
            func, loops = grown(intrinsic, rng, tail=intrinsic.tail is not None)
            arrays = operands(func, rng)
            trace = random_trace(func, intrinsic, loops, rng)
            if name in ISAS[isa].tensors:
                last = intrinsic.loops[-1]
                trace.append(Split(f"{loops[last.var]}.1", (last.extent // 2,)))
            after = apply_trace(func, trace)
            number = batch.add(after, (name,), ISAS[isa])
            text = "\n".join(line.text for line in flatten(batch.kernels[number][0].lines))
            assert not any(c.split("(")[0].split()[-1] in text for c in intrinsic.c), text
            calls.append((number, arrays))
            checks.append((after, interpret(func, arrays)))
        found = run_on(isa, batch, calls, tmp_path, need_tool, need_cpu)
        for (after, want), got in zip(checks, found, strict=True):
            check_same(want, got, f"in C for {isa}", after)
