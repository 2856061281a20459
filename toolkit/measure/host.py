"""Running a built model on the host, in a child process that may crash or hang without harm."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from toolkit.errors import MeasureError

WORKER = Path(__file__).with_name("worker.py")


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
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(WORKER), str(library), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.arena_bytes = 0
        self.node_count = 0

    def __enter__(self) -> HostSession:
        hello, _ = self._receive("loading the library")
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
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

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
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(
                json.dumps({**request, "model": self.name, "bytes": len(data)}).encode()
                + b"\n"
                + data
            )
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        reply, answer = self._receive(what)
        if not reply["ok"]:
            raise MeasureError(f"model {self.name!r}: {reply['status']} while {what}.")
        return reply, answer

    def _receive(self, what: str) -> tuple[dict[str, Any], bytes]:
        deadline = time.monotonic() + self.timeout_s
        head = bytearray()
        while not head.endswith(b"\n"):
            head += self._read(1, deadline, what)
        message: dict[str, Any] = json.loads(head)
        data = bytearray()
        while len(data) < message["bytes"]:
            data += self._read(message["bytes"] - len(data), deadline, what)
        return message, bytes(data)

    def _read(self, size: int, deadline: float, what: str) -> bytes:
        assert self.process.stdout is not None
        handle = self.process.stdout.fileno()
        left = deadline - time.monotonic()
        ready, _, _ = select.select([handle], [], [], max(left, 0.0))
        if not ready:
            self.process.kill()
            raise MeasureError(
                f"model {self.name!r} did not answer within {self.timeout_s:g} s while {what}.",
                hint="a run that takes longer needs --timeout SECONDS (timeout_s= in Python)",
            )
        part = os.read(handle, min(size, 1 << 20))
        if part:
            return part
        code = self.process.wait()
        if code < 0:
            raise MeasureError(
                f"model {self.name!r} crashed with {signal.Signals(-code).name} while {what}.",
                hint="generated code must not: please report it, with the model if you may",
            )
        assert self.process.stderr is not None
        text = self.process.stderr.read().decode(errors="replace").strip().splitlines()
        raise MeasureError(
            f"model {self.name!r}: the worker ended with exit code {code} while {what}.",
            state=text[-3:],
        )
