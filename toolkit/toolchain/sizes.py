"""What a linked program weighs: sections and symbols of an ELF file, and a linker map by object.

Flash is what must be stored: code, constants and the initial values of data.  RAM is data and
zeroed data.  Nothing here starts a program.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolchainError

_SHF_WRITE, _SHF_ALLOC = 1, 2
_SHT_SYMTAB, _SHT_NOBITS = 2, 8
_STT_FUNC = 2


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an ELF file that occupies memory when the program runs."""

    name: str
    address: int
    nbytes: int
    writable: bool
    stored: bool
    """Its bytes are in the file (and so in flash), unlike those of .bss."""
    offset: int
    """Where they are in the file."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function or object of an ELF file."""

    name: str
    address: int
    nbytes: int
    is_function: bool


@dataclass(frozen=True, slots=True)
class Elf:
    """Sections that occupy memory, and symbols by address (Thumb's bit 0 cleared)."""

    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]

    @property
    def flash_bytes(self) -> int:
        """Bytes that must be stored."""
        return sum(s.nbytes for s in self.sections if s.stored)

    @property
    def ram_bytes(self) -> int:
        """Bytes of data and zeroed data."""
        return sum(s.nbytes for s in self.sections if s.writable)

    def section_bytes(self, prefix: str) -> int:
        """Bytes of all sections whose names begin with `prefix`."""
        return sum(s.nbytes for s in self.sections if s.name.startswith(prefix))

    def function_at(self, address: int) -> Symbol | None:
        """Return the function that holds the instruction at `address`."""
        for symbol in self.symbols:
            if symbol.is_function and symbol.address <= address < symbol.address + symbol.nbytes:
                return symbol
        return None


def read_elf(path: Path) -> Elf:
    """Read a little-endian ELF file, of 32 or 64 bits (System V ABI, chapters 4 and 5)."""
    data = path.read_bytes()
    if data[:4] != b"\x7fELF" or data[5] != 1:
        raise ToolchainError(f"{path.name} is no little-endian ELF file")
    wide = data[4] == 2
    if wide:
        (table,) = struct.unpack_from("<Q", data, 0x28)
        entry_bytes, count, names_at = struct.unpack_from("<HHH", data, 0x3A)
        head = struct.Struct("<IIQQQQIIQQ")
    else:
        (table,) = struct.unpack_from("<I", data, 0x20)
        entry_bytes, count, names_at = struct.unpack_from("<HHH", data, 0x2E)
        head = struct.Struct("<10I")
    headers = [head.unpack_from(data, table + i * entry_bytes) for i in range(count)]
    names = headers[names_at][4]
    sections: list[Section] = []
    symbols: list[Symbol] = []
    for name, kind, flags, address, offset, size, link, *_ in headers:
        if flags & _SHF_ALLOC and size:
            text = _text(data, names + name)
            stored = kind != _SHT_NOBITS
            sections.append(Section(text, address, size, bool(flags & _SHF_WRITE), stored, offset))
        if kind == _SHT_SYMTAB:
            symbols += _symbols(data[offset : offset + size], data, headers[link][4], wide)
    return Elf(tuple(sections), tuple(sorted(symbols, key=lambda s: (s.address, s.name))))


def read_symbol(path: Path, name: str) -> bytes:
    """Return the stored bytes of object `name` in a linked ELF file; empty when it has none."""
    elf = read_elf(path)
    symbol = next((s for s in elf.symbols if s.name == name), None)
    for section in elf.sections:
        if symbol and section.stored:
            at = symbol.address - section.address
            if 0 <= at and at + symbol.nbytes <= section.nbytes:
                start = section.offset + at
                return path.read_bytes()[start : start + symbol.nbytes]
    return b""


def _symbols(table: bytes, data: bytes, names: int, wide: bool) -> list[Symbol]:
    symbols: list[Symbol] = []
    for fields in struct.iter_unpack("<IBBHQQ" if wide else "<IIIBBH", table):
        name, value, size, info = (
            (fields[0], fields[4], fields[5], fields[1]) if wide else fields[:4]
        )
        if size:
            is_function = info & 15 == _STT_FUNC
            address = value & ~1 if is_function and not wide else value
            symbols.append(Symbol(_text(data, names + name), address, size, is_function))
    return symbols


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class MapEntry:
    """An input section that the linker kept: where it went and which object brought it."""

    output: str
    section: str
    address: int
    nbytes: int
    object: str
    """Path of the object, or `archive(member)`; '*fill*' for what alignment added."""


_OUTPUT = re.compile(r"^(\S+)(?:\s+0x[0-9a-f]+\s+0x[0-9a-f]+.*)?$")
_INPUT = re.compile(r"^ (\S+)\s+0x([0-9a-f]+)\s+0x([0-9a-f]+) ?(.*)$")


def parse_map(text: str) -> tuple[MapEntry, ...]:
    """Read the memory map of a GNU ld map file; sections that were dropped are not in it."""
    _, _, body = text.partition("Linker script and memory map")
    body = re.sub(r"^( ?\S+)\n\s+(0x[0-9a-f]+\s+0x[0-9a-f]+)", r"\1 \2", body, flags=re.MULTILINE)
    entries: list[MapEntry] = []
    output = ""
    for line in body.splitlines():
        if entry := _INPUT.match(line):
            section, address, nbytes, source = entry.groups()
            if int(nbytes, 16):
                source = source.strip() if section != "*fill*" else "*fill*"
                entries.append(MapEntry(output, section, int(address, 16), int(nbytes, 16), source))
        elif top := _OUTPUT.match(line):
            output = top.group(1)
    return tuple(entries)


def stored_by_object(entries: tuple[MapEntry, ...], elf: Elf) -> dict[str, int]:
    """Return the bytes of flash by object, from a map and the ELF file it belongs to."""
    stored = {s.name for s in elf.sections if s.stored}
    sizes: dict[str, int] = {}
    for entry in entries:
        if entry.output in stored:
            sizes[entry.object] = sizes.get(entry.object, 0) + entry.nbytes
    return sizes
