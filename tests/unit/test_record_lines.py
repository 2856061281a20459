"""Records as lines: what comes back is what went out, and rubbish is named by its line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.record_maker import batches, candidates, default_of, good, task
from toolkit.errors import RecordsError
from toolkit.search.record_lines import export_lines, import_lines, merge
from toolkit.search.records import Records
from toolkit.search.result import INSTRUCTIONS, SECONDS


def fill(path: Path, *, seed: int = 1, base: float = 100.0) -> Records:
    """Return a database with two tasks, failures, a run that goes on, and verdicts."""
    ticks = itertools.count(1)
    db = Records(path, clock=lambda: base + next(ticks))
    run = db.start_run("tune net.onnx", seed=seed, models=["m"], settings={"trials": 9})
    for work in (task(), task(24, 9)):
        db.add([(default_of(work), good(0.5))], run=run)
        for round, batch in enumerate(itertools.islice(batches(work, 4, seed), 3)):
            db.add(batch, run=run, round=round, state={"draw": [1, [2, 3]]},
                   task_states={work.key: {"round": round}})  # fmt: skip
        db.choose(work.key, SECONDS, candidates(work, 8, seed)[1].key, "interleaved: 1.2 x")
    db.add([(candidates(task(), 1)[0], good(7.0, unit=INSTRUCTIONS))])
    return db


def test_a_round_trip_gives_the_same_bytes(tmp_path: Path) -> None:
    with fill(tmp_path / "a.db") as db:
        lines = list(export_lines(db))
        with Records(tmp_path / "b.db") as copy:
            done = import_lines(copy, lines, "a.jsonl")
            assert (done.added, done.known, done.problems) == (27, 0, ())
            assert list(export_lines(copy)) == lines
            assert copy.runs() == db.runs()
            assert [t.result for t in copy.trials()] == [t.result for t in db.trials()]
            assert copy.tasks() == db.tasks()
            again = import_lines(copy, lines, "a.jsonl")
            assert (again.added, again.known, again.problems) == (0, 27, ())
            assert list(export_lines(copy)) == lines
            resumed = copy.resume_run(seed=1, models=["m"], settings={"trials": 9})
            assert resumed == db.runs()[0]
    assert {json.loads(line)["record"] for line in lines} == {
        "nestling", "task", "run", "trial", "choice",
    }  # fmt: skip


def test_merging_adds_what_is_new_and_changes_nothing_else(tmp_path: Path) -> None:
    with fill(tmp_path / "a.db") as a, fill(tmp_path / "b.db", seed=2, base=500.0) as b:
        before = [t.result for t in a.trials()]
        other = list(export_lines(b))
        assert merge(a, b).added == len(b.trials())
        assert list(export_lines(b)) == other
        assert [t.result for t in a.trials()][: len(before)] == before
        assert len(a.trials()) == 2 * len(before)
        assert len(a.tasks()) == 2
        assert len(a.runs()) == 2
        both = {t.cost for t in [*a.standing(task().key, SECONDS), *b.trials()]}
        assert {t.cost for t in b.standing(task().key, SECONDS)} <= both
        assert merge(a, b).added == 0
        with Records(a.path, readonly=True) as same:
            assert merge(a, same).added == 0
        # The newer verdict stands, whichever way they are merged.
        chosen = a.chosen(task().key, SECONDS)
        assert chosen is not None
        assert chosen.candidate_key == candidates(task(), 8, 2)[1].key
        merge(b, a)
        assert b.chosen(task().key, SECONDS) is not None
        assert b.chosen(task().key, SECONDS).candidate_key == chosen.candidate_key  # type: ignore[union-attr]


def test_what_cannot_be_taken_is_named_by_its_line(tmp_path: Path) -> None:
    with fill(tmp_path / "a.db") as db:
        lines = list(export_lines(db))
    kinds = [json.loads(line)["record"] for line in lines]
    first = kinds.index("trial")
    lines[first] = lines[first].replace('"step":"ComputeAt"', '"step":"Sing"')
    lines[first + 1] = lines[first + 1].replace('"status":"ok"', '"status":"fine"').replace(
        '"round":0', '"round":"x"'
    )  # fmt: skip
    lines[first + 2] = "not JSON"
    lines[first + 3] = '{"record":"song"}'
    lines[first + 4] = "[]"
    lines[first + 5] = '{"record":"trial"}'
    lines.insert(first + 6, "")
    broken = kinds.index("task")
    lines[broken] = lines[broken].replace('"target":"x86-64-v3"', '"target":"x86-64-v4"')
    lost = json.loads(lines[broken])["key"]
    with Records(tmp_path / "b.db") as copy:
        done = import_lines(copy, lines, "a.jsonl")
        numbers = [p.partition(":")[0] for p in done.problems]
        assert numbers[:6] == [
            f"line {n + 1}" for n in (broken, first, first + 1, first + 2, first + 3, first + 4)
        ]
        text = "\n".join(done.problems)
        for said in ("its key does not follow", "unknown step 'Sing'", "cannot be read",
                     "unknown kind 'song'", "not among the lines before"):  # fmt: skip
            assert said in text
        assert {t.task_key for t in copy.trials()}.isdisjoint({lost})
        assert done.added == len(copy.trials()) > 0


def test_a_trial_with_a_sketch_of_another_version_is_kept_for_its_trace(tmp_path: Path) -> None:
    with fill(tmp_path / "a.db") as db:
        lines = [line.replace('"hole":"Tile"', '"hole":"Gap"') for line in export_lines(db)]
    with Records(tmp_path / "b.db") as copy:
        done = import_lines(copy, lines, "a.jsonl")
        assert done.added == 27
        assert len(done.problems) == 25, "all but the two defaults, which have no holes"
        assert all("kept, but" in p and "unknown hole 'Gap'" in p for p in done.problems)
        assert list(export_lines(copy)) == lines
        assert copy.transfer(task(13)) == []
        pairs, problems = copy.results(task())
        assert not problems
        assert len(pairs) == len(copy.trials(task().key))


@pytest.mark.parametrize(
    ("first", "message"),
    [("", "no export"), ("rubbish", "no export"), ("[1]", "no export"), ('{"record":"task"}', "no"),
     ('{"record":"nestling","format":2}', "newer nestling")],
)  # fmt: skip
def test_what_is_no_export_is_refused(tmp_path: Path, first: str, message: str) -> None:
    with Records(tmp_path / "b.db") as copy:
        with pytest.raises(RecordsError, match=rf"x\.jsonl: .*{message}"):
            import_lines(copy, [first], "x.jsonl")
        assert copy.tasks() == []


def test_an_import_that_breaks_off_adds_nothing(tmp_path: Path) -> None:
    def torn() -> object:
        with fill(tmp_path / "a.db") as db:
            yield from list(export_lines(db))[:20]
        raise OSError("the disk was pulled out")

    with Records(tmp_path / "b.db") as copy:
        with pytest.raises(OSError, match="pulled out"):
            import_lines(copy, torn(), "a.jsonl")  # type: ignore[arg-type]
        assert copy.tasks() == []
        assert copy.trials() == []
