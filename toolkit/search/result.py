"""What measuring a candidate gave.  A failure is a status, never a number."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from toolkit.space.task import Candidate

SECONDS, CYCLES, INSTRUCTIONS = "seconds", "cycles", "instructions"


class Status(StrEnum):
    """How a trial ended."""

    OK = "ok"
    ILLEGAL = "illegal"
    BUILD_FAILED = "build_failed"
    TOO_BIG = "too_big"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    WRONG_RESULT = "wrong_result"
    DEVICE_LOST = "device_lost"


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """One trial.  `samples`: cost of single runs in `unit`, none unless `status` is OK.

    `flash_bytes`: code and packed constants; `ram_bytes`: scratch (the operands are the model's).
    `detail`: one line about a failure, with the command that reproduces it.  `device`: where it
    ran.  `confident`: False where measuring stopped early because the candidate had lost.
    """

    status: Status
    unit: str = SECONDS
    samples: tuple[float, ...] = ()
    flash_bytes: int | None = None
    ram_bytes: int | None = None
    detail: str = ""
    device: str = ""
    confident: bool = True

    @property
    def cost(self) -> float | None:
        """The median of the samples; None for a failure."""
        return statistics.median(self.samples) if self.samples else None


class Compared(Protocol):
    """A candidate beside the first of a comparison: the median of its cost as a part of that one's,
    and the upper bound of that median; None where it did not run."""

    @property
    def ratio(self) -> float | None: ...

    @property
    def high(self) -> float | None: ...


class Measurer(Protocol):
    """Builds, checks and times candidates.  Never raises for what one candidate did."""

    @property
    def unit(self) -> str:
        """The unit of all its results."""

    def measure(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        """Return one result a candidate, in order."""

    def compare(self, candidates: Sequence[Candidate]) -> Sequence[Compared]:
        """Measure candidates by turns, each against the first."""

    def close(self) -> None:
        """End child processes and remove temporary files."""
