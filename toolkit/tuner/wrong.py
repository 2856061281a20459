"""Wrong results of a run, reduced to the smallest trace that still gives one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolkit.ir.loop import PrimFunc
from toolkit.schedule.default import Trace
from toolkit.schedule.shrink import shrink
from toolkit.schedule.trace import trace_to_json
from toolkit.search.result import Measurer, Status
from toolkit.space.task import Candidate, candidate

BUILDS = 20
"""Most candidates that a run builds to reduce its wrong results: some seconds."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong result made small.  `detail`: where the smallest trace is wrong, and the command that
    shows it; `complete`: no step can be left out; else the builds ran out before."""

    candidate: str
    trace: Trace
    detail: str
    builds: int
    complete: bool

    def plain(self) -> dict[str, Any]:
        """Return plain values for the records."""
        return {
            "candidate": self.candidate, "trace": trace_to_json(self.trace), "detail": self.detail,
            "builds": self.builds, "complete": self.complete,
        }  # fmt: skip


def reduce_wrong(measurer: Measurer, found: Candidate, detail: str, builds: int = BUILDS) -> Wrong:
    """Reduce a candidate whose result was wrong, as `detail` says, by at most so many builds."""
    details = {found.trace: detail}

    def bad(func: PrimFunc, trace: Trace) -> bool:
        [result] = measurer.measure([candidate(found.task, trace, {}, origin="shrunk")])
        details[trace] = result.detail
        return result.status is Status.WRONG_RESULT

    small = shrink(found.task.func, found.trace, bad, tests=builds)
    return Wrong(found.key, small.trace, details[small.trace], small.tests, small.complete)
