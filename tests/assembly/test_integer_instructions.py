"""Integer products use the instructions that are promised, and keep their tiles in registers."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.assembly.listing import count, loop_with, spills
from tests.integer_kernels import Kernel, KERNELS
from tests.meaning.batch import Batch
from tests.meaning.machines import MACHINES, run_on
from tests.meaning.test_random_kernels import laid_out
from toolkit.codegen.render import environment
from toolkit.paths import RUNTIME_C
from toolkit.schedule.default import apply_trace
from toolkit.targets.isas import ISAS
from toolkit.toolchain.compiler import STRICT_FLAGS

IDS = [f"{k.isa}-{n}" for n, k in enumerate(KERNELS)]


def printed(kernel: Kernel) -> Batch:
    """A batch of one kernel, scheduled."""
    batch = Batch()
    batch.add(apply_trace(kernel.func, kernel.trace), (), ISAS[kernel.isa])
    return batch


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_the_inner_loop_is_the_promised_instruction_without_spills(
    kernel: Kernel, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    machine = MACHINES[kernel.isa]
    compiler = [need_tool(machine.compiler[0]), *(f for f in machine.compiler if f[:2] == "-m")]
    pragma = environment().get_template("c/arm_gcc.j2").render()
    (tmp_path / "k.c").write_text(pragma + printed(kernel).text())
    subprocess.run(
        [*compiler, "-O2", "-std=c99", *STRICT_FLAGS, f"-I{RUNTIME_C / 'include'}", "-S",
         str(tmp_path / "k.c"), "-o", str(tmp_path / "k.s")],
        check=True,
    )  # fmt: skip
    body = loop_with((tmp_path / "k.s").read_text(), kernel.instruction)
    text = "\n".join(body)
    assert count(body, kernel.instruction) == kernel.count, text
    assert not spills(body), text
    per_mac = len(body) / kernel.macs
    print(f"{kernel.isa}: {len(body)} instructions, {per_mac:.3f} a multiply-add")
    assert per_mac <= kernel.per_mac, text


@pytest.mark.parametrize("kernel", KERNELS, ids=IDS)
def test_the_kernels_compute_their_products(
    kernel: Kernel, rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    arrays = {}
    for buffer in kernel.func.inputs:
        info = np.iinfo(buffer.dtype)
        arrays[buffer.name] = rng.integers(
            info.min, info.max, buffer.shape, buffer.dtype, endpoint=True
        )
    call = 0, laid_out(arrays, kernel.trace)
    [found] = run_on(kernel.isa, printed(kernel), [call], tmp_path, need_tool, need_cpu)
    wide = {name: array.astype(np.int64) for name, array in arrays.items()}
    want = (wide["a"] @ wide["w"].T).astype(np.int32)  # sums of 16-bit products may wrap
    np.testing.assert_array_equal(found["c"], want)


TIMER = """
#define CONTROL (*(volatile uint32_t *)0x40000000u)
#define VALUE (*(volatile uint32_t *)0x40000004u)
#define RELOAD (*(volatile uint32_t *)0x4000000Cu)
"""
"""TIMER0 of the CMSDK (Arm DDI 0479, 4.3) counts down at 25 MHz."""


@pytest.mark.parametrize(
    "kernel", [k for k in KERNELS if k.isa == "armv7em"], ids=["s16", "s8", "s8 widened"]
)
def test_a_product_on_cortex_m4_takes_the_promised_instructions(
    kernel: Kernel, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    """The whole kernel, in instructions that QEMU counts: 64 ns each with -icount shift=6."""
    machine = MACHINES[kernel.isa]
    compiler = [need_tool(machine.compiler[0]), *machine.compiler[1:]]
    runner = [need_tool(machine.runner[0]), *machine.runner[1:-1], "-icount", "shift=6", "-kernel"]
    batch = printed(kernel)
    printed_kernel, operands = batch.kernels[0]
    buffers = (*operands.outputs, *operands.inputs, *printed_kernel.scratch)
    sizes = [b.storage.nbytes for b in buffers]
    memory = "".join(
        f"static uint8_t m{n}[{size}] NST_ALIGNED(4);\n" for n, size in enumerate(sizes)
    )
    pointers = ", ".join(f"m{n}" for n in range(len(sizes)))
    main = f"""#include <stdio.h>
int main(void) {{
    void *p[] = {{ {pointers} }};
    RELOAD = VALUE = 0xffffffffu;
    CONTROL = 1u;
    const uint32_t before = VALUE;
    call_0(p);
    printf("%u\\n", (unsigned)(before - VALUE));
    return 0;
}}
"""
    pragma = environment().get_template("c/arm_gcc.j2").render()
    (tmp_path / "k.c").write_text(pragma + batch.text() + TIMER + memory + main)
    subprocess.run(
        [*compiler, "-O2", "-std=c99", f"-I{RUNTIME_C / 'include'}", str(tmp_path / "k.c"),
         "-o", str(tmp_path / "k")],
        check=True,
    )  # fmt: skip
    done = subprocess.run(
        [*runner, str(tmp_path / "k")], capture_output=True, text=True, check=True, timeout=60
    )
    instructions = int(done.stdout) * 40 / 64
    macs = kernel.func.inputs[0].shape[0] * math.prod(kernel.func.inputs[1].shape)
    print(f"{instructions / macs:.3f} instructions a multiply-add")
    assert 1.0 < instructions / macs <= kernel.per_mac + 0.12  # tiles start and end


@pytest.mark.parametrize(("suffix", "vector"), [("i16x8", "int16x8_t"), ("i32x4", "int32x4_t")])
def test_more_streams_than_low_registers_assemble(
    suffix: str, vector: str, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    """Loads of Helium that widen take their address from r0..r7 only."""
    machine = MACHINES["helium"]
    names = [f"p{n}" for n in range(11)]
    lines = [f"v = vaddq(v, nst_next_int8_{suffix}(&{name}));" for name in names]
    (tmp_path / "k.c").write_text(
        f"""#include "nst_integer.h"
{vector} sum(const int8_t *const *p, {vector} v);
{vector} sum(const int8_t *const *p, {vector} v) {{
    const int8_t {", ".join(f"*{name} = p[{n}]" for n, name in enumerate(names))};
    for (int i = 0; i < 100; ++i) {{ {" ".join(lines)} }}
    return v;
}}
"""
    )
    compiler = [need_tool(machine.compiler[0]), *(f for f in machine.compiler if f[:2] == "-m")]
    subprocess.run(
        [*compiler, "-O2", "-std=c99", f"-I{RUNTIME_C / 'include'}", "-c", str(tmp_path / "k.c"),
         "-o", str(tmp_path / "k.o")],
        check=True,
    )  # fmt: skip
