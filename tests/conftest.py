"""What all tests share: the corpus, the tools, the seed, and the rule about skips.

The rule: a test skips for a processor feature ("cpu: ...") or an absent corpus ("corpus: ...").
For a missing tool it skips on a developer's machine, naming the Debian package; with CI=true that
is a failure, as is any skip with another reason.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import toolkit.cli
from toolkit import doctor

REPO = Path(__file__).resolve().parents[1]
DEFAULT_CORPUS = REPO.parent / "shared" / "corpus"
ALLOWED_SKIPS = ("cpu:", "corpus:")
OPT_IN_FOLDERS = ("board", "bench")  # tests/board, tests/bench: marked by where they are

settings.register_profile("nestling", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("nestling")


# ---------------------------------------------------------------------------------------- options


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nestling")
    group.addoption(
        "--corpus",
        type=Path,
        default=DEFAULT_CORPUS,
        metavar="DIR",
        help="folder of the model corpus (default: ../shared/corpus beside the repository)",
    )
    group.addoption(
        "--seed",
        type=int,
        default=1,
        help="seed of the fixture `rng`; every test mixes its own name into it",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    folder = _corpus_folder(config)
    return [
        f"seed: {config.getoption('--seed')} (other cases with --seed N)",
        f"corpus: {folder or 'absent (--corpus DIR)'}",
        f"processor: {', '.join(sorted(doctor.cpu_features())) or 'no SIMD that nestling uses'}",
    ]


# ------------------------------------------------------------------------------------ command line


@pytest.fixture
def nestling(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Run a command line in this process, which must end with `code`; return stdout and stderr."""

    def run(*arguments: object, code: int = 0) -> tuple[str, str]:
        capfd.readouterr()
        found = toolkit.cli.run([str(a) for a in arguments])
        out, err = capfd.readouterr()
        assert found == code, (out, err)
        return out, err

    return run


# ----------------------------------------------------------------------------------------- corpus


def _corpus_folder(config: pytest.Config) -> Path | None:
    folder: Path = config.getoption("--corpus")
    return folder.resolve() if folder.is_dir() else None


def _no_corpus(config: pytest.Config) -> str:
    return f"corpus: {config.getoption('--corpus')} is absent; give its place with --corpus DIR"


def corpus_files(config: pytest.Config, listname: str) -> list[Path]:
    """Return the models named in a list of the corpus (FLOAT.txt, ML.txt, ...), in its order."""
    folder = _corpus_folder(config)
    if folder is None:
        return []
    lines = (folder / listname).read_text(encoding="utf-8").split()
    return [folder / line for line in lines]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test marked `corpus("FLOAT.txt")` once per model, as argument `corpus_file`."""
    marker = metafunc.definition.get_closest_marker("corpus")
    if marker is None or "corpus_file" not in metafunc.fixturenames:
        return
    files = [file for name in marker.args for file in corpus_files(metafunc.config, name)]
    if files:
        metafunc.parametrize("corpus_file", files, ids=[file.name for file in files])
    else:
        skip = pytest.mark.skip(reason=_no_corpus(metafunc.config))
        metafunc.parametrize("corpus_file", [pytest.param(None, marks=skip, id="absent")])


@pytest.fixture(scope="session")
def corpus(request: pytest.FixtureRequest) -> Path:
    """The folder of the corpus."""
    folder = _corpus_folder(request.config)
    if folder is None:
        pytest.skip(_no_corpus(request.config))
    return folder


# -------------------------------------------------------------------------------- tools, processor


def need_tool_path(name: str) -> str:
    """Return the path of a program of `doctor.TOOLS`; skip (in CI: fail) where it is missing."""
    debian = {tool.name: tool.debian for tool in doctor.TOOLS}
    assert name in debian, f"add {name} to toolkit.doctor.TOOLS and scripts/setup.sh"
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"tool: {name} is not on PATH; Debian has it in the package {debian[name]}")
    return path


@pytest.fixture(scope="session")
def need_tool() -> Callable[[str], str]:
    """The function `need_tool(name)`: the path of a program, or a skip (in CI: a failure)."""
    return need_tool_path


@pytest.fixture(scope="session")
def need_cpu() -> Callable[[str], None]:
    """The function `need_cpu(name)`: skips where a feature of `doctor.CPU_FEATURES` is missing."""

    def need(name: str) -> None:
        assert name in {feature.name for feature in doctor.CPU_FEATURES}, name
        if name not in doctor.cpu_features():
            pytest.skip(f"cpu: this processor has no {name}")

    return need


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            need_tool_path(name)


# ----------------------------------------------------------------------------------- seeds, folders


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator that depends on --seed and the test's name; a failure shows the seed."""
    seed: int = request.config.getoption("--seed")
    print(f"rng: repeat with --seed {seed}")
    return np.random.default_rng([seed, zlib.crc32(request.node.name.encode())])


@pytest.fixture
def tmp_model_dir(tmp_path: Path) -> Path:
    """An empty folder whose name has a space and letters beyond ASCII, as users' folders do."""
    folder = tmp_path / "mein Modell é"
    folder.mkdir()
    return folder


# ---------------------------------------------------------------------------------- the skip rule


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in OPT_IN_FOLDERS:
            if item.path.is_relative_to(REPO / "tests" / name):
                item.add_marker(name)


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip that the rule does not allow in CI into a failure."""
    if not (report.skipped and _in_ci()) or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where only {ALLOWED_SKIPS} may be reasons: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[Any]:
    report = yield
    _fail_if_skipped(report)
    return report
