"""Exact algebra: canonical forms, pairs that cancel, and strength reduction that keeps every bit.

After it: Flatten, Squeeze, Unsqueeze are Reshape with a constant shape; a Transpose moves an axis
longer than 1; Gather of a run of constant indices is Slice; global pools are reductions; Sub of a
constant is Add; bounds known to be constant scalars are Clip or Relu.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from toolkit.frontend import reference
from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import DType, DTYPES, FROM_ONNX, int_range, is_float, TensorType
from toolkit.ops.elementwise import ELEMENTWISE_OPS
from toolkit.ops.op import Op
from toolkit.ops.views import runs
from toolkit.passes.edit import Edit, merged, rewrite, Rule
from toolkit.passes.eliminate import IDENTITIES, VIEWS

BROADCASTING = (
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Where", "Equal", "Less",
    "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor", "PRelu", "Mod", "BitShift",
)  # fmt: skip
"""Operators whose operands are broadcast to each other."""


def simplify(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """Apply identities, cancelling pairs and canonical forms until none applies; no bit changes."""
    return rewrite(graph, ops, RULES)


# -- views ------------------------------------------------------------------------------------


def view_of_view(edit: Edit, node: Node) -> bool:
    """Squeeze(x), Unsqueeze(x), Flatten(x) -> Reshape(x); Reshape(Reshape(x)) -> Reshape(x)."""
    source, shape = node.inputs[0], edit.shape(node.outputs[0])
    before = edit.by(source, *VIEWS)
    wanted = () if 0 in shape else edit.ints(node, 1)
    if before is None and node.op == "Reshape" and (wanted == shape or 0 in shape):
        return False
    if before is not None:
        source = before.inputs[0]
    attrs = {"allowzero": 1} if 0 in shape else {}
    return edit.become(node, "Reshape", (source, edit.ints_const(shape, "shape")), attrs)


def transpose_of_transpose(edit: Edit, node: Node) -> bool:
    """Transpose(Transpose(x, p), q) -> Transpose(x, p[q])."""
    before = edit.by(node.inputs[0], "Transpose")
    if before is None:
        return False
    perm = tuple(before.attrs["perm"][axis] for axis in node.attrs["perm"])
    return edit.become(node, "Transpose", before.inputs, {"perm": perm})


def reshape_through_transpose(edit: Edit, node: Node) -> bool:
    """Transpose(Reshape(x)) -> Reshape(Transpose(x)) where Reshape only adds or drops axes of 1.

    Applied where x comes from a Transpose, so that the two meet.
    """
    before = edit.single(node.inputs[0], "Reshape")
    if before is None or edit.by(before.inputs[0], "Transpose") is None:
        return False
    inner, outer = edit.shape(before.inputs[0]), edit.shape(node.inputs[0])
    long_inner = [i for i, n in enumerate(inner) if n != 1]
    long_outer = [i for i, n in enumerate(outer) if n != 1]
    if [inner[i] for i in long_inner] != [outer[i] for i in long_outer]:
        return False
    match = dict(zip(long_outer, long_inner, strict=True))
    rest = [i for i in range(len(inner)) if i not in long_inner]
    perm = tuple([match[a] for a in node.attrs["perm"] if a in match] + rest)
    kind = TensorType(tuple(inner[a] for a in perm), edit.dtype(before.inputs[0]))
    moved = edit.emit(node, "Transpose", before.inputs[:1], kind, {"perm": perm})
    shape = edit.ints_const(edit.shape(node.outputs[0]), "shape")
    return edit.become(node, "Reshape", (moved, shape))


def reduce_of_ones(edit: Edit, node: Node) -> bool:
    """A reduction over axes of extent 1 -> Reshape."""
    shape, axes = edit.shape(node.inputs[0]), edit.ints(node, 1)
    if axes is None or any(shape[a] != 1 for a in axes):
        return False
    target = edit.ints_const(edit.shape(node.outputs[0]), "shape")
    return edit.become(node, "Reshape", (node.inputs[0], target))


def kept_axes(edit: Edit, node: Node) -> bool:
    """Reduce(x, keepdims=0) -> Reshape(Reduce(x, keepdims=1)): what follows can broadcast it."""
    axes = edit.ints(node, 1)
    if node.attrs.get("keepdims", 1) or axes is None:
        return False
    shape, out = edit.shape(node.inputs[0]), node.outputs[0]
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    attrs = {**node.attrs, "keepdims": 1}
    reduced = edit.emit(node, node.op, node.inputs, TensorType(kept, edit.dtype(out)), attrs)
    return edit.become(node, "Reshape", (reduced, edit.ints_const(edit.shape(out), "shape")))


def table_of_results(edit: Edit, node: Node) -> bool:
    """f(Gather(A, i), Gather(B, i), c) -> Gather(f(A, B, c), i): f once a row, not once an index.

    For an element-wise f, constants A and B with no more elements than the result, and c that is
    one value or varies along the rows.  Not where something else reads Gather(A, i) too.
    """
    out = node.outputs[0]
    gathers = [g for n in node.inputs if (g := edit.by(n, "Gather")) is not None]
    if not gathers or any(g.attrs["axis"] != 0 for g in gathers):
        return False
    first = gathers[0]
    table = edit.value(first.inputs[0])
    if table is None or edit.shape(first.outputs[0]) != edit.shape(out):
        return False
    if table.size > edit.types[out].size or table.ndim < 2:
        return False
    inputs: list[str] = []
    for name in node.inputs:
        gather, value = edit.by(name, "Gather"), edit.value(name)
        if gather is not None:
            other = edit.value(gather.inputs[0])
            if gather.inputs[1] != first.inputs[1] or other is None or other.shape != table.shape:
                return False
            if edit.outputs[name] or any(r.op not in POINTWISE for r in edit.readers(name)):
                return False
            inputs.append(gather.inputs[0])
        elif value is not None and (row := _row(value, table.ndim)) is not None:
            inputs.append(name if row is value else edit.const(row, f"{name}.row"))
        elif not name:
            inputs.append(name)
        else:
            return False
    values = [edit.value(n) if n else None for n in inputs]
    try:
        (made,) = reference.evaluate(node.with_(inputs=tuple(inputs)), values)
    except reference.CannotEvaluate:
        return False
    if made.shape != table.shape:
        return False
    rows = edit.const(made.astype(edit.dtype(out)), f"{out}.table")
    return edit.become(node, "Gather", (rows, first.inputs[1]), {"axis": 0})


def _row(value: np.ndarray, rank: int) -> np.ndarray | None:
    """Return a constant that varies along the last axes only, with fewer axes than `rank`."""
    lead = max(value.ndim - rank + 1, 0)
    if any(n != 1 for n in value.shape[:lead]):
        return None
    return value.reshape(value.shape[lead:]) if lead else value


# -- data movement ----------------------------------------------------------------------------


def gather_run(edit: Edit, node: Node) -> bool:
    """Gather of constant indices a, a+s, a+2s.. -> Slice; of a scalar index: Slice, Reshape."""
    index, axis = edit.value(node.inputs[1]), node.attrs["axis"]
    shape = edit.shape(node.inputs[0])
    if index is None or index.size == 0 or index.ndim > 1:
        return False
    flat = [int(i) % shape[axis] for i in index.reshape(-1)]
    step = flat[1] - flat[0] if len(flat) > 1 else 1
    if step < 1 or any(b - a != step for a, b in itertools.pairwise(flat)):
        return False
    operands = [edit.ints_const([v], "slice") for v in (flat[0], flat[-1] + 1, axis, step)]
    if index.ndim == 1:
        return edit.become(node, "Slice", (node.inputs[0], *operands))
    kind = TensorType((*shape[:axis], 1, *shape[axis + 1 :]), edit.dtype(node.inputs[0]))
    part = edit.emit(node, "Slice", (node.inputs[0], *operands), kind)
    target = edit.ints_const(edit.shape(node.outputs[0]), "shape")
    return edit.become(node, "Reshape", (part, target))


def slice_bounds(edit: Edit, node: Node) -> dict[int, tuple[int, int, int]] | None:
    """Return {axis: (first, count, step)} of a Slice with constant operands."""
    operands = [edit.ints(node, i) for i in range(1, 5)]
    if any(o is None for o in operands):
        return None
    shape = edit.shape(node.inputs[0])
    found: dict[int, tuple[int, int, int]] = {}
    for start, end, axis, step in zip(*operands, strict=True):
        first, last, step = slice(start, end, step).indices(shape[axis])
        if axis in found:
            return None
        found[axis] = (first, len(range(first, last, step)), step)
    return found


def slice_operands(edit: Edit, bounds: Mapping[int, tuple[int, int, int]]) -> tuple[str, ...]:
    """Return the constants of a Slice: starts, ends, axes, steps."""
    axes = sorted(bounds)
    ends = []
    for first, count, step in (bounds[a] for a in axes):
        end = first + count * step
        ends.append(end if end >= 0 else -(2**62))
    return (
        edit.ints_const([bounds[a][0] for a in axes], "starts"),
        edit.ints_const(ends, "ends"),
        edit.ints_const(axes, "axes"),
        edit.ints_const([bounds[a][2] for a in axes], "steps"),
    )


def slice_of_slice(edit: Edit, node: Node) -> bool:
    """Slice(Slice(x)) -> Slice(x)."""
    before = edit.single(node.inputs[0], "Slice")
    if before is None:
        return False
    inner, outer = slice_bounds(edit, before), slice_bounds(edit, node)
    if inner is None or outer is None:
        return False
    both = dict(inner)
    for axis, (first, count, step) in outer.items():
        start, _, stride = inner.get(axis, (0, 0, 1))
        both[axis] = (start + first * stride, count, step * stride)
    return edit.become(node, "Slice", (before.inputs[0], *slice_operands(edit, both)))


def slice_of_concat(edit: Edit, node: Node) -> bool:
    """Slice(Concat(a, b)) that touches one part -> Slice(part)."""
    before = edit.by(node.inputs[0], "Concat")
    bounds = None if before is None else slice_bounds(edit, node)
    if before is None or bounds is None or before.attrs["axis"] not in bounds:
        return False
    axis = before.attrs["axis"]
    first, count, step = bounds[axis]
    at = 0
    for part in before.inputs:
        extent = edit.shape(part)[axis]
        if count and at <= min(first, first + (count - 1) * step):
            if max(first, first + (count - 1) * step) < at + extent:
                inside = {**bounds, axis: (first - at, count, step)}
                return edit.become(node, "Slice", (part, *slice_operands(edit, inside)))
        at += extent
    return False


def _only_cut(edit: Edit, name: str) -> bool:
    """Tell whether all that reads a tensor takes parts of it."""
    return not edit.outputs[name] and all(r.op in ("Slice", "Split") for r in edit.readers(name))


def cut_of_move(edit: Edit, node: Node) -> bool:
    """Slice(f(x)) -> f(Slice(x)), Split(f(x)) -> f of the parts of Split(x).

    For f Transpose or Reshape, where nothing reads the whole f(x), and Reshape keeps the axes that
    are cut.
    """
    name = node.inputs[0]
    before = edit.by(name, "Transpose", "Reshape")
    if before is None or not _only_cut(edit, name):
        return False
    source = before.inputs[0]
    bounds = slice_bounds(edit, node) if node.op == "Slice" else {node.attrs["axis"]: (0, 0, 0)}
    sizes = edit.ints(node, 1)
    if bounds is None or sizes is None or source in edit.consts:
        return False
    if before.op == "Transpose":
        place = dict(enumerate(before.attrs["perm"]))
    else:
        found = runs(edit.shape(source), edit.shape(name))
        place = {b[0]: a[0] for a, b in found or () if len(a) == len(b) == 1}
    if any(axis not in place for axis in bounds):
        return False
    axes = {axis: place[axis] for axis in bounds}
    dtype = edit.dtype(source)

    def cut_shape(out: str) -> tuple[int, ...]:
        shape = list(edit.shape(source))
        for axis, own in axes.items():
            shape[own] = edit.shape(out)[axis]
        return tuple(shape)

    def moved(part: str, out: str) -> Node:
        if before.op == "Transpose":
            return Node(f"{node.name}.{out}", "Transpose", (part,), (out,), before.attrs)
        target = edit.ints_const(edit.shape(out), "shape")
        return Node(f"{node.name}.{out}", "Reshape", (part, target), (out,))

    if node.op == "Slice":
        out = node.outputs[0]
        operands = slice_operands(edit, {axes[a]: b for a, b in bounds.items()})
        kind = TensorType(cut_shape(out), dtype)
        part = edit.emit(node, "Slice", (source, *operands), kind, hint="part")
        edit.replace(node, moved(part, out))
        return True
    parts = []
    for out in node.outputs:
        parts.append(edit.fresh(f"{out or node.name}.part"))
        if out:
            edit.types[parts[-1]] = TensorType(cut_shape(out), dtype)
    kept = tuple(p if o else "" for p, o in zip(parts, node.outputs, strict=True))
    (axis,) = axes.values()
    split = node.with_(inputs=(source, node.inputs[1]), outputs=kept, attrs={"axis": axis})
    edit.exchange(
        node, [split, *(moved(p, o) for p, o in zip(kept, node.outputs, strict=True) if o)]
    )
    return True


def concat_of_split(edit: Edit, node: Node) -> bool:
    """Concat(*Split(x)) in order along the same axis -> x."""
    before = edit.by(node.inputs[0], "Split")
    if before is None or before.attrs["axis"] != node.attrs["axis"]:
        return False
    return before.outputs == node.inputs and edit.forward(node.outputs[0], before.inputs[0])


def split_of_concat(edit: Edit, node: Node) -> bool:
    """Split(Concat(a, b)) with the same sizes along the same axis -> a, b."""
    before = edit.by(node.inputs[0], "Concat")
    axis = node.attrs["axis"]
    if before is None or before.attrs["axis"] != axis or len(before.inputs) != len(node.outputs):
        return False
    sizes = edit.ints(node, 1)
    if sizes != tuple(edit.shape(i)[axis] for i in before.inputs):
        return False
    for out, part in zip(node.outputs, before.inputs, strict=True):
        if out:
            edit.forward(out, part)
    return True


def concat_of_concat(edit: Edit, node: Node) -> bool:
    """Concat(Concat(a, b), c) along the same axis -> Concat(a, b, c)."""
    flat: list[str] = []
    for part in node.inputs:
        inner = edit.single(part, "Concat")
        same = inner is not None and inner.attrs["axis"] == node.attrs["axis"]
        flat += inner.inputs if inner is not None and same else (part,)
    if len(flat) == len(node.inputs):
        return False
    edit.replace(node, node.with_(inputs=tuple(flat)))
    return True


def function_of_concat(edit: Edit, node: Node) -> bool:
    """f(Concat(a, b), c) -> Concat(f(a, c), f(b, c)) for an element-wise f and constants c.

    Where nothing else reads the Concat, and every part is made by a node of its own, which then
    takes f into its kernel.
    """
    joined = [(i, n) for i, n in enumerate(node.inputs) if n and edit.by(n, "Concat")]
    if len(joined) != 1 or edit.uses(joined[0][1]) != 1:
        return False
    position, name = joined[0]
    before, out = edit.by(name, "Concat"), node.outputs[0]
    if before is None or edit.shape(name) != edit.shape(out) or len(before.inputs) > 8:
        return False
    others = [edit.value(n) for i, n in enumerate(node.inputs) if n and i != position]
    if any(v is None for v in others) or not all(_made_alone(edit, p) for p in before.inputs):
        return False
    axis, rank, at, parts = before.attrs["axis"], len(edit.shape(out)), 0, []
    for part in before.inputs:
        extent = edit.shape(part)[axis]
        inputs = [
            part if i == position else _cut_constant(edit, n, axis, rank, at, at + extent)
            for i, n in enumerate(node.inputs)
        ]
        kind = TensorType(edit.shape(part), edit.dtype(out))
        parts.append(edit.emit(node, node.op, inputs, kind, node.attrs))
        at += extent
    return edit.become(node, "Concat", parts, before.attrs)


def _made_alone(edit: Edit, name: str) -> bool:
    """Tell whether a node that computes, not one that moves data, makes a tensor read once."""
    maker = edit.producer(name)
    moving = (*VIEWS, "Slice", "Split", "Concat", "Transpose", "Pad", "Expand", "Tile", "Gather")
    return maker is not None and maker.op not in moving and edit.uses(name) == 1


def _cut_constant(edit: Edit, name: str, axis: int, rank: int, first: int, last: int) -> str:
    """Return the constant of which elements first..last-1 of an axis of the result read."""
    value = edit.value(name) if name else None
    own = axis - rank + (value.ndim if value is not None else 0)
    if value is None or own < 0 or value.shape[own] == 1:
        return name
    return edit.const(np.take(value, range(first, last), axis=own), f"{name}.part")


def pad_of_pad(edit: Edit, node: Node) -> bool:
    """Pad(Pad(x)) with the same constant -> Pad(x)."""
    before = edit.single(node.inputs[0], "Pad")
    if before is None or not is_constant_pad(node) or not is_constant_pad(before):
        return False
    a, b = edit.ints(before, 1), edit.ints(node, 1)
    if a is None or b is None or min((*a, *b)) < 0 or before.inputs[2:] != node.inputs[2:]:
        return False
    pads = edit.ints_const([x + y for x, y in zip(a, b, strict=True)], "pads")
    edit.replace(node, node.with_(inputs=(before.inputs[0], pads, *node.inputs[2:])))
    return True


def is_constant_pad(node: Node) -> bool:
    """Tell whether a Pad fills with a constant."""
    return node.attrs.get("mode", "constant") in ("constant", b"constant")


def expand_operand(edit: Edit, node: Node) -> bool:
    """f(Expand(x), y) -> f(x, y) where f broadcasts and the shape of the result stays."""
    for position, name in enumerate(node.inputs):
        before = edit.by(name, "Expand")
        if before is None or (node.op == "PRelu" and position == 0):
            continue
        shapes = [edit.shape(n) for n in node.inputs]
        shapes[position] = edit.shape(before.inputs[0])
        if np.broadcast_shapes(*shapes) == edit.shape(node.outputs[0]):
            edit.reread(node, position, before.inputs[0])
            return True
    return False


def reshaped_operand(edit: Edit, node: Node) -> bool:
    """f(Reshape(x), y) -> f(x, y) where Reshape only adds or drops leading axes of 1."""
    for position, name in enumerate(node.inputs):
        before = edit.by(name, "Reshape")
        if before is None or (node.op == "PRelu" and position == 0):
            continue
        inner = edit.shape(before.inputs[0])
        if _without_leading_ones(inner) != _without_leading_ones(edit.shape(name)):
            continue
        shapes = [edit.shape(n) for n in node.inputs]
        shapes[position] = inner
        if np.broadcast_shapes(*shapes) == edit.shape(node.outputs[0]):
            edit.reread(node, position, before.inputs[0])
            return True
    return False


def _without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    at = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return shape[at:]


def tile_of_ones(edit: Edit, node: Node) -> bool:
    """Tile along axes of extent 1 -> Expand."""
    before, after = edit.shape(node.inputs[0]), edit.shape(node.outputs[0])
    if any(a != b and a != 1 for a, b in zip(before, after, strict=True)):
        return False
    return edit.become(node, "Expand", (node.inputs[0], edit.ints_const(after, "shape")))


# -- pools ------------------------------------------------------------------------------------


def global_pool(edit: Edit, node: Node) -> bool:
    """GlobalAveragePool(x) -> ReduceMean(x, spatial axes); GlobalMaxPool likewise."""
    if node.attrs.get("nestling_layout"):
        return False
    op = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}[node.op]
    axes = edit.ints_const(range(2, len(edit.shape(node.inputs[0]))), "axes")
    return edit.become(node, op, (node.inputs[0], axes), {"keepdims": 1})


def whole_window(edit: Edit, node: Node) -> bool:
    """AveragePool or MaxPool whose one window is the whole input -> ReduceMean, ReduceMax."""
    spatial, attrs = edit.shape(node.inputs[0])[2:], node.attrs
    if len([o for o in node.outputs if o]) != 1 or attrs.get("nestling_layout"):
        return False
    if attrs["kernel_shape"] != spatial or any(attrs.get("pads", ())) or attrs.get("ceil_mode"):
        return False
    if any(d != 1 for d in attrs.get("dilations", ())) or not spatial:
        return False
    op = {"AveragePool": "ReduceMean", "MaxPool": "ReduceMax"}[node.op]
    axes = edit.ints_const(range(2, 2 + len(spatial)), "axes")
    return edit.become(node, op, (node.inputs[0], axes), {"keepdims": 1})


# -- element-wise pairs -----------------------------------------------------------------------


def inverse_pair(edit: Edit, node: Node) -> bool:
    """Neg(Neg(x)) -> x; Not(Not(x)) -> x."""
    before = edit.by(node.inputs[0], node.op)
    return before is not None and edit.forward(node.outputs[0], before.inputs[0])


def absorbed(*inner: str) -> Rule:
    """f(g(x)) -> g(x) where g's results are fixed points of f."""

    def rule(edit: Edit, node: Node) -> bool:
        return edit.by(node.inputs[0], *inner) is not None and edit.forward(
            node.outputs[0], node.inputs[0]
        )

    rule.__doc__ = f"f(g(x)) -> g(x) for g in {', '.join(inner)}, whose results f keeps."
    return rule


def even_of(*inner: str) -> Rule:
    """f(g(x)) -> f(x) where f does not see what g changes."""

    def rule(edit: Edit, node: Node) -> bool:
        before = edit.by(node.inputs[0], *inner)
        if before is None:
            return False
        edit.reread(node, 0, before.inputs[0])
        return True

    rule.__doc__ = f"f(g(x)) -> f(x) for g in {', '.join(inner)}."
    return rule


_Bound = float | int | None
_Bounds = tuple[_Bound, _Bound]


def clip_bounds(edit: Edit, node: Node) -> _Bounds | None:
    """Return (low, high) of a Relu or a Clip with constant bounds; None if they are not known."""
    if node.op == "Relu":
        return 0, None
    found: list[float | int | None] = []
    for position in (1, 2):
        name = node.inputs[position] if position < len(node.inputs) else ""
        value = edit.uniform(name) if name else None
        if name and (value is None or edit.types[name].size != 1 or value != value):
            return None
        found.append(value)
    return found[0], found[1]


def _tight(bounds: _Bounds, dtype: DType) -> _Bounds:
    """Drop bounds that no value of the type can cross."""
    low, high = bounds
    least, most = (-math.inf, math.inf) if is_float(dtype) else int_range(dtype)
    return (
        None if low is None or low <= least else low,
        None if high is None or high >= most else high,
    )


def make_clip(edit: Edit, node: Node, source: str, bounds: _Bounds) -> bool:
    """Turn a node into Relu, Clip or nothing, of `source`, with the given bounds."""
    dtype = edit.dtype(source)
    low, high = _tight(bounds, dtype)
    if low is None and high is None:
        if edit.types[source] != edit.types[node.outputs[0]]:
            return False
        return edit.forward(node.outputs[0], source)
    if high is None and low == 0:
        return edit.become(node, "Relu", (source,))
    inputs = [source, "", ""]
    for position, value, what in ((1, low, "min"), (2, high, "max")):
        if value is not None:
            inputs[position] = edit.const(np.array(value, dtype=dtype), what)
    return edit.become(node, "Clip", inputs[: 3 if inputs[2] else 2])


def one_clip(edit: Edit, node: Node) -> bool:
    """Clip(Clip(x, a, b), c, d) -> Clip(x, clip(a, c, d), clip(b, c, d)); Clip(x, 0, ) -> Relu(x).

    Relu counts as Clip(x, 0, ).  The composition needs a <= b and c <= d.
    """
    bounds = clip_bounds(edit, node)
    if bounds is None or _crossed(bounds):
        return False
    low, high = bounds
    source, dtype = node.inputs[0], edit.dtype(node.inputs[0])
    before = edit.by(source, "Relu", "Clip")
    inner = clip_bounds(edit, before) if before is not None else None
    if inner is not None and before is not None and not _crossed(inner):
        both = (_clipped(inner[0], low, high, low), _clipped(inner[1], low, high, high))
        return make_clip(edit, node, before.inputs[0], both)
    tight = _tight(bounds, dtype)
    if tight == (None, None) or (node.op == "Clip" and (tight != bounds or tight == (0, None))):
        return make_clip(edit, node, source, tight)
    return False


def _crossed(bounds: _Bounds) -> bool:
    low, high = bounds
    return low is not None and high is not None and low > high


def _clipped(value: _Bound, low: _Bound, high: _Bound, absent: _Bound) -> _Bound:
    if value is None:
        return absent
    if low is not None and value < low:
        return low
    return high if high is not None and value > high else value


def bound_of_const(edit: Edit, node: Node) -> bool:
    """Max(x, c) -> Clip(x, c, ); Min(x, c) -> Clip(x, , c) for a scalar constant c."""
    if len(node.inputs) != 2:
        return False
    for position in (0, 1):
        bound, source = edit.uniform(node.inputs[position]), node.inputs[1 - position]
        if bound is None or bound != bound or edit.types[source] != edit.types[node.outputs[0]]:
            continue
        low, high = (bound, None) if node.op == "Max" else (None, bound)
        return make_clip(edit, node, source, (low, high))
    return False


def holds_all(small: DType, large: DType) -> bool:
    """Tell whether every value of type `small` is exactly one of `large`."""
    a, b = DTYPES[small], DTYPES[large]
    if small == large or a.kind == "b":
        return True
    if a.kind == "f":
        return b.kind == "f" and b.nbytes >= a.nbytes
    low, high = int_range(small)
    if b.kind == "f":
        return high <= 2 ** (24 if b.nbytes == 4 else 53)
    least, most = int_range(large)
    return b.kind != "b" and least <= low and high <= most


def cast_chain(edit: Edit, node: Node) -> bool:
    """Cast(Cast(x, A), B) -> Cast(x, B) where A holds every value of x's type."""
    before = edit.by(node.inputs[0], "Cast")
    if before is None:
        return False
    middle, source = edit.dtype(node.inputs[0]), before.inputs[0]
    if edit.dtype(source) not in DTYPES or middle not in DTYPES:
        return False
    if not holds_all(edit.dtype(source), middle) or FROM_ONNX.get(node.attrs["to"]) not in DTYPES:
        return False
    edit.reread(node, 0, source)
    return True


# -- strength reduction -----------------------------------------------------------------------


def small_power(edit: Edit, node: Node) -> bool:
    """Pow(x, 2) -> Mul(x, x); Pow(x, 0.5) -> Sqrt(x); Pow(x, -1) -> Reciprocal(x)."""
    x = node.inputs[0]
    exponent = edit.uniform(node.inputs[1])
    if not is_float(edit.dtype(x)) or edit.types[x] != edit.types[node.outputs[0]]:
        return False
    if exponent == 2:
        return edit.become(node, "Mul", (x, x))
    if exponent == 0.5:
        return edit.become(node, "Sqrt", (x,))
    return exponent == -1 and edit.become(node, "Reciprocal", (x,))


def exact_division(edit: Edit, node: Node) -> bool:
    """Div(x, c) -> Mul(x, 1/c) where every c is a power of two; Div(1, x) -> Reciprocal(x)."""
    a, b = node.inputs
    if not is_float(edit.dtype(a)):
        return False
    if edit.uniform(a) == 1 and edit.types[b] == edit.types[node.outputs[0]]:
        return edit.become(node, "Reciprocal", (b,))
    value = edit.value(b)
    if value is None or not value.size or not np.isfinite(value).all():
        return False
    mantissa, exponent = np.frexp(value)
    if not (np.abs(mantissa) == 0.5).all() or int(np.abs(exponent).max()) > 120:
        return False
    name = edit.const(np.asarray(1 / value, value.dtype), "reciprocal")
    return edit.become(node, "Mul", (a, name))


def subtraction(edit: Edit, node: Node) -> bool:
    """Sub(x, c) -> Add(x, -c) for a floating constant; Add(x, Neg(y)) -> Sub(x, y)."""
    a, b = node.inputs
    value = edit.value(b)
    if node.op == "Sub":
        if value is not None and is_float(edit.dtype(a)) and a not in edit.consts:
            return edit.become(node, "Add", (a, edit.const(-value, f"{b}.neg")))
        negated = edit.by(b, "Neg")
        return negated is not None and edit.become(node, "Add", (a, negated.inputs[0]))
    for x, y in ((a, b), (b, a)):
        negated = edit.by(y, "Neg")
        if negated is not None:
            return edit.become(node, "Sub", (x, negated.inputs[0]))
    return False


def sum_of_two(edit: Edit, node: Node) -> bool:
    """Sum(a, b) -> Add(a, b)."""
    return len(node.inputs) == 2 and edit.become(node, "Add", node.inputs)


def constant_last(edit: Edit, node: Node) -> bool:
    """Add(c, x) -> Add(x, c), Mul(c, x) -> Mul(x, c)."""
    a, b = node.inputs
    return a in edit.consts and b not in edit.consts and edit.become(node, node.op, (b, a))


def transposed_weights(edit: Edit, node: Node) -> bool:
    """Gemm(a, b, transB=1) of a constant b -> Gemm(a, b', transB=0): columns innermost."""
    weight = edit.value(node.inputs[1])
    if weight is None or not node.attrs.get("transB", 0):
        return False
    name = edit.const(np.ascontiguousarray(weight.T), f"{node.inputs[1]}.t")
    attrs = {k: v for k, v in node.attrs.items() if k != "transB"}
    return edit.become(node, "Gemm", (node.inputs[0], name, *node.inputs[2:]), attrs)


def matmul_of_transpose(edit: Edit, node: Node) -> bool:
    """Gemm(Transpose(a), b) -> Gemm(a, b, transA), and likewise for b."""
    for position, flag in ((0, "transA"), (1, "transB")):
        before = edit.by(node.inputs[position], "Transpose")
        if before is None or before.attrs["perm"] != (1, 0):
            continue
        attrs = dict(node.attrs)
        if attrs.pop(flag, 0) == 0:
            attrs[flag] = 1
        inputs = list(node.inputs)
        inputs[position] = before.inputs[0]
        return edit.become(node, "Gemm", inputs, attrs)
    return False


def plain_gemm(edit: Edit, node: Node) -> bool:
    """Gemm with C = 0 or beta = 0 -> Gemm without C."""
    if len(node.inputs) < 3 or not node.inputs[2]:
        return False
    if node.attrs.get("beta", 1.0) != 0 and edit.uniform(node.inputs[2]) != 0:
        return False
    attrs = {k: v for k, v in node.attrs.items() if k != "beta"}
    return edit.become(node, "Gemm", node.inputs[:2], attrs)


def zero_bias(edit: Edit, node: Node) -> bool:
    """Conv(x, w, 0) -> Conv(x, w)."""
    if len(node.inputs) < 3 or not node.inputs[2] or edit.uniform(node.inputs[2]) != 0:
        return False
    edit.replace(node, node.with_(inputs=node.inputs[:2]))
    return True


POINTWISE = tuple(op for op in ELEMENTWISE_OPS if op not in ("Dropout", "BitCast"))

REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip


def _keys(ops: Sequence[str], *rules: Rule) -> dict[str, tuple[Rule, ...]]:
    return dict.fromkeys(ops, rules)


RULES: dict[str, tuple[Rule, ...]] = merged(
    IDENTITIES,
    _keys(VIEWS, view_of_view),
    _keys(("Transpose",), transpose_of_transpose, reshape_through_transpose),
    _keys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"), reduce_of_ones),
    _keys(REDUCTIONS, kept_axes),
    _keys(POINTWISE, table_of_results, function_of_concat),
    _keys(("Gather",), gather_run),
    _keys(("Slice",), slice_of_slice, slice_of_concat, cut_of_move),
    _keys(("Concat",), concat_of_split, concat_of_concat),
    _keys(("Split",), split_of_concat, cut_of_move),
    _keys(("Pad",), pad_of_pad),
    _keys(BROADCASTING, expand_operand, reshaped_operand),
    _keys(("Tile",), tile_of_ones),
    _keys(("GlobalAveragePool", "GlobalMaxPool"), global_pool),
    _keys(("AveragePool", "MaxPool"), whole_window),
    _keys(("Neg", "Not"), inverse_pair),
    _keys(("Relu", "Clip"), one_clip),
    _keys(("Relu",), absorbed("Sigmoid", "Abs", "Exp", "Sqrt", "Softmax")),
    _keys(("Abs",), absorbed("Relu", "Abs", "Sigmoid", "Exp", "Softmax"), even_of("Neg")),
    _keys(("Floor", "Ceil", "Round"), absorbed("Floor", "Ceil", "Round")),
    _keys(("Max", "Min"), bound_of_const),
    _keys(("Cast",), cast_chain),
    _keys(("Pow",), small_power),
    _keys(("Div",), exact_division),
    _keys(("Sub", "Add"), subtraction),
    _keys(("Sum",), sum_of_two),
    _keys(("Add", "Mul"), constant_last),
    _keys(("Gemm",), plain_gemm, transposed_weights, matmul_of_transpose),
    _keys(("Conv", "ConvTranspose"), zero_bias),
)
