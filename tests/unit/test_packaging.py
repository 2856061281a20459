"""The wheel carries the data folders, and an installed package finds them."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
DATA_FOLDERS = ("templates", "runtime_c", "boards")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without network by the hatchling of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("nestling-*.whl")
    return file


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA_FOLDERS)
def test_the_wheel_carries_every_file_of_a_data_folder(wheel: Path, name: str) -> None:
    expected = {
        f"toolkit/_data/{file.relative_to(REPO).as_posix()}"
        for file in (REPO / name).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert expected
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_the_wheel_holds_the_package_its_command_and_nothing_else(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    tops = {name.split("/")[0] for name in archive.namelist()}
    (info,) = tops - {"toolkit"}
    assert info.endswith(".dist-info")
    assert "toolkit/py.typed" in archive.namelist()
    packs = {f"toolkit/packs/{file.name}" for file in (REPO / "toolkit" / "packs").iterdir()}
    assert packs
    assert packs <= set(archive.namelist())
    assert f"{info}/licenses/LICENSE" in archive.namelist()
    entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert "nestling = toolkit.cli:main" in entry_points


@pytest.mark.slow
def test_an_installed_package_finds_its_own_data(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "from toolkit import paths as p; print(p.TEMPLATES, p.RUNTIME_C, p.BOARDS, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:3] == [
        str(tmp_path / "toolkit" / "_data" / name) for name in DATA_FOLDERS
    ]
