"""Element types and tensor types.  Nothing here knows what an operator is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

DType = str
"""An element type, named as NumPy names it: a key of `DTYPES`."""


@dataclass(frozen=True, slots=True)
class DTypeInfo:
    """Facts of one element type: storage size, C spelling, and its class of arithmetic."""

    name: str
    nbytes: int
    c_name: str
    kind: str
    """'f' float, 'i' signed integer, 'u' unsigned integer, 'b' boolean."""
    onnx: int
    """`onnx.TensorProto.DataType` value."""


DTYPES: dict[DType, DTypeInfo] = {
    i.name: i
    for i in (
        DTypeInfo("float32", 4, "float", "f", 1),
        DTypeInfo("float64", 8, "double", "f", 11),
        DTypeInfo("int8", 1, "int8_t", "i", 3),
        DTypeInfo("int16", 2, "int16_t", "i", 5),
        DTypeInfo("int32", 4, "int32_t", "i", 6),
        DTypeInfo("int64", 8, "int64_t", "i", 7),
        DTypeInfo("uint8", 1, "uint8_t", "u", 2),
        DTypeInfo("uint16", 2, "uint16_t", "u", 4),
        DTypeInfo("uint32", 4, "uint32_t", "u", 12),
        DTypeInfo("uint64", 8, "uint64_t", "u", 13),
        DTypeInfo("bool", 1, "uint8_t", "b", 9),
    )
}

FROM_ONNX: dict[int, DType] = {info.onnx: name for name, info in DTYPES.items()}


def is_float(dtype: DType) -> bool:
    """Tell whether `dtype` is a floating type."""
    return DTYPES[dtype].kind == "f"


def int_range(dtype: DType) -> tuple[int, int]:
    """Return the smallest and largest value of an integer type (0..1 for bool)."""
    info = DTYPES[dtype]
    if info.kind == "b":
        return 0, 1
    bits = 8 * info.nbytes
    return (0, 2**bits - 1) if info.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor's static shape and element type.  Storage is dense and row-major."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense storage."""
        return self.size * DTYPES[self.dtype].nbytes

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def type_of(array: np.ndarray) -> TensorType:
    """Return the `TensorType` of a NumPy array whose dtype is one of `DTYPES`."""
    return TensorType(tuple(map(int, array.shape)), str(array.dtype))
