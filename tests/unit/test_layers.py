"""Imports only go down: the contract in pyproject.toml, held by import-linter."""

import subprocess
import sys
import tomllib
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
LINT = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"


def _lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_layers_hold() -> None:
    done = _lint(REPO)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_upwards_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "toolkit"
    for name in ("", "search", "measure"):
        (package / name).mkdir()
        (package / name / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_bytes((REPO / "pyproject.toml").read_bytes())
    assert _lint(tmp_path).returncode == 0

    (package / "search" / "__init__.py").write_text("import toolkit.measure\n")
    done = _lint(tmp_path)
    assert done.returncode == 1
    assert "toolkit.search is not allowed to import toolkit.measure" in done.stdout


def test_every_layer_of_the_contract_may_be_absent() -> None:
    config = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = config["tool"]["importlinter"]["contracts"]
    names = [name for layer in contract["layers"] for name in layer.replace("|", ":").split(":")]
    assert all(name.strip().startswith("(") for name in names)
