"""Zero points that suit a core: products of bytes count from the number that its instructions do.

    sum of (x - z) * w  =  sum of (x - c) * w  +  (c - z) * sum of w

The last is a constant of each channel, which joins the bias.  Where unsigned bytes are multiplied
by signed ones, c is -128: x + 128 is the byte x with its sign bit changed over.  Where both are
signed, c is 0.  Where padding is read it holds z, so that it is there for all taps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import int_range, TensorType
from toolkit.ops.op import Op
from toolkit.passes.edit import Edit, rewrite, Rules
from toolkit.targets.isa import Isa

LEAST = -128

LARGEST_SUM = 2**30
"""Of sums beyond it, a multiplier of 31 bits makes more than 63."""


def counted_from(isa: Isa) -> int | None:
    """Return the zero point of data that dot products in lanes take; None where there are none.

    What joins the bias is free where it is in the addend of a long sum.  On Helium, schedules take
    zero points out (`FoldZeroPoint`): copies of rows hold the padding, and no tensor in RAM does.
    """
    if "int32" not in isa.vectors or not isa.vectors["int32"].long_type or isa.name == "helium":
        return None
    zeros = {"uint8": LEAST, "int8": 0}
    kinds = set()
    for intrinsic in isa.tensors.values():
        a, b = intrinsic.nest.inputs
        # Elements that all lanes share meet weights.
        shared = math.prod(a.shape) < math.prod(b.shape)
        if intrinsic.lanes() > 1 and b.dtype == "int8" and (shared or a.dtype == "uint8"):
            kinds.add(a.dtype)
    found = [zeros[k] for k in ("uint8", "int8") if k in kinds]
    return found[0] if found else None


def count_from(graph: Graph, ops: Mapping[str, Op], *, zero: int) -> Graph:
    """Give products of int8 data and constant weights a zero point; but 0 to depthwise ones."""
    rules: Rules = {
        "ConvInteger": (partial(_counted, wanted=zero),),
        "MatMulInteger": (partial(_counted, wanted=zero),),
        "Add": (join_biases,),
        "Requantize": (fold_bias,),
    }
    if not any(n.op_id in ("ConvInteger", "MatMulInteger") for n in graph.nodes):
        return graph
    return rewrite(graph, ops, rules)


def _counted(edit: Edit, node: Node, *, wanted: int) -> bool:
    """f(x, w, z) -> Add(f(x, w, c), (c - z) * sums of w); padding that is not c is Pad."""
    names = (*node.inputs, "", "")[:4]
    weight = edit.value(names[1])
    zero, w_zero = (edit.uniform(n) if n else 0 for n in names[2:])
    if edit.dtype(names[0]) != "int8" or weight is None or weight.dtype != np.int8:
        return False
    if zero is None or w_zero != 0 or zero == wanted:
        return False
    if wanted == 0 and node.attrs.get("group", 1) > 1:
        return False  # widened, it is the difference that is multiplied
    last = node.op == "MatMulInteger" or bool(node.attrs.get("nestling_layout"))
    if weight.ndim < 2 or (node.op == "MatMulInteger" and weight.ndim != 2):
        return False
    rows = np.moveaxis(weight.astype(np.int64), -1 if last else 0, 0).reshape(
        weight.shape[-1 if last else 0], -1
    )
    _, most = int_range("int8")
    if (np.abs(rows).sum(axis=1) * (most - LEAST)).max(initial=0) > LARGEST_SUM:
        return False
    x, attrs = names[0], dict(node.attrs)
    if any(attrs.get("pads", ())) or attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        if not attrs.get("pads") or attrs.get("auto_pad", "NOTSET") != "NOTSET":
            return False
        x = _padded(edit, node, int(zero), last=last)
        attrs["pads"] = (0,) * len(attrs["pads"])
    least = edit.const(np.array(wanted, np.int8), "counted_from") if wanted else ""
    kind = edit.types[node.outputs[0]]
    acc = edit.emit(node, node.op, (x, names[1], least), kind, attrs, hint="counted")
    added = ((wanted - int(zero)) * rows.sum(axis=1)).astype(np.int32)
    shape = (-1,) if last else (-1, *(1,) * (weight.ndim - 2))
    return edit.become(node, "Add", (acc, edit.const(added.reshape(shape), "counted")))


def _padded(edit: Edit, node: Node, zero: int, *, last: bool) -> str:
    """Return the data with the padding of a convolution around it, its zero point."""
    pads = node.attrs["pads"]
    half = len(pads) // 2
    before, after = (
        (0, *p, 0) if last else (0, 0, *p) for p in (tuple(pads[:half]), tuple(pads[half:]))
    )
    shape = edit.shape(node.inputs[0])
    grown = tuple(b + n + a for b, n, a in zip(before, shape, after, strict=True))
    amounts = edit.ints_const((*before, *after), "pads")
    fill = edit.const(np.array(zero, np.int8), "zero_point")
    kind = TensorType(grown, "int8")
    return edit.emit(node, "Pad", (node.inputs[0], amounts, fill), kind, {"mode": "constant"})


def join_biases(edit: Edit, node: Node) -> bool:
    """Add(Add(x, c), d) -> Add(x, c + d) of int32 constants: sums wrap alike."""
    inner = edit.single(node.inputs[0], "Add")
    if inner is None or edit.dtype(node.outputs[0]) != "int32":
        return False
    both = [edit.value(n.inputs[1]) for n in (inner, node)]
    if both[0] is None or both[1] is None:
        return False
    total = edit.const(both[0] + both[1], "sum")
    return edit.become(node, "Add", (inner.inputs[0], total))


def fold_bias(edit: Edit, node: Node) -> bool:
    """Requantize(Add(x, c), m, offset) -> Requantize(x, m, offset + c or c * m)."""
    inner = edit.single(node.inputs[0], "Add")
    if inner is None or len(node.inputs) > 3:
        return False
    acc = edit.producer(inner.inputs[0])
    added = edit.value(inner.inputs[1])
    multiplier, offset = (edit.value(n) for n in node.inputs[1:3])
    if acc is None or acc.op not in ("ConvInteger", "MatMulInteger"):
        return False
    if added is None or multiplier is None or offset is None:
        return False
    rank = len(edit.shape(node.outputs[0]))
    axis = node.attrs.get("axis", -1) % rank
    # The constant lies along the axis of the parameters, or is one number.
    place = added.ndim - rank + axis
    if added.size > 1 and (place < 0 or added.shape[place] != added.size):
        return False
    one: np.ndarray = added.reshape(-1).astype(np.int64)
    if one.size == 1 and multiplier.ndim == 0:
        one = one.reshape(())
    if multiplier.dtype == np.float32:
        total = offset.astype(np.int64) + one
        if (np.abs(total) >= LARGEST_SUM).any():
            return False
        offset = total.astype(np.int32)
    else:
        offset = offset + one * multiplier.astype(np.int64)
    if offset.shape != multiplier.shape:
        return False
    name = edit.const(offset, "offset")
    return edit.become(
        node, "Requantize", (inner.inputs[0], node.inputs[1], name), dict(node.attrs)
    )
