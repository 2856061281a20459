"""The target of a machine, by what its processor says of itself."""

from __future__ import annotations

import pytest

from toolkit.targets import target as targets
from toolkit.targets.isas import ISAS
from toolkit.targets.target import get_target, host_target, TARGETS

AVX512 = "avx2 fma avx512f avx512bw avx512dq avx512vl"


@pytest.mark.parametrize(
    ("machine", "flags", "name"),
    [
        ("x86_64", "sse2", "x86-64"),
        ("x86_64", "avx2 fma", "x86-64-v3"),
        ("x86_64", "avx2 fma avx_vnni", "x86-64-v3-vnni"),
        ("x86_64", AVX512, "x86-64-v4"),
        ("amd64", f"{AVX512} avx512_vnni", "x86-64-v4-vnni"),
        ("x86_64", "avx2 fma avx512f", "x86-64-v3"),
        ("aarch64", "fp asimd", "aarch64"),
        ("arm64", "fp asimd asimddp", "aarch64-dotprod"),
        ("riscv64", "avx2 fma", "generic"),
    ],
)
def test_a_machine_has_the_target_of_its_features(machine: str, flags: str, name: str) -> None:
    key = "Features" if machine in ("aarch64", "arm64") else "flags"
    assert targets._named(machine, f"processor\t: 0\n{key}\t\t: {flags}\n") == name


def test_without_cpuinfo_the_least_target_is_taken() -> None:
    assert targets._named("x86_64", "") == "x86-64"


def test_the_host_is_compiled_for_natively() -> None:
    host = get_target("host")
    assert host.name == host_target().name
    assert host.cflags == ("-march=native",)


def test_every_instruction_set_belongs_to_a_target() -> None:
    assert {target.isa.name for target in TARGETS.values()} == set(ISAS)
