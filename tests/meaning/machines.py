"""What runs a test program of each instruction set: this processor, or one that QEMU has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.meaning.batch import Batch
from toolkit import doctor

BARE_METAL = Path(__file__).parent / "bare_metal"


@dataclass(frozen=True)
class Machine:
    """`compiler` and `runner`: commands, the runner's empty on this processor.  `cpu`: a feature
    of `doctor.CPU_FEATURES` that is needed."""

    compiler: tuple[str, ...]
    runner: tuple[str, ...] = ()
    cpu: str = ""


def _cortex(script: str, machine: str, *flags: str) -> Machine:
    compiler = (
        "arm-none-eabi-gcc", "-mthumb", "-mfloat-abi=hard", *flags, "--specs=rdimon.specs",
        "-nostartfiles", f"-L{BARE_METAL}", f"-T{BARE_METAL / script}",
        str(BARE_METAL / "start.c"),
    )  # fmt: skip
    runner = (
        "qemu-system-arm", "-M", machine, "-display", "none", "-monitor", "none", "-serial",
        "none", "-semihosting-config", "enable=on,target=native", "-kernel",
    )  # fmt: skip
    return Machine(compiler, runner)


_AARCH64 = ("aarch64-linux-gnu-gcc", "-static")
MACHINES: dict[str, Machine] = {
    "scalar": Machine(("gcc",)),
    "avx2": Machine(("gcc", "-march=x86-64-v3"), cpu="AVX2"),
    "avxvnni": Machine(("gcc", "-march=x86-64-v3", "-mavxvnni"), cpu="AVX-VNNI"),
    "avxvnni by avx512": Machine(
        (
            "gcc",
            "-march=x86-64-v4",
            "-mavx512vnni",
            "-include",
            str(Path(__file__).parent / "avxvnni_by_avx512.h"),
        ),
        cpu="AVX-512 VNNI",
    ),
    "avx512": Machine(("gcc", "-march=x86-64-v4"), cpu="AVX-512"),
    "avx512vnni": Machine(("gcc", "-march=x86-64-v4", "-mavx512vnni"), cpu="AVX-512 VNNI"),
    "neon": Machine((*_AARCH64, "-march=armv8-a"), ("qemu-aarch64",)),
    "neon_dot": Machine((*_AARCH64, "-march=armv8.2-a+dotprod"), ("qemu-aarch64",)),
    "armv7em": _cortex("mps2.ld", "mps2-an386", "-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16"),
    "helium": _cortex("mps3.ld", "mps3-an547", "-mcpu=cortex-m55"),
}


def machine_of(isa: str) -> Machine:
    """Return what runs an instruction set here, or else what it needs."""
    machine = MACHINES[isa]
    if isa == "avxvnni" and machine.cpu not in doctor.cpu_features():
        return MACHINES["avxvnni by avx512"]
    return machine


def run_on(
    isa: str,
    batch: Batch,
    calls: Sequence[tuple[int, Mapping[str, np.ndarray]]],
    folder: Path,
    need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
    flags: Sequence[str] = ("-O2",),
) -> list[dict[str, np.ndarray]]:
    """Build a batch for an instruction set and call its kernels; skip where nothing runs it."""
    machine = machine_of(isa)
    if machine.cpu:
        need_cpu(machine.cpu)
    for tool in (machine.compiler[0], *machine.runner[:1]):
        need_tool(tool)
    return batch.run_program(calls, folder, [*machine.compiler, *flags], machine.runner)
