"""Float products on Cortex-M55 run in Helium vectors by the default schedule."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.assembly.listing import count, loop_with, spills
from tests.meaning.batch import Batch
from tests.meaning.machines import MACHINES
from toolkit.codegen.render import environment
from toolkit.paths import RUNTIME_C
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.schedule.examples import matmul
from toolkit.targets.isas import ISAS


def test_a_float_product_is_vector_multiply_adds_without_spills(
    tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    machine, isa = MACHINES["helium"], ISAS["helium"]
    func = matmul(56, 64, 64)
    batch = Batch()
    batch.add(apply_trace(func, default_trace(func, isa)), (), isa)
    pragma = environment().get_template("c/arm_gcc.j2").render()
    (tmp_path / "k.c").write_text(pragma + batch.text())
    compiler = [need_tool(machine.compiler[0]), *(f for f in machine.compiler if f[:2] == "-m")]
    subprocess.run(
        [*compiler, "-O2", "-std=c99", f"-I{RUNTIME_C / 'include'}", "-S", str(tmp_path / "k.c"),
         "-o", str(tmp_path / "k.s")],
        check=True,
    )  # fmt: skip
    body = loop_with((tmp_path / "k.s").read_text(), r"vfma\.f32\s")
    vectors = count(body, r"vfma\.f32\s")
    print(f"{len(body) / (4 * vectors):.3f} instructions a multiply-add")
    assert vectors >= 4, body
    assert not spills(body), body
    assert len(body) <= 0.65 * 4 * vectors, body
