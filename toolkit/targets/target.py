"""What code is generated for: an instruction set, caches, and the compiler flags that select it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from toolkit.errors import NestlingError
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of core.

    `align`: bytes to which tensors in the arena are aligned; `l1_bytes`, `l2_bytes`: data caches,
    0 where there is none.
    """

    name: str
    isa: Isa
    cflags: tuple[str, ...]
    align: int
    l1_bytes: int
    l2_bytes: int


def _x86(name: str, isa: str, cflags: tuple[str, ...]) -> Target:
    return Target(name, ISAS[isa], cflags, 64, 32 * 1024, 1024 * 1024)


def _aarch64(name: str, isa: str, cflags: tuple[str, ...]) -> Target:
    return Target(name, ISAS[isa], cflags, 64, 32 * 1024, 512 * 1024)


def _cortex(name: str, isa: str, cflags: tuple[str, ...], l1: int = 0) -> Target:
    return Target(name, ISAS[isa], cflags, 8, l1, 0)


_NATIVE = ("-march=native",)
_FPV4 = ("-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        _x86("x86-64", "scalar", ("-march=x86-64",)),
        _x86("x86-64-v3", "avx2", ("-march=x86-64-v3",)),
        _x86("x86-64-v3-vnni", "avxvnni", ("-march=x86-64-v3", "-mavxvnni")),
        _x86("x86-64-v4", "avx512", ("-march=x86-64-v4",)),
        _x86("x86-64-v4-vnni", "avx512vnni", ("-march=x86-64-v4", "-mavx512vnni")),
        _aarch64("aarch64", "neon", ("-march=armv8-a",)),
        _aarch64("aarch64-dotprod", "neon_dot", ("-march=armv8.2-a+dotprod",)),
        Target("generic", ISAS["scalar"], (), 8, 0, 0),
        _cortex("cortex-m0", "scalar", ("-mcpu=cortex-m0",)),
        _cortex("cortex-m0plus", "scalar", ("-mcpu=cortex-m0plus",)),
        _cortex("cortex-m3", "scalar", ("-mcpu=cortex-m3",)),
        _cortex("cortex-m4", "armv7em", _FPV4),
        _cortex("cortex-m7", "armv7em",
                ("-mcpu=cortex-m7", "-mfloat-abi=hard", "-mfpu=fpv5-d16"), 16 * 1024),
        _cortex("cortex-m33", "armv7em",
                ("-mcpu=cortex-m33", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16")),
        _cortex("cortex-m55", "helium", ("-mcpu=cortex-m55", "-mfloat-abi=hard"), 16 * 1024),
        Target("riscv32", ISAS["scalar"], ("-march=rv32imafc", "-mabi=ilp32f"), 8, 0, 0),
    )
}  # fmt: skip

STAND_INS: dict[str, tuple[str, ...]] = {
    "x86-64-v3": ("x86-64-v3-vnni",),
    "x86-64-v3-vnni": ("x86-64-v3",),
    "x86-64-v4": ("x86-64-v4-vnni",),
    "x86-64-v4-vnni": ("x86-64-v4",),
    "aarch64": ("aarch64-dotprod",),
    "aarch64-dotprod": ("aarch64",),
    "cortex-m33": ("cortex-m4",),
}
"""Targets on which a schedule that is good for another is good too, as far as it needs no tensor
intrinsic that is not there: their vectors and registers are the same, and so are their pipelines,
nearly."""


@cache
def host_target() -> Target:
    """Return the target of this machine, by the CPU features it reports."""
    machine = platform.machine().lower()
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    return TARGETS[_named(machine, text)]


def _named(machine: str, cpuinfo: str) -> str:
    """Return the target of a machine by the text of its /proc/cpuinfo."""
    key = ("flags", "Features")
    flags = set(next((l for l in cpuinfo.splitlines() if l.startswith(key)), "").split())
    if machine in ("aarch64", "arm64"):
        return "aarch64-dotprod" if "asimddp" in flags else "aarch64"
    if machine not in ("x86_64", "amd64"):
        return "generic"
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        return "x86-64-v4-vnni" if "avx512_vnni" in flags else "x86-64-v4"
    if {"avx2", "fma"} <= flags:
        return "x86-64-v3-vnni" if "avx_vnni" in flags else "x86-64-v3"
    return "x86-64"


def get_target(name: str) -> Target:
    """Return a target by name; 'host' detects this machine."""
    if name == "host":
        return replace(host_target(), cflags=_NATIVE)
    if name not in TARGETS:
        raise NestlingError(f"unknown target {name!r}.", hint=f"known: host, {', '.join(TARGETS)}")
    return TARGETS[name]
