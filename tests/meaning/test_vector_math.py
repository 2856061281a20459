"""exp, sigmoid and tanh in vectors keep the error that nst_simd.h states."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.paths import RUNTIME_C

# (instruction set, suffix, lanes, compiler, flags, how to run it, CPU feature)
SETS = {
    "avx512": ("f32x16", 16, "gcc", ["-mavx512f", "-mavx512dq", "-mfma"], [], "AVX-512"),
    "avx2": ("f32x8", 8, "gcc", ["-mavx2", "-mfma"], [], "AVX2"),
    "neon": ("f32x4", 4, "aarch64-linux-gnu-gcc", ["-static"], ["qemu-aarch64"], ""),
}
# Largest error in units in the last place: what nst_simd.h promises.
LIMITS = {"exp": 1.5, "sigmoid": 2.5, "tanh": 2.0}

SOURCE = r"""
#include <stdio.h>
#include <string.h>
#include "nst_simd.h"

static double reference(int which, double x) {
    if (which == 0) return exp(x);
    if (which == 1) return 1.0 / (1.0 + exp(-x));
    return tanh(x);
}

/* Distance of y from the exact value in units of the last place of a float of its size. */
static double ulps(float y, double exact) {
    const float near = (float)exact;
    if (near == y || (near != near && y != y)) return 0.0;
    int e;
    (void)frexp(exact, &e);
    const double unit = ldexp(1.0, e - 24 < -149 ? -149 : e - 24);
    return fabs((double)y - exact) / unit;
}

int main(void) {
    static float in[LANES], out[LANES];
    for (int which = 0; which < 3; ++which) {
        double worst = 0.0;
        float at = 0.0f;
        uint32_t bits = 0u;
        int done = 0;
        while (!done) {
            for (int i = 0; i < LANES; ++i) {
                memcpy(&in[i], &bits, 4);
                if (!(in[i] == in[i]) || in[i] - in[i] != 0.0f) in[i] = 0.0f;
                const uint32_t next = bits + STRIDE;
                done |= next < bits;
                bits = next;
            }
            switch (which) {
            case 0: STORE(out, EXP(LOAD(in))); break;
            case 1: STORE(out, SIGMOID(LOAD(in))); break;
            default: STORE(out, TANH(LOAD(in))); break;
            }
            for (int i = 0; i < LANES; ++i) {
                const double exact = reference(which, (double)in[i]);
                if (fabs(exact) > 3.4028235677973366e38) {
                    if (out[i] <= 3.4e38f) { worst = 1e9; at = in[i]; }
                    continue;
                }
                const double e = ulps(out[i], exact);
                if (e > worst) { worst = e; at = in[i]; }
            }
        }
        printf("%d %.3f %.9g\n", which, worst, (double)at);
    }
    const float special[3] = {INFINITY, -INFINITY, NAN};
    for (int s = 0; s < 3; ++s) {
        for (int i = 0; i < LANES; ++i) in[i] = special[s];
        STORE(out, EXP(LOAD(in)));
        printf("%g ", (double)out[LANES - 1]);
        STORE(out, SIGMOID(LOAD(in)));
        printf("%g ", (double)out[0]);
        STORE(out, TANH(LOAD(in)));
        printf("%g\n", (double)out[0]);
    }
    return 0;
}
"""

LOAD_STORE = {
    "avx512": ("_mm512_loadu_ps(p)", "_mm512_storeu_ps(p, v)"),
    "avx2": ("_mm256_loadu_ps(p)", "_mm256_storeu_ps(p, v)"),
    "neon": ("vld1q_f32(p)", "vst1q_f32(p, v)"),
}


def sweep(name: str, stride: int, folder: Path, need_tool: Callable[[str], str]) -> list[str]:
    """Build the sweep for an instruction set, run it, and return its lines."""
    suffix, lanes, compiler, flags, launcher, _ = SETS[name]
    need_tool(compiler)
    for tool in launcher:
        need_tool(tool)
    load, store = LOAD_STORE[name]
    source = folder / "sweep.c"
    source.write_text(
        f"#define LANES {lanes}\n#define STRIDE {stride}u\n#define LOAD(p) {load}\n"
        f"#define STORE(p, v) {store}\n#define EXP nst_exp_{suffix}\n"
        f"#define SIGMOID nst_sigmoid_{suffix}\n#define TANH nst_tanh_{suffix}\n" + SOURCE
    )
    program = folder / "sweep"
    subprocess.run(
        [compiler, "-O2", "-std=c99", *flags, f"-I{RUNTIME_C / 'include'}", str(source),
         "-o", str(program), "-lm"],
        check=True,
    )  # fmt: skip
    done = subprocess.run(
        [*launcher, str(program)], capture_output=True, text=True, check=True, timeout=3000
    )
    return done.stdout.splitlines()


def check(lines: list[str]) -> None:
    for line, (name, limit) in zip(lines[:3], LIMITS.items(), strict=True):
        _, worst, at = line.split()
        assert float(worst) <= limit, f"{name}({at}) is {worst} ULP off; {limit} are promised"
    assert lines[3].split() == ["inf", "1", "1"]
    assert lines[4].split() == ["0", "0", "-1"]
    assert {v.lstrip("-") for v in lines[5].split()} == {"nan"}


@pytest.mark.parametrize("name", SETS)
def test_vector_functions_keep_their_stated_error(
    name: str,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:
    if SETS[name][5]:
        need_cpu(SETS[name][5])
    stride = 4_001 if name != "neon" else 40_009
    check(sweep(name, stride, tmp_path, need_tool))


@pytest.mark.full
@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_vector_functions_keep_their_stated_error_on_every_float(
    name: str,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:
    need_cpu(SETS[name][5])
    check(sweep(name, 1, tmp_path, need_tool))
