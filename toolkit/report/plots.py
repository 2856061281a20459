"""The charts of a report: curves of the search, roofline, quality of the cost model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolkit.measure.candidates.machine import Machine
from toolkit.report.charts import (
    Chart,
    decades,
    frame,
    Label,
    Line,
    Mark,
    name_marks,
    nice_steps,
    path,
    steps,
    ticks,
)
from toolkit.report.facts import TaskFacts
from toolkit.report.words import count, unit_for
from toolkit.search.records import Trial
from toolkit.search.result import Status

WIDE, SMALL, SQUARE = (400.0, 220.0), (340.0, 210.0), (400.0, 310.0)

_NAMED = 10
"""Kernels whose points on the roofline are named: those that take most time."""


def model_curve(tasks: Sequence[TaskFacts], trials: Sequence[Trial], unit: str) -> Chart | None:
    """Draw the sum of the kernels' best costs over the trials of the run."""
    best = {t.record.key: t.weighted(t.default) for t in tasks if t.default is not None}
    calls = {t.record.key: t.calls for t in tasks}
    if not best or not trials:
        return None
    points = [(0.0, sum(best.values()))]
    for number, trial in enumerate(trials, 1):
        if trial.cost is not None and trial.result.confident and trial.task_key in best:
            cost = calls[trial.task_key] * trial.cost
            best[trial.task_key] = min(best[trial.task_key], cost)
        points.append((float(number), sum(best.values())))
    first, last = points[0][1], points[-1][1]
    shown = unit_for([first], unit)
    low, high = _around(last / shown.size, first / shown.size)
    x, y = frame(*WIDE, (0.0, float(len(trials))), (low, high))
    line = steps([(x.at(n), y.at(c / shown.size)) for n, c in points])
    return Chart(
        "Sum of the kernels' best costs, over the trials",
        f"From {shown.full(first)} to {shown.full(last)} in {count(len(trials), 'trial')}.",
        "trials", shown.name, *WIDE,
        ticks(nice_steps(0.0, float(len(trials)), 6), x, whole=True),
        ticks(nice_steps(low, high, 6), y),
        lines=(
            Line(path([(x.at(0), y.at(first / shown.size)),
                       (x.at(len(trials)), y.at(first / shown.size))]), "default"),
            Line(path(line), "tuned"),
        ),
        marks=(Mark(*line[-1], "tuned", shown.full(last)),),
    )  # fmt: skip


def _around(low: float, high: float) -> tuple[float, float]:
    """Return a range of values with room on both sides."""
    room = max(0.15 * (high - low), 0.04 * high)
    return max(low - room, 0.0), high + room or 1.0


def task_curve(id: str, task: TaskFacts, unit: str) -> Chart | None:
    """Draw a kernel's trials, its best so far, and its default."""
    costs = [t.cost for t in task.trials if t.cost is not None]
    start = task.default.cost if task.default is not None else None
    if not costs and start is None:
        return None
    best = min([*costs, *([start] if start else [])])
    shown = unit_for([best], unit)
    low, high = _around(best / shown.size, (start or max(costs)) / shown.size)
    # Slow trials must not press the curve flat: those beyond stand at the upper edge.
    high = min(max([high, *(c / shown.size for c in costs)]) * 1.02, 1.3 * high)
    x, y = frame(*SMALL, (0.0, float(len(task.trials))), (low, high))
    so_far = start
    line = [(x.at(0), y.at(start / shown.size))] if start else []
    marks = []
    for number, trial in enumerate(task.trials, 1):
        cost = trial.cost
        if cost is None:
            title = f"trial {number}: {str(trial.result.status).replace('_', ' ')}"
            marks.append(Mark(x.at(number), y.start, "failed", title))
            continue
        value = y.at(cost / shown.size)
        style = "trial" if cost / shown.size <= high else "beyond"
        marks.append(Mark(x.at(number), value, style, f"trial {number}: {shown.full(cost)}", 2.2))
        if trial.result.confident and (so_far is None or cost < so_far):
            so_far = cost
        if so_far is not None:
            line.append((x.at(number), y.at(so_far / shown.size)))
    lines = []
    if start:
        level = y.at(start / shown.size)
        lines.append(Line(path([(x.start, level), (x.stop, level)]), "default"))
    if len(line) > 1:
        lines.append(Line(path(steps(line)), "tuned"))
    failed = sum(t.result.status is not Status.OK for t in task.trials)
    return Chart(
        f"{id} {task.record.name}",
        f"Default {shown.full(start)}, best {shown.full(so_far)} in "
        f"{count(len(task.trials), 'trial')}, {failed} of them failed.",
        "trials of this kernel", shown.name, *SMALL,
        ticks(nice_steps(0.0, float(len(task.trials)), 6), x, whole=True),
        ticks(nice_steps(low, high, 6), y),
        tuple(lines), tuple(marks),
    )  # fmt: skip


def roofline(
    tasks: Sequence[TaskFacts], ids: Mapping[str, str], machine: Machine | None
) -> Chart | None:
    """Draw operations a second over operations a byte, under what the machine can do at best."""
    if machine is None or not machine.bandwidth:
        return None
    points = []
    for t in tasks:
        if t.floats and t.operations and t.nbytes and t.best and t.best.cost:
            ends = [t.default, t.best] if t.tuned and t.default else [t.best]
            speeds = [t.operations / v.cost for v in ends if v is not None and v.cost]
            points.append((t, t.operations / t.nbytes, speeds))
    if not points:
        return None
    ridge = machine.flops / min(machine.bandwidth.values())
    x_low = min(0.25, *(i / 1.6 for _, i, _ in points))
    x_high = max(2 * ridge, *(i * 1.6 for _, i, _ in points))
    y_low = min(machine.flops / 100, *(min(s) / 1.6 for _, _, s in points))
    x, y = frame(*SQUARE, (x_low, x_high), (y_low * 1e-9, machine.flops * 2.2e-9), log=True)
    lines, labels, marks = [], [], []
    for level, bandwidth in machine.bandwidth.items():
        start = max(x_low, y_low / bandwidth)
        corner = machine.flops / bandwidth
        roof = [(start, start * bandwidth), (corner, machine.flops)]
        lines.append(Line(path([(x.at(a), y.at(b * 1e-9)) for a, b in roof]), f"roof {level}"))
        labels.append(Label(x.at(start) + 9, y.at(start * bandwidth * 1e-9) + 6, level, "roof"))
    flat = machine.flops / max(machine.bandwidth.values())
    top = y.at(machine.flops * 1e-9)
    lines.append(Line(path([(x.at(flat), top), (x.stop, top)]), "roof"))
    labels.append(Label(x.at(flat), top - 6, f"peak {machine.flops * 1e-9:.0f} GFLOP/s", "roof"))
    names = []
    for rank, (t, intensity, speeds) in enumerate(points):
        at = x.at(intensity)
        id = ids[t.record.key]
        if len(speeds) == 2:
            move = [(at, y.at(s * 1e-9)) for s in speeds]
            lines.append(Line(path(move), "move"))
            title = f"{id} default: {speeds[0] * 1e-9:.1f} GFLOP/s"
            marks.append(Mark(*move[0], "default", title))
        height = y.at(speeds[-1] * 1e-9)
        share = speeds[-1] / machine.flops
        title = (
            f"{id} {t.record.name}: {speeds[-1] * 1e-9:.1f} GFLOP/s, {100 * share:.0f} % of peak"
        )
        mark = Mark(at, height, "tuned" if t.tuned else "stays", title, 4.0)
        marks.append(mark)
        if rank < _NAMED:
            names.append((mark, id))
    labels += name_marks((x.start, y.stop, x.stop, y.start), names, marks, labels)
    heaviest = max(points, key=lambda p: p[0].weighted(p[0].best))
    return Chart(
        "Speed of the kernels under the roofs of this machine",
        f"Peak {machine.flops * 1e-9:.0f} GFLOP/s. The heaviest kernel, "
        f"{ids[heaviest[0].record.key]}, reaches {100 * heaviest[2][-1] / machine.flops:.0f} %.",
        "operations per byte of operands", "GFLOP/s", *SQUARE,
        ticks(decades(x_low, x_high), x),
        ticks(decades(y_low * 1e-9, machine.flops * 2.2e-9), y),
        tuple(lines), tuple(marks), tuple(labels),
    )  # fmt: skip


def quality_chart(tasks: Sequence[TaskFacts]) -> Chart | None:
    """Draw pairwise accuracy and recall of the cost model over the rounds of the run."""
    rounds = sorted((r for t in tasks for r in t.rounds), key=lambda r: r.number)
    named = {r.number: t.record.name for t in tasks for r in t.rounds}
    series = {
        "pairwise": [(r.number, r.pairwise) for r in rounds if r.pairwise is not None],
        "recall": [(r.number, r.recall) for r in rounds if r.recall is not None],
    }
    if not series["pairwise"]:
        return None
    x, y = frame(*WIDE, (0.0, float(max(r.number for r in rounds)) + 0.5), (0.0, 1.0))
    lines = [Line(path([(x.start, y.at(0.5)), (x.stop, y.at(0.5))]), "default")]
    marks = []
    for style, values in series.items():
        at = [(x.at(n), y.at(v)) for n, v in values]
        if len(at) > 1:
            lines.append(Line(path(at), style))
        marks += [
            Mark(*p, style, f"round {n}, {named[n]}: {style} {v:.2f}")
            for p, (n, v) in zip(at, values, strict=True)
        ]
    last = series["pairwise"][-1]
    return Chart(
        "How well the cost model foresaw each round",
        f"Pairwise accuracy {last[1]:.2f} in round {last[0]}, the last.",
        "round", "share", *WIDE,
        ticks(nice_steps(0.0, float(rounds[-1].number), 8), x, whole=True),
        ticks([0.0, 0.25, 0.5, 0.75, 1.0], y),
        tuple(lines), tuple(marks),
    )  # fmt: skip
