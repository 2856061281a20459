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
from toolkit.search.result import SECONDS
from toolkit.tuner.run import Listener, Quiet, TaskProgress, Tuner, TuneSettings, Verdict

ROWS = 24
"""Tasks that a live table shows, the heaviest."""


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
    """A table that is drawn anew after each round."""

    def __init__(self, live: Live, settings: TuneSettings) -> None:
        self.live, self.settings = live, settings
        self.verdicts: dict[str, Verdict] = {}

    def _draw(self, tuner: Tuner) -> None:
        unit = tuner.measurer.unit
        speed = "GFLOP/s" if unit == SECONDS else f"{unit}/MAC"
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in (
            "task",
            "calls",
            "trials",
            "default",
            "best",
            "gain",
            speed,
            "% peak",
            "failed",
        ):
            table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
        shown = sorted(tuner.tasks, key=lambda p: -(p.cost or 0.0) * p.task.weight)
        for p in shown[:ROWS]:
            gain = f"{p.default_cost / p.cost:.2f} x" if p.cost and p.default_cost else "-"
            share = tuner.percent_of_peak(p)
            table.add_row(
                p.task.name, f"{p.task.weight:g}", str(p.trials) if not p.why_not else "-",
                cost_text(p.default_cost, unit), cost_text(p.cost, unit), gain,
                speed_text(p, unit), f"{share:.0f}" if share is not None else "-",
                str(sum(p.failures.values()) or ""),
                style="bold" if p.task.key in self.verdicts else "",
            )  # fmt: skip
        rest = len(shown) - ROWS
        parts: list[RenderableType] = [Text(_head(tuner, self.settings)), table]
        if rest > 0:
            parts.append(Text(f"and {rest} lighter tasks", style="dim"))
        self.live.update(Group(*parts))

    def started(self, tuner: Tuner) -> None:
        """Show the defaults."""
        self._draw(tuner)

    def round(self, tuner: Tuner, progress: TaskProgress) -> None:
        """Show the round."""
        self._draw(tuner)

    def compared(self, tuner: Tuner, verdict: Verdict) -> None:
        """Show the verdict."""
        self.verdicts[verdict.task.key] = verdict
        self._draw(tuner)


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
