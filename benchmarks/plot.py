"""A bar plot as SVG: every row's times relative to the first peer's."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TYPE_CHECKING

import jinja2

from benchmarks.tables import number

if TYPE_CHECKING:
    from benchmarks.host import Result
    from benchmarks.peers import Peer

COLOURS = ("#1b6ca8", "#e07b39", "#6aa84f", "#8e6bb0")
LEFT, SCALE, BAR, GAP, TOP, MOST = 230, 220, 11, 12, 66, 3.0


def bars(results: Sequence[Result], peers: Sequence[Peer]) -> str:
    """Return the plot's text.  Bars beyond three times the first peer are cut."""
    names = ["nestling", *(p.short for p in peers)]
    groups: list[dict[str, Any]] = []
    y = TOP
    for r in results:
        unit = next((x.median_us for x in r.peers.values() if x.median_us), r.median_us)
        times = [r.median_us, *(r.peers[p.name].median_us for p in peers)]
        drawn = []
        middle = y + len(times) * BAR / 2 + 4
        for colour, us in zip(COLOURS, times, strict=False):
            length = 0.0 if us is None else min(us / unit, MOST) * SCALE
            text = "n/a" if us is None else f"{number(us, 4)} us"
            drawn.append({"y": y, "length": f"{length:.1f}", "colour": colour, "text": text,
                          "text_x": f"{LEFT + length + 4:.1f}", "text_y": y + BAR - 2})  # fmt: skip
            y += BAR
        groups.append({"title": html.escape(r.title), "text_y": middle, "bars": drawn})
        y += GAP
    base = peers[0].name if peers else "nestling"
    ticks = [
        {
            "x": LEFT + k * SCALE / 2,
            "text": f"{k / 2:g}",
            "colour": "#999999" if k == 2 else "#e5e5e5",
        }
        for k in range(7)
    ]
    keys = [
        {"x": LEFT + 130 * i, "text_x": LEFT + 130 * i + 17, "name": html.escape(n), "colour": c}
        for i, (n, c) in enumerate(zip(names, COLOURS, strict=False))
    ]
    source = Path(__file__).with_name("plot.svg.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    return environment.from_string(source).render(
        title=f"Time of one inference, one thread; {base} = 1, shorter is faster",
        width=LEFT + int(MOST * SCALE) + 110, height=y + 24, bottom=y - GAP + 2, tick_y=y + 8,
        label_x=LEFT - 8, left=LEFT, bar_height=BAR - 1, ticks=ticks, keys=keys, groups=groups,
    )  # fmt: skip


def write_bars(path: Path, results: Sequence[Result], peers: Sequence[Peer]) -> None:
    """Write the plot."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(bars(results, peers), encoding="utf-8")
