"""Depthwise convolutions with channels last keep their meaning in tiles of lines and rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.meaning.batch import Batch, laid_out
from tests.meaning.machines import run_on
from toolkit.errors import ScheduleError
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.expr import all_of, Expr, maximum
from toolkit.ir.interp import interpret
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.schedule.depthwise import tile_taps
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.partition import Partition
from toolkit.schedule.steps.split import Split
from toolkit.targets.isas import ISAS


def depthwise(
    side: tuple[int, int], channels: int, taps: tuple[int, int] = (3, 3), stride: int = 1,
    pad: int = 1, dilation: int = 1,
) -> PrimFunc:  # fmt: skip
    x = T.placeholder((1, *side, channels), "float32", "x")
    w = T.placeholder((*taps, channels), "float32", "w", data=0)
    kh, kw = (T.reduce_axis(n, name) for n, name in zip(taps, ("kh", "kw"), strict=True))
    out = tuple(
        (n + 2 * pad - dilation * (t - 1) - 1) // stride + 1
        for n, t in zip(side, taps, strict=True)
    )

    def element(n: Expr, i: Expr, j: Expr, c: Expr) -> T.Reduce:
        at = (i * stride + kh * dilation - pad, j * stride + kw * dilation - pad)
        inside = [t for a, size in zip(at, side, strict=True) for t in (a >= 0, a < size)]
        where = all_of(*inside) if pad else None
        return T.sum(x[n, at[0], at[1], c] * w[kh, kw, c], (kh, kw), where=where)

    sums = T.compute((1, *out, channels), element, "conv")
    y = T.compute(sums.shape, lambda *i: maximum(sums[i], 0.0), "y")
    return build([y], [x, w])


KERNELS = {
    "whole": depthwise((8, 8), 32),
    "odd channels": depthwise((14, 14), 40),
    "odd lines": depthwise((9, 5), 16, pad=1),
    "few lines": depthwise((3, 3), 48),
    "few channels": depthwise((8, 8), 6),
    "stride 2": depthwise((12, 11), 32, stride=2),
    "unpadded": depthwise((9, 10), 33, pad=0),
    "two taps": depthwise((6, 7), 20, taps=(2, 3)),
    "wide padding": depthwise((6, 6), 32, pad=2),
}


@pytest.mark.parametrize("isa", ["avx512", "neon"])
def test_tiles_of_pixels_keep_the_meaning(
    isa: str, rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    batch, calls, wanted = Batch(), [], []
    for name, func in KERNELS.items():
        trace = default_trace(func, ISAS[isa])
        splits = [s for s in trace if isinstance(s, Split)]
        assert len(splits) == 3, (name, trace)
        # Small whole numbers: every order of summation gives the same.
        x = {b.name: rng.integers(-8, 9, b.shape).astype(np.float32) for b in func.inputs}
        wanted.append(interpret(func, x)["y"])
        scheduled = apply_trace(func, trace)
        found = interpret(scheduled, laid_out(x, trace))["y"]
        np.testing.assert_array_equal(found, wanted[-1], err_msg=f"{name}: {trace}")
        calls.append((batch.add(scheduled, (), ISAS[isa]), laid_out(x, trace)))
    got = run_on(isa, batch, calls, tmp_path, need_tool, need_cpu)
    for name, one, want in zip(KERNELS, got, wanted, strict=True):
        np.testing.assert_array_equal(one["y"], want, err_msg=name)


def test_lines_that_touch_padding_are_apart() -> None:
    isa = ISAS["avx512"]
    assert default_trace(KERNELS["odd channels"], isa)[-1] == Partition("i1.0", (1, 6))
    few = default_trace(KERNELS["few lines"], isa)
    assert not any(isinstance(s, Partition) for s in few)


def masked() -> PrimFunc:
    """A depthwise convolution of x times a mask that is no constant either."""
    x, mask = (T.placeholder((1, 8, 8, 32), "float32", name) for name in ("x", "mask"))
    w = T.placeholder((3, 3, 32), "float32", "w", data=0)
    kh, kw = T.reduce_axis(3, "kh"), T.reduce_axis(3, "kw")

    def element(n: Expr, i: Expr, j: Expr, c: Expr) -> T.Reduce:
        at = (n, i + kh, j + kw, c)
        return T.sum(x[at] * mask[at] * w[kh, kw, c], (kh, kw))

    sums = T.compute((1, 6, 6, 32), element, "conv")
    return build([T.compute(sums.shape, lambda *i: maximum(sums[i], 0.0), "y")], [x, mask, w])


def test_what_is_of_two_operands_gets_another_default() -> None:
    assert default_trace(masked(), ISAS["avx512"])


@pytest.mark.parametrize(
    ("func", "isa", "why"),
    [
        (KERNELS["whole"], "avx2", "no vectors of channels"),
        (depthwise((8, 8), 3), "avx512", "no vectors of channels"),
        (depthwise((8, 8), 32, taps=(5, 5)), "avx512", "no few taps"),
        (depthwise((8, 8), 32, dilation=2), "avx512", "no few taps"),
        (masked(), "avx512", "no few taps"),
        (depthwise((8, 1), 32, taps=(3, 1), pad=0), "avx512", "no few taps"),
    ],
)
def test_what_is_tiled_otherwise(func: PrimFunc, isa: str, why: str) -> None:
    def take(step: Step) -> PrimFunc:
        return step.apply(func)

    with pytest.raises(ScheduleError, match=why):
        tile_taps(func, "conv", ISAS[isa], take)
