"""The executor runs hand-written tables rightly, in threads, and clean under the sanitizers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.paths import RUNTIME_C

SOURCE = Path(__file__).with_name("executor_test.c")
TESTS = re.findall(r'^ +\{"(\w+)", test_\w+\},$', SOURCE.read_text(encoding="utf-8"), re.MULTILINE)
PORT = ("-DNST_PARALLEL=2", str(RUNTIME_C / "port" / "host" / "nst_threads.c"))
BUILDS = {
    "gcc-O2": ("gcc", "-O2"),
    "clang-O2": ("clang", "-O2"),
    "gcc-asan-ubsan": ("gcc", "-O1", "-g", "-fsanitize=address,undefined",
                       "-fno-sanitize-recover=all"),
    "gcc-tsan": ("gcc", "-O1", "-g", "-fsanitize=thread"),
    "gcc-openmp": ("gcc", "-O2", "-fopenmp"),
    "gcc-port": ("gcc", "-O2", *PORT),
    "gcc-port-tsan": ("gcc", "-O1", "-g", "-fsanitize=thread", *PORT),
    "gcc-port-asan-ubsan": ("gcc", "-O1", "-g", "-fsanitize=address,undefined",
                            "-fno-sanitize-recover=all", *PORT),
}  # fmt: skip


@pytest.fixture(scope="module", params=BUILDS, ids=str)
def program(
    request: pytest.FixtureRequest,
    need_tool: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    compiler, *flags = BUILDS[request.param]
    out = tmp_path_factory.mktemp("executor") / "test"
    sources = [SOURCE, RUNTIME_C / "src" / "nst.c", RUNTIME_C / "src" / "nst_status.c"]
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", *flags, f"-I{RUNTIME_C / 'include'}"]
    command = [need_tool(compiler), *flags, *map(str, sources), "-pthread", "-o", str(out)]
    subprocess.run(command, check=True, timeout=120)
    return out


@pytest.mark.parametrize("name", TESTS)
def test_executor(program: Path, name: str) -> None:
    done = subprocess.run([program, name], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
