"""Firmware: a generated model, the runtime, the serial server and a board's port, linked to an ELF.

Sizes are those of the model alone: the model's objects and the runtime are linked once more
without server and start-up code, so what is counted is what a product would carry, with the
members of libm, libgcc and libc that the model itself pulls in.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from toolkit.errors import BoardError, ToolchainError
from toolkit.paths import RUNTIME_C, TEMPLATES
from toolkit.targets.board import Board, Compiler, Memory
from toolkit.toolchain.sizes import parse_map, read_elf, read_symbol, stored_by_object

_SERVER_SOURCES = ("nst_rpc.c",)
_COMPILE_TIMEOUT_S = 600.0
NO_START = "-nostartfiles"
"""The start-up code is a board's own, or there is none."""
_CODE_RESERVE_BYTES = 64 * 1024
"""Room beside weights that the choice of their memory leaves for libraries; a 16th where less."""


@dataclass(frozen=True, slots=True)
class FirmwareArtifact:
    """A linked firmware and what the model in it weighs, in bytes.

    Everything but `elf` and `image_bytes` leaves the serial server and start-up code out.
    """

    board: Board
    model_name: str
    elf: Path
    map: Path
    flash_bytes: int
    """Code, constants and weights of model and runtime, and the library code they need."""
    weights_bytes: int
    static_ram_bytes: int
    """Data and zeroed data of model and runtime, without the arena."""
    arena_bytes: int
    arena_memory: str
    weights_memory: str
    flash_by_object: tuple[tuple[str, int], ...]
    """Largest first; '*fill*' is what alignment added."""
    image_bytes: int
    """Flash of the whole firmware, with server and start-up code."""
    model_digest: int
    """`nst_model.digest`: tells whether a board runs this model."""
    messages: str
    """What compiler and linker said; empty when there was no warning."""
    objects: tuple[Path, ...] = ()
    """The model's and the runtime's, with the weights': what `loaded.link_model` links again."""


def build_firmware(
    board: Board,
    sources: Sequence[Path],
    include_dirs: Sequence[Path],
    model_name: str,
    model_header: str,
    out_dir: Path,
    cflags: Sequence[str] = (),
    shared: Path | None = None,
) -> FirmwareArtifact:
    """Compile a generated model and link it with the serial server for `board`.

    `sources` are the model's; those named `*_weights.c` hold weights, which go to another memory
    when flash is too small.  `cflags` follow the board's flags for the model and the runtime.
    `shared`: a folder in which builds with equal board and flags share the objects of what is not
    the model; None builds them anew.
    Raises ToolchainError (no compiler, code refused) and BoardError (does not fit the board).
    """
    if board.compiler is None:
        raise BoardError(
            f"board '{board.name}' takes no firmware: its board.toml has no [compiler]"
        )
    build = Build(board, board.compiler, out_dir.resolve())
    known = shared.resolve() if shared is not None else build.folder
    includes = [*include_dirs, RUNTIME_C / "include", *board.include_dirs]
    cflags = ("-O2", *cflags)
    small = ("-Os", *board.compiler.server_flags)

    # The main file first: it is small, and a wrong header shows at once.
    main_c = build.render(
        "main.c",
        model=model_name,
        prefix=model_name.upper(),
        header=model_header,
        unit=board.unit.upper(),
        buffer_bytes=board.buffer_bytes,
    )
    runtime = sorted((RUNTIME_C / "src").glob("*.c"))
    server = [p for p in runtime if p.name in _SERVER_SOURCES]
    main = build.compile([main_c], "server", includes, small)
    server_objects = main + build.compile(
        [*server, *board.sources], "server", includes, small, known
    )
    weights = build.compile(
        [p for p in sources if p.stem.endswith("_weights")], "nst_weights", includes, cflags
    )
    model = build.compile(
        [p for p in sources if not p.stem.endswith("_weights")], "model", includes, cflags
    )
    model += build.compile(
        [p for p in runtime if p not in server], "runtime", includes, cflags, known
    )

    arena_bytes = _arena_bytes(main[0])
    weights_memory, arena_memory = _place(
        board, model_name, model + server_objects, weights, arena_bytes
    )
    build.render(
        "memory.ld",
        memories=board.memories,
        code=_memory(board, "code").name,
        data=_memory(board, "data").name,
        weights=weights_memory.name,
        arena=arena_memory.name,
        stack_bytes=board.stack_bytes,
        handler_stack_bytes=board.handler_stack_bytes,
    )
    placing: tuple[str, ...] = ()
    if board.linker_script is not None:
        placing = (NO_START, "-T", str(board.linker_script), f"-L{build.folder}")
    elf = build.link("firmware", server_objects + model + weights, placing)
    alone = build.link(
        "model",
        model + weights,
        (NO_START, "-Wl,-e," + f"{model_name}_run", f"-Wl,-u,{model_name}_model"),
    )

    sizes = read_elf(alone)
    entries = parse_map(alone.with_suffix(".map").read_text(encoding="utf-8", errors="replace"))
    by_object = stored_by_object(entries, sizes)
    weight_names = {str(p) for p in weights}
    return FirmwareArtifact(
        board=board,
        model_name=model_name,
        elf=elf,
        map=alone.with_suffix(".map"),
        flash_bytes=sizes.flash_bytes,
        weights_bytes=sum(n for name, n in by_object.items() if name in weight_names),
        # Less what the C library's own linker script keeps for a stack.
        static_ram_bytes=sizes.ram_bytes - sizes.section_bytes(".stack"),
        arena_bytes=arena_bytes,
        arena_memory=arena_memory.name,
        weights_memory=weights_memory.name,
        flash_by_object=tuple(sorted(by_object.items(), key=lambda item: (-item[1], item[0]))),
        image_bytes=read_elf(elf).flash_bytes,
        model_digest=int.from_bytes(read_symbol(elf, f"{model_name}_model")[-4:], "little"),
        messages="".join(build.messages),
        objects=tuple(model + weights),
    )


class Build:
    """One firmware's folder of objects, and what the tools said while filling it."""

    def __init__(self, board: Board, compiler: Compiler, folder: Path) -> None:
        path = shutil.which(compiler.name)
        if path is None:
            raise ToolchainError(
                f"{compiler.name}, which builds firmware for board '{board.name}', is not on PATH",
                hint=f"apt-get install {compiler.package}",
            )
        self.board, self.compiler, self.program, self.folder = board, compiler, path, folder
        self.messages: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES / "firmware"),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )

    def render(self, name: str, **values: object) -> Path:
        """Write file `name` from its template."""
        path = self.folder / name
        path.write_text(self.templates.get_template(f"{name}.j2").render(values), encoding="utf-8")
        return path

    def compile(
        self,
        sources: Sequence[Path],
        group: str,
        includes: Sequence[Path],
        flags: Sequence[str],
        root: Path | None = None,
    ) -> list[Path]:
        """Compile `sources` to objects in the folder of `group`; return the objects.

        Those that stand in another `root` already are taken from there.
        """
        folder = (root or self.folder) / group
        folder.mkdir(parents=True, exist_ok=True)
        objects: list[Path] = []
        for source in sources:
            objects.append(folder / f"{source.stem}.o")
            if root not in (None, self.folder) and objects[-1].exists():
                continue
            self._run(
                [
                    *self.compiler.flags,
                    "-std=c99",
                    "-Wall",
                    "-Wextra",
                    "-ffunction-sections",
                    "-fdata-sections",
                    *flags,
                    *self._defines(),
                    *(f"-I{p}" for p in includes),
                    "-c",
                    str(source.resolve()),
                    "-o",
                    str(objects[-1]),
                ],
                f"compiling {source.name}",
            )
        return objects

    def link(self, name: str, objects: Sequence[Path], flags: Sequence[str]) -> Path:
        """Link `objects` to NAME.elf, with NAME.map beside it."""
        elf = self.folder / f"{name}.elf"
        self._run(
            [
                *self.compiler.flags,
                *self.compiler.link_flags,
                "-Wl,--gc-sections",
                f"-Wl,-Map,{elf.with_suffix('.map')}",
                "-Wl,--no-warn-rwx-segments",
                *flags,
                *map(str, objects),
                "-lm",
                "-o",
                str(elf),
            ],
            f"linking {elf.name}",
        )
        return elf

    def _defines(self) -> list[str]:
        values = (
            ("NST_CLOCK_HZ", self.board.clock_hz),
            ("NST_UART_BAUD", self.board.serial_baud),
            *self.board.defines,
        )
        return [f"-D{name}={value}u" for name, value in values]

    def _run(self, arguments: Sequence[str], doing: str) -> None:
        try:
            done = subprocess.run(
                [self.program, *arguments],
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=_COMPILE_TIMEOUT_S,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise ToolchainError(
                f"{self.compiler.name} took over {_COMPILE_TIMEOUT_S:.0f} s {doing}"
            ) from None
        if done.returncode:
            _refuse_overflow(self.board, done.stderr)
            lines = [
                line for line in done.stderr.splitlines() if "error" in line or "undef" in line
            ]
            raise ToolchainError(
                f"{self.compiler.name} failed {doing} for board '{self.board.name}'",
                state=(lines or done.stderr.splitlines())[:8],
            )
        self.messages.append(done.stderr)


def _refuse_overflow(board: Board, stderr: str) -> None:
    """Raise BoardError when the linker says that a memory is too small."""
    found = re.search(r"region `(\w+)' overflowed by (\d+) bytes", stderr)
    if found:
        raise BoardError(
            f"the firmware is {found[2]} bytes too large for memory {found[1]} "
            f"of board '{board.name}'",
            state=[
                f"{m.name}: {m.nbytes} bytes, holds {', '.join(m.holds)}" for m in board.memories
            ],
        )


def _memory(board: Board, purpose: str) -> Memory:
    memory = board.memory_for(purpose)
    assert memory is not None, "load_board checks that every purpose has a memory"
    return memory


def _arena_bytes(main_object: Path) -> int:
    """Return NAME_ARENA_BYTES as the compiler saw it: a symbol of the main object is that large."""
    sizes = {s.name: s.nbytes for s in read_elf(main_object).symbols}
    return sizes["arena"]


def _place(
    board: Board,
    model_name: str,
    objects: Sequence[Path],
    weights: Sequence[Path],
    arena_bytes: int,
) -> tuple[Memory, Memory]:
    """Choose the memories of weights and arena: the first in the board's order with enough room."""
    others = [read_elf(p) for p in objects]
    code_memory = _memory(board, "code")
    code_bytes = sum(s.nbytes for e in others for s in e.sections if s.stored)
    code_bytes += min(_CODE_RESERVE_BYTES, code_memory.nbytes // 16)
    weight_bytes = sum(read_elf(p).section_bytes(".rodata") for p in weights)
    data_bytes = sum(
        s.nbytes for e in others for s in e.sections if s.writable and s.name != ".bss.nst_arena"
    )
    used = {m.name: 0 for m in board.memories}
    used[code_memory.name] += code_bytes
    used[_memory(board, "data").name] += data_bytes + board.stack_bytes + board.handler_stack_bytes

    def choose(purpose: str, nbytes: int, what: str) -> Memory:
        memories = [m for m in board.memories if purpose in m.holds]
        for memory in memories:
            if nbytes <= memory.nbytes - used[memory.name]:
                used[memory.name] += nbytes
                return memory
        room = max(m.nbytes - used[m.name] for m in memories)
        kind = "RAM" if purpose == "arena" else "flash"
        raise BoardError(
            f"{what} of {nbytes} bytes does not fit the {max(m.nbytes for m in memories)} bytes "
            f"{kind} of board '{board.name}' ({max(room, 0)} bytes are free)",
            state=[f"{m.name}: {m.nbytes} bytes, {used[m.name]} in use" for m in memories],
            hint=f"model {model_name}: {weight_bytes} bytes of weights, {arena_bytes} of arena",
        )

    # The smallest code that can be is unknown before linking: without weights, let the linker say.
    weights_memory = (
        choose("weights", weight_bytes, "the block of weights")
        if weight_bytes
        else (_memory(board, "weights"))
    )
    return weights_memory, choose("arena", arena_bytes, "the arena")
