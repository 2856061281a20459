"""Parts of work run once each, whatever runs them: the caller, OpenMP, or POSIX threads."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.paths import RUNTIME_C

SOURCE = Path(__file__).with_name("parallel_test.c")
TESTS = re.findall(r'^ +\{"(\w+)", test_\w+\},$', SOURCE.read_text(encoding="utf-8"), re.MULTILINE)
PORT = ("-DNST_PARALLEL=2", str(RUNTIME_C / "port" / "host" / "nst_threads.c"))
BUILDS = {
    "alone": ("gcc", "-O2"),
    "openmp": ("gcc", "-O2", "-fopenmp"),
    "port": ("gcc", "-O2", *PORT),
    "port-clang": ("clang", "-O2", *PORT),
    "port-tsan": ("gcc", "-O1", "-g", "-fsanitize=thread", *PORT),
    "port-of-one-thread": ("gcc", "-O2", "-DNST_PORT_WORKERS=1", *PORT),
    "port-that-sleeps-at-once": ("gcc", "-O1", "-g", "-fsanitize=thread", "-DNST_PORT_SPINS=1",
                                 "-DNST_PORT_JOIN_SPINS=1", *PORT),
}  # fmt: skip


@pytest.fixture(scope="module", params=BUILDS, ids=str)
def program(
    request: pytest.FixtureRequest,
    need_tool: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    compiler, *flags = BUILDS[request.param]
    out = tmp_path_factory.mktemp("parallel") / "test"
    command = [need_tool(compiler), "-std=c99", "-Wall", "-Wextra", "-Werror", *flags,
               f"-I{RUNTIME_C / 'include'}", str(SOURCE), "-pthread", "-o", str(out)]  # fmt: skip
    subprocess.run(command, check=True, timeout=120)
    return out


@pytest.mark.parametrize("name", TESTS)
def test_parallel(program: Path, name: str) -> None:
    done = subprocess.run([program, name], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
