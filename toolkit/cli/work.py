"""What several commands do: import for sample data, compile, make something that runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from toolkit.cli.console import Console
from toolkit.cli.options import ModelRequest
from toolkit.codegen.names import library_name
from toolkit.errors import NestlingError
from toolkit.expressions import load_expression, model_of
from toolkit.frontend.read import read_model
from toolkit.frontend.tflite import is_tflite
from toolkit.measure.board import RUN_TIMEOUT_S
from toolkit.pins import load_for
from toolkit.pipeline import compile_model, Compiled, load, Model, Options
from toolkit.runners import board_target, BoardModel, BuiltModel, HOST_TIMEOUT_S, open_board
from toolkit.samples import check_samples, random_samples, read_samples, Samples
from toolkit.search.packs import FrontPoint, open_source, ShippedPacks, TraceSource
from toolkit.targets.target import get_target
from toolkit.user_ops import load_ops


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A model imported for the samples it will see."""

    model: Model
    samples: Samples


def import_model(
    request: ModelRequest, console: Console, *, input_path: Path | None, name: str | None = None
) -> tuple[onnx.ModelProto | None, list[Work]]:
    """Import MODEL for the samples of a file, or for random ones; print what import had to say.

    Returns the ONNX model too, None for a TFLite file.
    There are several results only when an input that must be pinned varies from sample to sample.
    """
    with console.working(f"importing {request.path.name}"):
        proto, result = _import(request, input_path, name)
    for work in result:
        for note in work.model.notes:
            console.note(note)
        for pin, value in work.model.pins.items():
            if pin not in request.pins:
                default = proto and any(t.name == pin for t in proto.graph.initializer)
                why = "has a default value" if default else "decides what runs, or a shape"
                console.note(f"input {pin!r} {why}: it is the constant {_short(value)} here")
    return proto, result


def import_works(
    request: ModelRequest, console: Console, *, input_path: Path | None, name: str | None = None
) -> list[Work]:
    """Import MODEL, or the compute expression FILE.py:NAME, where no reference is needed."""
    file, is_expression, what = str(request.path).partition(".py:")
    if not is_expression:
        return import_model(request, console, input_path=input_path, name=name)[1]
    tensors = load_expression(Path(f"{file}.py"), what)
    model = replace(model_of(tensors, name=library_name(name or what)), records=records_of(request))
    if input_path is None:
        return [Work(model, random_samples(model.inputs))]
    samples = read_samples(input_path)
    check_samples(samples, model.inputs)
    return [Work(model, samples)]


def _import(
    request: ModelRequest, input_path: Path | None, name: str | None
) -> tuple[onnx.ModelProto | None, list[Work]]:
    ops = load_ops(request.ops) if request.ops else None
    proto = None if is_tflite(request.path) else read_model(request.path)
    records = records_of(request)
    if input_path is None:
        model = load(
            request.path, dims=request.dims, input_shapes=request.shapes, pins=request.pins,
            ops=ops, name=name,
        )  # fmt: skip
        result = [Work(replace(model, records=records), _random(model))]
    else:
        samples = read_samples(input_path)
        loaded = load_for(
            request.path, proto, samples, dims=request.dims, input_shapes=request.shapes,
            pins=request.pins, ops=ops, name=name,
        )  # fmt: skip
        result = [
            Work(replace(model, records=records), with_states(model, part))
            for model, part in loaded
        ]
        for work in result:
            check_samples(work.samples, work.model.inputs)
    return proto, result


def _random(model: Model) -> Samples:
    """Make one random sample; what the model keeps from run to run has its first value."""
    made = random_samples({n: t for n, t in model.inputs.items() if n not in model.states})
    return with_states(model, made)


def with_states(model: Model, samples: Samples) -> Samples:
    """Return samples with the first value of each state that they do not give themselves."""
    missing = {n: s for n, s in model.states.items() if n not in samples.inputs}
    if not missing:
        return samples
    first = {n: np.stack([s.initial] * samples.count) for n, s in missing.items()}
    return replace(samples, inputs={**samples.inputs, **first})


def carried(work: Work, index: int, before: dict[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    """Return the inputs of sample `index`, with states as the run before left them in `before`."""
    given = work.samples.input(index)
    if before is not None:
        given.update({n: before[s.output] for n, s in work.model.states.items()})
    return given


def records_of(request: ModelRequest) -> tuple[TraceSource, ...]:
    """Return where traces are looked up: the model's records, where there are any, then packs."""
    if request.point is not None:
        if not request.use_records or not request.records_path.exists():
            raise NestlingError(
                f"--point {request.point}: there are no records beside {request.path}.",
                hint="nestling tune MODEL --objective pareto, or --records DB",
            )
        return (FrontPoint(request.records_path, request.point),)
    if not request.use_records:
        return ()
    if request.records is None and not request.records_path.exists():
        return (ShippedPacks(),)
    return (open_source(request.records_path), ShippedPacks())


def say_records(compiled: Compiled, console: Console) -> None:
    """Say which records decided how kernels are scheduled, and what they could not say."""
    found = compiled.recorded
    for where, count in found.counts.items():
        console.note(f"{where}: has records of {count} of {found.kernels} kernels, which are used")
    for note in found.notes:
        console.note(note)


def _short(value: np.ndarray) -> str:
    return np.array2string(np.asarray(value), threshold=8, separator=",")


def place_of(
    board_name: str,
    target: str | None,
    *,
    executor: str = "graph",
    weights: str = "c",
    exact: bool = False,
    math: str = "fast",
    integers: bool = True,
    threads: int = 1,
) -> Options:
    """Return the options for code that runs on a board, or the host; refuse an unknown target."""
    board, _ = open_board(board_name)
    name = target or board_target(board)
    get_target(name)
    return Options(executor, weights, name, exact, math=math, integers=integers, threads=threads)


def say_floats(compiled: Compiled, console: Console) -> None:
    """Say what stays float of a model that was compiled on integers."""
    for text in compiled.floats:
        console.note(text)


def compile_work(work: Work, options: Options, console: Console) -> Compiled:
    """Compile with a sign of life."""
    with console.working(f"compiling {work.model.name}"):
        compiled = compile_model(work.model, options)
    say_records(compiled, console)
    say_floats(compiled, console)
    return compiled


@contextmanager
def open_runner(
    compiled: Compiled, board_name: str, console: Console, *, timeout_s: float | None = None
) -> Iterator[BuiltModel | BoardModel]:
    """Build for the host or a board, and close it at the end."""
    board, port = open_board(board_name)
    with console.working(f"building {compiled.name} for {board_name}"):
        runner: BuiltModel | BoardModel
        if board is None:
            runner = BuiltModel(compiled, timeout_s=timeout_s or HOST_TIMEOUT_S)
        else:
            limit_s = timeout_s or RUN_TIMEOUT_S
            runner = BoardModel(compiled, board, port, timeout_s=limit_s)
    try:
        yield runner
    finally:
        runner.close()


def stack_outputs(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Join the outputs of samples along a new leading axis."""
    return {name: np.stack([part[name] for part in parts]) for name in parts[0]}
