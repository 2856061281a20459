"""How operators take operands whose axes are permuted: what else changes with them.

A permutation lists the original axes in the order they are stored: (0, 2, 3, 1) is NCHW stored as
NHWC.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType
from toolkit.ops.elementwise import ELEMENTWISE_OPS
from toolkit.ops.views import runs
from toolkit.passes.simplify import REDUCTIONS

Perm = tuple[int, ...]

WINDOWED = (
    "Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "AveragePool", "MaxPool", "LpPool",
)  # fmt: skip
CHANNELWISE = (
    *WINDOWED, "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "BatchNormalization",
    "InstanceNormalization", "GroupNormalization", "LRN", "RequantizeMean",
)  # fmt: skip
"""Operators with the attribute `nestling_layout`: the channel is axis 1, or last."""

BROADCAST = {"Clip": 1, "Dropout": 1, "tflite:Lookup": 1, "RequantizeSum": 2, "tflite:Product": 2}
"""How many operands of an operator broadcast, where that is not all of them."""

ALONG_AXIS = ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")


@dataclass(frozen=True, slots=True)
class Form:
    """A node with permuted operands: `wants` and `makes` give the permutation of each operand and
    result, None for one that is taken as it is.  `attrs` and `consts` replace attributes and
    (by position) constant operands.  `pad_to`: operands of lower rank get leading axes of 1.
    `rows`: readers of the result are products, whose weight rows follow it in this order.
    """

    wants: tuple[Perm | None, ...]
    makes: tuple[Perm | None, ...]
    attrs: Mapping[str, object]
    consts: Mapping[int, np.ndarray]
    pad_to: int = 0
    rows: np.ndarray | None = None


def weight_operand(op: str) -> int:
    """Return the position of a convolution's weights."""
    return 3 if op == "QLinearConv" else 1


def channel_last(rank: int) -> Perm:
    """Return the permutation that stores NC... as N...C."""
    return (0, *range(2, rank), 1)


def inverse(perm: Perm) -> Perm:
    """Return the permutation that undoes one."""
    result = [0] * len(perm)
    for place, axis in enumerate(perm):
        result[axis] = place
    return tuple(result)


def order_of(perm: Perm, shape: Sequence[int]) -> Perm:
    """Return the axes longer than 1 in stored order: what decides where elements lie."""
    return tuple(axis for axis in perm if shape[axis] != 1)


def is_moved(perm: Perm, shape: Sequence[int]) -> bool:
    """Tell whether a permutation moves an element of a tensor of that shape."""
    order = order_of(perm, shape)
    return list(order) != sorted(order)


def permuted(items: Sequence[int], perm: Perm) -> tuple[int, ...]:
    """Return one item an axis in stored order."""
    return tuple(items[axis] for axis in perm)


def through_reshape(before: Sequence[int], after: Sequence[int], perm: Perm) -> Perm | None:
    """Return the permutation of the result that storing the operand permuted gives, if it is one.

    The permutation must keep every run of `runs` together and in order.  Axes of extent 1 follow
    the axis before them.
    """
    found = runs(before, after)
    if found is None:
        return None
    run_of = {axis: run for run in found for axis in run[0]}
    order = order_of(perm, before)
    result: list[int] = []
    at = 0
    while at < len(order):
        axes, made = run_of[order[at]]
        if list(order[at : at + len(axes)]) != axes:
            return None
        result += made
        at += len(axes)
    return _with_ones(result, after)


def _with_ones(order: Sequence[int], shape: Sequence[int]) -> Perm:
    """Complete an order of the axes longer than 1: each axis of 1 follows the one before it."""
    behind: dict[int, list[int]] = {}
    last = -1
    for axis, n in enumerate(shape):
        if n == 1:
            behind.setdefault(last, []).append(axis)
        else:
            last = axis
    full = list(behind.get(-1, []))
    for axis in order:
        full += [axis, *behind.get(axis, [])]
    return tuple(full)


# -- forms ------------------------------------------------------------------------------------


class Forms:
    """Answers how the nodes of one graph take permuted tensors."""

    def __init__(self, graph: Graph) -> None:
        self.types: Mapping[str, TensorType] = graph.types
        self.consts = graph.consts
        self.readers = graph.consumers()
        self.outputs = set(graph.outputs)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.types[name].shape

    def seed(self, node: Node) -> Form | None:
        """Return the channel-last form of an operator that has one."""
        if node.domain or node.op not in CHANNELWISE or node.attrs.get("nestling_layout"):
            return None
        rank = len(self.shape(node.inputs[0]))
        if rank < 3 or (len([o for o in node.outputs if o]) != 1 or not node.outputs[0]):
            return None
        last = channel_last(rank)
        wants: list[Perm | None] = [None] * len(node.inputs)
        wants[0] = last
        if node.op in ("Conv", "ConvInteger", "QLinearConv"):
            wants[weight_operand(node.op)] = (*range(2, rank), 1, 0)
        elif node.op == "ConvTranspose":
            wants[1] = (*range(2, rank), 0, 1)
        return Form(tuple(wants), (last,), {"nestling_layout": "NHWC"}, {})

    def offer(self, node: Node, name: str, perm: Perm) -> Form | None:
        """Return the form of a node that has one tensor stored permuted; None if it has none."""
        rule = FORMS.get(node.op_id)
        if rule is None or len(perm) != len(self.shape(name)):
            return None
        return rule(self, node, name, perm)

    def ints(self, node: Node, position: int) -> tuple[int, ...] | None:
        value = self.consts.get(node.inputs[position]) if position < len(node.inputs) else None
        return None if value is None else tuple(int(v) for v in value.reshape(-1))

    def data_form(
        self,
        node: Node,
        perm: Perm,
        *,
        attrs: Mapping[str, object] | None = None,
        consts: Mapping[int, np.ndarray] | None = None,
        operands: int = 1,
    ) -> Form:
        """Return the form of a node whose first operands and all results have one permutation."""
        wants = tuple(perm if i < operands else None for i in range(len(node.inputs)))
        return Form(wants, (perm,) * len(node.outputs), attrs or {}, consts or {})


def _data(forms: Forms, node: Node, name: str, perm: Perm) -> bool:
    """Tell whether `name` is the data operand or a result, of the data operand's rank."""
    rank = len(forms.shape(node.inputs[0]))
    return (name == node.inputs[0] or name in node.outputs) and len(perm) == rank


def _broadcast(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    """Element-wise operators: every operand of full rank has the permutation of the result."""
    rank = len(forms.shape(node.outputs[0]))
    if len(perm) != rank or len([o for o in node.outputs if o]) != 1:
        return None
    wants = []
    for position, operand in enumerate(node.inputs):
        scalar = not operand or (forms.types[operand].size == 1 and len(forms.shape(operand)) < 2)
        bound = position >= BROADCAST.get(node.op_id, len(node.inputs))
        wants.append(None if scalar or bound else perm)
    return Form(tuple(wants), (perm,), {}, {}, pad_to=rank)


def _along(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    """Operators along one `axis` that keep the shape."""
    if not _data(forms, node, name, perm) or node.attrs.get("coerce_2d"):
        return None
    axis = node.attrs.get("axis", -1) % len(perm)
    return forms.data_form(node, perm, attrs={"axis": perm.index(axis)})


def _quantised(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    """QuantizeLinear, DequantizeLinear, Requantize: per tensor, or along `axis`."""
    if not _data(forms, node, name, perm) or node.attrs.get("block_size"):
        return None
    if len(forms.shape(node.inputs[1])) == 0 or "axis" not in node.attrs:
        return forms.data_form(node, perm)
    return forms.data_form(node, perm, attrs={"axis": perm.index(node.attrs["axis"])})


def _concat(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    attrs = {"axis": perm.index(node.attrs["axis"])}
    return forms.data_form(node, perm, attrs=attrs, operands=len(node.inputs))


def _split(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    if not _data(forms, node, name, perm):
        return None
    return forms.data_form(node, perm, attrs={"axis": perm.index(node.attrs["axis"])})


def _slice(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    axes = forms.ints(node, 3)
    if axes is None or not _data(forms, node, name, perm):
        return None
    moved = np.array([perm.index(a) for a in axes], np.int64)
    return forms.data_form(node, perm, consts={3: moved})


def _pad(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    pads, rank = forms.ints(node, 1), len(perm)
    if pads is None or not _data(forms, node, name, perm):
        return None
    both = (*permuted(pads[:rank], perm), *permuted(pads[rank:], perm))
    return forms.data_form(node, perm, consts={1: np.array(both, np.int64)})


def _sized(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    """Expand, Tile: the second operand has one value an axis of the result."""
    values = forms.ints(node, 1)
    rank = len(forms.shape(node.outputs[0]))
    if values is None or len(perm) != rank or len(values) != rank:
        return None
    if node.op == "Tile" and len(forms.shape(node.inputs[0])) != rank:
        return None
    consts = {1: np.array(permuted(values, perm), np.int64)}
    return Form((perm, None), (perm,), {}, consts, pad_to=rank)


def _resize(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    if not _data(forms, node, name, perm) or "axes" in node.attrs:
        return None
    if (len(node.inputs) > 1 and node.inputs[1]) or name in node.inputs[1:]:
        return None
    consts = {}
    for position in (2, 3):
        if position < len(node.inputs) and node.inputs[position]:
            value = forms.consts.get(node.inputs[position])
            if value is None:
                return None
            consts[position] = np.ascontiguousarray(value[list(perm)])
    return forms.data_form(node, perm, consts=consts)


def _reduce(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    """Reductions: axes follow; without keepdims the result keeps the order of what is left."""
    axes = forms.ints(node, 1)
    if axes is None:
        return None
    form = _reduced(forms, node, name, perm, axes)
    if form is None:
        return None
    moved = np.array(sorted(perm.index(a) for a in axes), np.int64)
    return replace(form, consts={1: moved})


def _arg(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    """ArgMax, ArgMin along one axis."""
    axis = node.attrs.get("axis", 0)
    form = _reduced(forms, node, name, perm, (axis,))
    return None if form is None else replace(form, attrs={"axis": perm.index(axis)})


def _reduced(forms: Forms, node: Node, name: str, perm: Perm, axes: Sequence[int]) -> Form | None:
    keep = bool(node.attrs.get("keepdims", 1))
    if not _data(forms, node, name, perm) or (name != node.inputs[0] and not keep):
        return None
    made = perm
    if not keep:
        left = [a for a in range(len(perm)) if a not in axes]
        made = tuple(left.index(a) for a in perm if a not in axes)
    wants: list[Perm | None] = [None] * len(node.inputs)
    wants[0] = perm
    return Form(tuple(wants), (made,), {}, {})


def _gather(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    if not _data(forms, node, name, perm) or len(forms.shape(node.inputs[1])) != 1:
        return None
    return forms.data_form(node, perm, attrs={"axis": perm.index(node.attrs["axis"])})


def _cumulative(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    axis = forms.consts.get(node.inputs[1])
    if axis is None or not _data(forms, node, name, perm):
        return None
    moved = np.full(axis.shape, perm.index(int(axis.reshape(-1)[0]) % len(perm)), axis.dtype)
    return forms.data_form(node, perm, consts={1: moved})


def _reshape(forms: Forms, node: Node, name: str, perm: Perm) -> Form | None:
    """Reshape of whole runs of axes; or one read by products only, whose rows can follow."""
    before, after = forms.shape(node.inputs[0]), forms.shape(node.outputs[0])
    if 0 in before:
        return None
    if name == node.inputs[0]:
        wanted, made = perm, through_reshape(before, after, perm)
    else:
        back = through_reshape(after, before, perm)
        if back is None:
            return None
        wanted, made = back, perm
    if made is not None:
        shape = np.array(permuted(after, made), np.int64)
        return Form((wanted, None), (made,), {}, {1: shape})
    if len(after) != 2 or after[1] != math.prod(before[1:]) or perm[0] != 0:
        return None
    out = node.outputs[0]
    products = forms.readers.get(out, [])
    if (
        out in forms.outputs
        or not products
        or not all(_rows_can_follow(forms, p, out) for p in products)
    ):
        return None
    rows = np.arange(after[1]).reshape(before[1:]).transpose([a - 1 for a in perm[1:]]).reshape(-1)
    return Form((wanted, None), (None,), {}, {1: np.array(after, np.int64)}, rows=rows)


def _rows_can_follow(forms: Forms, node: Node, name: str) -> bool:
    """Tell whether a node is a product of `name` and a constant whose rows can be permuted."""
    if node.op_id not in ("MatMul", "Gemm") or node.inputs.count(name) != 1:
        return False
    weight = forms.consts.get(node.inputs[1])
    if node.inputs[0] != name or weight is None or weight.ndim != 2:
        return False
    return not node.attrs.get("transA", 0)


Rule = Callable[[Forms, Node, str, Perm], "Form | None"]

FORMS: dict[str, Rule] = {
    **dict.fromkeys((op for op in ELEMENTWISE_OPS if op not in ("Dropout", "BitCast")), _broadcast),
    **dict.fromkeys(("Identity", "tflite:Lookup", "tflite:Product", "RequantizeSum"), _broadcast),
    **dict.fromkeys(ALONG_AXIS, _along),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "Requantize"), _quantised),
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    **dict.fromkeys(("Expand", "Tile"), _sized),
    "Resize": _resize,
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "Gather": _gather,
    **dict.fromkeys(("CumSum", "CumProd"), _cumulative),
    "Reshape": _reshape,
}
