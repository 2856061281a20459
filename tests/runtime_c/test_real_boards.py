"""Firmware of boards that are not QEMU's: vectors, memories and clocks as board.toml says.

No silicon is here, so what a program can know is checked: the ELF file against the data, the data
against the limits of the chips (in the ports, by the preprocessor), and one chip that QEMU half
models.
"""

from __future__ import annotations

import importlib.util
import itertools
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from toolkit.measure.board import BoardSession
from toolkit.paths import BOARDS, RUNTIME_C
from toolkit.targets.board import Board, list_boards, load_board, Qemu
from toolkit.toolchain.firmware import build_firmware, FirmwareArtifact
from toolkit.toolchain.sizes import Elf, read_elf

MODELS = Path(__file__).parents[1] / "qemu" / "models"
REAL = [n for n in list_boards() if load_board(n).compiler and load_board(n).qemu is None]

INTERRUPTS = {
    "nrf52840dk": 48, "nucleo_f446re": 97, "nucleo_f746zg": 98, "nucleo_h743zi": 150,
    "nucleo_l4r5zi": 95, "rpi_pico": 32, "rpi_pico2": 52,
}  # fmt: skip
"""How many each chip has, by its reference manual."""


@pytest.fixture(scope="module", params=REAL)
def board(request: pytest.FixtureRequest, need_tool: Callable[[str], str]) -> Board:
    board = load_board(request.param)
    assert board.compiler is not None
    need_tool(board.compiler.name)
    return board


def build(board: Board, folder: Path) -> FirmwareArtifact:
    for source in MODELS.iterdir():
        text = source.read_text(encoding="utf-8").replace("ARENA_BYTES 70000u", "ARENA_BYTES 1000u")
        (folder / source.name).write_text(text, encoding="utf-8")
    sources = [folder / "tiny.c", folder / "tiny_weights.c"]
    return build_firmware(board, sources, [folder], "tiny", "tiny.h", folder)


@pytest.fixture(scope="module")
def firmware(board: Board, tmp_path_factory: pytest.TempPathFactory) -> FirmwareArtifact:
    return build(board, tmp_path_factory.mktemp("firmware"))


@pytest.fixture(scope="module")
def elf(firmware: FirmwareArtifact) -> Elf:
    return read_elf(firmware.elf)


def words(firmware: FirmwareArtifact, name: str) -> tuple[int, ...]:
    """Return a section's 32-bit words."""
    section = next(s for s in read_elf(firmware.elf).sections if s.name == name)
    data = firmware.elf.read_bytes()[section.offset : section.offset + section.nbytes]
    return struct.unpack(f"<{len(data) // 4}I", data)


def test_all_boards_of_the_plan_are_there() -> None:
    assert sorted(INTERRUPTS) == REAL


def test_firmware_builds_without_a_warning(firmware: FirmwareArtifact) -> None:
    assert firmware.messages == ""


def test_vectors_are_where_the_core_looks_and_lead_where_they_should(
    board: Board, firmware: FirmwareArtifact, elf: Elf
) -> None:
    said = subprocess.run(
        ["arm-none-eabi-nm", str(firmware.elf)], capture_output=True, text=True, check=True
    ).stdout
    address = {line.split()[2]: int(line.split()[0], 16) for line in said.splitlines()}
    vectors = next(s for s in elf.sections if s.name == ".vectors")
    code = board.memory_for("code")
    assert code is not None
    boot = 256 if board.name == "rpi_pico" else 0  # what the ROM reads before the program
    assert vectors.address == code.origin + boot
    table = words(firmware, ".vectors")
    count = 16 + INTERRUPTS[board.name]
    assert len(table) >= count
    defines = dict(board.defines)
    expected = [address["nst_fault_entry"] | 1] * count
    expected[0] = address["nst_handler_stack_top"]
    expected[1] = address["nst_reset_entry"] | 1
    expected[15] = address["nst_systick_entry"] | 1
    expected[16 + defines["NST_UART_RX_IRQ"]] = address["nst_uart_rx_handler"] | 1
    # Of the core's entries 7 to 10 and 12 to 13 are reserved: nobody goes there.
    assert [table[i] for i in range(count)] == expected


def test_everything_lies_in_the_memories_of_the_board(board: Board, elf: Elf) -> None:
    for section in elf.sections:
        holder = [
            m for m in board.memories
            if m.origin <= section.address
            and section.address + section.nbytes <= m.origin + m.nbytes
        ]  # fmt: skip
        assert len(holder) == 1, f"{section.name} at {section.address:#x}"
        if section.writable or not section.stored:
            assert "data" in holder[0].holds or "arena" in holder[0].holds, section.name
        else:
            assert "code" in holder[0].holds, section.name


def test_memories_do_not_overlap(board: Board) -> None:
    spans = sorted((m.origin, m.origin + m.nbytes) for m in board.memories)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_what_a_restart_must_keep_lies_where_no_cache_is(board: Board, elf: Elf) -> None:
    """A Cortex-M7's tightly coupled memory is at 0x20000000; its cache is lost by a restart."""
    keep = next(s for s in elf.sections if s.name == ".noinit")
    data = board.memory_for("data")
    assert data is not None
    assert data.origin <= keep.address < data.origin + data.nbytes
    if board.target == "cortex-m7":
        assert data.name == "DTCM"


def test_the_console_keeps_its_rate(board: Board) -> None:
    """A receiver that samples in the middle of bits tolerates 2 % in all; a divider takes less."""
    defines = dict(board.defines)
    if "NST_UART_CLOCK_HZ" not in defines:  # Nordic's fractional divider makes any rate
        assert board.serial_baud in {115200, 230400, 460800, 921600, 1000000}
        return
    clock, baud = defines["NST_UART_CLOCK_HZ"], board.serial_baud
    if defines.get("NST_UART_LOW_POWER"):
        divider = round(256 * clock / baud)
        made = 256 * clock / divider
        assert 3 * baud <= clock <= 4096 * baud  # RM0432, 51.4.7
    elif "common/pl011.c" in {str(p.relative_to(BOARDS)) for p in board.sources}:
        made = clock / 16 / (round(clock / 16 / baud * 64) / 64)
    else:
        made = clock / round(clock / baud)
    assert abs(made / baud - 1) < 0.01


CLOCKS = {
    # crystal or clock in, divider, multiplier, dividers out; the core's highest, Hz
    "nucleo_f446re": (8_000_000, 4, 180, 2, 180_000_000),
    "nucleo_f746zg": (8_000_000, 4, 216, 2, 216_000_000),
    "nucleo_l4r5zi": (16_000_000, 4, 60, 2, 120_000_000),
    "nucleo_h743zi": (8_000_000, 4, 400, 2, 400_000_000),
    "nrf52840dk": (32_000_000, 1, 2, 1, 64_000_000),
    "rpi_pico": (12_000_000, 1, 125, 12, 133_000_000),
    "rpi_pico2": (12_000_000, 1, 125, 10, 150_000_000),
}


def test_clock_constants_make_the_clock_of_the_data(board: Board) -> None:
    source, divider, multiplier, out, highest = CLOCKS[board.name]
    assert source * multiplier == board.clock_hz * divider * out
    assert board.clock_hz <= highest
    defines = dict(board.defines)
    if "NST_HSE_HZ" in defines:
        assert defines["NST_HSE_HZ"] == source
    if "NST_XOSC_HZ" in defines:
        given = [defines[f"NST_PLL_{n}"] for n in ("REFDIV", "FBDIV", "POSTDIV1", "POSTDIV2")]
        assert (defines["NST_XOSC_HZ"], *given[:2], given[2] * given[3]) == (
            source, divider, multiplier, out
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("nucleo_f446re", {"NST_FLASH_WAITS": 4}, "flash needs a wait state"),
        ("nucleo_f746zg", {"NST_UART_CLOCK_HZ": 108_000_000}, "APB1"),
        ("nucleo_l4r5zi", {"NST_CLOCK_HZ": 121_000_000}, "PLL cannot make this clock"),
        ("nucleo_h743zi", {"NST_CLOCK_HZ": 480_000_000}, "PLL cannot make this clock"),
        ("nrf52840dk", {"NST_CLOCK_HZ": 128_000_000}, "runs at 64 MHz"),
        ("rpi_pico", {"NST_PLL_POSTDIV1": 7}, "do not make the clock"),
        ("rpi_pico2", {"NST_UART_RX_IRQ": 20}, "UART0 is 33"),
    ],
)
def test_a_clock_that_cannot_be_does_not_compile(
    name: str, change: dict[str, int], what: str, need_tool: Callable[[str], str]
) -> None:
    board = load_board(name)
    assert board.compiler is not None
    defines = {"NST_CLOCK_HZ": board.clock_hz, **dict(board.defines), **change}
    ports = [p for p in board.sources if p.name in ("port.c", "rp2.c", "stm32f4_clock.c")]
    done = subprocess.run(
        [need_tool(board.compiler.name), *board.compiler.flags, "-fsyntax-only",
         *(f"-D{k}={v}u" for k, v in defines.items()), f"-I{RUNTIME_C / 'include'}",
         *(f"-I{p}" for p in board.include_dirs), *map(str, ports)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert what in done.stderr


def test_the_second_stage_of_the_pico_is_its_source_with_the_right_crc(
    need_tool: Callable[[str], str],
) -> None:
    need_tool("arm-none-eabi-gcc")
    spec = importlib.util.spec_from_file_location("boot2", BOARDS / "rpi_pico" / "boot2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # The check value of this CRC (CRC-32/MPEG-2) in the catalogue of CRCs.
    assert module.crc32(b"123456789") == 0x0376E6E7
    assert (BOARDS / "rpi_pico" / "boot2.c").read_text(encoding="utf-8") == module.boot2_c()


def test_boot_roms_find_what_they_look_for(board: Board, firmware: FirmwareArtifact) -> None:
    if board.name == "rpi_pico":
        boot = words(firmware, ".boot")
        assert len(boot) == 64
        elf = read_elf(firmware.elf)
        assert next(s for s in elf.sections if s.name == ".boot").address == 0x10000000
    if board.name == "rpi_pico2":  # RP2350 datasheet, 5.9.5.1: within 4 kB
        table = words(firmware, ".vectors")
        at = table.index(0xFFFFDED3)
        assert table[at : at + 5] == (0xFFFFDED3, 0x10210142, 0x1FF, 0, 0xAB123579)
        assert 4 * (at + 5) <= 4096


def test_firmware_of_the_f446_runs_on_the_chip_that_qemu_half_models(
    tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    """QEMU's STM32F405 has the same USARTs, but neither clock tree nor counter of cycles.

    The port gives up on what does not come and takes SysTick for the clock.
    """
    real = load_board("nucleo_f446re")
    assert real.compiler is not None
    need_tool(real.compiler.name)
    need_tool("qemu-system-arm")
    # The console is the second USART; an instruction takes 16 ns, 2.688 ticks of QEMU's SysTick.
    machine = ("-M", "netduinoplus2", "-serial", "null", "-icount", "shift=4")
    board = replace(real, qemu=Qemu("qemu-system-arm", "qemu-system-arm", machine, 4.0))
    with BoardSession(board, build(board, tmp_path), run_timeout_s=30) as session:
        x = np.array([1, 2, 3, -4], np.float32)
        run, long = (session.run([x.tobytes(), struct.pack("<i", n)]) for n in (100, 500_000))
        y = np.sqrt(np.abs(x * np.array([1, -2, 3, 0.5], np.float32))) + np.float32(1)
        np.testing.assert_array_equal(np.frombuffer(run.outputs[0], np.float32), y)
        assert run.unit == "cycles"
        assert abs(long.ticks - run.ticks - 2 * (500_000 - 100) * 2.688) <= 3
