"""Four QEMU boards of two kinds on two workers: undisturbed, and with what goes wrong in a lab."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("distributed")

import psutil

from benchmarks.models import Net
from toolkit.cli import run
from toolkit.farm import measurer as farm_measurer
from toolkit.farm.cluster import connector, local_farm
from toolkit.farm.measurer import Farm, FarmMeasurer
from toolkit.farm.plan import load_plan
from toolkit.lowering.tasks import tasks_of
from toolkit.pipeline import compile_model, load, Options
from toolkit.search.cost_model import BoostedTrees
from toolkit.search.records import Records
from toolkit.search.result import MeasureResult
from toolkit.search.strategies import get_strategy
from toolkit.space.spaces import load_space
from toolkit.space.task import Candidate
from toolkit.space.validate import validate
from toolkit.targets.board import load_board

pytestmark = pytest.mark.qemu

KINDS = ("qemu_mps2_an386", "qemu_mps2_an500")
PLAN = f"""
workers = 2
lost_after_s = 4
[[board]]
name = "{KINDS[0]}"
count = 2
[[board]]
name = "{KINDS[1]}"
count = 2
"""


@pytest.fixture(scope="module", autouse=True)
def tools(need_tool: Callable[[str], str]) -> None:
    need_tool("qemu-system-arm")
    need_tool("arm-none-eabi-gcc")


@pytest.fixture(scope="module")
def plan_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("farm") / "farm.toml"
    path.write_text(PLAN, encoding="utf-8")
    return path


def candidates(board: str, count: int) -> list[Candidate]:
    """Draw candidates of a small product for a kind of board; equal in every call."""
    n = Net("farm_gemm")
    y = n.node("MatMul", (n.input("x", 4, 24), n.normal("w", (24, 16), 0.2)))
    compiled = compile_model(load(n.model(y)), Options(target=load_board(board).target))
    task, *_ = tasks_of(compiled.graph, compiled.model.ops, compiled.program, compiled.target)
    strategy = get_strategy("random")(
        task, load_space("metaschedule").sketches(task), random.Random(5), BoostedTrees(), validate
    )
    return strategy.ask(count)


@contextmanager
def farm_of(address: str, board: str, notes: list[str]) -> Iterator[FarmMeasurer]:
    farm = Farm(connector(address), load_board(board), patience_s=60.0, on_note=notes.append)
    with farm:
        yield FarmMeasurer(farm, candidates(board, 1)[0].task.target)


class Both:
    """Both kinds measured at the same time, each by a tuner's measurer of its own."""

    def __init__(self, address: str, count: int) -> None:
        self.results: dict[str, list[MeasureResult]] = {}
        self.notes: list[str] = []
        self.used: dict[str, int] = {}
        self.errors: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._measure, args=(address, kind, count)) for kind in KINDS
        ]

    def _measure(self, address: str, kind: str, count: int) -> None:
        try:
            with farm_of(address, kind, self.notes) as measurer:
                self.results[kind] = measurer.measure(candidates(kind, count))
                self.used |= measurer.farm.used
        except BaseException as error:
            self.errors.append(error)
            raise

    def __enter__(self) -> Both:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self.threads:
            thread.join(120)
        assert not self.errors

    def plain(self) -> dict[str, list[tuple[str, tuple[float, ...]]]]:
        return {k: [(str(r.status), r.samples) for r in v] for k, v in self.results.items()}


def qemus(workers: Sequence[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    """Return the QEMU processes of workers."""
    found = []
    for worker in workers:
        try:
            children = psutil.Process(worker.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            continue
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # boards are started for each image
                if child.name().startswith("qemu-system"):
                    found.append(child)
    return found


def hang(processes: Sequence[psutil.Process]) -> bool:
    """Stop a process, if there is one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in processes[:1]:
            process.send_signal(signal.SIGSTOP)
            return True
    return False


def stopped(processes: Sequence[psutil.Process]) -> bool:
    """Tell whether one of them is stopped."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                return True
    return False


def until(what: Callable[[], object], timeout_s: float = 60.0) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_worker_that_is_killed_and_a_board_that_hangs_change_nothing(
    plan_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farm_measurer, "JOB_TRIALS", 2)
    plan = load_plan(plan_path)
    with local_farm(plan_path, plan) as (address, workers), Both(address, 8) as calm:
        pass
    assert not calm.notes
    assert sum(calm.used.values()) == 2 * 4
    with local_farm(plan_path, plan) as (address, workers), Both(address, 8) as hurt:
        until(lambda: qemus(workers[1:]))
        workers[1].kill()
        while not hurt.notes:  # a board may be done in the moment it is stopped
            until(lambda: hurt.notes or hang(qemus(workers[:1])))
            until(lambda: hurt.notes or not stopped(qemus(workers[:1])))
    assert hurt.plain() == calm.plain()
    assert sum(hurt.used.values()) == 2 * 4  # no job was answered twice
    assert any("farm: qemu_mps2_an" in note for note in hurt.notes)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_a_scheduler_that_restarts_loses_nothing(
    plan_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farm_measurer, "JOB_TRIALS", 2)
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"

    def scheduler() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1",
             "--port", str(port), "--no-dashboard"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    running = [scheduler()]
    try:
        running.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "from toolkit.cli import main; main()",
                    "farm",
                    "worker",
                    address,
                    "--plan",
                    str(plan_path),
                    "-q",
                ],
                stdout=subprocess.DEVNULL,
            )
        )
        until(lambda: answers(port))
        notes: list[str] = []
        with farm_of(address, KINDS[0], notes) as measurer:
            until(lambda: measurer.farm.places() == 2)
            asked = candidates(KINDS[0], 8)
            calm = measurer.measure(asked)
            measurer.best.clear()  # as at the start, so that limits are the same
            found: list[list[MeasureResult]] = []
            thread = threading.Thread(target=lambda: found.append(measurer.measure(asked)))
            thread.start()
            until(lambda: qemus(running[1:2]))
            running[0].kill()
            running[0].wait()
            running[0] = scheduler()
            thread.join(120)
            assert [(r.status, r.samples) for r in found[0]] == [
                (r.status, r.samples) for r in calm
            ]
            assert any("the scheduler is gone" in note for note in notes)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)


def answers(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def test_tuning_on_a_farm_keeps_what_one_board_would(
    plan_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    n = Net("farm_gemm")
    y = n.node("MatMul", (n.input("x", 4, 24), n.normal("w", (24, 16), 0.2)))
    path = tmp_path / "gemm.onnx"
    path.write_bytes(n.model(y).SerializeToString())
    said = tmp_path / "said.json"
    code = run(
        ["tune", str(path), "--board", KINDS[0], "--farm", str(plan_path), "--trials", "12",
         "--batch", "6", "--seed", "3", "--json", str(said)]
    )  # fmt: skip
    assert code == 0, capsys.readouterr().err
    (outcome,) = json.loads(said.read_text(encoding="utf-8"))["models"]
    assert outcome["unit"] == "instructions"
    with Records(path.with_suffix(".records.db"), readonly=True) as records:
        (task,) = records.tasks()
        trials = records.trials(task.key, unit="instructions")
    assert len({t.candidate_key for t in trials}) == len(trials)
    assert 12 <= len(trials) <= 13  # and the default
    assert outcome["tuned"] <= outcome["default"]


def test_what_cannot_be_asked_of_a_farm_is_refused(
    plan_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    n = Net("farm_add")
    path = tmp_path / "add.onnx"
    path.write_bytes(n.model(n.node("Relu", (n.input("x", 4, 8),))).SerializeToString())
    for extra, what in (
        (["--farm", str(plan_path)], "a farm measures on a kind of board, not on 'host'"),
        (["--board", "qemu_microbit", "--farm", str(plan_path)], "has no board 'qemu_microbit'"),
        (["--board", KINDS[0], "--farm", str(tmp_path / "no.toml")], "no.toml cannot be read"),
        (["--board", KINDS[0], "--dask", "tcp://127.0.0.1:1"], "no Dask scheduler answers"),
        (["--farm", str(plan_path), "--dask", "tcp://127.0.0.1:1"], "here or elsewhere, not both"),
    ):
        assert run(["tune", str(path), *extra]) == 2
        assert what in capsys.readouterr().err
    assert not path.with_suffix(".records.db").exists()


def test_a_farm_with_certificates_lets_in_who_has_one(
    tmp_path: Path, plan_path: Path, need_tool: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def openssl(*words: str) -> None:
        command = [need_tool("openssl"), *words]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    openssl("req", *key, "-keyout", "key.pem", "-out", "lab.csr", "-subj", "/CN=lab")
    openssl(
        "x509", "-req", "-in", "lab.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
        "-out", "cert.pem",
    )  # fmt: skip
    port = free_port()
    address = f"tls://127.0.0.1:{port}"
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1",
             "--protocol", "tls", "--port", str(port), "--no-dashboard", "--tls-ca-file", "ca.pem",
             "--tls-cert", "cert.pem", "--tls-key", "key.pem"],
            cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
    ]  # fmt: skip
    try:
        until(lambda: answers(port))
        command = ["farm", "worker", address, "--plan", str(plan_path), "--tls", str(tmp_path)]
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", "from toolkit.cli import main; main()", *command, "-q"],
                stdout=subprocess.DEVNULL,
            )
        )
        until(lambda: run(["farm", "status", address, "--tls", str(tmp_path)]) == 0)
        assert capsys.readouterr().out.count("free") >= 4
        assert run(["farm", "status", address]) == 2
        assert "--tls DIR" in capsys.readouterr().err
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(20)


def test_status_lists_the_boards(plan_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with local_farm(plan_path, load_plan(plan_path)) as (address, _):
        with farm_of(address, KINDS[0], []) as measurer:
            until(lambda: measurer.farm.places() == 2)
        assert run(["farm", "status", address]) == 0
        out = capsys.readouterr().out
    for kind in KINDS:
        assert out.count(f"{kind}#") == 2
    assert out.count("free") == 4
    assert os.uname().nodename in out
