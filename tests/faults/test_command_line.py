"""Whatever is wrong, the command line says so in one clear message and leaves nothing half done."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import toolkit.cli
from tests import small_models
from tests.unit.test_report import Odd, run_of
from toolkit.errors import NestlingError
from toolkit.packaging import write
from toolkit.pipeline import Compiled
from toolkit.search.strategies import STRATEGIES

pytestmark = pytest.mark.needs("gcc")

REPO = Path(__file__).resolve().parents[2]
DIGITS = REPO / "examples" / "fsdd_dscnn.onnx"


@dataclass(frozen=True)
class Done:
    """How a command line ended and what it said."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def nestling(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process."""

    def run(*arguments: object) -> Done:
        capfd.readouterr()
        code = toolkit.cli.run([str(a) for a in arguments])
        said = capfd.readouterr()
        return Done(code, said.out, said.err)

    return run


def refused(done: Done, *words: str) -> None:
    """Check that a command line ended in one error that holds `words`, without a traceback."""
    assert done.code == 2, done
    assert sum(line.startswith("error: ") for line in done.err.splitlines()) == 1, done.err
    assert "Traceback" not in done.err + done.out
    assert "internal error" not in done.err
    lines = [line for line in done.err.splitlines() if not line.startswith("note: ")]
    assert lines[0].startswith("error: ")
    assert all(line.startswith("  ") for line in lines[1:]), done.err
    for word in words:
        assert word in done.err, (word, done.err)


# -- models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["compile", "run", "verify", "bench"])
def test_a_missing_model(nestling: Run, tmp_path: Path, command: str) -> None:
    extra = ["-o", tmp_path / "out"] if command == "compile" else []
    refused(nestling(command, tmp_path / "absent.onnx", *extra), "absent.onnx", "no such file")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kept", [0, 1, 9, 1000, 20000])
def test_a_truncated_model(nestling: Run, tmp_path: Path, kept: int) -> None:
    file = tmp_path / "cut.onnx"
    file.write_bytes(DIGITS.read_bytes()[:kept])
    refused(nestling("compile", file, "-o", tmp_path / "out"), "cut.onnx")
    assert os.listdir(tmp_path) == ["cut.onnx"]


def test_garbage_is_not_a_model(nestling: Run, tmp_path: Path, rng: np.random.Generator) -> None:
    file = tmp_path / "garbage.onnx"
    for size in (1, 10, 100, 10000):
        file.write_bytes(rng.bytes(size))
        refused(nestling("verify", file), "garbage.onnx")


def test_a_folder_is_not_a_model(nestling: Run, tmp_path: Path) -> None:
    refused(nestling("run", tmp_path), "is a folder")


def test_a_cyclic_graph(nestling: Run, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
    ]
    file = small_models.save(tmp_path / "cycle.onnx", nodes, {"x": (2,)}, {"b": (2,)})
    refused(nestling("compile", file, "-o", tmp_path / "out"), "cycle", "first", "second")
    assert not (tmp_path / "out").exists()


def test_a_model_of_another_domain_names_the_operator_and_the_way_out(
    nestling: Run, tmp_path: Path
) -> None:
    file = small_models.scaled(tmp_path / "domain.onnx")
    refused(nestling("verify", file), "my.domain:Squash", "--ops")


def test_nan_weights_are_noted_and_kept(nestling: Run, tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    weights = {"w": np.array([1, np.nan, np.inf], np.float32)}
    file = small_models.save(tmp_path / "nan.onnx", nodes, {"x": (3,)}, {"y": (3,)}, weights)
    done = nestling("verify", file)
    assert done.code == 0, done
    assert "'w' holds NaN" in done.err


def test_an_open_dimension_names_the_flag(nestling: Run, tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    shape = (1, "width")
    file = small_models.save(tmp_path / "open.onnx", nodes, {"x": shape}, {"y": shape})
    refused(nestling("verify", file), "'width'", "--dim width=N")
    assert nestling("verify", file, "--dim", "width=7").code == 0


# -- output ----------------------------------------------------------------------------------


def test_an_output_folder_below_a_file(nestling: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    model = small_models.dense(tmp_path / "m.onnx")
    refused(nestling("compile", model, "-o", tmp_path / "file" / "a" / "b"), "cannot write to")
    refused(nestling("compile", model, "-o", tmp_path / "file"), "it is a file")
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "m.onnx"]


def test_an_output_folder_where_the_system_allows_none(nestling: Run, tmp_path: Path) -> None:
    model = small_models.dense(tmp_path / "m.onnx")
    refused(nestling("compile", model, "-o", "/proc/nestling"), "cannot write to /proc/nestling")
    refused(nestling("compile", model, "-o", tmp_path / ("n" * 300)), "cannot write to")
    refused(nestling("compile", model, "-o", tmp_path / "o", "--json", "/proc/x"), "/proc/x")


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A model with the records of a run of made-up costs beside it."""
    model = small_models.dense(tmp_path / "net.onnx")
    run_of(model.with_suffix(".records.db"), Odd())
    return model


def test_a_folder_is_not_replaced_by_a_file(nestling: Run, tuned: Path) -> None:
    folder = tuned.parent / "mine"
    folder.mkdir()
    (folder / "notes").write_text("mine")
    database = tuned.with_suffix(".records.db")
    refused(nestling("report", tuned, "-o", folder), "mine is a folder")
    refused(nestling("records", "export", database, "-o", folder), "mine is a folder")
    refused(nestling("records", "list", database, "--json", folder), "it is a folder")
    assert (folder / "notes").read_text() == "mine"
    assert sorted(p.name for p in tuned.parent.iterdir()) == ["mine", "net.onnx", database.name]


@pytest.mark.parametrize(
    ("option", "place", "says"),
    [
        ("--report", "folder", "it is a folder"),
        ("--report", "file/page.html", "cannot write to"),
        ("--report", "/proc/page.html", "cannot write to"),
        ("--json", "folder", "it is a folder"),
        ("--json", "absent/t.json", "its folder is not there"),
        ("--records", "folder", "it is a folder"),
        ("--records", "absent/t.db", "its folder is not there"),
    ],
)
def test_tuning_refuses_a_place_it_cannot_write_before_it_measures(
    nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    option: str, place: str, says: str,
) -> None:  # fmt: skip
    def measure(*_: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr("toolkit.tuner.run.Tuner.search", measure)
    model = small_models.dense(tmp_path / "net.onnx")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    refused(nestling("tune", model, "--trials", 1, option, tmp_path / place), says)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "net.onnx"]


def test_records_that_are_not_there(nestling: Run, tmp_path: Path) -> None:
    model = small_models.dense(tmp_path / "net.onnx")
    absent = tmp_path / "absent"
    refused(nestling("report", model), "net.onnx", "net.records.db", "nestling tune")
    refused(nestling("report", tmp_path), "it is a folder")
    refused(nestling("records", "list", tmp_path), "it is a folder")
    refused(nestling("records", "import", tmp_path / "new.db", absent), "absent: cannot be read")
    refused(nestling("records", "merge", tmp_path / "new.db", absent), "absent: no such file")
    assert os.listdir(tmp_path) == ["net.onnx"]


def test_the_strategies_are_listed_without_a_model(nestling: Run) -> None:
    done = nestling("tune", "--strategy", "help")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == list(STRATEGIES)
    assert all(len(line.split()) > 2 for line in done.out.splitlines())


def test_files_of_the_users_are_not_replaced(nestling: Run, tmp_path: Path) -> None:
    model = small_models.dense(tmp_path / "m.onnx")
    out = tmp_path / "project"
    out.mkdir()
    (out / "README.md").write_text("mine")
    refused(nestling("compile", model, "-o", out), "README.md", "did not write")
    assert os.listdir(out) == ["README.md"]
    assert (out / "README.md").read_text() == "mine"


def test_an_older_bundle_is_replaced_and_its_stale_files_go(nestling: Run, tmp_path: Path) -> None:
    model, out = small_models.dense(tmp_path / "m.onnx"), tmp_path / "out"
    assert nestling("compile", model, "-o", out, "--name", "old", "--weights", "bin").code == 0
    (out / "src" / "mine.c").write_text("/* mine */")
    assert nestling("compile", model, "-o", out, "--name", "young").code == 0
    names = {p.name for p in out.rglob("*")}
    assert not any(n.startswith("old") for n in names)
    assert {"young.c", "young.h", "mine.c"} <= names


@pytest.mark.parametrize("fails_at", [1, 4, 9])
@pytest.mark.parametrize("existing", [False, True], ids=["new", "existing"])
def test_a_full_disk_leaves_all_as_it_was(
    nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int, existing: bool
) -> None:
    model, out = small_models.dense(tmp_path / "m.onnx"), tmp_path / "a" / "out"
    if existing:
        assert nestling("compile", model, "-o", out).code == 0
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    real, calls = write.os.replace if existing else Path.write_bytes, []

    def full(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        return real(*arguments)  # type: ignore[arg-type]

    where = (write.os, "replace") if existing else (Path, "write_bytes")
    monkeypatch.setattr(*where, full)
    done = nestling("compile", model, "-o", out, "--name", "other" if existing else "m")
    monkeypatch.undo()
    refused(done, "No space left on device")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert existing or not (tmp_path / "a").exists()


def test_a_limit_on_file_size_leaves_nothing(tmp_path: Path) -> None:
    """The system itself refuses a write in the middle."""
    out = tmp_path / "out"
    done = subprocess.run(
        [Path(sys.executable).with_name("nestling"), "compile", DIGITS, "-o", out],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    refused(Done(done.returncode, done.stdout, done.stderr), "cannot write to", "File too large")
    assert os.listdir(tmp_path) == []


# -- tools -----------------------------------------------------------------------------------


def test_a_missing_compiler(nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    model = small_models.dense(tmp_path / "m.onnx")
    refused(nestling("verify", model), "no C compiler", "apt-get install")
    refused(nestling("run", model, "--board", "qemu_mps2_an386"), "arm-none-eabi-gcc", "apt-get")
    # Writing C needs none.
    assert nestling("compile", model, "-o", tmp_path / "out").code == 0


def test_a_compiler_that_refuses(
    nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\necho 'x.c:1: error: no' >&2\nexit 4\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    refused(nestling("verify", small_models.dense(tmp_path / "m.onnx")), "exit code 4", "error: no")


def test_an_unknown_board_or_target_or_port(nestling: Run, tmp_path: Path) -> None:
    model = small_models.dense(tmp_path / "m.onnx")
    refused(nestling("run", model, "--board", "toaster"), "toaster", "qemu_mps2_an386")
    refused(nestling("run", model, "--target", "z80"), "z80", "cortex-m4")
    refused(nestling("boards", "check", "toaster"), "toaster")
    refused(nestling("run", model, "--board", "qemu_mps2_an386@/dev/absent"), "/dev/absent")


# -- the model as it runs ----------------------------------------------------------------------


def _break_kernels(monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """Put a statement at the start of every kernel that is built from now on."""
    real = Compiled.write_library

    def broken(self: Compiled, folder: Path) -> None:
        real(self, folder)
        path = folder / "src" / f"{self.name}.c"
        text = path.read_text()
        head, mark, tail = text.partition("NST_KERNEL void ")
        kernel, brace, body = tail.partition(") {\n")
        assert mark, "no kernel"
        assert brace, "no kernel"
        path.write_text(f"{head}{mark}{kernel}{brace}    {statement}\n{body}")

    monkeypatch.setattr(Compiled, "write_library", broken)


@pytest.mark.parametrize(
    ("statement", "signal"),
    [("*(volatile int *)8 = 1;", "SIGSEGV"), ("__builtin_trap();", "SIGILL")],
)
def test_a_crash_is_reported_and_not_suffered(
    nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, signal: str
) -> None:
    _break_kernels(monkeypatch, statement)
    model = small_models.dense(tmp_path / "m.onnx")
    for command in ("run", "verify", "bench"):
        refused(nestling(command, model, "--target", "generic"), "crashed", signal)


def test_a_hang_ends_in_bounded_time(
    nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break_kernels(monkeypatch, "for (volatile int stay = 1; stay;) { }")
    model, start = small_models.dense(tmp_path / "m.onnx"), time.monotonic()
    done = nestling("verify", model, "--timeout", "1", "--target", "generic")
    refused(done, "did not answer within 1 s")
    assert time.monotonic() - start < 30


def test_a_write_outside_the_arena_is_noticed(
    nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel's first operand is its output, which the planner places in the arena.
    _break_kernels(monkeypatch, "((volatile char *)relu)[-200] = 1;")
    model = small_models.dense(tmp_path / "m.onnx")
    done = nestling("verify", model, "--target", "generic")
    refused(done, "wrote outside its arena")


def test_a_wrong_answer_is_exit_code_1(
    nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break_kernels(monkeypatch, "if (relu[0] < 1e30f) { relu[0] = 7.0f; return; }")
    model = small_models.dense(tmp_path / "m.onnx")
    report, result = tmp_path / "r.xml", tmp_path / "r.json"
    done = nestling(
        "verify", model, "--target", "generic", "--per-node", "--junit", report, "--json", result
    )
    assert done.code == 1, done
    assert "WRONG" in done.out
    assert "first to differ: tensor 'y' of node" in done.out
    assert "clip" in done.out
    assert '"ok": false' in result.read_text()
    assert 'failures="1"' in report.read_text()
    assert nestling("bench", model, "--target", "generic", "--runs", "3").code == 1


# -- sample data -------------------------------------------------------------------------------


def _bad_data(folder: Path) -> dict[str, tuple[Path, str]]:
    x = np.zeros((2, 1, 3), np.float32)
    files = {
        "absent": (folder / "absent.npz", "no such file"),
        "folder": (folder, "is a folder"),
    }

    def write_file(name: str, content: bytes, message: str) -> None:
        (folder / name).write_bytes(content)
        files[name] = (folder / name, message)

    def write_arrays(name: str, arrays: dict[str, np.ndarray], message: str) -> None:
        np.savez(folder / name, **arrays)
        files[name] = (folder / name, message)

    write_arrays("good.npz", {"in__x": x}, "")
    good = (folder / "good.npz").read_bytes()
    del files["good.npz"]
    write_file("empty.npz", b"", "not a readable .npz")
    write_file("cut.npz", good[: len(good) // 2], "not a readable .npz")
    write_file("garbage.npz", b"hello" * 100, "not a readable .npz")
    np.save(folder / "bare.npy", x)
    files["bare"] = (folder / "bare.npy", "one bare array")
    write_arrays("names.npz", {"x": x}, "no array named in__NAME")
    write_arrays("other.npz", {"in__z": x}, "has no array in__x")
    write_arrays("scalar.npz", {"in__x": np.float32(1)}, "axis 0 must count samples")
    write_arrays("none.npz", {"in__x": x[:0]}, "holds no samples")
    write_arrays("counts.npz", {"in__x": x, "out__y": x[:1]}, "different numbers of samples")
    write_arrays("type.npz", {"in__x": x.astype(np.float64)}, "the model takes float32")
    write_arrays("shape.npz", {"in__x": np.zeros((1, 1, 5), np.float32)}, "axis 1")
    write_arrays("rank.npz", {"in__x": np.zeros((1, 3), np.float32)}, "rank")
    write_arrays("strings.npz", {"in__x": np.array([["a"]])}, "which no model takes")
    write_arrays("objects.npz", {"in__x": np.array([{}], dtype=object)}, "not a readable .npz")
    return files


def test_bad_sample_data(nestling: Run, tmp_path: Path) -> None:
    model = small_models.dense(tmp_path / "m.onnx")
    for name, (file, message) in _bad_data(tmp_path).items():
        for command in ("run", "verify"):
            done = nestling(command, model, "--input", file)
            try:
                refused(done, message)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


def test_an_output_of_another_shape_or_type_is_wrong_not_an_error(
    nestling: Run, tmp_path: Path
) -> None:
    model = small_models.dense(tmp_path / "m.onnx")
    x = np.zeros((1, 1, 3), np.float32)
    for y in (np.zeros((1, 1, 9), np.float32), np.zeros((1, 1, 4), np.float64)):
        np.savez(tmp_path / "d.npz", in__x=x, out__y=y)
        done = nestling("verify", model, "--input", tmp_path / "d.npz")
        assert (done.code, "WRONG" in done.out) == (1, True), done


# -- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--dim", "N"], "NAME=VALUE"),
        (["--dim", "N=x"], "not a positive whole number"),
        (["--dim", "N=0"], "not a positive whole number"),
        (["--dim", "Q=2"], "no input has a dimension of that name"),
        (["--dim", "N=1", "--dim", "N=2"], "given twice"),
        (["--input-shape", "x=2xa"], "not a shape"),
        (["--input-shape", "z=2x3"], "no such input"),
        (["--input-shape", "x=2x4"], "fixed to 3"),
        (["--set", "z=1"], "no such input"),
        (["--set", "x=abc"], "not a number"),
        (["--set", "x=absent.npy"], "cannot be read"),
        (["--limit", "ram"], "NAME=VALUE"),
        (["--limit", "salt=3"], "ram, flash"),
        (["--limit", "ram=much"], "not a number"),
        (["--limit", "instructions=3M"], "not measured here"),
        (["--junit", "/proc/x.xml"], "/proc/x.xml"),
        (["--ops", "absent.py"], "no such file"),
        (["--frobnicate"], "No such option"),
        (["--timeout", "0"], "timeout"),
        (["--executor", "magic"], "graph"),
    ],
)
def test_bad_arguments(nestling: Run, tmp_path: Path, arguments: list[str], word: str) -> None:
    refused(nestling("verify", small_models.dense(tmp_path / "m.onnx"), *arguments), word)


def test_limits_of_compile_name_the_excess_and_write_nothing(nestling: Run, tmp_path: Path) -> None:
    model, out = small_models.dense(tmp_path / "m.onnx"), tmp_path / "out"
    refused(nestling("compile", model, "-o", out, "--ram", "5"), "RAM", "over", "--ram")
    refused(nestling("compile", model, "-o", out, "--flash", "0.1k"), "flash", "over", "--flash")
    assert not out.exists()
    assert nestling("compile", model, "-o", out, "--ram", "4k", "--flash", "1M").code == 0


def test_a_file_of_operators_that_is_wrong(nestling: Run, tmp_path: Path) -> None:
    model, ops = small_models.scaled(tmp_path / "m.onnx"), tmp_path / "ops.py"
    for text, words in (
        ("def Squash(ctx, x:\n", ("line 1", "SyntaxError")),
        ("DOMAIN = 'd'\n1 / 0\n", ("line 2", "ZeroDivisionError")),
        ("x = 1\n", ("defines no operator",)),
        ("def Squash(ctx, x):\n    return x\n", ("DOMAIN",)),
        ("OPS = [1]\n", ("not a dict",)),
        ("OPS = {'my.domain:Squash': 3}\n", ("neither a function",)),
        ("OPS = {'other:Squash': lambda ctx, x: x}\n", ("my.domain:Squash",)),
        ("def Squash(ctx, x):\n    return 1 + x\nDOMAIN='my.domain'\n", ("Squash",)),
        ("def Squash(ctx, x):\n    return None\nDOMAIN='my.domain'\n", ("Squash",)),
        ("def Squash(ctx):\n    return None\nDOMAIN='my.domain'\n", ("Squash",)),
        ("def Squash(ctx, x):\n    return ctx.nothing\nDOMAIN='my.domain'\n", ("Squash",)),
    ):
        ops.write_text(text)
        refused(nestling("compile", model, "-o", tmp_path / "out", "--ops", ops), *words)


# -- ourselves ---------------------------------------------------------------------------------


def test_a_bug_of_ours_asks_for_a_report_and_shows_the_traceback_with_v(
    nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object, **__: object) -> None:
        raise KeyError("nobody expects this")

    monkeypatch.setattr("toolkit.pipeline.lower", bug)
    model = small_models.dense(tmp_path / "m.onnx")
    done = nestling("verify", model)
    assert done.code == 3
    assert "Traceback" not in done.err
    assert "KeyError" in done.err
    assert "report" in done.err
    assert "Traceback" in nestling("verify", model, "-v").err


def test_an_interrupt_is_no_error(
    nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("toolkit.pipeline.lower", interrupt)
    done = nestling("compile", small_models.dense(tmp_path / "m.onnx"), "-o", tmp_path / "out")
    assert done.code == 130
    assert done.err.splitlines()[-1] == "interrupted"
    assert "error" not in done.err
    assert not (tmp_path / "out").exists()


def test_a_refusal_in_a_thread_of_python_is_an_exception_not_an_exit(tmp_path: Path) -> None:
    import toolkit

    with pytest.raises(NestlingError, match="no such file"):
        toolkit.load(tmp_path / "absent.onnx")
