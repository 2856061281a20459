"""C server and Python client agree, also over a line that drops, repeats and spoils bytes."""

from __future__ import annotations

import random
import re
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cffi
import pytest

from tests.runtime_c.harness import build_harness, INCLUDE, SOURCES
from toolkit.errors import BoardError
from toolkit.measure.rpc.client import BoardCrashed, BoardSilent, RpcClient
from toolkit.measure.rpc.frame import Frame
from toolkit.measure.rpc.messages import (
    CallRequest,
    Command,
    Event,
    FaultKind,
    FEATURE_BEAT,
    FEATURE_LOAD,
    FillKind,
    FillRequest,
    LoadRequest,
    NO_MODEL,
    PermuteRequest,
    PingRequest,
    ReadRequest,
    REPLY,
    RpcStatus,
    RunRequest,
    Unit,
    WriteRequest,
)

BUFFER_BYTES = 160
CODE = 2
"""The region that takes code."""


class Line:
    """A transport to the server in this process, with a clock of its own."""

    def __init__(self, server: Any, ffi: cffi.FFI) -> None:
        self.server, self.ffi = server, ffi
        self.time = 0.0
        self.to_board: Callable[[bytes], bytes] = bytes
        self.to_host: Callable[[bytes], bytes] = bytes
        self.sent: list[bytes] = []

    def now(self) -> float:
        return self.time

    def read(self, timeout_s: float) -> bytes:
        space = self.ffi.new("uint8_t[]", 65536)
        count = self.server.harness_take(space, 65536)
        data = self.to_host(self.ffi.buffer(space, count)[:])
        self.time += 0.001 if data else timeout_s
        return data

    def write(self, data: bytes) -> None:
        self.sent.append(data)
        data = self.to_board(data)
        self.time += 0.001
        self.server.harness_feed(data, len(data))

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def library(
    need_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, cffi.FFI]:
    return build_harness(need_tool("gcc"), tmp_path_factory.mktemp("server"))


@pytest.fixture
def line(library: tuple[Any, cffi.FFI]) -> Line:
    server, ffi = library
    server.harness_start(0)
    return Line(server, ffi)


@pytest.fixture
def client(line: Line) -> Iterator[RpcClient]:
    it = RpcClient(line, now=line.now, rng=random.Random(1))
    it.synchronise()
    yield it
    it.close()


def infer(client: RpcClient, x: bytes, **options: Any) -> bytes:
    client.write(x, 0, buffer_bytes=BUFFER_BYTES)
    result = client.run(timeout_s=5.0, **options)
    assert result.reply.result == 0
    return client.read(4, 8)


def test_info_tells_what_runs(client: RpcClient) -> None:
    info = client.info()
    assert info.model_digest == 0xCAFEF00D
    assert (info.arena_bytes, info.node_count) == (4096, 2)
    assert (info.input_count, info.output_count) == (1, 1)
    assert (info.buffer_bytes, info.region_count) == (BUFFER_BYTES, 3)
    assert info.features == FEATURE_LOAD | FEATURE_BEAT
    assert (info.unit, info.clock_hz) == (Unit.CYCLES, 1000)
    assert info.empty_stop - info.empty_start == 10
    tensor = client.tensor(output=True, index=0)
    assert (tensor.offset, tensor.nbytes, tensor.dtype) == (8, 4, 2)


def test_run_gives_outputs_and_64_bit_ticks(client: RpcClient) -> None:
    assert infer(client, bytes([1, 2, 3, 4])) == bytes([4, 6, 8, 10])
    reply = client.run(timeout_s=5.0).reply
    assert (reply.start, reply.stop) == (0x10000000A, 0x100000014)
    assert reply.stack_bytes == 321
    assert client.stats().stack_bytes == 321


def test_limit_reaches_the_port(client: RpcClient) -> None:
    assert client.run(timeout_s=5.0, limit_ms=70_000).reply.start == 70_010


def test_profile_reports_every_node(client: RpcClient) -> None:
    client.write(bytes([9, 9, 9, 9]), 0)
    nodes = client.run(timeout_s=5.0, profile=True).nodes
    assert [n.node for n in nodes] == [0, 1]
    assert [n.stop - n.start for n in nodes] == [10, 10]
    assert client.read(4, 8) == bytes([20] * 4)


def test_a_run_in_parts_is_a_run(client: RpcClient) -> None:
    client.write(bytes([1, 2, 3, 4]), 0)
    first = client.run(timeout_s=5.0, profile=True, first=0, stop=1)
    assert (first.reply.result, first.reply.node) == (0, 1)  # NST_OK
    assert [n.node for n in first.nodes] == [0]
    assert client.read(4, 8) == bytes([2, 3, 4, 5])
    last = client.run(timeout_s=5.0, profile=True, first=1, stop=2)
    assert (last.reply.result, last.reply.node) == (1, 2)  # NST_DONE
    assert [n.node for n in last.nodes] == [1]
    assert client.read(4, 8) == bytes([4, 6, 8, 10])
    # Behind the last node there is nothing, and past that no node.
    assert client.run(timeout_s=5.0, profile=True, first=2).reply.result == 1
    assert client.run(timeout_s=5.0, profile=True, first=3).reply.result == 5  # NST_ERR_INDEX
    assert client.read(4, 8) == bytes([4, 6, 8, 10])


@pytest.mark.parametrize("seed", range(5))
def test_bulk_data_of_any_content_goes_both_ways(client: RpcClient, seed: int) -> None:
    rng = random.Random(seed)
    size = rng.randrange(1, 4097)
    offset = rng.randrange(0, 4097 - size)
    alphabet = rng.choice([range(256), (0,), (0, 1), (255,), range(1, 256)])
    data = bytes(rng.choices(alphabet, k=size))
    client.write(data, offset, buffer_bytes=BUFFER_BYTES)
    assert client.read(size, offset) == data
    assert client.crc(size, offset) == zlib.crc32(data)
    assert client.check(data, offset)
    assert client.stats().bad_frames == 0


def test_requests_that_make_no_sense_are_refused(client: RpcClient) -> None:
    with pytest.raises(BoardError, match="refused TENSOR: no such input or output"):
        client.tensor(output=False, index=1)
    with pytest.raises(BoardError, match="refused READ: the range lies outside"):
        client.read(2, 4095)
    with pytest.raises(BoardError, match="refused WRITE: the range lies outside"):
        client.write(b"ab", 0xFFFFFFFF)
    with pytest.raises(BoardError, match="refused CRC: no such memory region"):
        client.crc(1, region=3)
    with pytest.raises(BoardError, match="refused WRITE: no such memory region, or it is read"):
        client.write(b"ab", region=1)
    assert client.read(9, region=1) == b"read only"


def answers(line: Line) -> list[Frame]:
    """Return the frames that the board has sent."""
    found = [Frame.decode(part) for part in line.read(0).split(b"\0") if part]
    return [frame for frame in found if frame is not None]


@pytest.mark.parametrize(
    ("kind", "payload", "status"),
    [
        (0, b"", RpcStatus.BAD_COMMAND),
        (99, b"xyz", RpcStatus.BAD_COMMAND),
        (Command.INFO, b"x", RpcStatus.BAD_LENGTH),
        (Command.WRITE, b"\0\0\0", RpcStatus.BAD_LENGTH),
        (Command.RESET, b"x", RpcStatus.BAD_LENGTH),
    ],
)
def test_unknown_or_malformed_requests_get_a_status(
    line: Line, kind: int, payload: bytes, status: RpcStatus
) -> None:
    line.write(Frame(Command.PING, 6, PingRequest(9).pack()).encode())
    channel = answers(line)[-1].payload[-1]
    line.write(Frame(kind, 7, payload, channel).encode())
    assert answers(line) == [Frame(kind | REPLY, 7, bytes([status]), channel)]
    assert line.server.harness_count(1) == 0


def test_a_frame_longer_than_the_buffer_is_dropped(client: RpcClient) -> None:
    with pytest.raises(BoardSilent, match="did not answer WRITE"):
        client.write(bytes(480), buffer_bytes=500)
    assert client.stats().bad_frames == 4
    assert infer(client, b"\1\1\1\1") == b"\4\4\4\4"


def test_a_lost_reply_to_run_does_not_run_twice(line: Line, client: RpcClient) -> None:
    client.write(bytes([1, 2, 3, 4]))
    lost: list[bytes] = []

    def lose_first(data: bytes) -> bytes:
        if data and not lost:
            lost.append(data)
            return b""
        return data

    line.to_host = lose_first
    client.run(timeout_s=5.0)
    assert lost
    assert client.resent == 1
    assert line.server.harness_count(0) == 1
    assert client.read(4, 8) == bytes([4, 6, 8, 10])


def test_an_old_copy_of_a_request_is_not_carried_out(line: Line, client: RpcClient) -> None:
    client.write(b"\7\7\7\7")
    old = line.sent[-1]
    client.write(b"\1\2\3\4")
    line.write(old)
    assert client.read(4) == b"\1\2\3\4"


def test_garbage_between_frames_does_no_harm(line: Line, client: RpcClient) -> None:
    rng = random.Random(3)
    for _ in range(50):
        line.write(rng.randbytes(rng.randrange(1, 300)))
        assert infer(client, b"\1\1\1\1") == b"\4\4\4\4"


def test_a_restart_in_a_session_is_a_crash_with_its_reason(line: Line, client: RpcClient) -> None:
    line.server.harness_start(FaultKind.EXCEPTION)
    with pytest.raises(BoardCrashed, match="the board restarted: processor fault") as caught:
        client.info()
    fault = caught.value.fault
    assert fault is not None
    assert (fault.pc, fault.lr, fault.address) == (0x1234, 0x5678, 0x60000000)
    assert client.fault().kind == FaultKind.NONE  # reported once
    assert infer(client, b"\1\1\1\1") == b"\4\4\4\4"


def test_a_restart_nobody_heard_of_makes_run_fail(line: Line, client: RpcClient) -> None:
    line.server.harness_start(0)
    line.read(0)  # the event is lost
    with pytest.raises(BoardCrashed, match="the board restarted since the session began"):
        client.run(timeout_s=1.0)
    assert line.server.harness_count(0) == 0


def test_reset_restarts_and_synchronises(line: Line, client: RpcClient) -> None:
    client.reset()
    assert line.server.harness_count(1) == 1
    assert client.info().node_count == 2


def test_a_dead_line_is_noticed_in_bounded_time(line: Line, client: RpcClient) -> None:
    line.to_host = lambda data: b""
    start = line.time
    with pytest.raises(BoardSilent, match=r"did not answer INFO within .* s, asked 4 times"):
        client.info()
    assert line.time - start < 6
    start = line.time
    with pytest.raises(BoardSilent, match=r"did not answer a ping within 4\.0 s"):
        client.synchronise()
    assert line.time - start < 6


def test_a_dead_line_ends_a_bulk_transfer_as_soon_as_a_request(
    line: Line, client: RpcClient
) -> None:
    """Not once for each of the requests under way."""
    line.to_host = lambda data: b""
    start = line.time
    with pytest.raises(BoardSilent, match=r"did not answer WRITE within .* s, asked 4 times"):
        client.write(bytes(4000), buffer_bytes=BUFFER_BYTES)
    assert line.time - start < 8


def test_noise_instead_of_a_board_is_named(line: Line) -> None:
    rng = random.Random(1)
    line.to_host = lambda data: rng.randbytes(100)
    client = RpcClient(line, now=line.now, rng=random.Random(1))
    with pytest.raises(BoardSilent, match=r"\(\d+ frames of garbage came\)"):
        client.synchronise(timeout_s=1.0)


def test_a_run_that_started_and_never_ended_is_asked_for_twice_more(
    line: Line, client: RpcClient
) -> None:
    def only_events(data: bytes) -> bytes:
        frames = [Frame.decode(part) for part in data.split(b"\0") if part]
        return b"".join(f.encode() for f in frames if f and f.kind == Event.ALIVE)

    line.to_host = only_events
    before, start = len(line.sent), line.time
    with pytest.raises(BoardSilent, match=r"the model did not end within 30\.0 s"):
        client.run(timeout_s=30.0)
    assert len(line.sent) == before + 3
    assert 30 < line.time - start < 62


def test_beats_keep_a_long_run_and_silence_ends_it(line: Line, client: RpcClient) -> None:
    """Beats come for 60 s, then no more; the run might have taken 10,000 s."""
    until = line.time + 60.0

    def alive_then_beats(data: bytes) -> bytes:
        frames = [Frame.decode(part) for part in data.split(b"\0") if part]
        events = b"".join(f.encode() for f in frames if f and f.kind == Event.ALIVE)
        return events or (b"\0" if line.time < until else b"")

    line.to_host = alive_then_beats
    real_read = line.read
    line.read = lambda timeout_s: real_read(min(timeout_s, 2.0))  # type: ignore[method-assign]
    with pytest.raises(BoardSilent, match=r"no beat for 5\.0 s while it was at work"):
        client.run(timeout_s=10_000.0, beat_ms=1000, quiet_s=5.0)
    assert client.beats > 20
    assert until <= line.time < until + 40


@pytest.mark.parametrize("seed", range(20))
def test_a_bad_line_ends_in_the_right_result_or_a_typed_error(line: Line, seed: int) -> None:
    rng = random.Random(seed)
    rate = rng.choice([0.0005, 0.002, 0.01])

    def spoil(data: bytes) -> bytes:
        out = bytearray()
        for byte in data:
            dice = rng.random()
            if dice < rate:
                continue
            out.append(byte ^ (1 << rng.randrange(8)) if dice < 2 * rate else byte)
            if dice > 1 - rate:
                out.append(byte)
        return bytes(out)

    line.to_board = line.to_host = spoil
    client = RpcClient(line, now=line.now, rng=rng)
    right = 0
    for _ in range(20):
        x = rng.randbytes(4)
        start = line.time
        try:
            client.synchronise()
            y = infer(client, x)
        except BoardError:
            pass
        else:
            assert y == bytes((v + 1) * 2 & 255 for v in x)
            right += 1
        assert line.time - start < 40
    assert right >= (16 if rate < 0.01 else 5)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_frames_do_no_harm_under_the_sanitizers(
    need_tool: Callable[[str], str], tmp_path: Path, seed: int
) -> None:
    flags = ["-std=c99", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    flags.append("-DNST_RPC_LOAD=1")
    program = tmp_path / "fuzz"
    command = [need_tool("gcc"), *flags, "-DHARNESS_FUZZ", INCLUDE]
    subprocess.run([*command, *map(str, SOURCES), "-o", str(program)], check=True, timeout=120)
    done = subprocess.run(
        [program, str(seed), "20000"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    runs = int(done.stdout.split()[0])
    assert runs > 100, done.stdout


@pytest.mark.parametrize("runs", [3_000, pytest.param(300_000, marks=pytest.mark.full)])
def test_libfuzzer_finds_no_harm(
    need_tool: Callable[[str], str], tmp_path: Path, runs: int
) -> None:
    """Coverage leads it into every command: rows of requests, most of them with right CRCs."""
    flags = ["-std=c99", "-O1", "-g", "-fsanitize=fuzzer,address,undefined"]
    flags += ["-fno-sanitize-recover=all", "-DNST_RPC_LOAD=1", "-DHARNESS_LIBFUZZER"]
    program, corpus = tmp_path / "fuzz", tmp_path / "corpus"
    command = [need_tool("clang"), *flags, INCLUDE]
    subprocess.run([*command, *map(str, SOURCES), "-o", str(program)], check=True, timeout=120)
    corpus.mkdir()
    requests = [
        (Command.PING, PingRequest(7).pack()), (Command.WRITE, WriteRequest(2, 5, b"abc").pack()),
        (Command.RUN, RunRequest(0, 0).pack()), (Command.READ, ReadRequest(0, 0, 9).pack()),
        (Command.LOAD, LoadRequest(2, 0, 4, 0x2144DF1C, NO_MODEL, NO_MODEL).pack()),
        (Command.CALL, CallRequest(0, 0, 0, 0, 0).pack()),
        (Command.FILL, FillRequest(2, 0, 9, FillKind.FLOAT32, 1, 0, 0, 0).pack()),
        (Command.PERMUTE, PermuteRequest(2, 64, 2, 0, 2, bytes([2, 0, 0, 0] * 3)).pack()),
    ]  # fmt: skip
    row = b""
    for kind, payload in requests:
        request = bytes([kind, 0, 0, 0]) + payload
        row += bytes([len(request), 0]) + request
    (corpus / "row").write_bytes(row)
    options = [f"-runs={runs}", "-seed=1", "-max_len=600", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(
        [program, *options, corpus],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    covered = int(re.findall(r"cov: (\d+)", done.stderr)[-1])
    assert covered > 150, "edges of the server that it reached"


def test_a_ping_of_the_same_session_keeps_the_last_run(line: Line, client: RpcClient) -> None:
    channel = client._channel
    number = (client._sequence + 1) & 0xFFFF
    run = Frame(Command.RUN, number, RunRequest(0, 0).pack(), channel).encode()
    line.write(run)
    again = (number + 1) & 0xFFFF
    line.write(Frame(Command.PING, again, PingRequest(client._session).pack()).encode())
    line.write(run)
    assert line.server.harness_count(0) == 1
