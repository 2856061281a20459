"""Default schedules by tensor intrinsics: each kind of kernel takes them, and keeps its meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.meaning.batch import Batch, laid_out
from tests.meaning.machines import run_on
from tests.meaning.test_random_kernels import check_same
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.expr import all_of, binary, cast, const, Expr, maximum, minimum
from toolkit.ir.interp import interpret
from toolkit.ir.loop import PrimFunc
from toolkit.ir.types import int_range
from toolkit.ir.verify import verify_func
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.targets.isas import ISAS

DENSE = "dense"
FULL = "full"
DEPTHWISE = "depthwise"


@dataclass(frozen=True)
class Kind:
    """A convolution [rows, columns, inputs] -> outputs, padded by half a window, or a dense layer.

    `intrinsic`: what the default schedule computes it by on a Cortex-M4.
    """

    kind: str
    intrinsic: str
    size: tuple[int, int] = (1, 1)
    kernel: tuple[int, int] = (1, 1)
    inputs: int = 8
    outputs: int = 6
    stride: int = 1
    zero: int = 0
    dtype: str = "int8"
    residual: bool = False


KINDS = {
    "pixels": Kind(FULL, "dsp_dot4_s16s8", (5, 5)),
    "pixels, zero point": Kind(FULL, "dsp_dot4_s16s8", (5, 2), zero=-7),
    "unsigned": Kind(FULL, "dsp_dot4_s16s8", (3, 4), (3, 3), zero=200, dtype="uint8"),
    "strided pixels": Kind(FULL, "dsp_dot4_s16s8", (5, 5), stride=2),
    "windows": Kind(FULL, "dsp_dot4_s16s8", (4, 7), (3, 3), 8, 5, zero=-128),
    "windows, strided": Kind(FULL, "dsp_dot4_s16s8", (7, 6), (3, 3), 4, 4, stride=2, zero=5),
    "three channels": Kind(FULL, "dsp_dot4_s16s8", (5, 6), (3, 3), 3, 4, zero=11),
    "one channel": Kind(FULL, "dsp_dot4_s16s8", (6, 5), (5, 4), 1, 3, stride=2, zero=83),
    "in one dimension": Kind(FULL, "dsp_dot4_s16s8", (9, 1), (3, 1), 8, 4, zero=1),
    "in place of a residual": Kind(
        FULL, "dsp_dot4_s16s8", (2, 7), (3, 3), 4, 4, zero=2, residual=True
    ),
    "dense": Kind(DENSE, "dsp_dot4_s8s8", inputs=40, outputs=8),
    "dense, odd": Kind(DENSE, "dsp_dot4_s8s8", inputs=10, outputs=3),
    "dense, zero point": Kind(DENSE, "dsp_dot4_s8s8", inputs=12, outputs=5, zero=9),
    "planes": Kind(DEPTHWISE, "dsp_row3_s16s8", (4, 6), (3, 3), 3, zero=-128),
    "planes, odd": Kind(DEPTHWISE, "dsp_row3_s16s8", (3, 5), (3, 3), 2, zero=3),
    "planes, long odd rows": Kind(DEPTHWISE, "dsp_row3_s16s8", (2, 11), (3, 3), 2, zero=3),
    "planes, strided": Kind(DEPTHWISE, "dsp_row3_by2_s16s8", (6, 8), (3, 3), 3, stride=2, zero=7),
    "planes, strided and odd": Kind(DEPTHWISE, "dsp_row3_by2_s16s8", (5, 5), (3, 3), 2, stride=2),
}


def kernel(k: Kind) -> PrimFunc:
    """Return the kernel, requantised by a multiplier and an offset a channel as models are."""
    rows, columns = k.size
    outputs = k.inputs if k.kind == DEPTHWISE else k.outputs
    out = tuple(-(-n // k.stride) for n in k.size)
    pads = tuple((n - 1) // 2 for n in k.kernel)
    c = T.reduce_axis(k.inputs, "c")
    taps = [T.reduce_axis(n, f"k{d}") for d, n in enumerate(k.kernel)]

    def factor(load: Expr) -> Expr:
        wide = cast(load, "int32")
        return wide - k.zero if k.zero else wide

    if k.kind == DENSE:
        x = T.placeholder((1, k.inputs), k.dtype, "x")
        w = T.placeholder((k.inputs, outputs), "int8", "w", data=0)
        shape: tuple[int, ...] = (1, outputs)
        sums = T.compute(
            shape, lambda n, o: T.sum(factor(x[n, c]) * cast(w[c, o], "int32"), c), "sums"
        )
    else:
        x = T.placeholder((1, rows, columns, k.inputs), k.dtype, "x")
        depth = 1 if k.kind == DEPTHWISE else k.inputs
        w = T.placeholder((*k.kernel, depth, outputs), "int8", "w", data=0)
        shape = (1, *out, outputs)

        def element(n: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
            at = [p * k.stride + t - pad for p, t, pad in zip((i, j), taps, pads, strict=True)]
            inside = all_of(
                *(
                    test
                    for p, size, length in zip(at, k.size, k.kernel, strict=True)
                    for test in ((p >= 0, p < size) if length > 1 else ())
                )
            )
            channel = o if k.kind == DEPTHWISE else c
            weight = w[taps[0], taps[1], 0, o] if k.kind == DEPTHWISE else w[taps[0], taps[1], c, o]
            value = factor(x[n, at[0], at[1], channel]) * cast(weight, "int32")
            over = taps if k.kind == DEPTHWISE else [*taps, c]
            return T.sum(value, over, where=inside)

        sums = T.compute(shape, element, "sums")
    m = T.placeholder((outputs,), "int32", "m", data=0)
    offset = T.placeholder((outputs,), "int64", "offset", data=0)
    a = T.placeholder(shape, "int8", "a")

    def requantized(*i: Expr) -> Expr:
        total = cast(sums[i], "int64") * cast(m[i[-1]], "int64") + offset[i[-1]]
        value = cast(binary("shr", total, const(37, "int64")), "int32")
        if k.residual:
            value = value + cast(a[i], "int32")
        return cast(minimum(maximum(value, -128), 127), "int8")

    y = T.compute(shape, requantized, "y")
    return build([y], [x, w, m, offset, *([a] if k.residual else [])])


def values(func: PrimFunc, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Values of the whole range of bytes; multipliers and offsets that bring sums to bytes."""
    arrays = {}
    for buffer in func.inputs:
        low, high = int_range(buffer.dtype)
        if buffer.name == "m":
            low, high = 1 << 29, 1 << 30
        if buffer.name == "offset":
            low, high = -(1 << 43), 1 << 43
        arrays[buffer.name] = rng.integers(low, high, buffer.shape, buffer.dtype, endpoint=True)
    return arrays


def test_defaults_on_a_cortex_m4_take_their_intrinsic_and_keep_the_meaning(
    rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    isa = ISAS["armv7em"]
    batch = Batch()
    calls, checks = [], []
    for name, kind in KINDS.items():
        func = kernel(kind)
        trace = default_trace(func, isa)
        used = [s.intrinsic for s in trace if isinstance(s, Tensorize)]
        assert kind.intrinsic in used, f"{name}: {used}\n{func}"
        arrays = values(func, rng)
        want = interpret(func, arrays)
        scheduled = apply_trace(func, trace)
        verify_func(scheduled)
        packed = laid_out(arrays, trace)
        check_same(want, interpret(scheduled, packed), name, func, scheduled)
        calls.append((batch.add(scheduled, (name,), isa), packed))
        checks.append((scheduled, want))
    found = run_on("armv7em", batch, calls, tmp_path, need_tool, need_cpu)
    for (scheduled, want), got in zip(checks, found, strict=True):
        check_same(want, got, "in C", scheduled)


@pytest.mark.parametrize(
    "kind",
    [
        Kind(DENSE, "", inputs=1, outputs=5),
        Kind(DENSE, "", inputs=1, outputs=2),
        Kind(FULL, "", (1, 1), (1, 1), 1, 2),
        Kind(FULL, "", (1, 1), (3, 3), 1, 2, zero=4),
        Kind(DEPTHWISE, "", (1, 1), (3, 3), 2),
        Kind(DEPTHWISE, "", (4, 4), (1, 1), 3),
        Kind(DEPTHWISE, "", (3, 1), (3, 3), 2),
    ],
)
def test_kernels_of_extents_of_one_have_a_default_that_keeps_the_meaning(
    kind: Kind, rng: np.random.Generator
) -> None:
    func = kernel(kind)
    arrays = values(func, rng)
    trace = default_trace(func, ISAS["armv7em"])
    scheduled = apply_trace(func, trace)
    check_same(
        interpret(func, arrays), interpret(scheduled, laid_out(arrays, trace)), "", func, scheduled
    )


@pytest.mark.parametrize("name", ["windows", "in place of a residual"])
def test_a_result_may_lie_over_an_operand_that_it_is_added_to(name: str) -> None:
    """Shifted tiles would compute some elements twice, from what they overwrote."""
    kind = KINDS[name]
    trace = default_trace(kernel(kind), ISAS["armv7em"])
    shifted = any(getattr(step, "tail", "") == "shift" for step in trace)
    assert shifted != kind.residual
