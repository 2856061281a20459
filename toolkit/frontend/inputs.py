"""Shapes of the model's inputs: what the file leaves open, what the flags say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from toolkit.errors import ModelError
from toolkit.frontend.shapes import dtype_name, TO_ONNX
from toolkit.ir.types import TensorType

_NOT_BATCH = re.compile(
    r"seq|len|time|frame|sample|token|step|height|width|channel|feature|length|point|^[hwtcls]$",
    re.IGNORECASE,
)
"""Names of leading axes that are not a batch, whatever their place."""


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input as the file declares it; a dimension is a size, a name, or None."""

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None
    kind: str = "tensor"

    def __str__(self) -> str:
        if self.kind != "tensor":
            return f"{self.name}: {self.kind}"
        if self.dims is None:
            return f"{self.name}: {self.dtype}, of any rank"
        shape = ", ".join("?" if d is None else str(d) for d in self.dims)
        return f"{self.name}: {self.dtype}[{shape}]"


def declared(info: onnx.ValueInfoProto) -> Input:
    """Read one graph input."""
    kind = info.type.WhichOneof("value") or "tensor_type"
    if kind != "tensor_type":
        return Input(info.name, "", None, kind.removesuffix("_type").replace("_", " "))
    tensor = info.type.tensor_type
    if dtype_name(tensor.elem_type) not in TO_ONNX:
        raise ModelError(f"input '{info.name}' has no element type that ONNX knows")
    dims: list[int | str | None] | None = None
    if tensor.HasField("shape"):
        dims = []
        for dim in tensor.shape.dim:
            if dim.HasField("dim_value"):
                dims.append(dim.dim_value if dim.dim_value > 0 else None)
            elif dim.dim_param.isidentifier() or re.search(r"[^\W\d]", dim.dim_param):
                dims.append(dim.dim_param)
            else:  # absent, '', '-1', '?'
                dims.append(None)
    return Input(info.name, dtype_name(tensor.elem_type), None if dims is None else tuple(dims))


@dataclass
class _Solver:
    label: str
    inputs: Sequence[Input]
    bound: dict[str, int] = field(default_factory=dict)
    """dim_param -> size."""
    why: dict[str, str] = field(default_factory=dict)

    def bind(self, name: str, size: int, why: str) -> None:
        if self.bound.setdefault(name, size) != size:
            raise ModelError(
                f"{self.label}: dimension '{name}' would be {self.bound[name]} "
                f"({self.why[name]}) and {size} ({why})"
            )
        self.why.setdefault(name, why)

    def match(self, item: Input, shape: Sequence[int], why: str) -> None:
        """Bind an input's names to the sizes of a whole shape, or refuse it."""
        shown = "x".join(map(str, shape)) or "scalar"
        if item.dims is None:
            return
        if len(item.dims) != len(shape):
            raise ModelError(
                f"{self.label}: {why}: shape {shown} has rank {len(shape)}, input '{item.name}' "
                f"has rank {len(item.dims)}",
                state=self.listing(),
            )
        for axis, (dim, size) in enumerate(zip(item.dims, shape, strict=True)):
            if size < 0:
                raise ModelError(f"{self.label}: {why}: axis {axis} has size {size}")
            if isinstance(dim, str):
                self.bind(dim, size, why)
            elif dim is not None and dim != size:
                raise ModelError(
                    f"{self.label}: {why}: axis {axis} of input '{item.name}' is fixed to {dim} "
                    f"by the model, not {size}",
                    state=self.listing(),
                )

    def listing(self) -> list[str]:
        return ["inputs:", *(f"  {item}" for item in self.inputs)]


def resolve(
    label: str,
    inputs: Sequence[Input],
    dims: Mapping[str, int],
    input_shapes: Mapping[str, Sequence[int]],
    pins: Mapping[str, np.ndarray],
    notes: list[str],
) -> tuple[dict[str, TensorType], dict[str, np.ndarray], dict[str, int]]:
    """Return the types of the inputs, the values of the pinned ones, and the named dimensions.

    Raises one `ModelError` that lists every dimension still open.
    """
    solver = _Solver(label, inputs)
    by_name = {item.name: item for item in inputs}
    for flag, names in (("--input-shape", input_shapes), ("--set", pins)):
        for name in names:
            if name not in by_name:
                raise ModelError(
                    f"{label}: {flag} {name}: the model has no such input", state=solver.listing()
                )
    named = {d for item in inputs for d in item.dims or () if isinstance(d, str)}
    for name, size in dims.items():
        if name not in named:
            raise ModelError(
                f"{label}: --dim {name}={size}: no input has a dimension of that name",
                state=[f"named: {', '.join(sorted(named)) or 'none'}", *solver.listing()],
            )
        if size < 1:
            raise ModelError(f"{label}: --dim {name}={size}: the size must be positive")
        solver.bind(name, size, f"--dim {name}={size}")
    for name, shape in input_shapes.items():
        text = "x".join(map(str, shape))
        solver.match(by_name[name], shape, f"--input-shape {name}={text}")
    pinned = {name: _pin(solver, by_name[name], np.asarray(value)) for name, value in pins.items()}
    _default_batch(solver, {*input_shapes, *pins}, notes)
    types, open_dims = _fixed(solver, input_shapes, pinned)
    if open_dims:
        raise ModelError(
            f"{label}: {len(open_dims)} dimension{'s' * (len(open_dims) > 1)} of its inputs "
            f"{'are' if len(open_dims) > 1 else 'is'} still open",
            state=[text for text, _ in open_dims],
            hint="fix with " + " ".join(dict.fromkeys(flag for _, flag in open_dims)),
        )
    return types, pinned, solver.bound


def _pin(solver: _Solver, item: Input, value: np.ndarray) -> np.ndarray:
    why = f"--set {item.name}"
    if item.kind != "tensor":
        raise ModelError(f"{solver.label}: {why}: the input is a {item.kind}")
    try:
        wanted = np.dtype(item.dtype)
        with np.errstate(all="ignore"):
            cast = value.astype(wanted)
        same = bool(np.all(cast == value)) or bool(np.allclose(cast, value, equal_nan=True))
    except (TypeError, ValueError):
        raise ModelError(
            f"{solver.label}: {why}: a value of type {value.dtype} cannot be {item.dtype}"
        ) from None
    if not same:
        raise ModelError(f"{solver.label}: {why}: the value does not fit type {item.dtype}")
    if item.dims is not None and cast.size == 1 and all(d in (1, None) for d in item.dims):
        cast = cast.reshape((1,) * len(item.dims))
    solver.match(item, cast.shape, why)
    return cast


def _default_batch(solver: _Solver, given: set[str], notes: list[str]) -> None:
    """Fix leading open dimensions to 1, and say so."""
    for item in solver.inputs:
        if item.name in given or not item.dims or len(item.dims) < 2:
            continue
        dim = item.dims[0]
        if isinstance(dim, int) or (isinstance(dim, str) and dim in solver.bound):
            continue
        if dim is None or not _NOT_BATCH.search(dim.replace("unk__", "")):
            if isinstance(dim, str):
                solver.bind(dim, 1, "batch")
                notes.append(
                    f"batch dimension '{dim}' of input '{item.name}' is open and was set to 1 "
                    f"(for example --dim {dim}=4 sets another)"
                )
            else:
                notes.append(
                    f"batch dimension of input '{item.name}' is open and was set to 1 "
                    f"(--input-shape {item.name}=... sets another)"
                )


def _fixed(
    solver: _Solver, input_shapes: Mapping[str, Sequence[int]], pinned: Mapping[str, np.ndarray]
) -> tuple[dict[str, TensorType], list[tuple[str, str]]]:
    types: dict[str, TensorType] = {}
    open_dims: list[tuple[str, str]] = []
    for item in solver.inputs:
        if item.kind != "tensor" or item.name in pinned:
            continue
        if item.name in input_shapes:
            types[item.name] = TensorType(tuple(input_shapes[item.name]), item.dtype)
            continue
        if item.dims is None:
            open_dims.append(
                (f"input '{item.name}': the whole shape", f"--input-shape {item.name}=1x3x224x224")
            )
            continue
        shape: list[int] = []
        left: list[tuple[int, str | None]] = []
        for axis, dim in enumerate(item.dims):
            size = solver.bound.get(dim) if isinstance(dim, str) else dim
            if size is None and axis == 0 and dim is None and len(item.dims) > 1:
                size = 1
            if size is None:
                assert not isinstance(dim, int)
                left.append((axis, dim))
            shape.append(size or 0)
        wanted = "x".join(str(d) if d else "N" for d in shape)
        for axis, name in left:
            flag = f"--dim {name}=N" if name else f"--input-shape {item.name}={wanted}"
            what = f" ('{name}')" if name else ""
            open_dims.append((f"input '{item.name}': axis {axis}{what}", flag))
        if not left:
            types[item.name] = TensorType(tuple(shape), item.dtype)
    return types, open_dims
