"""Sessions over lines that fail end in the right result, or in a typed error within their deadline.

A few hundred here, 10,000 with `pytest tests/runtime_c/test_sessions.py -m full`.  `SEED` sessions
repeat exactly: what a failing one prints is its seed.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from typing import Any

import cffi
import pytest

from tests.runtime_c.faulty_line import Faults, FaultyLine, Wire
from tests.runtime_c.harness import build_harness
from toolkit.errors import BoardError
from toolkit.measure.rpc.client import RpcClient
from toolkit.measure.rpc.messages import FillKind
from toolkit.measure.rpc.pattern import pattern

CODE = 2
DEADLINE_S = 420.0
"""Four recoveries of 10 s, each after a few requests that were sent four times; nothing is waited
for without end."""
TWICE = """
#include <stdint.h>
uint32_t twice(void *argument, uint64_t (*clock)(void));
uint32_t twice(void *argument, uint64_t (*clock)(void)) {
    uint32_t *const it = (uint32_t *)argument;
    (void)clock;
    *it *= 2u;
    return 7u;
}
"""


class Clock:
    """A clock that moves when somebody waits."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += seconds


class Server:
    """The C server in this process; a `faulty_line.Board`."""

    def __init__(self, library: Any, ffi: cffi.FFI) -> None:
        self.library, self.ffi = library, ffi
        self.space = ffi.new("uint8_t[]", 1 << 20)

    def feed(self, data: bytes) -> None:
        self.library.harness_feed(data, len(data))

    def take(self) -> bytes:
        count = self.library.harness_take(self.space, 1 << 20)
        taken: bytes = self.ffi.buffer(self.space, count)[:]
        return taken

    def restart(self, how: str, rng: random.Random) -> None:
        if how == "reset":
            self.library.harness_start(rng.choice([0, 1]))
        else:
            self.library.harness_power_up(rng.getrandbits(32))


@pytest.fixture(scope="module")
def server(
    need_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Server, bytes]:
    """The server, and the code of `twice` for this computer."""
    folder = tmp_path_factory.mktemp("server")
    gcc = need_tool("gcc")
    (folder / "t.c").write_text(TWICE)
    subprocess.run([gcc, "-O1", "-fcf-protection=none", "-c", "t.c"], cwd=folder, check=True)
    subprocess.run(
        ["objcopy", "-O", "binary", "-j", ".text", "t.o", "t.bin"], cwd=folder, check=True
    )
    return Server(*build_harness(gcc, folder)), (folder / "t.bin").read_bytes()


def work(client: RpcClient, code: bytes, rng: random.Random) -> None:
    """Do all that a client does, and see that what comes back is right."""
    client.synchronise()
    assert client.info().model_digest == 0xCAFEF00D
    data = rng.randbytes(rng.randrange(1, 3000))
    place = rng.randrange(0, 20_000)
    client.upload(data, place, region=CODE)
    assert client.read(len(data), place, region=CODE) == data
    client.fill(FillKind.FLOAT32, 5, 300, 24_000, region=CODE)
    assert client.check(pattern("float32", 5, 300).tobytes(), 24_000, region=CODE)
    loops = [(3, 400, 4), (100, 4, 12)]
    client.permute(4, loops, 30_000, 24_000, region=CODE, source_region=CODE)
    turned = pattern("float32", 5, 300).reshape(100, 3).T.tobytes()
    assert client.read(1200, 30_000, region=CODE) == turned
    x = bytes(rng.randrange(0xF0) for _ in range(4))
    client.write(x, 0)
    assert client.run(timeout_s=5.0).reply.result == 0
    assert client.read(4, 8) == bytes((v + 1) * 2 & 255 for v in x)
    client.load(code, 40_000, region=CODE)
    client.write((21).to_bytes(4, "little"), 64)
    reply = client.call(40_000, 64, region=0, timeout_s=5.0)
    assert reply.result == 7
    assert client.read(4, 64) == (42).to_bytes(4, "little"), "called once"


def session(seed: int, server: Server, code: bytes) -> str:
    """Run session number `seed`; return 'right', or the error it ended in."""
    rng, clock = random.Random(seed), Clock()
    server.library.harness_clear()
    server.library.harness_start(0)
    wire = Wire(server, Faults.drawn(rng), rng, clock.now, clock.wait)
    client = RpcClient(
        FaultyLine(wire), now=clock.now, pause=clock.wait, rng=random.Random(rng.getrandbits(32))
    )
    try:
        work(client, code, rng)
    except BoardError as error:
        end = error.what
    else:
        end = "right"
    assert end.strip()
    assert "\n" not in end
    assert clock.time < DEADLINE_S, f"took {clock.time} s"
    return end


def run_sessions(seeds: range, server: Server, code: bytes) -> None:
    ends: list[str] = []
    for seed in seeds:
        try:
            ends.append(session(seed, server, code))
        except Exception as error:
            error.add_note(f"session {seed}")
            raise
    right = sum(end == "right" for end in ends)
    # Most faults are mild; those that restart the board after the upload end in an error.
    assert 0.5 * len(ends) < right < len(ends), f"{right} of {len(ends)} were right"


def test_sessions_end_in_the_right_result_or_a_typed_error(server: tuple[Server, bytes]) -> None:
    run_sessions(range(300), *server)


@pytest.mark.full
def test_ten_thousand_sessions(server: tuple[Server, bytes]) -> None:
    run_sessions(range(10_000), *server)


def test_without_faults_every_session_is_right(server: tuple[Server, bytes]) -> None:
    it, code = server
    it.library.harness_clear()
    it.library.harness_start(0)
    clock = Clock()
    wire = Wire(it, Faults(), random.Random(1), clock.now, clock.wait)
    client = RpcClient(FaultyLine(wire), now=clock.now, pause=clock.wait, rng=random.Random(2))
    work(client, code, random.Random(3))
    assert client.resent == 0
    assert clock.time < 2.0


@pytest.mark.parametrize("seconds", [0.05, 0.7, 5.0])
def test_an_upload_goes_on_where_a_vanished_port_left_it(
    server: tuple[Server, bytes], seconds: float
) -> None:
    """Under another name: the old opening stays dead."""
    it, _ = server
    it.library.harness_clear()
    it.library.harness_start(0)
    clock = Clock()
    wire = Wire(it, Faults(vanishes=((250, seconds),)), random.Random(1), clock.now, clock.wait)
    first = FaultyLine(wire)
    client = RpcClient(first, now=clock.now, pause=clock.wait, rng=random.Random(2))
    client.synchronise()
    client.info()
    data = random.Random(4).randbytes(60_000)
    client.upload(data, region=CODE)
    assert client.transport is not first
    assert client.check(data, region=CODE)
    frames = sum(len(data[i : i + 16384]) for i in range(0, len(data), 16384)) / 147
    assert wire.count < 2 * (frames * 1.6 + 40), "a block or so was sent twice, not all"
