"""What is seen while a tuning run goes: a live table on a terminal, else plain lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from toolkit.cli.console import Console
from toolkit.report.words import shared_unit, short
from toolkit.search.result import SECONDS
from toolkit.tuner.run import Listener, Quiet, TaskProgress, Tuner, TuneSettings, Verdict

ROWS = 24
"""Tasks that a live table shows, the heaviest."""

WIDE = 100
"""Columns of a terminal on which a table's columns stand further apart."""


def cost_text(value: float | None, unit: str) -> str:
    """Return a cost with its unit: microseconds, or instructions and cycles in thousands."""
    if value is None:
        return "-"
    if unit == SECONDS:
        return f"{value * 1e6:,.1f} us"
    return f"{value:,.0f} {unit}"


def speed_text(progress: TaskProgress, unit: str) -> str:
    """Return GFLOP/s, or the cost per multiply-add (two operations) where time is counted."""
    cost, work = progress.cost, progress.state.operations
    if not cost or not work:
        return "-"
    return f"{work / cost * 1e-9:.1f}" if unit == SECONDS else f"{2 * cost / work:.2f}"


@contextmanager
def make_view(console: Console, settings: TuneSettings) -> Iterator[Listener]:
    """Return what shows a run on this console."""
    if console.level < 0:
        yield Quiet()
    elif sys.stderr.isatty():
        with Live(console=RichConsole(stderr=True), refresh_per_second=4, transient=False) as live:
            yield LiveView(live, settings)
    else:
        yield Lines(console, settings)


def _time_left(tuner: Tuner) -> str:
    left, used = tuner.left(), 1 - tuner.left()
    if used <= 0:
        return "-"
    seconds = tuner.elapsed_s * left / used
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _head(tuner: Tuner, settings: TuneSettings) -> str:
    of = f" of {settings.trials}" if settings.trials else ""
    assert tuner.scheduler is not None
    latencies = ", ".join(
        f"{model} {cost_text(cost, tuner.measurer.unit)}"
        for model, cost in tuner.latencies().items()
    )
    return (
        f"trials {tuner.trials}{of}, {tuner.elapsed_s:.0f} s, left {_time_left(tuner)}; "
        f"sum of kernels: {latencies}"
    )


class LiveView:
    """A table that is drawn anew after each round; `>` marks what it was about.

    Dim: tasks without trials.  Bold: those whose tuned schedule won the comparison at the end.
    """

    def __init__(self, live: Live, settings: TuneSettings) -> None:
        self.live, self.settings = live, settings
        self.verdicts: dict[str, Verdict] = {}
        live.update(Text("measuring the default schedules", style="dim"))

    def _draw(self, tuner: Tuner, last: str = "") -> None:
        """Draw the table; `last`: the task whose round or verdict it was."""
        unit = tuner.measurer.unit
        shown = sorted(tuner.tasks, key=lambda p: -(p.cost or 0.0) * p.task.weight)
        shared = shared_unit([p.default_cost for p in shown], unit)
        name = shared.name.replace("µ", "u")
        speed = "GFLOP/s" if unit == SECONDS else f"{short(unit)}/MAC"
        between = 2 if self.live.console.width >= WIDE else 1
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, between, 0, 0))
        table.add_column("", width=1)
        table.add_column("task", no_wrap=True, ratio=1, min_width=16)
        for column in (
            "calls", "trials", "failed", f"default\n{name}", f"best\n{name}", "gain", speed,
        ):  # fmt: skip
            table.add_column(column, justify="right", no_wrap=True)
        if tuner.peak:
            table.add_column("%\npeak", justify="right", no_wrap=True)
        for p in shown[:ROWS]:
            share = tuner.percent_of_peak(p)
            cells = [
                ">" if p.task.key == last else "", p.task.name, f"{p.task.weight:g}",
                str(p.trials) if not p.why_not else "-",
                str(sum(p.failures.values()) or "-"),
                shared.text(p.default_cost), shared.text(p.cost), self._gain(p),
                speed_text(p, unit),
            ]  # fmt: skip
            if tuner.peak:
                cells.append(f"{share:.0f}" if share is not None else "-")
            table.add_row(*cells, style=self._style(p))
        rest = len(shown) - ROWS
        parts: list[RenderableType] = [Text(_head(tuner, self.settings)), table]
        if rest > 0:
            parts.append(Text(f"and {rest} lighter tasks", style="dim"))
        self.live.update(Group(*parts))

    def _gain(self, p: TaskProgress) -> str:
        """Return what was gained: of trials so far, of the comparison once there was one."""
        verdict = self.verdicts.get(p.task.key)
        if verdict is not None:
            return f"{1 / verdict.ratio:.2f} x" if verdict.tuned else "-"
        return f"{p.default_cost / p.cost:.2f} x" if p.cost and p.default_cost else "-"

    def _style(self, p: TaskProgress) -> str:
        verdict = self.verdicts.get(p.task.key)
        if verdict is not None and verdict.tuned:
            return "bold"
        return "dim" if p.why_not else ""

    def started(self, tuner: Tuner) -> None:
        """Show the defaults."""
        self._draw(tuner)

    def round(self, tuner: Tuner, progress: TaskProgress) -> None:
        """Show the round."""
        self._draw(tuner, progress.task.key)

    def compared(self, tuner: Tuner, verdict: Verdict) -> None:
        """Show the verdict."""
        self.verdicts[verdict.task.key] = verdict
        self._draw(tuner, verdict.task.key)


class Lines:
    """A line a round, for logs."""

    def __init__(self, console: Console, settings: TuneSettings) -> None:
        self.console, self.settings = console, settings

    def started(self, tuner: Tuner) -> None:
        """Say how many tasks there are, and where each stands."""
        live = [p for p in tuner.tasks if not p.why_not]
        self.console.print(
            f"{len(tuner.tasks)} kernels, {len(live)} to tune; {_head(tuner, self.settings)}"
        )

    def round(self, tuner: Tuner, progress: TaskProgress) -> None:
        """Say what the round brought."""
        unit = tuner.measurer.unit
        share = tuner.percent_of_peak(progress)
        peak = f", {share:.0f} % of peak" if share is not None else ""
        failed = sum(progress.failures.values())
        self.console.print(
            f"[{tuner.trials:>5}] {progress.task.name} x{progress.task.weight:g}: best "
            f"{cost_text(progress.cost, unit)} of {cost_text(progress.default_cost, unit)}{peak}, "
            f"{progress.trials} trials"
            + (f", {failed} failed" if failed else "")
            + f"; left {_time_left(tuner)}"
        )

    def compared(self, tuner: Tuner, verdict: Verdict) -> None:
        """Say which schedule stays."""
        if verdict.tuned:
            self.console.print(f"{verdict.task.name}: {1 / verdict.ratio:.2f} x, kept")
        elif verdict.ratio != 1.0:
            self.console.print(f"{verdict.task.name}: the default stays ({verdict.detail})")
