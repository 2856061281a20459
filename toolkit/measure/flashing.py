"""Writing a board's flash: by the first program, or volume, of its `board.toml` that is there."""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import BoardError, ToolchainError
from toolkit.measure.ledger import count_flash
from toolkit.targets.board import Board, Flashing
from toolkit.toolchain.compiler import call_compiler

FLASH_TIMEOUT_S = 180.0
"""What writing a flash may take."""

_MOUNTS = ("/media/*/{0}", "/run/media/*/{0}", "/media/{0}", "/mnt/{0}", "/Volumes/{0}")
"""Where desktops and people mount a board's volume."""

_UF2_PAGE = 256
_UF2_HAS_FAMILY = 0x2000

_INSTALL = {
    "pyocd": "pip install 'nestling[boards]'",
    "openocd": "apt-get install openocd",
    "st-flash": "apt-get install stlink-tools",
    "picotool": "build picotool, or hold BOOTSEL while plugging in and use the volume",
}


def flash(
    board: Board,
    elf: Path,
    *,
    usb_serial: str | None = None,
    root: Path = Path("/"),
    ledger: Path | None = None,
) -> str:
    """Write the firmware `elf` to a board and start it; return what did it.

    `usb_serial`: of the debugger, where there are several.  `root`: volumes are mounted below it.
    `ledger`: where the write is counted.
    Raises BoardError when the board's data names no way, none is usable here, or it fails.
    """
    if not board.flashing:
        raise BoardError(
            f"board '{board.name}' cannot be flashed from here: its board.toml has no [[flash]]",
            hint=f"write {elf} to it, then name its port: --board {board.name}@PORT",
        )
    for way in board.flashing:
        volume = _volume(way, root)
        if way.tool == "volume":
            if volume is not None:
                _copy(board, way, elf, volume)
                count_flash(board.name, usb_serial, ledger)
                return f"volume {volume}"
        elif shutil.which(way.tool) is not None:
            _call(board, _command(board, way, elf, usb_serial))
            count_flash(board.name, usb_serial, ledger)
            return way.tool
    raise BoardError(
        f"board '{board.name}' cannot be flashed: nothing that can is here",
        state=[_needs(way) for way in board.flashing],
    )


def _needs(way: Flashing) -> str:
    if way.tool == "volume":
        return f"volume {way.values['label']}: not mounted"
    return f"{way.tool}: not on PATH ({_INSTALL[way.tool]})"


def _command(board: Board, way: Flashing, elf: Path, usb_serial: str | None) -> list[str]:
    """Return the command that writes and starts."""
    values = way.values
    chosen: tuple[str, ...]
    match way.tool:
        case "pyocd":
            chosen = ("--uid", usb_serial) if usb_serial else ()
            return ["pyocd", "load", "--target", values["target"], *chosen, str(elf)]
        case "openocd":
            files = [part for name in values["config"] for part in ("-f", name)]
            chosen = ("-c", f"adapter serial {usb_serial}") if usb_serial else ()
            # In braces: the path may hold spaces, brackets or dollars, which Tcl reads.
            done = f"program {{{elf}}} verify reset exit"
            return ["openocd", *files, *chosen, "-c", done]
        case "st-flash":
            chosen = (f"--serial={usb_serial}",) if usb_serial else ()
            image = _image(board, elf, "bin")
            return ["st-flash", "--reset", *chosen, "write", str(image), hex(values["address"])]
        case _:
            return ["picotool", "load", "--force", "--verify", "--execute", str(elf), "-t", "elf"]


def _call(board: Board, command: Sequence[str]) -> None:
    done = call_compiler(command, timeout_s=FLASH_TIMEOUT_S)
    if done.code == 0:
        return
    said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    how = f"took over {FLASH_TIMEOUT_S:.0f} s" if done.code is None else f"exit code {done.code}"
    raise BoardError(
        f"{command[0]} could not write the flash of board '{board.name}': {how}",
        state=said[-8:],
        hint="is the board plugged in, and may this user use it? see nestling doctor",
    )


# ---- volumes ----


def _volume(way: Flashing, root: Path) -> Path | None:
    """Return where a board's volume is mounted."""
    if way.tool != "volume":
        return None
    label = re.sub(r"([][*?])", r"[\1]", way.values["label"])
    for pattern in _MOUNTS:
        for path in sorted(root.glob(pattern.format(label).lstrip("/"))):
            if path.is_dir():
                return path
    return None


def _copy(board: Board, way: Flashing, elf: Path, volume: Path) -> None:
    """Copy the image in one stream and wait until it is written: the board starts by itself."""
    kind = way.values["format"]
    data = _image(board, elf, "bin" if kind == "uf2" else kind).read_bytes()
    if kind == "uf2":
        code = board.memory_for("code")
        assert code is not None, "load_board checks that there is a memory for code"
        data = uf2(data, code.origin, way.values["family"])
    try:
        with (volume / f"firmware.{kind}").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise BoardError(
            f"board '{board.name}': {volume} took no firmware: {error.strerror}"
        ) from None
    failure = volume / "FAIL.TXT"  # how debuggers with a volume complain
    if failure.exists():
        said = failure.read_text(encoding="utf-8", errors="replace").splitlines()
        raise BoardError(f"board '{board.name}': {volume} refused the firmware", state=said[:4])


def _image(board: Board, elf: Path, kind: str) -> Path:
    """Make a .bin or .hex beside an ELF file."""
    assert board.compiler is not None, "only boards with firmware are flashed"
    program = board.compiler.name.removesuffix("gcc") + "objcopy"
    if shutil.which(program) is None:
        raise ToolchainError(
            f"{program} is not on PATH", hint=f"apt-get install {board.compiler.package}"
        )
    image = elf.with_suffix(f".{kind}")
    form = {"bin": "binary", "hex": "ihex"}[kind]
    _call(board, [program, "-O", form, str(elf), str(image)])
    return image


def uf2(data: bytes, origin: int, family: int) -> bytes:
    """Return a UF2 file that puts `data` at `origin`: blocks of 512 bytes that each carry 256.

    Layout and magic numbers: the UF2 specification, "File format".
    """
    count = -(-len(data) // _UF2_PAGE)
    blocks = [
        struct.pack(
            "<8I476sI", 0x0A324655, 0x9E5D5157, _UF2_HAS_FAMILY, origin + number * _UF2_PAGE,
            _UF2_PAGE, number, count, family,
            data[number * _UF2_PAGE : (number + 1) * _UF2_PAGE], 0x0AB16F30,
        )
        for number in range(count)
    ]  # fmt: skip
    return b"".join(blocks)
