"""Running a built model on the host, in a child process that may crash or hang without harm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from toolkit.errors import MeasureError
from toolkit.measure.child import Child, ChildDied, ChildSilent

WORKER = Path(__file__).with_name("worker.py")
_Answer = tuple[dict[str, Any], bytes]


@dataclass(frozen=True, slots=True)
class HostRun:
    """Raw outputs of the last run, and the time of each run in nanoseconds."""

    outputs: bytes
    ns: tuple[int, ...]


class HostSession:
    """A loaded model library in a child process.  Use as a context manager.

    `name` is the prefix of the library's model.  Where it holds several, setting `name` to another
    prefix makes all further requests go to that model.
    """

    def __init__(self, library: Path, name: str, *, timeout_s: float = 60.0) -> None:
        self.library, self.name, self.timeout_s = library, name, timeout_s
        self._child = Child([sys.executable, "-I", str(WORKER), str(library), name])
        self.process = self._child.process
        self.arena_bytes = 0
        self.node_count = 0

    def __enter__(self) -> HostSession:
        hello, _ = self._exchange(
            "loading the library", lambda: self._child.receive(self.timeout_s)
        )
        self.arena_bytes, self.node_count = hello["arena_bytes"], hello["nodes"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child process."""
        self._child.close()

    def run(self, inputs: bytes, runs: int = 1) -> HostRun:
        """Run the model on the concatenated raw inputs; raise `MeasureError` when it fails."""
        reply, data = self._ask({"op": "run", "runs": runs}, inputs, "running the model")
        return HostRun(data, tuple(reply["ns"]))

    def stack(self, inputs: bytes) -> int | None:
        """Run once on a stack of its own; return how many of its bytes were used, if known."""
        reply, _ = self._ask({"op": "stack"}, inputs, "measuring the stack")
        return None if reply["stack_bytes"] is None else int(reply["stack_bytes"])

    def profile(self, inputs: bytes, runs: int = 1) -> tuple[int, ...]:
        """Return the time of each node in nanoseconds, summed over `runs`."""
        reply, _ = self._ask({"op": "profile", "runs": runs}, inputs, "profiling the model")
        return tuple(reply["ns"])

    def step(
        self, node: int, inputs: bytes, read: Sequence[tuple[int, int]]
    ) -> tuple[int, int, list[bytes]]:
        """Run one node; return (status, next node, the arena spans (offset, bytes) in `read`)."""
        spans = [list(span) for span in read]
        reply, data = self._ask(
            {"op": "step", "node": node, "read": spans}, inputs if node == 0 else b"", "a step"
        )
        parts, at = [], 0
        for _, size in read:
            parts.append(data[at : at + size])
            at += size
        return int(reply["status"]), int(reply["next"]), parts

    def _ask(self, request: dict[str, Any], data: bytes, what: str) -> tuple[dict[str, Any], bytes]:
        reply, answer = self._exchange(
            what,
            lambda: self._child.ask(
                {**request, "model": self.name}, data, timeout_s=self.timeout_s
            ),
        )
        if not reply["ok"]:
            raise MeasureError(f"model {self.name!r}: {reply['status']} while {what}.")
        return reply, answer

    def _exchange(self, what: str, exchange: Callable[[], _Answer]) -> _Answer:
        """Let the child answer; say how it failed to."""
        try:
            return exchange()
        except ChildSilent:
            raise MeasureError(
                f"model {self.name!r} did not answer within {self.timeout_s:g} s while {what}.",
                hint="a run that takes longer needs --timeout SECONDS (timeout_s= in Python)",
            ) from None
        except ChildDied as end:
            if end.signal:
                raise MeasureError(
                    f"model {self.name!r} crashed with {end.signal} while {what}.",
                    hint="generated code must not: please report it, with the model if you may",
                ) from None
            raise MeasureError(
                f"model {self.name!r}: the worker ended with exit code {end.code} while {what}.",
                state=end.stderr,
            ) from None
