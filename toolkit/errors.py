"""Errors that answer the user, and the one format in which they are written.

An error says who refused what, with the fact and its numbers; then the state; then a hint if one
is true.  Our own invariants are `assert`s; everything a user can cause raises a `NestlingError`.
"""

from __future__ import annotations

from collections.abc import Iterable


class NestlingError(Exception):
    """A refusal the user can act on: `what` in one line, then state lines, then a hint."""

    def __init__(self, what: str, *, state: Iterable[str] = (), hint: str | None = None) -> None:
        self.what = what
        self.state = tuple(state)
        self.hint = hint
        lines = [what, *(f"  {line}" for line in self.state)]
        if hint:
            lines.append(f"  hint: {hint}")
        super().__init__("\n".join(lines))


class ModelError(NestlingError):
    """The model file cannot be read, is not valid, or leaves something open (a dimension)."""


class UnsupportedError(NestlingError):
    """The model is valid, but holds operators or types that cannot be compiled."""


class ScheduleError(NestlingError):
    """A schedule step is illegal in the nest it was applied to."""


class ToolchainError(NestlingError):
    """A compiler is missing or refused generated code."""


class MeasureError(NestlingError):
    """A built library or firmware crashed, hung, or answered wrongly."""


class BoardError(NestlingError):
    """A board is unknown, its port cannot be used, or it stopped answering."""


class RecordsError(NestlingError):
    """A database of trials or a pack cannot be read or written."""
