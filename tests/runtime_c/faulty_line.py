"""A line that fails: it drops, repeats, spoils, delays and reorders frames, stalls, and vanishes.

`FaultyLine` is a transport between the client and a board that `Board` stands for: the server in
this process, or one in QEMU.  What goes wrong, and when, follows from a seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from toolkit.measure.rpc.transport import PortLost


class Board(Protocol):
    """What is at the other end."""

    def feed(self, data: bytes) -> None: ...

    def take(self) -> bytes: ...

    def restart(self, how: str, rng: random.Random) -> None:
        """Let the board restart: by a 'reset', or a 'brown-out' that spoils its memory."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How often a frame meets each fault, and at which frames greater things happen."""

    drop: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    cut: float = 0.0
    delay: float = 0.0
    stall: float = 0.0
    restarts: tuple[tuple[int, str], ...] = ()
    vanishes: tuple[tuple[int, float], ...] = ()
    """Frame of which the port vanishes, and for how many seconds."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Faults:
        """Draw some: mostly mild, for a session that fails at once shows little."""

        def rate() -> float:
            return rng.choice([0.0, 0.0, 0.01, 0.05])

        restarts = tuple(
            (rng.randrange(4, 160), rng.choice(["reset", "reset", "brown-out"]))
            for _ in range(rng.choice([0, 0, 0, 1, 2]))
        )
        vanishes = tuple(
            (rng.randrange(4, 160), rng.choice([0.05, 0.5, 3.0, 60.0]))
            for _ in range(rng.choice([0, 0, 0, 1]))
        )
        return cls(rate(), rate(), rate(), rate(), rate(), rate() / 4, restarts, vanishes)


@dataclass(slots=True)
class Wire:
    """The state that all openings of the port share: what is under way, and the clock."""

    board: Board
    faults: Faults
    rng: random.Random
    now: Callable[[], float]
    wait: Callable[[float], None]
    scale: float = 1.0
    """Of delays, stalls and absences: less where time is real."""
    look_s: float = math.inf
    """How long to wait before looking for an answer: where time is real, boards answer unasked."""
    queue: list[tuple[float, int, str, bytes]] = field(default_factory=list)
    arrived: bytearray = field(default_factory=bytearray)
    count: int = 0
    free_at: float = 0.0
    gone_until: float = -1.0
    opening: int = 0
    """Counts the names under which the port was seen; only the last one works."""

    def send(self, to: str, data: bytes) -> None:
        """Let frames travel, each with its own fate."""
        for part in data.split(b"\0"):
            if not part:
                continue
            frame = b"\0" + part + b"\0"
            self.count += 1
            for at, how in self.faults.restarts:
                if at == self.count and frame:
                    self._put(to, frame[: self.rng.randrange(len(frame))], 0.0)
                    self._put(how, b"", 0.0)
                    frame = b""
            for at, seconds in self.faults.vanishes:
                if at == self.count:
                    self.vanish(seconds * self.scale)
            if frame:
                self._meet(to, frame)

    def _meet(self, to: str, frame: bytes) -> None:
        dice, faults = self.rng.random, self.faults
        if dice() < faults.stall:
            self.free_at = max(self.free_at, self.now()) + self.scale * self.rng.choice(
                [0.3, 1.5, 6.0]
            )
        if dice() < faults.drop:
            return
        if dice() < faults.corrupt:
            spoiled = bytearray(frame)
            spoiled[self.rng.randrange(len(frame))] ^= 1 << self.rng.randrange(8)
            frame = bytes(spoiled)
        if dice() < faults.cut:
            at = self.rng.randrange(len(frame))
            frame = frame[:at] + frame[at + self.rng.randrange(1, 9) :]
        late = self.rng.choice([0.002, 0.05, 0.7, 4.0]) if dice() < faults.delay else 0.0
        late *= self.scale
        self._put(to, frame, late)
        if dice() < faults.duplicate:
            self._put(to, frame, self.scale * self.rng.choice([0.0, 0.01, 1.2, 8.0]))

    def _put(self, to: str, data: bytes, late: float) -> None:
        self.free_at = max(self.free_at, self.now()) + 0.0001
        heapq.heappush(
            self.queue, (self.free_at + late, len(self.queue) + self.count * 9, to, data)
        )

    def vanish(self, seconds: float) -> None:
        """Let the port be gone; what was under way is lost."""
        self.gone_until = self.now() + seconds
        self.opening += 1
        self.queue.clear()
        self.arrived.clear()

    def deliver(self) -> None:
        """Let everything arrive whose time has come."""
        while self.queue and self.queue[0][0] <= self.now():
            _, _, to, data = heapq.heappop(self.queue)
            if to == "host":
                self.arrived += data
                continue
            if to == "board":
                self.board.feed(data)
            else:
                self.board.restart(to, self.rng)
            self.send("host", self.board.take())


class FaultyLine:
    """One opening of the port; `Transport`."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.opening = wire.opening

    def _check(self) -> None:
        if self.opening != self.wire.opening:
            raise PortLost("port /dev/faulty was lost: it vanished")

    def read(self, timeout_s: float) -> bytes:
        wire = self.wire
        end = wire.now() + timeout_s
        while True:
            self._check()
            wire.send("host", wire.board.take())
            wire.deliver()
            self._check()
            if wire.arrived:
                data = bytes(wire.arrived)
                wire.arrived.clear()
                return data
            left = end - wire.now()
            if left <= 0:
                return b""
            soon = wire.queue[0][0] - wire.now() if wire.queue else left
            wire.wait(min(left, wire.look_s, max(soon, 0.0005)))

    def write(self, data: bytes) -> None:
        self._check()
        self.wire.send("board", data)
        self._check()

    def close(self) -> None:
        pass

    def reopen(self) -> FaultyLine:
        if self.wire.now() < self.wire.gone_until:
            raise PortLost("port /dev/faulty did not come back")
        return FaultyLine(self.wire)
