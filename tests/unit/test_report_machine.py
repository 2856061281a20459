"""What a core can do at best is measured by C that is clean, and by kernels of the right work."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from toolkit.measure.candidates.host import HostMeasurer
from toolkit.measure.candidates.machine import buffer_sizes, CHAINS, fma_flops, STEPS, vector_bytes
from toolkit.paths import RUNTIME_C
from toolkit.targets.target import get_target, TARGETS
from toolkit.toolchain.compiler import build_shared, find_compiler

SOURCE = RUNTIME_C / "port" / "host" / "nst_machine.c"
STRICT = (
    "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow",
    "-Wcast-qual", "-Wmissing-prototypes", "-Wundef", "-Wvla", "-Werror",
)  # fmt: skip


@pytest.mark.parametrize("compiler", ["gcc", "clang", "aarch64-linux-gnu-gcc"])
def test_it_compiles_without_a_warning(compiler: str, need_tool: Callable[[str], str]) -> None:
    done = subprocess.run(
        [
            need_tool(compiler), *STRICT, "-O3", "-ffp-contract=fast", "-DNST_MACHINE_BYTES=16",
            f"-I{SOURCE.parent}", "-c", "-o", "/dev/null", str(SOURCE),
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.needs("gcc")
def test_its_kernels_do_all_that_is_counted(tmp_path: Path) -> None:
    width = 16
    library = ctypes.CDLL(str(build_shared(
        find_compiler(), [SOURCE], [SOURCE.parent], tmp_path / "m.so",
        flags=("-O3", f"-DNST_MACHINE_BYTES={width}"),
    )))  # fmt: skip
    scale, shift = np.float32(0.999), np.float32(0.25)
    data = np.array([scale, shift, 0], np.float32)
    library.nst_machine_fma((ctypes.c_void_p * 1)(data.ctypes.data))
    chains = shift * np.arange(CHAINS, dtype=np.float64)
    for _ in range(STEPS):
        chains = chains * float(scale) + float(shift)
    # Rounded 4096 times, each by half a unit in the last place, and damped.
    assert data[2] == pytest.approx(chains.sum(), rel=1e-3)

    buffer = np.zeros(8 * width * 10, np.uint8)
    buffer.view(np.float32)[:: width // 4] = np.arange(80)
    size = np.array([buffer.nbytes, 0], np.uint64)
    library.nst_machine_read((ctypes.c_void_p * 2)(buffer.ctypes.data, size.ctypes.data))
    assert size[1:].view(np.float32)[0] == np.arange(80).sum()


def test_buffers_lie_in_the_memory_they_are_named_after() -> None:
    for target in TARGETS.values():
        sizes = buffer_sizes(target)
        whole = 8 * vector_bytes(target)
        assert all(size and size % whole == 0 for size in sizes.values())
        assert sizes["DRAM"] > 4 * target.l2_bytes - whole
        assert sizes.get("L1", 0) <= target.l1_bytes
        assert fma_flops(target) == 2 * CHAINS * STEPS * vector_bytes(target) // 4


@pytest.mark.needs("gcc")
def test_a_measurer_knows_its_machine(tmp_path: Path) -> None:
    with HostMeasurer(get_target("host"), cache_dir=tmp_path) as measurer:
        machine = measurer.machine()
        assert machine is not None
        assert machine.flops > 0
        assert set(machine.bandwidth) >= {"DRAM"}
        assert all(rate > 0 for rate in machine.bandwidth.values())
        again = measurer.machine()  # the process that measures goes on
        assert again is not None
