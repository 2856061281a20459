"""Windows with the channel outside: their padding is staged, and they mean what they did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.meaning.batch import Batch
from tests.meaning.test_random_kernels import check_same, laid_out
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.expr import all_of, Expr
from toolkit.ir.interp import interpret
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.schedule.steps.pad_read import PadRead
from toolkit.targets.isas import ISAS


def windows(
    channels: int, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int],
    dilation: tuple[int, int], pads: tuple[int, int], kind: str,
) -> PrimFunc:  # fmt: skip
    """Return a depthwise convolution, a pooling or a sum of windows of [channels, *size]."""
    out = [
        (n + p - (k - 1) * d - 1) // s + 1
        for n, k, s, d, p in zip(size, kernel, stride, dilation, pads, strict=True)
    ]
    before = [p // 2 for p in pads]
    x = T.placeholder((channels, *size), "float32", "x")
    # The value does not matter: it says that `w` is known when compiling.
    w = T.placeholder((channels, *kernel), "float32", "w", data=0)
    taps = [T.reduce_axis(k, f"k{n}") for n, k in enumerate(kernel)]

    def element(c: Expr, *o: Expr) -> Any:
        at = [
            oi * s + k * d - b
            for oi, k, s, d, b in zip(o, taps, stride, dilation, before, strict=True)
        ]
        inside = [
            test
            for i, n, p in zip(at, size, pads, strict=True)
            for test in ((i >= 0, i < n) if p else ())
        ]
        value, where = x[(c, *at)], all_of(*inside)
        if kind == "max":
            return T.max(value, taps, where=where)
        return T.sum(value * w[(c, *taps)] if kind == "conv" else value, taps, where=where)

    t = T.compute((channels, *out), element, "t")
    y = T.compute((channels, *out), lambda *i: t[i] * 2.0, "y")
    return build([y], [x, w] if kind == "conv" else [x])


def random_windows(rng: np.random.Generator) -> PrimFunc:
    """Return windows of random extents, wide enough for vectors."""

    def pair(low: int, high: int) -> tuple[int, int]:
        return int(rng.integers(low, high + 1)), int(rng.integers(low, high + 1))

    kernel, dilation = pair(1, 4), pair(1, 2)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    pads = (int(rng.integers(0, reach[0] + 1)), int(rng.integers(0, reach[1] + 1)))
    size = (reach[0] + int(rng.integers(0, 9)), reach[1] + int(rng.integers(8, 40)))
    kind = ("conv", "max", "sum")[int(rng.integers(3))]
    return windows(int(rng.integers(2, 4)), size, kernel, pair(1, 3), dilation, pads, kind)


@pytest.mark.parametrize(
    ("isa", "cpu", "flags"),
    [
        ("avx2", "AVX2", ("-mavx2", "-mfma")),
        ("avx512", "AVX-512", ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")),
    ],
)
def test_windows_of_any_shape_compute_what_they_mean(
    isa: str,
    cpu: str,
    flags: tuple[str, ...],
    rng: np.random.Generator,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:
    need_tool("gcc")
    need_cpu(cpu)
    batch, checks, staged = Batch(), [], 0
    for _ in range(30):
        func = random_windows(rng)
        # Small whole numbers: every order of summation gives the same.
        arrays = {b.name: rng.integers(-8, 9, b.shape).astype(np.float32) for b in func.inputs}
        trace = default_trace(func, ISAS[isa])
        staged += any(isinstance(step, PadRead) for step in trace)
        after = apply_trace(func, trace)
        checks.append((func, interpret(func, arrays), laid_out(arrays, trace)))
        batch.add(after, [str(step) for step in trace], ISAS[isa])
    assert staged > 10
    batch.build(tmp_path, flags=("-O1", *flags))
    found = batch.run_all([(n, given) for n, (_, _, given) in enumerate(checks)])
    for number, ((func, want, _), got) in enumerate(zip(checks, found, strict=True)):
        check_same(want, got, f"kernel k{number} in C", func)


@pytest.mark.parametrize("isa", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize("stride", [1, 2])
def test_no_bounds_are_tested_while_windows_are_computed(isa: str, stride: int) -> None:
    func = windows(8, (56, 56), (3, 3), (stride, stride), (1, 1), (2, 2), "conv")
    trace = default_trace(func, ISAS[isa])
    batch = Batch()
    batch.add(apply_trace(func, trace), (), ISAS[isa])
    _, body = batch.text().split("NST_KERNEL void k0")
    assert "if (" not in body
    assert "?" not in body
