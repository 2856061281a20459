"""All small cases, one after the other: every state the server can reach, every pair of faults.

The server's states are explored by feeding it every request of a small alphabet in every state,
until no new state comes up; a model of a few lines says what it must answer.  The client is run
against the real server once for each way in which up to two of its frames can be lost, repeated,
late or followed by a restart.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import cffi
import pytest

from tests.runtime_c.harness import build_harness
from toolkit.errors import BoardError
from toolkit.measure.rpc.client import RpcClient
from toolkit.measure.rpc.frame import Frame
from toolkit.measure.rpc.messages import (
    Command,
    CrcRequest,
    Event,
    PingRequest,
    ReadRequest,
    REPLY,
    RpcStatus,
    RunPart,
    RunRequest,
    WriteRequest,
)


@pytest.fixture(scope="module")
def library(
    need_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, cffi.FFI]:
    return build_harness(need_tool("gcc"), tmp_path_factory.mktemp("server"))


# ---- the server


@dataclass(frozen=True, slots=True)
class Model:
    """What the server must remember: its session and channel, the newest sequence number, the byte
    that WRITE writes, and the number of the RUN whose result it keeps."""

    session: int = 0
    channel: int = 0
    kept: int = 0
    newest: int = 0
    byte: int = 0
    ran: int | None = None
    runs: int = 0

    def answer(self, frame: Frame) -> tuple[Model, int | None]:
        """Return the state after a request, and the status of the answer; None for none."""
        if frame.kind == Command.PING:
            session = int.from_bytes(frame.payload, "little")
            if session == self.session:
                return self, RpcStatus.OK
            channel = self.kept % 255 + 1
            return replace(
                self, session=session, channel=channel, kept=channel, newest=frame.sequence,
                ran=None,
            ), RpcStatus.OK  # fmt: skip
        if not self.session or frame.channel != self.channel:
            return self, RpcStatus.BAD_SESSION
        if (frame.sequence - self.newest) & 0x8000:
            return self, None
        after = replace(self, newest=frame.sequence)
        match frame.kind:
            case Command.WRITE:
                return replace(after, byte=frame.payload[-1]), RpcStatus.OK
            case Command.RUN:
                if self.ran == frame.sequence:
                    return after, RpcStatus.OK
                whole = not RunRequest.unpack(frame.payload).part
                return replace(after, ran=frame.sequence, runs=self.runs + whole), RpcStatus.OK
        return after, RpcStatus.OK


class Device:
    """The C server, whose state can be saved and put back."""

    def __init__(self, library: Any, ffi: cffi.FFI) -> None:
        self.library, self.ffi = library, ffi
        self.state_bytes = library.harness_state(ffi.NULL)

    def save(self) -> bytes:
        space = self.ffi.new("uint8_t[]", self.state_bytes)
        self.library.harness_state(space)
        saved: bytes = self.ffi.buffer(space)[:]
        return saved

    def ask(self, frame: Frame) -> list[Frame]:
        coded = frame.encode()
        self.library.harness_feed(coded, len(coded))
        space = self.ffi.new("uint8_t[]", 4096)
        count = self.library.harness_take(space, 4096)
        parts = self.ffi.buffer(space, count)[:].split(b"\0")
        frames = [Frame.decode(part) for part in parts if part]
        assert None not in frames
        return [f for f in frames if f is not None]


def alphabet() -> list[Frame]:
    """Every kind of request that changes something, for few sessions, channels and numbers."""
    numbers = (1, 2, 0x8001, 0xFFFF)
    requests = [Frame(Command.PING, n, PingRequest(s).pack()) for n in numbers for s in (5, 6)]
    for channel, number in itertools.product((1, 2, 3), numbers):
        for kind, payload in (
            (Command.WRITE, WriteRequest(0, 40, b"\1").pack()),
            (Command.WRITE, WriteRequest(0, 40, b"\2").pack()),
            (Command.RUN, RunRequest(0, 0).pack()),
            (Command.RUN, RunRequest(0, 0, RunPart(0, 1).pack()).pack()),
            (Command.CRC, CrcRequest(0, 40, 1).pack()),
        ):
            requests.append(Frame(int(kind), number, payload, channel))
    return requests


def test_every_state_the_server_can_reach_answers_as_the_model_says(
    library: tuple[Any, cffi.FFI],
) -> None:
    """States are those of the model, without the count of runs; channels stop at 3."""
    device = Device(*library)
    device.library.harness_start(0)
    device.ask(Frame(0, 0, b""))
    byte = ReadRequest(0, 40, 1).pack()
    view = device.ffi.new("uint32_t[4]")
    device.library.harness_view(view)
    start = Model(kept=view[3])
    offset = start.kept  # channels are counted from here
    letters = alphabet()
    todo = [(start, device.save())]
    seen = {replace(start, runs=0)}
    steps = 0
    while todo:
        model, saved = todo.pop()
        for letter in letters:
            frame = letter
            if frame.channel:
                frame = replace(letter, channel=(offset + letter.channel - 1) % 255 + 1)
            device.library.harness_set_state(saved)
            before = device.library.harness_count(0)
            replies = [f for f in device.ask(frame) if f.kind < Event.BOOT]
            after, status = model.answer(frame)
            steps += 1
            where = (model, frame)
            if status is None:
                assert replies == [], where
            else:
                (reply,) = replies
                assert reply.kind == frame.kind | REPLY, where
                assert (reply.sequence, reply.channel) == (frame.sequence, frame.channel), where
                assert reply.payload[0] == status, where
            assert device.library.harness_count(0) - before == after.runs - model.runs, where
            device.library.harness_view(view)
            assert tuple(view) == (
                after.session, after.channel, after.newest if after.session else 0, after.kept
            ), where  # fmt: skip
            state = device.save()
            if after.session:
                probe = Frame(Command.READ, after.newest, byte, after.channel)
                assert device.ask(probe)[0].payload[1] == after.byte, where
            known = replace(after, runs=0)
            if known not in seen and (after.kept - offset) % 255 <= 3:
                seen.add(known)
                todo.append((after, state))
    assert len(seen) > 300, "the alphabet reaches that many states"
    assert steps > 10_000


# ---- the client

FATES = ("lost", "twice", "late", "restart")


class Line:
    """A line that lets each frame meet the fate that a plan names by the frame's number."""

    def __init__(self, device: Device, plan: dict[int, str]) -> None:
        self.device, self.plan = device, plan
        self.time, self.count = 0.0, 0
        self.late: list[tuple[str, bytes]] = []
        self.arrived = bytearray()

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.time += seconds

    def _deliver(self, to: str, frame: bytes) -> None:
        if to == "host":
            self.arrived += frame
            return
        self.device.library.harness_feed(frame, len(frame))
        space = self.device.ffi.new("uint8_t[]", 8192)
        count = self.device.library.harness_take(space, 8192)
        self._send("host", self.device.ffi.buffer(space, count)[:])

    def _send(self, to: str, data: bytes) -> None:
        for part in data.split(b"\0"):
            if not part:
                continue
            frame, fate = b"\0" + part + b"\0", self.plan.get(self.count)
            self.count += 1
            late, self.late = self.late, []
            if fate == "restart":
                self.device.library.harness_start(0)
                self._deliver("board", b"")
            if fate == "late":
                self.late.append((to, frame))
            elif fate != "lost":
                self._deliver(to, frame)
            if fate == "twice":
                self._deliver(to, frame)
            for one in late:
                self._deliver(*one)

    def read(self, timeout_s: float) -> bytes:
        if not self.arrived:
            self.time += timeout_s
            late, self.late = self.late, []
            for one in late:
                self._deliver(*one)
        self.time += 0.001
        data = bytes(self.arrived)
        self.arrived.clear()
        return data

    def write(self, data: bytes) -> None:
        self._send("board", data)

    def close(self) -> None:
        pass

    def reopen(self) -> Line:
        return self


def errand(client: RpcClient) -> None:
    """A short session that uses windows, a run and its result."""
    client.synchronise()
    data = bytes(range(100))
    client.write(data, 100, buffer_bytes=64)
    assert client.read(100, 100) == data
    client.write(b"\1\2\3\4", 0, buffer_bytes=64)
    assert client.run(timeout_s=5.0).reply.result == 0
    assert client.read(4, 8) == b"\4\6\x08\x0a"


def plans(frames: int) -> Iterator[dict[int, str]]:
    """Every plan with none, one or two faults."""
    yield {}
    for at, fate in itertools.product(range(frames), FATES):
        yield {at: fate}
    for (a, b), fates in itertools.product(
        itertools.combinations(range(frames), 2), itertools.product(FATES, repeat=2)
    ):
        yield dict(zip((a, b), fates, strict=True))


def test_every_pair_of_faults_ends_in_the_right_result_or_a_typed_error(
    library: tuple[Any, cffi.FFI],
) -> None:
    device = Device(*library)

    def run(plan: dict[int, str]) -> tuple[int, str]:
        device.library.harness_start(0)
        device.ask(Frame(0, 0, b""))
        line = Line(device, plan)
        client = RpcClient(line, now=line.now, pause=line.pause, rng=random.Random(1))
        end = "right"
        try:
            errand(client)
        except BoardError as error:
            end = f"{type(error).__name__}: {error.what}"
        except AssertionError as error:
            error.add_note(str(plan))
            raise
        assert line.time < 60, plan
        return line.count, end

    frames, end = run({})
    assert end == "right"
    ends = [run(plan)[1] for plan in plans(frames)]
    # Nothing but a restart needs to end a session.
    odd = [
        (plan, end)
        for plan, end in zip(plans(frames), ends, strict=True)
        if end != "right" and "restart" not in plan.values()
    ]
    assert odd == []
    assert {"right", "BoardCrashed"} <= {end.partition(":")[0] for end in ends}
    assert len(ends) > 1_500
