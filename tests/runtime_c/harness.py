"""The serial server as a library of this computer: `server_harness.c`, built and declared once."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import cffi

from toolkit.paths import RUNTIME_C

SOURCES = [
    Path(__file__).with_name("server_harness.c"),
    RUNTIME_C / "src" / "nst.c",
    RUNTIME_C / "src" / "nst_rpc.c",
]
INCLUDE = f"-I{RUNTIME_C / 'include'}"
_DECLARATIONS = """
    void harness_start(uint32_t fault); void harness_power_up(uint32_t seed);
    void harness_clear(void);
    void harness_feed(const uint8_t *, uint32_t); uint32_t harness_take(uint8_t *, uint32_t);
    uint32_t harness_count(int); uint32_t harness_loaded(void); void harness_view(uint32_t *);
    uint32_t harness_state(uint8_t *); void harness_set_state(const uint8_t *);
"""


def build_harness(gcc: str, folder: Path) -> tuple[Any, cffi.FFI]:
    """Build the library with all commands; return it with what makes its arguments."""
    path = folder / "server.so"
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    command = [gcc, *flags, "-DNST_RPC_LOAD=1", INCLUDE, *map(str, SOURCES), "-o", str(path)]
    subprocess.run(command, check=True, timeout=120)
    ffi = cffi.FFI()
    ffi.cdef(_DECLARATIONS)
    return ffi.dlopen(str(path)), ffi
