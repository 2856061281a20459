"""Bytes of a TFLite flatbuffer to plain Python values.  Knows the file, not what operators mean.

The schema is that of the package `tflite`; nothing of it leaves this module but the option tables
of operators, which the families read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tflite

from toolkit.errors import ModelError

IDENTIFIER = b"TFL3"
"""Bytes 4 to 7 of every TFLite file."""

MAX_ELEMENTS = 2**31

BROKEN = (
    struct.error, ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError,
)  # fmt: skip
"""What a broken file makes flatbuffers and NumPy raise."""


def _names(enum: type) -> dict[int, str]:
    return {v: k for k, v in vars(enum).items() if isinstance(v, int)}


OPERATORS = _names(tflite.BuiltinOperator)
_OPTIONS = _names(tflite.BuiltinOptions)
_OPTIONS_2 = _names(getattr(tflite, "BuiltinOptions2", type("none", (), {})))
_TYPES = _names(tflite.TensorType)

STORED: Mapping[str, str] = {
    "FLOAT16": "float16", "FLOAT32": "float32", "FLOAT64": "float64", "INT4": "int8",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "UINT8": "uint8",
    "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "BOOL": "bool",
}  # fmt: skip
"""NumPy's name of each element type; of INT4 that of its unpacked form."""


@dataclass(frozen=True, slots=True, eq=False)
class Quant:
    """real = scale * (stored - zero_point), one scale for all or one an index of `axis`."""

    scale: np.ndarray
    """float32, one element or one an index of `axis`."""
    zero_point: np.ndarray
    """int64, as long as `scale`."""
    axis: int


@dataclass(frozen=True, slots=True, eq=False)
class TensorInfo:
    """A tensor of the file; `data` is the value of a constant, `signature` has -1 for open axes."""

    name: str
    shape: tuple[int, ...]
    kind: str
    """The file's name of the element type: a value of `TensorType`."""
    signature: tuple[int, ...]
    quant: Quant | None
    data: np.ndarray | None
    is_variable: bool = False

    @property
    def dtype(self) -> str:
        """NumPy's name of the element type; the file's own where NumPy has none."""
        return STORED.get(self.kind, self.kind.lower())


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator of the file; -1 in `inputs` is an absent optional operand."""

    index: int
    name: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    """The option table of `tflite`, None where the operator has none."""
    intermediates: tuple[int, ...] = ()
    """Tensors that only say how something inside is quantised."""


@dataclass(frozen=True, slots=True, eq=False)
class Subgraph:
    """A graph of the file; tensors are named by their position."""

    name: str
    tensors: tuple[TensorInfo, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...] = field(repr=False)


def is_tflite(source: object) -> bool:
    """Tell whether a model is a TFLite file, by its identifier."""
    if isinstance(source, bytes):
        return source[4:8] == IDENTIFIER
    if isinstance(source, str | os.PathLike):
        try:
            with Path(source).open("rb") as file:
                return file.read(8)[4:8] == IDENTIFIER
        except (OSError, ValueError):
            return False
    return False


def read_tflite(data: bytes, label: str) -> tuple[Subgraph, ...]:
    """Parse a file; raises `ModelError` where it contradicts the schema or itself."""
    try:
        model = tflite.Model.GetRootAsModel(data, 0)
        if model.Version() != 3:
            raise ModelError(f"{label}: has schema version {model.Version()}; 3 can be read")
        graphs = tuple(
            _subgraph(model, model.Subgraphs(i), data, label)
            for i in range(model.SubgraphsLength())
        )
    except ModelError:
        raise
    except BROKEN as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ModelError(
            f"{label}: is not a valid TFLite model, or is truncated ({len(data)} bytes): {text}"
        ) from None
    if not graphs:
        raise ModelError(f"{label}: holds no graph")
    return graphs


def _ints(vector: Any) -> tuple[int, ...]:
    """Return a vector of the flatbuffer, which is 0 when absent."""
    return () if isinstance(vector, int) else tuple(int(v) for v in vector)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", errors="replace")


def _subgraph(model: Any, graph: Any, data: bytes, label: str) -> Subgraph:
    tensors = tuple(
        _tensor(model, graph.Tensors(i), data, label) for i in range(graph.TensorsLength())
    )
    operators = tuple(
        _operator(model, graph.Operators(i), i, len(tensors), label)
        for i in range(graph.OperatorsLength())
    )
    ends = _ints(graph.InputsAsNumpy()), _ints(graph.OutputsAsNumpy())
    for index in (*ends[0], *ends[1]):
        if not 0 <= index < len(tensors):
            raise ModelError(f"{label}: a graph input or output is tensor {index}, which is none")
    return Subgraph(_text(graph.Name()), tensors, *ends, operators)


def _operator(model: Any, op: Any, index: int, tensors: int, label: str) -> Operator:
    code = model.OperatorCodes(op.OpcodeIndex())
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    name = OPERATORS.get(number, f"BUILTIN_{number}")
    if name == "CUSTOM":
        name = f"CUSTOM:{_text(code.CustomCode())}"
    inputs, outputs = _ints(op.InputsAsNumpy()), _ints(op.OutputsAsNumpy())
    inside = _ints(op.IntermediatesAsNumpy())
    if any(not -1 <= i < tensors for i in (*inputs, *outputs, *inside)):
        raise ModelError(f"{label}: operator {index} ({name}) names a tensor that is none")
    return Operator(index, name, code.Version(), inputs, outputs, _options(op), inside)


def _options(op: Any) -> Any:
    """Return the option table of an operator as its own class."""
    for number, table, names in (
        (op.BuiltinOptionsType(), op.BuiltinOptions(), _OPTIONS),
        (
            op.BuiltinOptions2Type() if hasattr(op, "BuiltinOptions2Type") else 0,
            op.BuiltinOptions2() if hasattr(op, "BuiltinOptions2") else None,
            _OPTIONS_2,
        ),
    ):
        kind = getattr(tflite, names.get(number, "NONE"), None)
        if number and table is not None and kind is not None:
            options = kind()
            options.Init(table.Bytes, table.Pos)
            return options
    return None


def _tensor(model: Any, tensor: Any, data: bytes, label: str) -> TensorInfo:
    name = _text(tensor.Name())
    kind = _TYPES.get(tensor.Type(), f"TYPE_{tensor.Type()}")
    shape = _ints(tensor.ShapeAsNumpy())
    count = 1
    for n in shape:
        count *= n
    if any(n < 0 for n in shape) or count > MAX_ELEMENTS:
        raise ModelError(f"{label}: tensor '{name}': impossible shape {list(shape)}")
    value = _value(model, tensor, data, label, name, kind, shape, count)
    return TensorInfo(
        name, shape, kind, _ints(tensor.ShapeSignatureAsNumpy()) or shape,
        _quant(tensor.Quantization(), label, name, shape), value, bool(tensor.IsVariable()),
    )  # fmt: skip


def _quant(quant: Any, label: str, name: str, shape: tuple[int, ...]) -> Quant | None:
    if quant is None or quant.ScaleLength() == 0:
        return None
    scale = np.array(quant.ScaleAsNumpy(), np.float32).reshape(-1)
    zero = quant.ZeroPointAsNumpy() if quant.ZeroPointLength() else np.zeros(len(scale))
    zero_point = np.array(zero, np.int64).reshape(-1)
    if len(zero_point) == 1 and len(scale) > 1:
        zero_point = np.repeat(zero_point, len(scale))
    if len(scale) != len(zero_point):
        raise ModelError(
            f"{label}: tensor '{name}': {len(scale)} scales but {len(zero_point)} zero points"
        )
    if not np.all(np.isfinite(scale)):
        raise ModelError(f"{label}: tensor '{name}': a scale is not finite")
    return Quant(scale, zero_point, int(quant.QuantizedDimension()))


def _value(
    model: Any, tensor: Any, data: bytes, label: str, name: str, kind: str,
    shape: tuple[int, ...], count: int,
) -> np.ndarray | None:  # fmt: skip
    """Return the value of a constant: of a tensor whose buffer holds anything."""
    if not 0 <= tensor.Buffer() < model.BuffersLength():
        raise ModelError(f"{label}: tensor '{name}' has buffer {tensor.Buffer()}, which is none")
    buffer = model.Buffers(tensor.Buffer())
    raw: np.ndarray | None = None
    if buffer.DataLength():
        raw = np.array(buffer.DataAsNumpy(), np.uint8)
    elif hasattr(buffer, "Offset") and buffer.Offset() > 1:  # behind the flatbuffer, if it is large
        begin, size = buffer.Offset(), buffer.Size()
        if begin + size > len(data):
            raise ModelError(f"{label}: tensor '{name}': its data lies behind the end of the file")
        raw = np.frombuffer(data, np.uint8, size, begin).copy()
    if raw is None or kind not in STORED:
        return None
    if kind == "INT4":
        # Two a byte, the low nibble first; sign extended by shifting up and down again.
        both = np.stack((raw << 4, raw & 0xF0), axis=-1).reshape(-1)
        return (both.view(np.int8) >> 4)[:count].reshape(shape)
    dtype = np.dtype(STORED[kind]).newbyteorder("<")
    if raw.size != count * dtype.itemsize:
        raise ModelError(
            f"{label}: tensor '{name}' has {raw.size} bytes of data; {kind} {list(shape)} "
            f"takes {count * dtype.itemsize}"
        )
    return raw.view(dtype).astype(dtype.newbyteorder("=")).reshape(shape)
