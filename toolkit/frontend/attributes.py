"""ONNX attributes to the plain Python values that `Node.attrs` holds.

Graphs stay `GraphProto` here: only the walk over the model knows the names they may capture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto

from toolkit.errors import ModelError
from toolkit.frontend.read import sparse_to_array, to_array

Bindings = Mapping[str, AttributeProto]
"""What the attributes of a function call are bound to inside the function's body."""


def bind(attributes: Iterable[AttributeProto], bindings: Bindings) -> dict[str, AttributeProto]:
    """Resolve references to a function's attributes; an unbound reference means 'not given'."""
    result: dict[str, AttributeProto] = {}
    for attribute in attributes:
        name = attribute.name
        if attribute.ref_attr_name:
            bound = bindings.get(attribute.ref_attr_name)
            if bound is None:
                continue
            attribute = bound
        if name in result:
            raise ModelError(f"attribute '{name}' is given twice")
        result[name] = attribute
    return result


def value_of(attribute: AttributeProto, name: str, folder: Path | None) -> Any:
    """Return an attribute's value: int, float, str, array, `GraphProto`, or a tuple of these."""
    kind = attribute.type
    if kind == AttributeProto.FLOAT:
        return float(attribute.f)
    if kind == AttributeProto.INT:
        return int(attribute.i)
    if kind == AttributeProto.STRING:
        return _text(attribute.s)
    if kind == AttributeProto.TENSOR:
        return to_array(attribute.t, folder)
    if kind == AttributeProto.SPARSE_TENSOR:
        return sparse_to_array(attribute.sparse_tensor, folder)
    if kind == AttributeProto.GRAPH:
        return attribute.g
    if kind == AttributeProto.FLOATS:
        return tuple(map(float, attribute.floats))
    if kind == AttributeProto.INTS:
        return tuple(map(int, attribute.ints))
    if kind == AttributeProto.STRINGS:
        return tuple(map(_text, attribute.strings))
    if kind == AttributeProto.TENSORS:
        return tuple(to_array(tensor, folder) for tensor in attribute.tensors)
    if kind == AttributeProto.TYPE_PROTO:
        return attribute.tp.SerializeToString(deterministic=True)
    raise ModelError(f"attribute '{name}' has a type this importer does not know ({kind})")


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return bytes(raw)


def make(name: str, value: Any) -> AttributeProto:
    """Return the ONNX attribute of a plain value, for `onnx`'s own inference and evaluation."""
    import numpy as np

    attribute = AttributeProto()
    attribute.name = name
    if isinstance(value, np.ndarray):
        attribute.type = AttributeProto.TENSOR
        attribute.t.CopyFrom(onnx.numpy_helper.from_array(value))
    elif isinstance(value, bool | int):
        attribute.type = AttributeProto.INT
        attribute.i = int(value)
    elif isinstance(value, float):
        attribute.type = AttributeProto.FLOAT
        attribute.f = value
    elif isinstance(value, str | bytes):
        attribute.type = AttributeProto.STRING
        attribute.s = value.encode() if isinstance(value, str) else value
    elif isinstance(value, tuple | list):
        _make_list(attribute, tuple(value))
    else:
        raise TypeError(f"attribute '{name}': {type(value).__name__}")
    return attribute


def _make_list(attribute: AttributeProto, value: tuple[Any, ...]) -> None:
    if all(isinstance(item, int) for item in value):
        attribute.type = AttributeProto.INTS
        attribute.ints.extend(value)
    elif all(isinstance(item, int | float) for item in value):
        attribute.type = AttributeProto.FLOATS
        attribute.floats.extend(map(float, value))
    elif all(isinstance(item, str | bytes) for item in value):
        attribute.type = AttributeProto.STRINGS
        attribute.strings.extend(v.encode() if isinstance(v, str) else v for v in value)
    else:
        raise TypeError(f"attribute '{attribute.name}': a list of mixed types")
