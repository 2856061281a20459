"""Errors that answer the user, and the one format in which they are written.

An error says who refused what, with the fact and its numbers; then the state; then a hint if one
is true.  Our own invariants are `assert`s; everything a user can cause raises a `NestlingError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Self


class NestlingError(Exception):
    """A refusal the user can act on: `what` in one line, then state lines, then a hint.

    `state` may be a function that makes the lines: a search catches thousands of refusals that
    nobody reads.
    """

    def __init__(
        self,
        what: str,
        *,
        state: Iterable[str] | Callable[[], Iterable[str]] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self._state = state if callable(state) else tuple(state)

    @cached_property
    def state(self) -> tuple[str, ...]:
        """The lines that show what was refused."""
        return tuple(self._state() if callable(self._state) else self._state)

    def again(self) -> Self:
        """Return the same refusal as a new exception: one that is kept must hold no frames."""
        return type(self)(self.what, state=self._state, hint=self.hint)

    def __reduce__(self) -> tuple[Any, ...]:
        # For other processes: what makes the lines stays here, the lines go.
        return type(self), (self.what,), {**self.__dict__, "_state": self.state}

    def __str__(self) -> str:
        lines = [self.what, *(f"  {line}" for line in self.state)]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


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
