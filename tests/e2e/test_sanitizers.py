"""Generated C runs clean under AddressSanitizer and UndefinedBehaviorSanitizer, on the cases' data.

A batch of models and the runtime become one program; each model gets an arena of exactly its size.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.generated import (
    all_cases,
    compile_case,
    inputs_of,
    one_case_per_operator,
    write_files,
)
from toolkit.paths import RUNTIME_C
from toolkit.pipeline import Compiled, Options
from toolkit.runners import pack_inputs, unpack_outputs
from toolkit.targets.target import get_target

SANITIZE = ("-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all")  # fmt: skip
BATCH = 80

MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nst.h"
%(headers)s
static void model(const char *name, const nst_model *model, nst_status (*run)(void *)) {
    uint8_t *arena = 0;
    const size_t bytes = model->arena_bytes;
    fprintf(stderr, "model %%s\\n", name);
    if (posix_memalign((void **)&arena, 64, bytes) != 0) exit(2);
    memset(arena, 0xcd, bytes);
    for (uint32_t i = 0; i < model->input_count; ++i) {
        const size_t size = model->inputs[i].bytes;
        if (fread(nst_input(model, arena, i), 1, size, stdin) != size) exit(3);
    }
    if (run(arena) != NST_OK) exit(4);
    for (uint32_t i = 0; i < model->output_count; ++i) {
        const size_t size = model->outputs[i].bytes;
        if (fwrite(nst_output(model, arena, i), 1, size, stdout) != size) exit(5);
    }
    free(arena);
}

int main(void) {
%(calls)s
    return 0;
}
"""


def run_sanitized(
    models: Sequence[Compiled],
    inputs: Sequence[dict[str, np.ndarray]],
    folder: Path,
    compiler: str,
    flags: Sequence[str],
    sanitize: Sequence[str] = SANITIZE,
) -> list[dict[str, np.ndarray]]:
    """Build and run models; fail with the sanitizer's report; return their outputs.

    `sanitize`: flags, or sources, that make the program what it is.
    """
    sources = write_files(models, folder)
    main = MAIN % {
        "headers": "\n".join(f'#include "{m.name}.h"' for m in models),
        "calls": "\n".join(
            f'    model("{m.name}", &{m.name}_model, {m.name}_run);' for m in models
        ),
    }
    units = []
    for what, text in (
        ("main", main),
        ("kernels", [s for s in sources if not s.stem.endswith("_weights")]),
        ("weights", [s for s in sources if s.stem.endswith("_weights")]),
    ):
        units.append(folder / f"unit_{what}.c")
        lines = text if isinstance(text, str) else "".join(f'#include "{s.name}"\n' for s in text)
        units[-1].write_text(lines, encoding="utf-8")
    runtime = [p for p in sorted((RUNTIME_C / "src").glob("*.c")) if p.stem != "nst_rpc"]
    program = folder / "program"
    done = subprocess.run(
        [compiler, "-std=gnu99", *sanitize, *flags, f"-I{RUNTIME_C / 'include'}", f"-I{folder}",
         f"-Wa,-I{folder}", *map(str, (*units, *runtime)), "-o", str(program), "-lm"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:4000]
    raw = b"".join(
        part
        for compiled, arrays in zip(models, inputs, strict=True)
        for part in pack_inputs(compiled, {n: a for n, a in arrays.items() if n in compiled.inputs})
    )
    ran = subprocess.run(
        [str(program)], input=raw, capture_output=True, timeout=300, check=False,
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr.decode(errors="replace")[-4000:]
    results, at = [], 0
    for compiled in models:
        size = sum(kind.nbytes for kind in compiled.outputs.values())
        results.append(unpack_outputs(compiled, ran.stdout[at : at + size]))
        at += size
    assert at == len(ran.stdout)
    return results


def check_cases(names: Sequence[str], options: Options, folder: Path, compiler: str) -> None:
    models, inputs = [], []
    for name in names:
        compiled = compile_case(name, options)
        if compiled is not None:
            models.append(compiled)
            inputs.append(inputs_of(name))
    flags = get_target(options.target).cflags
    results = run_sanitized(models, inputs, folder, compiler, flags)
    assert len(results) == len(models)


def _vectors() -> str:
    """Return the best target of this machine, by its own name."""
    return get_target("host").name


@pytest.mark.parametrize(
    ("compiler", "options"),
    [
        ("gcc", Options(target="generic")),
        ("gcc", Options(target=_vectors(), executor="aot", weights="incbin")),
    ],
    ids=["generic-graph", "vectors-aot"],
)
def test_an_example_of_every_operator_runs_clean(
    compiler: str,
    options: Options,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> None:
    names = one_case_per_operator(request.config.getoption("--seed"))
    check_cases(names, options, tmp_path, need_tool(compiler))


@pytest.mark.full
@pytest.mark.parametrize("target", ["generic", _vectors()])
def test_every_case_runs_clean(
    target: str, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    names = all_cases()
    for start in range(0, len(names), BATCH):
        folder = tmp_path / str(start)
        folder.mkdir()
        check_cases(names[start : start + BATCH], Options(target=target), folder, need_tool("gcc"))


def test_the_sanitizers_do_see_a_fault(tmp_path: Path, need_tool: Callable[[str], str]) -> None:
    """A model whose arena is one byte short would be caught."""
    compiled = compile_case("test_relu", Options(target="generic"))
    assert compiled is not None
    name = compiled.name
    text = compiled.files.files[f"{name}.c"]
    assert isinstance(text, str)
    wanted = f"    {compiled.arena_bytes}u,\n    {int(compiled.program.digest[:8], 16)}u\n}};"
    assert text.count(wanted) == 1
    short = wanted.replace(f"{compiled.arena_bytes}u", f"{compiled.arena_bytes - 1}u")
    broken = {**compiled.files.files, f"{name}.c": text.replace(wanted, short)}
    object.__setattr__(compiled.files, "files", broken)
    try:
        with pytest.raises(AssertionError, match="heap-buffer-overflow"):
            run_sanitized([compiled], [inputs_of("test_relu")], tmp_path, need_tool("gcc"), ())
    finally:
        compile_case.cache_clear()
