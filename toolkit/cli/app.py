"""The group of commands, and how each ends: exit codes and one form of error message.

0: done.  1: wrong answers, or over a limit.  2: the request cannot be served.  3: a bug of ours.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from toolkit.cli.console import Console
from toolkit.errors import NestlingError
from toolkit.version import __version__

COMMANDS: dict[str, tuple[str, str]] = {
    "compile": ("toolkit.cli.compiling", "Write the C library of a model."),
    "run": ("toolkit.cli.running", "Run a model as C, here or on a board."),
    "verify": ("toolkit.cli.verifying", "Check a model's C against expected outputs."),
    "bench": ("toolkit.cli.benching", "Time a model's C beside another runtime."),
    "quantize": ("toolkit.cli.quantizing", "Turn a float model into one on 8-bit integers."),
    "tune": ("toolkit.cli.tuning", "Make a model faster by search and measurement."),
    "report": ("toolkit.cli.report", "Write what tuning did as one HTML page."),
    "records": ("toolkit.cli.records", "Databases of trials: list, show, move, merge."),
    "boards": ("toolkit.cli.machine", "Boards that models can run on."),
    "farm": ("toolkit.cli.farm", "Boards of many computers behind one tuner."),
    "doctor": ("toolkit.cli.machine", "What this machine has, what is missing."),
}
"""Command -> the module that defines it as `NAME_command`, and its line in `--help`."""


class Commands(click.Group):
    """Imports a command's module only when the command is used: `--help` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="nestling %(version)s")
def cli() -> None:
    """nestling turns a trained ONNX or TFLite model into a small C library, proven to be right.

    \b
    Start here:
      nestling doctor                            is a compiler installed?
      nestling verify model.onnx                 compile, run, compare with onnxruntime
      nestling tune model.onnx                   make it faster, in ten minutes
      nestling compile model.onnx -o model_c     the folder for your project

    Each command has its own --help.
    """


def run(arguments: Sequence[str]) -> int:
    """Run a command line in this process; return its exit code."""
    console = Console()
    verbose = any(a in ("-v", "--verbose") for a in arguments)
    try:
        result: Any = cli.main(
            args=list(arguments), prog_name="nestling", standalone_mode=False, obj=console
        )
    except NestlingError as error:
        console.error(str(error))
        if verbose:
            console.plain(traceback.format_exc())
        return 2
    except click.exceptions.NoArgsIsHelpError as error:
        console.plain(error.ctx.get_help())
        return 2
    except click.ClickException as error:
        console.error(error.format_message())
        context = getattr(error, "ctx", None)
        if context is not None:
            console.plain(f"  hint: {context.command_path} --help")
        return 2
    except (KeyboardInterrupt, click.Abort) as error:
        console.plain(f"interrupted: {error}" if str(error) else "interrupted")
        return 130
    except BrokenPipeError:
        # Who read our output has gone; Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        console.error(f"the system refused: {error.strerror or error}{where}")
        if verbose:
            console.plain(traceback.format_exc())
        return 2
    except Exception as error:  # noqa: BLE001 - the last place where anything can be caught
        if verbose:
            console.plain(traceback.format_exc())
        text = " ".join(str(error).split())[:300]
        proof = "the traceback above" if verbose else "what the same command prints with -v"
        console.error(
            f"internal error: {type(error).__name__}{': ' if text else ''}{text}\n"
            "  This is a bug of nestling, not of your model. Please report it, with the model\n"
            f"  if you may, and with {proof}."
        )
        return 3
    return result if isinstance(result, int) else 0


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))
