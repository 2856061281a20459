"""Prefetch is one instruction where cores have it, and nothing elsewhere."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.meaning.batch import Batch
from toolkit.paths import RUNTIME_C
from toolkit.schedule.steps.prefetch import Prefetch

MARK = {
    "gcc": r"prefetcht0",
    "clang": r"prefetcht0",
    "aarch64-linux-gnu-gcc": r"prfm",
    "arm-none-eabi-gcc": None,
}


@pytest.mark.parametrize("compiler", MARK)
def test_a_prefetch_is_the_instruction_of_the_core(
    compiler: str, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    need_tool(compiler)
    func, step = Prefetch.example()
    batch = Batch()
    batch.add(step.apply(func))
    source, listing = tmp_path / "k.c", tmp_path / "k.s"
    source.write_text(batch.text(), encoding="utf-8")
    flags = ["-mcpu=cortex-m4", "-mthumb"] if compiler.startswith("arm-none") else []
    subprocess.run(
        [compiler, "-std=c99", "-O2", *flags, "-S", f"-I{RUNTIME_C / 'include'}", str(source),
         "-o", str(listing)], check=True,
    )  # fmt: skip
    text = listing.read_text()
    mark = MARK[compiler]
    assert (mark in text) if mark else ("pld" not in text and "prfm" not in text)
