"""The text of nests and of their C, before and after each step's example: what a reader sees.

`python -m tests.golden.test_nests` writes the files anew.  That the texts mean what they should is
the business of tests/meaning, which runs the same examples.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from toolkit.codegen.kernel import print_kernel
from toolkit.codegen.render import environment
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.steps import STEPS
from toolkit.targets.isas import ISAS

FOLDER = Path(__file__).parent
AGAIN = "python -m tests.golden.test_nests"


def c_text(func: PrimFunc, isa: str) -> str:
    """Return a function as C."""
    macro: Any = environment().get_template("c/kernel.c.j2").module
    return str(macro.kernel_text(print_kernel(func, func.name, (), ISAS[isa])))


def text_of(name: str) -> str:
    """Return a step's example: the nest, the step, the nest after it, and that as C."""
    func, step = STEPS[name].example()
    after = step.apply(func)
    isa = {"Vectorize": "neon", "Tensorize": "neon_dot"}.get(name, "scalar")
    parts = [str(func), str(step), str(after), c_text(after, isa)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


@pytest.mark.parametrize("name", STEPS)
def test_the_example_of_a_step_reads_as_before(name: str) -> None:
    file = FOLDER / f"{name}.txt"
    assert file.exists(), f"no golden file: {AGAIN}"
    assert text_of(name) == file.read_text(encoding="utf-8"), f"if this is meant: {AGAIN}"


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in FOLDER.glob("*.txt")} == set(STEPS)


def main() -> None:
    """Write all files."""
    for file in FOLDER.glob("*.txt"):
        file.unlink()
    for name in STEPS:
        (FOLDER / f"{name}.txt").write_text(text_of(name), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
