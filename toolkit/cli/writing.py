"""The work of `nestling compile`."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from toolkit.cli.console import Console
from toolkit.cli.options import ModelRequest
from toolkit.cli.work import import_works, place_of, say_floats, say_records
from toolkit.errors import NestlingError
from toolkit.ir.graph import Graph
from toolkit.ir.program import Call
from toolkit.packaging.write import write_folder
from toolkit.pipeline import compile_model, Compiled
from toolkit.runners import BoardModel, BuiltModel, open_board
from toolkit.toolchain.sizes import read_elf
from toolkit.verify import BYTES, parse_quantity


def write_bundle(
    request: ModelRequest,
    folder: Path,
    *,
    name: str | None,
    executor: str,
    weights: str,
    input_path: Path | None,
    board_name: str,
    target: str | None,
    exact: bool,
    math: str,
    integers: bool,
    threads: int,
    ram: str | None,
    flash: str | None,
    dump_folder: Path | None,
    console: Console,
    json_path: Path | None,
) -> int:
    """Compile, hold the result to the limits, write it, say what was made."""
    start = time.monotonic()
    ram_limit = None if ram is None else parse_quantity(ram, BYTES, "--ram")
    flash_limit = None if flash is None else parse_quantity(flash, BYTES, "--flash")
    options = place_of(
        board_name,
        target,
        executor=executor,
        weights=weights,
        exact=exact,
        math=math,
        integers=integers,
        threads=threads,
    )
    works = import_works(request, console, input_path=input_path, name=name)
    work = works[0]
    if len(works) > 1:
        varying = sorted(set(work.model.pins) - set(request.pins))
        raise NestlingError(
            f"{input_path}: input {', '.join(map(repr, varying))} must be pinned, and its value "
            "varies from sample to sample.",
            hint=f"choose one: --set {varying[0]}=VALUE",
        )
    dumps: dict[str, bytes] = {}
    lines: list[str] = []

    def dump(step: str, before: Graph, after: Graph) -> None:
        name = f"{len(lines):02}_{step}"
        dumps[f"{name}.before.txt"] = f"{before}\n".encode()
        dumps[f"{name}.after.txt"] = f"{after}\n".encode()
        change = f"{len(before.nodes)} -> {len(after.nodes)} nodes"
        lines.append(f"{name}: {'nothing to do' if after is before else change}")
        dumps["passes.txt"] = ("\n".join(lines) + "\n").encode()

    try:
        with console.working(f"compiling {request.path.name}"):
            compiled = compile_model(work.model, options, dump=dump if dump_folder else None)
    finally:
        if dump_folder is not None and dumps:
            write_folder(dump_folder, dumps, hint="choose another folder")
    say_records(compiled, console)
    say_floats(compiled, console)
    _hold_to_limits(compiled, board_name, ram_limit, flash_limit, console)
    example: dict[str, dict[str, np.ndarray]] = {}
    if input_path is not None:
        wanted = {n: a for n, a in work.samples.input(0).items() if n in compiled.inputs}
        known = {n: a[0] for n, a in work.samples.expected.items() if n in compiled.outputs}
        example = {"inputs": wanted, "outputs": known}
    files = compiled.write(folder, **example)
    _summary(compiled, folder, files, console)
    if dump_folder is not None:
        console.fact("passes", f"{len(lines)}, before and after in {dump_folder}")
    program = compiled.program
    console.json(
        json_path,
        {
            "name": compiled.name,
            "folder": str(folder),
            "files": {n: len(c) for n, c in files.items()},
            "arena_bytes": compiled.arena_bytes,
            "arena_lower_bound_bytes": program.lower_bound_bytes,
            "weights_bytes": compiled.weights_bytes,
            "records": compiled.recorded.digest,
            "recorded_kernels": dict(compiled.recorded.counts),
            "kernels": len(program.kernels),
            "steps": len(program.steps),
            "inputs": {n: str(t) for n, t in compiled.inputs.items()},
            "outputs": {n: str(t) for n, t in compiled.outputs.items()},
            "notes": list(compiled.notes),
            "seconds": round(time.monotonic() - start, 3),
        },
    )
    return 0


def _summary(compiled: Compiled, folder: Path, files: dict[str, bytes], console: Console) -> None:
    program = compiled.program
    kernels = len(program.kernels)
    console.fact("library", f"{compiled.name}, for target {compiled.target.name}")
    for kind, tensors in (("input", compiled.inputs), ("output", compiled.outputs)):
        for n, t in tensors.items():
            console.fact(kind, f"{n}: {t}")
    calls = [s for s in program.steps if isinstance(s, Call)]
    nodes = len({n for c in calls for n in c.nodes})
    console.fact("kernels", f"{kernels}, in {len(calls)} calls, for {nodes} nodes")
    bound = program.lower_bound_bytes
    console.fact("arena", f"{compiled.arena_bytes:,} bytes (no plan can go below {bound:,})")
    console.fact("weights", f"{compiled.weights_bytes:,} bytes")
    total = sum(len(c) for c in files.values())
    console.fact("written", f"{folder}: {len(files)} files, {total:,} bytes")
    for name, content in files.items():
        console.detail(f"{len(content):>12,}  {name}")


def _hold_to_limits(
    compiled: Compiled, board_name: str, ram: float | None, flash: float | None, console: Console
) -> None:
    """Refuse a bundle that is over a limit; flash needs a build, which is made for that."""
    problems = []
    if ram is not None and compiled.arena_bytes > ram:
        over = compiled.arena_bytes - ram
        problems.append(
            f"RAM: the arena of {compiled.arena_bytes:,} bytes is {over:,.0f} over "
            f"the {ram:,.0f} of --ram (no plan can go below "
            f"{compiled.program.lower_bound_bytes:,})"
        )
    if flash is not None:
        with console.working(f"building {compiled.name} for its size"):
            found, what = _flash_bytes(compiled, board_name)
        if found > flash:
            problems.append(
                f"flash: {what} of {found:,} bytes is {found - flash:,.0f} over the "
                f"{flash:,.0f} of --flash ({compiled.weights_bytes:,} are weights)"
            )
    if problems:
        raise NestlingError(
            f"{compiled.name} does not fit, and nothing was written.", state=problems
        )


def _flash_bytes(compiled: Compiled, board_name: str) -> tuple[int, str]:
    board, port = open_board(board_name)
    if board is None:
        with BuiltModel(compiled) as built:
            return read_elf(built.library).flash_bytes, "this machine's build"
    with BoardModel(compiled, board, port) as built_board:
        return built_board.firmware.flash_bytes, f"the build for {board_name}"
