"""Random expression trees: C computes what the typed interpreter computes, without a warning."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.meaning.batch import Batch
from tests.meaning.expressions import function_of, sample, systematic, TreeGenerator, TYPES
from toolkit.ir.expr import Binary, BINARY_OPS, Call, Expr, FUNCTIONS, walk
from toolkit.ir.text import expr_text
from toolkit.ir.verify import verify_func
from toolkit.paths import RUNTIME_C
from toolkit.toolchain.compiler import STRICT_FLAGS

COUNT = 700
UBSAN = ("-O0", "-fno-builtin", "-fsanitize=undefined,float-cast-overflow",
         "-fno-sanitize-recover=all")  # fmt: skip
COMPILERS = {
    "gcc": ("-std=c99",),
    "clang": ("-std=c99",),
    "arm-none-eabi-gcc": ("-std=c99", "-mcpu=cortex-m4", "-mthumb"),
    "aarch64-linux-gnu-gcc": ("-std=c99",),
    "g++": ("-x", "c++", "-std=c++11"),
    "clang++": ("-x", "c++", "-std=c++11"),
}

Trees = tuple[Batch, list[Expr], list[dict[str, np.ndarray]], list[list[Any]]]


def make_trees(rng: np.random.Generator, count: int) -> Trees:
    """Return `count` printed expressions or more, with inputs and the values they must have."""
    batch, exprs, inputs, wanted = Batch(), [], [], []
    given = systematic()
    while len(exprs) < count or given:
        seed = int(rng.integers(2**32))
        own = np.random.default_rng(seed)
        tree = TreeGenerator(own).tree(TYPES[len(exprs) % len(TYPES)], 1 + seed % 4)
        expr = given.pop() if given else tree
        found = sample(expr, own)
        if found is None:
            continue
        func = function_of(expr, len(exprs))
        verify_func(func)
        batch.add(func, [f"seed {seed}"])
        exprs.append(expr)
        arrays = {b.name: np.array(found[0][b.name], b.dtype) for b in func.inputs}
        inputs.append(arrays)
        wanted.append(found[1])
    return batch, exprs, inputs, wanted


def equal(a: Any, b: Any) -> bool:
    """Equal bit by bit, but for the payload of a NaN."""
    if isinstance(a, float | np.floating) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b and math.copysign(1, a) == math.copysign(1, b))


@pytest.fixture(scope="module")
def trees(request: pytest.FixtureRequest) -> Trees:
    return make_trees(np.random.default_rng([request.config.getoption("--seed"), 3]), COUNT)


def test_every_operation_and_function_occurs(trees: Trees) -> None:
    nodes = [node for expr in trees[1] for node in walk(expr)]
    assert {n.op for n in nodes if isinstance(n, Binary)} == set(BINARY_OPS)
    assert {n.fn for n in nodes if isinstance(n, Call)} == set(FUNCTIONS)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_expressions_have_the_value_of_the_interpreter_and_no_undefined_behaviour(
    compiler: str, trees: Trees, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    need_tool(compiler)
    batch, exprs, inputs, wanted = trees
    trap = ("-fsanitize-trap=all",) if compiler == "clang" else ()
    batch.build(tmp_path, compiler, (*UBSAN, *trap), strict=())
    wrong = []
    found = batch.run_all(list(enumerate(inputs)))
    for number, (expr, values) in enumerate(zip(exprs, found, strict=True)):
        (got,) = values.values()
        for i, (a, b) in enumerate(zip(wanted[number], got, strict=True)):
            if not equal(a, b):
                given = {name: array[i] for name, array in inputs[number].items()}
                wrong.append(f"{expr_text(expr)}\n  at i={i} {given}: {b!r} in C, meaning {a!r}")
                break
    assert not wrong, f"{len(wrong)} of {len(exprs)} differ:\n" + "\n".join(wrong[:10])


@pytest.mark.parametrize("compiler", COMPILERS)
def test_expressions_print_without_a_warning(
    compiler: str, trees: Trees, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    source = tmp_path / "batch.c"
    source.write_text(trees[0].text(), encoding="utf-8")
    flags = [f for f in STRICT_FLAGS if "++" not in compiler or f != "-Wmissing-prototypes"]
    need_tool("clang" if compiler == "clang++" else compiler)
    done = subprocess.run(
        [compiler, *COMPILERS[compiler], *flags, "-fsyntax-only",
         f"-I{RUNTIME_C / 'include'}", str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:6000]
