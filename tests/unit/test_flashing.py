"""Boards behind USB: which port is theirs, and how their flash is written."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from toolkit.errors import BoardError
from toolkit.measure.flashing import flash, uf2
from toolkit.measure.usb_ports import find_port, Port
from toolkit.targets.board import Board, load_board

F446 = load_board("nucleo_f446re")
PICO = load_board("rpi_pico")


@dataclass
class Info:
    """A port as pyserial's list_ports shows it."""

    device: str
    vid: int | None = None
    pid: int | None = None
    serial_number: str | None = None
    product: str | None = None


ST_LINK = Info("/dev/ttyACM0", 0x0483, 0x374B, "066BFF", "STM32 STLink")
OTHER = Info("/dev/ttyACM1", 0x0483, 0x374B, "066CFF", "STM32 STLink")
MODEM = Info("/dev/ttyUSB0", 0x12D1, 0x1001, None, "HUAWEI Mobile")
BUILT_IN = Info("/dev/ttyS0")


def test_a_port_is_found_by_its_ids() -> None:
    assert find_port(F446, None, [BUILT_IN, MODEM, ST_LINK]) == Port("/dev/ttyACM0", "066BFF")


def test_a_port_is_found_by_its_serial_number() -> None:
    ports = [ST_LINK, OTHER]
    assert find_port(F446, "usb:066CFF", ports) == Port("/dev/ttyACM1", "066CFF")


@pytest.mark.parametrize("url", ["/dev/ttyACM1", "socket://127.0.0.1:4000", "/dev/pts/3"])
def test_a_named_port_is_taken_as_it_is(url: str) -> None:
    number = "066CFF" if url == OTHER.device else None
    assert find_port(F446, url, [ST_LINK, OTHER]) == Port(url, number)


def test_no_device_shows_what_there_is() -> None:
    with pytest.raises(BoardError, match=r"no USB device of 0483:374b, .* is there") as caught:
        find_port(F446, None, [MODEM, BUILT_IN])
    assert caught.value.state == (
        "/dev/ttyUSB0: 12d1:1001 HUAWEI Mobile", "/dev/ttyS0: no USB device"
    )  # fmt: skip
    assert "nucleo_f446re@/dev/ttyACM0" in str(caught.value)
    with pytest.raises(BoardError, match=r"no USB device with serial number 1 is there"):
        find_port(F446, "usb:1", [ST_LINK])
    with pytest.raises(BoardError) as caught:
        find_port(F446, None, [])
    assert caught.value.state == ("this computer shows no serial port",)


def test_two_devices_ask_for_a_choice() -> None:
    with pytest.raises(BoardError, match=r"2 USB devices of .* are there") as caught:
        find_port(F446, None, [ST_LINK, OTHER, MODEM])
    assert caught.value.hint == "choose one: --board nucleo_f446re@usb:066BFF"
    assert len(caught.value.state) == 2


# ---- flashing ----


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that makes a PATH of programs, which write their arguments to a file."""
    bin_dir, log = tmp_path / "bin", tmp_path / "called"
    bin_dir.mkdir()

    def make(*names: str, code: int = 0, says: str = "") -> Path:
        for name in names:
            (bin_dir / name).write_text(
                f'#!/bin/sh\nprintf "%s\\n" {name} "$@" > "{log}"\n'
                "for last; do :; done\n"
                f'[ {name} = arm-none-eabi-objcopy ] && printf image > "$last"\n'
                f'printf "%s\\n" "{says}" >&2\nexit {code}\n'
            )
            (bin_dir / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{bin_dir}")
        return log

    return make


@pytest.fixture
def elf(tmp_path: Path) -> Path:
    folder = tmp_path / "firm ware"
    folder.mkdir()
    (folder / "firmware.elf").write_bytes(b"\x7fELF")
    return folder / "firmware.elf"


@pytest.mark.parametrize(
    ("board", "tool", "words"),
    [
        (F446, "pyocd", ["load", "--target", "stm32f446retx", "--uid", "066BFF", "ELF"]),
        (F446, "openocd", ["-f", "board/st_nucleo_f4.cfg", "-c", "adapter serial 066BFF", "-c",
                           "program {ELF} verify reset exit"]),
        (F446, "st-flash", ["--reset", "--serial=066BFF", "write", "BIN", "0x8000000"]),
        (PICO, "picotool", ["load", "--force", "--verify", "--execute", "ELF", "-t", "elf"]),
    ],
    ids=["pyocd", "openocd", "st-flash", "picotool"],
)  # fmt: skip
def test_each_program_is_called_as_its_manual_says(
    tools: Callable[..., Path], elf: Path, board: Board, tool: str, words: list[str]
) -> None:
    log = tools("arm-none-eabi-objcopy")
    tools(tool)
    assert flash(board, elf, usb_serial="066BFF", root=elf.parent) == tool
    paths = {"ELF": str(elf), "BIN": str(elf.with_suffix(".bin"))}
    expected = [w.replace("ELF", paths["ELF"]).replace("BIN", paths["BIN"]) for w in words]
    assert log.read_text().splitlines() == [tool, *expected]


def test_the_first_way_that_is_there_is_taken(tools: Callable[..., Path], elf: Path) -> None:
    tools("st-flash", "openocd", "arm-none-eabi-objcopy")
    assert flash(F446, elf, root=elf.parent) == "openocd"


def test_a_failure_shows_what_the_program_said(tools: Callable[..., Path], elf: Path) -> None:
    tools("pyocd", code=3, says="No available debug probes")
    with pytest.raises(
        BoardError, match=r"pyocd could not write .*'nucleo_f446re': exit code 3"
    ) as e:
        flash(F446, elf, root=elf.parent)
    assert e.value.state == ("No available debug probes",)


def test_nothing_that_can_flash_lists_what_would(tools: Callable[..., Path], elf: Path) -> None:
    tools()
    with pytest.raises(BoardError, match=r"nothing that can is here") as caught:
        flash(F446, elf, root=elf.parent)
    assert [line.split(":")[0] for line in caught.value.state] == [
        "pyocd", "openocd", "st-flash", "volume NODE_F446RE"
    ]  # fmt: skip
    with pytest.raises(BoardError, match=r"its board.toml has no"):
        flash(replace(F446, flashing=()), elf)


def test_an_image_is_dropped_on_a_volume(
    tools: Callable[..., Path], elf: Path, tmp_path: Path
) -> None:
    tools("arm-none-eabi-objcopy")
    volume = tmp_path / "media" / "me" / "NODE_F446RE"
    volume.mkdir(parents=True)
    assert flash(F446, elf, root=tmp_path) == f"volume {volume}"
    assert (volume / "firmware.bin").read_bytes() == b"image"
    (volume / "FAIL.TXT").write_text("The image was not accepted\n")
    with pytest.raises(BoardError, match=r"refused the firmware") as caught:
        flash(F446, elf, root=tmp_path)
    assert caught.value.state == ("The image was not accepted",)


def test_a_volume_takes_uf2(tools: Callable[..., Path], elf: Path, tmp_path: Path) -> None:
    tools("arm-none-eabi-objcopy")
    volume = tmp_path / "run" / "media" / "me" / "RPI-RP2"
    volume.mkdir(parents=True)
    flash(PICO, elf, root=tmp_path)
    assert (volume / "firmware.uf2").read_bytes() == uf2(b"image", 0x10000000, 0xE48BFF56)


def test_uf2_blocks_hold_the_image() -> None:
    image = bytes(range(256)) * 2 + b"tail"
    data = uf2(image, 0x10000000, 0xE48BFF56)
    assert len(data) == 3 * 512
    found = b""
    for number in range(3):
        block = data[512 * number : 512 * (number + 1)]
        first, second, flags, address, size, index, count, family = struct.unpack_from("<8I", block)
        assert (first, second) == (0x0A324655, 0x9E5D5157)
        assert struct.unpack_from("<I", block, 508) == (0x0AB16F30,)
        assert (flags, address, index) == (0x2000, 0x10000000 + 256 * number, number)
        assert (size, count, family) == (256, 3, 0xE48BFF56)
        found += block[32 : 32 + size]
    assert found == image.ljust(768, b"\0")
