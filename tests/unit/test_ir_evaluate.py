"""Compile-time evaluation by arrays gives the bits of the interpreter, and is quick."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.meaning.dags import random_case
from toolkit.ir import compute as T
from toolkit.ir import evaluate as module
from toolkit.ir.arithmetic import MeaningError
from toolkit.ir.build import build
from toolkit.ir.evaluate import evaluate
from toolkit.ir.expr import all_of, cast, const, INDEX, select
from toolkit.ir.interp import interpret
from toolkit.ir.loop import PrimFunc


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    )


def only_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let evaluation fail where it would fall back on the interpreter."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("interpreted")

    monkeypatch.setattr(module, "interpret", refuse)


def test_random_kernels_evaluate_to_what_they_interpret_to(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = 0
    for _ in range(250):
        seed = int(rng.integers(2**32))
        case = random_case(np.random.default_rng(seed), stages=1 + seed % 5)
        func = build(case.outputs, case.inputs)
        want = interpret(func, case.arrays, exact=False)
        got = evaluate(func, case.arrays)
        for name in want:
            assert equal(got[name], want[name]), f"seed {seed}: {name}\n{func}"
        with monkeypatch.context() as patch:
            only_arrays(patch)
            try:
                evaluate(func, case.arrays)
            except AssertionError:
                continue
            arrays += 1
    assert arrays > 125


def packed(k: int, n: int, tile: int) -> PrimFunc:
    """Columns in tiles, the last one padded with zeros."""
    w = T.placeholder((k, n), "float32", "w")
    tiles = -(-n // tile)
    return build(
        [
            T.compute(
                (tiles, k, tile),
                lambda t, i, j: select(t * tile + j < n, w[i, t * tile + j], 0.0),
                "p",
            )
        ],
        [w],
    )


def winograd(cin: int, cout: int) -> PrimFunc:
    """G g G^T of F(2x2, 3x3)."""
    g = T.placeholder((cout, cin, 3, 3), "float32", "g")
    m = T.placeholder((4, 3), "float32", "m")
    a, b = T.reduce_axis(3, "a"), T.reduce_axis(3, "b")
    u = T.compute(
        (4, 4, cin, cout),
        lambda x, y, i, o: T.sum(m[x, a] * g[o, i, a, b] * m[y, b], [a, b]),
        "u",
    )
    return build([u], [g, m])


def test_packing_pads_and_transposes(monkeypatch: pytest.MonkeyPatch) -> None:
    only_arrays(monkeypatch)
    w = np.arange(5 * 10, dtype=np.float32).reshape(5, 10)
    (found,) = evaluate(packed(5, 10, 8), {"w": w}).values()
    wanted = np.pad(w, [(0, 0), (0, 6)]).reshape(5, 2, 8).transpose(1, 0, 2)
    assert np.array_equal(found, wanted)


def test_winograd_weights(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    only_arrays(monkeypatch)
    m = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
    g = rng.normal(size=(6, 5, 3, 3)).astype(np.float32)
    (found,) = evaluate(winograd(5, 6), {"g": g, "m": m}).values()
    wanted = np.einsum("xa,oiab,yb->xyio", m, g, m)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_row_sums_of_int8_are_exact(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_arrays(monkeypatch)
    w = T.placeholder((30, 40), "int8", "w")
    k = T.reduce_axis(30, "k")
    func = build([T.compute((40,), lambda j: T.sum(cast(w[k, j], "int32"), k), "s")], [w])
    array = rng.integers(-128, 128, size=(30, 40)).astype(np.int8)
    (found,) = evaluate(func, {"w": array}).values()
    assert np.array_equal(found, array.astype(np.int32).sum(axis=0))


def test_large_constants_take_well_under_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    only_arrays(monkeypatch)
    w = np.ones((1024, 1000), np.float32)
    start = time.perf_counter()
    evaluate(packed(1024, 1000, 16), {"w": w})
    m, g = np.ones((4, 3), np.float32), np.ones((128, 128, 3, 3), np.float32)
    evaluate(winograd(128, 128), {"g": g, "m": m})
    assert time.perf_counter() - start < 5


def test_what_has_no_meaning_is_refused() -> None:
    x = T.placeholder((4,), "float32", "x")
    beyond = build([T.compute((4,), lambda i: x[i + 1], "y")], [x])
    with pytest.raises(MeaningError, match="outside"):
        evaluate(beyond, {"x": np.zeros(4, np.float32)})
    guarded = T.compute((4,), lambda i: select(i < 3, x[i + 1], 0.0), "y")
    (found,) = evaluate(build([guarded], [x]), {"x": np.arange(4, dtype=np.float32)}).values()
    assert found.tolist() == [1, 2, 3, 0]
    too_large = build([T.compute((4,), lambda i: cast(x[i], "int8"), "y")], [x])
    with pytest.raises(MeaningError, match="undefined in C"):
        evaluate(too_large, {"x": np.full(4, 1e9, np.float32)})


def test_windows_skip_what_lies_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    only_arrays(monkeypatch)
    x = T.placeholder((6,), "float32", "x")
    k = T.reduce_axis(3, "k")
    y = T.compute((6,), lambda i: T.max(x[i + k - 1], k, where=all_of(i + k >= 1, i + k < 7)), "y")
    array = np.array([3, -1, 4, -1, -5, -9], np.float32)
    (found,) = evaluate(build([y], [x]), {"x": array}).values()
    assert found.tolist() == [3, 4, 4, 4, -1, -5]
    assert const(3, INDEX).value == 3
