"""Evaluation of one canonical node on known values: NumPy for shape arithmetic, else ONNX.

The table `FAST` holds the operators that shape arithmetic is made of; everything else goes to
`onnx.reference`.  Both give the operator's meaning at `shapes.OPSET`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from toolkit.errors import ModelError
from toolkit.frontend.shapes import array_type, newest_opset, node_proto, OPSET, TO_ONNX
from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import FROM_ONNX, TensorType

MAX_FOLDED_BYTES = 1 << 20
"""A constant larger than this is only made when it is not much larger than what it is made of."""

RANDOM = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)
"""Operators that give another value at each run; never folded."""

SLOW = frozenset(
    "Conv ConvTranspose ConvInteger QLinearConv DeformConv LSTM GRU RNN AveragePool MaxPool LpPool "
    "Resize GridSample RoiAlign NonMaxSuppression Attention LinearAttention DFT STFT".split()
)
"""Operators whose evaluation costs far more than their operands' bytes; folded only if small."""

STORED = frozenset(("DequantizeLinear", "QuantizeLinear", "HalfToFloat"))
"""Operators that are kept on constants: the narrow form is the one to store."""

OF_TYPE = frozenset(("Shape", "Size", "EyeLike"))
"""Operators whose value follows from the input's type alone."""

Attrs = Mapping[str, Any]
Value = np.ndarray


class CannotEvaluate(Exception):
    """`onnx.reference` does not evaluate this node; the text is its reason."""


def evaluate(node: Node, inputs: Sequence[Value | None]) -> list[Value]:
    """Return the values of a node's outputs; raises `CannotEvaluate`."""
    fast = FAST.get(node.op, OWN.get(node.op)) if not node.domain else None
    try:
        with np.errstate(all="ignore"):
            if fast is not None:
                results = fast(node.attrs, *inputs)
                results = results if isinstance(results, list) else [results]
            else:
                results = _reference(node, inputs)
    except Exception as error:  # onnx.reference raises whatever NumPy and its authors raise
        raise CannotEvaluate(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from error
    if len(results) < len(node.outputs):
        raise CannotEvaluate(f"{len(results)} results for {len(node.outputs)} outputs")
    return [np.asarray(r) for r in results[: len(node.outputs)]]


def evaluate_of_type(node: Node, kind: TensorType) -> Value:
    """Return the value of a node in `OF_TYPE` from its input's type."""
    rank = len(kind.shape)
    match node.op:
        case "Shape":
            start, end, _ = slice(node.attrs.get("start", 0), node.attrs.get("end")).indices(rank)
            return np.array(kind.shape[start : max(start, end)], dtype=np.int64)
        case "Size":
            return np.array(kind.size, dtype=np.int64)
        case _:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(
                node.attrs.get("dtype", TO_ONNX[kind.dtype])
            )
            if len(kind.shape) != 2:
                raise ModelError(f"its input of shape {list(kind.shape)} is not a matrix")
            rows, columns = kind.shape
            eye: Value = np.eye(rows, columns, k=node.attrs.get("k", 0), dtype=dtype)
            return eye


def worth_folding(
    node: Node, inputs: Sequence[Value | None], outputs: Sequence[TensorType | None]
) -> bool:
    """Tell whether the constants a node would give are worth their bytes in the firmware."""
    given = sum(v.nbytes for v in inputs if v is not None)
    made = sum(t.size * 8 if t.dtype not in FROM_ONNX.values() else t.nbytes for t in outputs if t)
    if node.op in SLOW and made + given > MAX_FOLDED_BYTES // 16:
        return False
    return made <= MAX_FOLDED_BYTES or made <= 2 * given


def _reference(node: Node, inputs: Sequence[Value | None]) -> list[Value]:
    _check_indices(node, inputs)
    present = {n: v for n, v in zip(node.inputs, inputs, strict=True) if n and v is not None}
    names = [o or f"_unused{i}" for i, o in enumerate(node.outputs)]
    coerce = bool(node.attrs.get("coerce_2d"))
    shape: tuple[int, ...] = ()
    if coerce:
        data = inputs[0]
        assert data is not None
        shape, axis = data.shape, node.attrs["axis"]
        rows = int(np.prod(shape[:axis], dtype=np.int64))
        present[node.inputs[0]] = data.reshape(rows, -1)
        node = node.with_(attrs={"axis": 1})
    graph = onnx.helper.make_graph(
        [node_proto(node.with_(outputs=tuple(names)))],
        "fold",
        [
            onnx.helper.make_tensor_value_info(n, TO_ONNX[array_type(v).dtype], v.shape)
            for n, v in present.items()
        ],
        [onnx.ValueInfoProto(name=n) for n in names],
    )
    imports = [onnx.helper.make_opsetid("", OPSET)]
    if node.domain:
        imports.append(onnx.helper.make_opsetid(node.domain, newest_opset(node.domain)))
    model = onnx.helper.make_model(graph, opset_imports=imports)
    results: list[Any] = list(ReferenceEvaluator(model).run(None, present))
    return [r.reshape(shape) for r in results] if coerce else results


def _check_indices(node: Node, inputs: Sequence[Value | None]) -> None:
    """Refuse indices that would keep `onnx.reference` busy for ever."""
    if node.op == "ScatterElements" and not node.domain:
        data, indices = inputs[0], inputs[1]
        assert data is not None
        if indices is not None and indices.size:
            size = data.shape[node.attrs.get("axis", 0)] if data.ndim else 1
            if indices.min() < -size or indices.max() >= size:
                raise IndexError(f"an index lies outside the axis of size {size}")


# -- the operators of shape arithmetic --------------------------------------------------------


def _binary(function: Callable[[Any, Any], Any]) -> Callable[..., Value]:
    return lambda attrs, a, b: np.asarray(function(a, b))


def _unary(function: Callable[[Any], Any]) -> Callable[..., Value]:
    return lambda attrs, x: np.asarray(function(x))


def _arith(function: Callable[[Any, Any], Any]) -> Callable[..., Value]:
    """An arithmetic operator, which keeps the operands' type (0-d operands included)."""
    return lambda attrs, a, b: np.asarray(function(a, b)).astype(a.dtype, copy=False)


def _divide(a: Value, b: Value) -> Value:
    if a.dtype.kind in "iu":
        # ONNX and C truncate; NumPy's // floors.
        quotient = np.floor_divide(a, b)
        inexact = (quotient * b != a) & ((a < 0) != (b < 0))
        return np.asarray(np.where(inexact, quotient + 1, quotient))
    return np.asarray(np.true_divide(a, b))


def _concat(attrs: Attrs, *inputs: Value) -> Value:
    return np.concatenate(inputs, axis=attrs["axis"])


def _gather(attrs: Attrs, data: Value, indices: Value) -> Value:
    # `take` wraps negative indices and refuses those outside.
    axis: int = attrs.get("axis", 0)
    return np.asarray(np.take(data, indices, axis=axis))


def _gather_elements(attrs: Attrs, data: Value, indices: Value) -> Value:
    axis: int = attrs.get("axis", 0)
    size = data.shape[axis]
    if indices.size and (indices.min() < -size or indices.max() >= size):
        raise IndexError(f"an index lies outside the axis of size {size}")
    return np.take_along_axis(_cropped(data, indices, axis), indices % max(size, 1), axis)


def _cropped(data: Value, indices: Value, axis: int) -> Value:
    """Cut the other axes to the size of the indices, as the specification has it."""
    return data[tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(indices.shape))]


def _slice(
    attrs: Attrs,
    data: Value,
    starts: Value,
    ends: Value,
    axes: Value | None = None,
    steps: Value | None = None,
) -> Value:
    picked = list(range(len(starts))) if axes is None else axes.tolist()
    strides = [1] * len(starts) if steps is None else steps.tolist()
    index: list[slice] = [slice(None)] * data.ndim
    for axis, start, end, step in zip(picked, starts.tolist(), ends.tolist(), strides, strict=True):
        size = data.shape[axis]
        if step < 0 and end < -size:
            end = None
        index[axis] = slice(start, end, step)
    return np.ascontiguousarray(data[tuple(index)])


def _squeeze(attrs: Attrs, data: Value, axes: Value | None = None) -> Value:
    return np.squeeze(data, axis=None if axes is None else tuple(axes.tolist()))


def _unsqueeze(attrs: Attrs, data: Value, axes: Value) -> Value:
    return np.expand_dims(data, tuple(axes.reshape(-1).tolist()))


def _reshape(attrs: Attrs, data: Value, shape: Value) -> Value:
    wanted = shape.tolist()
    if not attrs.get("allowzero"):
        wanted = [data.shape[i] if d == 0 else d for i, d in enumerate(wanted)]
    return data.reshape(wanted)


def _cast(attrs: Attrs, data: Value) -> Value | list[Value]:
    target = FROM_ONNX.get(attrs["to"])
    if target is None or str(data.dtype) not in FROM_ONNX.values():
        inputs = ["x"]
        return _reference(Node("cast", "Cast", tuple(inputs), ("y",), attrs), [data])
    return data.astype(target)


def _constant_of_shape(attrs: Attrs, shape: Value) -> Value:
    fill = attrs.get("value")
    fill = np.zeros(1, np.float32) if fill is None else fill
    return np.full(shape.tolist(), fill.reshape(-1)[0], dtype=fill.dtype)


def _split(attrs: Attrs, data: Value, sizes: Value) -> list[Value]:
    return np.split(data, np.cumsum(sizes)[:-1].tolist(), axis=attrs.get("axis", 0))


def _range(attrs: Attrs, start: Value, limit: Value, delta: Value) -> Value:
    first, step = start.reshape(()), delta.reshape(())
    count = max(int(np.ceil((limit.reshape(()) - first) / step)), 0)
    return np.asarray(first + np.arange(count, dtype=start.dtype) * step, dtype=start.dtype)


def _expand(attrs: Attrs, data: Value, shape: Value) -> Value:
    wanted = np.broadcast_shapes(data.shape, tuple(shape.tolist()))
    return np.array(np.broadcast_to(data, wanted))


def _variadic(function: Callable[[Any, Any], Any]) -> Callable[..., Value]:
    def run(attrs: Attrs, *inputs: Value) -> Value:
        result = inputs[0]
        for other in inputs[1:]:
            result = function(result, other)
        return np.asarray(result)

    return run


def _transpose(attrs: Attrs, data: Value) -> Value:
    return np.ascontiguousarray(np.transpose(data, attrs.get("perm")))


def _flatten(attrs: Attrs, data: Value) -> Value:
    axis = attrs.get("axis", 1)
    return data.reshape(int(np.prod(data.shape[:axis], dtype=np.int64)), -1)


OWN: Mapping[str, Callable[..., Value | list[Value]]] = {
    "HalfToFloat": lambda attrs, bits: bits.view(np.float16).astype(np.float32),
}
"""Operators that ONNX does not have."""

FAST: Mapping[str, Callable[..., Value | list[Value]]] = {
    "Abs": _unary(np.abs),
    "Add": _arith(np.add),
    "And": _binary(np.logical_and),
    "Cast": _cast,
    "Ceil": _unary(np.ceil),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _arith(_divide),
    "Equal": _binary(np.equal),
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _unary(np.floor),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "Identity": lambda attrs, x: x,
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "Max": _variadic(np.maximum),
    "Min": _variadic(np.minimum),
    "Mul": _arith(np.multiply),
    "Neg": _unary(np.negative),
    "Not": _unary(np.logical_not),
    "Or": _binary(np.logical_or),
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Sqrt": _unary(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _arith(np.subtract),
    "Tile": lambda attrs, x, repeats: np.tile(x, tuple(repeats.tolist())),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": lambda attrs, c, x, y: np.asarray(np.where(c, x, y)),
}


def run(graph: Graph, inputs: Mapping[str, Value]) -> dict[str, Value]:
    """Evaluate a whole graph and return its outputs: slow, for checks and for small subgraphs.

    Raises `CannotEvaluate` naming the node.
    """
    known: dict[str, Value] = dict(graph.consts) | dict(inputs)
    for node in graph.nodes:
        values = [known[n] if n else None for n in node.inputs]
        try:
            results = _run_node(node, values)
        except CannotEvaluate as error:
            raise CannotEvaluate(f"node '{node.name}' ({node.op_id}): {error}") from error
        known.update((n, r) for n, r in zip(node.outputs, results, strict=False) if n)
    return {name: known[name] for name in graph.outputs}


def _run_node(node: Node, values: Sequence[Value | None]) -> list[Value]:
    if node.op == "If":
        cond = values[0]
        assert cond is not None
        branch: Graph = node.attrs["then_branch" if bool(cond.reshape(())) else "else_branch"]
        return list(_call(branch, values[1:]))
    if node.op == "Loop":
        return _run_loop(node, values)
    if node.op == "Scan":
        return _run_scan(node, values)
    if node.op in OF_TYPE and not node.domain:
        data = values[0]
        assert data is not None
        return [evaluate_of_type(node, TensorType(data.shape, str(data.dtype)))]
    return evaluate(node, values)


def _call(body: Graph, values: Sequence[Value | None]) -> list[Value]:
    given = {n: v for n, v in zip(body.inputs, values, strict=True) if v is not None}
    results = run(body, given)
    return [results[name] for name in body.outputs]


def _run_loop(node: Node, values: Sequence[Value | None]) -> list[Value]:
    body: Graph = node.attrs["body"]
    count = int(node.attrs["carried"])
    trips, cond = values[0], values[1]
    carried, captured = list(values[2 : 2 + count]), list(values[2 + count :])
    go = True if cond is None else bool(cond.reshape(()))
    stacks: list[list[Value]] = [[] for _ in body.outputs[1 + count :]]
    step = 0
    while go and (trips is None or step < int(trips.reshape(()))):
        index: list[Value | None] = [np.array(step, np.int64), np.array(go)]
        results = _call(body, index + carried + captured)
        go = bool(results[0].reshape(()))
        carried = list(results[1 : 1 + count])
        for stack, item in zip(stacks, results[1 + count :], strict=True):
            stack.append(item)
        step += 1
    made = [
        np.stack(stack) if stack else np.zeros((0, *kind.shape), kind.dtype)
        for stack, kind in zip(
            stacks, (body.types[n] for n in body.outputs[1 + count :]), strict=True
        )
    ]
    return [c for c in carried if c is not None] + made


def _run_scan(node: Node, values: Sequence[Value | None]) -> list[Value]:
    body: Graph = node.attrs["body"]
    count, scans = int(node.attrs["carried"]), int(node.attrs["num_scan_inputs"])
    carried, captured = list(values[:count]), list(values[count + scans :])
    axes = node.attrs.get("scan_input_axes", (0,) * scans)
    backward = node.attrs.get("scan_input_directions", (0,) * scans)
    slices: list[Value] = []
    for value, axis, flip in zip(values[count : count + scans], axes, backward, strict=True):
        assert value is not None
        moved = np.moveaxis(value, axis, 0)
        slices.append(moved[::-1] if flip else moved)
    stacks: list[list[Value]] = [[] for _ in body.outputs[count:]]
    for step in range(len(slices[0])):
        results = _call(body, carried + [s[step] for s in slices] + captured)
        carried = list(results[:count])
        for stack, item in zip(stacks, results[count:], strict=True):
            stack.append(item)
    out_axes = node.attrs.get("scan_output_axes", (0,) * len(stacks))
    flips = node.attrs.get("scan_output_directions", (0,) * len(stacks))
    made = [
        np.stack(stack[::-1] if flip else stack, axis=axis)
        for stack, axis, flip in zip(stacks, out_axes, flips, strict=True)
    ]
    return [c for c in carried if c is not None] + made
