"""The host's side of the serial protocol, over any pyserial URL.

Every wait has a deadline and every failure is a BoardError of one sentence.  A request whose reply
does not come is sent again under its sequence number, which the server answers without doing harm
twice (see `messages`).  Which model runs, and what its numbers mean, is the session's business.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import serial

from toolkit.errors import BoardError
from toolkit.measure.rpc.frame import Frame, OVERHEAD_BYTES, Receiver
from toolkit.measure.rpc.messages import (
    BootEvent,
    Command,
    CrcReply,
    CrcRequest,
    Event,
    FAULT_TEXT,
    FaultKind,
    FaultReply,
    FaultRequest,
    InfoReply,
    InfoRequest,
    Message,
    NodeEvent,
    PingReply,
    PingRequest,
    PROTOCOL_VERSION,
    ReadReply,
    ReadRequest,
    REGION_ARENA,
    REPLY,
    ResetRequest,
    RPC_STATUS_TEXT,
    RpcStatus,
    RUN_PROFILE,
    RunReply,
    RunRequest,
    StatsReply,
    StatsRequest,
    StatusReply,
    TensorReply,
    TensorRequest,
    WriteRequest,
)

_M = TypeVar("_M", bound=Message)

_POLL_S = 0.05
_WRITE_TIMEOUT_S = 5.0
"""A frame of 2 kB takes 2.2 s at 9600 baud."""

READ_CHUNK_BYTES = 4096
"""Bytes asked for at once: what a spoiled frame costs."""


class BoardCrashed(BoardError):
    """The board restarted while it worked for us; `fault` says why, as far as it knows."""

    def __init__(self, what: str, fault: FaultReply | None) -> None:
        super().__init__(what)
        self.fault = fault


class BoardSilent(BoardError):
    """The board did not answer within the deadline."""


class Transport(Protocol):
    """What carries bytes to a board and back."""

    def read(self, timeout_s: float) -> bytes:
        """Return what came; wait at most about `timeout_s` for the first byte."""
        ...

    def write(self, data: bytes) -> None:
        """Send all of `data`; raises BoardSilent when the board takes none for long."""
        ...

    def close(self) -> None:
        """Let go of the port."""
        ...


class SerialTransport:
    """A pyserial port: /dev/ttyACM0, /dev/pts/7, socket://127.0.0.1:PORT, loop://."""

    def __init__(self, url: str, baud: int) -> None:
        self.url = url
        # pyserial configures the port anew whenever a timeout is set: set each once.
        try:
            self._port = serial.serial_for_url(
                url, baudrate=baud, timeout=_POLL_S, write_timeout=_WRITE_TIMEOUT_S
            )
        except (OSError, ValueError) as error:  # SerialException is an OSError
            raise BoardError(f"port {url} cannot be opened: {_reason(error)}") from None

    def read(self, timeout_s: float) -> bytes:
        """See `Transport`."""
        end = time.monotonic() + timeout_s
        try:
            while True:
                first: bytes = self._port.read(1)
                if first:
                    waiting = self._port.in_waiting
                    rest: bytes = self._port.read(waiting) if waiting else b""
                    return first + rest
                if time.monotonic() >= end:
                    return b""
        except (OSError, TypeError) as error:  # pyserial: TypeError when the port is torn away
            raise BoardError(f"port {self.url} was lost: {_reason(error)}") from None

    def write(self, data: bytes) -> None:
        """See `Transport`."""
        try:
            self._port.write(data)
        except serial.SerialTimeoutException:
            raise BoardSilent(
                f"port {self.url} took no data for {_WRITE_TIMEOUT_S:.0f} s: nobody reads there"
            ) from None
        except (OSError, TypeError) as error:
            raise BoardError(f"port {self.url} was lost: {_reason(error)}") from None

    def close(self) -> None:
        """See `Transport`."""
        self._port.close()


def _reason(error: Exception) -> str:
    """Return the operating system's word for `error`, without Python's wrapping."""
    inner = error.__context__ if isinstance(error.__context__, OSError) else error
    text = inner.strerror if isinstance(inner, OSError) and inner.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run's reply and, when profiling, its node events in order."""

    reply: RunReply
    nodes: tuple[NodeEvent, ...] = ()


class RpcClient:
    """Requests and replies over a transport.

    `reply_timeout_s` is how long a short answer may take before the request is sent again, `tries`
    how often it is sent.  `now` is the clock (a test may bring its own).
    """

    def __init__(
        self,
        transport: Transport,
        *,
        baud: int = 115200,
        reply_timeout_s: float = 1.0,
        tries: int = 4,
        now: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.transport = transport
        self.reply_timeout_s = reply_timeout_s
        self.tries = tries
        self.resent = 0
        """Requests that had to be sent again."""
        self._seconds_per_byte = 12 / baud
        self._now = now
        rng = rng or random.SystemRandom()
        self._session = rng.getrandbits(32) | 1
        self._sequence = rng.getrandbits(16)
        self._receiver = Receiver()
        self._synchronised = False

    # ---- the wire ----

    def _next_sequence(self) -> int:
        self._sequence = (self._sequence + 1) & 0xFFFF
        return self._sequence

    def _frames(self, until: float) -> list[Frame]:
        """Return frames as they come; none when `until` passes or a spoiled one came."""
        bad_frames = self._receiver.bad_frames
        while (left := until - self._now()) > 0:
            frames = self._receiver.feed(self.transport.read(left))
            if frames or self._receiver.bad_frames != bad_frames:
                return frames
        return []

    def _call(
        self,
        command: Command,
        request: Message,
        reply_type: type[_M],
        *,
        reply_bytes: int = 64,
        timeout_s: float | None = None,
        on_event: Callable[[Frame], float] | None = None,
    ) -> _M:
        """Send `request` until its reply comes.

        `timeout_s` is what the board may take, beside the time of the bytes on the wire.
        `on_event` sees the events of this request and returns how long to wait from now.
        """
        frame = Frame(int(command), self._next_sequence(), request.pack()).encode()
        wire_s = (len(frame) + reply_bytes) * self._seconds_per_byte
        wait_s = (self.reply_timeout_s if timeout_s is None else timeout_s) + wire_s
        busy_s = busy_until = 0.0  # since an event said that the board is at work on this
        asked = 0
        while asked < self.tries:
            self.transport.write(frame)
            self.resent += asked > 0
            asked += 1
            sent_at, bad_frames = self._now(), self._receiver.bad_frames
            while self._now() < (until := max(sent_at + wait_s, busy_until)):
                for got in self._frames(until):
                    if got.kind == Event.BOOT:
                        self._on_boot(got)
                    elif got.sequence != self._sequence:
                        continue  # a late reply to an earlier request
                    elif got.kind == command | REPLY:
                        return self._reply(command, got.payload, reply_type)
                    elif got.kind >= Event.BOOT and on_event is not None:
                        busy_s = on_event(got)
                        busy_until = self._now() + busy_s
                if self._receiver.bad_frames != bad_frames and asked < self.tries:
                    break  # that may have been the reply: ask again at once
            else:
                if busy_s:  # the reply may be lost: ask once more
                    asked = max(asked, self.tries - 1)
        if busy_s:
            raise BoardSilent(f"the model did not end within {busy_s:.1f} s")
        raise BoardSilent(
            f"the board did not answer {command.name} within {wait_s:.1f} s, "
            f"asked {self.tries} times"
        )

    def _reply(self, command: Command, payload: bytes, reply_type: type[_M]) -> _M:
        if payload and payload[0] != RpcStatus.OK:
            try:
                text = RPC_STATUS_TEXT[RpcStatus(payload[0])]
            except ValueError:
                text = f"status {payload[0]}"
            if payload[0] == RpcStatus.BAD_SESSION:
                raise BoardCrashed(f"{command.name} was refused: {text}", None)
            raise BoardError(f"the board refused {command.name}: {text}")
        try:
            return reply_type.unpack(payload)
        except ValueError as error:
            raise BoardError(
                f"the board's answer to {command.name} is malformed: {error}"
            ) from None

    def _on_boot(self, frame: Frame) -> None:
        """The board has just started; once a session is open that is a crash."""
        if not self._synchronised:
            return
        self._synchronised = False
        try:
            kind = FaultKind(BootEvent.unpack(frame.payload).kind)
        except ValueError:
            kind = FaultKind.NONE
        fault = None
        if kind != FaultKind.NONE:
            self.synchronise()
            fault = self.fault(clear=True)
        why = FAULT_TEXT[kind] if fault else "nobody knows why"
        raise BoardCrashed(f"the board restarted: {why}", fault)

    # ---- commands ----

    def synchronise(self, timeout_s: float = 5.0) -> None:
        """Ping until the board answers: what was sent while nobody listened is lost."""
        end = self._now() + timeout_s
        first = True
        while True:
            sequence = self._next_sequence()
            frame = Frame(Command.PING, sequence, PingRequest(self._session).pack())
            self.transport.write(frame.encode())
            pause_s = 0.1 if first else 0.5
            first = False
            until = min(end, self._now() + pause_s + 128 * self._seconds_per_byte)
            while self._now() < until:
                for got in self._frames(until):
                    if got.kind == Command.PING | REPLY and got.sequence == sequence:
                        reply = self._reply(Command.PING, got.payload, PingReply)
                        if reply.version != PROTOCOL_VERSION:
                            raise BoardError(
                                f"the board speaks version {reply.version} of the protocol, "
                                f"this program version {PROTOCOL_VERSION}"
                            )
                        self._synchronised = True
                        return
            if self._now() >= end:
                garbage = self._receiver.bad_frames
                raise BoardSilent(
                    f"the board did not answer a ping within {timeout_s:.1f} s"
                    + (f" ({garbage} frames of garbage came)" if garbage else "")
                )

    def info(self) -> InfoReply:
        """Return what the board runs."""
        return self._call(Command.INFO, InfoRequest(), InfoReply)

    def tensor(self, *, output: bool, index: int) -> TensorReply:
        """Return place, size and element type of an input or output."""
        return self._call(Command.TENSOR, TensorRequest(int(output), index), TensorReply)

    def write(
        self, data: bytes, offset: int = 0, *, region: int = REGION_ARENA, buffer_bytes: int = 256
    ) -> None:
        """Write `data` at `offset` of a region, in frames of at most `buffer_bytes`."""
        chunk = buffer_bytes - OVERHEAD_BYTES - len(WriteRequest(0, 0, b"").pack())
        for at in range(0, len(data), chunk):
            request = WriteRequest(region, offset + at, data[at : at + chunk])
            self._call(Command.WRITE, request, StatusReply)

    def read(self, count: int, offset: int = 0, *, region: int = REGION_ARENA) -> bytes:
        """Read `count` bytes at `offset` of a region."""
        out = bytearray()
        while len(out) < count:
            step = min(READ_CHUNK_BYTES, count - len(out))
            request = ReadRequest(region, offset + len(out), step)
            reply = self._call(Command.READ, request, ReadReply, reply_bytes=step + 64)
            if len(reply.data) != step:
                raise BoardError(f"the board sent {len(reply.data)} bytes instead of {step}")
            out += reply.data
        return bytes(out)

    def crc(self, count: int, offset: int = 0, *, region: int = REGION_ARENA) -> int:
        """Return the CRC-32 of a range; a slow core may take a second for 64 kB."""
        request = CrcRequest(region, offset, count)
        return self._call(Command.CRC, request, CrcReply, timeout_s=1.0 + count / 20_000).crc

    def check(self, data: bytes, offset: int = 0, *, region: int = REGION_ARENA) -> bool:
        """Tell whether a range holds `data`, by its CRC."""
        return self.crc(len(data), offset, region=region) == zlib.crc32(data)

    def run(self, *, timeout_s: float, limit_ms: int = 0, profile: bool = False) -> RunResult:
        """Run the model once, waiting `timeout_s` for it or for each node's event."""
        nodes: list[NodeEvent] = []

        def on_event(frame: Frame) -> float:
            if frame.kind == Event.NODE:
                nodes.append(NodeEvent.unpack(frame.payload))
            return timeout_s

        request = RunRequest(self._session, limit_ms, RUN_PROFILE if profile else 0)
        reply = self._call(Command.RUN, request, RunReply, on_event=on_event)
        if len(nodes) != reply.node_events:
            raise BoardError(
                f"{reply.node_events - len(nodes)} of {reply.node_events} node events were lost"
            )
        return RunResult(reply, tuple(nodes))

    def stats(self) -> StatsReply:
        """Return the server's counters."""
        return self._call(Command.STATS, StatsRequest(), StatsReply)

    def fault(self, *, clear: bool = False) -> FaultReply:
        """Return why the board restarted last."""
        return self._call(Command.FAULT, FaultRequest(int(clear)), FaultReply)

    def reset(self) -> None:
        """Restart the board and wait until it answers."""
        self._call(Command.RESET, ResetRequest(), StatusReply)
        self._synchronised = False
        self.synchronise()

    def close(self) -> None:
        """Let go of the port."""
        self.transport.close()
