"""Code for the RAM of a board, and the firmware that takes it.

`build_server` makes a firmware without a model, which is flashed once.  What `link_code` and
`link_model` make runs only at the address it is linked for, so the linker decides nothing on the
board.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import BoardError
from toolkit.paths import RUNTIME_C
from toolkit.targets.board import Board
from toolkit.toolchain.firmware import Build, FirmwareArtifact, NO_START
from toolkit.toolchain.sizes import read_elf

SERVER_DIGEST = 0
"""`nst_model.digest` of the firmware without a model."""


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """A program for an address: its bytes, and where in them its function (and model) begins.

    `entry` has bit 0 as the core wants it of addresses of code.
    """

    elf: Path
    code: bytes
    entry: int
    model: int | None = None


def build_server(board: Board, out_dir: Path) -> Path:
    """Build the firmware that takes code for `board`; return its ELF file.

    Raises ToolchainError (no compiler) and BoardError (it takes no firmware, or too much).
    """
    build = _build(board, out_dir)
    code, data = board.memory_for("code"), board.memory_for("data")
    assert code is not None
    assert data is not None
    others = [m for m in board.memories if "arena" in m.holds and m is not data]
    source = build.render(
        "server.c",
        unit=board.unit.upper(),
        buffer_bytes=board.buffer_bytes,
        end=data.origin + data.nbytes,
        others=[{"origin": m.origin, "bytes": m.nbytes} for m in others],
        region_count=len(others) + 1,
        digest=SERVER_DIGEST,
    )
    includes = [RUNTIME_C / "include", *board.include_dirs]
    runtime = [RUNTIME_C / "src" / name for name in ("nst_rpc.c", "nst.c")]
    objects = build.compile(
        [source, *runtime, *board.sources],
        "server",
        includes,
        ("-Os", *build.compiler.server_flags, "-DNST_RPC_LOAD=1"),
    )
    build.render(
        "memory.ld",
        memories=board.memories,
        code=code.name,
        data=data.name,
        weights=code.name,
        arena=data.name,
        stack_bytes=board.stack_bytes,
        handler_stack_bytes=board.handler_stack_bytes,
    )
    return build.link(
        "server", objects, (NO_START, "-T", str(board.linker_script), f"-L{build.folder}")
    )


def link_code(
    board: Board,
    sources: Sequence[Path],
    include_dirs: Sequence[Path],
    entry: str,
    base: int,
    out_dir: Path,
    cflags: Sequence[str] = (),
) -> LoadedCode:
    """Compile C files and link them to run at address `base`, with `entry` as their function."""
    build = _build(board, out_dir)
    includes = [*include_dirs, RUNTIME_C / "include", *board.include_dirs]
    return _link(build, build.compile(sources, "code", includes, ("-O2", *cflags)), entry, base)


def link_model(firmware: FirmwareArtifact, base: int, out_dir: Path) -> LoadedCode:
    """Link the model of a firmware, its weights and the runtime to run at address `base`."""
    name = firmware.model_name
    build = _build(firmware.board, out_dir)
    return _link(build, firmware.objects, f"{name}_run", base, f"{name}_model")


def _build(board: Board, folder: Path) -> Build:
    if board.compiler is None or board.linker_script is None:
        raise BoardError(
            f"board '{board.name}' takes no firmware: its board.toml has no [compiler]"
        )
    return Build(board, board.compiler, folder.resolve())


def _link(
    build: Build, objects: Sequence[Path], entry: str, base: int, model: str | None = None
) -> LoadedCode:
    script = build.render("loaded.ld", base=base, entry=entry)
    keep = (f"-Wl,-u,{model}",) if model else ()
    elf = build.link("loaded", objects, (NO_START, "-T", str(script), *keep))
    data, found = elf.read_bytes(), read_elf(elf)
    stored = [s for s in found.sections if s.stored]
    end = max(s.address + s.nbytes for s in stored)
    code = bytearray(end - base)
    for section in stored:
        at = section.address - base
        code[at : at + section.nbytes] = data[section.offset : section.offset + section.nbytes]
    (start,) = struct.unpack_from("<I", data, 24)  # e_entry
    place = next((s.address - base for s in found.symbols if s.name == model), None)
    return LoadedCode(elf, bytes(code), start - base, place)
