"""Generated C compiles without a warning: every operator, compiler and form, also as C++.

Many models go through one compiler call, as one unit that includes them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.generated import all_cases, compiled_cases, one_case_per_operator, write_files
from toolkit.paths import RUNTIME_C
from toolkit.pipeline import Compiled, Options
from toolkit.toolchain.compiler import STRICT_FLAGS

C99 = ("-std=c99",)
CXX = ("-x", "c++", "-std=c++11")
M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")
BATCH = 100


@dataclass(frozen=True)
class Form:
    """A compiler, its flags, and the options of code generation.  `optimise`: see `check`."""

    compiler: str
    flags: tuple[str, ...]
    options: Options
    optimise: bool = False

    @property
    def label(self) -> str:
        """The name of the test."""
        options = self.options
        parts = [self.compiler, options.target, options.executor, options.weights]
        return "-".join([*parts, "O2"] if self.optimise else parts)


FORMS = [
    Form("gcc", C99, Options(target="generic"), optimise=True),
    Form("gcc", C99, Options(target="generic", executor="aot", weights="incbin")),
    Form("gcc", (*C99, "-march=x86-64-v3"), Options(target="x86-64-v3")),
    Form("gcc", (*C99, "-march=x86-64-v4"), Options(target="x86-64-v4", executor="aot")),
    Form("clang", C99, Options(target="generic")),
    Form("clang", (*C99, "-march=x86-64-v4"), Options(target="x86-64-v4", weights="incbin")),
    Form("arm-none-eabi-gcc", (*C99, *M4), Options(target="cortex-m4"), optimise=True),
    Form("arm-none-eabi-gcc", (*C99, *M4), Options(target="cortex-m4", executor="aot",
                                                   weights="incbin")),
    Form("arm-none-eabi-gcc", (*C99, "-mcpu=cortex-m0", "-mthumb"), Options(target="cortex-m0")),
    Form("arm-none-eabi-gcc", (*C99, "-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard"),
         Options(target="cortex-m55"), optimise=True),
    Form("aarch64-linux-gnu-gcc", C99, Options(target="aarch64")),
    Form("aarch64-linux-gnu-gcc", C99, Options(target="aarch64", executor="aot",
                                               weights="incbin")),
    Form("g++", CXX, Options(target="generic", weights="incbin")),
    Form("g++", (*CXX, "-march=x86-64-v4"), Options(target="x86-64-v4")),
    Form("clang++", CXX, Options(target="generic", executor="aot")),
    Form("clang++", (*CXX, "-march=x86-64-v3"), Options(target="x86-64-v3", weights="incbin")),
]  # fmt: skip


def check(form: Form, models: Sequence[Compiled], folder: Path) -> None:
    """Compile models as one unit.  With `optimise` also what only the optimiser warns of."""
    sources = write_files(models, folder)
    units = []
    for what, chosen in (
        ("kernels", [s for s in sources if not s.stem.endswith("_weights")]),
        ("weights", [s for s in sources if s.stem.endswith("_weights")]),
    ):
        units.append(folder / f"unit_{what}.c")
        units[-1].write_text("".join(f'#include "{source.name}"\n' for source in chosen))
    flags = [f for f in STRICT_FLAGS if form.flags[0] != "-x" or f != "-Wmissing-prototypes"]
    mode = ["-O2", "-c"] if form.optimise else ["-fsyntax-only"]
    done = subprocess.run(
        [form.compiler, *form.flags, *flags, *mode, f"-I{RUNTIME_C / 'include'}", f"-I{folder}",
         f"-Wa,-I{folder}", *map(str, units)],
        capture_output=True, text=True, timeout=600, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, f"{len(models)} models:\n{done.stderr[:6000]}"


def _need(form: Form, need_tool: Callable[[str], str]) -> None:
    need_tool("clang" if form.compiler == "clang++" else form.compiler)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.label)
def test_an_example_of_every_operator_compiles_without_a_warning(
    form: Form, tmp_path: Path, need_tool: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    _need(form, need_tool)
    names = one_case_per_operator(request.config.getoption("--seed"))
    assert len(names) > 120
    models = compiled_cases(names, form.options)
    assert len(models) == len(names)
    check(form, models, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.label)
def test_every_case_compiles_without_a_warning(
    form: Form, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    _need(form, need_tool)
    names = all_cases()
    for start in range(0, len(names), BATCH):
        models = compiled_cases(names[start : start + BATCH], form.options)
        if models:
            folder = tmp_path / str(start)
            folder.mkdir()
            check(form, models, folder)


def test_each_file_stands_alone(tmp_path: Path, need_tool: Callable[[str], str]) -> None:
    """One unit of many models would hide a missing include."""
    names = one_case_per_operator(1)[::12]
    for options in (Options(target="generic"), Options(target="generic", weights="incbin")):
        for source in write_files(compiled_cases(names, options), tmp_path):
            done = subprocess.run(
                [need_tool("gcc"), *C99, *STRICT_FLAGS, "-fsyntax-only",
                 f"-I{RUNTIME_C / 'include'}", f"-I{tmp_path}", str(source)],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[:3000]
