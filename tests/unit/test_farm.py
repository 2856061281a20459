"""A farm's file, the boards of a worker, and jobs that are told again; nothing is measured here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from distributed import Client, get_worker, LocalCluster

from toolkit.errors import BoardError, NestlingError
from toolkit.farm import measurer as farm_measurer
from toolkit.farm.boards import Boards, FORGIVEN, STRIKES
from toolkit.farm.cluster import first_connection, tls
from toolkit.farm.jobs import (
    job_candidates,
    measure_job,
    Reply,
    result_from_json,
    result_to_json,
)  # fmt: skip
from toolkit.farm.measurer import _Open, ATTEMPTS, Farm
from toolkit.farm.plan import load_plan, Place, Plan, RESOURCE, resources
from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder
from toolkit.schedule.steps.split import Split
from toolkit.search.result import MeasureResult, Status
from toolkit.space.task import candidate, Task
from toolkit.targets.board import load_board
from toolkit.targets.target import get_target

AN386 = "qemu_mps2_an386"

# ---- the file ----

GOOD = f"""
workers = 2
lost_after_s = 2.5
[[board]]
name = "{AN386}"
count = 3
[[board]]
name = "nucleo_f446re"
port = "usb:066BFF"
"""


def write(folder: Path, text: str) -> Path:
    (folder / "farm.toml").write_text(text, encoding="utf-8")
    return folder / "farm.toml"


def test_a_plan_is_read_and_shared_out(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, GOOD))
    here, nucleo = Place(AN386), Place("nucleo_f446re", "usb:066BFF")
    assert plan == Plan((here, here, here, nucleo), 2, 2.5, 60.0)
    assert plan.share(0).places == (here, here)
    assert plan.share(1).places == (here, nucleo)
    assert resources(plan.places) == {RESOURCE + AN386: 3.0, RESOURCE + "nucleo_f446re": 1.0}


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("workers = 2", "workers = 0", "'workers' must be positive, not 0"),
        ("workers = 2", 'workers = "two"', "'workers' has a value of the wrong kind"),
        ("workers = 2", "wokers = 2", "'wokers' is unknown"),
        ("count = 3", "count = 0", r"board\[0\].count must be a positive number, not 0"),
        ("count = 3", "counts = 3", r"board\[0\].counts is unknown"),
        (AN386, "qemu_mps2", "board 'qemu_mps2' is unknown"),
        (AN386, "host", "board 'host' takes no firmware"),
        ('port = "usb:066BFF"', "count = 2", "only boards in QEMU can be counted"),
        ('port = "usb:066BFF"', "port = 3", r"board\[1\].port must be a port, not 3"),
        ("[[board]]", "[[board]", "cannot be read: .*line"),
        (GOOD, "workers = 1", "there is no board"),
        (
            "count = 3", 'port = "usb:066BFF"', "2 boards have port 'usb:066BFF'",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_named(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in GOOD
    with pytest.raises(BoardError, match=what):
        load_plan(write(tmp_path, GOOD.replace(old, new, 1)))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match=r"farm.toml cannot be read: No such file"):
        load_plan(tmp_path / "farm.toml")


def test_tls_needs_its_three_files(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    with pytest.raises(BoardError, match=r"--tls .*: cert.pem is missing"):
        tls(tmp_path)
    assert tls(None) is None
    with pytest.raises(BoardError, match=r"tls://10.0.0.1:8786 is encrypted"):
        tls(None, "tls://10.0.0.1:8786")


def test_no_scheduler_is_one_line() -> None:
    with pytest.raises(BoardError, match=r"no Dask scheduler answers at tcp://127.0.0.1:1:"):
        first_connection("tcp://127.0.0.1:1")


# ---- what travels ----


def test_candidates_and_results_arrive_as_they_were() -> None:
    x = placeholder((64,), "float32", "x")
    func = build([compute((64,), lambda i: x[i] * 2.0, "y")], [x], "twice")
    task = Task(func, get_target("cortex-m4"), (("x", "y"),), scratch_limit_bytes=100)
    made = [candidate(task, trace, {}) for trace in ((), (Split("i", (4,)),))]
    back = job_candidates(measure_job(task, made, seed=1, best=5.0, compare=False))
    assert [c.key for c in back] == [c.key for c in made]
    assert [str(c.func) for c in back] == [str(c.func) for c in made]
    assert {c.task.key for c in back} == {task.key}
    assert back[0].task.scratch_limit_bytes == 100
    result = MeasureResult(Status.OK, "instructions", (1.0, 2.0), 3, None, "", "board", False)
    assert result_from_json(result_to_json(result)) == result


# ---- boards of a worker ----


def test_a_board_that_fails_three_times_is_not_used_any_more() -> None:
    gone: list[str] = []

    def fail(slot: object) -> object:
        raise BoardError("it hangs")

    with Boards([Place(AN386), Place(AN386)], on_quarantine=gone.append) as boards:
        replies = [boards._with_board(AN386, fail) for _ in range(2 * STRIKES)]
        assert all("it hangs" in r.lost for r in replies)
        assert [r.quarantined for r in replies].count(True) == 2
        assert gone == [AN386, AN386]
        assert "all boards" in boards._with_board(AN386, lambda slot: 1).lost
        assert [r["quarantined"] for r in boards.report()] == [True, True]
        assert "it hangs" in boards.report()[0]["why"]


def test_a_failure_is_forgiven_after_jobs_that_went_well() -> None:
    def fail(slot: object) -> object:
        raise BoardError("noise")

    with Boards([Place(AN386)]) as boards:
        for _ in range(STRIKES - 1):
            boards._with_board(AN386, fail)
        for _ in range(FORGIVEN):
            assert boards._with_board(AN386, lambda slot: 7).values == 7
        assert boards.slots[0].failures == STRIKES - 2


def test_one_job_a_board_at_a_time() -> None:
    inside, most = [0], [0]
    lock = threading.Lock()
    pause = threading.Event()

    def work(slot: object) -> object:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        pause.wait(0.02)
        with lock:
            inside[0] -= 1
        return None

    with Boards([Place(AN386), Place(AN386)]) as boards:
        threads = [
            threading.Thread(target=boards._with_board, args=(AN386, work)) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most[0] == 2


def test_our_own_errors_leave_the_board_free_and_blameless() -> None:
    def wrong(slot: object) -> object:
        raise NestlingError("a kernel that nobody can print")

    with Boards([Place(AN386)]) as boards:
        with pytest.raises(NestlingError):
            boards._with_board(AN386, wrong)
        assert (boards.slots[0].busy, boards.slots[0].failures) == (False, 0)


# ---- jobs ----


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0", resources={RESOURCE + AN386: 2},
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):  # fmt: skip
        yield client


@pytest.fixture
def farm(client: Client) -> Iterator[Farm]:
    notes: list[str] = []
    farm = Farm(lambda: client, load_board(AN386), patience_s=1.0, on_note=notes.append)
    yield farm
    tried.clear()


tried: dict[int, int] = {}


def _flaky(board: str, job: dict[str, int]) -> Reply:
    """Fail as often as the job says, then answer."""
    assert get_worker() is not None
    assert board == AN386
    times = tried[job["number"]] = tried.get(job["number"], 0) + 1
    if times <= job["failures"]:
        return Reply(None, f"failure {times}", f"board {times}", times, times >= STRIKES)
    return Reply(job["number"], "", f"board {times}")


def test_each_job_is_answered_once_though_boards_fail(farm: Farm) -> None:
    assert farm.places() == 2
    jobs = [_Open((n,), {"number": n, "failures": n % ATTEMPTS}, _flaky) for n in range(9)]
    done = farm.do(jobs)
    assert {n: reply.values for n, (_, reply) in done.items()} == {n: n for n in range(9)}
    assert all(tried[n] == 1 + n % ATTEMPTS for n in range(9))


def test_a_job_that_no_board_can_do_ends_as_the_boards_failure(farm: Farm) -> None:
    notes: list[str] = []
    farm.on_note = notes.append
    ((_, reply),) = farm.do([_Open((0,), {"number": 0, "failures": 9}, _flaky)]).values()
    assert (reply.values, reply.lost, tried[0]) == (None, f"failure {ATTEMPTS}", ATTEMPTS)
    assert notes[-1] == f"farm: board {ATTEMPTS} failed {ATTEMPTS} times and is not used any more"


def _refuse(board: str, job: dict[str, int]) -> Reply:
    raise NestlingError("kernel k has no form here")


def _break(board: str, job: dict[str, int]) -> Reply:
    raise ZeroDivisionError("division by zero")


def test_a_worker_that_fails_says_why(farm: Farm) -> None:
    with pytest.raises(NestlingError, match="kernel k has no form here"):
        farm.do([_Open((0,), {}, _refuse)])
    with pytest.raises(NestlingError, match="a worker of the farm failed: ZeroDivisionError"):
        farm.do([_Open((0,), {}, _break)])


def test_a_farm_without_the_board_is_given_up(client: Client) -> None:
    farm = Farm(lambda: client, load_board("qemu_microbit"), patience_s=1.0)
    with pytest.raises(BoardError, match="the farm has had no board 'qemu_microbit' for 1 s"):
        farm.do([_Open((0,), {"number": 0, "failures": 0}, _flaky)])


def test_jobs_hold_candidates_of_one_task_each() -> None:
    x = placeholder((8,), "float32", "x")
    tasks = [
        Task(build([compute((8,), lambda i, c=c: x[i] + c, "y")], [x]), get_target("cortex-m4"))
        for c in (1.0, 2.0)
    ]
    mixed = [candidate(tasks[i % 2], (), {}) for i in range(2 * farm_measurer.JOB_TRIALS + 2)]
    parts = farm_measurer._parts(mixed)
    assert sorted(n for p in parts for n in p) == list(range(len(mixed)))
    assert all(len({mixed[n].task.key for n in p}) == 1 for p in parts)
    assert max(map(len, parts)) == farm_measurer.JOB_TRIALS
