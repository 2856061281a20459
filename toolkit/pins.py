"""Which inputs of a model to pin to their value when sample data gives one.

A branch or a loop whose condition comes from a scalar input (a sample rate, a mode) is decided
once, when compiling; and an input that carries a shape, axes or pads cannot stay open in C at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx

from toolkit.errors import ModelError, NestlingError, UnsupportedError
from toolkit.pipeline import load, Model, Source
from toolkit.samples import Samples

MAX_PINNED = 64
"""No input of more elements is taken for one that carries a shape."""

_CONDITIONS = {"If": (0,), "Loop": (0, 1)}
"""Operators with branches or loops, and the inputs that decide about them."""

Origins = Mapping[str, frozenset[str]]


def control_inputs(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the inputs of a graph from which the condition of an If or a Loop is computed."""
    initialised = {t.name for t in graph.initializer}
    names = [i.name for i in graph.input if i.name not in initialised]
    found: set[str] = set()
    _follow(graph, {n: frozenset((n,)) for n in names}, found)
    return frozenset(found)


def _follow(graph: onnx.GraphProto, known: Origins, found: set[str]) -> dict[str, frozenset[str]]:
    """Add to `found`; return where each tensor of the graph comes from."""
    origins = dict(known)
    nothing: frozenset[str] = frozenset()
    for node in graph.node:
        sources = [origins.get(name, nothing) for name in node.input]
        for position in _CONDITIONS.get(node.op_type, ()):
            if position < len(sources):
                found |= sources[position]
        together = nothing.union(*sources) if node.op_type not in ("Shape", "Size") else nothing
        for attribute in node.attribute:
            for body in _graphs(attribute):
                inner = {**origins, **{i.name: together for i in body.input}}
                made = _follow(body, inner, found)
                together = together.union(*(made.get(o.name, nothing) for o in body.output))
        if together:
            origins.update((name, together) for name in node.output)
    return origins


def _graphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def load_for(
    source: Source,
    proto: onnx.ModelProto | None,
    samples: Samples,
    *,
    pins: Mapping[str, np.ndarray],
    **options: object,
) -> list[tuple[Model, Samples]]:
    """Import a model for sample data: shapes come from the arrays, and what must be is pinned.

    Returns the model with the samples it is for: several when a pinned input varies.  `proto` is
    None for a TFLite file, whose control flow needs no pins.
    """
    if proto is None:
        given = {n: s for n, s in samples.shapes().items() if n not in pins}
        stated = load(source, pins=pins, **options)  # type: ignore[arg-type]
        given = {n: s for n, s in given.items() if n in stated.inputs and n not in stated.states}
        if all(stated.inputs[n].shape == s for n, s in given.items()):
            return [(stated, samples)]
        options["input_shapes"] = {**given, **(options.get("input_shapes") or {})}  # type: ignore[dict-item]
        return [(load(source, pins=pins, **options), samples)]  # type: ignore[arg-type]
    declared = {i.name for i in proto.graph.input}
    # An input with a default value is a constant; other data for it is another constant.
    defaults = {t.name for t in proto.graph.initializer} & declared & samples.inputs.keys()
    shapes = {n: s for n, s in samples.shapes().items() if n in declared and n not in pins}
    given = dict(options.pop("input_shapes", None) or {})  # type: ignore[call-overload]

    def attempt(names: frozenset[str]) -> list[tuple[Model, Samples]]:
        result = []
        names |= defaults - pins.keys()
        for part in _groups(samples, sorted(names)):
            values = {n: part.inputs[n][0] for n in names}
            model = load(
                source,
                input_shapes={n: s for n, s in (shapes | given).items() if n not in values},
                pins={**values, **pins},
                **options,  # type: ignore[arg-type]
            )
            result.append((model, part))
        return result

    deciding = frozenset(
        n for n in control_inputs(proto.graph) & shapes.keys() if np.prod(shapes[n]) == 1
    )
    try:
        return attempt(deciding)
    except (UnsupportedError, ModelError) as error:
        carrying = deciding | {n for n, s in shapes.items() if may_carry_shape(samples, n)}
        if carrying == deciding:
            raise
        try:
            return attempt(carrying)
        except NestlingError:
            raise error from None


def may_carry_shape(samples: Samples, name: str) -> bool:
    """Tell whether an input may hold a shape, axes or pads: a few integers, of rank 0 or 1."""
    array = samples.inputs[name]
    return array.ndim <= 2 and array[0].size <= MAX_PINNED and array.dtype.kind in "iub"


def _groups(samples: Samples, names: list[str]) -> list[Samples]:
    """Split samples by the values of some inputs."""
    if not names:
        return [samples]
    groups: dict[bytes, list[int]] = {}
    for index in range(samples.count):
        key = b"".join(samples.inputs[n][index].tobytes() for n in names)
        groups.setdefault(key, []).append(index)
    return [samples.take(indices) for indices in groups.values()]
