"""`nestling compile`: a model to the folder that a firmware team drops into its project."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

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
)


@click.command("compile", short_help="Write the C library of a model.")
@model_options
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), required=True, metavar="DIR",
    help="The folder to write; made if it is not there.",
)  # fmt: skip
@click.option("--name", metavar="NAME", help="Prefix of all C symbols [default: the file's name].")
@executor_option
@click.option(
    "--weights", type=click.Choice(("c", "incbin", "bin")), default="c", show_default=True,
    help="Weights as C text, as a file that the assembler includes, or as a file you flash.",
)  # fmt: skip
@click.option(
    "--input", "input_path", type=click.Path(path_type=Path), metavar="X.npz",
    help="Samples in__NAME, out__NAME: shapes, and what example/main.c runs on.",
)  # fmt: skip
@place_options
@click.option(
    "--exact", is_flag=True, help="Leave out optimisations that may change how results round."
)
@math_option
@integers_option
@threads_option
@click.option(
    "--point", type=click.IntRange(0), metavar="K",
    help="Use the schedules of point K, as `tune --objective pareto` listed them.",
)  # fmt: skip
@click.option("--ram", metavar="BYTES", help="Refuse if the RAM is larger: 64k, 1.5M.")
@click.option("--flash", metavar="BYTES", help="Refuse if the flash is larger: 256k.")
@click.option(
    "--dump-passes", "dump_folder", type=click.Path(path_type=Path), metavar="DIR",
    help="Write the graph before and after each pass.",
)  # fmt: skip
@output_options
def compile_command(
    *,
    request: ModelRequest,
    folder: Path,
    name: str | None,
    executor: str,
    weights: str,
    input_path: Path | None,
    board: str,
    target: str | None,
    exact: bool,
    math: str,
    integers: bool,
    threads: int,
    point: int | None,
    ram: str | None,
    flash: str | None,
    dump_folder: Path | None,
    console: Console,
    json_path: Path | None,
) -> int:
    """Write the C library of MODEL to a folder: sources, an example, a README and model.json.

    MODEL is an .onnx or .tflite file, or FILE.py:NAME, a compute expression in a Python file. What
    `nestling tune` found is used, and said.

    \b
    Examples:
      nestling compile digits.onnx -o digits_c
      nestling compile net.onnx -o net_c --dim batch=1 --board qemu_mps2_an386 --ram 64k
    """
    from toolkit.cli import writing

    return writing.write_bundle(
        replace(request, point=point), folder, name=name, executor=executor, weights=weights,
        input_path=input_path,
        board_name=board, target=target, exact=exact, math=math, integers=integers, threads=threads,
        ram=ram, flash=flash, dump_folder=dump_folder, console=console, json_path=json_path,
    )  # fmt: skip
