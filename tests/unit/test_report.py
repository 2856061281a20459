"""Reports of tuning: numbers, charts and pages of runs that are whole, cut short, or odd."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tests.unit.test_tuner import Killed, Model, tuner
from toolkit.errors import RecordsError
from toolkit.measure.candidates.machine import Machine
from toolkit.report.charts import frame, Label, Mark, name_marks, nice_steps, steps
from toolkit.report.facts import read_run, RunFacts
from toolkit.report.page import make_page, split_detail, write_page
from toolkit.report.words import duration, shared_unit, unit_for
from toolkit.search.records import Records
from toolkit.search.result import INSTRUCTIONS, MeasureResult, SECONDS, Status
from toolkit.space.task import Candidate
from toolkit.tuner.history import judge
from toolkit.tuner.run import TuneSettings

HOSTILE = "</pre><script>alert('&')</script>"
MACHINE = Machine(1.2e11, {"L1": 2e11, "L2": 1e11, "DRAM": 2e10})


class Odd(Model):
    """Says of each failure what reproduces it, in text that is no HTML; costs in any unit."""

    def __init__(self, dies_after: int | None = None, unit: str = SECONDS) -> None:
        super().__init__(dies_after)
        self.unit = unit

    def measure(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        results = super().measure(candidates)
        detail = f"output 'y' differs {HOSTILE}; reproduce: cc 'a b.c' && ./a <x"
        return [
            replace(
                r,
                unit=self.unit,
                detail=detail if r.status is not Status.OK else "",
                samples=tuple(s if self.unit == SECONDS else round(s * 1e9) for s in r.samples),
            )
            for r in results
        ]


class Broken(Odd):
    """Nothing works but the defaults, and not even those where told so."""

    def __init__(self, *, defaults: bool) -> None:
        super().__init__()
        self.defaults = defaults

    def measure(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        return [
            r
            if self.defaults and c.origin == "default"
            else MeasureResult(Status.BUILD_FAILED, detail="no; reproduce: cc x.c")
            for c, r in zip(candidates, super().measure(candidates), strict=True)
        ]


def run_of(path: Path, measurer: Model, trials: int = 48) -> RunFacts:
    """Return what a report knows of a run with made-up costs."""
    with Records(path) as records:
        settings = TuneSettings(trials=trials, batch=16, strategy="random")
        run = tuner(path, measurer, settings, records)
        run.history.run["machine"] = {"flops": MACHINE.flops, "bandwidth": MACHINE.bandwidth}
        try:
            run.search()
            run.verdicts(lambda task, candidates: [1.0, 0.8])
            records.finish_run(run.run)
        except Killed:
            pass
    with Records(path, readonly=True) as records:
        return read_run(records)


class _Well(HTMLParser):
    """Checks that what is opened is closed, in order."""

    VOID = ("meta", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = 0
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()


def check(text: str) -> None:
    """Check what every page must keep."""
    assert _Well(text).scripts == 0
    assert not re.search(r"\b(nan|inf|None)\b", re.sub(r"<pre.*?</pre>", "", text, flags=re.S))
    assert not re.search(r"""(src|href)=["'](?!#|data:,)""", text)
    for points in re.findall(r'points="([^"]*)"', text):
        assert len(points.split()) >= 2
    for value in re.findall(r'\b(?:cx|cy|x1|y1|x|y)="([^"]*)"', text):
        assert -1 <= float(value) <= 400, value


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of one finished run, made once."""
    path = tmp_path_factory.mktemp("made") / "net.records.db"
    run_of(path, Odd())
    return path


@pytest.fixture
def whole(made: Path, tmp_path: Path) -> Path:
    """A copy of it, to change."""
    return Path(shutil.copy(made, tmp_path / made.name))


def read(path: Path, number: int | None = None) -> RunFacts:
    with Records(path, readonly=True) as records:
        return read_run(records, number)


# Pages


def test_a_whole_run_has_every_part(whole: Path) -> None:
    facts = read(whole)
    page = make_page(facts)
    text = write_page(page)
    check(text)
    assert page.title == "Tuning report: net"
    assert page.state == "finished"
    assert len(page.kernels) == len(facts.tasks) == 3
    assert len(page.curves) == sum(bool(t.trials) for t in facts.tasks) > 0
    assert len(facts.trials) == 48
    assert page.roofline is not None
    assert len([m for m in page.roofline.marks if m.style == "tuned"]) == sum(
        t.tuned for t in facts.tasks
    )
    assert page.quality is not None  # the second round of the run is foreseen
    assert len(page.winners) == len(page.curves)
    for winner in page.winners:
        assert "void kernel(float *" in winner.code
        assert winner.trace.startswith("(")
        assert "for " in winner.nest
    failed = {g.status: g for g in page.failures}
    assert {"wrong result"} <= set(failed) <= {"wrong result", "crashed"}
    assert failed["wrong result"].failures[0].command == "cc 'a b.c' && ./a <x"
    assert HOSTILE not in text
    assert "alert(&#39;&amp;&#39;)" in text


def test_the_sum_of_the_curve_is_that_of_the_table(whole: Path) -> None:
    facts = read(whole)
    page = make_page(facts)
    assert page.curve is not None
    tuned = sum(t.calls * (t.best.cost or 0.0) for t in facts.tasks if t.best)
    default = sum(t.calls * (t.default.cost or 0.0) for t in facts.tasks if t.default)
    unit = unit_for([default], SECONDS)
    assert page.curve.summary.startswith(f"From {unit.full(default)} to {unit.full(tuned)} in")
    assert tuned < default


def test_a_killed_run_says_so_and_shows_what_it_has(tmp_path: Path) -> None:
    facts = run_of(tmp_path / "r.db", Odd(dies_after=2))
    page = make_page(facts)
    check(write_page(page))
    assert page.state.startswith("not finished")
    assert len(facts.trials) == 16
    assert len(page.curves) == 1


def test_a_run_killed_after_its_defaults_has_a_page(tmp_path: Path) -> None:
    facts = run_of(tmp_path / "r.db", Odd(dies_after=1))
    page = make_page(facts)
    check(write_page(page))
    assert not facts.trials
    assert page.curve is None
    assert page.winners == ()
    assert len(page.kernels) == 3
    assert any("Only the default schedules" in note for note in page.notes)


@pytest.mark.parametrize("defaults", [True, False])
def test_a_run_of_failures_alone_has_a_page(tmp_path: Path, defaults: bool) -> None:
    facts = run_of(tmp_path / "r.db", Broken(defaults=defaults), trials=16)
    page = make_page(facts)
    check(write_page(page))
    assert [g.status for g in page.failures] == ["build failed"]
    assert not any(t.tuned for t in facts.tasks)
    if not defaults:
        assert any("never ran" in note for note in page.notes)
        assert page.time_bars == ()


def test_counted_costs_have_no_roofline(tmp_path: Path) -> None:
    facts = run_of(tmp_path / "r.db", Odd(unit=INSTRUCTIONS), trials=6)
    page = make_page(facts)
    check(write_page(page))
    assert page.roofline is None
    assert page.speed_title == "Instructions per multiply-add"
    assert page.speed_bars
    assert "no roofline" in page.speed_note
    assert any("instr." in c for c in page.columns)


def test_what_older_versions_kept_is_enough(whole: Path) -> None:
    with Records(whole) as records, records.transaction() as db:
        db.execute("DELETE FROM run_tasks")
        db.execute("UPDATE runs SET state = '{\"elapsed_s\": 3.5}'")
    facts = read(whole)
    page = make_page(facts)
    check(write_page(page))
    assert page.roofline is None
    assert page.quality is None
    assert page.effort_bars == ()
    assert "did not keep" in page.quality_note
    assert len(page.curves) == 3


def test_trials_without_a_run_have_a_page(whole: Path) -> None:
    with Records(whole) as records, records.transaction() as db:
        db.execute("UPDATE trials SET run = NULL")
        db.execute("DELETE FROM run_tasks")
        db.execute("DELETE FROM runs")
    facts = read(whole)
    page = make_page(facts)
    check(write_page(page))
    assert facts.run is None
    assert len(facts.trials) == 48
    assert "names no run" in page.state


def test_a_run_is_chosen_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    run_of(path, Odd(), trials=2)
    run_of(path, Odd(), trials=4)
    assert len(read(path, 1).trials) == 2
    assert len(read(path, 2).trials) == len(read(path).trials) == 4
    with pytest.raises(RecordsError, match="no run 3"):
        read(path, 3)


def test_an_empty_database_is_refused(tmp_path: Path) -> None:
    with Records(tmp_path / "r.db") as records, pytest.raises(RecordsError, match="no trials"):
        read_run(records)


def test_equal_databases_give_equal_pages(whole: Path) -> None:
    first, second = (write_page(make_page(read(whole))) for _ in range(2))
    assert first == second


# Numbers and charts


def test_rounds_are_judged_by_what_was_foreseen() -> None:
    results = [MeasureResult(Status.OK, samples=(float(n),)) for n in (1, 2, 3, 4, 5, 6, 7, 8)]
    right = np.array([8.0, 7, 6, 5, 4, 3, 2, 1])
    assert judge(right, results) == (1.0, 1.0)
    assert judge(-right, results) == (0.0, 0.0)
    failed = [*results, MeasureResult(Status.CRASHED)]
    assert judge(np.array([*right, 99.0]), failed) == (1.0, 1.0)
    assert judge(right[:3], results[:3]) == (None, None)
    assert judge(right, [results[0]] * 8)[0] is None  # nothing to order


def test_rounds_keep_what_they_took(whole: Path) -> None:
    facts = read(whole)
    rounds = sorted((r for t in facts.tasks for r in t.rounds), key=lambda r: r.number)
    assert [r.number for r in rounds] == [1, 2, 3]
    assert sum(r.trials for r in rounds) == len(facts.trials)
    assert all(r.search_s >= 0 and r.measure_s >= 0 for r in rounds)
    assert rounds[0].pairwise is None  # it had learned nothing yet


@pytest.mark.parametrize("seed", range(20))
def test_names_of_marks_meet_nothing(seed: int) -> None:
    rng = random.Random(seed)
    marks = [Mark(rng.uniform(60, 380), rng.uniform(20, 250), "tuned", "", 4.0) for _ in range(12)]
    taken = [Label(100.0, 100.0, "peak 118 GFLOP/s", "roof")]
    names = [(m, f"K{i}") for i, m in enumerate(marks)]
    found = name_marks((48.0, 12.0, 388.0, 272.0), names, marks, taken)
    assert len(found) >= 8
    for i, a in enumerate([*found, *taken]):
        for b in [*found, *taken][i + 1 :]:
            assert abs(a.y - b.y) >= 8 or abs(a.x - b.x) >= 8, (a, b)


def test_ticks_are_round_and_inside() -> None:
    rng = random.Random(4)
    for _ in range(300):
        low = rng.uniform(-5, 5) * 10.0 ** rng.randint(-9, 9)
        high = low + rng.uniform(0.1, 9) * 10.0 ** rng.randint(-9, 9)
        found = nice_steps(low, high, 6)
        assert 1 <= len(found) <= 7
        span = max(abs(low), abs(high)) * 1e-9
        assert all(low - span <= v <= high + span for v in found)


def test_scales_keep_to_the_plot() -> None:
    x, y = frame(400.0, 200.0, (1.0, 100.0), (1.0, 10.0), log=True)
    assert x.at(1.0) == x.start
    assert x.at(1000.0) == x.stop
    assert x.at(10.0) == pytest.approx((x.start + x.stop) / 2)
    assert y.at(1.0) > y.at(10.0)
    assert steps([(0, 3), (2, 1)]) == [(0, 3), (2, 3), (2, 1)]


def test_costs_are_printed_with_units() -> None:
    assert unit_for([3.5e-5], SECONDS).full(3.5e-5) == "35.00\u00a0µs"
    assert unit_for([4.2e6], INSTRUCTIONS).full(4_199_106) == "4.20\u00a0M instr."
    shared = shared_unit([1_582_097, 3_110], INSTRUCTIONS)
    assert [shared.text(c) for c in (1_582_097, 3_110, None)] == ["1,582.1", "3.1", "–"]
    assert duration(75.0) == "75\u00a0s"
    assert duration(600.0) == "10 min 0 s"
    assert split_detail("bad; reproduce: cc x") == ("bad", "cc x")
    assert split_detail("bad") == ("bad", "")
