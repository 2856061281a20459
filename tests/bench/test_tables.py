"""The commands of `benchmarks` run and say what they should; no time is asserted.  Opt-in."""

from __future__ import annotations

import json
import os
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import compile_time, host, mcu, memory


@pytest.mark.needs("gcc")
def test_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.sched_getaffinity(0)
    args = ["--rows", "ds_cnn,autoencoder,matmul_64", "--vs", "onnxruntime", "--runs", "50",
            "--seconds", "0.5", "--profile", "--json", str(tmp_path / "t.json"),
            "--svg", str(tmp_path / "t.svg")]  # fmt: skip
    assert host.main(args) == 0
    assert os.sched_getaffinity(0) == before
    said = capsys.readouterr().out
    assert "geometric mean of the model rows, ours / onnxruntime" in said
    assert "ds_cnn, costliest kernels:" in said
    found = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert [r["name"] for r in found["rows"]] == ["ds_cnn", "autoencoder", "matmul_64"]
    for row in found["rows"]:
        assert row["error"] <= 1e-4
        assert row["peers"]["onnxruntime"]["ratio"] > 0
        assert sum(line["macs"] for line in row["profile"]) == row["macs"]
    assert ElementTree.parse(tmp_path / "t.svg").getroot().tag.endswith("svg")


@pytest.mark.needs("gcc")
def test_the_clock_of_the_process_and_another_target(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--rows", "matmul_64", "--vs", "", "--target", "x86-64", "--clock", "cpu",
            "--runs", "20", "--seconds", "0.2"]  # fmt: skip
    assert host.main(args) == 0
    assert "target x86-64" in capsys.readouterr().out


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(SystemExit, match="--vs nonsense: unknown; known: onnxruntime"):
        host.main(["--vs", "nonsense"])


@pytest.mark.qemu
@pytest.mark.needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_mcu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mcu.main(["--rows", "ds_cnn", "--profile", "--json", str(tmp_path / "m.json")]) == 0
    assert "7M met" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))["rows"]
    assert row["unit"] == "instructions"
    assert row["cost"] < row["onnx2c_instructions"]


@pytest.mark.needs("gcc")
def test_compile_time(capsys: pytest.CaptureFixture[str]) -> None:
    compile_time.main(["--depths", "1"])
    assert "to C in under 10 s" in capsys.readouterr().out


def test_memory(tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("mnist_8.onnx", "acasxu_1_1.onnx")
    for name in names:
        shutil.copy(corpus / name, tmp_path)
        shutil.copy(corpus / f"{name}.npz", tmp_path)
    (tmp_path / "FLOAT.txt").write_text("\n".join(names), encoding="utf-8")
    assert memory.main([str(tmp_path)]) == 0
    assert "at the bound within 0.1 %: 2 of 2" in capsys.readouterr().out
