"""Default schedules of integer kernels keep their meaning, whatever way a target takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.meaning.batch import laid_out
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.expr import all_of, binary, cast, Const, Expr, maximum, minimum
from toolkit.ir.interp import interpret
from toolkit.ir.loop import Loop, PrimFunc, walk_stmt
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.targets.isas import ISAS

SETS = ("helium", "armv7em")
Make = Callable[[], PrimFunc]


def requantised(sums: T.Tensor, *, long: bool) -> tuple[T.Tensor, list[T.Tensor]]:
    """A bias and a multiplication behind sums, in 32 bits or in 64, limited to a byte."""
    count = sums.shape[-1]
    m = T.placeholder((count,), "int32", "m", data=0)
    b = T.placeholder((count,), "int64" if long else "int32", "b", data=0)

    def element(*i: Expr) -> Expr:
        if long:
            total = cast(sums[i], "int64") * cast(m[i[-1]], "int64") + b[i[-1]]
            value = cast(binary("shr", total, Const("int64", 34)), "int32")
        else:
            value = binary("shr", (sums[i] + b[i[-1]]) * (m[i[-1]] & 255), Const("int32", 15))
        return cast(maximum(minimum(value, 127), -128), "int8")

    return T.compute(sums.shape, element, "y"), [m, b]


def conv(
    c: int, o: int, taps: tuple[int, int] = (3, 3), side: tuple[int, int] = (3, 5), stride: int = 1,
    zero: int = -128, *, depthwise: bool = False, long: bool = False, pad: bool = True,
) -> Make:  # fmt: skip
    def make() -> PrimFunc:
        x = T.placeholder((1, *side, c), "int8", "x")
        w = T.placeholder((*taps, 1 if depthwise else c, o), "int8", "w", data=0)
        kh, kw = (T.reduce_axis(n, name) for n, name in zip(taps, ("kh", "kw"), strict=True))
        ic = T.reduce_axis(c, "ic")
        before = (1, 1) if pad else (0, 0)
        out = tuple(
            (n + 2 * p - t) // stride + 1 for n, p, t in zip(side, before, taps, strict=True)
        )

        channel = ic if c > 1 else 0  # as operators write it

        def element(n: Expr, i: Expr, j: Expr, k: Expr) -> T.Reduce:
            at = (i * stride + kh - before[0], j * stride + kw - before[1])
            inside = [t for a, n_ in zip(at, side, strict=True) for t in (a >= 0, a < n_)]
            data = cast(x[n, at[0], at[1], k if depthwise else channel], "int32")
            weight = cast(w[kh, kw, 0 if depthwise else channel, k], "int32")
            axes = (kh, kw) if depthwise or c == 1 else (kh, kw, ic)
            where = all_of(*inside) if pad else None
            return T.sum((data - zero if zero else data) * weight, axes, where=where)

        sums = T.compute((1, *out, o), element, "conv")
        y, params = requantised(sums, long=long)
        return build([y], [x, w, *params])

    return make


def dense(depth: int, columns: int, *, long: bool = False) -> Make:
    def make() -> PrimFunc:
        a = T.placeholder((1, depth), "int8", "a")
        w = T.placeholder((depth, columns), "int8", "w", data=0)
        k = T.reduce_axis(depth, "k")
        product = lambda i, j: T.sum(cast(a[i, k], "int32") * cast(w[k, j], "int32"), k)  # noqa: E731
        y, params = requantised(T.compute((1, columns), product, "acc"), long=long)
        return build([y], [a, w, *params])

    return make


def channel_sums(shape: tuple[int, ...]) -> Make:
    """y[.., c] = requantised sum over k of x[.., k, c] * w[k, c]: no image."""

    def make() -> PrimFunc:
        x = T.placeholder((*shape[:-1], 5, shape[-1]), "int8", "x")
        w, k = T.placeholder((5, shape[-1]), "int8", "w", data=0), T.reduce_axis(5, "k")
        term = lambda *i: cast(x[(*i[:-1], k, i[-1])], "int32") * cast(w[k, i[-1]], "int32")  # noqa: E731
        y, params = requantised(T.compute(shape, lambda *i: T.sum(term(*i), k), "t"), long=False)
        return build([y], [x, w, *params])

    return make


KERNELS: dict[str, Make] = {
    "3x3": conv(16, 4),
    "3x3 long": conv(16, 4, long=True),
    "3x3 stride 2": conv(32, 4, side=(6, 6), stride=2, zero=5),
    "first layer": conv(3, 8, stride=2, side=(7, 8)),
    "first layer long": conv(3, 4, long=True, zero=7),
    "narrow taps": conv(1, 4, taps=(4, 4), zero=83),
    "odd taps": conv(1, 8, stride=2, side=(6, 7), zero=-128),
    "few columns": conv(1, 4, zero=9),
    "windows": conv(2, 12, taps=(5, 3), side=(7, 6), stride=2, zero=11),
    "windows unpadded": conv(4, 16, taps=(2, 3), side=(4, 5), zero=0, pad=False, long=True),
    "wide taps long": conv(1, 4, taps=(5, 5), side=(5, 6), zero=9, long=True),
    "1x1": conv(16, 12, taps=(1, 1), zero=0, pad=False),
    "1x1 of 8": conv(8, 4, taps=(1, 1), zero=0, pad=False),
    "1x1 of 20": conv(20, 6, taps=(1, 1), zero=0, pad=False),
    "depthwise": conv(8, 8, depthwise=True),
    "depthwise long": conv(4, 4, depthwise=True, long=True, side=(4, 7)),
    "depthwise stride 2": conv(16, 16, depthwise=True, stride=2, side=(6, 8), zero=-3),
    "depthwise wide": conv(48, 48, depthwise=True, side=(2, 18)),  # copied in parts
    "sums of channels": channel_sums((8,)),
    "rows of channels": channel_sums((3, 8)),
    "dense": dense(48, 8),
    "dense odd": dense(37, 10, long=True),
}


WANTED = {
    "few columns": "mve_dot4_s8s8",
    "wide taps long": "mve_dot8_s8s8",
    "1x1 of 8": "mve_dot8_s8s8",
    "sums of channels": "",
    "rows of channels": "",
    **{name: "mve_taps4_s8s8" for name in KERNELS if name.startswith("depthwise")},
}
"""What Helium computes a kernel by; others are dot products of 16."""


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("isa", SETS)
def test_default_schedules_of_integers_keep_the_meaning(
    isa: str, name: str, rng: np.random.Generator
) -> None:
    func = KERNELS[name]()
    trace = default_trace(func, ISAS[isa])
    scheduled = apply_trace(func, trace)
    if isa == "helium":
        notes = [dict(s.notes) for s in walk_stmt(scheduled.body) if isinstance(s, Loop)]
        used = {n["intrinsic"] for n in notes if "intrinsic" in n}
        assert used == {WANTED.get(name, "mve_dot16_s8s8")} - {""}
    arrays = {}
    for buffer in func.inputs:
        low, high = (-128, 128) if buffer.dtype == "int8" else (-(2**20), 2**20)
        arrays[buffer.name] = rng.integers(low, high, buffer.shape).astype(buffer.dtype)
    want = interpret(func, arrays, exact=False)
    found = interpret(scheduled, laid_out(arrays, trace), exact=False)
    for out in func.outputs:
        np.testing.assert_array_equal(found[out.name], want[out.name], err_msg=str(trace))
