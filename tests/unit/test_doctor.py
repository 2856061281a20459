"""What `nestling doctor` says of a machine, and that its tables agree with what is installed."""

import re
import tomllib
from pathlib import Path

import pytest

from toolkit import doctor
from toolkit.doctor import Status

REPO = Path(__file__).resolve().parents[2]


def _by_name(findings: list[doctor.Finding]) -> dict[str, doctor.Finding]:
    assert len({finding.name for finding in findings}) == len(findings)
    return {finding.name: finding for finding in findings}


def _program(folder: Path, name: str, output: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)


def test_a_machine_without_a_compiler_is_told_the_package(tmp_path: Path) -> None:
    found = _by_name(doctor.check(search_path=str(tmp_path)))
    assert found["gcc"].status is Status.MISSING
    assert found["gcc"].install == "apt-get install gcc"
    assert found["arm-none-eabi-gcc"].status is Status.OPTIONAL
    assert found["arm-none-eabi-gcc"].install == "apt-get install gcc-arm-none-eabi"
    assert "C library" not in found


def test_clang_alone_is_enough(tmp_path: Path) -> None:
    _program(tmp_path, "clang", "Debian clang version 14.0.6")
    found = _by_name(doctor.check(search_path=str(tmp_path)))
    assert (found["clang"].status, found["clang"].version) == (Status.OK, "14.0.6")
    assert found["gcc"].status is Status.OPTIONAL


def test_the_version_is_not_the_distributions_own_number(tmp_path: Path) -> None:
    _program(tmp_path, "arm-none-eabi-gcc", "arm-none-eabi-gcc (15:12.2.rel1-1) 12.2.1 20221205")
    found = _by_name(doctor.check(search_path=str(tmp_path)))
    assert found["arm-none-eabi-gcc"].version == "12.2.1"
    # This one answers -print-file-name with no path: newlib is not there.
    assert found["Arm newlib"].install == "apt-get install libnewlib-arm-none-eabi"


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "expected"),
    [
        ("x86_64", "flags\t\t: fpu avx2 fma\n", {"AVX2"}),
        ("x86_64", "flags\t\t: fpu avx2\n", set()),
        (
            "x86_64",
            "flags : avx512f avx512bw avx512dq avx512vl avx512_vnni",
            {"AVX-512", "AVX-512 VNNI"},
        ),
        ("aarch64", "Features\t: fp asimd asimddp\n", {"NEON", "NEON sdot"}),
        ("aarch64", "flags : avx2 fma\n", set()),
        ("riscv64", "isa : rv64gc\n", set()),
    ],
)
def test_processor_features_come_from_cpuinfo(
    machine: str,
    cpuinfo: str,
    expected: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    file = tmp_path / "cpuinfo"
    file.write_text(cpuinfo)
    assert doctor.cpu_features(file) == expected


def test_an_unreadable_cpuinfo_means_no_features(tmp_path: Path) -> None:
    assert doctor.cpu_features(tmp_path / "absent") == set()


def test_only_what_is_not_ok_says_how_to_install() -> None:
    for finding in doctor.check():
        assert bool(finding.install) == (finding.status is not Status.OK), finding
        assert bool(finding.version) == (finding.status is Status.OK), finding


def test_the_python_packages_are_those_of_pyproject() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}

    core = {package.name for package in doctor.PYTHON_PACKAGES if not package.extra}
    assert core == names(project["dependencies"])
    for package in doctor.PYTHON_PACKAGES:
        if package.extra:
            assert package.name in names(project["optional-dependencies"][package.extra])


def test_the_setup_script_installs_every_debian_package() -> None:
    script = (REPO / "scripts" / "setup.sh").read_text(encoding="utf-8")
    installed = set(re.findall(r"^    ([a-z][a-z0-9+.-]*):[a-z0-9+-]+$", script, re.MULTILINE))
    assert installed == {thing.debian for thing in (*doctor.TOOLS, *doctor.LIBRARIES)}
