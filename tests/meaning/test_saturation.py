"""Values limited to bytes, and high words of long sums: in C as they are defined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.meaning.batch import Batch
from tests.meaning.machines import run_on
from tests.meaning.test_random_kernels import check_same
from toolkit.codegen.lines import flatten
from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder
from toolkit.ir.expr import binary, cast, const, Expr, maximum, minimum
from toolkit.ir.interp import interpret
from toolkit.ir.loop import PrimFunc
from toolkit.ir.types import int_range
from toolkit.targets.isas import ISAS

N = 64


def limited(value: Expr, dtype: str) -> Expr:
    low, high = int_range(dtype)
    return cast(minimum(maximum(value, low), high), dtype)


def shifted(dtype: str, bits: int) -> PrimFunc:
    """y = x >> bits, limited."""
    x = placeholder((N,), "int32", "x")
    return build(
        [
            compute(
                (N,),
                lambda i: limited(
                    binary("shr", x[i], const(bits, "int32")) if bits else x[i], dtype
                ),
                "y",
            )
        ],
        [x],
    )


def long_sum(dtype: str, bits: int) -> PrimFunc:
    """y = (a * b + c) >> bits, c of 64 bits, limited."""
    a, b = placeholder((N,), "int32", "a"), placeholder((N,), "int32", "b")
    c = placeholder((N,), "int64", "c")

    def element(i: Expr) -> Expr:
        total = cast(a[i], "int64") * cast(b[i], "int64") + c[i]
        word = cast(binary("shr", total, const(bits, "int64")), "int32")
        return limited(word, dtype) if dtype != "int32" else word

    return build([compute((N,), element, "y")], [a, b, c])


def extremes(func: PrimFunc, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Values near 0, near the limits of bytes, and near those of their types."""
    arrays = {}
    for buffer in func.inputs:
        low, high = int_range(buffer.dtype)
        near = rng.integers(-300, 300, buffer.shape, buffer.dtype)
        far = rng.integers(low, high, buffer.shape, buffer.dtype, endpoint=True)
        edge = np.array([low, high, 0, -1], buffer.dtype)[rng.integers(0, 4, buffer.shape)]
        arrays[buffer.name] = np.choose(rng.integers(0, 3, buffer.shape), [near, far, edge])
    return arrays


@pytest.mark.parametrize("isa", ["scalar", "armv7em"])
def test_limited_values_are_the_same_in_c(
    isa: str, rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    batch = Batch()
    calls, checks = [], []
    for dtype in ("int8", "uint8", "int32"):
        funcs = [long_sum(dtype, bits) for bits in (32, 33, 38, 62, 63)]
        if dtype != "int32":
            funcs += [shifted(dtype, bits) for bits in (0, 1, 7, 30, 31)]
        for func in funcs:
            number = batch.add(func, (), ISAS[isa])
            text = "\n".join(line.text for line in flatten(batch.kernels[number][0].lines))
            assert ("nst_saturate_" in text) == (dtype != "int32"), text
            assert ("nst_long_sum(" in text) == (len(func.inputs) == 3), text
            arrays = extremes(func, rng)
            calls.append((number, arrays))
            checks.append((func, interpret(func, arrays)))
    found = run_on(isa, batch, calls, tmp_path, need_tool, need_cpu)
    for (func, want), got in zip(checks, found, strict=True):
        check_same(want, got, "in C", func)
