"""python -m benchmarks.mcu: exact instructions, flash and RAM of float models, in QEMU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.host import relative_error
from benchmarks.tables import number, table, write_json
from toolkit.errors import NestlingError
from toolkit.oracle import answers
from toolkit.pipeline import compile_model, load, Options
from toolkit.runners import board_target, BoardModel, open_board
from toolkit.search.packs import open_source, TraceSource

ROWS = ("ds_cnn", "mobilenet_v1", "resnet8", "autoencoder")
ONNX2C = {
    "ds_cnn": (23.8e6, 40_176, 66_016),
    "mobilenet_v1": (54.8e6, 858_248, 405_520),
    "resnet8": (120.3e6, 320_928, 208_944),
    "autoencoder": (1.61e6, 1_065_928, 8_200),
}
"""onnx2c, float32, Cortex-M4F, gcc -O2: instructions, flash, RAM.  Its DS-CNN has int8 weights."""
NOTHING = (None, None, None)
BARS = {"ds_cnn": 7e6, "mobilenet_v1": 16e6, "resnet8": 30e6}
"""What we promise on Cortex-M4F, in instructions."""


@dataclass(slots=True)
class Result:
    """A row of the table; `cost` is in the board's unit."""

    name: str
    title: str
    macs: int
    cost: float
    cost_per_mac: float
    unit: str
    flash_bytes: int
    code_bytes: int
    weights_bytes: int
    arena_bytes: int
    stack_bytes: int
    ram_bytes: int
    error: float
    onnx2c_instructions: float | None
    onnx2c_flash: int | None
    onnx2c_ram: int | None
    bar: float | None
    profile: list[dict[str, Any]] = field(default_factory=list)


def measure_row(
    row: models.Row,
    board_name: str,
    executor: str,
    *,
    profile: bool,
    records: Sequence[TraceSource] = (),
) -> Result:
    """Compile a row for a board, run it there, and check what it answers."""
    board, port = open_board(board_name)
    if board is None:
        raise SystemExit("the host is no board; see python -m benchmarks.host")
    model = models.build(row.name)
    inputs = models.make_inputs(model)
    options = Options(executor=executor, weights="incbin", target=board_target(board))
    compiled = compile_model(load(model, name=row.name, records=records), options)
    with BoardModel(compiled, board, port) as built:
        found, cost = built.measure(inputs)
        steps = sorted(built.profile(inputs), key=lambda s: -s.cost) if profile else []
    _, (wanted,) = answers(model, None, [inputs])
    flash, ram, stack = cost.flash_bytes or 0, cost.ram_bytes or 0, cost.stack_bytes or 0
    theirs, their_flash, their_ram = (
        ONNX2C.get(row.name, NOTHING) if board.target == "cortex-m4" else NOTHING
    )
    return Result(
        row.name, row.title, row.macs, cost.per_inference, cost.per_inference / row.macs, cost.unit,
        flash, flash - cost.weights_bytes, cost.weights_bytes, cost.arena_bytes, stack, ram,
        relative_error([found[n] for n in wanted], list(wanted.values())),
        theirs, their_flash, their_ram,
        BARS.get(row.name) if board.target == "cortex-m4" else None,
        [{"kernel": s.kernel, "cost": s.cost, "nodes": list(s.nodes)} for s in steps[:8]],
    )  # fmt: skip


def show(results: Sequence[Result]) -> str:
    """Return the table."""

    def against(r: Result) -> str:
        if r.bar is None:
            return "-"
        return f"{r.bar / 1e6:.0f}M {'met' if r.cost <= r.bar else 'MISSED'}"

    unit = results[0].unit if results else "instructions"
    head = ["row", "MMAC", f"M {unit}", "per MAC", "onnx2c M", "ratio", "bar", "error",
            "flash", "code", "onnx2c", "RAM", "arena", "stack", "onnx2c"]  # fmt: skip
    lines = []
    for r in results:
        theirs = r.onnx2c_instructions
        lines.append([
            r.title, number(r.macs / 1e6), f"{r.cost / 1e6:.3f}", f"{r.cost_per_mac:.2f}",
            number(None if theirs is None else theirs / 1e6),
            number(None if theirs is None else r.cost / theirs, 2), against(r), f"{r.error:.0e}",
            f"{r.flash_bytes:,}", f"{r.code_bytes:,}",
            "n/a" if r.onnx2c_flash is None else f"{r.onnx2c_flash:,}",
            f"{r.ram_bytes:,}", f"{r.arena_bytes:,}", f"{r.stack_bytes:,}",
            "n/a" if r.onnx2c_ram is None else f"{r.onnx2c_ram:,}",
        ])  # fmt: skip
    return table(head, lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a result is wrong or a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mcu", description=__doc__)
    parser.add_argument("--board", default="qemu_mps2_an386", metavar="NAME[@PORT]")
    parser.add_argument("--rows", help=f"names with commas [{','.join(ROWS)}]")
    parser.add_argument(
        "--records", type=Path, metavar="DB", help="tuned schedules [none: the default ones]"
    )
    parser.add_argument("--executor", default="graph", choices=("graph", "aot"))
    parser.add_argument("--profile", action="store_true", help="also the costliest kernels")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    results, failed = [], False
    for row in models.pick(args.rows, ROWS):
        try:
            results.append(
                measure_row(
                    row, args.board, args.executor, profile=args.profile,
                    records=(open_source(args.records),) if args.records else (),
                )
            )  # fmt: skip
        except NestlingError as error:
            print(f"{row.name}: {error}")
            failed = True
    print(
        f"board {args.board}, executor {args.executor}; onnx2c's figures: Cortex-M4F, gcc -O2, "
        "on the corpus's models (DS-CNN: with int8 weights)"
    )
    print(show(results))
    for r in results:
        if r.profile:
            print(f"\n{r.name}, costliest kernels:")
            print(table(["kernel", f"M {r.unit}", "nodes"], [
                [c["kernel"], f"{c['cost'] / 1e6:.3f}", ", ".join(c["nodes"])[:60]]
                for c in r.profile]))  # fmt: skip
    write_json(args.json, {"board": args.board, "rows": [asdict(r) for r in results]})
    wrong = [r.name for r in results if not r.error <= 1e-4]
    missed = [r.name for r in results if r.bar is not None and r.cost > r.bar]
    if wrong:
        print(f"WRONG beyond 1e-4: {', '.join(wrong)}")
    return 1 if wrong or missed or failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
