"""`verify --board --per-node` names the kernel that is wrong on the board, and its lines of C."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from toolkit.measure.board import BoardSession
from toolkit.measure.rpc.client import RpcClient
from toolkit.pipeline import Compiled

pytestmark = pytest.mark.qemu

Run = Callable[..., tuple[str, str]]
BOARD = "qemu_mps2_an386"
SLOW_LINE = 960.0
"""Bytes a second at 9600 baud."""


@pytest.fixture(autouse=True)
def tools(need_tool: Callable[[str], str]) -> None:
    need_tool("arm-none-eabi-gcc")
    need_tool("qemu-system-arm")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a net of 20x20 pixels whose first tensors are larger than a slow line carries."""
    rng = np.random.default_rng(7)
    weights = {
        name: (0.3 * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in (("k1", (8, 1, 3, 3)), ("k2", (4, 8, 3, 3)), ("w", (4, 5)))
    }
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c1", "k2"], ["c2"], name="second", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c2"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "w"], ["m"], name="dense"),
        helper.make_node("Softmax", ["m"], ["y"], name="soft"),
    ]
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", kind, (1, 1, 20, 20))],
        [helper.make_tensor_value_info("y", kind, (1, 5))],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    return path


def break_kernel(monkeypatch: pytest.MonkeyPatch, number: int, statement: str) -> None:
    """Put a statement, in which OUT is the output, at the end of kernel `number` of the C that is
    built from now on; a line stays a line."""
    real = Compiled.write_library

    def broken(self: Compiled, folder: Path) -> None:
        real(self, folder)
        path = folder / "src" / f"{self.name}.c"
        parts = path.read_text().split("NST_KERNEL void ")
        out = re.search(r"\*NST_RESTRICT (\w+)", parts[number + 1])
        assert out
        body, end, rest = parts[number + 1].partition("\n}\n")
        assert end
        parts[number + 1] = f"{body} {statement.replace('OUT', out[1])}{end}{rest}"
        path.write_text("NST_KERNEL void ".join(parts))

    monkeypatch.setattr(Compiled, "write_library", broken)


def slow_line(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let sessions think that their line is slow; return what is read from now on, by request."""
    read: list[int] = []
    real = RpcClient.read

    def counting(self: RpcClient, count: int, offset: int = 0, **options: Any) -> bytes:
        read.append(count)
        return real(self, count, offset, **options)

    monkeypatch.setattr(BoardSession, "line_bytes_per_s", property(lambda _: SLOW_LINE))
    monkeypatch.setattr(RpcClient, "read", counting)
    return read


def lines_of(folder: Path, kernel: str) -> str:
    """Return the text that the report's file and lines name, in what `compile` writes."""
    file, first, last = kernel.replace("-", ":").split(":")
    lines = (folder / "src" / file).read_text().splitlines()
    return "\n".join(lines[int(first) - 1 : int(last)])


@pytest.mark.parametrize("executor", ["graph", "aot"])
def test_nothing_differs(nestling: Run, model: Path, tmp_path: Path, executor: str) -> None:
    place = ("--board", BOARD, "--per-node", "--executor", executor)
    out, _ = nestling("verify", model, *place, "--json", tmp_path / "r.json")
    assert "none differs" in out
    result = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    nodes = result["nodes"]
    assert (nodes["differing"], nodes["first"]) == (0, None)
    names = [t["tensor"].partition(".nhwc")[0] for t in nodes["tensors"]]
    assert names[0] == "c1"
    assert names[-1] == "y"
    assert nodes["compared"] == len(names) >= 4
    for tensor in nodes["tensors"]:
        np.testing.assert_allclose(tensor["range"], tensor["expected_range"], rtol=1e-3, atol=1e-5)
        assert re.fullmatch("[0-9a-f]{8}", tensor["crc"])
    # As on the host, where every value is there to be looked at.
    nestling("verify", model, "--per-node", "--target", "generic", "--json", tmp_path / "h.json")
    host = json.loads((tmp_path / "h.json").read_text(encoding="utf-8"))["nodes"]
    assert [(t["tensor"], t["elements"]) for t in host["tensors"]][-1] == ("y", 5)


@pytest.mark.parametrize(("number", "slow"), [(0, False), (1, True), (3, False)])
def test_the_wrong_kernel_is_named_with_its_lines(
    nestling: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int,
    slow: bool,
) -> None:  # fmt: skip
    nestling("compile", model, "-o", tmp_path / "c", "--target", "cortex-m4")
    read = slow_line(monkeypatch) if slow else []
    break_kernel(monkeypatch, number, "OUT[0] = 77.0f;")
    result = tmp_path / "r.json"
    out, _ = nestling("verify", model, "--board", BOARD, "--per-node", "--json", result, code=1)
    first = json.loads(result.read_text(encoding="utf-8"))["nodes"]["first"]
    assert first["step"] == number
    assert first["range"][1] == 77.0
    assert first["expected_range"][1] < 77.0
    assert first["nodes"][0] == ("first", "second", "pool", "dense")[number]
    found = re.search(r"step (\d), kernel (\w+), ([\w.]+:\d+-\d+)\): 77 at \[0", out)
    assert found, out
    assert (int(found[1]), found[2]) == (number, first["kernel"])
    text = lines_of(tmp_path / "c", found[3])
    assert text.startswith(f"NST_KERNEL void net_{first['kernel']}(")
    assert text.endswith("\n}")
    assert text.count("\n}") == 1
    if slow:
        assert sum(read) <= (number + 1) * 4 * SLOW_LINE + 20  # a tensor in 4 s, and the output


def test_integers_are_equal(nestling: Run, corpus: Path, tmp_path: Path) -> None:
    file, result = corpus / "t_motions_cnn1d_int8_qdq.onnx", tmp_path / "r.json"
    place = ("--input", f"{file}.npz", "--board", BOARD, "--per-node", "--no-records")
    out, _ = nestling("verify", file, *place, "--json", result)
    assert "none differs" in out
    nodes = json.loads(result.read_text(encoding="utf-8"))["nodes"]
    assert nodes["compared"] >= 4
    assert all(t["max_abs"] == 0 for t in nodes["tensors"])


def test_a_wrong_integer_is_found_wherever_it_is(
    nestling: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of many values, none of those that a slow line has time for, and too little to change
    the model's output."""
    file, result = corpus / "mlperf_ic_resnet8_int8.onnx", tmp_path / "r.json"
    slow_line(monkeypatch)
    break_kernel(monkeypatch, 1, "OUT[1001] ^= 1;")
    place = ("--input", f"{file}.npz", "--board", BOARD, "--per-node", "--no-records")
    out, _ = nestling("verify", file, *place, "--json", result)
    assert "first to differ" in out
    first = json.loads(result.read_text(encoding="utf-8"))["nodes"]["first"]
    assert (first["step"], first["max_abs"]) == (1, 1)
    assert "(1 of 16384 differ)" in first["why"]
    assert first["elements"] < 16384 / 3
