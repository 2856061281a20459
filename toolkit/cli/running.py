"""`nestling run`: a model as C, here or on a board."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from toolkit.cli.console import Console
from toolkit.cli.options import (
    executor_option,
    integers_option,
    math_option,
    model_options,
    ModelRequest,
    output_options,
    place_options,
    threads_option,
    timeout_option,
)


@click.command("run", short_help="Run a model as C, here or on a board.")
@model_options
@click.option(
    "--input", "input_path", type=click.Path(path_type=Path), metavar="X.npz",
    help="Arrays in__NAME, axis 0 counting samples [default: random inputs].",
)  # fmt: skip
@click.option(
    "--output", "output_path", type=click.Path(path_type=Path), metavar="Y.npz",
    help="Write inputs and outputs in the form that --input reads.",
)  # fmt: skip
@click.option(
    "--runs", type=click.IntRange(1), metavar="N", help="Runs to time [default: 100; board: 1]."
)
@click.option("--profile", is_flag=True, help="Print what each step of the model costs.")
@click.option(
    "--cycles", is_flag=True,
    help="Estimate cycles from the instructions a board in QEMU carried out (needs llvm-mca).",
)  # fmt: skip
@place_options
@executor_option
@math_option
@integers_option
@threads_option
@timeout_option
@output_options
def run_command(
    *,
    request: ModelRequest,
    input_path: Path | None,
    output_path: Path | None,
    runs: int | None,
    profile: bool,
    cycles: bool,
    board: str,
    target: str | None,
    executor: str,
    math: str,
    integers: bool,
    threads: int,
    timeout_s: float | None,
    console: Console,
    json_path: Path | None,
) -> int:
    """Compile MODEL, build it and run it, on this machine or on a board; print what it costs.

    MODEL is an .onnx or .tflite file, or FILE.py:NAME, a compute expression in a Python file.

    The model runs in a child process: a crash or a hang is reported, not suffered.

    \b
    Examples:
      nestling run digits.onnx --input digits.npz --output answers.npz
      nestling run digits.onnx --profile --runs 1000
      nestling run digits.onnx --board qemu_mps2_an386 --input digits.npz
      nestling run digits.onnx --board qemu_mps2_an386 --cycles
    """
    from toolkit.cli.work import (
        carried,
        compile_work,
        import_works,
        open_runner,
        place_of,
        stack_outputs,
    )
    from toolkit.measure.estimate import require_estimate
    from toolkit.runners import BoardModel, open_board
    from toolkit.samples import write_samples

    if cycles:
        require_estimate(*open_board(board))
    works = import_works(request, console, input_path=input_path)
    times = runs or (100 if board == "host" else 1)
    result: dict[str, Any] = {}
    inputs: list[dict[str, np.ndarray]] = []
    outputs: list[dict[str, np.ndarray]] = []
    for work in works:
        options = place_of(
            board, target, executor=executor, math=math, integers=integers, threads=threads
        )
        compiled = compile_work(work, options, console)
        with open_runner(compiled, board, console, timeout_s=timeout_s) as runner:
            found: dict[str, np.ndarray] | None = None
            for index in range(work.samples.count):
                given = carried(work, index, found)
                given = {n: a for n, a in given.items() if n in compiled.inputs}
                if index == 0:
                    found, cost = runner.measure(given, times)
                else:
                    found = runner.run(given)
                inputs.append(work.samples.input(index))
                outputs.append(found)
            if work is works[0]:
                result = cost.as_json()
                _print_outputs(console, outputs[0], work.samples.label)
                _print_cost(console, cost, times)
                given = {n: work.samples.input(0)[n] for n in compiled.inputs}
                if profile:
                    steps = runner.profile(given, times)
                    result["profile"] = _profile(console, steps, cost.unit)
                if cycles:
                    assert isinstance(runner, BoardModel), "require_estimate refuses the host"
                    with console.working("estimating cycles"):
                        estimate = runner.estimate(given)
                    result["cycles_estimate"] = estimate.cycles
                    _print_estimate(console, estimate)
    if output_path is not None:
        write_samples(output_path, stack_outputs(inputs), stack_outputs(outputs))
        console.fact("written", f"{len(outputs)} samples to {output_path}")
    console.json(json_path, result)
    return 0


def _print_outputs(console: Console, outputs: dict[str, np.ndarray], label: str) -> None:
    console.fact("inputs", label)
    for name, array in outputs.items():
        flat = array.reshape(-1)
        shown = " ".join(f"{v:.6g}" if array.dtype.kind == "f" else str(v) for v in flat[:8])
        more = " ..." if flat.size > 8 else ""
        console.fact("output", f"{name}: {array.dtype}{list(array.shape)} = {shown}{more}")


def _print_cost(console: Console, cost: Any, runs: int) -> None:
    times = f", median of {runs} runs" if runs > 1 else ""
    if cost.unit == "seconds":
        console.fact("time", f"{cost.per_inference * 1e6:,.2f} us{times}")
    else:
        console.fact(cost.unit, f"{cost.per_inference:,.0f}{times}")
    if cost.flash_bytes is not None:
        weights = f"{cost.weights_bytes:,} of them weights"
        console.fact("flash", f"{cost.flash_bytes:,} bytes, {weights}")
    ram = f"arena {cost.arena_bytes:,}"
    if cost.stack_bytes is not None:
        ram += f", stack {cost.stack_bytes:,}"
    if cost.ram_bytes is not None:
        console.fact("RAM", f"{cost.ram_bytes:,} bytes: {ram}")
    else:
        console.fact("RAM", f"{ram} bytes, and a stack that could not be measured")


def _print_estimate(console: Console, estimate: Any) -> None:
    leaves_out = "no flash wait states, no refill after branches"
    cycles = estimate.cycles
    about = f"{cycles / 1e6:.2f}M" if cycles >= 1e6 else f"{cycles:,}"
    console.fact("cycles", f"about {about} (estimate: llvm-mca over executed blocks; {leaves_out})")


def _profile(console: Console, steps: list[Any], unit: str) -> list[dict[str, Any]]:
    total = sum(s.cost for s in steps) or 1.0
    head = "us" if unit == "seconds" else unit
    scale, digits = (1e6, 2) if unit == "seconds" else (1.0, 0)
    console.table(
        ["step", "kernel", "nodes", head, "share"],
        [
            (s.index, s.kernel, ", ".join(s.nodes), f"{s.cost * scale:,.{digits}f}",
             f"{s.cost / total:.1%}")
            for s in steps
        ],
        right=["step", head, "share"],
    )  # fmt: skip
    return [
        {"step": s.index, "kernel": s.kernel, "nodes": list(s.nodes), "cost": s.cost,
         "share": s.cost / total}
        for s in steps
    ]  # fmt: skip
