"""Padding with zeros, or with what a maximum does not see, into the window operator behind it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType
from toolkit.ops.op import Op
from toolkit.ops.views import runs
from toolkit.passes.edit import Edit, rewrite, Rules
from toolkit.passes.simplify import is_constant_pad

WINDOWS = ("Conv", "AveragePool", "MaxPool")
NOT_NEGATIVE = ("Relu", "Abs", "Sigmoid", "Exp", "Sqrt", "Softmax", "HardSigmoid")


def fold_pads(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """f(Pad(x)) -> f(x, pads + those of Pad) for Conv, AveragePool and MaxPool; every bit stays.

    Pad must be constant, of spatial axes, not negative; with 0 for Conv and AveragePool, which
    then counts the padding; with the lowest value for MaxPool, or 0 behind what is not negative.
    """
    rules: Rules = {**dict.fromkeys(WINDOWS, (_fold,)), "Reshape": (_pad_last,)}
    return rewrite(graph, ops, rules)


def _pad_last(edit: Edit, node: Node) -> bool:
    """Reshape(Pad(x)) -> Pad(Reshape(x)) before windows, where Reshape keeps the padded axes."""
    pad = edit.single(node.inputs[0], "Pad")
    pads = None if pad is None else edit.ints(pad, 1)
    if pad is None or pads is None or not is_constant_pad(pad):
        return False
    out = node.outputs[0]
    if edit.outputs[out] or any(r.op not in WINDOWS for r in edit.readers(out)):
        return False
    before, after = edit.shape(pad.outputs[0]), edit.shape(out)
    place = {a[0]: b[0] for a, b in runs(before, after) or () if len(a) == len(b) == 1}
    rank, begin, end = len(before), [0] * len(after), [0] * len(after)
    for axis in range(rank):
        if pads[axis] or pads[rank + axis]:
            if axis not in place:
                return False
            begin[place[axis]], end[place[axis]] = pads[axis], pads[rank + axis]
    inner = tuple(n - b - e for n, b, e in zip(after, begin, end, strict=True))
    kind = TensorType(inner, edit.dtype(out))
    shape = edit.ints_const(inner, "shape")
    moved = edit.emit(node, "Reshape", (pad.inputs[0], shape), kind)
    amounts = edit.ints_const((*begin, *end), "pads")
    return edit.become(node, "Pad", (moved, amounts, *pad.inputs[2:]), pad.attrs)


def _spatial_pads(edit: Edit, pad: Node) -> tuple[int, ...] | None:
    """Return begins and ends of a Pad's spatial axes; None where it pads others or crops."""
    pads = edit.ints(pad, 1)
    rank = len(edit.shape(pad.inputs[0]))
    if pads is None or not is_constant_pad(pad) or min(pads) < 0:
        return None
    begin, end = pads[:rank], pads[rank:]
    if any(begin[:2]) or any(end[:2]):
        return None
    return (*begin[2:], *end[2:])


def _fold(edit: Edit, node: Node) -> bool:
    """f(Pad(x)) -> f(x) for f Conv, AveragePool, MaxPool."""
    pad = edit.by(node.inputs[0], "Pad")
    attrs = dict(node.attrs)
    if pad is None or attrs.get("nestling_layout") or attrs.get("ceil_mode"):
        return False
    extra = _spatial_pads(edit, pad)
    if extra is None:
        return False
    fill: float | int | None = 0
    if len(pad.inputs) > 2 and pad.inputs[2]:
        fill = edit.uniform(pad.inputs[2])
    own = tuple(attrs.get("pads", (0,) * len(extra)))
    both = tuple(a + b for a, b in zip(own, extra, strict=True))
    match node.op:
        case "AveragePool":
            if fill != 0 or (any(own) and not attrs.get("count_include_pad")):
                return False
            attrs["count_include_pad"] = 1
        case "MaxPool":
            if len([o for o in node.outputs if o]) > 1 or not _unseen(edit, pad, node, fill, both):
                return False
        case _:
            if fill != 0:
                return False
    attrs["pads"] = both
    edit.replace(node, node.with_(inputs=(pad.inputs[0], *node.inputs[1:]), attrs=attrs))
    return True


def _unseen(
    edit: Edit, pad: Node, node: Node, fill: float | int | None, pads: tuple[int, ...]
) -> bool:
    """Tell whether a maximum is the same without the padding: each window holds some of x."""
    kernel = node.attrs["kernel_shape"]
    dilations = node.attrs.get("dilations") or (1,) * len(kernel)
    if any(d != 1 for d in dilations):
        return False
    if any(p >= k for p, k in zip(pads, (*kernel, *kernel), strict=True)):
        return False
    dtype = np.dtype(edit.dtype(pad.inputs[0]))
    if fill is None:
        return False
    lowest = -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
    source = edit.producer(pad.inputs[0])
    if fill == lowest:
        return True
    return fill == 0 and source is not None and source.op_id in NOT_NEGATIVE
