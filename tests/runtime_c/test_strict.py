"""Runtime and boards' ports compile without a warning under the strict flags, also as C++."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

import pytest

from toolkit.measure.estimate import PLUGIN
from toolkit.paths import RUNTIME_C
from toolkit.targets.board import list_boards, load_board

WARNINGS = (
    "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wsign-conversion", "-Wshadow",
    "-Wcast-qual", "-Wundef", "-Wvla", "-Werror",
)  # fmt: skip
C99 = ("-std=c99", *WARNINGS, "-Wmissing-prototypes")
CXX = ("-std=c++11", "-x", "c++", *WARNINGS)
CORTEX_M0 = ("-mcpu=cortex-m0", "-mthumb")
CORTEX_M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
CORTEX_M0PLUS = ("-mcpu=cortex-m0plus", "-mthumb")
CORTEX_M33 = ("-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16")
BOARDS = [name for name in list_boards() if load_board(name).sources]


def check(compiler: str, flags: Sequence[str], files: Sequence[object]) -> None:
    command = [compiler, "-O2", *flags, f"-I{RUNTIME_C / 'include'}", "-c", "-o", "/dev/null"]
    for file in files:  # with -O2 and not -fsyntax-only: some warnings come from the optimiser
        done = subprocess.run(
            [*command, str(file)], capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        ("gcc", C99),
        ("clang", C99),
        ("arm-none-eabi-gcc", (*C99, *CORTEX_M4)),
        ("arm-none-eabi-gcc", (*C99, *CORTEX_M0)),
        ("aarch64-linux-gnu-gcc", C99),
        ("g++", CXX),
    ],
    ids=["gcc", "clang", "cortex-m4", "cortex-m0", "aarch64", "c++"],
)
def test_runtime_compiles_without_a_warning(
    compiler: str, flags: Sequence[str], need_tool: Callable[[str], str]
) -> None:
    check(need_tool(compiler), flags, sorted((RUNTIME_C / "src").glob("*.c")))


@pytest.mark.parametrize(
    ("compiler", "flags", "port"),
    [
        ("gcc", (*C99, "-fopenmp"), None),
        ("g++", (*CXX, "-fopenmp"), None),
        ("gcc", C99, "host/nst_threads.c"),
        ("clang", C99, "host/nst_threads.c"),
        ("aarch64-linux-gnu-gcc", C99, "host/nst_threads.c"),
        ("g++", CXX, "host/nst_threads.c"),
        ("arm-none-eabi-gcc", (*C99, *CORTEX_M0PLUS), "rp2/nst_core1.c"),
        ("arm-none-eabi-gcc", (*C99, *CORTEX_M33), "rp2/nst_core1.c"),
        ("arm-none-eabi-gcc", (*CXX, *CORTEX_M33), "rp2/nst_core1.c"),
    ],
    ids=["openmp", "openmp-c++", "threads", "threads-clang", "threads-aarch64", "threads-c++",
         "rp2040", "rp2350", "rp2350-c++"],
)  # fmt: skip
def test_what_runs_parts_compiles_without_a_warning(
    compiler: str, flags: Sequence[str], port: str | None, need_tool: Callable[[str], str]
) -> None:
    files = [RUNTIME_C / "src" / "nst.c"]
    if port is not None:
        files.append(RUNTIME_C / "port" / port)
        flags = [*flags, "-DNST_PARALLEL=2"]
    check(need_tool(compiler), flags, files)


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [("gcc", C99), ("clang", C99), ("aarch64-linux-gnu-gcc", C99), ("g++", CXX)],
    ids=["gcc", "clang", "aarch64", "c++"],
)
def test_what_times_kernels_compiles_without_a_warning(
    compiler: str, flags: Sequence[str], need_tool: Callable[[str], str]
) -> None:
    check(need_tool(compiler), flags, [RUNTIME_C / "port" / "host" / "nst_trial.c"])


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_plugins_of_qemu_compile_without_a_warning(
    compiler: str, need_tool: Callable[[str], str]
) -> None:
    plugins = {board.qemu.plugin for board in map(load_board, BOARDS) if board.qemu}
    check(need_tool(compiler), (*C99, "-fPIC"), sorted({PLUGIN, *filter(None, plugins)}))


@pytest.mark.parametrize("name", BOARDS)
@pytest.mark.parametrize("language", [C99, CXX], ids=["c99", "c++"])
def test_board_compiles_without_a_warning(
    name: str, language: Sequence[str], need_tool: Callable[[str], str]
) -> None:
    board = load_board(name)
    assert board.compiler is not None
    defines = [f"-D{key}={value}u" for key, value in board.defines]
    includes = [f"-I{folder}" for folder in board.include_dirs]
    compiler, core = board.compiler.name, board.compiler.flags
    if board.linker_script is None and language is CXX:
        compiler, core = "g++", ()  # any system's: the cross compiler comes without C++
    flags = [*core, *language, *defines, *includes, f"-DNST_CLOCK_HZ={board.clock_hz}u"]
    check(need_tool(compiler), flags, board.sources)
