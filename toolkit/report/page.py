"""A report's page: every number and word of it is decided here, the templates lay them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.codegen.kernel import print_kernel
from toolkit.codegen.render import render
from toolkit.errors import NestlingError
from toolkit.report.charts import Chart
from toolkit.report.facts import RunFacts, TaskFacts
from toolkit.report.plots import model_curve, quality_chart, roofline, task_curve
from toolkit.report.words import (
    count,
    duration,
    percent,
    shared_unit,
    short,
    times,
    Unit,
    unit_for,
    when,
)
from toolkit.schedule.default import apply_trace
from toolkit.schedule.trace import trace_from_json, trace_to_python
from toolkit.search.result import SECONDS, Status
from toolkit.targets.target import get_target
from toolkit.version import __version__

CURVES = 12
"""Curves of tasks that are open at first; the others are a click away."""

FAILURES = 6
"""Different failures of one status that are shown."""

NODES = 64
"""Letters of the names of a kernel's nodes that are shown."""

GAINED = 1.01
"""A gain that is shown as one."""

LINES = 1200
"""Lines of C of one kernel that are shown."""

STATUSES = {
    Status.ILLEGAL: "The schedule is illegal on this nest.",
    Status.BUILD_FAILED: "The compiler refused the kernel.",
    Status.TOO_BIG: "Larger than the limits of code or memory; never run.",
    Status.CRASHED: "The kernel ended the process that ran it.",
    Status.TIMED_OUT: "The kernel ran longer than its limit.",
    Status.WRONG_RESULT: "The kernel's results differ from the reference.",
    Status.DEVICE_LOST: "The board stopped answering.",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """A number that the page begins with."""

    label: str
    value: str
    note: str
    good: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar chart.  `parts`: width in percent and class of each, drawn one after another;
    `bars` of them below each other, each with its text."""

    id: str
    name: str
    bars: tuple[tuple[tuple[tuple[float, str], ...], str], ...]


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A row of the table of kernels.  `cells`: column and text; `gained`: by more than noise."""

    id: str
    name: str
    nodes: str
    cells: tuple[tuple[str, str], ...]
    verdict: str
    gained: bool
    link: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """A way in which trials failed."""

    kernel: str
    times: str
    what: str
    command: str


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """All failures of a status."""

    status: str
    count: str
    meaning: str
    failures: tuple[Failure, ...]
    more: str


@dataclass(frozen=True, slots=True)
class Winner:
    """The schedule that stands for a kernel: its trace, its nest and its C."""

    id: str
    name: str
    summary: str
    trace: str
    nest: str
    code: str
    problem: str


@dataclass(frozen=True, slots=True)
class Page:
    """All that the template lays out."""

    title: str
    subtitle: str
    state: str
    finished: bool
    facts: tuple[tuple[str, str], ...]
    tiles: tuple[Tile, ...]
    notes: tuple[str, ...]
    models: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    kernels: tuple[KernelRow, ...]
    curve: Chart | None
    curve_facts: tuple[tuple[str, str], ...]
    curves: tuple[tuple[str, Chart], ...]
    more_curves: tuple[tuple[str, Chart], ...]
    time_bars: tuple[Bar, ...]
    effort_bars: tuple[Bar, ...]
    speed_title: str
    roofline: Chart | None
    roofline_facts: tuple[tuple[str, str], ...]
    speed_bars: tuple[Bar, ...]
    speed_note: str
    quality: Chart | None
    quality_facts: tuple[tuple[str, str], ...]
    quality_note: str
    failures: tuple[FailureGroup, ...]
    failure_note: str
    winners: tuple[Winner, ...]
    version: str


def write_page(page: Page) -> str:
    """Return a page as HTML."""
    return render("report/page.html.j2", page=page)


def make_page(facts: RunFacts) -> Page:
    """Decide all that the page of a run says."""
    ids = {t.record.key: f"K{i}" for i, t in enumerate(facts.tasks, 1)}
    costs = [t.cost for task in facts.tasks for t in (task.default, task.best) if t is not None]
    unit = shared_unit(costs, facts.unit)
    name = ", ".join(facts.names) or facts.database.removesuffix(".db").removesuffix(".records")
    searched = [t for t in facts.tasks if t.trials]
    drawn = [(ids[t.record.key], task_curve(ids[t.record.key], t, facts.unit)) for t in searched]
    curves = [(i, c) for i, c in drawn if c is not None]
    counted = facts.unit != SECONDS
    roof = None if counted else roofline(facts.tasks, ids, facts.machine)
    quality = quality_chart(facts.tasks)
    finished = facts.run is not None and facts.run.finished is not None
    return Page(
        title=f"Tuning report: {name}",
        subtitle=_subtitle(facts),
        state=_state(facts),
        finished=finished,
        facts=_facts(facts),
        tiles=_tiles(facts),
        notes=_notes(facts),
        models=_models(facts),
        columns=_columns(facts, unit),
        kernels=tuple(_kernel(facts, t, ids[t.record.key], unit) for t in facts.tasks),
        curve=model_curve(facts.tasks, facts.trials, facts.unit),
        curve_facts=_curve(facts),
        curves=tuple(curves[:CURVES]),
        more_curves=tuple(curves[CURVES:]),
        time_bars=_time_bars(facts, ids),
        effort_bars=_effort_bars(facts, ids),
        speed_title=f"{facts.unit.capitalize()} per multiply-add" if counted else "Roofline",
        roofline=roof,
        roofline_facts=_machine(facts),
        speed_bars=_speed_bars(facts, ids) if counted else (),
        speed_note=_speed_note(facts),
        quality=quality,
        quality_facts=_quality(facts),
        quality_note=_quality_note(facts, quality),
        failures=_failures(facts, ids),
        failure_note=_failure_note(facts),
        winners=tuple(_winner(t, ids[t.record.key], facts.unit) for t in searched if t.best),
        version=__version__,
    )


def _subtitle(facts: RunFacts) -> str:
    board = str(facts.run.settings.get("board", "")) if facts.run else ""
    where = f"board {board}" if board and board != "host" else "this host" if board else ""
    target = f"target {', '.join(facts.targets)}" if facts.targets else ""
    return ", ".join(p for p in (where, target, f"costs in {facts.unit}") if p)


def _state(facts: RunFacts) -> str:
    if facts.run is None:
        return "all trials of the database, which names no run"
    if facts.run.finished is not None:
        return "finished"
    return "not finished: it is still running, or was stopped; the same command goes on with it"


def _facts(facts: RunFacts) -> tuple[tuple[str, str], ...]:
    rows = [("Database", facts.database)]
    if facts.run is None:
        return tuple(rows)
    run, settings = facts.run, facts.run.settings
    rows.insert(0, ("Command", run.command))
    rows.append(("Run", f"{facts.number} of {facts.runs}, started {when(run.started)}"))
    how = [f"{settings[k]} {what}" for k, what in (
        ("strategy", "strategy"), ("space", "space"), ("scheduler", "scheduler"),
        ("goal", "goal"),
    ) if settings.get(k)]  # fmt: skip
    rows.append(("Search", ", ".join([*how, f"seed {run.seed}"])))
    return tuple(rows)


def _sums(facts: RunFacts) -> tuple[float, float]:
    known = [t for t in facts.tasks if t.default is not None]
    return (
        sum(t.weighted(t.default) for t in known),
        sum(t.weighted(t.best or t.default) for t in known),
    )


def _tiles(facts: RunFacts) -> tuple[Tile, ...]:
    tiles = []
    if len(facts.models) == 1:
        (m,) = facts.models
        unit = unit_for([m.default], facts.unit)
        gain = f"{unit.text(m.default)} → {unit.full(m.tuned if m.kept else m.default)}"
        kept = "the whole model, tuned and default timed in turns" if m.kept else "no gain: default"
        tiles.append(Tile("Inference", gain, kept))
        factor = 1 / m.ratio if m.kept and m.ratio else 1.0
        tiles.append(Tile("Speed-up", times(factor), "of the default schedules", factor > 1))
    else:
        default, best = _sums(facts)
        if default and best:
            unit = unit_for([default], facts.unit)
            change = f"{unit.text(default)} → {unit.full(best)}"
            tiles.append(Tile("Sum of kernels", change, "of single trials"))
            tiles.append(
                Tile("Speed-up", times(default / best), "of single trials", best < default)
            )
    tuned = sum(t.tuned for t in facts.tasks)
    searched = sum(bool(t.trials) for t in facts.tasks)
    tiles.append(
        Tile("Kernels tuned", f"{tuned} of {len(facts.tasks)}", f"{searched} of them searched")
    )
    failed = sum(n for s, n in facts.statuses.items() if s is not Status.OK)
    note = f"{failed:,} failed" if failed else "none failed"
    tiles.append(Tile("Trials", f"{len(facts.trials):,}", note))
    if facts.elapsed_s:
        parts = [
            f"{what} {percent(min(s / facts.elapsed_s, 1.0))}"
            for what, s in (("search", facts.search_s), ("measuring", facts.measure_s))
            if s is not None
        ]
        tiles.append(Tile("Tuning time", duration(facts.elapsed_s), ", ".join(parts)))
    return tuple(tiles)


def _notes(facts: RunFacts) -> tuple[str, ...]:
    notes = []
    if facts.others:
        notes.append(f"{count(facts.others, 'trial')} in other units are not part of this page.")
    if not facts.trials:
        notes.append("Only the default schedules were measured: there is no trial to show yet.")
    missing = [t for t in facts.tasks if t.default is None and t.best is None]
    if missing:
        notes.append(f"{count(len(missing), 'kernel')} never ran: every schedule of them failed.")
    return tuple(notes)


def _models(facts: RunFacts) -> tuple[tuple[str, ...], ...]:
    rows = []
    for m in facts.models:
        unit = unit_for([m.default], facts.unit)
        verdict = "tuned schedules kept" if m.kept else "default schedules stay"
        gain = times(1 / m.ratio if m.ratio else None)
        rows.append((m.name, unit.full(m.default), unit.full(m.tuned), gain, verdict))
    return tuple(rows)


def _columns(facts: RunFacts, unit: Unit) -> tuple[str, ...]:
    speed = ("GFLOP/s", "% of peak") if facts.unit == SECONDS else (f"{short(facts.unit)}/MAC",)
    return (
        "Calls", f"Default, {unit.name}", f"Tuned, {unit.name}", "Gain", *speed, "Share",
        "Trials", "Failed",
    )  # fmt: skip


def _gain(task: TaskFacts) -> float | None:
    """Return how much faster the best is than the default: of the comparison, else of trials."""
    if not task.tuned or task.default is None or task.best is None:
        return 1.0 if task.default is not None else None
    if task.ratio:
        return 1 / task.ratio
    return (task.default.cost or 0.0) / (task.best.cost or 1.0)


def _kernel(facts: RunFacts, task: TaskFacts, id: str, unit: Unit) -> KernelRow:
    best = task.best or task.default
    cost = best.cost if best else None
    total = _sums(facts)[1]
    speed: tuple[str, ...]
    if facts.unit == SECONDS:
        flops = task.operations / cost if cost and task.operations else None
        known = flops is not None and facts.machine is not None and task.floats
        speed = (
            f"{flops * 1e-9:.1f}" if flops else "–",
            f"{100 * flops / facts.machine.flops:.0f}"
            if known and flops and facts.machine
            else "–",
        )
    else:
        per = per_mac(task, cost)
        speed = (f"{per:.2f}" if per else "–",)
    failed = sum(t.result.status is not Status.OK for t in task.trials)
    return KernelRow(
        id=id,
        name=task.record.name,
        nodes=_nodes(task.record.nodes),
        cells=tuple(
            zip(
                _columns(facts, unit),
                (
                    f"{task.calls:g}",
                    unit.text(task.default.cost if task.default else None),
                    unit.text(cost) if task.tuned else "–",
                    times(_gain(task)) if task.tuned else "–",
                    *speed,
                    percent(task.weighted(best) / total) if total and best else "–",
                    f"{len(task.trials):,}",
                    f"{failed:,}" if failed else "–",
                ),
                strict=True,
            )
        ),
        verdict=_verdict(task, facts.run is not None and facts.run.finished is not None),
        gained=task.tuned and (_gain(task) or 0.0) >= GAINED,
        link=bool(task.trials) and task.best is not None,
    )


def _nodes(names: Sequence[str]) -> str:
    """Return names of nodes, as many as fit a line or two."""
    shown = [n for i, n in enumerate(names) if i == 0 or sum(map(len, names[: i + 1])) <= NODES]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def per_mac(task: TaskFacts, cost: float | None) -> float | None:
    """Return a cost per multiply-add, which is two operations."""
    return 2 * cost / task.operations if cost and task.operations else None


def _verdict(task: TaskFacts, finished: bool) -> str:
    if task.tuned:
        return "tuned"
    if task.default is None and task.best is None:
        return task.why_not or "nothing ran"
    if task.trials:
        return f"default stays: {task.detail}" if task.detail else "default stays"
    why = task.why_not or ("the budget went to others" if finished else "")
    return f"no trials: {why}" if why else "no trials"


def _curve(facts: RunFacts) -> tuple[tuple[str, str], ...]:
    default, best = _sums(facts)
    if not default or not facts.trials:
        return ()
    unit = unit_for([default], facts.unit)
    rows = [("Default schedules", unit.full(default)), ("Tuned schedules", unit.full(best))]
    rows.append(("Trials", f"{len(facts.trials):,}"))
    origins = Counter(t.best.origin for t in facts.tasks if t.tuned and t.best)
    found = ", ".join(f"{n} by {origin}" for origin, n in origins.most_common())
    return (*rows, ("Winners found", found)) if found else tuple(rows)


# Bars


def _time_bars(facts: RunFacts, ids: dict[str, str]) -> tuple[Bar, ...]:
    """Default and tuned cost of all calls of each kernel."""
    shown = [t for t in facts.tasks if t.default or t.best]
    largest = max((t.weighted(v) for t in shown for v in (t.default, t.best)), default=0.0)
    unit = shared_unit([largest], facts.unit)
    bars = []
    for t in shown:
        rows = []
        for trial, style in ((t.default, "default"), (t.best, "tuned")):
            if trial is not None and (style == "default" or t.tuned):
                cost = t.weighted(trial)
                rows.append((((round(100 * cost / largest, 2), style),), unit.full(cost)))
        bars.append(Bar(ids[t.record.key], t.record.name, tuple(rows)))
    return tuple(bars)


def _effort_bars(facts: RunFacts, ids: dict[str, str]) -> tuple[Bar, ...]:
    """Seconds of search and of measuring that went to each kernel."""
    spent = {t.record.key: _spent(t) for t in facts.tasks if t.rounds}
    largest = max((a + b for a, b in spent.values()), default=0.0)
    if not largest:
        return ()
    return tuple(
        Bar(
            ids[t.record.key],
            t.record.name,
            (
                (
                    tuple(
                        (round(100 * s / largest, 2), style)
                        for s, style in zip(spent[t.record.key], ("search", "measure"), strict=True)
                    ),
                    f"{duration(sum(spent[t.record.key]))}, {count(len(t.trials), 'trial')}",
                ),
            ),
        )
        for t in facts.tasks
        if t.rounds
    )


def _spent(task: TaskFacts) -> tuple[float, float]:
    return sum(r.search_s for r in task.rounds), sum(r.measure_s for r in task.rounds)


def _speed_bars(facts: RunFacts, ids: dict[str, str]) -> tuple[Bar, ...]:
    """Cost per multiply-add, default and tuned, of kernels that have any."""
    rows = []
    for t in facts.tasks:
        found = [
            (per_mac(t, trial.cost), style)
            for trial, style in ((t.default, "default"), (t.best if t.tuned else None, "tuned"))
            if trial is not None
        ]
        rows.append((t, [(v, style) for v, style in found if v is not None]))
    largest = max((v for _, values in rows for v, _ in values), default=0.0)
    return tuple(
        Bar(
            ids[t.record.key],
            t.record.name,
            tuple((((round(100 * v / largest, 2), style),), f"{v:.2f}") for v, style in values),
        )
        for t, values in rows
        if values
    )


# Words


def _machine(facts: RunFacts) -> tuple[tuple[str, str], ...]:
    if facts.machine is None:
        return ()
    return (
        ("Peak, float32", f"{facts.machine.flops * 1e-9:.1f} GFLOP/s"),
        *((f"Read from {level}", f"{bw * 1e-9:.1f} GB/s")
          for level, bw in sorted(facts.machine.bandwidth.items(), key=lambda p: -p[1])),
    )  # fmt: skip


def _speed_note(facts: RunFacts) -> str:
    if facts.unit != SECONDS:
        return (
            f"This run counted {facts.unit}, not time, so there is no roofline. How well a core is "
            "used shows in the cost of one multiply-add: what is over one instruction is loads, "
            "stores, address arithmetic and loop control. Where a kernel has no multiply-adds, two "
            "other operations stand for one."
        )
    if facts.machine is None:
        return "The peak of this machine was not measured in this run, so there is no roofline."
    return (
        "Lines: what one core can do at best, measured at the start of the run with the target's "
        "vectors. Bytes are those of all operands, each once; costs are of warm caches. Operations "
        "are those of the plain loops, so skipped borders and Winograd can show more than the "
        "peak. Only kernels that compute in float32 are shown."
    )


def _quality(facts: RunFacts) -> tuple[tuple[str, str], ...]:
    rounds = [r for t in facts.tasks for r in t.rounds]
    rows = []
    for label, values in (
        ("Pairwise accuracy", [(r.pairwise, r.trials) for r in rounds]),
        ("Recall of the best quarter", [(r.recall, r.trials) for r in rounds]),
    ):
        known = [(v, n) for v, n in values if v is not None]
        if known:
            mean = sum(v * n for v, n in known) / sum(n for _, n in known)
            rows.append((f"{label}, mean", f"{mean:.2f}"))
    return tuple(rows)


def _quality_note(facts: RunFacts, chart: Chart | None) -> str:
    if chart is None:
        if any(t.rounds for t in facts.tasks):
            return "No round had predictions to compare: the model learns from its first results."
        return "This run did not keep how well its cost model predicted."
    return (
        "Each batch is predicted before it is measured. Pairwise accuracy: pairs of its results "
        "whose order was foreseen; 0.5 is a coin. Recall: how many of the best quarter of a batch "
        "were among the quarter predicted best. A batch holds what the model itself chose, which "
        "is near in speed, so these are harder to order than random programs."
    )


# Failures


def split_detail(detail: str) -> tuple[str, str]:
    """Return what went wrong, and the command that shows it."""
    what, _, command = detail.partition("; reproduce: ")
    return what, command


def _failures(facts: RunFacts, ids: dict[str, str]) -> tuple[FailureGroup, ...]:
    groups = []
    for status in Status:
        trials = [t for task in facts.tasks for t in task.failed if t.result.status is status]
        if status is Status.OK or not trials:
            continue
        ways = Counter((t.task_key, split_detail(t.result.detail)[0]) for t in trials)
        commands: dict[tuple[str, str], str] = {}
        for t in trials:
            what, command = split_detail(t.result.detail)
            commands[t.task_key, what] = command  # of the newest, whose files are still kept
        shown = ways.most_common(FAILURES)
        names = {t.record.key: f"{ids[t.record.key]} {t.record.name}" for t in facts.tasks}
        rest = len(ways) - len(shown)
        groups.append(
            FailureGroup(
                status=str(status).replace("_", " "),
                count=count(len(trials), "trial"),
                meaning=STATUSES[status],
                failures=(
                    *(_reduced(facts, names) if status is Status.WRONG_RESULT else ()),
                    *(
                        Failure(
                            names[key], count(n, "trial"), what or "no more is known",
                            commands[key, what],
                        )
                        for (key, what), n in shown
                    ),
                ),
                more=f"and {rest} more kinds; `nestling records export` lists all" if rest else "",
            )
        )  # fmt: skip
    return tuple(groups)


def _reduced(facts: RunFacts, names: dict[str, str]) -> list[Failure]:
    """Return the wrong results that the run reduced to a smallest trace."""
    result = []
    for key, task in (facts.run.tasks if facts.run else {}).items():
        wrong = task.get("wrong")
        if wrong and key in names:
            what, command = split_detail(wrong["detail"])
            try:
                steps = "; ".join(map(str, trace_from_json(wrong["trace"]))) or "no step at all"
            except NestlingError as error:  # of another version
                steps = error.what
            result.append(Failure(names[key], "the smallest trace", f"{steps}: {what}", command))
    return result


def _failure_note(facts: RunFacts) -> str:
    if not facts.trials:
        return "There were no trials."
    failed = sum(n for s, n in facts.statuses.items() if s is not Status.OK)
    if failed:
        return f"{failed:,} of {count(len(facts.trials), 'trial')} failed; such are never chosen."
    return f"All {count(len(facts.trials), 'trial')} compiled, ran and gave the right results."


# Winners


def _winner(task: TaskFacts, id: str, unit: str) -> Winner:
    assert task.best is not None
    scale = unit_for([task.best.cost], unit)
    summary = scale.full(task.best.cost)
    if task.tuned:
        gain = _gain(task)
        summary += f", {times(gain)} as fast as the default" if gain else ""
    else:
        summary += ", the default schedule"
    trace = nest = code = problem = ""
    try:
        trace = trace_to_python(task.best.trace)
        if task.func is None:
            problem = "The database does not hold this kernel's function."
        else:
            func = apply_trace(task.func, task.best.trace)
            nest = str(func)
            isa = get_target(task.record.target).isa
            code = render("report/kernel.c.j2", kernel=print_kernel(func, "kernel", (), isa))
    except NestlingError as error:
        problem = f"This nestling cannot replay the schedule: {error.what}"
    lines = code.splitlines()
    if len(lines) > LINES:
        code = "\n".join([*lines[:LINES], f"/* and {len(lines) - LINES:,} more lines */"])
    return Winner(id, task.record.name, summary, trace, nest, code.strip("\n"), problem)
