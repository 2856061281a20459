"""Algorithms as first steps mean what the convolution means, and round within their bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.meaning.batch import Batch
from tests.meaning.convolutions import convolution, float_inputs, relative_error
from tests.meaning.test_random_kernels import check_same, laid_out, Results
from tests.meaning.test_steps import as_fractions, random_inputs, random_trace
from toolkit.codegen.lower import lower_func
from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder, Reduce, reduce_axis, sum
from toolkit.ir.expr import all_of, Expr, maximum
from toolkit.ir.interp import interpret
from toolkit.ir.loop import nest_of, PrimFunc
from toolkit.ir.regions import block_loads
from toolkit.ir.verify import verify_func
from toolkit.schedule.algorithm import winograd_plans
from toolkit.schedule.default import apply_trace, default_trace, Trace, trace_with
from toolkit.schedule.steps.im2col import Im2col
from toolkit.schedule.steps.inline import Inline
from toolkit.schedule.steps.reverse_inline import ReverseInline
from toolkit.schedule.steps.windows import windows_of
from toolkit.schedule.steps.winograd import Winograd
from toolkit.schedule.tiling import flat_index, stride_in
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS

WORST = {2: 2e-6, 4: 1e-5}
"""Largest error over largest result, by m: a multiple of what `Winograd` states."""


def exact_inputs(func: PrimFunc, rng: np.random.Generator) -> Results:
    """Return small fractions: of them, constants are transformed without rounding."""
    return {name: as_fractions(a) for name, a in random_inputs(func, rng).items()}


def winograd(func: PrimFunc, m: int) -> Winograd:
    """Return the step for the convolution of a function."""
    windows = windows_of(Winograd("conv", "", (0, 1), m), func, "conv")
    return Winograd("conv", windows.weight.buffer, windows.kernel, m)


def random_func(rng: np.random.Generator) -> PrimFunc:
    """Return a convolution that Winograd suits."""
    size = tuple(int(n) for n in rng.integers(2, 8, 2))
    pads = tuple(int(n) for n in rng.integers(0, 3, 4))
    while min(n + pads[i] + pads[i + 2] for i, n in enumerate(size)) < 6:
        size = tuple(n + 1 for n in size)
    return convolution(
        size,
        tuple(int(n) for n in rng.integers(2, 4, 2)),  # type: ignore[arg-type]
        batch=int(rng.integers(1, 3)),
        pads=pads,
        layout=str(rng.choice(["NHWC", "NCHW"])),
        bias=bool(rng.integers(2)),
    )


@pytest.mark.parametrize("m", [2, 4])
def test_winograd_means_the_convolution_at_every_size_layout_and_padding(
    m: int, rng: np.random.Generator
) -> None:
    for _ in range(12):
        func = random_func(rng)
        step = winograd(func, m)
        after = step.apply(func)
        verify_func(after)
        arrays = exact_inputs(func, rng)
        moved = laid_out(arrays, (step,))
        want = interpret(func, arrays)
        check_same(want, interpret(after, moved), str(step), func, after)
        check_same(want, interpret(lower_func(after), moved), f"lower after {step}", func, after)


def test_random_steps_behind_winograd_keep_its_meaning(rng: np.random.Generator) -> None:
    taken = 0
    for _ in range(8):
        seed = int(rng.integers(2**32))
        own = np.random.default_rng(seed)
        func = random_func(own)
        arrays = exact_inputs(func, own)
        want = interpret(func, arrays)
        step = winograd(func, int(own.choice([2, 4])))
        arrays, before = laid_out(arrays, (step,)), step.apply(func)
        try:
            for later, after in random_trace(before, own, 25):
                arrays = laid_out(arrays, (later,))
                check_same(want, interpret(after, arrays), str(later), before, after)
                before, taken = after, taken + 1
            check_same(want, interpret(lower_func(before), arrays), "lower", before)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert taken > 20


def any_window(rng: np.random.Generator) -> PrimFunc:
    """Return a convolution with any window."""
    kernel, strides, dilations = (tuple(int(n) for n in rng.integers(1, 4, 2)) for _ in range(3))
    return convolution(
        tuple(int(n) for n in rng.integers(7, 10, 2)),
        (int(rng.integers(1, 3)), int(rng.integers(1, 4))),
        batch=int(rng.integers(1, 3)),
        pads=tuple(int(n) for n in rng.integers(0, 3, 4)),
        kernel=kernel,
        strides=strides,
        dilations=dilations,
        layout=str(rng.choice(["NHWC", "NCHW"])),
        dtype=str(rng.choice(["float32", "int32"])),
        constant=bool(rng.integers(2)),
    )


def test_im2col_means_the_convolution_with_any_window(rng: np.random.Generator) -> None:
    step, lanes = Im2col("conv"), ISAS["avx2"]
    for _ in range(12):
        func = any_window(rng)
        after = step.apply(func)
        verify_func(after)
        arrays = exact_inputs(func, rng)
        want = interpret(func, arrays)
        check_same(want, interpret(after, arrays), str(step), func, after)
        trace = default_trace(after, lanes, exact=True)
        scheduled = lower_func(apply_trace(after, trace))
        check_same(want, interpret(scheduled, laid_out(arrays, trace)), "schedule", func, scheduled)


def test_im2col_leaves_one_reduce_loop_without_a_test() -> None:
    func = Im2col("conv").apply(convolution((6, 6), (3, 4), kernel=(3, 3)))
    loops, block = nest_of(func.body, "conv")
    assert [l.extent for l in loops] == [36, 4, 27]
    assert block.guard is None


def test_a_1x1_convolution_becomes_a_product_of_all_pixels(rng: np.random.Generator) -> None:
    func = convolution((5, 6), (3, 4), kernel=(1, 1), pads=(0, 0, 0, 0))
    steps = (Im2col("conv"), Inline("conv_p"), Inline("conv_out"), ReverseInline("z"))
    after = apply_trace(func, steps)
    loops, block = nest_of(after.body, "conv")
    assert [l.extent for l in loops] == [30, 4, 3]
    flat = next(flat_index(after, block, l) for l in block_loads(block) if l.buffer == "x")
    assert [stride_in(flat, l.var) for l in loops] == [3, 0, 1]
    arrays = exact_inputs(func, rng)
    check_same(interpret(func, arrays), interpret(after, arrays), "product", func, after)


def planned(func: PrimFunc, isa: Isa, m: int) -> Trace:
    """Return the default trace with a Winograd form."""
    plan = next(p for p in winograd_plans(func, "conv", isa) if p.step.m == m)
    return trace_with(func, isa, plan)


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("isa", ["neon", "avx2", "avx512"])
def test_the_schedule_of_winograd_means_the_convolution(
    isa: str, m: int, rng: np.random.Generator
) -> None:
    lanes = ISAS[isa].lanes("float32")
    func = convolution((4, 6), (lanes, lanes), pads=(1, 0, 1, 1))
    trace = planned(func, ISAS[isa], m)
    arrays = exact_inputs(func, rng)
    after = lower_func(apply_trace(func, trace))
    want = interpret(func, arrays)
    check_same(want, interpret(after, laid_out(arrays, trace)), "schedule", func, after)


def test_winograd_that_several_blocks_read_is_stored(rng: np.random.Generator) -> None:
    shape, isa = (1, 4, 4, 8), ISAS["avx2"]
    x = placeholder(shape, "float32", "x")
    w = placeholder((3, 3, 8, 8), "float32", "w", data=0)
    kh, kw, c = (reduce_axis(n, name) for n, name in ((3, "kh"), (3, "kw"), (8, "c")))

    def element(n: Expr, i: Expr, j: Expr, o: Expr) -> Reduce:
        y, z = i + kh - 1, j + kw - 1
        inside = all_of(y >= 0, y < 4, z >= 0, z < 4)
        return sum(x[n, y, z, c] * w[kh, kw, c, o], (kh, kw, c), where=inside)

    conv = compute(shape, element, "conv")
    r, s = reduce_axis(4, "r"), reduce_axis(4, "s")
    pooled = compute((8,), lambda o: sum(conv[0, r, s, o], (r, s)), "pooled")
    relu = compute(shape, lambda n, i, j, o: maximum(conv[n, i, j, o], 0.0), "relu")
    func = build([pooled, relu], [x, w])
    trace = planned(func, isa, 2)
    assert not any(isinstance(step, ReverseInline) for step in trace)
    arrays = exact_inputs(func, rng)
    after = lower_func(apply_trace(func, trace))
    want = interpret(func, arrays)
    check_same(want, interpret(after, laid_out(arrays, trace)), "schedule", func, after)


CASES = [
    convolution((9, 11), (32, 64)),
    convolution((8, 8), (64, 32), batch=2, pads=(0, 0, 0, 0)),
    convolution((5, 4), (128, 16), pads=(2, 1, 0, 1)),
    convolution((12, 7), (16, 48), bias=False),
]


def wanted(func: PrimFunc, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return the result in double precision, by NumPy."""
    windows = windows_of(Winograd("conv", "", (0, 1), 2), func, "conv")
    x, w = (arrays[n].astype(np.float64) for n in "xw")
    places = [o + 2 for o in windows.out]
    before = [-o for o in windows.offsets]
    behind = [n - s - b for n, s, b in zip(places, windows.sizes, before, strict=True)]
    x = np.pad(x, [(0, 0), *zip(before, np.maximum(behind, 0), strict=True), (0, 0)])
    down, across = windows.out
    y = np.zeros((*x.shape[:1], down, across, w.shape[-1]))
    for i, j in np.ndindex(3, 3):
        y += np.einsum("nhwc,co->nhwo", x[:, i : i + down, j : j + across], w[i, j])
    return np.maximum(y + arrays["b"], 0) if "b" in arrays else y


@pytest.mark.parametrize(
    ("isa", "cpu", "flags"),
    [
        ("avx2", "AVX2", ("-mavx2", "-mfma", "-O2")),
        ("avx512", "AVX-512", ("-march=x86-64-v4", "-O2")),
        ("neon", None, ()),
    ],
    ids=["avx2", "avx512", "neon"],
)
def test_winograd_in_c_rounds_within_its_bounds(
    isa: str,
    cpu: str | None,
    flags: tuple[str, ...],
    rng: np.random.Generator,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:
    batch, checks = Batch(), []
    for func in CASES:
        arrays = float_inputs(func, rng)
        for m in WORST:
            trace = planned(func, ISAS[isa], m)
            number = batch.add(apply_trace(func, trace), (), ISAS[isa])
            checks.append((number, m, wanted(func, arrays), laid_out(arrays, trace)))
    calls = [(number, arrays) for number, _, _, arrays in checks]
    if cpu is None:
        compiler = [need_tool("aarch64-linux-gnu-gcc"), "-O2", "-static"]
        found = batch.run_program(calls, tmp_path, compiler, [need_tool("qemu-aarch64")])
    else:
        need_tool("gcc")
        need_cpu(cpu)
        batch.build(tmp_path, flags=flags)
        found = batch.run_all(calls)
    for (number, m, want, _), got in zip(checks, found, strict=True):
        (result,) = got.values()
        error = relative_error(result, want)
        assert error < WORST[m], f"kernel k{number}, m={m}: error {error:.1e}"
