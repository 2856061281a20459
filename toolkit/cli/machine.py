"""`nestling doctor` and `nestling boards`: what there is to work with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from toolkit.cli.console import Console
from toolkit.cli.options import output_options

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
    """Build a small model for a board, run it there and compare its answer.

    \b
    Example:
      nestling boards check qemu_mps2_an386
    """
    import numpy as np

    from toolkit.api import compile as compile_expression
    from toolkit.cli.work import open_runner, place_of
    from toolkit.ir.compute import compute, placeholder

    x = placeholder((64,), "float32", "x")
    y = compute((64,), lambda i: x[i] * x[i] + 1.0, "y")
    options = place_of(board.partition("@")[0], None)
    compiled = compile_expression(y, options=options, name="board_check")
    data = np.linspace(-2, 2, 64, dtype=np.float32)
    with open_runner(compiled, board, console) as runner:
        outputs, cost = runner.measure({"x": data}, 1)
    right = np.allclose(outputs["y"], data * data + 1, rtol=1e-6)
    console.result(
        f"{board}: {'works' if right else 'answers wrongly'}: 64 multiplications and additions "
        f"took {cost.per_inference:g} {cost.unit}",
        good=bool(right),
    )
    console.json(json_path, {"ok": bool(right), "board": board, **cost.as_json()})
    return 0 if right else 1
