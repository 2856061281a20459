"""Every intrinsic of every instruction set does what its written meaning says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.meaning.machines import MACHINES
from toolkit.paths import RUNTIME_C
from toolkit.targets.isa import Intrinsic, VectorType
from toolkit.targets.isas import ISAS

APART = {
    "load",
    "store",
    "load_n",
    "store_n",
    "fill_n",
    "set1",
    "zero",
    "map",
    "from_int32",
    "fma_n",
    "fma_lane",
}
"""Not functions of whole vectors alone: tested by themselves below."""
LOOSE = {"hsum": 1e-6, "fma": 2e-7}
"""Relative error allowed where the meaning is computed in double and rounded once; functions that
stand in for those of <math.h> state theirs."""

CASES = [(name, "float32") for name in ("avx512", "avx2", "neon", "helium")]
"""Of equal tables of vectors, one: sets that only add tensor intrinsics share theirs."""


def test_every_table_of_vectors_is_run() -> None:
    run = [ISAS[name].vectors["float32"] for name, _ in CASES]
    for isa in ISAS.values():
        if "float32" in isa.vectors:
            assert any(isa.vectors["float32"] is table for table in run), isa.name


def arity(intrinsic: Intrinsic) -> int:
    """Number of vector operands: the placeholders of the C text."""
    return 1 + max(int(c) for c in "0123" if "{" + c + "}" in intrinsic.c)


def source(vector: VectorType, c_type: str) -> str:
    """A program that reads four vectors and prints the bits of every result."""
    load, store = vector.ops["load"].c, vector.ops["store"].c
    lines = [
        "#include <stdio.h>\n#include <stdlib.h>", '#include "nst_simd.h"',
        f"#define L {vector.lanes}",
        f"static {c_type} in[4][L], out[L + 8];",
        "static void show(void) {",
        "for (int i = 0; i < L; ++i) printf(\"%.9g \", (double)out[i]);",
        "puts(\"\"); }",
        "static float twice(float x) { return 2.0f * x; }",
        "int main(void) {",
        "for (int v = 0; v < 4; ++v) for (int i = 0; i < L; ++i) { char w[64];",
        "if (scanf(\"%63s\", w) != 1) return 2; in[v][i] = (float)strtod(w, 0); }",
        f"{vector.c_type} a = {load.format('in[0]')}, b = {load.format('in[1]')},",
        f"c = {load.format('in[2]')}, d = {load.format('in[3]')};",
    ]  # fmt: skip
    for name, op in vector.ops.items():
        if name in APART:
            continue
        text = op.c.format("a", "b", "c", "d")
        if name.startswith("h"):
            lines.append(f"for (int i = 0; i < L; ++i) out[i] = {text};")
        else:
            lines.append(store.format("out", text) + ";")
        lines.append("show();")
    lines.append(store.format("out", vector.ops["set1"].c.format("in[1][0]")) + "; show();")
    lines.append(store.format("out", vector.ops["zero"].c) + "; show();")
    if "fma_n" in vector.ops:
        text = vector.ops["fma_n"].c.format("a", "in[1][0]", "c")
        lines.append(store.format("out", text) + "; show();")
    for n in range(vector.lanes if "fma_lane" in vector.ops else 0):
        text = vector.ops["fma_lane"].c.format("a", "b", "c", n)
        lines.append(store.format("out", text) + "; show();")
    lines.append(store.format("out", vector.ops["map"].c.format("a", "twice")) + "; show();")
    lines.append("for (int n = 0; n <= L; ++n) {")
    lines.append(store.format("out", vector.ops["load_n"].c.format("in[0]", "n")) + "; show();")
    lines.append("for (int i = 0; i < L; ++i) out[i] = -1.0f;")
    lines.append(vector.ops["store_n"].c.format("out", "a", "n") + "; show();")
    lines.append(store.format("out", vector.ops["fill_n"].c.format("a", "n", "7.0f")) + "; show();")
    lines.append("} return 0; }")
    return "\n".join(lines)


def values(rng: np.random.Generator, lanes: int) -> np.ndarray:
    """Four vectors: mixed sizes, equal elements between them, zeros of both signs."""
    rows = (rng.standard_normal((4, lanes)) * 10.0 ** rng.integers(-2, 2, (4, lanes))).astype(
        np.float32
    )
    rows[1, 0] = rows[0, 0]
    rows[0, 1], rows[1, 1] = 0.0, -0.0
    rows[0, 2], rows[0, 3] = 2.5, -3.5
    return rows


@pytest.mark.parametrize(("isa", "dtype"), CASES)
def test_intrinsics_do_what_their_meaning_says(
    isa: str,
    dtype: str,
    tmp_path: Path,
    rng: np.random.Generator,
    need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:
    machine = MACHINES[isa]
    if machine.cpu:
        need_cpu(machine.cpu)
    for tool in (machine.compiler[0], *machine.runner[:1]):
        need_tool(tool)
    vector = ISAS[isa].vectors[dtype]
    (tmp_path / "t.c").write_text(source(vector, "float"))
    subprocess.run(
        [*machine.compiler, "-O1", "-std=c99", f"-I{RUNTIME_C / 'include'}", str(tmp_path / "t.c"),
         "-o", str(tmp_path / "t"), "-lm"],
        check=True,
    )  # fmt: skip
    for special in (False, True):
        rows = values(rng, vector.lanes)
        if special:
            rows[0, 0], rows[1, 2], rows[2, 1] = np.nan, np.nan, np.inf
        done = subprocess.run(
            [*machine.runner, str(tmp_path / "t")],
            input=" ".join(str(float(x)) for x in rows.reshape(-1)),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        lines = iter(done.stdout.splitlines())

        def row(lines: Iterator[str] = lines) -> np.ndarray:
            return np.array([float(w) for w in next(lines).split()], np.float32)

        for name, op in vector.ops.items():
            if name in APART:
                continue
            if special and name in ("max", "min"):
                row()  # which operand a NaN gives is the vector's own; the printer uses literals
                continue
            used = rows[: arity(op)]
            with np.errstate(all="ignore"):
                want = np.asarray(op.meaning(*used.astype(np.float64)), np.float64).astype(
                    np.float32
                )
            want = np.broadcast_to(want, (vector.lanes,))
            rtol = LOOSE.get(name, op.ulps * 2**-23)
            np.testing.assert_allclose(row(), want, rtol=rtol, atol=0, err_msg=name)
        a = rows[0]
        np.testing.assert_array_equal(row(), np.full(vector.lanes, rows[1, 0]))
        np.testing.assert_array_equal(row(), np.zeros(vector.lanes))
        if "fma_n" in vector.ops:
            exact = rows[0].astype(np.float64) * rows[1, 0] + rows[2]
            np.testing.assert_allclose(row(), exact, rtol=LOOSE["fma"], atol=0)
        for n in range(vector.lanes if "fma_lane" in vector.ops else 0):
            exact = vector.ops["fma_lane"].meaning(*rows[:3].astype(np.float64), n)
            np.testing.assert_allclose(row(), exact, rtol=LOOSE["fma"], atol=0)
        np.testing.assert_array_equal(row(), 2 * a)
        for n in range(vector.lanes + 1):
            before = np.arange(vector.lanes) < n
            np.testing.assert_array_equal(row(), np.where(before, a, 0))
            np.testing.assert_array_equal(row(), np.where(before, a, np.float32(-1)))
            np.testing.assert_array_equal(row(), np.where(before, a, np.float32(7)))
