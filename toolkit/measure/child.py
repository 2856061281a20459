"""A child process that answers requests: a line of JSON, then raw data, both ways.

It may crash or hang without harm to its parent, which is told in which of the two ways.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any


class ChildSilent(Exception):
    """The child did not answer in time; it has been killed."""


class ChildDied(Exception):
    """The child ended.  `code`: its exit code, negative for a signal; `stderr`: its last words."""

    def __init__(self, code: int, stderr: tuple[str, ...]) -> None:
        super().__init__(f"exit code {code}")
        self.code, self.stderr = code, stderr

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it; None where it exited."""
        return signal.Signals(-self.code).name if self.code < 0 else None


class Child:
    """A running child process."""

    def __init__(self, args: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._come = bytearray()
        """What was read and is not yet part of a message."""

    def alive(self) -> bool:
        """Tell whether it runs."""
        return self.process.poll() is None

    def ask(
        self, request: dict[str, Any], data: bytes = b"", *, timeout_s: float
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request with its raw data; return the answer and its data."""
        assert self.process.stdin is not None
        head = json.dumps({**request, "bytes": len(data)}).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # how it ended is read below
            self.process.stdin.write(head + data if len(data) < 1 << 16 else head)
            if len(data) >= 1 << 16:
                self.process.stdin.write(data)
            self.process.stdin.flush()
        return self.receive(timeout_s)

    def receive(self, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Return the next message; raises `ChildSilent` and `ChildDied`."""
        deadline = time.monotonic() + timeout_s
        come = self._come
        end = come.find(b"\n")
        while end < 0:
            searched = len(come)
            come += self._read(deadline)
            end = come.find(b"\n", searched)
        message: dict[str, Any] = json.loads(come[:end])
        del come[: end + 1]
        while len(come) < message["bytes"]:
            come += self._read(deadline)
        data = bytes(come[: message["bytes"]])
        del come[: message["bytes"]]
        return message, data

    def _read(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        handle = self.process.stdout.fileno()
        left = deadline - time.monotonic()
        ready, _, _ = select.select([handle], [], [], max(left, 0.0))
        if not ready:
            self.process.kill()
            raise ChildSilent
        part = os.read(handle, 1 << 20)
        if part:
            return part
        code = self.process.wait()
        assert self.process.stderr is not None
        text = self.process.stderr.read().decode(errors="replace").strip().splitlines()
        raise ChildDied(code, tuple(text[-3:]))

    def close(self) -> None:
        """End the process."""
        if self.alive():
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what was written to a dead process
                    pipe.close()
