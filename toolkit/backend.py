"""nestling as an ONNX backend, in the form of `onnxruntime.backend`: prepare, run_model.

A model is compiled when it first runs, for the shapes of the arrays it is given.  An input that
decides shapes, axes or pads cannot stay open in C: its value is pinned, and another value compiles
anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from toolkit.errors import ModelError, NestlingError, UnsupportedError
from toolkit.ir.types import DTYPES
from toolkit.pipeline import compile_model, Compiled, load, Model, Options
from toolkit.runners import BuiltModel

OPTIONS = Options(cflags=("-O1",))


class PreparedModel:
    """A model that compiles itself at the first run."""

    def __init__(self, model: onnx.ModelProto, options: Options = OPTIONS) -> None:
        self.model = model
        self.options = options
        initialised = {t.name for t in model.graph.initializer}
        self.inputs = [i.name for i in model.graph.input if i.name not in initialised]
        self.outputs = [o.name for o in model.graph.output]
        self._built: dict[tuple[Any, ...], tuple[BuiltModel, frozenset[str]]] = {}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """Run on a list of arrays, or a dict by name; return the outputs in order."""
        if isinstance(inputs, dict):
            arrays = {n: np.asarray(a) for n, a in inputs.items()}
        elif isinstance(inputs, np.ndarray):
            arrays = {self.inputs[0]: inputs}
        elif len(inputs) > len(self.inputs):
            raise NestlingError(f"{len(inputs)} inputs given; the model has {len(self.inputs)}.")
        else:
            arrays = {n: np.asarray(a) for n, a in zip(self.inputs, inputs, strict=False)}
        built, pinned = self._prepare(arrays)
        found = built.run({n: a for n, a in arrays.items() if n not in pinned})
        return tuple(found[n] for n in self.outputs)

    def close(self) -> None:
        """End the child processes."""
        for built, _ in self._built.values():
            built.close()

    def _prepare(self, arrays: dict[str, np.ndarray]) -> tuple[BuiltModel, frozenset[str]]:
        shapes = tuple((n, a.shape, str(a.dtype)) for n, a in arrays.items())
        for (known, values), (built, pinned) in self._built.items():
            if known == shapes and values == _values(arrays, pinned):
                return built, pinned
        compiled, pinned = compile_for(self.model, arrays, self.options)
        built = BuiltModel(compiled)
        self._built[(shapes, _values(arrays, pinned))] = (built, pinned)
        return built, pinned


def _values(arrays: Mapping[str, np.ndarray], names: frozenset[str]) -> tuple[Any, ...]:
    return tuple((n, arrays[n].tobytes()) for n in sorted(names))


def compile_for(
    model: onnx.ModelProto,
    arrays: Mapping[str, np.ndarray],
    options: Options = OPTIONS,
    name: str = "model",
) -> tuple[Compiled, frozenset[str]]:
    """Compile a model for inputs like these; return it with the names of the inputs it pinned."""
    imported, pinned = import_for(model, arrays, name)
    return compile_model(imported, options), pinned


def import_for(
    model: onnx.ModelProto, arrays: Mapping[str, np.ndarray], name: str = "model"
) -> tuple[Model, frozenset[str]]:
    """Import a model for inputs like these; return it with the names of the inputs it pinned.

    As few inputs as possible become constants: none, else one, else all small integers, else all
    that are small.
    """
    small = [n for n, a in arrays.items() if may_carry_shape(a)]
    integers = [n for n in small if arrays[n].dtype.kind != "f"]
    attempts = ([], *([n] for n in reversed(small)), integers, small)
    first: UnsupportedError | ModelError | None = None
    for pinned in dict.fromkeys(map(frozenset, attempts)):
        shapes = {n: tuple(a.shape) for n, a in arrays.items() if n not in pinned}
        pins = {n: arrays[n] for n in pinned}
        try:
            return load(model, input_shapes=shapes, pins=pins, name=name), pinned
        except (UnsupportedError, ModelError) as error:
            first = first or error
    assert first is not None
    raise first


def may_carry_shape(array: np.ndarray) -> bool:
    """Tell whether an input may decide shapes, axes, pads or a mode: small, of rank 0 or 1."""
    return array.ndim <= 1 and array.size <= 64 and array.dtype.kind in "iubf"


def prepare(model: Any, device: str = "CPU", **kwargs: Any) -> PreparedModel:
    """Return a model ready to run; `model` is a ModelProto, bytes or a path."""
    if not supports_device(device):
        raise UnsupportedError(f"device {device!r} is not supported; nestling runs on CPU.")
    if isinstance(model, bytes):
        model = onnx.load_model_from_string(model)
    elif not isinstance(model, onnx.ModelProto):
        model = onnx.load(str(model))
    return PreparedModel(model)


def run_model(
    model: Any, inputs: Sequence[np.ndarray], device: str = "CPU", **kwargs: Any
) -> tuple[np.ndarray, ...]:
    """Compile and run a model once."""
    prepared = prepare(model, device, **kwargs)
    try:
        return prepared.run(inputs)
    finally:
        prepared.close()


def run_node(
    node: onnx.NodeProto,
    inputs: Sequence[np.ndarray],
    device: str = "CPU",
    outputs_info: Any = None,
    **kwargs: Any,
) -> tuple[np.ndarray, ...]:
    """Compile and run one node, of the newest opset or `opset_version`.

    `inputs` are those that the node has, without the absent optional ones.  `outputs_info` is not
    needed.
    """
    opset = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
    graph = onnx.helper.make_graph(
        [node],
        node.op_type,
        [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(filter(None, node.input), inputs, strict=True)
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    imports = [onnx.helper.make_opsetid("", opset)]
    if node.domain:
        imports.append(onnx.helper.make_opsetid(node.domain, 1))
    model = onnx.helper.make_model(graph, opset_imports=imports)
    return run_model(model, inputs, device, **kwargs)


def supports_device(device: str) -> bool:
    """Tell whether the ONNX device name is supported: CPU only."""
    return device.split(":")[0].upper() == "CPU"


def is_compatible(model: Any, device: str = "CPU", **kwargs: Any) -> bool:
    """Tell whether the model's inputs and outputs have types that nestling compiles."""
    known = {info.onnx for info in DTYPES.values()}
    return all(
        v.type.tensor_type.elem_type in known for v in (*model.graph.input, *model.graph.output)
    )
