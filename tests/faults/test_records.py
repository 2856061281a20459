"""Whatever happens to a process or a disk, the database of trials stays whole and says so."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.record_maker import batches, task
from toolkit.errors import RecordsError
from toolkit.search.database import APPLICATION_ID, MIGRATIONS
from toolkit.search.records import Records

SIZE = 4
FORK = multiprocessing.get_context("fork")


def child(work: Callable[[], None]) -> int:
    """Do something in a process of its own; return its exit code, minus the signal if killed."""
    process = FORK.Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def write_for_ever(path: Path, seed: int, told: str) -> None:
    """Add batches, one after another; say each that was kept by a byte in the file `told`."""
    work = task()
    make = batches(work, SIZE, seed)
    prepared = [next(make) for _ in range(6)]
    done = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(done, b"s")
    with Records(path) as db:
        run = db.resume_run(seed=1, models=["m"], settings={}) or db.start_run(
            "tune", seed=1, models=["m"], settings={}
        )
        count = (run.state or {"batches": 0})["batches"]
        for batch in itertools.cycle(prepared):
            count += 1
            db.add(batch, run=run, round=count, state={"batches": count},
                   task_states={work.key: {"generation": count}})  # fmt: skip
            os.write(done, b"k")


def whole(path: Path) -> tuple[int, int]:
    """Check a database that a killed process left; return its trials, and its run's batches."""
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    db.close()
    with Records(path) as records:
        trials, runs = records.trials(), records.runs()
        assert len(trials) % SIZE == 0
        if not runs or runs[0].state is None:
            assert not trials
            return 0, 0
        (run,) = runs
        assert list(run.tasks.values()) == [{"generation": run.state["batches"]}]
        assert {t.run for t in trials} == {run.uid}
        return len(trials), run.state["batches"]


def killed(path: Path, seed: int, told: Path, count: int, after_s: float) -> int:
    """Start a writer, kill it some time after a batch; return how many it said it kept."""
    told.write_bytes(b"")
    process = FORK.Process(target=write_for_ever, args=(path, seed, str(told)))
    process.start()
    while len(told.read_bytes()) < 1 + count:
        assert process.is_alive()
        time.sleep(0.0005)
    time.sleep(after_s)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return told.read_bytes().count(b"k")


def test_kill_9_at_any_moment_loses_at_most_the_batch_in_flight(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    path = tmp_path / "net.records.db"
    draw = random.Random(int(rng.integers(2**31)))
    kept = 0
    for turn in range(40):
        after_s = draw.random() * 0.02
        said = killed(path, turn, tmp_path / "told", draw.randrange(4), after_s)
        if not path.exists():
            assert said == 0
            continue
        trials, count = whole(path)
        assert trials == count * SIZE, "a batch and the state of its run are one"
        assert kept + said <= count <= kept + said + 1
        kept = count
    assert kept >= 40


def test_kill_9_while_the_database_is_made(tmp_path: Path, rng: np.random.Generator) -> None:
    draw = random.Random(int(rng.integers(2**31)))
    made = 0
    for turn in range(25):
        path = tmp_path / f"{turn}.db"
        killed(path, turn, tmp_path / "told", 0, draw.random() * 0.004 * turn)
        if path.exists():
            whole(path)
            made += 1
    assert made


def test_two_writers_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "x.db"

    def write(seed: int) -> None:
        make = batches(task(), SIZE, seed)
        for round in range(10):
            with Records(path) as db:  # opened anew each time: making it is a race too
                db.add(next(make), round=round)

    writers = [FORK.Process(target=write, args=(seed,)) for seed in (1, 2, 3)]
    for w in writers:
        w.start()
    for w in writers:
        w.join(60)
    assert [w.exitcode for w in writers] == [0, 0, 0]
    with Records(path) as db:
        assert len(db.trials()) == 3 * 10 * SIZE


def test_a_reader_sees_whole_batches_while_another_writes(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    make = batches(task(), SIZE)
    with Records(path) as writer:
        writer.add(next(make))
        with writer.transaction() as db:
            db.execute("DELETE FROM trials WHERE id = 1")
            with Records(path, readonly=True) as reader:
                assert len(reader.trials()) == SIZE
            db.execute("INSERT INTO sketches VALUES ('half', '[]')")
        with Records(path, readonly=True) as reader, reader.snapshot():
            assert len(reader.trials()) == SIZE - 1
            writer.add(next(make))
            assert len(reader.trials()) == SIZE - 1
        assert len(writer.trials()) == 2 * SIZE - 1


@pytest.fixture
def full(tmp_path: Path) -> tuple[Path, list[object]]:
    """Return a database of one batch, and what it holds."""
    path = tmp_path / "net.records.db"
    with Records(path) as db:
        db.add(next(batches(task(), SIZE)))
        return path, [t.result for t in db.trials()]


def kept(path: Path) -> list[object]:
    with Records(path) as db:
        return [t.result for t in db.trials()]


def test_a_full_disk_loses_only_the_batch(full: tuple[Path, list[object]]) -> None:
    path, before = full
    with Records(path) as db:
        (pages,) = db._db.execute("PRAGMA page_count").fetchone()
        db._db.execute(f"PRAGMA max_page_count = {pages}")
        make = batches(task(17), 8, 2)
        with pytest.raises(RecordsError, match="cannot be written: the disk is full") as refused:
            any(db.add(batch) for batch in itertools.islice(make, 20))  # type: ignore[func-returns-value]
        assert "what was there before is whole" in str(refused.value)
        db._db.execute("PRAGMA max_page_count = 100000")
        count = len(db.trials())
        db.add(next(batches(task(18), SIZE)))  # and goes on when there is room again
        assert len(db.trials()) == count + SIZE
    assert kept(path)[:SIZE] == before


def test_a_limit_on_file_sizes_is_one_clear_error(full: tuple[Path, list[object]]) -> None:
    path, before = full

    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            with Records(path) as db:
                for batch in itertools.islice(batches(task(17), 8, 2), 200):
                    db.add(batch)
        except RecordsError as error:
            os._exit(7 if "cannot be written: the disk" in error.what else 8)

    assert child(write) == 7
    found = kept(path)
    assert found[:SIZE] == before
    assert (len(found) - SIZE) % 8 == 0


def test_what_may_not_be_written_can_be_read(full: tuple[Path, list[object]]) -> None:
    path, before = full
    with tempfile.TemporaryDirectory() as home:  # pytest's own folders are closed to other users
        file = Path(shutil.copy(path, home))
        file.chmod(0o444)
        file.parent.chmod(0o555)

        def use() -> None:
            if os.getuid() == 0:  # root may write anything
                os.setuid(65534)
            with Records(file, readonly=True) as db:
                if [t.result for t in db.trials()] != before:
                    os._exit(1)
            try:
                with Records(file) as db:
                    db.add(next(batches(task(), SIZE)))
            except RecordsError as error:
                os._exit(7 if "cannot be" in error.what else 2)

        assert child(use) == 7
        assert [p.name for p in file.parent.iterdir()] == [path.name]
        file.parent.chmod(0o755)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"rubbish, and more of it" * 99, "not a database"), (b"SQLite format 3\0" + b"\1" * 999, "")],
)
def test_what_is_no_database_is_left_alone(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.records.db"
    path.write_bytes(content)
    for readonly in (False, True):
        with pytest.raises(RecordsError, match=rf"x\.records\.db: cannot be opened: .*{message}"):
            Records(path, readonly=readonly)
    assert path.read_bytes() == content


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="cannot be opened"):
        Records(tmp_path)
    with pytest.raises(RecordsError, match="cannot be opened"):
        Records(tmp_path / "absent" / "x.db")


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE cats (name)")
    db.commit()
    db.close()
    before = path.read_bytes()
    for readonly in (False, True):
        with pytest.raises(RecordsError, match="not one of nestling"):
            Records(path, readonly=readonly)
    assert path.read_bytes() == before


def test_a_newer_schema_is_left_alone(full: tuple[Path, list[object]]) -> None:
    path, before = full
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    content = path.read_bytes()
    for readonly in (False, True):
        with pytest.raises(RecordsError, match=r"newer nestling \(schema 2; this one reads up to"):
            Records(path, readonly=readonly)
    assert path.read_bytes() == content
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    db.close()
    assert kept(path) == before


def test_a_damaged_file_is_one_clear_error(full: tuple[Path, list[object]]) -> None:
    path, _ = full
    with Records(path) as db:
        for batch in itertools.islice(batches(task(), 8, 5), 30):
            db.add(batch)
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(RecordsError, match=r"damaged|disk image"), Records(path) as db:
        db.trials()


def test_a_copy_without_its_log_is_whole(full: tuple[Path, list[object]], tmp_path: Path) -> None:
    path, before = full
    db = Records(path)  # open, so that the log is there
    db.add(next(batches(task(), SIZE, 3)))
    shutil.copy(path, tmp_path / "copy.db")
    db.close()
    assert kept(tmp_path / "copy.db")[:SIZE] == before
