"""The host's side of the serial protocol, over any pyserial URL.

    client = RpcClient(SerialTransport("/dev/ttyACM0", 115200), baud=115200)
    client.synchronise()
    client.upload(weights, region=1)

Every wait has a deadline and every failure is a BoardError of one sentence.  A request whose reply
does not come is sent again, which the server answers without doing harm twice (see `messages`).
Bulk data goes in windows: several requests are under way, and only what was lost is sent again.
Which model runs, and what its numbers mean, is the session's business.
"""

from __future__ import annotations

import contextlib
import random
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from toolkit.errors import BoardError
from toolkit.measure.rpc.frame import Frame, OVERHEAD_BYTES, Receiver
from toolkit.measure.rpc.messages import (
    BootEvent,
    CallRequest,
    Command,
    CrcReply,
    CrcRequest,
    Event,
    FAULT_TEXT,
    FaultKind,
    FaultReply,
    FaultRequest,
    FillKind,
    FillRequest,
    InfoReply,
    InfoRequest,
    LoadRequest,
    Message,
    NO_MODEL,
    NodeEvent,
    PermuteRequest,
    PingReply,
    PingRequest,
    PROTOCOL_VERSION,
    ReadReply,
    ReadRequest,
    REGION_ARENA,
    RegionReply,
    RegionRequest,
    REPLY,
    ResetRequest,
    RPC_STATUS_TEXT,
    RpcStatus,
    RUN_TO_END,
    RunPart,
    RunReply,
    RunRequest,
    StatsReply,
    StatsRequest,
    StatusReply,
    TensorReply,
    TensorRequest,
    WriteRequest,
)
from toolkit.measure.rpc.pattern import Loop
from toolkit.measure.rpc.transport import PortLost, SerialTransport, Transport

_M = TypeVar("_M", bound=Message)

READ_CHUNK_BYTES = 2048
"""Bytes asked for at once: what a spoiled frame costs."""

WINDOW, WINDOW_BYTES = 8, 6144
"""Most requests of a bulk transfer that are under way at once, and most bytes of them but the
first: enough to keep board and line at work, and no more than is soon through."""

BLOCK_BYTES = 16 * 1024
"""What `upload` looks at as one, when it goes on after an interruption."""

SYNCHRONISE_S = 4.0
"""How long a board may take to answer its first ping."""

_SLOWER, _SLOWEST_REPLY_S = 4.0, 1.0
"""A reply may take so many times what those before took, of which so many seconds count at most."""
_FILL_PART = 1 << 15
_RECOVERIES = 4
_WORK_PER_S = 20_000
"""Bytes or elements that the slowest core goes through in a second (CRC, FILL, PERMUTE)."""


class BoardCrashed(BoardError):
    """The board restarted while it worked for us; `fault` says why, as far as it knows."""

    def __init__(self, what: str, fault: FaultReply | None) -> None:
        super().__init__(what)
        self.fault = fault


class BoardSilent(BoardError):
    """The board did not answer within the deadline."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run's reply and, when profiling, its node events in order."""

    reply: RunReply
    nodes: tuple[NodeEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request of a window that is under way: its place in the row, its bytes both ways."""

    index: int
    nbytes: int


class RpcClient:
    """Requests and replies over a transport.

    `reply_timeout_s` is how long a short answer may take before the request is sent again, `tries`
    how often it is sent.  `reopen` finds the port again when it is lost in an upload; by default
    the transport's own way.  `now` and `pause` are the clock (a test may bring its own).
    """

    def __init__(
        self,
        transport: Transport,
        *,
        baud: int = 115200,
        reply_timeout_s: float = 1.0,
        tries: int = 4,
        reopen: Callable[[], Transport] | None = None,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.transport = transport
        self.reply_timeout_s = reply_timeout_s
        self.tries = tries
        self.resent = 0
        """Requests that had to be sent again."""
        self.beats = 0
        """Zero bytes that a kernel at work sent."""
        self._seconds_per_byte = 12 / baud
        self._reopen = reopen
        self._now, self._pause = now, pause
        self._rng = rng or random.SystemRandom()
        self._session = 0
        self._channel = 0
        self._sequence = self._rng.getrandbits(16)
        self._receiver = Receiver()
        self._synchronised = False
        self._buffer_bytes = 0
        self._lost = False  # the port, which `recover` opens again
        self._reply_s = 0.0  # what a reply of a window takes, smoothed

    # ---- the wire ----

    def _next_sequence(self) -> int:
        self._sequence = (self._sequence + 1) & 0xFFFF
        return self._sequence

    def _frames(self, until: float) -> tuple[list[Frame], bool]:
        """Return frames as they come, and whether anything came; none when `until` passes or a
        spoiled one came."""
        bad_frames = self._receiver.bad_frames
        while (left := until - self._now()) > 0:
            data = self.transport.read(left)
            frames = self._receiver.feed(data)
            if frames or self._receiver.bad_frames != bad_frames:
                return frames, True
            if data and not data.strip(b"\0"):
                self.beats += 1
                return [], True
        return [], False

    def _ours(self, frame: Frame) -> bool:
        """Tell whether a frame belongs to this session; raise BoardCrashed for a start."""
        if frame.kind == Event.BOOT:
            self._on_boot(frame)
            return False
        return frame.channel == self._channel

    def _call(
        self,
        command: Command,
        request: Message,
        reply_type: type[_M],
        *,
        timeout_s: float | None = None,
        quiet_s: float | None = None,
        on_event: Callable[[Frame], float] | None = None,
    ) -> _M:
        """Send `request` until its reply comes.

        `timeout_s` is what the board may take, beside the time of the bytes on the wire.
        `on_event` sees the events of this request and returns how long to wait from now; then a
        silence of `quiet_s`, without a beat, ends the wait too.
        """
        frame = Frame(int(command), self._next_sequence(), request.pack(), self._channel).encode()
        wire_s = (len(frame) + 64) * self._seconds_per_byte
        wait_s = (self.reply_timeout_s if timeout_s is None else timeout_s) + wire_s
        busy_s = busy_until = 0.0  # since an event said that the board is at work on this
        asked, quiet = 0, False
        while asked < self.tries:
            self.transport.write(frame)
            self.resent += asked > 0
            asked += 1
            sent_at, bad_frames = self._now(), self._receiver.bad_frames
            heard_at = sent_at
            while self._now() < (until := max(sent_at + wait_s, busy_until)):
                if quiet_s is not None and busy_s:
                    until = min(until, heard_at + quiet_s)
                frames, heard = self._frames(until)
                if heard:
                    heard_at = self._now()
                elif quiet_s is not None and self._now() >= heard_at + quiet_s and busy_s:
                    quiet = True
                    break  # no beat: ask whether it still lives
                for got in frames:
                    if not self._ours(got) or got.sequence != self._sequence:
                        continue  # a late reply to an earlier request
                    if got.kind == command | REPLY:
                        return self._reply(command, got.payload, reply_type)
                    if got.kind >= Event.BOOT and on_event is not None:
                        busy_s = on_event(got)
                        busy_until = self._now() + busy_s
                if self._receiver.bad_frames != bad_frames and asked < self.tries:
                    break  # that may have been the reply: ask again at once
            else:
                if busy_s:  # the reply may be lost: ask twice more
                    asked = max(asked, self.tries - 2)
        if quiet:
            raise BoardSilent(
                f"the board fell silent: no beat for {quiet_s} s while it was at work"
            )
        if busy_s:
            raise BoardSilent(f"the model did not end within {busy_s:.1f} s")
        raise BoardSilent(
            f"the board did not answer {command.name} within {wait_s:.1f} s, "
            f"asked {self.tries} times"
        )

    def _window(
        self,
        command: Command,
        requests: Sequence[Message],
        reply_type: type[_M],
        *,
        reply_bytes: int = 16,
        timeout_s: float = 0.0,
    ) -> list[_M]:
        """Send many requests, several under way at once; return their replies in order.

        The server answers in the order it was asked: what is passed over by a later reply was lost,
        and is sent again, under a new number, because the server drops what looks old.  Where no
        reply comes for long, the oldest is sent again; how long that is follows what replies took,
        so that a slow board is not flooded.
        """
        replies: list[_M | None] = [None] * len(requests)
        todo, tried = deque(range(len(requests))), [0] * len(requests)
        asked: dict[int, _Asked] = {}
        wait_s = self.reply_timeout_s + timeout_s
        heard_at, silences = self._now(), 0
        while todo or asked:
            burst = bytearray()
            under_way = sum(one.nbytes for one in asked.values())
            while todo and len(asked) < WINDOW:
                index = todo[0]
                nbytes = len(requests[index].pack()) + reply_bytes + 32
                if asked and under_way + nbytes > WINDOW_BYTES:
                    break
                todo.popleft()
                if self.tries in (tried[index], silences):
                    raise BoardSilent(
                        f"the board did not answer {command.name} within {wait_s:.1f} s, "
                        f"asked {self.tries} times"
                    )
                self.resent += tried[index] > 0
                tried[index] += 1
                sequence = self._next_sequence()
                frame = Frame(int(command), sequence, requests[index].pack(), self._channel)
                burst += frame.encode()
                if not asked:
                    heard_at = self._now()
                asked[sequence] = _Asked(index, nbytes)
                under_way += nbytes
            if burst:
                self.transport.write(bytes(burst))
            oldest = next(iter(asked))
            wire_s = asked[oldest].nbytes * self._seconds_per_byte
            due = heard_at + max(wait_s + wire_s, _SLOWER * self._reply_s)
            frames, _ = self._frames(due)
            for got in frames:
                if not self._ours(got) or got.kind != command | REPLY or got.sequence not in asked:
                    continue
                for sequence in list(asked):
                    one = asked.pop(sequence)
                    if sequence == got.sequence:
                        replies[one.index] = self._reply(command, got.payload, reply_type)
                        took_s = min(self._now() - heard_at, _SLOWEST_REPLY_S)
                        self._reply_s += 0.25 * (took_s - self._reply_s)
                        heard_at, silences = self._now(), 0
                        break
                    todo.appendleft(one.index)
            if self._now() >= due and oldest in asked:
                todo.appendleft(asked.pop(oldest).index)
                self._reply_s = min(2 * self._reply_s, _SLOWEST_REPLY_S)
                heard_at, silences = self._now(), silences + 1
        return [r for r in replies if r is not None]

    def _reply(self, command: Command, payload: bytes, reply_type: type[_M]) -> _M:
        if payload and payload[0] != RpcStatus.OK:
            try:
                text = RPC_STATUS_TEXT[RpcStatus(payload[0])]
            except ValueError:
                text = f"status {payload[0]}"
            if payload[0] == RpcStatus.BAD_SESSION:
                self._synchronised = False
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

    # ---- the session ----

    def synchronise(self, timeout_s: float = SYNCHRONISE_S) -> None:
        """Open a session: ping until the board answers.  What was sent while nobody listened is
        lost, so it may take more than one."""
        self._synchronised = False
        self._session = self._rng.getrandbits(32) | 1
        end = self._now() + timeout_s
        request = PingRequest(self._session).pack()
        pause_s = 0.1
        while True:
            sequence = self._next_sequence()
            self.transport.write(Frame(Command.PING, sequence, request).encode())
            until = min(end, self._now() + pause_s + 128 * self._seconds_per_byte)
            pause_s = 0.5
            while self._now() < until:
                for got in self._frames(until)[0]:
                    if got.kind == Command.PING and got.payload == request:
                        raise BoardError("what is sent comes back: nothing but a loop is connected")
                    if got.kind != Command.PING | REPLY or got.sequence != sequence:
                        continue
                    if self._accept(got):
                        return
            if self._now() >= end:
                raise BoardSilent(
                    f"the board did not answer a ping within {timeout_s:.1f} s{self._heard()}"
                )

    def _accept(self, frame: Frame) -> bool:
        """Take a reply to our ping; False when it is not of this session."""
        version = int.from_bytes(frame.payload[1:3], "little")
        if version != PROTOCOL_VERSION:
            raise BoardError(
                f"the board speaks version {version} of the protocol, this program version "
                f"{PROTOCOL_VERSION}: build and flash its firmware again"
            )
        reply = self._reply(Command.PING, frame.payload, PingReply)
        if reply.session != self._session:
            return False
        self._channel = reply.channel
        self._synchronised = True
        return True

    def _heard(self) -> str:
        """Say what came instead of an answer."""
        sample = self._receiver.pending or self._receiver.sample
        if not sample:
            return ""
        text = sample[-48:].decode("ascii", "replace").split()
        shown = " ".join(text)
        if text and shown.isascii() and shown.isprintable():
            return f"; it sends text, as a modem or another program does: {shown!r}"
        return f" ({max(self._receiver.bad_frames, 1)} frames of garbage came)"

    def recover(self, timeout_s: float = 10.0) -> bool:
        """Open the port again, under whatever name it has now, and a session on it.

        Tell whether the board had no other session, and did not restart, in the meantime: sessions
        and starts are counted by the channels.  Raises BoardError when that does not succeed in
        time.
        """
        end, channel = self._now() + timeout_s, self._channel
        while True:
            try:
                if self._lost:
                    self.transport = (self._reopen or self.transport.reopen)()
                    self._lost = False
                    self._receiver = Receiver()
                self.synchronise(max(min(SYNCHRONISE_S, end - self._now()), 0.5))
                return self._channel == channel % 255 + 1
            except PortLost:
                self._lost = True
                if self._now() >= end:
                    raise
                self._pause(0.1)
            except BoardError:
                if self._now() >= end:
                    raise

    def info(self) -> InfoReply:
        """Return what the board runs."""
        info = self._call(Command.INFO, InfoRequest(), InfoReply)
        self._buffer_bytes = info.buffer_bytes
        return info

    def tensor(self, *, output: bool, index: int) -> TensorReply:
        """Return place, size and element type of an input or output."""
        return self._call(Command.TENSOR, TensorRequest(int(output), index), TensorReply)

    def stats(self) -> StatsReply:
        """Return the server's counters."""
        return self._call(Command.STATS, StatsRequest(), StatsReply)

    def fault(self, *, clear: bool = False) -> FaultReply:
        """Return why the board restarted last."""
        return self._call(Command.FAULT, FaultRequest(int(clear)), FaultReply)

    def reset(self) -> None:
        """Restart the board and wait until it answers."""
        self._synchronised = False
        with contextlib.suppress(BoardCrashed):  # the reply was lost: it has restarted already
            self._call(Command.RESET, ResetRequest(), StatusReply)
        self.synchronise()

    def suspend(self) -> None:
        """Let others have the port; `recover` opens it again."""
        self.transport.close()
        self._lost, self._synchronised = True, False

    def close(self) -> None:
        """Let go of the port."""
        self.transport.close()

    # ---- memory ----

    def write(
        self,
        data: bytes,
        offset: int = 0,
        *,
        region: int = REGION_ARENA,
        buffer_bytes: int | None = None,
    ) -> None:
        """Write `data` at `offset` of a region, in windows of frames of `buffer_bytes` (the
        server's)."""
        if buffer_bytes is None:
            buffer_bytes = self._buffer_bytes or self.info().buffer_bytes
        chunk = buffer_bytes - OVERHEAD_BYTES - len(WriteRequest(0, 0, b"").pack())
        requests = [
            WriteRequest(region, offset + at, data[at : at + chunk])
            for at in range(0, len(data), chunk)
        ]
        self._window(Command.WRITE, requests, StatusReply)

    def read(self, count: int, offset: int = 0, *, region: int = REGION_ARENA) -> bytes:
        """Read `count` bytes at `offset` of a region."""
        steps = [
            (at, min(READ_CHUNK_BYTES, count - at)) for at in range(0, count, READ_CHUNK_BYTES)
        ]
        requests = [ReadRequest(region, offset + at, step) for at, step in steps]
        replies = self._window(Command.READ, requests, ReadReply, reply_bytes=READ_CHUNK_BYTES + 32)
        for (_, step), reply in zip(steps, replies, strict=True):
            if len(reply.data) != step:
                raise BoardError(f"the board sent {len(reply.data)} bytes instead of {step}")
        return b"".join(reply.data for reply in replies)

    def crc(self, count: int, offset: int = 0, *, region: int = REGION_ARENA) -> int:
        """Return the CRC-32 of a range; a slow core may take seconds for 64 kB."""
        request = CrcRequest(region, offset, count)
        return self._call(Command.CRC, request, CrcReply, timeout_s=1.0 + count / _WORK_PER_S).crc

    def check(self, data: bytes, offset: int = 0, *, region: int = REGION_ARENA) -> bool:
        """Tell whether a range holds `data`, by its CRC."""
        return self.crc(len(data), offset, region=region) == zlib.crc32(data)

    def upload(self, data: bytes, offset: int = 0, *, region: int = REGION_ARENA) -> None:
        """Write `data` and see that it is there, through restarts and lost ports.

        Only the blocks that the board does not hold are sent, so an interrupted upload goes on
        where it was.  Raises the last failure after a few.
        """
        places = range(0, len(data), BLOCK_BYTES)
        for left in range(_RECOVERIES, -1, -1):
            try:
                for at in places:
                    block = data[at : at + BLOCK_BYTES]
                    for again in (False, False, True):
                        if self.check(block, offset + at, region=region):
                            break
                        if again:
                            raise BoardError(
                                f"memory {region} of the board does not keep what is written to it"
                            )
                        self.write(block, offset + at, region=region)
                return
            except (BoardCrashed, BoardSilent, PortLost) as error:
                self._lost = self._lost or isinstance(error, PortLost)
                if left == 0:
                    raise
                self.recover()

    # ---- running ----

    def run(
        self,
        *,
        timeout_s: float,
        limit_ms: int = 0,
        beat_ms: int = 0,
        quiet_s: float | None = None,
        profile: bool = False,
        first: int = 0,
        stop: int = RUN_TO_END,
    ) -> RunResult:
        """Run the model once, waiting `timeout_s` for it or for each node's event.

        With `beat_ms`, of the board's time, it sends a beat; no beat for `quiet_s` ends the wait.
        With `profile` it goes from node to node, and a part may be run (see `RunPart`).
        """
        nodes: list[NodeEvent] = []

        def on_event(frame: Frame) -> float:
            if frame.kind == Event.NODE:
                nodes.append(NodeEvent.unpack(frame.payload))
            return timeout_s

        request = RunRequest(limit_ms, beat_ms)
        if profile:
            request = RunRequest(limit_ms, 0, RunPart(first, stop).pack())
        reply = self._call(Command.RUN, request, RunReply, quiet_s=quiet_s, on_event=on_event)
        if len(nodes) != reply.node_events:
            raise BoardError(
                f"{reply.node_events - len(nodes)} of {reply.node_events} node events were lost"
            )
        return RunResult(reply, tuple(nodes))

    def region(self, index: int) -> RegionReply:
        """Return where a memory region lies."""
        return self._call(Command.REGION, RegionRequest(index), RegionReply)

    def load(
        self,
        code: bytes,
        offset: int,
        *,
        region: int = REGION_ARENA,
        model: int = NO_MODEL,
        run: int = NO_MODEL,
    ) -> None:
        """Upload code that is linked to run at `offset` of a region, and make it callable.

        `model` and `run`: where in the region its `nst_model` and its function lie, when it is one.
        """
        self.upload(code, offset, region=region)
        request = LoadRequest(region, offset, len(code), zlib.crc32(code), model, run)
        timeout_s = 1.0 + len(code) / _WORK_PER_S
        self._call(Command.LOAD, request, StatusReply, timeout_s=timeout_s)

    def call(
        self,
        entry: int,
        argument: int,
        *,
        timeout_s: float,
        region: int = REGION_ARENA,
        limit_ms: int = 0,
        beat_ms: int = 0,
        quiet_s: float | None = None,
    ) -> RunReply:
        """Call loaded code at byte `entry` of its region with a pointer to byte `argument` of
        `region`, waiting as `run` does."""
        request = CallRequest(entry, region, argument, limit_ms, beat_ms)
        return self._call(
            Command.CALL, request, RunReply, quiet_s=quiet_s, on_event=lambda _: timeout_s
        )

    def fill(
        self,
        kind: FillKind,
        seed: int,
        count: int,
        offset: int = 0,
        *,
        region: int = REGION_ARENA,
        low: int = 0,
        span: int = 0,
    ) -> None:
        """Let the board make `count` elements of a seed (see `pattern`)."""
        size = int(kind) if kind < FillKind.FLOAT32 else 4
        requests = [
            FillRequest(
                region, offset + at * size, min(_FILL_PART, count - at), int(kind),
                seed, at, low & 0xFFFFFFFF, span,
            )
            for at in range(0, count, _FILL_PART)
        ]  # fmt: skip
        timeout_s = min(count, _FILL_PART) / _WORK_PER_S
        self._window(Command.FILL, requests, StatusReply, timeout_s=timeout_s)

    def permute(
        self,
        element_bytes: int,
        loops: Sequence[Loop],
        offset: int,
        source: int,
        *,
        region: int = REGION_ARENA,
        source_region: int = REGION_ARENA,
    ) -> None:
        """Let the board copy elements in loops (see `pattern.strided`)."""
        tail = b"".join(n.to_bytes(4, "little") for loop in loops for n in loop)
        request = PermuteRequest(region, offset, source_region, source, element_bytes, tail)
        count = 1
        for extent, _, _ in loops:
            count *= extent
        timeout_s = 1.0 + count / _WORK_PER_S
        self._call(Command.PERMUTE, request, StatusReply, timeout_s=timeout_s)


def open_client(url: str, baud: int) -> RpcClient:
    """Open a port and a session on it; raises BoardError within 5 s when there is no board."""
    client = RpcClient(SerialTransport(url, baud), baud=baud)
    try:
        client.synchronise()
    except BoardError as error:
        with contextlib.suppress(BoardError):
            client.close()
        raise type(error)(f"port {url}: {error.what}") from None
    return client
