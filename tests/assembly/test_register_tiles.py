"""Register tiles of the default schedule: multiply-adds of whole vectors, no stack in the loop."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.assembly.listing import count, loop_with, spills
from tests.meaning.batch import Batch
from toolkit.codegen.render import environment
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.expr import all_of, Expr
from toolkit.ir.loop import PrimFunc
from toolkit.paths import RUNTIME_C
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.schedule.examples import matmul
from toolkit.targets.target import TARGETS


def conv(size: int, channels: int, outputs: int, kernel: int) -> PrimFunc:
    """Return a convolution with the channel last, padded to keep its size, and a bias."""
    x = T.placeholder((size, size, channels), "float32", "x")
    # The values do not matter: they say that these are known when compiling.
    w = T.placeholder((kernel, kernel, channels, outputs), "float32", "w", data=0)
    b = T.placeholder((outputs,), "float32", "b", data=0)
    taps = [T.reduce_axis(kernel, "kh"), T.reduce_axis(kernel, "kw")] if kernel > 1 else []
    c = T.reduce_axis(channels, "c")

    def element(h: Expr, v: Expr, o: Expr) -> Any:
        kh, kw = taps or (h - h, v - v)
        i, j = h + kh - kernel // 2, v + kw - kernel // 2
        tests = (i >= 0, i < size, j >= 0, j < size) if kernel > 1 else ()
        return T.sum(x[i, j, c] * w[kh, kw, c, o], [*taps, c], where=all_of(*tests))

    t = T.compute((size, size, outputs), element, "t")
    return build([T.compute(t.shape, lambda h, v, o: t[h, v, o] + b[o], "y")], [x, w, b])


KERNELS: dict[str, Callable[[], PrimFunc]] = {
    "matmul": lambda: matmul(512, 512, 512),
    "conv_3x3": lambda: conv(56, 64, 64, 3),
    "conv_1x1": lambda: conv(28, 128, 256, 1),
}
TILES = {
    "x86-64-v3": ("gcc", r"vfmadd\d+ps\s.*%ymm", 12),
    "x86-64-v4": ("gcc", r"vfmadd\d+ps\s.*%zmm", 16),
    "aarch64": ("aarch64-linux-gnu-gcc", r"fmla\s+v\d+\.4s", 16),
}
"""Compiler, multiply-add, and how many a step of a tile has at least."""


@pytest.mark.parametrize("target", TILES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_inner_loop_is_vector_multiply_adds_without_spills(
    kernel: str, target: str, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    compiler, fma, least = TILES[target]
    isa = TARGETS[target].isa
    func = KERNELS[kernel]()
    batch = Batch()
    batch.add(apply_trace(func, default_trace(func, isa, exact=True)), (), isa)
    pragma = environment().get_template("c/arm_gcc.j2").render()
    (tmp_path / "k.c").write_text(pragma + batch.text())
    subprocess.run(
        [need_tool(compiler), "-O3", "-std=c99", *TARGETS[target].cflags,
         f"-I{RUNTIME_C / 'include'}", "-S", str(tmp_path / "k.c"), "-o", str(tmp_path / "k.s")],
        check=True,
    )  # fmt: skip
    body = loop_with((tmp_path / "k.s").read_text(), fma)
    adds = count(body, fma)
    assert adds >= least, "\n".join(body)
    assert not spills(body), "\n".join(body)
    # What is not a multiply-add loads its operands, once each, or counts.
    assert len(body) <= 2.2 * adds, "\n".join(body)
