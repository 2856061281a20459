"""Compiled ONNX cases for tests of the generated text: one per operator, or all."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tests.onnx_cases import case_named, tiers, to_array
from toolkit.backend import compile_for
from toolkit.errors import NestlingError
from toolkit.pipeline import Compiled, Options

WHOLE = ("A1", "A2", "expanded", "A2b", "A3", "double", "loss", "pytorch-operator", "simple")
"""Tiers whose cases are small models."""

MODEL_BYTES = 4 << 20
"""Larger models are left to the tests of whole networks."""


@cache
def one_case_per_operator(seed: int) -> tuple[str, ...]:
    """Return names of node cases that together hold every operator that can be compiled."""
    names = [*tiers()["A1"], *tiers()["A2"], *tiers()["A2b"]]
    random.Random(seed).shuffle(names)
    chosen: dict[str, str] = {}
    for name in names:
        op = case_named(name).op
        if op and op not in chosen and compile_case(name, Options(target="generic")) is not None:
            chosen[op] = name
    return tuple(sorted(chosen.values()))


def all_cases() -> tuple[str, ...]:
    """Return the names of all cases of small models."""
    return tuple(name for tier in WHOLE for name in tiers()[tier])


@cache
def compile_case(name: str, options: Options) -> Compiled | None:
    """Compile a case for its first data set; None when it is refused."""
    case = case_named(name)
    try:
        # "_m": one case is named like the file of weights of another.
        compiled, _ = compile_for(case.model, inputs_of(name), options, f"{name}_m")
    except NestlingError:
        return None
    return compiled if compiled.weights_bytes <= MODEL_BYTES else None


@cache
def inputs_of(name: str) -> dict[str, np.ndarray]:
    """Return the inputs of the first data set of a case."""
    case = case_named(name)
    values = case.data_sets[0][0] if case.data_sets else ()
    return {n: to_array(x) for n, x in zip(case.inputs, values, strict=False) if x is not None}


def compiled_cases(names: Iterable[str], options: Options) -> list[Compiled]:
    """Compile cases, without those that are refused."""
    return [c for c in (compile_case(name, options) for name in names) if c is not None]


def write_files(models: Sequence[Compiled], folder: Path) -> list[Path]:
    """Write generated files of all models to a folder; return the C files."""
    sources = []
    for compiled in models:
        for name, content in compiled.files.files.items():
            data = content if isinstance(content, bytes) else content.encode()
            (folder / name).write_bytes(data)
            if name.endswith(".c"):
                sources.append(folder / name)
    return sources
