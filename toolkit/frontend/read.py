"""Bytes to `ModelProto`, and ONNX tensors to NumPy arrays.  Knows files, not operators."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, numpy_helper

from toolkit.errors import ModelError

MAX_ELEMENTS = 2**31
"""No tensor of a model for a small device is larger; a corrupt file easily claims one that is."""


def read_model(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> onnx.ModelProto:
    """Read a model from a path, from bytes, or take one that is already parsed.

    Raises `ModelError` when there is no such file or when it is not an ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, bytes):
        return _parse(source, "<bytes>")
    return _parse(read_bytes(source), str(source))


def read_bytes(source: str | os.PathLike[str] | bytes) -> bytes:
    """Return the bytes of a model; raises `ModelError` when there is no such file."""
    if isinstance(source, bytes):
        return source
    path = Path(source)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ModelError(f"{path}: is a folder, not a model file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"{path}: cannot be read: {reason}") from None
    return data


def check_text(model: onnx.ModelProto, label: str) -> None:
    """Refuse names that are not text; protobuf hands those out as bytes."""
    texts: list[object] = []
    for entry in model.opset_import:
        texts.append(entry.domain)
    for function in model.functions:
        texts += [function.name, function.domain, function.overload]
        texts += [*function.input, *function.output, *function.attribute]
        _collect(function.node, texts)
    _collect_graph(model.graph, texts)
    for text in texts:
        if not isinstance(text, str):
            raise ModelError(f"{label}: a name in the file is not valid text: {text!r}"[:300])


def _collect_graph(graph: onnx.GraphProto, texts: list[object]) -> None:
    texts.append(graph.name)
    texts += [tensor.name for tensor in graph.initializer]
    texts += [sparse.values.name for sparse in graph.sparse_initializer]
    for info in (*graph.input, *graph.output):
        texts.append(info.name)
        texts += [dim.dim_param for dim in info.type.tensor_type.shape.dim]
    _collect(graph.node, texts)


def _collect(nodes: Iterable[onnx.NodeProto], texts: list[object]) -> None:
    for node in nodes:
        texts += [node.name, node.op_type, node.domain, node.overload, *node.input, *node.output]
        for attribute in node.attribute:
            texts += [attribute.name, attribute.ref_attr_name]
            if attribute.HasField("g"):
                _collect_graph(attribute.g, texts)
            for graph in attribute.graphs:
                _collect_graph(graph, texts)


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{what}: the file is empty")
    if data[4:8] == b"TFL3":
        raise ModelError(f"{what}: is a TFLite model, not an ONNX model")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise ModelError(
            f"{what}: is not an ONNX model, or is truncated ({len(data)} bytes)"
        ) from None
    if not model.HasField("graph") or not model.ir_version:
        raise ModelError(f"{what}: is not an ONNX model: it holds no graph")
    return model


def base_folder(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> Path | None:
    """Return the folder to which external data is relative; None without a file."""
    return None if isinstance(source, bytes | onnx.ModelProto) else Path(source).parent


def to_array(tensor: onnx.TensorProto, folder: Path | None) -> np.ndarray:
    """Return the value of a dense tensor, loading external data from `folder`.

    Element types NumPy lacks come as `ml_dtypes`, strings as an object array.
    """
    name = tensor.name or "(unnamed)"
    if any(d < 0 for d in tensor.dims) or _count(tensor.dims) > MAX_ELEMENTS:
        raise ModelError(f"tensor '{name}': impossible shape {list(tensor.dims)}")
    if external_data_helper.uses_external_data(tensor):
        tensor = _load_external(tensor, folder)
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, NotImplementedError, UnicodeError) as error:
        raise ModelError(f"tensor '{name}': bad data: {_one_line(error)}") from None
    if tensor.data_type == onnx.TensorProto.STRING:
        array = array.astype(object)
    if array.shape != tuple(tensor.dims):
        raise ModelError(
            f"tensor '{name}': has {array.size} elements, its shape {list(tensor.dims)} "
            f"needs {_count(tensor.dims)}"
        )
    return array


def _load_external(tensor: onnx.TensorProto, folder: Path | None) -> onnx.TensorProto:
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location = fields.get("location", "")
    what = f"tensor '{tensor.name}': its data is in the file '{location}' beside the model"
    if folder is None:
        raise ModelError(f"{what}, but the model was not read from a file")
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    if not (folder / location).is_file():
        raise ModelError(f"{what}, and {folder / location} is not there")
    try:
        external_data_helper.load_external_data_for_tensor(copy, str(folder))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{what}, which cannot be read: {_one_line(error)}") from None
    copy.data_location = onnx.TensorProto.DEFAULT
    del copy.external_data[:]
    return copy


def sparse_to_array(sparse: onnx.SparseTensorProto, folder: Path | None) -> np.ndarray:
    """Return the dense value of a sparse tensor (indices linear, or one row a value)."""
    name = sparse.values.name or "(unnamed)"
    shape = tuple(sparse.dims)
    if any(d < 0 for d in shape) or _count(shape) > MAX_ELEMENTS:
        raise ModelError(f"sparse tensor '{name}': impossible shape {list(shape)}")
    values = to_array(sparse.values, folder)
    indices = to_array(sparse.indices, folder)
    dense = np.zeros(_count(shape), dtype=values.dtype)
    if indices.ndim == 2 and indices.shape[1] == len(shape):
        if indices.size and (indices.min() < 0 or bool((indices >= np.array(shape)).any())):
            raise ModelError(f"sparse tensor '{name}': an index lies outside {list(shape)}")
        linear = np.ravel_multi_index(tuple(indices.T), shape) if indices.size else indices[:, 0]
    else:
        linear = indices.reshape(-1)
    if linear.size != values.size:
        raise ModelError(f"sparse tensor '{name}': {values.size} values but {linear.size} indices")
    if linear.size and (linear.min() < 0 or linear.max() >= dense.size):
        raise ModelError(f"sparse tensor '{name}': an index lies outside {list(shape)}")
    dense[linear] = values.reshape(-1)
    return dense.reshape(shape)


def _count(dims: Iterable[int]) -> int:
    total = 1
    for dim in dims:
        total *= dim
    return total


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
