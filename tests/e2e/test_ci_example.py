"""The workflow in examples/ci does what it says: its commands run, and fail what they should."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

pytestmark = pytest.mark.qemu

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "examples" / "ci" / "model.yml"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    (found,) = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"].values()
    return dict(found)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, need_tool: Callable[[str], str]) -> Path:
    need_tool("arm-none-eabi-gcc")
    need_tool("qemu-system-arm")
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "examples").mkdir()
    for name in ("fsdd_dscnn.onnx", "fsdd_dscnn.onnx.npz"):
        shutil.copy(ROOT / "examples" / name, folder / "examples")
    return folder


def shell(job: dict[str, Any], command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a step's text as the workflow's shell does, with this checkout's `nestling`."""
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command], cwd=folder, capture_output=True, text=True,
        env={**job["env"], "PATH": path, "HOME": str(folder)}, timeout=300, check=False,
    )  # fmt: skip


def commands(job: dict[str, Any]) -> dict[str, str]:
    """Return the commands of all steps by name, but for those that install."""
    return {s["name"]: s["run"] for s in job["steps"] if "run" in s and s["name"] != "Install"}


def test_every_command_of_the_workflow_runs(job: dict[str, Any], checkout: Path) -> None:
    for name, command in commands(job).items():
        done = shell(job, command, checkout)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    cases = ET.parse(checkout / "model.xml").getroot().iter("testcase")
    assert [c.get("name") for c in cases] == [
        "output output", "limit instructions=4.5M", "limit ram=160k", "limit flash=64k"
    ]  # fmt: skip
    assert json.loads((checkout / "model.json").read_text(encoding="utf-8"))["ok"]
    kept = next(s["with"]["path"] for s in job["steps"] if "upload-artifact" in s.get("uses", ""))
    assert all((checkout / path).exists() for path in kept.split())


def test_what_it_installs_is_what_the_boards_data_names(job: dict[str, Any]) -> None:
    from toolkit.targets.board import load_board

    install = next(s["run"] for s in job["steps"] if s.get("name") == "Install")
    board = load_board(job["env"]["BOARD"])
    assert board.compiler is not None
    assert board.qemu is not None
    for package in (*board.compiler.package.split(), board.qemu.package):
        assert package in install.split()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("instructions=4.5M", "instructions=3M", "over the limit 3,000,000"),
        ("flash=64k", "flash=20k", "over the limit 20,480 bytes"),
    ],
)
def test_a_change_for_the_worse_fails(
    job: dict[str, Any], checkout: Path, old: str, new: str, what: str
) -> None:
    command = commands(job)["Right, fast and small enough"]
    assert old in command
    done = shell(job, command.replace(old, new), checkout)
    assert done.returncode == 1
    assert what in done.stdout + done.stderr
    assert "failure" in (checkout / "model.xml").read_text(encoding="utf-8")
