"""Boards are read from data, and a mistake in the data is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.errors import BoardError
from toolkit.paths import BOARDS
from toolkit.targets.board import Board, list_boards, load_board
from toolkit.targets.target import TARGETS

AN386 = (BOARDS / "qemu_mps2_an386" / "board.toml").read_text(encoding="utf-8")


def write(root: Path, text: str) -> Path:
    """Make a folder of boards with one, `qemu_mps2_an386`, that `text` describes."""
    (root / "common").mkdir()
    (root / "qemu_mps2_an386").mkdir()
    for name in ("core.c", "cortex_m.c", "cortex_m.ld", "cmsdk_uart.c", "uart.c", "mps2.c"):
        (root / "common" / name).touch()
    (root / "qemu_mps2_an386" / "board.toml").write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize("name", list_boards())
def test_every_board_loads(name: str) -> None:
    board = load_board(name)
    assert board.name == name
    assert board.description
    assert board.target == "host" or board.target in TARGETS
    assert (board.compiler is None) == (name == "host")


def test_the_an386_is_as_the_application_note_says() -> None:
    board = load_board("qemu_mps2_an386")
    assert (board.target, board.unit, board.clock_hz) == ("cortex-m4", "instructions", 25_000_000)
    assert [(m.name, m.origin, m.nbytes) for m in board.memories] == [
        ("FLASH", 0, 4 << 20),
        ("SSRAM", 0x20000000, 4 << 20),
        ("PSRAM", 0x21000000, 16 << 20),
    ]
    arena = board.memory_for("arena", 5 << 20)
    assert arena is not None
    assert arena.name == "PSRAM"
    assert board.memory_for("arena", 17 << 20) is None


@pytest.mark.parametrize(
    ("clock_hz", "shift"), [(25_000_000, 6), (32_000_000, 5), (168_000_000, 3), (168_000_000, 6)]
)
def test_ticks_give_the_exact_count_of_instructions(clock_hz: int, shift: int) -> None:
    board = Board("x", "", "", "instructions", Path(), clock_hz=clock_hz, icount_shift=shift)
    for n in [*range(2000), 10**9, 10**12 + 7]:
        ticks = (n << shift) * clock_hz // 10**9  # what the timer shows after n instructions
        assert board.from_ticks(ticks) == n
        slack = ((clock_hz << shift) - 10**9) // (2 * 10**9)  # whole ticks of rounding
        assert {board.from_ticks(ticks + t) for t in range(-slack, slack + 1)} == {n}


@pytest.mark.parametrize("name", list_boards())
def test_turns_of_systick_are_what_its_clock_assumes(name: str) -> None:
    """See systick_clock.c: whole ticks in 125 instructions, turns near whole nanoseconds."""
    board = load_board(name)
    defines = dict(board.defines)
    if "NST_SYSTICK_TURN" not in defines:
        assert not any(source.name == "systick_clock.c" for source in board.sources)
        return
    if board.icount_shift is None:  # silicon: the interrupt's few cycles are counted
        assert (defines["NST_SYSTICK_EXACT"], defines["NST_SYSTICK_ENTRY_TICKS"]) == (0, 0)
        assert defines["NST_SYSTICK_TURN"] == 2**24
        return
    instructions = 125 << board.icount_shift
    assert defines["NST_SYSTICK_ENTRY_TICKS"] * 10**9 == instructions * board.clock_hz
    turn = defines["NST_SYSTICK_TURN"]
    assert 2**23 < turn <= 2**24
    lost = turn * 10**9 % board.clock_hz / board.clock_hz  # ns that rounding takes from a turn
    slack = (2**board.icount_shift - 10**9 / board.clock_hz) / 2  # ns that from_ticks evens out
    per_turn = turn * 10**9 // board.clock_hz >> board.icount_shift
    assert lost == 0 or slack / lost * per_turn > 3e8


def test_ticks_of_other_boards_are_what_they_are() -> None:
    assert Board("x", "", "", "cycles", Path(), clock_hz=168_000_000).from_ticks(12345) == 12345


def test_an_unknown_board_names_the_known_ones() -> None:
    with pytest.raises(BoardError, match="board 'nuceo' is unknown") as caught:
        load_board("nuceo")
    assert caught.value.hint == f"known boards: {', '.join(list_boards())}"
    assert "qemu_mps2_an386" in list_boards()
    assert "common" not in list_boards()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('unit = "instructions"', 'unit = "ticks"', "key 'unit' .* must be one of seconds, cycles"),
        ('target = "cortex-m4"', "", "key 'target' .* is missing"),
        ('target = "cortex-m4"', "target = 7", "key 'target' .* must be a str, not 7"),
        ('target = "cortex-m4"', 'target = "cortex-m4"\nizza = 1', "key 'izza' .* is unknown"),
        ("hz = 25_000_000", "hz = 0", "key 'clock.hz' .* must be positive, not 0"),
        ("hz = 25_000_000", "hz = 1_000_000", "'clock.icount_shift' .* shorter than a tick"),
        ("icount_shift = 6", "", "key 'clock.icount_shift' .* is missing, though the unit is"),
        ("bytes = 0x400000\n", "size = 1\n", r"key 'memory\[0\].bytes' .* is missing"),
        ('["code", "weights"]', '["code", "waits"]', r"'memory\[0\].holds' .* not 'waits'"),
        ('["code", "weights"]', '["weights"]', "key 'memory' .* has no memory that holds code"),
        ('["-mcpu=cortex-m4",', '["-mcpu=cortex-m4", 4,', "'compiler.flags' .* must hold strings"),
        ("common/cortex_m.ld", "common/x.ld", "'linker_script' .* names 'common/x.ld', which does"),
        (
            "common/cmsdk_uart.c",
            "common/x.c",
            "key 'sources' .* names 'common/x.c', which does not",
        ),
        ('name = "qemu_mps2_an386"', 'name = "x"', "key 'name' .* must be the folder's name"),
        ("bytes = 0x10000\n", "", "key 'stack.bytes' .* is missing"),
        ("[qemu]", "[[qemu]]", "key 'qemu' .* must be a dict"),
        (
            "NST_UART_RX_IRQ = 0",
            'NST_UART_RX_IRQ = "0"',
            "key 'defines.NST_UART_RX_IRQ' .* be a int",
        ),
        ("[clock]", "[clock", r"board.toml cannot be read: .* \(at line"),
    ],
)
def test_a_malformed_board_names_the_key(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in AN386
    root = write(tmp_path, AN386.replace(old, new, 1))
    with pytest.raises(BoardError, match=f"^board 'qemu_mps2_an386': .*{what}"):
        load_board("qemu_mps2_an386", root)


def test_the_copy_the_mistakes_are_made_in_is_right(tmp_path: Path) -> None:
    assert load_board("qemu_mps2_an386", write(tmp_path, AN386)).clock_hz == 25_000_000
