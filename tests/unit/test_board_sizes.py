"""ELF files and linker maps are read rightly: compared with what a compiler was asked to make."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.errors import ToolchainError
from toolkit.toolchain.sizes import parse_map, read_elf, read_symbol, stored_by_object

CODE = """
const char table[1000] = {1};
char data[300] = {2};
char zeroed[5000];
const volatile unsigned number = 0x12345678u;
static const char unused_and_long_enough_a_name_to_break_the_line_of_the_map[77] = {3};
extern const char *const used;
const char *const used = unused_and_long_enough_a_name_to_break_the_line_of_the_map;
int start(int i) { return table[i] + data[i] + zeroed[i] + (int)number + used[i]; }
int dropped(int i) { return i * 12345; }
"""


@pytest.fixture(scope="module", params=["arm-none-eabi-gcc", "gcc"])
def program(
    request: pytest.FixtureRequest,
    need_tool: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "a.c").write_text(CODE)
    flags = ["-O1", "-ffunction-sections", "-fdata-sections", "-fno-pic", "-no-pie", "-nostdlib"]
    if "arm" in request.param:
        flags = ["-mcpu=cortex-m4", "-mthumb", *flags[:-2], "-nostdlib"]
    compiler = need_tool(request.param)
    subprocess.run([compiler, *flags, "-c", "a.c", "-o", "a.o"], cwd=folder, check=True)
    subprocess.run(
        [compiler, *flags, "a.o", "-o", "a.elf", "-Wl,-e,start,--gc-sections,-Map,a.map"],
        cwd=folder,
        check=True,
    )
    return folder / "a.elf"


def test_symbols_have_addresses_sizes_and_bytes(program: Path) -> None:
    elf = read_elf(program)
    sizes = {s.name: s.nbytes for s in elf.symbols}
    assert (sizes["table"], sizes["data"], sizes["zeroed"]) == (1000, 300, 5000)
    assert "dropped" not in sizes
    start = next(s for s in elf.symbols if s.name == "start")
    assert start.is_function
    assert start.address % 2 == 0
    assert elf.function_at(start.address + 2) == start
    assert elf.function_at(start.address + start.nbytes) != start
    assert read_symbol(program, "number") == (0x12345678).to_bytes(4, "little")
    assert read_symbol(program, "nothing") == b""


def test_flash_and_ram_are_told_apart(program: Path) -> None:
    elf = read_elf(program)
    assert 5300 <= elf.ram_bytes < 5400
    assert 1000 + 300 + 77 < elf.flash_bytes < 1000 + 300 + 77 + 500


def test_the_map_accounts_for_the_objects_sections(program: Path) -> None:
    elf = read_elf(program)
    entries = parse_map(program.with_suffix(".map").read_text(encoding="utf-8"))
    by_section = {e.section: e.nbytes for e in entries}
    assert by_section[".rodata.table"] == 1000
    assert by_section[".rodata.unused_and_long_enough_a_name_to_break_the_line_of_the_map"] == 77
    assert ".text.dropped" not in by_section
    by_object = stored_by_object(entries, elf)
    assert 1377 < by_object["a.o"] < 1900
    assert "zeroed" not in by_object


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.elf"
    path.write_bytes(b"MZ" + bytes(100))
    with pytest.raises(ToolchainError, match=r"x\.elf is no little-endian ELF file"):
        read_elf(path)
