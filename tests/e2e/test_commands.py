"""The commands on a good day, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import toolkit.cli
from tests import small_models

pytestmark = pytest.mark.needs("gcc")

REPO = Path(__file__).resolve().parents[2]
DIGITS = REPO / "examples" / "fsdd_dscnn.onnx"
FAST = ("--target", "generic")

Run = Callable[..., tuple[str, str]]


def read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def test_help_names_every_command_with_an_example(nestling: Run) -> None:
    out, _ = nestling("--help")
    for command in ("compile", "run", "verify", "bench", "boards", "doctor"):
        assert f"\n  {command} " in out
        text, _ = nestling(command, "--help")
        assert f"nestling {command}" in text.partition("Example")[2]
    for command in ("list", "check"):
        assert f"nestling boards {command}" in nestling("boards", command, "--help")[0]


def test_the_version(nestling: Run) -> None:
    assert nestling("--version")[0] == f"nestling {toolkit.__version__}\n"


def test_help_and_version_are_quick() -> None:
    code = "import sys, toolkit.cli as c; c.run(['--help']); print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True
    )
    for heavy in ("'onnx'", "'numpy'", "'onnxruntime'"):
        assert heavy not in done.stdout


def test_importing_toolkit_is_light() -> None:
    code = "import sys, toolkit; print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True
    )
    for heavy in ("'onnx'", "'numpy'", "'click'", "'jinja2'"):
        assert heavy not in done.stdout


def test_verify_against_recorded_outputs(nestling: Run, tmp_path: Path) -> None:
    report, result = tmp_path / "report.xml", tmp_path / "result.json"
    out, _ = nestling(
        "verify", DIGITS, "--input", f"{DIGITS}.npz", "--junit", report, "--json", result,
        "--limit", "ram=1M", "--limit", "time=10s", "--per-node", *FAST,
    )  # fmt: skip
    assert "right: 1 output, 8 samples" in out
    found = read_json(result)
    assert found["ok"] is True
    assert found["samples"] == 8
    (output,) = found["outputs"]
    assert output["name"] == "output"
    assert output["max_rel"] <= 1e-4
    assert set(output) >= {"name", "max_abs", "max_rel", "max_lsb", "exact"}
    assert found["nodes"]["differing"] == 0
    assert found["nodes"]["compared"] > 8
    suite = ET.parse(report).getroot()[0]
    assert suite.attrib["tests"] == "3"
    assert suite.attrib["failures"] == "0"


def test_over_a_limit_is_exit_code_1(nestling: Run) -> None:
    out, _ = nestling(
        "verify", DIGITS, "--input", f"{DIGITS}.npz", "--limit", "ram=1k", "-q", *FAST, code=1
    )
    assert "over the limit 1,024 bytes (ram=1k)" in out


def test_verify_asks_a_reference_when_nothing_is_recorded(
    nestling: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_models.dense(tmp_path / "m.onnx")
    assert "against onnxruntime on random inputs" in nestling("verify", model, *FAST)[0]
    monkeypatch.setattr("toolkit.oracle.has_onnxruntime", lambda: False)
    assert "against the ONNX reference on random" in nestling("verify", model, *FAST)[0]


def test_run_writes_what_verify_reads(nestling: Run, tmp_path: Path) -> None:
    model, answers = small_models.awkward(tmp_path / "m.onnx"), tmp_path / "y.npz"
    out, _ = nestling("run", model, "--output", answers, "--runs", "5", *FAST)
    assert "median of 5 runs" in out
    with np.load(answers) as arrays:
        names = set(arrays.files)
    assert names == {f"in__{small_models.AWKWARD_NAMES[0]}"} | {
        f"out__{n}" for n in small_models.AWKWARD_NAMES[1::2]
    }
    assert "right" in nestling("verify", model, "--input", answers, *FAST)[0]


def test_run_tells_the_cost_of_each_step(nestling: Run, tmp_path: Path) -> None:
    result = tmp_path / "r.json"
    out, _ = nestling(
        "run", DIGITS, "--input", f"{DIGITS}.npz", "--profile", "--json", result, *FAST
    )
    found = read_json(result)
    keys = {"unit", "per_inference", "flash_bytes", "weights_bytes", "ram_bytes", "arena_bytes",
            "stack_bytes"}  # fmt: skip
    assert set(found) >= keys
    assert found["unit"] == "seconds"
    assert 0 < found["per_inference"] < 1
    assert found["ram_bytes"] == found["arena_bytes"] + found["stack_bytes"]
    assert found["flash_bytes"] > found["weights_bytes"] > 40_000
    assert [s["step"] for s in found["profile"]] == list(range(len(found["profile"])))
    assert sum(s["share"] for s in found["profile"]) == pytest.approx(1)
    assert all(s["kernel"] in out for s in found["profile"])


def test_json_on_stdout_is_all_there_is(nestling: Run, tmp_path: Path) -> None:
    model = small_models.dense(tmp_path / "m.onnx")
    for arguments in (["verify", model, *FAST], ["run", model, *FAST],
                      ["bench", model, "--runs", "3", *FAST],
                      ["compile", model, "-o", tmp_path / "o"], ["doctor"],
                      ["boards", "list"]):  # fmt: skip
        out, _ = nestling(*arguments, "--json", "-")
        json.loads(out)


def test_quiet_prints_nothing(nestling: Run, tmp_path: Path) -> None:
    model = small_models.dense(tmp_path / "m.onnx")
    for arguments in (
        ["verify", model, *FAST],
        ["run", model, *FAST],
        ["compile", model, "-o", tmp_path / "o"],
    ):
        assert nestling(*arguments, "-q") == ("", "")


def test_bench_interleaves_and_gives_the_ratio(nestling: Run, tmp_path: Path) -> None:
    result = tmp_path / "r.json"
    out, _ = nestling("bench", DIGITS, "--vs", "onnxruntime", "--runs", "20", "--json", result)
    assert "onnxruntime" in out
    found = read_json(result)
    assert found["ratio"] == pytest.approx(found["ours_us"] / found["peer_us"])
    assert found["peers"][0]["ours_runs"] >= 20
    assert found["peers"][0]["peer_runs"] >= 20


def test_a_path_with_spaces_letters_and_colons(nestling: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mein Modell: é, 模型 $x 'y' \"z\""
    folder.mkdir()
    model = small_models.dense(folder / "ü b:c.onnx")
    data = folder / "in put:é.npz"
    np.savez(data, in__x=np.ones((2, 1, 3), np.float32))
    nestling("run", model, "--input", data, "--output", folder / "y: é.npz", *FAST)
    nestling("verify", model, "--input", folder / "y: é.npz", "--json", folder / "j: é", *FAST)
    out = folder / "aus: gabe"
    nestling("compile", model, "-o", out, "--weights", "incbin", "--dump-passes", folder / "p :")
    nestling("verify", model, "--junit", folder / "r: é.xml", *FAST)
    assert (out / "src" / "u_b_c.c").exists() or list((out / "src").glob("*b_c.c"))


def test_weights_in_a_file_beside_the_model(nestling: Run, tmp_path: Path) -> None:
    model = onnx.load(small_models.dense(tmp_path / "m.onnx"))
    digests = []
    for scale in (1, 2):
        weights = onnx.numpy_helper.to_array(model.graph.initializer[0]) * np.float32(scale)
        model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
        folder = tmp_path / f"näch ste {scale}"
        folder.mkdir()
        onnx.save(
            model, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
        )
        model = onnx.load(folder / "m.onnx")
        out, _ = nestling("verify", folder / "m.onnx", "--per-node", *FAST)
        assert "right" in out
        assert "none differs" in out
        nestling("compile", folder / "m.onnx", "-o", folder / "c")
        digests.append(read_json(folder / "c" / "model.json")["model_sha256"])
    assert digests[0] != digests[1]


def test_an_open_dimension_comes_from_the_data(nestling: Run, tmp_path: Path) -> None:
    model, data = small_models.dense(tmp_path / "m.onnx"), tmp_path / "x.npz"
    np.savez(data, in__x=np.ones((2, 7, 3), np.float32))
    out, _ = nestling("run", model, "--input", data, *FAST)
    assert "y: float32[7, 4]" in out
    out, _ = nestling("run", model, "--dim", "N=5", *FAST)
    assert "y: float32[5, 4]" in out


def test_an_input_that_decides_a_branch_is_pinned_to_its_value(
    nestling: Run, tmp_path: Path
) -> None:
    model, data = small_models.switched(tmp_path / "m.onnx"), tmp_path / "x.npz"
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    mode = np.array([1, 0, 1, 3], np.int64)
    y = np.where(mode[:, None] == 1, x * 2, x + 10).astype(np.float32)
    np.savez(data, in__x=x, in__mode=mode, out__y=y)
    out, err = nestling("verify", model, "--input", data, *FAST)
    assert "right: 1 output, 4 samples" in out
    assert "'mode' decides" in err
    _, err = nestling("compile", model, "-o", tmp_path / "o", "--input", data, code=2)
    assert "--set mode=VALUE" in err
    nestling("compile", model, "-o", tmp_path / "o", "--set", "mode=1")
    assert "`mode` = 1." in (tmp_path / "o" / "README.md").read_text()
    assert '"mode"' not in (tmp_path / "o" / "include" / "m.h").read_text()


OPS_BY_NAME = """
from toolkit.ir.compute import compute

DOMAIN = "my.domain"

def helper(x):
    return x

def Squash(ctx, x):
    gain = ctx.attr("gain", 1.0)
    return compute(x.shape, lambda *i: helper(x[i]) * gain, "squash")
"""
OPS_BY_TABLE = """
from toolkit.ir.compute import compute

def squash(ctx, x):
    return compute(x.shape, lambda *i: x[i] * ctx.attr("gain"), "squash")

OPS = {"my.domain:Squash": squash}
"""


@pytest.mark.parametrize("text", [OPS_BY_NAME, OPS_BY_TABLE], ids=["by name", "by table"])
def test_operators_of_ones_own(nestling: Run, tmp_path: Path, text: str) -> None:
    model = small_models.scaled(tmp_path / "m.onnx")
    ops, data = tmp_path / "o.py", tmp_path / "x.npz"
    ops.write_text(text)
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(1, 2, 5)
    np.savez(data, in__x=x, out__y=x * 2)
    assert "right" in nestling("verify", model, "--ops", ops, "--input", data, *FAST)[0]
    # Nobody else knows the operator, and that is said.
    _, err = nestling("verify", model, "--ops", ops, *FAST, code=2)
    assert "--input" in err


def test_doctor_and_boards(nestling: Run, tmp_path: Path) -> None:
    out, _ = nestling("doctor", "--json", tmp_path / "d.json")
    assert "gcc" in out
    assert read_json(tmp_path / "d.json")["ok"] is True
    out, _ = nestling("boards", "list")
    assert "qemu_mps2_an386" in out
    assert "host" in out


@pytest.mark.qemu
@pytest.mark.needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_a_board_runs_verifies_and_counts(nestling: Run, tmp_path: Path) -> None:
    assert "works" in nestling("boards", "check", "qemu_mps2_an386")[0]
    assert "works" in nestling("boards", "check", "host")[0]
    model, result = small_models.dense(tmp_path / "m.onnx"), tmp_path / "r.json"
    board = ("--board", "qemu_mps2_an386")
    nestling("run", model, *board, "--json", result, "--profile")
    found = read_json(result)
    assert found["unit"] == "instructions"
    assert found["per_inference"] == int(found["per_inference"]) > 50
    assert found["ram_bytes"] >= found["arena_bytes"] + found["stack_bytes"]
    limit = ("--limit", "instructions=1M", "--limit", "flash=64k")
    out, _ = nestling("verify", model, *board, *limit)
    assert "right" in out
    out, _ = nestling("verify", model, *board, "--limit", "instructions=10", code=1)
    assert "over the limit" in out
    nestling("compile", model, "-o", tmp_path / "o", *board, "--flash", "64k")
    assert "cortex-m4" in (tmp_path / "o" / "README.md").read_text()
