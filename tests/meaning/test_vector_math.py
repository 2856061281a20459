"""exp, sigmoid, tanh, erf, log and log1p in vectors keep the error that their tables state."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.meaning.machines import MACHINES
from toolkit.paths import RUNTIME_C
from toolkit.targets.isas import ISAS

SETS = ("avx512", "avx2", "neon", "helium")
FLUSHING = {"helium"}
"""Vectors of these take denormals for zeros (Armv8-M Arm ARM, MVE: the standard FPSCR value)."""

REFERENCE = {
    "exp": "exp(x)",
    "sigmoid": "1.0 / (1.0 + exp(-x))",
    "tanh": "tanh(x)",
    "erf": "erf(x)",
    "log": "log(x)",
    "log1p": "log1p(x)",
}
"""The exact value, in double, of each function."""

SPECIAL = ("INFINITY", "-INFINITY", "NAN", "0.0f", "-0.0f", "-1.0f", "1e-45f", "-1e-45f")
"""Inputs whose results are printed as well, to be compared with those of double, sign included."""

SOURCE = r"""
#include <float.h>
#include <stdio.h>
#include <string.h>
#include "nst_simd.h"

static float taken(float x) {
    return FLUSHING && fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x;
}

/* Distance of y from the exact value in units of the last place of a float of its size. */
static double ulps(float y, double exact) {
    const float near = (float)exact;
    if (near == y || (near != near && y != y)) return 0.0;
    if (FLUSHING && y == 0.0f && fabs(exact) < (double)FLT_MIN) return 0.0;
    if (fabs(exact) > 3.4028235677973366e38) return fabs((double)y) > 3.4e38 ? 0.0 : 1e9;
    if (!(y - y == 0.0f)) return 1e9;
    int e;
    (void)frexp(exact, &e);
    const double unit = ldexp(1.0, e - 24 < -149 ? -149 : e - 24);
    return fabs((double)y - exact) / unit;
}
"""

FUNCTION = r"""
static double exact_NAME(double x) { return REFERENCE; }

static void sweep_NAME(void) {
    static const float special[] = {SPECIAL};
    float in[LANES], out[LANES];
    double worst = 0.0;
    float at = 0.0f;
    uint32_t bits = 0u;
    int done = 0;
    while (!done) {
        for (int i = 0; i < LANES; ++i) {
            memcpy(&in[i], &bits, 4);
            in[i] = taken(in[i]);
            const uint32_t next = bits + STRIDE;
            done |= next < bits;
            bits = next;
        }
        STORE(out, CALL(LOAD(in)));
        for (int i = 0; i < LANES; ++i) {
            const double e = ulps(out[i], exact_NAME((double)in[i]));
            if (!(e <= worst)) { worst = e; at = in[i]; }
        }
    }
    printf("NAME %.3f %.9g", worst, (double)at);
    for (unsigned s = 0; s < sizeof special / sizeof special[0]; ++s) {
        const float x = taken(special[s]);
        for (int i = 0; i < LANES; ++i) in[i] = x;
        STORE(out, CALL(LOAD(in)));
        printf(" %g:%g", (double)out[LANES - 1], (double)(float)exact_NAME((double)x));
    }
    puts("");
}
"""


def program(isa: str, names: Sequence[str], stride: int) -> str:
    """C text that sweeps functions over floats `stride` apart, NaN and infinities too."""
    vector = ISAS[isa].vectors["float32"]
    text = SOURCE
    for name in names:
        reference = REFERENCE[name]
        part = FUNCTION.replace("NAME", name).replace("REFERENCE", reference)
        part = part.replace("CALL(LOAD(in))", vector.ops[name].c.format("LOAD(in)"))
        text += part.replace("SPECIAL", ", ".join(SPECIAL))
    text = text.replace("LOAD(in)", vector.ops["load"].c.format("in"))
    store = vector.ops["store"].c
    flushing = int(isa in FLUSHING)
    text = f"#define FLUSHING {flushing}\n#define STORE(p, v) {store.format('p', 'v')}\n" + text
    text = text.replace("LANES", str(vector.lanes)).replace("STRIDE", f"{stride}u")
    calls = "".join(f"sweep_{name}(); " for name in names)
    return text + f"int main(void) {{ {calls}return 0; }}\n"


def check(
    isa: str, names: Sequence[str], stride: int, folder: Path, need_tool: Callable[[str], str]
) -> None:
    """Build and run the sweep for an instruction set, and hold its lines to the tables."""
    machine = MACHINES[isa]
    for tool in (machine.compiler[0], *machine.runner[:1]):
        need_tool(tool)
    (folder / "sweep.c").write_text(program(isa, names, stride))
    subprocess.run(
        [*machine.compiler, "-O2", "-std=c99", f"-I{RUNTIME_C / 'include'}",
         str(folder / "sweep.c"), "-o", str(folder / "sweep"), "-lm"],
        check=True,
    )  # fmt: skip
    done = subprocess.run(
        [*machine.runner, str(folder / "sweep")],
        capture_output=True,
        text=True,
        check=True,
        timeout=3000,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(names)
    for line in lines:
        name, worst, at, *specials = line.split()
        limit = ISAS[isa].vectors["float32"].ops[name].ulps
        assert float(worst) <= limit, f"{name}({at}) is {worst} ULP off; {limit} are promised"
        for x, pair in zip(SPECIAL, specials, strict=True):
            found, wanted = map(float, pair.split(":"))
            same = math.isnan(found) and math.isnan(wanted)
            signs = math.copysign(1, found) == math.copysign(1, wanted)
            near = math.isclose(found, wanted, rel_tol=1e-5)
            assert same or (near and signs), f"{name}({x}) is {found}, not {wanted}"


def test_every_function_with_an_error_of_its_own_is_swept() -> None:
    for name in SETS:
        stated = {op for op, i in ISAS[name].vectors["float32"].ops.items() if i.ulps}
        assert stated == set(REFERENCE)


@pytest.mark.parametrize("name", SETS)
def test_vector_functions_keep_their_stated_error(
    name: str,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:
    if MACHINES[name].cpu:
        need_cpu(MACHINES[name].cpu)
    stride = 40_009 if MACHINES[name].runner else 4_001
    check(name, list(REFERENCE), stride, tmp_path, need_tool)


@pytest.mark.full
@pytest.mark.parametrize("function", REFERENCE)
@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_vector_functions_keep_their_stated_error_on_every_float(
    name: str,
    function: str,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:
    need_cpu(MACHINES[name].cpu)
    check(name, [function], 1, tmp_path, need_tool)
