"""Packs: every trace is found by its key, at once, and near ones can be started from."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest

from tests.record_maker import candidates, default_of, good, product, sketch_of, TARGET, task
from toolkit.errors import RecordsError
from toolkit.paths import PACKS
from toolkit.schedule.examples import byte_products
from toolkit.schedule.hole import replay
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.search import packs
from toolkit.search.packs import open_source, Pack, pack_lines, RecordsFile, ShippedPacks
from toolkit.search.records import function_key, Records
from toolkit.search.result import SECONDS
from toolkit.space.task import candidate, Task
from toolkit.targets.target import TARGETS

SIZES = [(m, n) for m in (8, 12, 20, 33) for n in (4, 8, 17)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database in which something beats the default for all sizes but one, on two targets."""
    path = tmp_path / "net.records.db"
    with Records(path) as db:
        for target in (TARGET, "cortex-m4"):
            for m, n in SIZES:
                work = task(m, n, target=target)
                better = 1.0 if (m, n) != (33, 17) else 3.0
                db.add([(default_of(work), good(2.0)),
                        (candidates(work, 1, seed=m)[0], good(better))])  # fmt: skip
    return path


def write_pack(database: Path, path: Path, **options: str) -> Pack:
    with Records(database, readonly=True) as db:
        lines = pack_lines(db, **options)  # type: ignore[arg-type]
    path.write_text("".join(f"{line}\n" for line in lines))
    return Pack(path)


def test_a_pack_answers_as_its_database_does(database: Path, tmp_path: Path) -> None:
    pack = write_pack(database, tmp_path / "net.jsonl")
    file = RecordsFile(database)
    for m, n in SIZES:
        key = function_key(product(m, n))
        for target in (TARGET, "cortex-m4"):
            ours = pack.find([key], target)
            theirs = file.find([key], target)
            if (m, n) == (33, 17):
                assert not ours
                assert theirs[key].trace is None
            else:
                assert ours[key].trace == theirs[key].trace
                assert ours[key].trace == candidates(task(m, n, target=target), 1, seed=m)[0].trace
        assert pack.find([key, "0" * 16, "f" * 16, ""], "x86-64").keys() == set()


def test_a_pack_is_the_same_whatever_order_things_were_tuned_in(
    database: Path, tmp_path: Path
) -> None:
    from toolkit.search.record_lines import merge

    with Records(tmp_path / "other.db") as db, Records(database) as first:
        work = task(9, 9)
        db.add([(candidates(work, 1)[0], good(1.0))])
        merge(db, first)
        merge(first, db)
        assert pack_lines(first) == pack_lines(db)
        one_target = pack_lines(db, target="cortex-m4")
        assert set(one_target) < set(pack_lines(db))
        assert len(one_target) == len(SIZES) - 1


def test_near_functions_start_from_a_pack(database: Path, tmp_path: Path) -> None:
    pack = write_pack(database, tmp_path / "net.jsonl")
    work = task(12, 9)
    found = pack.transfer(work, limit=3)
    assert len(found) == 3
    assert found[0] == RecordsFile(database).transfer(work, limit=1)[0]
    assert found[0][0] == sketch_of(task(12, 8))
    done = replay(work.func, *found[0])
    assert done.trace
    assert pack.transfer(task(12, 9, target="x86-64-v4")) == []
    both = packs.transfer([RecordsFile(database), pack], work, limit=4)
    assert both[:4] == RecordsFile(database).transfer(work, limit=4)


def test_earlier_sources_come_first(database: Path, tmp_path: Path) -> None:
    pack = write_pack(database, tmp_path / "net.jsonl")
    work = task(12, 8)
    with Records(tmp_path / "mine.db") as db:
        start = default_of(work)
        db.add([(start, good(1.0))])
    mine = RecordsFile(tmp_path / "mine.db")
    key, other = function_key(work.func), function_key(product(8, 4))
    found = packs.find([mine, pack], [key, other], TARGET)
    assert found[key].trace is None, "that the default is best is an answer too"
    assert found[other].where == str(pack.path)
    assert packs.find([pack, mine], [key], TARGET)[key].trace is not None


def test_shipped_packs_are_named_after_targets(database: Path, tmp_path: Path) -> None:
    write_pack(database, tmp_path / f"{TARGET}.jsonl", target=TARGET)
    shipped = ShippedPacks(tmp_path)
    key = function_key(product(12, 8))
    assert shipped.find([key], TARGET)[key].trace
    assert shipped.find([key], "cortex-m4") == {}
    assert shipped.transfer(task(12, 9))
    assert shipped.transfer(task(12, 9, target="cortex-m4")) == []


def test_packs_of_like_targets_stand_in_where_no_instruction_lacks(tmp_path: Path) -> None:
    strong, weak = "aarch64-dotprod", "aarch64"
    floats, same = task(12, 8, target=strong), task(20, 8, target=strong)
    bytes_ = Task(byte_products(), TARGETS[strong])
    intrinsic = "neon_dot4_s8s8"
    assert intrinsic in TARGETS[strong].isa.tensors
    assert intrinsic not in TARGETS[weak].isa.tensors
    with Records(tmp_path / "all.db") as db:
        for work in (floats, same):
            db.add([(default_of(work), good(2.0)), (candidates(work, 1)[0], good(1.0))])
        dots = candidate(bytes_, (Tensorize("j", intrinsic),), {})
        db.add([(default_of(bytes_), good(2.0)), (dots, good(1.0))])
        own = task(20, 8, target=weak)
        better = candidates(own, 2, seed=5)[1]
        db.add([(default_of(own), good(2.0)), (better, good(1.0))])
    for target in (strong, weak):
        write_pack(tmp_path / "all.db", tmp_path / f"{target}.jsonl", target=target)
    shipped = ShippedPacks(tmp_path)
    keys = [function_key(work.func) for work in (floats, same, bytes_)]
    assert shipped.find(keys, strong).keys() == set(keys)
    found = shipped.find(keys, weak)
    assert found.keys() == set(keys[:2])
    assert found[keys[0]].trace == candidates(floats, 1)[0].trace
    assert found[keys[1]].trace == better.trace  # its own pack comes first
    assert shipped.find(keys, "x86-64-v3") == {}
    assert len(shipped.transfer(Task(bytes_.func, TARGETS[strong]))) == 1
    assert shipped.transfer(Task(bytes_.func, TARGETS[weak])) == []
    assert len(shipped.transfer(task(12, 9, target=weak))) == 3


def test_a_large_pack_is_searched_not_read(
    database: Path, tmp_path: Path, rng: np.random.Generator
) -> None:
    with Records(database, readonly=True) as db:
        line = json.loads(pack_lines(db, target=TARGET)[0])
    draw = random.Random(int(rng.integers(2**31)))
    keys = sorted({f"{draw.getrandbits(64):016x}" for _ in range(20_000)})
    big = tmp_path / "big.jsonl"
    with big.open("w") as file:
        for key in keys:
            file.write(json.dumps({**line, "key": key}, separators=(",", ":")) + "\n")
    read: list[int] = []

    class Counting(bytes):
        def __getitem__(self, index):  # type: ignore[no-untyped-def, override]
            found = bytes.__getitem__(self, index)
            read.append(len(found))
            return found

    data = Counting(big.read_bytes())
    for key in [keys[0], keys[-1], *draw.sample(keys, 20)]:
        read.clear()
        found = packs._line_of(data, packs._prefix(TARGET, key))
        assert found is not None
        assert json.loads(found)["key"] == key
        assert sum(read) < 40 * len(found), "the lines on the way, and no others"
    start = time.perf_counter()
    assert len(Pack(big).find(keys[::1000], TARGET)) == 20
    print(f"{len(data):,} bytes: {(time.perf_counter() - start) / 20 * 1e3:.3f} ms a key")


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_last_line_needs_no_end(database: Path, tmp_path: Path, end: str) -> None:
    with Records(database, readonly=True) as db:
        lines = pack_lines(db)
    path = tmp_path / "p.jsonl"
    for count in (0, 1, 2, len(lines)):
        path.write_text("\n".join(lines[:count]) + end * bool(count))
        for index, line in enumerate(lines):
            row = json.loads(line)
            found = Pack(path).find([row["key"]], row["target"])
            assert bool(found) == (index < count)


def test_what_is_neither_database_nor_pack_is_refused(database: Path, tmp_path: Path) -> None:
    assert isinstance(open_source(database), RecordsFile)
    pack = write_pack(database, tmp_path / "net.jsonl")
    assert isinstance(open_source(pack.path), Pack)
    with pytest.raises(RecordsError, match="no such file"):
        open_source(tmp_path / "absent")
    (tmp_path / "x").write_text("rubbish")
    with pytest.raises(RecordsError, match="neither a database of trials nor a pack"):
        open_source(tmp_path / "x")
    lines = pack.path.read_text().splitlines()
    pack.path.write_text("\n".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(RecordsError, match="line 2 is out of order"):
        open_source(pack.path)
    pack.path.write_text(lines[0][:200] + "\n")
    row = json.loads(lines[0])
    with pytest.raises(RecordsError, match="lacks JSON"):
        Pack(pack.path).find([row["key"]], row["target"])


def test_every_shipped_pack_is_one() -> None:
    assert (PACKS / "README.md").is_file()
    for path in PACKS.glob("*.jsonl"):
        assert path.stem in TARGETS
        assert isinstance(open_source(path), Pack)
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            assert row["target"] == path.stem
            assert Pack(path).find([row["key"]], path.stem)[row["key"]].trace
            assert row["unit"] != SECONDS or row["cost"] < 1
