"""The database of trials: what is told is what is answered, and unlike costs never meet."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from tests.record_maker import (
    batches,
    candidates,
    default_of,
    good,
    product,
    sketch_of,
    TARGET,
    task,
)
from toolkit.errors import NestlingError, RecordsError
from toolkit.ir.interp import interpret
from toolkit.ir.plain import func_from_json, func_to_json
from toolkit.lowering.kernels import func_key
from toolkit.schedule.hole import replay
from toolkit.schedule.trace import trace_to_json
from toolkit.search.records import function_key, Records, text_key, tuples
from toolkit.search.result import CYCLES, INSTRUCTIONS, MeasureResult, SECONDS, Status
from toolkit.search.structure import structure_key
from toolkit.space.task import Task
from toolkit.targets.target import TARGETS


@pytest.fixture
def db(tmp_path: Path) -> Records:
    ticks = itertools.count(1)
    return Records(tmp_path / "net.records.db", clock=lambda: float(next(ticks)))


def test_every_trial_is_kept_as_it_was_told(db: Records) -> None:
    work = task()
    told = [pair for batch in itertools.islice(batches(work, 4), 6) for pair in batch]
    for start in range(0, len(told), 4):
        db.add(told[start : start + 4], round=start // 4)
    kept = db.trials(work.key)
    assert [t.result for t in kept] == [r for _, r in told]
    assert [t.candidate_key for t in kept] == [c.key for c, _ in told]
    assert {t.result.status for t in kept} > {Status.OK, Status.CRASHED}
    assert [t.round for t in kept] == [i // 4 for i in range(24)]
    for trial, (made, _) in zip(kept, told, strict=True):
        assert trial.sketch == made.sketch
        assert trial.decisions == dict(made.decisions)
        assert trial.trace == made.trace


def test_trials_are_rebuilt_for_a_strategy(db: Records) -> None:
    work = task()
    told = list(next(batches(work, 6)))
    db.add(told)
    db.add([(default_of(work), good(1.0))])
    found, problems = db.results(work)
    assert not problems
    assert [(c.key, c.func, r) for c, r in found[:6]] == [(c.key, c.func, r) for c, r in told]
    assert [c.log_prior for c, _ in found[:6]] == pytest.approx([c.log_prior for c, _ in told])
    assert found[6][0].origin == "default"


def test_what_cannot_be_rebuilt_is_said(db: Records, tmp_path: Path) -> None:
    work = task()
    db.add(list(next(batches(work, 3))))
    db._db.execute("UPDATE sketches SET steps = replace(steps, 'Vectorize', 'Sing')")
    rebuilt, problems = db.results(work)  # by their traces
    assert len(rebuilt) == 3
    assert not problems
    db._db.execute("UPDATE candidates SET trace = replace(trace, 'Vectorize', 'Sing')")
    rebuilt, problems = db.results(work)
    assert not rebuilt
    assert all("unknown step 'Sing'" in p for p in problems)
    assert len(problems) == 3


def test_a_task_can_be_rebuilt_from_its_record(db: Records, rng: np.random.Generator) -> None:
    work = task()
    db.add([(default_of(work), good(1.0))])
    (kept,) = db.tasks()
    assert (kept.key, kept.target, kept.weight, kept.nodes) == (work.key, TARGET, 2.0, work.nodes)
    func = kept.func()
    assert func == work.func.with_(name="k")
    assert Task(func, TARGETS[kept.target], kept.inplace).key == work.key
    inputs = {b.name: rng.integers(-3, 4, b.shape).astype(b.dtype) for b in func.inputs}
    ours, theirs = interpret(func, inputs)["y"], interpret(work.func, inputs)["y"]
    assert np.array_equal(ours, theirs)


def test_numbers_that_json_lacks_survive() -> None:
    from toolkit.ir.build import build
    from toolkit.ir.compute import compute, placeholder
    from toolkit.ir.expr import maximum

    a = placeholder((3,), "float32", "a")
    func = build([compute((3,), lambda i: maximum(a[i], float("-inf")) + 0.1, "y")], [a])
    assert func_from_json(json.loads(json.dumps(func_to_json(func), allow_nan=False))) == func


@pytest.mark.parametrize("value", [None, 3, [], {"is": "Sing"}, {"is": "Loop"}, {"x": 1}])
def test_rubbish_is_no_function(value: object) -> None:
    with pytest.raises(NestlingError, match="function: "):
        func_from_json(value)


def test_the_best_is_the_newest_confident_trial_of_a_candidate(db: Records) -> None:
    work = task()
    a, b, c = candidates(work, 3)
    db.add([(a, good(1.0)), (b, good(2.0)), (c, good(0.1, confident=False))])
    assert db.best(work.key, SECONDS).candidate_key == a.key  # type: ignore[union-attr]
    db.add([(a, good(3.0))])  # the first one was luck
    best = db.best(work.key, SECONDS)
    assert best is not None
    assert (best.candidate_key, best.cost) == (b.key, 2.0)
    assert [t.cost for t in db.standing(work.key, SECONDS)] == [2.0, 3.0, 0.1]
    db.add([(b, MeasureResult(Status.DEVICE_LOST))])  # a failure is not a cost
    assert db.best(work.key, SECONDS) == best


@pytest.mark.parametrize("status", [Status.WRONG_RESULT, Status.CRASHED])
def test_what_was_wrong_once_does_not_stand_until_it_is_right_again(
    db: Records, status: Status
) -> None:
    work = task()
    a, b = candidates(work, 2)
    db.add([(a, good(1.0)), (b, good(2.0))])
    db.choose(work.key, SECONDS, a.key)
    db.add([(a, MeasureResult(status))])
    assert [t.candidate_key for t in db.standing(work.key, SECONDS)] == [b.key]
    assert db.chosen(work.key, SECONDS).candidate_key == b.key  # type: ignore[union-attr]
    db.add([(a, good(1.5))])
    assert db.chosen(work.key, SECONDS).candidate_key == a.key  # type: ignore[union-attr]


def test_what_had_lost_already_is_never_the_best(db: Records) -> None:
    work = task()
    db.add([(candidates(work, 1)[0], good(1.0, confident=False))])
    assert db.best(work.key, SECONDS) is None
    assert db.find([function_key(work.func)], TARGET) == {}


def test_units_and_targets_never_meet(db: Records) -> None:
    work, other = task(), task(target="x86-64-v4")
    assert work.key != other.key
    a, b = candidates(work, 2)
    db.add([(a, good(5.0)), (b, good(1.0, unit=INSTRUCTIONS)), (a, good(2.0, unit=CYCLES))])
    db.add([(candidates(other, 1)[0], good(0.5))])
    for unit, cost in ((SECONDS, 5.0), (INSTRUCTIONS, 1.0), (CYCLES, 2.0)):
        best = db.best(work.key, unit)
        assert best is not None
        assert best.cost == cost
    assert db.task(work.key).units == (SECONDS, CYCLES, INSTRUCTIONS)  # type: ignore[union-attr]
    assert [t.key for t in db.tasks(target="x86-64-v4")] == [other.key]
    assert db.near(other) == []
    assert db.transfer(other) == []


def test_a_failure_has_no_unit_to_speak_of(db: Records) -> None:
    work = task(24, 8)
    a, b = candidates(work, 2)
    db.add([(a, MeasureResult(Status.TIMED_OUT))])
    assert db.tasks()[0].units == ()
    assert db.transfer(task()) == []
    db.add([(b, good(3.0, unit=INSTRUCTIONS))])
    assert db.tasks()[0].units == (INSTRUCTIONS,)
    assert [d for _, d in db.transfer(task())] == [b.decisions]


def test_a_verdict_stands_even_if_the_clock_was_set_back(tmp_path: Path) -> None:
    work, times = task(), itertools.count(100, -1)
    a, b = candidates(work, 2)
    with Records(tmp_path / "x.db", clock=lambda: float(next(times))) as db:
        db.add([(a, good(1.0)), (b, good(2.0))])
        for made in (a, b):
            db.choose(work.key, SECONDS, made.key)
        assert db.chosen(work.key, SECONDS).candidate_key == b.key  # type: ignore[union-attr]


def test_limits_and_devices(db: Records) -> None:
    work = task()
    a, b, c = candidates(work, 3)
    db.add([(a, good(1.0, ram_bytes=900, flash_bytes=100, device="one")),
            (b, good(2.0, ram_bytes=400, flash_bytes=300, device="one")),
            (c, good(0.1, device="two"))])  # fmt: skip

    def best(**limits: object) -> str | None:
        found = db.best(work.key, SECONDS, **limits)  # type: ignore[arg-type]
        return found and found.candidate_key

    assert best() == c.key
    assert best(device="one") == a.key
    assert best(ram_bytes=500) == b.key
    assert best(ram_bytes=1000) == a.key
    assert best(ram_bytes=1000, flash_bytes=100) == a.key
    assert best(ram_bytes=500, flash_bytes=100) is None


def test_the_front_holds_what_nothing_beats(db: Records) -> None:
    work = task()
    made = candidates(work, 8)
    draw = random.Random(7)
    points = [(1, 3, 3), (3, 1, 3), (3, 3, 1)]
    points += [tuple(draw.randrange(2, 5) for _ in range(3)) for _ in made[3:]]  # type: ignore[misc]
    db.add([(c, good(float(p[0]), ram_bytes=p[1], flash_bytes=p[2]))
            for c, p in zip(made, points, strict=True)])  # fmt: skip

    def beaten(p: tuple[int, ...]) -> bool:
        return any(q != p and all(x <= y for x, y in zip(q, p, strict=True)) for q in points)

    kept = [p for p in points if not beaten(p)]
    front = db.front(work.key, SECONDS)
    found = [(t.cost, t.result.ram_bytes, t.result.flash_bytes) for t in front]
    assert sorted(found) == sorted((float(a), b, c) for a, b, c in kept)
    assert 1 < len(found) < len(points)
    assert [t.cost for t in front] == sorted(t.cost for t in front if t.cost is not None)


def test_an_unknown_size_beats_no_known_one(db: Records) -> None:
    work = task()
    a, b = candidates(work, 2)
    db.add([(a, good(1.0)), (b, good(2.0, ram_bytes=10, flash_bytes=10))])
    assert [t.candidate_key for t in db.front(work.key, SECONDS)] == [a.key, b.key]


def test_a_verdict_stands_before_single_costs(db: Records) -> None:
    work = task()
    a, b = candidates(work, 2)
    start = default_of(work)
    db.add([(start, good(2.0)), (a, good(1.0)), (b, good(1.5))])
    key = function_key(work.func)
    (found,) = db.find([key, "of another"], TARGET).values()
    assert found.trace == a.trace
    db.choose(work.key, SECONDS, b.key)
    assert db.find([key], TARGET)[key].trace == b.trace
    db.choose(work.key, SECONDS, start.key, "nothing was faster in the end")
    assert db.find([key], TARGET)[key].trace is None
    assert db.default(work.key, SECONDS).candidate_key == start.key  # type: ignore[union-attr]
    assert db.find([key], "x86-64-v4") == {}


def test_the_default_is_known_whoever_proposes_it_again(db: Records) -> None:
    from dataclasses import replace

    work = task()
    start = default_of(work)
    db.add([(start, good(1.0)), (candidates(work, 1)[0], good(2.0))])
    db.add([(replace(start, origin="mutation"), good(1.1))])
    key = function_key(work.func)
    assert db.find([key], TARGET)[key].trace is None


def test_functions_that_share_other_storage_count_together(db: Records) -> None:
    work = task()
    other = Task(work.func, work.target, (("a", "y"),))
    (a, b), (c, _) = candidates(work, 2), candidates(other, 2)
    db.add([(a, good(3.0)), (b, good(2.0)), (c, good(1.0))])
    key = function_key(work.func)
    assert key == text_key(func_key(work.func))
    assert db.find([key], TARGET)[key].trace == c.trace
    assert [t.key for t in db.near(work)] == [other.key]


def test_near_tasks_give_what_projects(db: Records) -> None:
    work = task()
    for m, n in ((24, 8), (96, 64), (12, 9)):
        near = task(m, n)
        a, b = candidates(near, 2, seed=m)
        db.add([(default_of(near), good(3.0)), (a, good(1.0)), (b, good(2.0))])
    assert structure_key(product(5, 6, 7)) == structure_key(work.func)
    assert [t.extents[:2] for t in db.near(work, 2)] == [(12, 9), (24, 8)]
    found = db.transfer(work, limit=50)
    assert len(found) == 6, "two of each: where they started from is no news"
    sketch, decisions = found[0]
    assert sketch == sketch_of(task(12, 9))
    done = replay(work.func, sketch, decisions)  # without drawing: all holes are decided
    assert set(done.decisions) == {"rows", "columns", "where"}


def test_a_run_goes_on_from_its_last_batch(db: Records) -> None:
    work, draw = task(), random.Random(3)
    wanted = {"seed": 3, "models": ["abc"], "settings": {"trials": 40, "strategy": "genetic"}}
    assert db.resume_run(**wanted) is None  # type: ignore[arg-type]
    run = db.start_run("nestling tune net.onnx", **wanted)  # type: ignore[arg-type]
    for round, batch in enumerate(itertools.islice(batches(work, 2), 3)):
        draw.random()
        db.add(batch, run=run, round=round, state=draw.getstate(),
               task_states={work.key: {"generation": round}})  # fmt: skip
    again = db.resume_run(**wanted)  # type: ignore[arg-type]
    assert again is not None
    assert again.uid == run.uid
    assert again.tasks == {work.key: {"generation": 2}}
    other = random.Random()
    other.setstate(tuples(again.state))
    assert other.random() == draw.random()
    assert len(db.trials(run=run.uid)) == 6
    assert db.resume_run(**{**wanted, "seed": 4}) is None  # type: ignore[arg-type]
    db.finish_run(run)
    assert db.resume_run(**wanted) is None  # type: ignore[arg-type]


def test_a_run_of_a_living_process_is_left_to_it(db: Records) -> None:
    import os
    import subprocess
    import sys

    wanted = {"seed": 3, "models": ["abc"], "settings": {}}
    run = db.start_run("tune", **wanted)  # type: ignore[arg-type]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        from toolkit.search import records

        host = records._this_process().split(":")[0]
        owner = f"{host}:{child.pid}:{records._birth(child.pid)}"
        db._db.execute("UPDATE runs SET owner = ?", (owner,))
        assert db.resume_run(**wanted) is None  # type: ignore[arg-type]
        # Another process that was given the same number is not the one that made the run.
        db._db.execute("UPDATE runs SET owner = ?", (f"{host}:{os.getppid()}:1",))
        assert db.resume_run(**wanted).uid == run.uid  # type: ignore[arg-type, union-attr]
        db._db.execute("UPDATE runs SET owner = ?", (owner,))
        child.communicate(b"\n")
    assert db.resume_run(**wanted).uid == run.uid  # type: ignore[arg-type, union-attr]


def test_closing_leaves_one_file_and_reading_changes_nothing(db: Records, tmp_path: Path) -> None:
    work = task()
    db.add(next(batches(work, 4)))
    db.close()
    before = db.path.read_bytes()
    with Records(db.path, readonly=True) as read:
        assert len(read.trials()) == 4
        with pytest.raises(RecordsError, match=r"net\.records\.db: cannot be written: it is read-"):
            read.add(next(batches(work, 4)))
    assert db.path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["net.records.db"]


def test_reading_an_empty_file_finds_no_trials(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    with Records(tmp_path / "x.db", readonly=True) as read:
        assert read.tasks() == []
    assert (tmp_path / "x.db").stat().st_size == 0
    with pytest.raises(RecordsError, match="no such file"):
        Records(tmp_path / "y.db", readonly=True)


def test_traces_are_the_same_plain_values_after_a_round_trip(db: Records) -> None:
    work = task()
    made = candidates(work, 1)[0]
    db.add([(made, good(1.0))])
    assert json.loads(db.trials()[0].trace_text) == json.loads(
        json.dumps(trace_to_json(made.trace))
    )
