"""`nestling tune` from the command line: gains kept, runs resumed, limits held, errors told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests import small_models
from toolkit.search.records import Records
from toolkit.search.result import INSTRUCTIONS, SECONDS

Run = Callable[..., tuple[str, str]]
FEW = ("--trials", "8", "--batch", "4")


def two_layers(path: Path) -> Path:
    """Write a convolution and a dense layer, small and uneven."""
    rng = np.random.default_rng(5)
    consts = {
        "w": rng.standard_normal((10, 6, 3, 3)).astype(np.float32),
        "m": rng.standard_normal((10 * 9 * 9, 7)).astype(np.float32),
        "to": np.array([1, -1]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Reshape", ["r", "to"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "m"], ["y"], name="dense"),
    ]
    return small_models.save(path, nodes, {"x": (1, 6, 9, 9)}, {"y": (1, 7)}, consts)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return two_layers(tmp_path / "net.onnx")


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("space", ["metaschedule", "ansor", "autotvm"])
def test_tuning_keeps_every_trial_and_compile_uses_what_it_chose(
    nestling: Run, model: Path, tmp_path: Path, space: str
) -> None:
    nestling("tune", model, *FEW, "--space", space, "--json", tmp_path / "t.json")
    told = json.loads((tmp_path / "t.json").read_text())
    assert told["trials"] == 8
    assert told["models"][0]["ratio"] <= 1.2  # noise; what is chosen is never known to be slower
    with Records(model.with_suffix(".records.db")) as records:
        proposed = [t for t in records.trials(unit=SECONDS) if t.origin != "default"]
        assert len(proposed) == 8
        assert all(t.result.detail for t in proposed if t.cost is None)
        assert {str(t.result.status) for t in proposed} <= {"ok", "timed_out"}, proposed
        assert records.runs()[0].finished is not None
    _, err = nestling("compile", model, "-o", tmp_path / "c")
    assert "has records of" in err
    nestling("verify", model)


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("objective", ["flash", "pareto"])
def test_any_point_of_the_front_can_be_compiled(
    nestling: Run, model: Path, tmp_path: Path, objective: str
) -> None:
    out, _ = nestling("tune", model, *FEW, "--objective", objective, "--json", tmp_path / "t.json")
    points = json.loads((tmp_path / "t.json").read_text())["points"]
    assert ("compile one with" in out) == (objective == "pareto")
    for number in range(len(points)):
        nestling("compile", model, "-o", tmp_path / "c", "--point", number)
    _, err = nestling("compile", model, "-o", tmp_path / "c", "--point", len(points), code=2)
    assert f"has the points 0 to {len(points) - 1}" in err
    nestling("compile", model, "-o", tmp_path / "c", "--point", 0, "--no-records", code=2)


@pytest.mark.needs("gcc")
def test_a_limit_that_nothing_meets_is_told_and_loses_no_trial(nestling: Run, model: Path) -> None:
    _, err = nestling("tune", model, *FEW, "--flash", "100", code=2)
    assert "of all that was measured, nothing needs at most 100 bytes of flash" in err
    assert "Traceback" not in err
    with Records(model.with_suffix(".records.db")) as records:
        assert len(records.trials()) >= 8


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_stopped_goes_on_where_it_was(model: Path, how: signal.Signals) -> None:
    # What runs in the background of a script ignores SIGINT, and so would its children.
    start = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from toolkit.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", start, "tune", str(model), "--trials", "40",
               "--batch", "4"]  # fmt: skip
    database = model.with_suffix(".records.db")
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    deadline = time.monotonic() + 300
    kept = 0
    while kept < 4 and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        if database.exists():
            with Records(database, readonly=True) as records:
                kept = sum(t.round > 0 for t in records.trials())
    assert run.poll() is None, run.communicate()[0]
    if how == signal.SIGKILL:
        os.kill(run.pid, how)
        run.communicate()
    else:  # as a terminal sends it: to compilers and workers too
        os.killpg(run.pid, how)
        said = run.communicate()[0].decode()
        assert run.returncode == 130, said
        assert f"kept in {database}; the same command goes on" in said
        assert "Traceback" not in said
    with Records(database) as records:
        before = [t.id for t in records.trials() if t.round > 0]
    assert 4 <= len(before) < 40
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert again.returncode == 0, again.stdout + again.stderr
    with Records(database) as records:
        after = [t.id for t in records.trials() if t.round > 0]
        assert len(after) == 40
        assert after[: len(before)] == before
        assert len(records.runs()) == 1


@pytest.mark.qemu
@pytest.mark.needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_on_a_board_the_same_seed_finds_the_same_twice(
    nestling: Run, model: Path, tmp_path: Path
) -> None:
    found, files = [], []
    for turn in ("a", "b"):
        database = tmp_path / f"{turn}.db"
        nestling("tune", model, *FEW, "--seed", "9", "--board", "qemu_mps2_an386",
                 "--records", database)  # fmt: skip
        with Records(database) as records:
            found.append(
                [(t.candidate_key, t.result.samples) for t in records.trials(unit=INSTRUCTIONS)]
            )
        folder = tmp_path / turn
        nestling("compile", model, "-o", folder, "--board", "qemu_mps2_an386",
                 "--records", database)  # fmt: skip
        files.append((folder / "src" / "net.c").read_bytes())
    assert found[0] == found[1]
    assert files[0] == files[1]
    nestling("verify", model, "--board", "qemu_mps2_an386", "--records", tmp_path / "a.db")


@pytest.mark.needs("gcc")
def test_an_expression_in_a_file_is_tuned(nestling: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from toolkit.ir.compute import compute, placeholder, reduce_axis, sum\n"
        "A = placeholder((24, 32), 'float32', 'A')\n"
        "B = placeholder((32, 40), 'float32', 'B')\n"
        "k = reduce_axis(32, 'k')\n"
        "matmul = compute((24, 40), lambda i, j: sum(A[i, k] * B[k, j], k), 'C')\n"
        "def again():\n    return matmul\n"
    )
    nestling("tune", f"{file}:matmul", *FEW)
    with Records(tmp_path / "mine.records.db") as records:
        assert len(records.trials()) == 9
    _, err = nestling("compile", f"{file}:matmul", "-o", tmp_path / "c")
    assert "has records of 1 of 1 kernels" in err
    nestling("run", f"{file}:matmul")
    nestling("tune", f"{file}:again", "--trials", "1")
    for name, says in (("nothing", "defines no 'nothing'"), ("k", "not a compute expression")):
        _, err = nestling("tune", f"{file}:{name}", *FEW, code=2)
        assert says in err
    file.write_text("1 / 0\n")
    _, err = nestling("tune", f"{file}:matmul", *FEW, code=2)
    assert "ZeroDivisionError" in err
    assert "(line 1)" in err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--budget", "soon"), "a time such as"),
        (("--budget", "-1min"), "is not a time such as"),
        (("--strategy", "luck"), "strategy 'luck' is unknown"),
        (("--space", "outer"), "there is no such space"),
        (("--goal", "fame"), "goal 'fame' is unknown"),
        (("--goal", "deadline:other=5ms"), "there is no model 'other'"),
        (("--scheduler", "mine"), "scheduler 'mine' is unknown"),
        (("--objective", "beauty"), "objective 'beauty' is unknown"),
        (("--module", "/nowhere/m.py"), "there is no such file"),
        (("--board", "nowhere"), "nowhere"),
        (("--ram", "lots"), "--ram"),
        (("--ram", "100"), "its tensors alone need"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_is_measured(
    nestling: Run, model: Path, options: tuple[str, ...], says: str
) -> None:
    given = ("--trials", "4") if options[0] != "--budget" else ()
    _, err = nestling("tune", model, *given, *options, code=2)
    assert says in err
    assert "Traceback" not in err
    assert not [f for f in model.parent.iterdir() if f.suffix == ".db"]
