"""Attention in blocks of rows: what its default schedule means, and that nothing stays scalar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.graph_maker import Maker
from tests.meaning.dags import Case
from tests.meaning.test_random_kernels import check_stages, run_in_c
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.expr import Expr, maximum
from toolkit.ir.graph import Graph
from toolkit.pipeline import compile_model, Model, Options
from toolkit.runners import BuiltModel
from toolkit.schedule.default import default_trace
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.targets.isas import ISAS


def rows(rng: np.random.Generator, heads: int, queries: int, keys: int, width: int) -> Case:
    """The shape of attention without what rounds: weights are clipped scores less their row's
    largest, not exponentials, and are not divided by their sum but added to it."""
    q = T.placeholder((heads, queries, width), "float32", "q")
    b = T.placeholder((heads, width, keys), "float32", "b")
    v = T.placeholder((heads, keys, width), "float32", "v")
    k, j, n, m = (T.reduce_axis(e, a) for e, a in ((width, "k"), (keys, "j"), (keys, "n"),
                                                   (keys, "m")))  # fmt: skip

    def scores(h: Expr, i: Expr, j: Expr) -> T.Reduce:
        return T.sum(q[h, i, k] * b[h, k, j], k)

    s = T.compute((heads, queries, keys), scores, "s")
    top = T.compute((heads, queries), lambda h, i: T.max(s[h, i, j] * 0.5, j), "top")
    w = T.compute(
        (heads, queries, keys), lambda h, i, j: maximum(s[h, i, j] * 0.5 - top[h, i], -8.0), "w"
    )
    total = T.compute((heads, queries), lambda h, i: T.sum(w[h, i, n], n), "total")
    p = T.compute((heads, queries, keys), lambda h, i, j: w[h, i, j] + total[h, i], "p")
    y = T.compute((heads, queries, width), lambda h, i, c: T.sum(p[h, i, m] * v[h, m, c], m), "y")
    arrays = {t.name: rng.integers(-3, 4, t.shape).astype(np.float32) for t in (q, b, v)}
    return Case([y], [q, b, v], arrays, ["attention"])


def random_rows(rng: np.random.Generator, most: int) -> Case:
    heads, queries, keys, width = (int(rng.integers(1, n + 1)) for n in (3, most, 3 * most, most))
    return rows(rng, heads, queries, keys, width)


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
def test_every_step_of_attention_keeps_the_meaning(isa: str, rng: np.random.Generator) -> None:
    for _ in range(2):
        check_stages(random_rows(rng, 4), ISAS[isa])
    check_stages(rows(rng, 1, 4, 16, 4), ISAS[isa])


@pytest.mark.parametrize(
    ("isa", "cpu", "flag"),
    [
        ("scalar", None, "-O1"),
        ("avx2", "AVX2", "-march=x86-64-v3"),
        ("avx512", "AVX-512", "-march=x86-64-v4"),
    ],
)
def test_attention_in_c_computes_what_the_interpreter_computes(
    isa: str, cpu: str | None, flag: str, rng: np.random.Generator, tmp_path: Path,
    need_tool: Callable[[str], str], need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    need_tool("gcc")
    if cpu is not None:
        need_cpu(cpu)
    cases = [random_rows(rng, 12) for _ in range(8)] + [rows(rng, 1, 8, 48, 16)]
    run_in_c(cases, ISAS[isa], tmp_path, flags=("-O1", flag), strict=())


def test_attention_in_c_computes_the_same_on_aarch64(
    rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    compiler = [need_tool("aarch64-linux-gnu-gcc"), "-O1", "-static"]
    cases = [random_rows(rng, 12) for _ in range(8)] + [rows(rng, 1, 8, 48, 16)]
    run_in_c(
        cases, ISAS["neon"], tmp_path, program=True, compiler=compiler,
        runner=[need_tool("qemu-aarch64")],
    )  # fmt: skip


@pytest.mark.parametrize("isa", ["avx2", "avx512", "neon"])
def test_scores_are_computed_for_the_rows_of_a_tile(isa: str, rng: np.random.Generator) -> None:
    """The scores' copy stands at the loop over row blocks, softmax at the loop over rows in it."""
    case = rows(rng, 2, 64, 64, 64)
    trace = default_trace(build(case.outputs, case.inputs), ISAS[isa])
    at = {s.block: s.loop for s in trace if isinstance(s, ComputeAt)}
    assert at["s_write"] == at["p"] != at["w"]
    assert at["w"] == at["top"]


def test_a_product_whose_readers_share_no_loop_is_tiled_in_its_own_nest(
    rng: np.random.Generator,
) -> None:
    a, b = T.placeholder((8, 6), "float32", "a"), T.placeholder((6, 32), "float32", "b")
    k, n, m = T.reduce_axis(6, "k"), T.reduce_axis(32, "n"), T.reduce_axis(8, "m")
    s = T.compute((8, 32), lambda i, j: T.sum(a[i, k] * b[k, j], k), "s")
    rows = T.compute((8,), lambda i: T.sum(s[i, n], n), "rows")
    columns = T.compute((32,), lambda j: T.max(s[m, j], m), "columns")
    arrays = {t.name: rng.integers(-3, 4, t.shape).astype(np.float32) for t in (a, b)}
    case = Case([rows, columns], [a, b], arrays, ["two readers"])
    check_stages(case, ISAS["avx2"])
    trace = default_trace(build(case.outputs, case.inputs), ISAS["avx2"])
    assert "s_write" not in {s.block for s in trace if isinstance(s, ComputeAt)}
    assert any(isinstance(s, ComputeAt) and s.block == "s" for s in trace)


def attention(heads: int, queries: int, keys: int, width: int, mask: bool) -> Graph:
    m = Maker("float32")
    q, k = m.input(1, heads, queries, width), m.input(1, heads, width, keys)
    v = m.input(1, heads, keys, width)
    scores = m.Mul(m.MatMul(q, k), 1 / np.sqrt(width))
    if mask:
        scores = m.Add(scores, m.input(queries, keys))
    return m.graph(m.MatMul(m.Softmax(scores, axis=3), v))


def wanted(x: dict[str, np.ndarray], width: int) -> np.ndarray:
    q, k, v, *mask = (a.astype(np.float64) for a in x.values())
    scores = q @ k / np.sqrt(width) + (mask[0] if mask else 0)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True) @ v)


@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("heads", "queries", "keys", "width", "mask"),
    [
        (2, 16, 64, 32, False),
        (2, 13, 48, 24, True),
        (1, 7, 33, 5, True),
        (3, 1, 20, 16, False),
        (2, 23, 67, 16, True),
    ],
)
def test_attention_is_that_of_float64(
    target: str, heads: int, queries: int, keys: int, width: int, mask: bool,
    rng: np.random.Generator, need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    """Tolerance: float32 sums of a few dozen products, weights that sum to 1."""
    for feature in {"x86-64-v3": ["AVX2"], "x86-64-v4": ["AVX-512"]}.get(target, []):
        need_cpu(feature)
    graph = attention(heads, queries, keys, width, mask)
    x = {n: rng.standard_normal(graph.types[n].shape).astype(np.float32) for n in graph.inputs}
    compiled = compile_model(Model(graph, "net", graph.digest()), Options(target=target))
    assert len(compiled.program.kernels) == 1
    with BuiltModel(compiled) as built:
        (found,) = built.run(x).values()
    np.testing.assert_allclose(found, wanted(x, width), rtol=0, atol=3e-6)
