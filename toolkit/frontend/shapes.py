"""Type inference of one canonical node: ONNX's own rules, on static shapes and known values.

The nodes are in the form of `canonical.py`, so the rules asked are those of the newest opset.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference

from toolkit.errors import ModelError
from toolkit.frontend.attributes import make
from toolkit.frontend.read import MAX_ELEMENTS
from toolkit.ir.graph import Node
from toolkit.ir.types import FROM_ONNX, TensorType

OPSET = onnx.defs.onnx_opset_version()
"""The ai.onnx version whose meaning canonical nodes have: the newest that `onnx` knows."""

EXOTIC: dict[int, str] = {
    value: name.lower()
    for name, value in onnx.TensorProto.DataType.items()
    if value not in FROM_ONNX and value != onnx.TensorProto.UNDEFINED
}
"""Element types outside `DTYPES` ('float16', 'string', 'int4', ...), by ONNX number."""

TO_ONNX: dict[str, int] = {name: value for value, name in (FROM_ONNX | EXOTIC).items()} | {
    "object": onnx.TensorProto.STRING
}

DATA_DEPENDENT = frozenset(
    "Compress NonMaxSuppression NonZero StringSplit TfIdfVectorizer Unique".split()
)
"""Operators whose output shape depends on the values they read, not only on shapes."""

SAME_TYPE = frozenset(("GroupNormalization", "MeanVarianceNormalization"))
"""Operators without an inference rule in `onnx` whose output is like their first input."""

SHAPE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    **{
        f"Reduce{kind}": (1,)
        for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
    },
}
"""Inputs whose value decides the shape of the output; they must be known at import."""


class Underivable(Exception):
    """A node's output type cannot be derived; the text is the reason, for the user."""


@functools.lru_cache(maxsize=4096)
def type_proto(kind: TensorType) -> onnx.TypeProto:
    """Return the ONNX type of a `TensorType`."""
    return onnx.helper.make_tensor_type_proto(TO_ONNX[kind.dtype], kind.shape)


def dtype_name(elem_type: int) -> str:
    """Return the name of an ONNX element type, those outside `DTYPES` included."""
    return FROM_ONNX.get(elem_type) or EXOTIC.get(elem_type, f"type {elem_type}")


def array_type(value: np.ndarray) -> TensorType:
    """Return the type of an array, its element type by ONNX's name where NumPy has none."""
    name = str(value.dtype)
    if value.dtype == object:
        name = "string"
    elif name not in TO_ONNX:
        name = dtype_name(int(onnx.helper.np_dtype_to_tensor_dtype(value.dtype)))
    return TensorType(tuple(map(int, value.shape)), name)


@functools.lru_cache(maxsize=1024)
def schema_of(op: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    """Return the schema of an operator as of an opset version, or None."""
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


@functools.lru_cache(maxsize=64)
def newest_opset(domain: str) -> int:
    """Return the newest opset version of a domain that `onnx` knows; 1 for a foreign domain."""
    if domain == "":
        return OPSET
    return int(onnx.defs.onnx_ml_opset_version()) if domain == "ai.onnx.ml" else 1


def node_proto(node: Node) -> onnx.NodeProto:
    """Return a node (without subgraphs) as ONNX writes it."""
    proto = onnx.NodeProto(op_type=node.op, name=node.name, domain=node.domain)
    proto.input.extend(node.inputs)
    proto.output.extend(node.outputs)
    proto.attribute.extend(
        make(key, value) for key, value in node.attrs.items() if key != "coerce_2d"
    )
    return proto


def infer_onnx(
    node: Node,
    types: Sequence[TensorType | None],
    values: Sequence[np.ndarray | None],
) -> list[TensorType | None]:
    """Return the types of a node's outputs by ONNX's rules (None for an unused output).

    Raises `Underivable` with the reason when they are not fully static, `ModelError` when the
    input types contradict the operator.
    """
    schema = schema_of(node.op, node.domain, newest_opset(node.domain))
    if schema is None:
        raise Underivable(f"no type rule is known for operator {node.op_id}")
    for position in SHAPE_OPERANDS.get(node.op, ()) if not node.domain else ():
        if position < len(values) and node.inputs[position] and values[position] is None:
            raise Underivable(
                f"its output shape depends on the value of '{node.inputs[position]}', which is "
                f"known only at run time"
            )
    if not node.domain and node.op in DATA_DEPENDENT:
        raise Underivable("its output shape depends on the data, known only at run time")
    # Inference writes into dictionaries by name, so outputs need names and inputs need types.
    proto = node_proto(node.with_(outputs=tuple(o or f"\0{i}" for i, o in enumerate(node.outputs))))
    known = {n: type_proto(t) for n, t in zip(node.inputs, types, strict=True) if n and t}
    data = {
        n: numpy_helper.from_array(v, n)
        for n, v in zip(node.inputs, values, strict=True)
        if n and v is not None and v.size <= 1024 and v.dtype != object
    }
    imports = [onnx.helper.make_opsetid("", OPSET)]
    if node.domain:
        imports.append(onnx.helper.make_opsetid(node.domain, newest_opset(node.domain)))
    if node.op in SAME_TYPE and not node.domain:
        return [types[0], *[None] * (len(node.outputs) - 1)]
    if node.op == "MaxUnpool" and not node.domain and len(values) > 2 and types[0]:
        shape = values[2]
        if shape is not None:
            return [TensorType(tuple(shape.reshape(-1).tolist()), types[0].dtype)]
    try:
        found = shape_inference.infer_node_outputs(
            schema, proto, known, data, opset_imports=imports
        )
    except (
        shape_inference.InferenceError,
        onnx.checker.ValidationError,
        onnx.defs.SchemaError,
    ) as error:
        raise ModelError(_reason(error)) from None
    result: list[TensorType | None] = []
    for name, wanted in zip(proto.output, node.outputs, strict=True):
        result.append(static_type(found.get(name)) if wanted else None)
    return result


def static_type(proto: onnx.TypeProto | None) -> TensorType:
    """Return a fully static tensor type, or raise `Underivable`."""
    if proto is None or not proto.HasField("tensor_type"):
        kind = proto.WhichOneof("value") if proto is not None else None
        raise Underivable(f"an output is a {kind.split('_')[0]}" if kind else "no type was derived")
    tensor = proto.tensor_type
    if not tensor.elem_type:
        raise Underivable("the element type could not be derived")
    if not tensor.HasField("shape"):
        raise Underivable("the rank could not be derived")
    shape = []
    for axis, dim in enumerate(tensor.shape.dim):
        if not dim.HasField("dim_value") or dim.dim_value < 0:
            raise Underivable(f"the size of axis {axis} of its output could not be derived")
        shape.append(int(dim.dim_value))
    kind_ = TensorType(tuple(shape), dtype_name(tensor.elem_type))
    if kind_.size > MAX_ELEMENTS:
        raise ModelError(f"an output of shape {list(shape)} is too large")
    return kind_


def _reason(error: Exception) -> str:
    """Return the one informative line of an ONNX inference error."""
    text = " ".join(str(error).split())
    for prefix in ("[ShapeInferenceError]", "[TypeInferenceError]"):
        text = text.replace(prefix, "")
    return text.strip()[:300]
