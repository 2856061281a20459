"""What the commands print, and where: results on stdout, notes and errors on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rich.console import Console as RichConsole
from rich.table import Table
from rich.text import Text

from toolkit.errors import NestlingError


class Console:
    """Prints.  `level`: -1 quiet (results only on failure), 0 normal, 1 verbose."""

    def __init__(self) -> None:
        self.level = 0
        self._json_on_stdout = False
        self._notes: set[str] = set()

    def _rich(self, *, stderr: bool = False) -> RichConsole:
        # Made anew each time, so that it writes to what sys.stdout is now.
        stream = sys.stderr if stderr or self._json_on_stdout else sys.stdout
        width = None if stream.isatty() else 200
        return RichConsole(
            file=stream, markup=False, highlight=False, emoji=False, width=width, soft_wrap=True
        )

    def fact(self, label: str, text: str) -> None:
        """Print a line of the result with a label in front, unless -q."""
        self.print(f"{label:<12}  {text}")

    def print(self, text: str = "", style: str | None = None) -> None:
        """Print a line of the result, unless -q."""
        if self.level >= 0:
            self._rich().print(Text(text, style=style or ""))

    def result(self, text: str, *, good: bool) -> None:
        """Print the verdict: also with -q when it is bad."""
        if self.level >= 0 or not good:
            self._rich().print(Text(text, style="green" if good else "bold red"))

    def detail(self, text: str) -> None:
        """Print a line that only -v shows."""
        if self.level > 0:
            self._rich(stderr=True).print(Text(text, style="dim"))

    def note(self, text: str) -> None:
        """Print what the user should know, once."""
        if self.level >= 0 and text not in self._notes:
            self._notes.add(text)
            self._rich(stderr=True).print(Text.assemble(("note: ", "yellow"), text))

    def error(self, text: str) -> None:
        """Print an error: always, on stderr."""
        self._rich(stderr=True).print(Text.assemble(("error: ", "bold red"), text))

    def plain(self, text: str) -> None:
        """Print text as it is on stderr."""
        self._rich(stderr=True).print(Text(text))

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
    ) -> None:
        """Print a table, unless -q; the columns named in `right` are aligned right."""
        if self.level < 0:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in columns:
            justify: Literal["left", "right"] = "right" if name in right else "left"
            table.add_column(name, justify=justify, overflow="fold", no_wrap=name in right)
        for row in rows:
            table.add_row(*(c if isinstance(c, Text) else Text(str(c)) for c in row))
        console = self._rich()
        with console.capture() as captured:
            console.print(table, soft_wrap=False)
        # Without the blanks that fill the last column: they are noise in logs and diffs.
        for line in captured.get().splitlines():
            console.file.write(line.rstrip() + "\n")
        console.file.flush()

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show that something takes its time, on a terminal; with -v say how long it took."""
        console, start = self._rich(stderr=True), time.monotonic()
        if self.level < 0 or not console.is_terminal:
            yield
        else:
            with console.status(what):
                yield
        self.detail(f"{what}: {time.monotonic() - start:.2f} s")

    def json(self, path: Path | None, value: Mapping[str, Any]) -> None:
        """Write the result as JSON to a file, or to stdout for '-'."""
        if path is None:
            return
        text = json.dumps(_plain(value), indent=1, allow_nan=False) + "\n"
        if str(path) == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise NestlingError(f"--json {path}: cannot be written: {error.strerror}.") from None

    def json_to_stdout(self) -> None:
        """Keep stdout for JSON: print everything else on stderr."""
        self._json_on_stdout = True


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: non-finite numbers become strings."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, Path):
        return str(value)
    return value
