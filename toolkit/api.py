"""nestling from Python: load, compile, build, and call with NumPy arrays.

model = toolkit.load("digits.onnx")
compiled = toolkit.compile(model)         # C text, sizes, the arena plan
compiled.write("digits_c")                # the folder for a firmware project
library = toolkit.build(compiled)         # built with the system compiler, in a child process
scores, = library(features)               # NumPy in, NumPy out
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.codegen.names import library_name
from toolkit.expressions import function_of, model_of
from toolkit.ir.compute import Tensor
from toolkit.ir.loop import PrimFunc
from toolkit.lowering.kernels import func_key
from toolkit.pipeline import compile_model, Compiled, load, Model, Options, Source
from toolkit.quantization.data import calibration_samples, MAX_SAMPLES
from toolkit.quantization.result import Quantized
from toolkit.quantization.run import quantize_model
from toolkit.quantization.settings import parse_bound, Settings
from toolkit.runners import BuiltModel
from toolkit.samples import read_arrays, read_labelled
from toolkit.schedule.steps.base import Step

__all__ = ["build", "compile", "function", "load", "quantize"]

Compilable = Source | Model | Tensor | tuple[Tensor, ...] | list[Tensor]


def compile(
    model: Compilable,
    *,
    target: str = "host",
    executor: str = "graph",
    weights: str = "c",
    math: str = "fast",
    threads: int = 1,
    options: Options | None = None,
    name: str | None = None,
    trace: Sequence[Step] | None = None,
    **load_options: Any,
) -> Compiled:
    """Compile a model to C text.

    `model` is what `load` returns or takes (a path, bytes, a ModelProto), or a bare compute
    expression: one or more tensors of `toolkit.ir.compute`, whose placeholders become the inputs.
    `target`: 'host' or a name of `toolkit.targets.target.TARGETS`.  `executor`: 'graph' (const
    tables, can be stepped) or 'aot' (direct calls).  `weights`: 'c', 'incbin' or 'bin'.  `math`:
    'fast' (vector functions of stated error) or 'libm'.  `threads`: the cores that share the work
    of a run.  `options` takes the place of these five.
    `trace`: the schedule of an expression, steps that apply to its `function`; the default one
    otherwise.  `load_options` go to `load`.
    """
    if trace is not None and not isinstance(model, Tensor | tuple | list):
        raise TypeError("only a compute expression takes a trace")
    choices = options or Options(
        executor=executor, weights=weights, target=target, math=math, threads=threads
    )
    if isinstance(model, Model):
        if load_options:
            raise TypeError(f"a loaded model takes no {', '.join(load_options)}")
        loaded = replace(model, name=library_name(name)) if name else model
    elif isinstance(model, Tensor | tuple | list):
        outputs = _outputs(model)
        loaded = model_of(outputs, name=name)
        if trace is not None:
            loaded = replace(loaded, traces={func_key(function_of(outputs)): tuple(trace)})
    else:
        loaded = load(model, name=name, **load_options)
    return compile_model(loaded, choices)


def function(expression: Tensor | Sequence[Tensor]) -> PrimFunc:
    """Return the loop nest of a compute expression before any schedule; printing it shows the nest.

    `toolkit.schedule.program.record` and `toolkit.schedule.hole.replay` make traces for it.
    """
    return function_of(_outputs(expression))


def _outputs(expression: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [expression] if isinstance(expression, Tensor) else list(expression)


def build(
    model: Compiled | Compilable, *, timeout_s: float = 60.0, **compile_options: Any
) -> BuiltModel:
    """Build a model with the system compiler and return it, callable with NumPy arrays.

    It runs in a child process: a crash or a run beyond `timeout_s` raises `MeasureError`.
    """
    compiled: Compiled
    if isinstance(model, Compiled):
        if compile_options:
            raise TypeError(f"a compiled model takes no {', '.join(compile_options)}")
        compiled = model
    else:
        compiled = compile(model, **compile_options)
    return BuiltModel(compiled, timeout_s=timeout_s)


def quantize(
    model: Source | Model,
    calib: str | os.PathLike[str] | Mapping[str, Any],
    *,
    labels: str | os.PathLike[str] | None = None,
    max_drop: str | None = None,
    samples: int = MAX_SAMPLES,
    settings: Settings | None = None,
    **load_options: Any,
) -> Quantized:
    """Quantise a float ONNX model to 8-bit integers, ranges taken from samples.

    `calib`: a .npz file, or arrays by name: in__NAME, NAME or x for each input, axis 0 counting
    samples, of which the first `samples` are used.  `labels`: a .npz file of labelled samples x, y.
    `max_drop`: '0.5' (points of accuracy on `labels`) or '30dB' (of the outputs): layers are kept
    in more bits until it is met; it takes the place of `settings.bound`.  `settings`: the other
    choices (`toolkit.quantization.settings.Settings`).  `load_options` go to `load`.
    The result has `proto`, `write(path)`, and what was lost by layer and in all.
    """
    if isinstance(model, Model):
        if load_options:
            raise TypeError(f"a loaded model takes no {', '.join(load_options)}")
        loaded = model
    else:
        loaded = load(model, **load_options)
    every: Mapping[str, Any]
    if isinstance(calib, Mapping):
        every, label = {n: np.asarray(a) for n, a in calib.items()}, "the calibration data"
    else:
        every, label = read_arrays(Path(calib)), str(Path(calib))
    arrays = {n: a for n, a in every.items() if a is not None}
    choices = settings or Settings()
    if max_drop is not None:
        choices = replace(choices, bound=parse_bound(max_drop, "max_drop"))
    return quantize_model(
        loaded,
        calibration_samples(arrays, loaded.inputs, label=label, limit=samples),
        choices,
        labelled=None if labels is None else read_labelled(Path(labels), loaded.inputs),
    )
