"""Many printed kernels in one C file, one compiler call, called on NumPy arrays through cffi."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import pickle
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
from toolkit.ir.loop import Buffer, PrimFunc
from toolkit.lowering.kernels import pack_constant, packing
from toolkit.paths import RUNTIME_C
from toolkit.schedule.default import Trace
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS
from toolkit.toolchain.compiler import STRICT_FLAGS

GUARD_BYTE = 0xA5


def laid_out(arrays: Mapping[str, np.ndarray], trace: Trace) -> dict[str, np.ndarray]:
    """Return the inputs with constants in the layout that the steps of a trace gave them."""
    return {
        n: pack_constant(trace, n, arrays.__getitem__) if packing(trace, n) else a
        for n, a in arrays.items()
    }


@dataclass
class Batch:
    """Collects kernels; `build` compiles them together; `run` calls one."""

    kernels: list[tuple[CKernel, PrimFunc]] = field(default_factory=list)
    lib: Any = None
    ffi: Any = None

    def add(
        self, func: PrimFunc, comment: Sequence[str] = (), isa: Isa = ISAS["scalar"],
        threads: int = 1,
    ) -> int:  # fmt: skip
        """Print a scheduled function; return its number."""
        number = len(self.kernels)
        self.kernels.append((print_kernel(func, f"k{number}", tuple(comment), isa, threads), func))
        return number

    def text(self) -> str:
        """Return the C file."""
        macro: Any = environment().get_template("c/kernel.c.j2").module
        headers = ("nst_kernels.h", "nst_parallel.h", "nst_simd.h")
        parts = [*(f'#include "{header}"' for header in headers), OPAQUE_C]
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
        """Call a kernel; see `run_all`."""
        return self.run_all([(number, inputs)])[0]

    def run_all(
        self, calls: Sequence[tuple[int, Mapping[str, np.ndarray]]]
    ) -> list[dict[str, np.ndarray]]:
        """Call kernels in a child process; assert that they touch nothing but their operands.

        Each operand ends where its memory ends: what reads or writes beyond it, crashes.
        """
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            faulthandler.disable()  # a crash is an answer here, and no news
            with os.fdopen(there, "wb") as out:
                try:
                    for number, inputs in calls:
                        pickle.dump(number, out)
                        out.flush()
                        pickle.dump(self._call(number, inputs), out)
                except BaseException as error:  # noqa: BLE001 - the parent raises it
                    pickle.dump(error, out)
                finally:
                    out.flush()
                    os._exit(0)
        os.close(there)
        results, last = [], None
        with os.fdopen(here, "rb") as answers:
            for number, _ in calls:
                try:
                    last = pickle.load(answers)
                    assert last == number
                    found = pickle.load(answers)
                except (EOFError, pickle.UnpicklingError):
                    found = None
                if found is None or isinstance(found, BaseException):
                    break
                results.append(found)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if len(results) < len(calls):
            text = str(self.kernels[number][1])
            why = found if isinstance(found, BaseException) else f"it crashed ({status})"
            raise AssertionError(f"kernel k{number}: {why}\n{text}")
        return results

    def _call(self, number: int, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        kernel, func = self.kernels[number]
        operands, pointers = [], []
        for buffer in (*func.outputs, *func.inputs, *kernel.scratch):
            memory, view = _memory(buffer.storage.nbytes)
            if buffer.name in inputs:
                data = np.asarray(inputs[buffer.name])
                assert (data.shape, str(data.dtype)) == (buffer.shape, buffer.dtype), buffer
                view[:] = np.frombuffer(data.tobytes(), np.uint8)
            operands.append((buffer, memory, view, view.copy()))
            pointers.append(self.ffi.cast("void *", view.ctypes.data))
        getattr(self.lib, f"call_{number}")(self.ffi.new("void *[]", pointers))
        result = {}
        outputs = {b.name for b in func.outputs}
        constant = {b.name for b in func.inputs}
        for buffer, memory, view, before in operands:
            front = memory[: len(memory) - view.nbytes]
            assert np.all(front == GUARD_BYTE), f"wrote before {buffer.name}"
            if buffer.name in constant:
                assert np.array_equal(view, before), f"wrote its input {buffer.name}"
            if buffer.name in outputs:
                array = np.frombuffer(view.tobytes(), np.dtype(buffer.dtype))
                result[buffer.name] = array.reshape(buffer.shape)
        return result

    def run_program(
        self,
        calls: Sequence[tuple[int, Mapping[str, np.ndarray]]],
        folder: Path,
        compiler: Sequence[str],
        runner: Sequence[str] = (),
    ) -> list[dict[str, np.ndarray]]:
        """Call kernels in a program of their own, for another processor: `runner` starts it."""
        source, program = folder / "program.c", folder / "program"
        source.write_text(self.text() + self._main([n for n, _ in calls]), encoding="utf-8")
        done = subprocess.run(
            [*compiler, "-std=c99", "-ffp-contract=off", f"-I{RUNTIME_C / 'include'}", str(source),
             "-o", str(program), "-lm"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[:4000]
        raw = b"".join(
            np.asarray(inputs[b.name]).tobytes() if b.name in inputs else bytes(b.storage.nbytes)
            for number, inputs in calls
            for b in self._operands(number)
        )
        ran = subprocess.run(
            [*runner, str(program)], input=raw, capture_output=True, timeout=300, check=False
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        results, at = [], 0
        for number, _ in calls:
            result = {}
            for buffer in self.kernels[number][1].outputs:
                data = ran.stdout[at : at + buffer.type.nbytes]
                result[buffer.name] = np.frombuffer(data, buffer.dtype).reshape(buffer.shape)
                at += buffer.type.nbytes
            results.append(result)
        assert at == len(ran.stdout)
        return results

    def _operands(self, number: int) -> list[Buffer]:
        kernel, func = self.kernels[number]
        return [*func.outputs, *func.inputs, *kernel.scratch]

    def _main(self, numbers: Sequence[int]) -> str:
        """Return a `main` that reads the operands of each kernel, and writes its outputs."""
        lines = ["#include <stdio.h>", "#include <stdlib.h>", "int main(void) {"]
        for number in numbers:
            operands = self._operands(number)
            sizes = ", ".join(str(b.storage.nbytes) for b in operands) or "0"
            outputs = len(self.kernels[number][1].outputs)
            lines.append(
                f"    {{ const size_t n[] = {{ {sizes} }}; void *p[{len(operands) or 1}];\n"
                f"      for (int i = 0; i < {len(operands)}; ++i) {{\n"
                "        p[i] = malloc(n[i] + 64);\n"
                "        if (fread(p[i], 1, n[i], stdin) != n[i]) return 1; }\n"
                f"      call_{number}(p);\n"
                f"      for (int i = 0; i < {outputs}; ++i) "
                "if (fwrite(p[i], 1, n[i], stdout) != n[i]) return 2; }"
            )
        return "\n".join([*lines, "    return 0;", "}", ""])


def _memory(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return whole pages, and their last `nbytes`, behind which nothing can be accessed."""
    page = mmap.PAGESIZE
    pages = nbytes // page + 1
    area = mmap.mmap(-1, (pages + 1) * page)
    whole = np.frombuffer(area, np.uint8)
    behind = ctypes.c_void_p(whole.ctypes.data + pages * page)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(behind, ctypes.c_size_t(page), 0) == 0
    memory = whole[: pages * page]
    memory[:] = GUARD_BYTE
    return memory, memory[pages * page - nbytes :]
