"""The child process that runs a library: several models, and what a bad one cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from toolkit.errors import MeasureError
from toolkit.measure.host import HostSession
from toolkit.paths import RUNTIME_C
from toolkit.toolchain.compiler import build_shared, find_compiler

KERNELS = {
    "twice": "p[1] = 2.0f * p[0];",
    "thrice": "p[1] = 3.0f * p[0];",
    "before": "p[-1] = p[0];",
    "behind": "p[2] = p[0];",
    "crash": "*(volatile int *)0 = 1;",
    "hang": "volatile int forever = 1; while (forever) { }",
}
"""Kernels of models from one float to another; `p` is the arena: input, output."""

MODEL = """
static void NAME_kernel(uint8_t *arena, const nst_operand *operands, const void *const *consts) {
    float *const p = (float *)(void *)arena;
    (void)operands; (void)consts;
    BODY
}
static const nst_node NAME_nodes[1] = {{NAME_kernel, 0u, 0u, 0u, NST_FLOW_CALL}};
static const nst_tensor NAME_input = {0u, 4u, 0, 0u, NST_FLOAT32};
static const nst_tensor NAME_output = {4u, 4u, 0, 0u, NST_FLOAT32};
const nst_model NAME_model = {NAME_nodes, 0, 0, &NAME_input, &NAME_output, 1, 0, 0, 1, 1, 8, 0};
nst_status NAME_run(void *arena) { return nst_run(&NAME_model, arena); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    source = folder / "models.c"
    texts = [MODEL.replace("NAME", n).replace("BODY", b) for n, b in KERNELS.items()]
    source.write_text('#include "nst.h"\n' + "".join(texts))
    port = RUNTIME_C / "port" / "host"
    runtime = [
        RUNTIME_C / "src" / "nst.c",
        RUNTIME_C / "src" / "nst_status.c",
        port / "nst_bench.c",
    ]
    return build_shared(
        find_compiler(),
        [source, *runtime],
        [RUNTIME_C / "include", port],
        folder / "models.so",
        flags=["-O0"],
        libs=["-lm", "-lpthread"],
    )


@pytest.fixture
def session(library: Path) -> Iterator[HostSession]:
    with HostSession(library, "twice", timeout_s=2.0) as session:
        yield session


def run(session: HostSession, name: str) -> float:
    session.name = name
    return float(np.frombuffer(session.run(np.float32(5).tobytes()).outputs, np.float32)[0])


def test_one_session_runs_several_models_of_a_library(session: HostSession) -> None:
    assert [run(session, name) for name in ("twice", "thrice", "twice")] == [10, 15, 10]


@pytest.mark.parametrize("name", ["before", "behind"])
def test_a_write_outside_the_arena_is_an_error(session: HostSession, name: str) -> None:
    with pytest.raises(MeasureError, match=rf"model '{name}': wrote outside its arena"):
        run(session, name)
    assert run(session, "thrice") == 15


def test_a_crash_is_reported_with_its_signal(session: HostSession) -> None:
    with pytest.raises(MeasureError, match=r"'crash' crashed with SIGSEGV while running"):
        run(session, "crash")


def test_a_hang_ends_at_the_time_limit(session: HostSession) -> None:
    with pytest.raises(MeasureError, match=r"'hang' did not answer within 2 s while running"):
        run(session, "hang")
    assert session.process.wait(5) < 0


def test_a_model_that_is_not_in_the_library_is_an_error(session: HostSession) -> None:
    with pytest.raises(MeasureError, match="exit code 1 while running") as caught:
        run(session, "nobody")
    assert "nobody_model" in str(caught.value)
