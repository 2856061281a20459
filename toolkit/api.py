"""nestling from Python: load, compile, build, and call with NumPy arrays.

model = toolkit.load("digits.onnx")
compiled = toolkit.compile(model)         # C text, sizes, the arena plan
compiled.write("digits_c")                # the folder for a firmware project
library = toolkit.build(compiled)         # built with the system compiler, in a child process
scores, = library(features)               # NumPy in, NumPy out
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toolkit.codegen.names import library_name
from toolkit.expressions import model_of
from toolkit.ir.compute import Tensor
from toolkit.pipeline import compile_model, Compiled, load, Model, Options, Source
from toolkit.runners import BuiltModel

__all__ = ["build", "compile", "load"]

Compilable = Source | Model | Tensor | Sequence[Tensor]


def compile(
    model: Compilable,
    *,
    target: str = "host",
    executor: str = "graph",
    weights: str = "c",
    options: Options | None = None,
    name: str | None = None,
    **load_options: Any,
) -> Compiled:
    """Compile a model to C text.

    `model` is what `load` returns or takes (a path, bytes, a ModelProto), or a bare compute
    expression: one or more tensors of `toolkit.ir.compute`, whose placeholders become the inputs.
    `target`: 'host' or a name of `toolkit.targets.target.TARGETS`.  `executor`: 'graph' (const
    tables, can be stepped) or 'aot' (direct calls).  `weights`: 'c', 'incbin' or 'bin'.  `options`
    takes the place of these three.  `load_options` go to `load`.
    """
    choices = options or Options(executor=executor, weights=weights, target=target)
    if isinstance(model, Model):
        if load_options:
            raise TypeError(f"a loaded model takes no {', '.join(load_options)}")
        loaded = replace(model, name=library_name(name)) if name else model
    elif isinstance(model, Tensor):
        loaded = model_of([model], name=name)
    elif isinstance(model, Sequence) and not isinstance(model, str | bytes):
        loaded = model_of(list(model), name=name)
    else:
        loaded = load(model, name=name, **load_options)
    return compile_model(loaded, choices)


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
