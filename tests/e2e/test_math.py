"""--math libm: vector code computes exp, tanh and their kin as <math.h> does, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import toolkit
from tests.graph_maker import Maker
from toolkit.errors import NestlingError
from toolkit.ir.graph import Graph
from toolkit.pipeline import compile_model, Compiled, Model, Options
from toolkit.runners import BuiltModel
from toolkit.targets.isas import ISAS
from toolkit.targets.target import TARGETS

FUNCTIONS = ("Exp", "Tanh", "Sigmoid", "Erf", "Log", "Softplus")
"""Together they use every vector function of stated error; Softplus is log1p and exp."""

VECTORS = {"x86-64-v3": "AVX2", "x86-64-v4": "AVX-512"}


def net(op: str) -> Graph:
    """One element-wise operator on a length that leaves lanes over."""
    n = Maker("float32")
    return n.graph(n.op(op, n.input(3, 67)))


def compiled(op: str, target: str, math: str) -> Compiled:
    graph = net(op)
    return compile_model(Model(graph, "net", graph.digest()), Options(target=target, math=math))


def answer(op: str, target: str, math: str, x: np.ndarray) -> np.ndarray:
    with BuiltModel(compiled(op, target, math)) as built:
        (y,) = built.run({"x0": x}).values()
    return y


@pytest.mark.parametrize("target", VECTORS)
def test_with_libm_vector_code_equals_scalar_code(
    target: str, rng: np.random.Generator, need_cpu: Callable[[str], None]
) -> None:
    need_cpu(VECTORS[target])
    x = (rng.standard_normal((3, 67)) * 4).astype(np.float32)
    for op in FUNCTIONS:
        scalar = answer(op, "x86-64", "fast", x)
        np.testing.assert_array_equal(answer(op, target, "libm", x), scalar, err_msg=op)


def source(model: Compiled) -> str:
    return "\n".join(str(text) for text in model.files.files.values())


@pytest.mark.parametrize("target", [*VECTORS, "aarch64"])
def test_only_without_libm_does_the_code_call_our_functions(target: str) -> None:
    vector = TARGETS[target].isa.vectors["float32"]
    ours = {n: op.c.split("(")[0] for n, op in vector.ops.items() if op.ulps}
    called = set()
    for op in FUNCTIONS:
        fast, libm = (source(compiled(op, target, math)) for math in ("fast", "libm"))
        called |= {n for n, name in ours.items() if name in fast}
        assert not [n for n in ours.values() if n in libm]
        assert vector.ops["map"].c.split("(")[0] in libm
    assert called == set(ours)


def test_cores_without_vectors_always_call_libm() -> None:
    assert ISAS["scalar"].with_libm() == ISAS["scalar"]


def test_the_choice_reaches_python_and_is_checked() -> None:
    n = Maker("float32")
    graph = n.graph(n.op("Tanh", n.input(4)))
    model = Model(graph, "net", graph.digest())
    assert toolkit.compile(model, math="libm").options.math == "libm"
    with pytest.raises(NestlingError, match="math 'quick' is unknown; it is one of fast, libm"):
        toolkit.compile(model, math="quick")
