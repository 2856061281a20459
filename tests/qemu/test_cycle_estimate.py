"""`run --cycles` estimates cycles from what QEMU carried out, apart from what is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.small_models import save
from toolkit.pipeline import compile_model, load, Options
from toolkit.runners import BoardModel
from toolkit.samples import random_samples
from toolkit.targets.board import load_board

pytestmark = pytest.mark.qemu

TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm", "llvm-mca-16", "gcc")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, need_tool: Callable[[str], str]) -> Path:
    """Write a small net of a convolution and, for calls of libm, a softmax."""
    for tool in TOOLS:
        need_tool(tool)
    rng = np.random.default_rng(11)
    weights = {
        "k": rng.standard_normal((4, 2, 3, 3)).astype(np.float32),
        "w": rng.standard_normal((144, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    return save(path, nodes, {"x": (1, 2, 8, 8)}, {"y": (1, 5)}, weights)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("qemu_mps2_an386", 2.0),
        ("qemu_mps2_an500", 4.0),  # a sum of floats waits for each addition
        ("qemu_mps2_an505", 2.0),
        ("qemu_mps3_an547", 2.0),
    ],
)
def test_the_blocks_are_the_instructions_that_were_measured(
    name: str, most: float, model: Path
) -> None:
    board = load_board(name)
    loaded = load(model)
    compiled = compile_model(loaded, Options(target=board.target))
    inputs = random_samples(loaded.inputs).input(0)
    with BoardModel(compiled, board) as runner:
        _, cost = runner.measure(inputs, 1)
        estimate = runner.estimate(inputs)
        assert runner.estimate(inputs) == estimate
    # The measurement has the call of the model in it too, which is the server's.
    assert 0 <= cost.per_inference - estimate.instructions <= 16
    # The cores begin one or two instructions a cycle.
    assert 0.5 < estimate.cycles / estimate.instructions < most
    assert estimate.stand_ins < 0.1 * estimate.instructions


def test_the_command_keeps_estimate_and_measurement_apart(
    nestling: Callable[..., tuple[str, str]], model: Path, tmp_path: Path
) -> None:
    place = ("--board", "qemu_mps2_an386")
    out, _ = nestling("run", model, *place, "--cycles", "--json", tmp_path / "with.json")
    line = next(line for line in out.splitlines() if line.startswith("cycles"))
    assert "about " in line
    assert "estimate: llvm-mca over executed blocks" in line
    nestling("run", model, *place, "--json", tmp_path / "without.json")
    found, plain = (
        json.loads((tmp_path / f"{n}.json").read_text(encoding="utf-8"))
        for n in ("with", "without")
    )
    assert found.pop("cycles_estimate") > 0
    assert found == plain
    assert plain["unit"] == "instructions"
