"""Which nodes need no kernel: their results are, or are made of, runs of bytes of other tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType
from toolkit.ops.op import Op
from toolkit.ops.shape import slice_range
from toolkit.ops.views import runs
from toolkit.passes.edit import Edit, rewrite
from toolkit.passes.simplify import POINTWISE

Types = Mapping[str, TensorType]
Consts = Mapping[str, np.ndarray]


def part_offsets(node: Node, types: Types, consts: Consts) -> dict[str, int] | None:
    """Map each output of a Slice or Split that is one run of its operand to its first element.

    None where an output is not: some axis before the last one that is cut is longer than 1.
    """
    if node.domain or node.op not in ("Slice", "Split"):
        return None
    shape = types[node.inputs[0]].shape
    known = [consts.get(n) for n in node.inputs[1:]]
    if any(v is None for v in known) or 0 in shape:
        return None
    operands = [tuple(int(x) for x in v.reshape(-1)) for v in known if v is not None]
    if node.op == "Split":
        if not operands:
            return None
        axis = node.attrs.get("axis", 0)
        if math.prod(shape[:axis]) != 1:
            return None
        stride, at, offsets = math.prod(shape[axis + 1 :]), 0, {}
        for name, size in zip(node.outputs, operands[0], strict=True):
            offsets[name] = at * stride
            at += size
        return {n: o for n, o in offsets.items() if n}
    if len(operands) != 4:
        return None
    taken = [range(n) for n in shape]
    for start, end, axis, step in zip(*operands, strict=True):
        taken[axis] = slice_range(start, end, step, shape[axis])
    if any(not r or (len(r) > 1 and r.step != 1) for r in taken):
        return None
    cut = [i for i, r in enumerate(taken) if len(r) != shape[i]]
    if cut and any(len(taken[i]) > 1 for i in range(cut[-1])):
        return None
    offset = sum(r.start * math.prod(shape[i + 1 :]) for i, r in enumerate(taken))
    return {node.outputs[0]: offset}


def joined_offsets(node: Node, types: Types) -> list[int] | None:
    """Return where each operand of a Concat begins in the result, if each is one run of it."""
    if node.op_id != "Concat":
        return None
    axis = node.attrs["axis"]
    shape = types[node.outputs[0]].shape
    if math.prod(shape[:axis]) != 1 or 0 in shape or any(not types[n].size for n in node.inputs):
        return None
    offsets, at = [], 0
    for name in node.inputs:
        offsets.append(at)
        at += types[name].size
    return offsets


def is_view(node: Node, ops: Mapping[str, Op], types: Types, consts: Consts) -> bool:
    """Tell whether all outputs of a node lie in the storage of its first operand."""
    op = ops.get(node.op_id)
    return (op is not None and op.view) or part_offsets(node, types, consts) is not None


# -- reshapes out of the way --------------------------------------------------------------------


def sink_reshapes(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """f(Reshape(x), c) -> Reshape(f(x, c')) for an element-wise f and constants c.

    All readers of Reshape must be element-wise.  What f follows and what it precedes then meet.
    c' is c in the axes of x, which must exist: c varies along whole runs of axes that Reshape
    joins or splits, or not at all.
    """
    return rewrite(graph, ops, dict.fromkeys(POINTWISE, (_sink,)))


def _sink(edit: Edit, node: Node) -> bool:
    """f(Reshape(x), c, Reshape(y)) -> Reshape(f(x, c', y))."""
    out = node.outputs[0]
    for position, name in enumerate(node.inputs):
        before = edit.by(name, "Reshape") if name else None
        if before is None or edit.shape(name) != edit.shape(out) or edit.outputs[name]:
            continue
        if any(reader.op not in POINTWISE for reader in edit.readers(name)):
            continue
        inner = edit.shape(before.inputs[0])
        inputs = [_before_reshape(edit, n, inner, edit.shape(out)) for n in node.inputs]
        inputs[position] = before.inputs[0]
        if any(n is None for n in inputs):
            continue
        kind = TensorType(inner, edit.dtype(out))
        moved = edit.emit(node, node.op, [n or "" for n in inputs], kind, node.attrs)
        return edit.become(node, "Reshape", (moved, edit.ints_const(edit.shape(out), "shape")))
    return False


def _before_reshape(
    edit: Edit, name: str, inner: tuple[int, ...], outer: tuple[int, ...]
) -> str | None:
    """Return the operand that stands for `name` where `outer` is reshaped back to `inner`."""
    if not name or (edit.types[name].size == 1 and len(edit.shape(name)) <= len(inner)):
        return name
    before = edit.by(name, "Reshape")
    if before is not None and edit.shape(name) == outer and edit.shape(before.inputs[0]) == inner:
        return before.inputs[0]
    value = edit.value(name)
    if value is None or 0 in outer:
        return None
    shape = (1,) * (len(outer) - value.ndim) + value.shape
    found = runs(inner, outer)
    if found is None:
        return None
    target = [1] * len(inner)
    for ins, outs in found:
        extents = [shape[a] for a in outs]
        if extents == [outer[a] for a in outs]:
            for a in ins:
                target[a] = inner[a]
        elif any(n != 1 for n in extents):
            return None
    return edit.const(value.reshape(target), f"{name}.r")


def split_to_slices(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """Split(x) -> Slice(x), Slice(x), ..; each can fuse with its reader.  Runs stay Split."""
    return rewrite(graph, ops, {"Split": (_slices,)})


def _slices(edit: Edit, node: Node) -> bool:
    """Split(x, sizes) -> a Slice for each part."""
    sizes = edit.ints(node, 1)
    if sizes is None or part_offsets(node, edit.types, edit.consts) is not None:
        return False
    axis, at = node.attrs["axis"], 0
    for out, size in zip(node.outputs, sizes, strict=True):
        if out and edit.uses(out):
            operands = [edit.ints_const([v], "slice") for v in (at, at + size, axis, 1)]
            part = edit.emit(node, "Slice", (node.inputs[0], *operands), edit.types[out])
            edit.forward(out, part)
        at += size
    return True
