"""nestling from Python, and what the README says of it."""

from __future__ import annotations

import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import toolkit
from tests import small_models
from toolkit.errors import MeasureError
from toolkit.ir import compute as te
from toolkit.ir.compute import compute, placeholder, reduce_axis, scan, Tensor
from toolkit.ir.expr import maximum
from toolkit.toolchain.compiler import STRICT_FLAGS

pytestmark = pytest.mark.needs("gcc")

REPO = Path(__file__).resolve().parents[2]
DIGITS = REPO / "examples" / "fsdd_dscnn.onnx"
README = (REPO / "README.md").read_text(encoding="utf-8")
FAST: dict[str, Any] = {"target": "generic"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(DIGITS.read_bytes())
    first, second, operators = blocks("python")
    names: dict[str, Any] = {}
    exec(first, names)
    assert names["scores"].shape == (1, 10)
    assert (tmp_path / "model_c" / "README.md").exists()
    exec(second, names)
    assert (names["result"] == 32).all()
    (tmp_path / "my_ops.py").write_text(operators)
    from toolkit.user_ops import load_ops

    assert list(load_ops(tmp_path / "my_ops.py")) == ["my.domain:Squash"]


def test_the_c_of_the_readme_compiles(tmp_path: Path) -> None:
    toolkit.compile(DIGITS, name="digits", **FAST).write(tmp_path / "out")
    (snippet,) = blocks("c")
    head = "#include <string.h>\nint classify(const float features[1536], float scores[10]);\n"
    (tmp_path / "use.c").write_text(head + snippet)
    subprocess.run(
        ["gcc", "-std=c99", *STRICT_FLAGS, f"-I{tmp_path / 'out' / 'include'}", "-c",
         str(tmp_path / "use.c"), "-o", str(tmp_path / "use.o")],
        check=True,
    )  # fmt: skip


def test_a_model_from_a_path_bytes_or_a_proto(tmp_path: Path) -> None:
    path = small_models.dense(tmp_path / "m.onnx")
    x = np.array([[1, 2, 3]], np.float32)
    results = []
    for source in (path, str(path), path.read_bytes(), onnx.load(path), toolkit.load(path)):
        with toolkit.build(source, **FAST) as library:
            results.append(library(x)[0])
            results.append(library(x=x)[0])
            results.append(library.run({"x": x})["y"])
    for result in results[1:]:
        assert np.array_equal(result, results[0])


def test_inputs_are_checked(tmp_path: Path) -> None:
    library = toolkit.build(small_models.dense(tmp_path / "m.onnx"), **FAST)
    x = np.zeros((1, 3), np.float32)
    for call, word in (
        (library, "'x' is missing"),
        (lambda: library(x, x), "2 inputs given"),
        (lambda: library(x, x=x), "given twice"),
        (lambda: library(z=x), "no input 'z'"),
        (lambda: library(x.astype(np.float64)), "float64"),
        (lambda: library(x[0]), "the model takes float32"),
    ):
        with pytest.raises(toolkit.NestlingError, match=re.escape(word)):
            call()
    assert library(x)[0].shape == (1, 4)


def test_names_that_are_no_identifiers_have_c_names_in_python(tmp_path: Path) -> None:
    library = toolkit.build(small_models.awkward(tmp_path / "m.onnx"), **FAST)
    x = np.zeros(4, np.float32)
    found = library(int=x)
    assert len(found) == len(library.compiled.outputs)
    assert all(np.array_equal(a, b) for a, b in zip(found, library(int_=x), strict=True))


def test_a_hang_and_a_closed_library(tmp_path: Path) -> None:
    with toolkit.build(small_models.dense(tmp_path / "m.onnx"), **FAST) as library:
        x = np.zeros((1, 3), np.float32)
        first = library(x)[0]
        library.session().process.kill()
        library.session().process.wait()
        assert np.array_equal(library(x)[0], first)  # a new child
        library.close()
        assert np.array_equal(library(x)[0], first)


def test_two_libraries_in_two_threads(tmp_path: Path) -> None:
    compiled = toolkit.compile(small_models.dense(tmp_path / "m.onnx"), **FAST)
    x = np.array([[1, 2, 3]], np.float32)
    found: list[np.ndarray] = []

    def work() -> None:
        with toolkit.build(compiled) as library:
            found.extend(library(x)[0] for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    assert all(np.array_equal(f, found[0]) for f in found)


def _softmax(x: Tensor) -> Tensor:
    rows, columns = x.shape
    top = compute((rows,), lambda i: te.max(x[i, (k := reduce_axis(columns))], k), "top")
    return compute((rows, columns), lambda i, j: x[i, j] - top[i], "shifted")


def test_a_bare_expression(rng: np.random.Generator) -> None:
    x = placeholder((3, 7), "float32", "x")
    data = rng.standard_normal((3, 7)).astype(np.float32)
    k = reduce_axis(7, "k")
    outputs = [
        _softmax(x),
        compute((3,), lambda i: te.sum(x[i, k] * x[i, k], k), "norm"),
        compute((3, 7), lambda i, j: maximum(x[i, j], 0), "clipped"),
    ]
    with toolkit.build(outputs, **FAST) as library:
        shifted, norm, clipped = library(data)
    assert np.array_equal(shifted, data - data.max(axis=1, keepdims=True))
    assert np.allclose(norm, (data * data).sum(axis=1), rtol=1e-6)
    assert np.array_equal(clipped, np.maximum(data, 0))


def test_an_expression_with_constants_and_a_recurrence(rng: np.random.Generator) -> None:
    x = placeholder((5, 4), "float32", "x")
    table = rng.standard_normal(4).astype(np.float32)
    w = placeholder((4,), "float32", "w", table)
    start = placeholder((4,), "float32", "start")

    def step(t: Any, state: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        new = compute((4,), lambda j: state[j] * w[j] + x[t, j], "new")
        return [new], [new]

    (collected,), (final,) = scan(5, [start], step)
    data, first = rng.standard_normal((5, 4)).astype(np.float32), np.ones(4, np.float32)
    compiled = toolkit.compile([collected, final], **FAST)
    assert set(compiled.inputs) == {"start", "x"}
    with toolkit.build(compiled) as library:
        found = library.run({"x": data, "start": first})
    state, want = first, []
    for row in data:
        state = state * table + row
        want.append(state)
    every, last = found.values()
    assert np.allclose(every, np.stack(want), rtol=1e-5)
    assert np.allclose(last, want[-1], rtol=1e-5)


def test_the_example_of_an_expression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec((REPO / "examples" / "expression.py").read_text(), {})
    text = (tmp_path / "out" / "product" / "src" / "product.c").read_text()
    assert "const float *NST_RESTRICT A, const float *NST_RESTRICT B" in text


def test_an_expression_that_is_none() -> None:
    x = placeholder((3,), "float32", "x")
    for wrong in ([], x, [x], [compute((3,), lambda i: x[i] + 1, "x")], [3]):
        with pytest.raises(toolkit.NestlingError):
            toolkit.compile(wrong)  # type: ignore[arg-type]


def test_a_crash_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = toolkit.build(small_models.dense(tmp_path / "m.onnx"), timeout_s=20, **FAST)
    library.session()
    library.library.write_bytes(b"not a library")
    library.close()
    with pytest.raises(MeasureError, match="loading the library"):
        library(np.zeros((1, 3), np.float32))


def test_unknown_choices_are_named(tmp_path: Path) -> None:
    model = small_models.dense(tmp_path / "m.onnx")
    for options, word in (
        ({"target": "z80"}, "z80"),
        ({"executor": "fast"}, "graph, aot"),
        ({"weights": "gold"}, "incbin"),
    ):
        with pytest.raises(toolkit.NestlingError, match=word):
            toolkit.compile(model, **options)
    with pytest.raises(TypeError, match="dims"):
        toolkit.compile(toolkit.load(model), dims={"N": 1})


def test_the_package_lists_its_names() -> None:
    assert set(dir(toolkit)) >= {"load", "compile", "build", "backend", "NestlingError"}
    with pytest.raises(AttributeError, match="nothing"):
        toolkit.nothing  # noqa: B018
