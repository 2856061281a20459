"""A run that finds wrong results says which step makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.test_candidates import measurer, reproduce, TASK
from tests.unit.test_tuner import Model, tuner
from toolkit.report.facts import read_run
from toolkit.report.page import make_page, write_page
from toolkit.schedule.steps.annotate import Parallel, Unroll, Vectorize
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.split import Split
from toolkit.search.records import Records
from toolkit.search.result import MeasureResult, SECONDS, Status
from toolkit.space.task import Candidate, candidate
from toolkit.tuner.run import TuneSettings
from toolkit.tuner.wrong import BUILDS, reduce_wrong

TRACE = (
    CacheWrite("t"),
    Split("i_2", (4,)),
    Split("j_2", (8,)),
    Reorder(("i_2.0", "j_2.0", "i_2.1", "j_2.1")),
    Split("k", (4,)),
    Unroll("k.1"),
    Unroll("i_2.1"),
    Vectorize("j_2.1"),
    Parallel("i_2.0"),
)


def miscompiled(one: Candidate, text: str) -> str:
    """Stand for a printer that gets unrolled loops of a sum wrong."""
    if not any(isinstance(s, Unroll) and s.loop.startswith("k") for s in one.trace):
        return text
    return text.rstrip()[:-1] + "    ((float *)p[0])[3 * 32 + 7] += 0.5f;\n}\n"


def test_a_wrong_kernel_is_reduced_to_the_step_that_is_printed_wrong(tmp_path: Path) -> None:
    found = candidate(TASK, TRACE, {})
    with measurer(tmp_path, miscompiled) as host:
        [result] = host.measure([found])
        assert result.status is Status.WRONG_RESULT
        wrong = reduce_wrong(host, found, result.detail)
    assert wrong.complete
    assert wrong.builds <= BUILDS
    assert [type(s) for s in wrong.trace if not isinstance(s, Split)] == [Unroll]
    assert all(s.loop == "k" for s in wrong.trace if isinstance(s, Split))
    assert "y[3, 7] is " in wrong.detail
    assert wrong.detail != result.detail  # the program of the smallest trace
    assert reproduce(wrong.detail, tmp_path).returncode == 1


def test_builds_that_run_out_leave_what_was_found_so_far(tmp_path: Path) -> None:
    found = candidate(TASK, TRACE, {})
    with measurer(tmp_path, miscompiled) as host:
        [result] = host.measure([found])
        wrong = reduce_wrong(host, found, result.detail, builds=3)
        assert wrong.builds == 3
        assert not wrong.complete
        assert Unroll("k.1") in wrong.trace
        again = reduce_wrong(host, found, result.detail, builds=0)
    assert again.trace == TRACE
    assert again.detail == result.detail


class WrongWhereVectorised(Model):
    """Gives wrong results wherever the columns of the sum are vectorised."""

    def measure(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        return [
            MeasureResult(Status.WRONG_RESULT, SECONDS, detail="y[0] is 1; reproduce: cc x.c")
            if c.origin != "default" and Vectorize("j") in c.trace
            else MeasureResult(Status.OK, SECONDS, (1e-6 * len(c.trace),))
            for c in candidates
        ]


def test_a_run_keeps_the_smallest_trace_and_shows_it(
    tmp_path: Path, nestling: Callable[..., tuple[str, str]]
) -> None:
    path = tmp_path / "r.db"
    with Records(path) as records:
        run = tuner(path, WrongWhereVectorised(), TuneSettings(trials=24, batch=8), records)
        run.search()
        wrong = run.reduce_wrong()
        assert sum(w.builds for w in wrong) <= BUILDS
        assert wrong[0].trace == (Reorder(("k", "j")), Vectorize("j"))  # lanes are innermost
        assert wrong[0].complete
        records.add([], run=run.run, state=run.history.state(1.0), task_states=run.history.tasks)
        records.finish_run(run.run)
        key = next(p.task.key for p in run.tasks if p.wrong is not None)
    shown, _ = nestling("records", "show", str(path), key)
    assert "to 2 steps, none can be left out: y[0] is 1" in " ".join(shown.split())
    assert "Vectorize(loop='j')" in shown
    with Records(path, readonly=True) as records:
        page = write_page(make_page(read_run(records)))
    assert "the smallest trace" in page
    assert "Vectorize(loop=&#39;j&#39;): y[0] is 1" in page


class WrongByDefault(WrongWhereVectorised):
    """Gives wrong results for every default schedule that vectorises a loop."""

    def measure(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        return [
            MeasureResult(Status.WRONG_RESULT, SECONDS, detail="all of it")
            if any(isinstance(step, Vectorize) for step in c.trace)
            else MeasureResult(Status.OK, SECONDS, (1e-6,))
            for c in candidates
        ]


def test_a_wrong_default_schedule_is_reduced_too(tmp_path: Path) -> None:
    with Records(tmp_path / "r.db") as records:
        run = tuner(tmp_path, WrongByDefault(), TuneSettings(trials=8), records)
        run.search()
        assert all("wrong_result" in p.why_not for p in run.tasks)
        wrong = run.reduce_wrong(builds=60)
    assert len(wrong) == len(run.tasks)
    assert [type(s) for s in wrong[0].trace][-1] is Vectorize
    assert len(wrong[0].trace) <= 2
