"""What goes wrong while candidates are built and measured, and that the others go on."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolkit.errors import MeasureError, ToolchainError
from toolkit.measure.candidates.host import HostMeasurer
from toolkit.measure.candidates.source import Alter
from toolkit.schedule.default import default_trace
from toolkit.schedule.examples import matmul
from toolkit.schedule.steps.split import Split
from toolkit.search.result import MeasureResult, Status
from toolkit.space.task import Candidate, candidate, Task
from toolkit.targets.target import get_target
from toolkit.toolchain.compiler import Compiler

TARGET = get_target("host")
TASK = Task(matmul(24, 32, 16), TARGET)
FACTORS = (1, 2, 3, 4, 6, 8, 12, 24)

OUTPUT = "y"
ENTRY = "(void *const *p) {\n"


def candidates(count: int = len(FACTORS)) -> list[Candidate]:
    """Return the default and others that compute the same in other loops."""
    default = candidate(TASK, default_trace(TASK.func, TARGET.isa), {}, origin="default")
    others = [candidate(TASK, (Split("i", (n,)),), {}) for n in FACTORS]
    return [default, *others][:count]


def altered(which: Candidate, code: str) -> Alter:
    """Put `code` before the call of one candidate's kernel."""

    def alter(one: Candidate, text: str) -> str:
        return text.replace(ENTRY, ENTRY + code + "\n") if one.key == which.key else text

    return alter


@contextmanager
def measurer(folder: Path, alter: Alter | None = None, **more: object) -> Iterator[HostMeasurer]:
    with HostMeasurer(TARGET, cache_dir=folder, alter=alter, **more) as made:  # type: ignore[arg-type]
        yield made


def only_wrong(results: list[MeasureResult], at: int, status: Status) -> str:
    """Assert that one result alone is a failure; return its detail."""
    states = [r.status for r in results]
    assert states == [status if i == at else Status.OK for i in range(len(results))], results[at]
    assert not results[at].samples
    assert all(r.samples for i, r in enumerate(results) if i != at)
    assert "\n" not in results[at].detail
    return results[at].detail


def reproduce(detail: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command that a detail ends with."""
    command = detail.split("reproduce: ")[1]
    assert str(folder) in command
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for tests that do not look into it: it holds the precompiled header."""
    return tmp_path_factory.mktemp("cache")


INJECTED = [
    ("*(volatile int *)0 = 1;", Status.CRASHED, "SIGSEGV"),
    ("__builtin_trap();", Status.CRASHED, "SIGILL"),
    ("((float *)p[0])[24 * 32] = 1.0f;", Status.CRASHED, "SIGSEGV"),
    ("((float *)p[0])[-1] = 1.0f;", Status.WRONG_RESULT, "wrote before output 'y'"),
    ("((float *)p[1])[5] = 1.0f;", Status.WRONG_RESULT, "wrote into its input 'a'"),
    ("if (*(volatile float *)((float *)p[1] + 24 * 16) > 0.0f) return;", Status.CRASHED, "SIGSEGV"),
]


@pytest.mark.parametrize(("code", "status", "text"), INJECTED, ids=[i[0][:20] for i in INJECTED])
def test_a_bad_candidate_costs_itself_alone(
    cache: Path, code: str, status: Status, text: str
) -> None:
    some = candidates(4)
    with measurer(cache, altered(some[2], code)) as host:
        detail = only_wrong(host.measure(some), 2, status)
    assert text in detail
    assert reproduce(detail, cache).returncode != 0


def test_a_wrong_result_names_the_first_element_and_a_program_that_shows_it(cache: Path) -> None:
    some = candidates(4)

    def alter(one: Candidate, text: str) -> str:
        end = "}\n"
        assert text.rstrip().endswith("}")
        bad = "    ((float *)p[0])[3 * 32 + 7] += 0.5f;\n"
        return text.rstrip()[:-1] + bad + end if one.key == some[1].key else text

    with measurer(cache, alter) as host:
        detail = only_wrong(host.measure(some), 1, Status.WRONG_RESULT)
    assert "y[3, 7] is " in detail
    assert "(1 of 768 elements differ)" in detail
    done = reproduce(detail, cache)
    assert done.returncode == 1, done.stderr
    assert f"y[{3 * 32 + 7}] is " in done.stdout


def test_elements_that_were_not_written_are_wrong(cache: Path) -> None:
    some = candidates(3)
    with measurer(cache, altered(some[2], "if (p) return;")) as host:
        detail = only_wrong(host.measure(some), 2, Status.WRONG_RESULT)
    assert "y[0, 0] is nan" in detail


def test_a_candidate_that_never_ends_is_stopped_soon(cache: Path) -> None:
    some = candidates(4)
    code = "volatile int forever = 1; while (forever) { }"
    with measurer(cache, altered(some[3], code)) as host:
        host.measure(some[:1])
        start = time.monotonic()
        detail = only_wrong(host.measure(some), 3, Status.TIMED_OUT)
        took = time.monotonic() - start
    assert "did not end within 0.5 s" in detail
    assert took < 60, "the limit comes from the task's own times, not from a constant"


def test_a_candidate_that_does_not_compile_is_found_among_others(cache: Path) -> None:
    some = candidates(9)
    with measurer(cache, altered(some[5], "this is no C;")) as host:
        detail = only_wrong(host.measure(some), 5, Status.BUILD_FAILED)
    assert "does not compile: " in detail
    assert "unknown type name" in detail
    done = reproduce(detail, cache)
    assert done.returncode != 0
    assert "this is no C" in done.stderr


def test_unrolling_without_measure_is_refused_before_it_is_printed(cache: Path) -> None:
    from toolkit.schedule.steps.annotate import Unroll

    big = Task(matmul(64, 64, 64), TARGET)
    whole = candidate(big, tuple(Unroll(loop) for loop in ("i", "j", "k")), {})
    with measurer(cache) as host:
        (result,) = host.measure([whole])
    assert result.status == Status.TOO_BIG
    assert "statements" in result.detail


def test_scratch_beyond_the_limit_is_too_big(cache: Path) -> None:
    small = Task(TASK.func, TARGET, scratch_limit_bytes=64)
    plain = candidate(small, (), {})
    with measurer(cache) as host:
        (result,) = host.measure([plain])
    assert result.status == Status.TOO_BIG
    assert "3072 bytes of scratch, more than 64" in result.detail


def test_a_killed_worker_is_replaced(cache: Path) -> None:
    some = candidates(4)
    with measurer(cache) as host:
        host.measure(some[:1])
        assert host.child is not None
        os.kill(host.child.process.pid, signal.SIGKILL)
        host.child.process.wait()
        assert [r.status for r in host.measure(some)] == [Status.OK] * 4


def script(path: Path, text: str) -> Compiler:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Compiler(str(path))


def test_without_a_compiler_there_is_one_clear_line(tmp_path: Path) -> None:
    missing = Compiler(str(tmp_path / "no-such-gcc"))
    refusal = pytest.raises(ToolchainError, match="no-such-gcc cannot be started: No such file")
    with measurer(tmp_path / "cache", compiler=missing) as host, refusal:
        host.measure(candidates(2))


def test_a_compiler_that_is_killed_fails_its_candidate_alone(tmp_path: Path) -> None:
    """The driver's own death, at the first file that holds the marked kernel."""
    some = candidates(4)
    gcc = script(
        tmp_path / "gcc",
        'for a in "$@"; do case "$a" in *unit.c) grep -q MARK "$a" && kill -9 $$;; esac; done\n'
        'exec gcc "$@"\n',
    )
    with measurer(tmp_path / "cache", altered(some[1], "/* MARK */"), compiler=gcc) as host:
        detail = only_wrong(host.measure(some), 1, Status.BUILD_FAILED)
    assert "the compiler was killed by signal 9" in detail


def test_a_compiler_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    from toolkit.toolchain.compiler import call_compiler

    gcc = script(
        tmp_path / "gcc", f"sleep 100 & echo $! > {shlex.quote(str(tmp_path / 'pid'))}\nwait\n"
    )
    start = time.monotonic()
    done = call_compiler([gcc.command], timeout_s=0.5)
    assert done.code is None
    assert time.monotonic() - start < 50
    child = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not alive(child):
            break
        time.sleep(0.05)
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(MeasureError, match=r"cannot write in the cache .*: Not a directory"):
        HostMeasurer(TARGET, cache_dir=place / "cache")


def test_a_disk_that_fills_up_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with measurer(tmp_path) as host:
        host.measure(candidates(1))
        monkeypatch.setattr(Path, "write_text", full)
        with pytest.raises(MeasureError, match=r"cannot write in the cache .*: No space left"):
            host.measure(candidates(3))
        monkeypatch.undo()
        assert [r.status for r in host.measure(candidates(3))] == [Status.OK] * 3


def test_a_full_disk_that_the_compiler_meets_is_one_clear_line(tmp_path: Path) -> None:
    gcc = script(
        tmp_path / "gcc",
        'case "$*" in *unit.c*) echo "ld: final link failed: No space left on device" >&2; exit 1;;'
        ' esac\nexec gcc "$@"\n',
    )
    refusal = pytest.raises(MeasureError, match="No space left on device")
    with measurer(tmp_path / "cache", compiler=gcc) as host, refusal:
        host.measure(candidates(3))


def test_a_run_that_was_killed_while_it_wrote_leaves_a_whole_cache(tmp_path: Path) -> None:
    """Half files stand only in `work`, which nobody reads."""
    some = candidates(3)
    with measurer(tmp_path) as host:
        host.measure(some)
        before = sorted(p.name for p in (tmp_path / "units").iterdir())
    (tmp_path / "work" / "left").mkdir()
    (tmp_path / "work" / "left" / "unit.so").write_bytes(b"half")
    for path in list((tmp_path / "units").iterdir())[:1]:
        path.unlink()  # links to it dangle
    with measurer(tmp_path) as host:
        assert [r.status for r in host.measure(some)] == [Status.OK] * 3
    assert len(before) == len(list((tmp_path / "units").iterdir()))


def test_a_cache_that_somebody_empties_meanwhile_is_filled_again(tmp_path: Path) -> None:
    some = candidates(4)
    with measurer(tmp_path) as host:
        host.measure(some[:2])
        for path in (tmp_path / "units").iterdir():
            path.unlink()
        assert host.child is not None
        host.child.process.kill()  # which still had the libraries
        host.child.process.wait()
        assert [r.status for r in host.measure(some[2:])] == [Status.OK] * 2
        assert [r.status for r in host.measure(some)] == [Status.OK] * 4


def test_threads_that_share_a_cache_do_not_disturb_each_other(tmp_path: Path) -> None:
    some = candidates(3)
    found: list[list[Status]] = []

    def run(measure: Callable[..., list[MeasureResult]]) -> None:
        found.append([r.status for r in measure(some)])

    with measurer(tmp_path) as one, measurer(tmp_path) as other:
        threads = [threading.Thread(target=run, args=(m.measure,)) for m in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [[Status.OK] * 3] * 2
