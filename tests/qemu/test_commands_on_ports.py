"""`run`, `verify` and `tune` on a port where a server takes code: nothing is flashed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from toolkit.measure.ledger import count_flash, flash_cycles

pytestmark = [pytest.mark.qemu, pytest.mark.needs("arm-none-eabi-gcc", "qemu-system-arm", "gcc")]

Run = Callable[..., tuple[str, str]]
BOARD = "qemu_mps2_an386"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What `boards serve` prints: NAME@PORT."""
    # What runs in the background of a script ignores SIGINT, and so would its children.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from toolkit.cli import run; sys.exit(run(sys.argv[1:]))"
    )
    where = tmp_path_factory.mktemp("serve") / "port.json"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "boards", "serve", BOARD, "--json", str(where)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        name = process.stdout.readline().split()[-1]
        yield name
        assert json.loads(where.read_text(encoding="utf-8"))["port"] == name.partition("@")[2]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    weights = {
        "w": rng.standard_normal((24, 16)).astype(np.float32),
        "b": rng.standard_normal(16).astype(np.float32),
    }
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "dense",
        [helper.make_tensor_value_info("x", kind, (8, 24))],
        [helper.make_tensor_value_info("y", kind, (8, 16))],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )
    path = tmp_path_factory.mktemp("model") / "dense.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    return path


def test_a_model_is_loaded_and_costs_what_it_costs_in_flash(
    nestling: Run, port: str, model: Path, tmp_path: Path
) -> None:
    costs = []
    for place in (port, BOARD):
        nestling("run", model, "--board", place, "--json", tmp_path / "run.json")
        costs.append(json.loads((tmp_path / "run.json").read_text(encoding="utf-8")))
    assert costs[0]["per_inference"] == costs[1]["per_inference"]
    assert costs[0]["flash_bytes"] == costs[1]["flash_bytes"]
    out, _ = nestling("verify", model, "--board", port)
    assert "right" in out


def test_tuning_on_a_port_ends_in_a_verdict_on_the_whole_model(
    nestling: Run, port: str, model: Path, tmp_path: Path
) -> None:
    records = tmp_path / "dense.db"
    start = time.monotonic()
    out, _ = nestling(
        "tune", model, "--board", port, "--trials", "8", "--seed", "1", "--records", records
    )
    assert time.monotonic() - start < 240
    assert "failed: none" in out
    assert "instructions ->" in out
    listed, _ = nestling("records", "list", records)
    assert "gemm" in listed.lower() or "dense" in listed.lower()


def test_image_prints_the_command_that_starts_it(
    nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out, _ = nestling("boards", "image", BOARD, "-o", "server.elf")
    assert (tmp_path / "server.elf").read_bytes()[:4] == b"\x7fELF"
    assert "takes code into RAM" in out
    assert "-kernel" in out


def test_the_ledger_counts_what_was_flashed(tmp_path: Path) -> None:
    path = tmp_path / "state" / "flash.jsonl"
    assert flash_cycles(path) == {}
    for serial in ("A1", "A1", None):
        count_flash("nucleo_f446re", serial, path)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"board": "cut sho\n')
    assert flash_cycles(path) == {("nucleo_f446re", "A1"): 2, ("nucleo_f446re", ""): 1}
    count_flash("nucleo_f446re", "A1", None)
    if os.geteuid() != 0:
        count_flash("nucleo_f446re", "A1", Path("/proc/nowhere/flash.jsonl"))
