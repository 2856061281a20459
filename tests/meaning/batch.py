"""Many printed kernels in one C file, one compiler call, called on NumPy arrays through cffi."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cffi
import numpy as np

from tests.meaning.dags import OPAQUE_C
from toolkit.codegen.kernel import CKernel, print_kernel
from toolkit.codegen.render import environment
from toolkit.ir.loop import PrimFunc
from toolkit.paths import RUNTIME_C
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS
from toolkit.toolchain.compiler import STRICT_FLAGS

GUARD = 64
GUARD_BYTE = 0xA5


@dataclass
class Batch:
    """Collects kernels; `build` compiles them together; `run` calls one."""

    kernels: list[tuple[CKernel, PrimFunc]] = field(default_factory=list)
    lib: Any = None
    ffi: Any = None

    def add(self, func: PrimFunc, comment: Sequence[str] = (), isa: Isa = ISAS["scalar"]) -> int:
        """Print a scheduled function; return its number."""
        number = len(self.kernels)
        self.kernels.append((print_kernel(func, f"k{number}", tuple(comment), isa), func))
        return number

    def text(self) -> str:
        """Return the C file."""
        macro: Any = environment().get_template("c/kernel.c.j2").module
        parts = ['#include "nst_kernels.h"', '#include "nst_simd.h"', OPAQUE_C]
        for number, (kernel, _) in enumerate(self.kernels):
            parts.append(macro.kernel_text(kernel))
            args = ", ".join(
                f"({'const ' if p.const else ''}{p.c_type} *)p[{i}]"
                for i, p in enumerate(kernel.params)
            )
            parts.append(
                f"void call_{number}(void *const *p);\n"
                f"void call_{number}(void *const *p) {{\n    {kernel.name}({args});\n}}\n"
            )
        return "\n".join(parts)

    def build(
        self,
        folder: Path,
        compiler: str = "gcc",
        flags: Sequence[str] = ("-O1",),
        strict: Sequence[str] = STRICT_FLAGS,
    ) -> None:
        """Compile all kernels and load them."""
        source, library = folder / "batch.c", folder / "batch.so"
        source.write_text(self.text(), encoding="utf-8")
        done = subprocess.run(
            [compiler, "-std=c99", "-ffp-contract=off", "-shared", "-fPIC", *strict, *flags,
             f"-I{RUNTIME_C / 'include'}", str(source), "-o", str(library), "-lm"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[:4000]
        self.ffi = cffi.FFI()
        self.ffi.cdef(
            "\n".join(f"void call_{n}(void *const *p);" for n in range(len(self.kernels)))
        )
        self.lib = self.ffi.dlopen(str(library))

    def run(self, number: int, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Call a kernel; assert that it wrote nothing outside its outputs and scratch."""
        kernel, func = self.kernels[number]
        pointers, keep, written = [], [], []
        for buffer in (*func.outputs, *func.inputs, *kernel.scratch):
            raw = np.full(buffer.type.nbytes + 2 * GUARD, GUARD_BYTE, dtype=np.uint8)
            if buffer.name in inputs:
                data = np.asarray(inputs[buffer.name])
                assert (data.shape, str(data.dtype)) == (buffer.shape, buffer.dtype), buffer
                raw[GUARD : len(raw) - GUARD] = np.frombuffer(data.tobytes(), np.uint8)
            keep.append(raw)
            written.append((buffer, raw, raw.copy()))
            pointers.append(self.ffi.cast("void *", raw.ctypes.data + GUARD))
        getattr(self.lib, f"call_{number}")(self.ffi.new("void *[]", pointers))
        result = {}
        outputs = {b.name for b in func.outputs}
        constant = {b.name for b in func.inputs}
        for buffer, raw, before in written:
            assert np.all(raw[:GUARD] == GUARD_BYTE), f"wrote before {buffer.name}"
            assert np.all(raw[len(raw) - GUARD :] == GUARD_BYTE), f"wrote behind {buffer.name}"
            if buffer.name in constant:
                assert np.array_equal(raw, before), f"wrote its input {buffer.name}"
            if buffer.name in outputs:
                data = raw[GUARD : len(raw) - GUARD].tobytes()
                array = np.frombuffer(data, np.dtype(buffer.dtype))
                result[buffer.name] = array.reshape(buffer.shape)
        return result
