"""TFLite files of one operator, written with the builders of the package `tflite`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

TYPES = {"float32": 0, "int32": 2, "uint8": 3, "int16": 7, "int8": 9}


@dataclass(frozen=True)
class Operand:
    """A tensor; `scale` None for floats; `data` where it is a constant, None for an input."""

    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None
    zero: int = 0
    data: np.ndarray | None = field(default=None, compare=False)

    def random(self, rng: np.random.Generator) -> np.ndarray:
        if self.dtype == "float32":
            return (rng.normal(size=self.shape) * 3).astype(np.float32)
        limits = np.iinfo(self.dtype)
        return rng.integers(limits.min, limits.max + 1, self.shape).astype(self.dtype)


def _vector(
    b: Any, start: Callable[[Any, int], Any], items: Sequence[Any], kind: str = "UOffsetTRelative"
) -> int:
    start(b, len(items))
    for item in reversed(items):
        getattr(b, f"Prepend{kind}")(item)
    return b.EndVector()


def constant(values: Any, dtype: str, scale: float | None = None, zero: int = 0) -> Operand:
    """Return a constant operand."""
    data = np.asarray(values, dtype)
    return Operand(data.shape, dtype, scale, zero, data)


def _tensor(b: Any, name: str, operand: Operand, buffer: int) -> int:
    text = b.CreateString(name)
    shape = _vector(b, tflite.TensorStartShapeVector, operand.shape, "Int32")
    quant = None
    if operand.scale is not None:
        start = tflite.QuantizationParametersStartScaleVector
        scale = _vector(b, start, [operand.scale], "Float32")
        start = tflite.QuantizationParametersStartZeroPointVector
        zero = _vector(b, start, [operand.zero], "Int64")
        tflite.QuantizationParametersStart(b)
        tflite.QuantizationParametersAddScale(b, scale)
        tflite.QuantizationParametersAddZeroPoint(b, zero)
        quant = tflite.QuantizationParametersEnd(b)
    tflite.TensorStart(b)
    tflite.TensorAddShape(b, shape)
    tflite.TensorAddType(b, TYPES[operand.dtype])
    tflite.TensorAddBuffer(b, buffer)
    tflite.TensorAddName(b, text)
    if quant is not None:
        tflite.TensorAddQuantization(b, quant)
    return tflite.TensorEnd(b)


def model_of(
    op: str,
    inputs: Sequence[Operand],
    output: Operand,
    options: str = "",
    version: int = 2,
    **values: Any,
) -> bytes:
    """Return a file with one operator; `options` names its option table, `values` its fields."""
    b = flatbuffers.Builder(1024)
    tflite.BufferStart(b)
    buffers = [tflite.BufferEnd(b)]
    count = len(inputs)
    tensors = []
    for i, operand in enumerate((*inputs, output)):
        place = 0
        if operand.data is not None:
            data = b.CreateByteVector(operand.data.tobytes())
            tflite.BufferStart(b)
            tflite.BufferAddData(b, data)
            place = len(buffers)
            buffers.append(tflite.BufferEnd(b))
        tensors.append(_tensor(b, f"t{i}", operand, place))
    given = [i for i, operand in enumerate(inputs) if operand.data is None]
    table = None
    if options:
        getattr(tflite, f"{options}Start")(b)
        for name, value in values.items():
            getattr(tflite, f"{options}Add{name}")(b, value)
        table = getattr(tflite, f"{options}End")(b)
    ins = _vector(b, tflite.OperatorStartInputsVector, range(count), "Int32")
    outs = _vector(b, tflite.OperatorStartOutputsVector, [count], "Int32")
    tflite.OperatorStart(b)
    tflite.OperatorAddOpcodeIndex(b, 0)
    tflite.OperatorAddInputs(b, ins)
    tflite.OperatorAddOutputs(b, outs)
    if table is not None:
        tflite.OperatorAddBuiltinOptionsType(b, getattr(tflite.BuiltinOptions, options))
        tflite.OperatorAddBuiltinOptions(b, table)
    operator = tflite.OperatorEnd(b)
    all_tensors = _vector(b, tflite.SubGraphStartTensorsVector, tensors)
    ins = _vector(b, tflite.SubGraphStartInputsVector, given, "Int32")
    outs = _vector(b, tflite.SubGraphStartOutputsVector, [count], "Int32")
    operators = _vector(b, tflite.SubGraphStartOperatorsVector, [operator])
    tflite.SubGraphStart(b)
    tflite.SubGraphAddTensors(b, all_tensors)
    tflite.SubGraphAddInputs(b, ins)
    tflite.SubGraphAddOutputs(b, outs)
    tflite.SubGraphAddOperators(b, operators)
    graph = tflite.SubGraphEnd(b)
    number = getattr(tflite.BuiltinOperator, op)
    tflite.OperatorCodeStart(b)
    tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(number, 127))
    tflite.OperatorCodeAddBuiltinCode(b, number)
    tflite.OperatorCodeAddVersion(b, version)
    code = tflite.OperatorCodeEnd(b)
    codes = _vector(b, tflite.ModelStartOperatorCodesVector, [code])
    graphs = _vector(b, tflite.ModelStartSubgraphsVector, [graph])
    all_buffers = _vector(b, tflite.ModelStartBuffersVector, buffers)
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddOperatorCodes(b, codes)
    tflite.ModelAddSubgraphs(b, graphs)
    tflite.ModelAddBuffers(b, all_buffers)
    b.Finish(tflite.ModelEnd(b), b"TFL3")
    return bytes(b.Output())
