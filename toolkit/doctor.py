"""What this machine has of what nestling needs, and how to get the rest.

A pure look: it runs `TOOL --version` and reads files, changes nothing, and needs nothing but the
standard library.  The tables here are also what the tests and `scripts/setup.sh` go by.
"""

from __future__ import annotations

import grp
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Status(StrEnum):
    """MISSING stops the main job (model to C to a checked host library); OPTIONAL does not."""

    OK = "ok"
    MISSING = "missing"
    OPTIONAL = "optional"


@dataclass(frozen=True)
class Finding:
    """One thing looked for.  `version` is empty if it is absent; `install` is empty if it is OK."""

    group: str
    name: str
    status: Status
    version: str
    purpose: str
    install: str


@dataclass(frozen=True)
class Tool:
    """A program on PATH, the Debian package that has it, and what it is for."""

    name: str
    debian: str
    purpose: str


@dataclass(frozen=True)
class Library:
    """A file that the compiler `tool` must find, and the Debian package that has it."""

    name: str
    tool: str
    file: str
    debian: str
    purpose: str


@dataclass(frozen=True)
class Package:
    """A Python distribution; `extra` names nestling's extra that brings it, "" for the core."""

    name: str
    extra: str
    purpose: str


@dataclass(frozen=True)
class CpuFeature:
    """An instruction set: the flags of /proc/cpuinfo it needs, on the machines that have it."""

    name: str
    machines: tuple[str, ...]
    flags: tuple[str, ...]
    purpose: str


TOOLS = (
    Tool("gcc", "gcc", "builds generated C for this machine"),
    Tool("clang", "clang", "builds generated C for this machine, instead of gcc"),
    Tool("g++", "g++", "checks that generated code is also C++"),
    Tool("arm-none-eabi-gcc", "gcc-arm-none-eabi", "builds firmware for Cortex-M boards"),
    Tool("qemu-system-arm", "qemu-system-arm", "boots Cortex-M firmware: the qemu_* boards"),
    Tool("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf", "builds firmware for RISC-V boards"),
    Tool("qemu-system-riscv32", "qemu-system-misc", "boots RISC-V firmware: qemu_riscv32_virt"),
    Tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu", "builds for AArch64 Linux (NEON)"),
    Tool("qemu-aarch64", "qemu-user", "runs AArch64 builds on this machine"),
    Tool("valgrind", "valgrind", "counts instructions of host builds"),
    Tool("llvm-mca-16", "llvm-16", "estimates cycles: run --cycles"),
    Tool("cmake", "cmake", "builds bundles by their CMakeLists.txt"),
    Tool("openssl", "openssl", "makes certificates, to test farms"),
    Tool("chromium", "chromium", "shows reports of tuning, to test them"),
)

LIBRARIES = (
    Library("C library", "gcc", "libc.so", "libc6-dev", "builds generated C for this machine"),
    Library(
        "Arm newlib",
        "arm-none-eabi-gcc",
        "nano.specs",
        "libnewlib-arm-none-eabi",
        "C library of Cortex-M firmware",
    ),
    Library(
        "picolibc",
        "riscv64-unknown-elf-gcc",
        "picolibc.specs",
        "picolibc-riscv64-unknown-elf",
        "C library of RISC-V firmware",
    ),
    Library(
        "AArch64 C library",
        "aarch64-linux-gnu-gcc",
        "libc.so",
        "libc6-dev-arm64-cross",
        "C library of AArch64 builds",
    ),
    Library(
        "clang's fuzzer",
        "clang",
        "lib/linux/libclang_rt.fuzzer-x86_64.a",
        "libclang-rt-14-dev",
        "fuzzes the serial server, to test it",
    ),
)

PYTHON_PACKAGES = (
    Package("cffi", "", "loads built libraries"),
    Package("click", "", "command line"),
    Package("jinja2", "", "lays out the generated C"),
    Package("numpy", "", "tensors"),
    Package("onnx", "", "reads models, evaluates constants"),
    Package("pyserial", "", "talks to boards"),
    Package("rich", "", "tables and progress"),
    Package("scikit-learn", "", "learned cost models"),
    Package("tflite", "", "the schema of TFLite files"),
    Package("onnxruntime", "ort", "expected outputs; a peer of `bench --vs`"),
    Package("optuna", "bayes", "tune --strategy bayesian"),
    Package("openvino", "bench", "a peer of `bench --vs`"),
    Package("ai-edge-litert", "bench", "a peer of `bench --vs`"),
    Package("pyocd", "boards", "flashes boards over a debug probe"),
    Package("distributed", "farm", "measures on many machines"),
)

_X86 = ("x86_64", "amd64")
_ARM64 = ("aarch64", "arm64")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")

CPU_FEATURES = (
    CpuFeature("AVX2", _X86, ("avx2", "fma"), "tunes and runs kernels of target avx2"),
    CpuFeature("AVX-VNNI", _X86, ("avx_vnni",), "int8 dot products with AVX2 vectors"),
    CpuFeature("AVX-512", _X86, _AVX512, "tunes and runs kernels of target avx512"),
    CpuFeature("AVX-512 VNNI", _X86, (*_AVX512, "avx512_vnni"), "int8 dot products, AVX-512"),
    CpuFeature("NEON", _ARM64, ("asimd",), "tunes and runs kernels of target neon"),
    CpuFeature("NEON sdot", _ARM64, ("asimddp",), "int8 dot products with NEON"),
)

_SERIAL_GROUP = "dialout"


def check(
    *, cpuinfo: Path = Path("/proc/cpuinfo"), search_path: str | None = None
) -> list[Finding]:
    """Return a finding for everything nestling can use, in the order to print them.

    Programs are looked for on `search_path` (default: PATH).
    """
    return [
        *_python(),
        *_tools(search_path),
        *_libraries(search_path),
        *_cpu(cpuinfo),
        _serial(),
    ]


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the names in `CPU_FEATURES` that this machine's processor has."""
    machine, flags = platform.machine().lower(), _cpu_flags(cpuinfo)
    return frozenset(
        f.name for f in CPU_FEATURES if machine in f.machines and flags.issuperset(f.flags)
    )


def _python() -> Iterator[Finding]:
    new_enough = sys.version_info >= (3, 11)
    yield Finding(
        "python",
        "Python",
        Status.OK if new_enough else Status.MISSING,
        platform.python_version(),
        "3.11 or newer",
        "" if new_enough else "apt-get install python3",
    )
    for package in PYTHON_PACKAGES:
        try:
            version = importlib.metadata.version(package.name)
        except importlib.metadata.PackageNotFoundError:
            status = Status.OPTIONAL if package.extra else Status.MISSING
            install = f"pip install {package.name}"
            yield Finding("python", package.name, status, "", package.purpose, install)
        else:
            yield Finding("python", package.name, Status.OK, version, package.purpose, "")


def _tools(search_path: str | None) -> Iterator[Finding]:
    found = {tool.name: shutil.which(tool.name, path=search_path) for tool in TOOLS}
    host_compiler = found["gcc"] or found["clang"]
    for tool in TOOLS:
        path = found[tool.name]
        if path:
            yield Finding("tools", tool.name, Status.OK, _version(path), tool.purpose, "")
            continue
        needed = tool.name == "gcc" and not host_compiler
        yield Finding(
            "tools",
            tool.name,
            Status.MISSING if needed else Status.OPTIONAL,
            "",
            tool.purpose,
            f"apt-get install {tool.debian}",
        )


def _libraries(search_path: str | None) -> Iterator[Finding]:
    for library in LIBRARIES:
        compiler = shutil.which(library.tool, path=search_path)
        if compiler is None:
            continue  # the finding of the compiler says it all
        # The compiler prints a path where it found the file, and the bare name where it did not.
        where = Path(_output(compiler, f"-print-file-name={library.file}"))
        if where.is_absolute():
            yield Finding("tools", library.name, Status.OK, "found", library.purpose, "")
            continue
        status = Status.MISSING if library.tool == "gcc" else Status.OPTIONAL
        install = f"apt-get install {library.debian}"
        yield Finding("tools", library.name, status, "", library.purpose, install)


def _cpu(cpuinfo: Path) -> Iterator[Finding]:
    machine, present = platform.machine().lower(), cpu_features(cpuinfo)
    for feature in CPU_FEATURES:
        if machine not in feature.machines:
            continue
        has = feature.name in present
        yield Finding(
            "processor",
            feature.name,
            Status.OK if has else Status.OPTIONAL,
            "yes" if has else "",
            feature.purpose,
            "" if has else "a processor that has it",
        )


def _serial() -> Finding:
    purpose = "opens boards at /dev/ttyACM* and /dev/ttyUSB*"
    if os.geteuid() == 0:
        return Finding("serial", _SERIAL_GROUP, Status.OK, "root", purpose, "")
    try:
        member = grp.getgrnam(_SERIAL_GROUP).gr_gid in {*os.getgroups(), os.getegid()}
    except KeyError:
        member = False
    if member:
        return Finding("serial", _SERIAL_GROUP, Status.OK, "member", purpose, "")
    install = f"sudo usermod -aG {_SERIAL_GROUP} $USER, then log in again"
    return Finding("serial", _SERIAL_GROUP, Status.OPTIONAL, "", purpose, install)


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """Return the first processor's feature flags, empty where the file cannot be read."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(line[1].split()) if line else frozenset()


def _version(program: str) -> str:
    """Return the version a program prints, or "found" where it prints none."""
    text = re.sub(r"\([^)]*\)", "", _output(program, "--version"))  # the distribution's own number
    number = re.search(r"\d+\.\d+(?:\.\d+)*", text)
    return number[0] if number else "found"


def _output(program: str, argument: str) -> str:
    """Return what a program prints, "" where it cannot be run or hangs."""
    try:
        done = subprocess.run(
            [program, argument],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
