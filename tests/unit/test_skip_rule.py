"""The rule of tests/conftest.py: in CI nothing skips for a missing tool."""

from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
INI = "[pytest]\nmarkers =\n    needs(tool)\n    corpus(list)\n    board\n    bench\n"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with our conftest, no programs on PATH and no corpus."""
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    monkeypatch.setenv("PATH", str(pytester.path))
    monkeypatch.setenv("PYTHONPATH", str(CONFTEST.parents[1]))
    monkeypatch.delenv("CI", raising=False)
    return pytester


def _run(suite: pytest.Pytester, *args: str) -> pytest.RunResult:
    return suite.runpytest_subprocess("-rsfE", *args)


MISSING_TOOL = """
    import pytest

    def test_by_function(need_tool):
        need_tool("arm-none-eabi-gcc")

    @pytest.mark.needs("qemu-system-arm")
    def test_by_marker():
        pass
"""


def test_a_missing_tool_skips_at_home_and_names_its_package(suite: pytest.Pytester) -> None:
    suite.makepyfile(MISSING_TOOL)
    result = _run(suite)
    result.assert_outcomes(skipped=2)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*arm-none-eabi-gcc is not on PATH; Debian has it in the package gcc-arm-none-eabi*"]
    )


@pytest.mark.parametrize("args", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_a_missing_tool_fails_in_ci(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(MISSING_TOOL)
    result = _run(suite, *args)
    assert result.ret == 1
    result.assert_outcomes(failed=1, errors=1)  # what fails before the call is an error
    result.stdout.fnmatch_lines(["*gcc-arm-none-eabi*"])


def test_a_tool_that_is_there_is_returned(suite: pytest.Pytester) -> None:
    program = suite.path / "gcc"
    program.write_text("")
    program.chmod(0o755)
    suite.makepyfile(f"def test_it(need_tool): assert need_tool('gcc') == {str(program)!r}")
    _run(suite).assert_outcomes(passed=1)


@pytest.mark.parametrize("reason", ["cpu: no AVX2", "corpus: absent"])
def test_processor_and_corpus_may_skip_in_ci(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(f"import pytest\ndef test_it(): pytest.skip({reason!r})")
    result = _run(suite)
    result.assert_outcomes(skipped=1)
    assert result.ret == 0


@pytest.mark.parametrize(
    "source",
    [
        "import pytest\n@pytest.mark.skip(reason='later')\ndef test_it(): pass",
        "import pytest\n@pytest.mark.skipif(True, reason='later')\ndef test_it(): pass",
        "import pytest\ndef test_it(): pytest.importorskip('no_such_module')",
        "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass",
        "import pytest\npytest.skip('later', allow_module_level=True)",
    ],
)
def test_any_other_skip_fails_in_ci(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(source)
    result = _run(suite)
    assert result.ret in (1, 2)
    assert "skipped in CI" in result.stdout.str()


def test_an_expected_failure_is_not_a_skip(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile("import pytest\n@pytest.mark.xfail\ndef test_it(): assert False")
    result = _run(suite)
    result.assert_outcomes(xfailed=1)
    assert result.ret == 0


CORPUS_TEST = """
    import pytest

    @pytest.mark.corpus("LIST.txt")
    def test_by_list(corpus_file):
        assert corpus_file.read_text() == "model"

    def test_by_folder(corpus):
        assert (corpus / "LIST.txt").is_file()
"""


def test_an_absent_corpus_skips_with_its_place(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile(CORPUS_TEST)
    result = _run(suite, "--corpus", "no/such/folder")
    result.assert_outcomes(skipped=2)
    assert result.ret == 0
    assert "no/such/folder is absent" in result.stdout.str()


@pytest.mark.parametrize("args", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_a_corpus_list_makes_one_test_per_model(
    suite: pytest.Pytester, args: tuple[str, ...]
) -> None:
    folder = suite.mkdir("models")
    (folder / "LIST.txt").write_text("a.onnx\nb.onnx\n")
    for name in ("a.onnx", "b.onnx"):
        (folder / name).write_text("model")
    suite.makepyfile(CORPUS_TEST)
    _run(suite, "--corpus", "models", *args).assert_outcomes(passed=3)
