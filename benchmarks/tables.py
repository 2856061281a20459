"""Plain text tables, JSON files, and what every table says about the machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return aligned columns, the first `left` of them to the left."""
    lines = [list(head), *map(list, rows)]
    wide = [max(len(line[i]) for line in lines) for i in range(len(head))]

    def text(line: Sequence[str]) -> str:
        cells = [
            c.ljust(w) if i < left else c.rjust(w)
            for i, (c, w) in enumerate(zip(line, wide, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([text(lines[0]), "  ".join("-" * w for w in wide), *map(text, lines[1:])])


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with about `digits` significant digits and no exponent; None is n/a."""
    if value is None:
        return "n/a"
    if value == 0 or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    places = digits - 1
    while abs(value) >= 10 and places > 0:
        value_scaled = abs(value)
        places = digits - len(str(int(value_scaled)))
        break
    return f"{value:,.{max(places, 0)}f}"


def machine() -> dict[str, Any]:
    """Return what the numbers depend on."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"processor": name, "cores": os.cpu_count(), "system": platform.platform(), "load": load}


def write_json(path: Path | None, value: Any) -> None:
    """Write a result, if a file is wanted."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
