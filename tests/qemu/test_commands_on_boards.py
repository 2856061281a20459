"""`boards check`, `verify` and `run` work on every board in QEMU, with a model that fits it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from toolkit.runners import board_target
from toolkit.targets.board import Board, list_boards, load_board

pytestmark = pytest.mark.qemu

Run = Callable[..., tuple[str, str]]
BOARDS = [name for name in list_boards() if load_board(name).qemu is not None]


@pytest.fixture(scope="module", params=BOARDS)
def board(request: pytest.FixtureRequest, qemu_board: Callable[[str], Board]) -> Board:
    return qemu_board(request.param)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a convolution net of 8x8 pixels that takes a little over 2 kB of RAM."""
    rng = np.random.default_rng(5)
    weights = {
        "k1": rng.standard_normal((4, 1, 3, 3)).astype(np.float32),
        "b1": rng.standard_normal(4).astype(np.float32),
        "k2": rng.standard_normal((6, 4, 3, 3)).astype(np.float32),
        "w": rng.standard_normal((6, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "k2"], ["c2"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "tiny_net",
        [helper.make_tensor_value_info("x", kind, (1, 1, 8, 8))],
        [helper.make_tensor_value_info("y", kind, (1, 5))],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("model") / "tiny_net.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    return path


def test_check_finds_that_the_board_works(nestling: Run, board: Board, tmp_path: Path) -> None:
    out, _ = nestling("boards", "check", board.name, "--json", tmp_path / "c.json")
    assert f"{board.name}: works" in out
    found = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert [t["ok"] for t in found["tests"]] == [True] * 5
    assert found["unit"] == board.unit


def test_a_model_is_right_and_costs_the_same_each_time(
    nestling: Run, board: Board, model: Path, tmp_path: Path
) -> None:
    place = ("--board", board.name)
    out, _ = nestling("verify", model, *place, "--limit", "instructions=4M")
    assert "right" in out
    costs = []
    for name in ("a.json", "b.json"):
        nestling("run", model, *place, "--json", tmp_path / name)
        costs.append(json.loads((tmp_path / name).read_text(encoding="utf-8")))
    assert costs[0] == costs[1]
    assert costs[0]["unit"] == board.unit
    assert costs[0]["per_inference"] > 5760 / 4  # Helium does 4 MACs at once


def test_boards_list_names_every_board(nestling: Run) -> None:
    out, _ = nestling("boards", "list")
    for name in BOARDS:
        assert name in out
        assert board_target(load_board(name)) in out
