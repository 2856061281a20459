"""8-bit models of the corpus give the recorded outputs bit for bit on every core QEMU has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import toolkit.cli
from toolkit.targets.board import Board, list_boards, load_board

pytestmark = pytest.mark.qemu

SMALL = "t_motions_cnn1d_int8_qdq.onnx"
"""It fits a board of 16 kB of RAM."""

BOARDS = [
    name
    for name in list_boards()
    if (board := load_board(name)).qemu is not None and board.memory_for("arena", 0x2000)
]
LARGER = [
    *((core, "mlperf_kws_dscnn_int8.tflite")
      for core in ("qemu_mps2_an386", "qemu_mps2_an500", "qemu_mps2_an505", "qemu_mps3_an547")),
    *((core, "mlperf_ic_resnet8_int8.onnx") for core in ("qemu_mps2_an386", "qemu_mps3_an547")),
    ("qemu_mps2_an505", "tflm_hello_world_int8.tflite"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("board", "model"), [*((b, SMALL) for b in BOARDS), *LARGER])
def test_outputs_are_exact(
    board: str, model: str, corpus: Path, tmp_path: Path, qemu_board: Callable[[str], Board]
) -> None:
    qemu_board(board)
    out, file = tmp_path / "result.json", corpus / model
    code = toolkit.cli.run([
        "verify", str(file), "--input", f"{file}.npz", "--board", board, "--json", str(out),
        "--no-records",
    ])  # fmt: skip
    assert code == 0
    result = json.loads(out.read_text())
    assert result["ok"]
    assert all(o["equal"] == o["size"] for o in result["outputs"])
