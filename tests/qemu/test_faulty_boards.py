"""Sessions with a board in QEMU over a line that fails: a few, or 300 with `-m full`."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.runtime_c.faulty_line import Faults, FaultyLine, Wire
from toolkit.errors import BoardError
from toolkit.measure.board import Qemu
from toolkit.measure.rpc.client import RpcClient
from toolkit.measure.rpc.frame import Frame
from toolkit.measure.rpc.messages import Command, FillKind
from toolkit.measure.rpc.pattern import pattern, strided
from toolkit.measure.rpc.transport import SerialTransport
from toolkit.targets.board import load_board
from toolkit.toolchain.loaded import build_server

pytestmark = [pytest.mark.qemu, pytest.mark.needs("arm-none-eabi-gcc", "qemu-system-arm")]

BOARD = load_board("qemu_mps2_an386")
DEADLINE_S = 120.0


class Machine:
    """QEMU behind its port; a `faulty_line.Board`.  A restart is asked for as a client would."""

    def __init__(self, port: str) -> None:
        self.port = SerialTransport(port, 115200)
        self.newest = Frame(0, 0, b"")
        self.pending = b""

    def feed(self, data: bytes) -> None:
        seen = Frame.decode(data.strip(b"\0"))
        if seen is not None and seen.channel:
            self.newest = seen
        self.port.write(data)

    def take(self) -> bytes:
        """Return whole frames: what goes wrong is drawn for each."""
        self.pending += self.port.read(0.0)
        whole, zero, self.pending = self.pending.rpartition(b"\0")
        return whole + zero

    def restart(self, how: str, rng: random.Random) -> None:
        last = self.newest
        self.port.write(Frame(Command.RESET, last.sequence, b"", last.channel).encode())


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    qemu = Qemu(BOARD, build_server(BOARD, tmp_path_factory.mktemp("server")))
    try:
        yield Machine(qemu.port)
    finally:
        qemu.close()


def work(client: RpcClient, rng: random.Random) -> None:
    """Send, read back, let the board make data and turn it round."""
    client.synchronise()
    client.info()
    data = rng.randbytes(rng.randrange(1, 5_000))
    client.upload(data, 4096)
    assert client.read(len(data), 4096) == data
    client.fill(FillKind.FLOAT32, 5, 300, 65536)
    values = pattern("float32", 5, 300)
    order = np.arange(300).reshape(100, 3).T
    loops = strided(order, 4)
    assert loops is not None
    client.permute(4, loops, 70_000, 65536)
    assert client.read(1200, 70_000) == values[order.reshape(-1)].tobytes()


def run_sessions(seeds: range, machine: Machine) -> None:
    ends: list[str] = []
    for seed in seeds:
        rng = random.Random(seed)
        faults = Faults.drawn(rng) if seed != seeds[0] else Faults()  # one without any
        wire = Wire(machine, faults, rng, time.monotonic, time.sleep, scale=0.1, look_s=0.001)
        client = RpcClient(FaultyLine(wire), reply_timeout_s=0.5, rng=random.Random(seed + 1))
        start = time.monotonic()
        try:
            work(client, rng)
        except BoardError as error:
            ends.append(error.what)
        except Exception as error:
            error.add_note(f"session {seed}")
            raise
        else:
            ends.append("right")
        assert time.monotonic() - start < DEADLINE_S, seed
    assert all(end.strip() and "\n" not in end for end in ends)
    assert ends[0] == "right"
    assert ends.count("right") > 0.5 * len(ends), ends


def test_sessions_end_in_the_right_result_or_a_typed_error(machine: Machine) -> None:
    run_sessions(range(5), machine)


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 300, 20))
def test_three_hundred_sessions(machine: Machine, first: int) -> None:
    run_sessions(range(first, first + 20), machine)
