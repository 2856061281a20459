"""`nestling doctor` and `nestling boards`: what there is to work with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TYPE_CHECKING

import click
from rich.text import Text

from toolkit.cli.console import Console
from toolkit.cli.options import output_options

if TYPE_CHECKING:
    from toolkit.runners import BoardModel, Cost, Runner

_STYLE = {"ok": "green", "missing": "bold red", "optional": "yellow"}


@click.command("doctor", short_help="What this machine has, what is missing.")
@output_options
def doctor_command(*, console: Console, json_path: Path | None) -> int:
    """Look for compilers, emulators, Python packages, processor features and serial rights.

    Exit code 1 when something is missing without which no model can be compiled and run here.

    \b
    Example:
      nestling doctor
    """
    from toolkit.doctor import check, Status

    findings = check()
    console.table(
        ["", "what", "version", "for", "to install"],
        [
            (Text(str(f.status), style=_STYLE[f.status]), f.name, f.version, f.purpose, f.install)
            for f in findings
        ],
    )
    missing = [f for f in findings if f.status is Status.MISSING]
    for f in missing:
        console.result(f"missing: {f.name}, which {f.purpose}: {f.install}", good=False)
    if not missing:
        console.result("all that the main job needs is here", good=True)
    console.json(
        json_path,
        {
            "ok": not missing,
            "findings": [
                {
                    "group": f.group, "name": f.name, "status": str(f.status),
                    "version": f.version, "purpose": f.purpose, "install": f.install,
                }
                for f in findings
            ],
        },
    )  # fmt: skip
    return 1 if missing else 0


@click.group("boards", short_help="Boards that models can run on.")
def boards_command() -> None:
    """Boards that models can run on: folders of data, under boards/.

    \b
    Examples:
      nestling boards list
      nestling boards check qemu_mps2_an386
      nestling boards serve qemu_mps2_an386
    """


@boards_command.command("list", short_help="Print all boards.")
@output_options
def boards_list(*, console: Console, json_path: Path | None) -> int:
    """Print all boards, what they count, and what a model may use of their memory.

    \b
    Example:
      nestling boards list
    """
    from toolkit.runners import board_target
    from toolkit.targets.board import list_boards, load_board

    boards = [load_board(name) for name in list_boards()]
    rows: list[tuple[Any, ...]] = []
    for b in boards:
        target = "host" if b.compiler is None else board_target(b)
        sizes = [
            _kib(sum(m.nbytes for m in b.memories if purpose in m.holds))
            for purpose in ("weights", "arena")
        ]
        rows.append((b.name, target, b.unit, *sizes, b.description))
    console.table(
        ["board", "target", "counts", "flash", "RAM", "what it is"], rows, right=["flash", "RAM"]
    )
    console.json(
        json_path,
        {
            "boards": [
                {"name": b.name, "target": row[1], "unit": b.unit, "description": b.description}
                for b, row in zip(boards, rows, strict=True)
            ]
        },
    )
    return 0


def _kib(nbytes: int) -> str:
    return f"{nbytes // 1024:,} kB" if nbytes else ""


@boards_command.command("check", short_help="Try whether a board can be used here.")
@click.argument("board", metavar="NAME[@PORT]")
@output_options
def boards_check(*, board: str, console: Console, json_path: Path | None) -> int:
    """Build a small model for a board, start it there, and test console, clock and answers.

    Exit code 1 when a test fails.

    \b
    Example:
      nestling boards check qemu_mps2_an386
    """
    from toolkit.api import compile as compile_expression
    from toolkit.cli.work import open_runner, place_of
    from toolkit.ir.compute import compute, placeholder

    x = placeholder((64,), "float32", "x")
    y = compute((64,), lambda i: x[i] * x[i] + 1.0, "y")
    options = place_of(board.partition("@")[0], None)
    compiled = compile_expression(y, options=options, name="board_check")
    with open_runner(compiled, board, console) as runner:
        findings, cost = _self_test(runner)
    console.table(
        ["", "test", "found"],
        [(Text("ok" if f.ok else "wrong", style=_STYLE["ok" if f.ok else "missing"]),
          f.name, f.found) for f in findings],
    )  # fmt: skip
    right = all(f.ok for f in findings)
    failed = ", ".join(f.name for f in findings if not f.ok)
    console.result(
        f"{board}: {'works' if right else f'fails: {failed}'}: 64 multiplications and additions "
        f"took {cost.per_inference:g} {cost.unit}",
        good=right,
    )
    console.json(
        json_path,
        {
            "ok": right,
            "board": board,
            "tests": [{"name": f.name, "ok": f.ok, "found": f.found} for f in findings],
            **cost.as_json(),
        },
    )
    return 0 if right else 1


@boards_command.command("image", short_help="Build the firmware that takes code into RAM.")
@click.argument("board", metavar="NAME")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: NAME.elf here.")
@output_options
def boards_image(
    *, board: str, output: Path | None, console: Console, json_path: Path | None
) -> int:
    """Build a firmware without a model, which is flashed once and takes code into RAM.

    `tune`, `run` and `verify` then work on the board's port without flashing it again.

    \b
    Example:
      nestling boards image qemu_mps2_an386 -o server.elf
      qemu-system-arm -M mps2-an386 -icount shift=6 -display none -serial pty -kernel server.elf
      nestling tune model.onnx --board qemu_mps2_an386@/dev/pts/7 --trials 64
    """
    import shlex
    import shutil
    import tempfile

    from toolkit.measure.board import qemu_arguments
    from toolkit.targets.board import load_board
    from toolkit.toolchain.loaded import build_server
    from toolkit.toolchain.sizes import read_elf

    it = load_board(board)
    path = output or Path(f"{it.name}.elf")
    with tempfile.TemporaryDirectory(prefix="nestling-") as folder:
        shutil.copyfile(build_server(it, Path(folder)), path)
    nbytes = read_elf(path).flash_bytes
    console.result(f"{path}: {nbytes:,} bytes of flash, takes code into RAM", good=True)
    if it.qemu is not None:
        console.fact("start it with", shlex.join(qemu_arguments(it, path)))
    console.json(json_path, {"board": it.name, "elf": str(path), "flash_bytes": nbytes})
    return 0


@boards_command.command("serve", short_help="Start a board in QEMU, behind a port.")
@click.argument("board", metavar="NAME")
@click.option(
    "--tcp",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="A TCP port of this computer in place of a pseudo terminal.",
)
@output_options
def boards_serve(*, board: str, tcp: int | None, console: Console, json_path: Path | None) -> int:
    """Start a board in QEMU with the firmware of `boards image`, until Ctrl-C.

    Its serial port is printed first; other commands use it as they use a board's on USB.

    \b
    Example:
      nestling boards serve qemu_mps2_an386 --tcp 4444
      nestling tune model.onnx --board qemu_mps2_an386@socket://127.0.0.1:4444 --trials 64
    """
    import tempfile
    import time

    from toolkit.errors import MeasureError
    from toolkit.measure.board import Qemu
    from toolkit.targets.board import load_board
    from toolkit.toolchain.loaded import build_server

    it = load_board(board)
    with tempfile.TemporaryDirectory(prefix="nestling-") as folder:
        qemu = Qemu(it, build_server(it, Path(folder)), tcp)
        try:
            console.result(f"{it.name}@{qemu.port}", good=True)
            console.json(json_path, {"board": it.name, "port": qemu.port})
            while qemu.alive():
                time.sleep(0.2)
            raise MeasureError(qemu.epitaph() or f"QEMU of board {it.name!r} ended")
        except KeyboardInterrupt:
            return 0
        finally:
            qemu.close()


@boards_command.command("wear", short_help="How often flash was written.")
@output_options
def boards_wear(*, console: Console, json_path: Path | None) -> int:
    """Print how often each board's flash was written from this account.

    \b
    Example:
      nestling boards wear
    """
    from toolkit.measure.ledger import flash_cycles, LEDGER

    cycles = sorted(flash_cycles(LEDGER).items())
    console.table(
        ["board", "serial number", "flash cycles"],
        [(board, serial, str(count)) for (board, serial), count in cycles],
        right=["flash cycles"],
    )
    found = [{"board": b, "serial": s, "flash_cycles": n} for (b, s), n in cycles]
    console.json(json_path, {"ledger": str(LEDGER), "boards": found})
    return 0


@dataclass(frozen=True, slots=True)
class _Test:
    """One part of a board's self-test, and what it found."""

    name: str
    ok: bool
    found: str


def _self_test(runner: Runner) -> tuple[list[_Test], Cost]:
    """Run the model y = x * x + 1 of 64 floats; return what was tested, and the cost of a run."""
    import numpy as np

    from toolkit.runners import BoardModel

    tests: list[_Test] = []
    if isinstance(runner, BoardModel):
        said = runner.firmware.messages.strip()
        size = f"{runner.firmware.image_bytes:,} bytes of flash"
        tests.append(_Test("firmware builds without a warning", not said, said or size))
        tests.append(_console_test(runner))
    data = np.linspace(-2, 2, 64, dtype=np.float32)
    outputs, cost = runner.measure({"x": data}, 1)
    error = float(np.abs(outputs["y"] / (data * data + 1) - 1).max())
    tests.append(_Test("the answer is right", error <= 1e-6, f"relative error {error:.1g}"))
    again = [runner.measure({"x": data}, 1)[1].per_inference for _ in range(3)]
    runner.close()  # and once more after a new start
    costs = [cost.per_inference, *again, runner.measure({"x": data}, 1)[1].per_inference]
    spread = f"{min(costs):g} to {max(costs):g} {cost.unit} in {len(costs)} runs"
    tests.append(_Test("the clock moves", min(costs) > 0, spread))
    if cost.unit == "instructions":
        tests.append(_Test("counts repeat", len(set(costs)) == 1, spread))
    return tests, cost


def _console_test(runner: BoardModel) -> _Test:
    """Send every byte there is through the input, back, and through the board's own checksum."""
    session = runner.session()
    data = bytes(range(256))[: session.inputs[0].nbytes]
    offset = session.inputs[0].offset
    session.client.write(data, offset, buffer_bytes=session.info.buffer_bytes)
    same = session.client.read(len(data), offset) == data and session.client.check(data, offset)
    stats = session.client.stats()
    lost = f"{stats.bad_frames} bad frames, {stats.lost_bytes} bytes lost"
    clean = (stats.bad_frames, stats.lost_bytes) == (0, 0)
    return _Test("the console carries all bytes", same and clean, lost)
