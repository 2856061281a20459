"""A hand-written model runs on every board in QEMU: outputs, counts, stack, 64 kB, bad ends."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from toolkit.errors import MeasureError
from toolkit.measure.board import BoardSession
from toolkit.measure.rpc.messages import FEATURE_BEAT
from toolkit.targets.board import Board, list_boards, load_board
from toolkit.toolchain.firmware import build_firmware, FirmwareArtifact
from toolkit.toolchain.sizes import parse_map, read_elf, stored_by_object

pytestmark = pytest.mark.qemu

MODELS = Path(__file__).with_name("models")
X = np.array([1, 2, 3, -4], np.float32)
Y = np.sqrt(np.abs(X * np.array([1, -2, 3, 0.5], np.float32))) + np.float32(1)
BOARDS = [name for name in list_boards() if load_board(name).qemu is not None]

# What the model's second kernel does (models/tiny.c).
PLAIN, ENDLESS, STACK, OVERFLOW, TRAP = 0, 2, 3, 4, 5
LOOP_100, LOOP_500000, LOOP_30000000 = 100, 500_000, 30_000_000
LOOP_300000000 = 300_000_000


def inputs(mode: int) -> list[bytes]:
    return [X.tobytes(), struct.pack("<i", mode)]


def stack_block(board: Board) -> int:
    """Return how much stack the model takes when it is told to: half of what there is."""
    return min(4096, board.stack_bytes // 2)


@pytest.fixture(scope="module", params=BOARDS)
def board(request: pytest.FixtureRequest, qemu_board: Callable[[str], Board]) -> Board:
    return qemu_board(request.param)


def build(board: Board, folder: Path) -> FirmwareArtifact:
    """Build the model with an arena and a need of stack that suit the board's RAM."""
    large = board.memory_for("arena", 0x20000) is not None
    for source in MODELS.iterdir():
        text = source.read_text(encoding="utf-8")
        text = text.replace("ARENA_BYTES 70000u", f"ARENA_BYTES {70000 if large else 1000}u")
        text = text.replace("STACK_BYTES 4096u", f"STACK_BYTES {stack_block(board)}u")
        (folder / source.name).write_text(text, encoding="utf-8")
    sources = [folder / "tiny.c", folder / "tiny_weights.c"]
    return build_firmware(board, sources, [folder], "tiny", "tiny.h", folder)


@pytest.fixture(scope="module")
def firmware(board: Board, tmp_path_factory: pytest.TempPathFactory) -> FirmwareArtifact:
    return build(board, tmp_path_factory.mktemp("firm ware ü"))


@pytest.fixture(scope="module")
def session(board: Board, firmware: FirmwareArtifact) -> Iterator[BoardSession]:
    with BoardSession(board, firmware, run_timeout_s=30) as it:
        yield it


def test_firmware_builds_without_a_warning(firmware: FirmwareArtifact) -> None:
    assert firmware.messages == ""


def test_ram_is_that_of_the_model(firmware: FirmwareArtifact) -> None:
    assert 4 <= firmware.static_ram_bytes <= 256  # tiny_sink, and what the C library needs


def test_outputs_are_right(session: BoardSession) -> None:
    run = session.run(inputs(PLAIN))
    np.testing.assert_array_equal(np.frombuffer(run.outputs[0], np.float32), Y)
    assert run.unit == "instructions"


@pytest.mark.parametrize("turns", [LOOP_500000, LOOP_30000000])
def test_instruction_counts_are_exact(session: BoardSession, turns: int) -> None:
    """The longer one is past the turns of clocks of 24 bits."""
    short, long = (session.run(inputs(mode)).ticks for mode in (LOOP_100, turns))
    assert long - short == 2 * (turns - LOOP_100)


def test_instruction_counts_are_the_same_in_every_run_and_process(
    board: Board, firmware: FirmwareArtifact, session: BoardSession
) -> None:
    counts = {session.run(inputs(LOOP_500000)).ticks for _ in range(5)}
    session.client.crc(1000)
    counts.add(session.run(inputs(LOOP_500000)).ticks)
    with BoardSession(board, firmware) as other:
        counts.add(other.run(inputs(LOOP_500000)).ticks)
    assert len(counts) == 1


def test_beats_come_while_a_kernel_runs_and_do_not_count(session: BoardSession) -> None:
    assert session.info.features & FEATURE_BEAT
    costs, beats = [], []
    plugin = session.board.qemu is not None and session.board.qemu.plugin is not None
    # A program beats by the host's time, in which it is fast, and every 20 ms at most.
    every, turns = (20, LOOP_300000000) if plugin else (200, LOOP_30000000)
    for beat_ms in (0, every):
        for data, tensor in zip(inputs(turns), session.inputs, strict=True):
            session.client.write(data, tensor.offset)
        before = session.client.beats
        reply = session.client.run(timeout_s=30, beat_ms=beat_ms).reply
        costs.append(session.cost(reply.start, reply.stop))
        beats.append(session.client.beats - before)
    assert costs[0] == costs[1]
    assert beats[1] >= 3
    assert beats[1] > beats[0]


def test_counts_of_nodes_add_up(session: BoardSession) -> None:
    run = session.run(inputs(LOOP_500000))
    profile = session.run(inputs(LOOP_500000), profile=True)
    assert profile.outputs == run.outputs
    assert profile.node_ticks is not None
    assert list(profile.node_ticks) == [0, 1, 2]
    assert 1_000_000 < profile.node_ticks[1] < 1_000_050
    assert sum(profile.node_ticks.values()) == profile.ticks
    assert abs(profile.ticks - run.ticks) < 3 * 100  # the executor's own part


def test_stack_is_measured_within_a_few_words(board: Board, session: BoardSession) -> None:
    block = stack_block(board)
    assert 16 <= session.run(inputs(PLAIN)).stack_bytes <= 200
    frames = 128 if board.linker_script else 256  # of 32 or 64 bits
    assert block < session.run(inputs(STACK)).stack_bytes <= block + frames


def test_64_kB_go_down_and_up(session: BoardSession, rng: np.random.Generator) -> None:
    """In parts, where the arena is smaller."""
    data = rng.bytes(65536)
    part = min(len(data), session.info.arena_bytes)
    before = session.client.stats()  # a ping that met the start of the board is a bad frame
    start = time.monotonic()
    for i in range(0, len(data), part):
        piece = data[i : i + part]
        session.client.write(piece, buffer_bytes=session.info.buffer_bytes)
        assert session.client.read(len(piece)) == piece
        assert session.client.check(piece)
    assert time.monotonic() - start < 30
    stats = session.client.stats()
    assert (stats.bad_frames, stats.lost_bytes) == (before.bad_frames, 0)


def test_a_crash_names_the_function_and_costs_one_run(
    board: Board, firmware: FirmwareArtifact
) -> None:
    with BoardSession(board, firmware) as session:
        with pytest.raises(MeasureError, match=r"crashed in tiny_mode \(pc 0x\w+\): "):
            session.run(inputs(TRAP))
        assert session.run(inputs(PLAIN)).outputs == [Y.tobytes()]  # the board has restarted


def test_a_stack_overflow_is_named(board: Board, firmware: FirmwareArtifact) -> None:
    with (
        BoardSession(board, firmware) as session,
        pytest.raises(MeasureError, match=f"overflowed its stack of {board.stack_bytes} bytes"),
    ):
        session.run(inputs(OVERFLOW))


def test_the_board_stops_an_endless_kernel_itself(board: Board, firmware: FirmwareArtifact) -> None:
    with BoardSession(board, firmware, run_timeout_s=30) as session:
        with pytest.raises(
            MeasureError, match=r"did not end within its time limit: it was stopped in tiny_mode"
        ):
            session.run(inputs(ENDLESS), limit_ms=3000)
        assert session.run(inputs(PLAIN)).outputs == [Y.tobytes()]


def test_the_server_stays_small(board: Board, firmware: FirmwareArtifact) -> None:
    """Targets of issue 6: 4 kB of flash with the port, 1 kB of RAM beside buffers."""
    elf = read_elf(firmware.elf)
    entries = parse_map(firmware.elf.with_suffix(".map").read_text(encoding="utf-8"))
    sizes = {Path(name).name: n for name, n in stored_by_object(entries, elf).items()}
    server = ["nst_rpc.o", "main.o", *(f"{source.stem}.o" for source in board.sources)]
    flash = sum(sizes.get(name, 0) for name in server)
    if board.linker_script is None:  # a program of a system, which is short of nothing
        assert 2000 < flash <= 0x4000
        return
    assert 2000 < flash <= 4096
    data = board.memory_for("data")
    assert data is not None
    ram = {
        s.name: s.nbytes
        for s in elf.symbols
        if 0 <= s.address - data.origin < data.nbytes and not s.is_function
    }
    assert ram.pop("arena") == firmware.arena_bytes
    assert ram.pop("buffer") == board.buffer_bytes
    assert sum(ram.values()) <= 1024, ram
    print(f"{board.name}: {flash} bytes of flash, {sum(ram.values())} of RAM beside buffers")


@pytest.mark.needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_unlike_clocks_count_the_same(tmp_path: Path) -> None:
    """A timer of the MPS2 and SysTick, on boards for which the same code is built."""
    for names in (
        ("qemu_mps2_an386", "qemu_netduinoplus2"),
        ("qemu_mps2_an385", "qemu_stm32vldiscovery"),
    ):
        counts = set()
        for name in names:
            folder = tmp_path / name
            folder.mkdir()
            board = load_board(name)
            with BoardSession(board, build(board, folder)) as session:
                counts.add(tuple(session.run(inputs(m)).ticks for m in (PLAIN, LOOP_30000000)))
        assert len(counts) == 1
