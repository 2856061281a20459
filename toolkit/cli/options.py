"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from toolkit.cli.console import Console
from toolkit.errors import NestlingError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """How models are imported, as the command line says it."""

    dims: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    pins: Mapping[str, np.ndarray]
    ops: Path | None

    def of(
        self, path: Path, *, records: Path | None = None, use_records: bool = True
    ) -> ModelRequest:
        """Return the request for one model."""
        return ModelRequest(path, self.dims, self.shapes, self.pins, self.ops, records, use_records)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model and how to import it, as the command line says it."""

    path: Path
    dims: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    pins: Mapping[str, np.ndarray]
    ops: Path | None
    records: Path | None = None
    use_records: bool = True
    point: int | None = None
    """Of the front that tuning found, counted from the fastest; None: what tuning chose."""

    @property
    def records_path(self) -> Path:
        """The database of trials: the one asked for, or NAME.records.db beside the model."""
        return self.records or self.path.with_suffix(".records.db")


def output_options(function: F) -> F:
    """Add --json, -q and -v; the function gets `console` and `json_path`."""

    def wrap(*args: Any, quiet: bool, verbose: bool, json_path: Path | None, **named: Any) -> Any:
        console: Console = click.get_current_context().obj or Console()
        console.level = -1 if quiet else int(verbose)
        if json_path is not None and str(json_path) == "-":
            console.json_to_stdout()
        elif json_path is not None and json_path.is_dir():
            raise NestlingError(f"--json {json_path}: cannot be written: it is a folder.")
        elif json_path is not None and not json_path.absolute().parent.is_dir():
            raise NestlingError(f"--json {json_path}: cannot be written: its folder is not there.")
        return function(*args, console=console, json_path=json_path, **named)

    wrap.__doc__, wrap.__name__ = function.__doc__, function.__name__
    wrap.__dict__.update(function.__dict__)
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Say more; with a bug, the traceback."),
        click.option("-q", "--quiet", is_flag=True, help="Print only what went wrong."),
        click.option(
            "--json", "json_path", type=click.Path(path_type=Path), metavar="PATH",
            help="Write the result as JSON to PATH, or to stdout with -.",
        ),
    ):  # fmt: skip
        wrap = option(wrap)
    return wrap  # type: ignore[return-value]


def import_options(function: F) -> F:
    """Add what fixes the shapes of models and adds operators; the function gets `imports`."""

    def wrap(
        *args: Any, dims: tuple[str, ...], shapes: tuple[str, ...], pins: tuple[str, ...],
        ops: Path | None, **named: Any,
    ) -> Any:  # fmt: skip
        imports = ImportRequest(
            _pairs("--dim", dims, _size),
            _pairs("--input-shape", shapes, _shape),
            _pairs("--set", pins, _value),
            ops,
        )
        return function(*args, imports=imports, **named)

    wrap.__doc__, wrap.__name__ = function.__doc__, function.__name__
    wrap.__dict__.update(function.__dict__)
    for option in (
        click.option(
            "--ops", type=click.Path(path_type=Path), metavar="FILE",
            help="Python file with operators of a custom domain.",
        ),
        click.option(
            "--set", "pins", multiple=True, metavar="NAME=VALUE",
            help="Make an input a constant: sr=16000, axes=[0,1], or a .npy file.",
        ),
        click.option(
            "--input-shape", "shapes", multiple=True, metavar="NAME=1x3x224x224",
            help="Fix the shape of an input.",
        ),
        click.option(
            "--dim", "dims", multiple=True, metavar="NAME=N",
            help="Size of a named dimension that the model leaves open; a batch is 1.",
        ),
    ):  # fmt: skip
        wrap = option(wrap)
    return wrap  # type: ignore[return-value]


def model_options(function: F) -> F:
    """Add MODEL, what fixes its shapes, and its records; the function gets `request`."""

    def wrap(
        *args: Any, model: Path, imports: ImportRequest, records: Path | None, no_records: bool,
        **named: Any,
    ) -> Any:  # fmt: skip
        if records is not None and no_records:
            raise NestlingError("--records and --no-records exclude each other.")
        request = imports.of(model, records=records, use_records=not no_records)
        return function(*args, request=request, **named)

    wrap.__doc__, wrap.__name__ = function.__doc__, function.__name__
    wrap.__dict__.update(function.__dict__)
    for option in (
        click.option(
            "--no-records", is_flag=True, help="Use neither a database of trials nor shipped packs."
        ),
        click.option(
            "--records", type=click.Path(path_type=Path), metavar="DB",
            help="Database of trials, or pack [default: NAME.records.db beside MODEL, if any].",
        ),
    ):  # fmt: skip
        wrap = option(wrap)
    argument = click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
    return argument(import_options(wrap))  # type: ignore[return-value]


def executor_option(function: F) -> F:
    """Add --executor."""
    return click.option(
        "--executor", type=click.Choice(("graph", "aot")), default="graph", show_default=True,
        help="graph: a loop over a const table of nodes; aot: C that calls kernel after kernel.",
    )(function)  # fmt: skip


def math_option(function: F) -> F:
    """Add --math."""
    return click.option(
        "--math", type=click.Choice(("fast", "libm")), default="fast", show_default=True,
        help="exp, tanh, sigmoid, erf, log, log1p in vectors: within 2.5 ULP, or libm's own.",
    )(function)  # fmt: skip


def integers_option(function: F) -> F:
    """Add --integers and --no-integers."""
    return click.option(
        "--integers/--no-integers", default=True, show_default=True,
        help="Compute quantised parts of an ONNX model on the stored integers, wherever that is "
        "proven equal; or in float32, as QDQ files are written.",
    )(function)  # fmt: skip


def threads_option(function: F) -> F:
    """Add --threads."""
    return click.option(
        "--threads", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
        help="Cores that share the work of a run.",
    )(function)  # fmt: skip


def timeout_option(function: F) -> F:
    """Add --timeout."""
    return click.option(
        "--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
        help="What one run may take [default: 60; board: 120].",
    )(function)  # fmt: skip


def place_options(function: F) -> F:
    """Add --board and --target."""
    for option in (
        click.option(
            "--target", metavar="T",
            help="Kind of core that code is for, such as cortex-m4 [default: the board's].",
        ),
        click.option(
            "--board", default="host", show_default=True, metavar="NAME[@PORT]",
            help="Where it runs: host, or a board of `nestling boards list`; PORT: a serial port.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def _pairs(flag: str, texts: tuple[str, ...], read: Callable[[str, str], Any]) -> dict[str, Any]:
    """Read NAME=VALUE options; the name may hold '=' itself, since values cannot."""
    result: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise NestlingError(f"{flag} {text}: is not NAME=VALUE.")
        if name in result:
            raise NestlingError(f"{flag} {name}: is given twice.")
        result[name] = read(f"{flag} {text}", value)
    return result


def _size(flag: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise NestlingError(f"{flag}: {value!r} is not a positive whole number.")
    return int(value)


def _shape(flag: str, value: str) -> tuple[int, ...]:
    if value in ("", "scalar"):
        return ()
    parts = value.lower().replace(",", "x").strip("[]()").split("x")
    if not all(p.strip().isdecimal() for p in parts):
        raise NestlingError(f"{flag}: {value!r} is not a shape like 1x3x224x224.")
    return tuple(int(p) for p in parts)


def _value(flag: str, value: str) -> np.ndarray:
    if value.endswith(".npy"):
        try:
            return np.asarray(np.load(value, allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise NestlingError(f"{flag}: {value} cannot be read: {reason}.") from None
    items = [v for v in value.strip().strip("[]()").replace(",", " ").split() if v]
    numbers = [_number(flag, v) for v in items]
    bare = value.strip()[:1] not in ("[", "(") and len(numbers) == 1
    array = np.asarray(numbers if numbers else np.zeros(0, np.int64))
    return array.reshape(()) if bare else array


def _number(flag: str, text: str) -> int | float | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise NestlingError(
            f"{flag}: {text!r} is not a number, true or false.",
            hint="a list is written [1,2,3], an array as a .npy file",
        ) from None
