"""The ledger of flash cycles: how often each board's flash was written from this account.

A flash wears out: 10,000 cycles is what makers promise of most, 1,000 of some.  One line of JSON
per write, so that programs that write at once lose nothing.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

LEDGER = Path.home() / ".local" / "state" / "nestling" / "flash.jsonl"


def count_flash(board: str, usb_serial: str | None, path: Path | None) -> None:
    """Add a write of a board's flash, where there is a ledger; one that cannot be written is no
    reason to stop."""
    if path is None:
        return
    line = {"board": board, "serial": usb_serial or "", "time": int(time.time())}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError:
        return


def flash_cycles(path: Path = LEDGER) -> dict[tuple[str, str], int]:
    """Return how often the flash of each (board, serial number) was written."""
    counts: Counter[tuple[str, str]] = Counter()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    for line in lines:
        try:
            entry = json.loads(line)
            counts[str(entry["board"]), str(entry["serial"])] += 1
        except (ValueError, KeyError, TypeError):
            continue  # a line cut short
    return dict(counts)
