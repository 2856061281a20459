"""Channels that hold one value whatever the input: they are not computed, nor read.

Trained networks have channels whose weights are all 0, or whose sums an activation always cuts off.
Ranges of every channel are carried through products, requantisations and pools, from the ranges of
what they read.  A channel whose range is one value is left out, from the product that makes it to
the product that reads it, with the depthwise convolutions and pools between; what it adds to the
sums there is a constant, and becomes part of the bias.

    y = conv(x, w)              w [o, i], channel 3 of y always 7, its zero point 2
    z = conv(y, v)        ->    y' = conv(x, w'), z = conv(y', v') + (7 - 2) * v[:, 3]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import int_range, TensorType
from toolkit.ops.op import Op
from toolkit.passes.edit import Edit, rewrite
from toolkit.passes.fixed import rounded_once, rounded_twice, zero_point
from toolkit.passes.zero_points import fold_bias, join_biases

POOLS = ("MaxPool", "tflite:AveragePool")
"""Windows whose results lie within the range of what they read."""


def drop_constant_channels(graph: Graph, ops: Mapping[str, Op], *, multiple: int) -> Graph:
    """Leave out channels of one value; the same object if there are none.

    `multiple`: what is left of a tensor is rounded up to so many channels, for the sake of the
    kernels that read it.
    """
    if not any(n.op_id == "ConvInteger" for n in graph.nodes):
        return graph
    edit = Edit(graph, ops)
    known = channel_ranges(edit, graph.nodes)
    for name in [n.outputs[0] for n in graph.nodes if n.op_id == "ConvInteger"]:
        head = edit.producer(name)
        if head is not None and head.op == "Add":  # of what the channels before it add
            head = edit.producer(head.inputs[0])
        if head is not None:
            _drop_behind(edit, head, known, multiple)
    if not edit.changed:
        return graph
    return rewrite(edit.finish(), ops, {"Add": (join_biases,), "Requantize": (fold_bias,)})


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """The least and the largest value of each channel, int64, along `axis`."""

    axis: int
    least: np.ndarray
    most: np.ndarray

    @property
    def constant(self) -> np.ndarray:
        found: np.ndarray = self.least == self.most
        return found


# -- ranges -------------------------------------------------------------------------------------


def channel_ranges(edit: Edit, nodes: Sequence[Node]) -> dict[str, Range]:
    """Return what is known of the channels of integer tensors, in the order of the nodes."""
    known: dict[str, Range] = {}
    for node in nodes:
        found: Range | None = None
        match node.op_id:
            case "ConvInteger":
                found = _range_of_sums(edit, node, known)
            case "Add":
                found = _range_of_biased(edit, node, known)
            case "Requantize" | "tflite:Requantize":
                found = _range_requantised(edit, node, known)
            case "MaxPool" | "tflite:AveragePool":
                found = _range_of_pool(node, known)
        if found is not None:
            known[node.outputs[0]] = found
    return known


def _range_of_pool(node: Node, known: Mapping[str, Range]) -> Range | None:
    given = known.get(node.inputs[0])
    if given is None or len([o for o in node.outputs if o]) != 1:
        return None
    if "low" not in node.attrs:
        return given
    low, high = node.attrs["low"], node.attrs["high"]
    return Range(given.axis, given.least.clip(low, high), given.most.clip(low, high))


@dataclass(frozen=True, slots=True, eq=False)
class _Product:
    """A convolution of constant weights: taps [o, i, k] less the zero point, i within the group."""

    taps: np.ndarray
    axis: int
    group: int
    zero: int
    padded: bool

    @property
    def depthwise(self) -> bool:
        return self.group == len(self.taps) and self.taps.shape[1] == 1


def _product(edit: Edit, node: Node) -> _Product | None:
    """Return what a ConvInteger computes, if its parameters are constants."""
    if node.op_id != "ConvInteger":
        return None
    weight = edit.value(node.inputs[1])
    zero, w_zero = (zero_point(edit, node, p) for p in (2, 3))
    if weight is None or zero is None or w_zero is None:
        return None
    if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    last = node.attrs.get("nestling_layout") == "NHWC"
    wide = weight.astype(np.int64) - w_zero
    moved = np.moveaxis(wide, (-1, -2), (0, 1)) if last else wide
    taps = moved.reshape(*moved.shape[:2], -1)
    axis = len(edit.shape(node.inputs[0])) - 1 if last else 1
    padded = any(node.attrs.get("pads", ()))
    return _Product(taps, axis, node.attrs.get("group", 1), zero, padded)


def _range_of_sums(edit: Edit, node: Node, known: Mapping[str, Range]) -> Range | None:
    product = _product(edit, node)
    if product is None:
        return None
    x = node.inputs[0]
    given = known.get(x)
    channels = edit.shape(x)[product.axis]
    low, high = int_range(edit.dtype(x))
    least, most = np.full(channels, low), np.full(channels, high)
    if given is not None and given.axis == product.axis:
        least, most = given.least, given.most
    least, most = least - product.zero, most - product.zero
    if product.padded:
        least, most = np.minimum(least, 0), np.maximum(most, 0)
    outputs, inner, _ = product.taps.shape
    read = np.arange(outputs) // (outputs // product.group) * inner
    of = read[:, None] + np.arange(inner)
    up, down = product.taps.clip(min=0).sum(axis=2), product.taps.clip(max=0).sum(axis=2)
    return Range(
        product.axis,
        (up * least[of] + down * most[of]).sum(axis=1),
        (up * most[of] + down * least[of]).sum(axis=1),
    )


def _bias(edit: Edit, node: Node) -> tuple[str, np.ndarray] | None:
    """Return the sums that an Add adds a constant to, and that, along the sums' channels."""
    for position in (0, 1):
        bias = edit.value(node.inputs[1 - position])
        sums = node.inputs[position]
        if bias is None or sums in edit.consts or edit.dtype(sums) != "int32":
            continue
        if bias.size == max(bias.shape, default=1):
            return sums, bias
    return None


def _range_of_biased(edit: Edit, node: Node, known: Mapping[str, Range]) -> Range | None:
    found = _bias(edit, node)
    given = None if found is None else known.get(found[0])
    if found is None or given is None:
        return None
    bias = found[1]
    rank = len(edit.shape(node.outputs[0]))
    if bias.size > 1 and bias.shape != (bias.size,) + (1,) * (rank - 1 - given.axis):
        return None
    add = bias.reshape(-1).astype(np.int64)
    least, most = given.least + add, given.most + add
    if (least < -(2**31)).any() or (most >= 2**31).any():
        return None
    return Range(given.axis, least, most)


def _range_requantised(edit: Edit, node: Node, known: Mapping[str, Range]) -> Range | None:
    given = known.get(node.inputs[0])
    tables = [v for n in node.inputs[1:] if (v := edit.value(n)) is not None]
    rank = len(edit.shape(node.outputs[0]))
    if given is None or len(tables) != len(node.inputs) - 1:
        return None
    if node.attrs.get("axis", -1) % rank != given.axis:
        return None
    if node.op_id == "tflite:Requantize":
        reach = np.maximum(np.abs(given.least), np.abs(given.most)) << np.maximum(tables[1], 0)
        if (reach >= 2**31).any():
            return None
    low, high = node.attrs["low"], node.attrs["high"]
    least, most = (
        np.clip(_requantised(node, end, tables), low, high).astype(np.int64)
        for end in (given.least, given.most)
    )
    return Range(given.axis, least, most)


def _requantised(node: Node, acc: np.ndarray, tables: Sequence[np.ndarray]) -> np.ndarray:
    """Return a requantisation of one sum a channel, not limited yet."""
    multiplier, offset = tables[0], tables[1].astype(np.int64)
    if node.op_id == "tflite:Requantize":
        function = rounded_once if node.attrs.get("single") else rounded_twice
        return function(acc, multiplier.astype(np.int64), offset) + int(tables[2])
    if multiplier.dtype == np.float32:
        scaled = np.rint((acc + offset).astype(np.float32) * multiplier)
        shifted: np.ndarray = scaled.astype(np.float64) + node.attrs["zero_point"]
        return shifted
    total = acc * multiplier.astype(np.int64) + offset
    if len(tables) > 2:
        total = total - np.where(acc < 0, tables[2].astype(np.int64), 0)
    result: np.ndarray = total >> node.attrs["shift"]
    return result


# -- leaving out --------------------------------------------------------------------------------


def _drop_behind(edit: Edit, head: Node, known: Mapping[str, Range], multiple: int) -> None:
    """Leave out the constant channels that a product makes, down to the product that reads them."""
    first = _product(edit, head)
    if first is None or first.group != 1:
        return
    between: list[Node] = []
    constant = np.ones(len(first.taps), bool)
    node = head
    while True:
        # A product, what follows it up to the requantised tensor, and the next reader.
        behind = _requantisation(edit, node) if node.op_id == "ConvInteger" else []
        if behind is None:
            return
        between += [node, *behind]
        found = known.get(between[-1].outputs[0])
        if found is None or found.axis != first.axis:
            return
        constant &= found.constant
        reader = edit.only_reader(between[-1].outputs[0])
        if reader is None or not constant.any():
            return
        product = _product(edit, reader)
        if reader.op_id not in POOLS and (product is None or not product.depthwise):
            break
        node = reader
    values = found.least
    end = _end(edit, reader, between[-1].outputs[0], first.axis)
    if end is None:
        return
    if end.padded:
        constant &= values == end.zero
    left = len(constant) - int(constant.sum())
    left = min(max(-(-left // multiple), 1) * multiple, len(constant))
    spared = np.flatnonzero(constant)[: left - int((~constant).sum())]
    constant[spared] = False
    if constant.any():
        for node in between:
            _slice(edit, node, ~constant, first.axis)
        end.slice(edit, ~constant, values)


def _requantisation(edit: Edit, node: Node) -> list[Node] | None:
    """Return the constants added, if any, and the Requantize that alone read a product."""
    behind: list[Node] = []
    while True:
        reader = edit.only_reader((behind[-1] if behind else node).outputs[0])
        if reader is None:
            return None
        behind.append(reader)
        if reader.op_id in ("Requantize", "tflite:Requantize"):
            return behind
        if reader.op_id != "Add" or _bias(edit, reader) is None:
            return None


def _narrowed(edit: Edit, name: str, axis: int, count: int) -> None:
    """Let a tensor have so many channels."""
    shape = list(edit.shape(name))
    shape[axis] = count
    edit.types[name] = TensorType(tuple(shape), edit.dtype(name))


def _slice(edit: Edit, node: Node, kept: np.ndarray, axis: int) -> None:
    """Let a node make only some of its channels."""
    _narrowed(edit, node.outputs[0], axis, int(kept.sum()))
    inputs, attrs = list(node.inputs), dict(node.attrs)
    if node.op_id == "ConvInteger":
        product = _product(edit, node)
        weight = edit.value(inputs[1])
        assert product is not None
        assert weight is not None
        last = node.attrs.get("nestling_layout") == "NHWC"
        cut = np.compress(kept, weight, axis=-1 if last else 0)
        inputs[1] = edit.const(cut, inputs[1])
        if product.group > 1:
            attrs["group"] = int(kept.sum())
    elif node.op_id not in POOLS:
        for position, name in enumerate(inputs):
            value = edit.value(name)
            if value is not None and value.size == len(kept) > 1:
                long = next(a for a, n in enumerate(value.shape) if n > 1)
                inputs[position] = edit.const(np.compress(kept, value, axis=long), name)
    edit.replace(node, node.with_(inputs=tuple(inputs), attrs=attrs))


@dataclass(frozen=True, slots=True, eq=False)
class _End:
    """The product that reads channels, and a view before it.  `along`: of weights, the channels."""

    node: Node
    view: Node | None
    along: int
    across: int
    zero: int
    w_zero: int
    padded: bool

    def slice(self, edit: Edit, kept: np.ndarray, values: np.ndarray) -> None:
        """Read only some channels; what the others, of these values, add becomes a bias."""
        node, count = self.node, int(kept.sum())
        if self.view is not None:
            out = self.view.outputs[0]
            shape = tuple(count if n == len(kept) else n for n in edit.shape(out))
            edit.types[out] = TensorType(shape, edit.dtype(out))
            sizes = edit.ints_const(shape, "shape")
            edit.replace(self.view, self.view.with_(inputs=(self.view.inputs[0], sizes)))
        weight = edit.value(node.inputs[1])
        assert weight is not None
        wide = np.moveaxis(weight.astype(np.int64) - self.w_zero, (self.along, self.across), (0, 1))
        gone = np.where(kept, 0, values - self.zero)
        added = (gone[:, None] * wide.reshape(*wide.shape[:2], -1).sum(axis=2)).sum(axis=0)
        cut = edit.const(np.compress(kept, weight, axis=self.along), node.inputs[1])
        inputs = (node.inputs[0], cut, *node.inputs[2:])
        if not added.any():
            edit.replace(node, node.with_(inputs=inputs))
            return
        kind = edit.types[node.outputs[0]]
        acc = edit.emit(node, node.op, inputs, kind, node.attrs, hint="kept")
        # Bias of the channels, which are last but for convolutions in the order of ONNX.
        last = node.op == "MatMulInteger" or self.across == weight.ndim - 1
        shape = (-1,) if last else (-1, *(1,) * (weight.ndim - 2))
        bias = edit.const(added.astype(np.int32).reshape(shape), "left_out")
        edit.become(node, "Add", (acc, bias))


def _end(edit: Edit, node: Node, name: str, axis: int) -> _End | None:
    """Return the product that reads a tensor's channels along one dimension of its weights."""
    if node.op_id == "Reshape":
        before, after = edit.shape(name), edit.shape(node.outputs[0])
        reader = edit.only_reader(node.outputs[0])
        channels = before[axis]
        if reader is None or reader.op_id != "MatMulInteger" or after[-1] != channels:
            return None
        if math.prod(before) != channels or math.prod(after) != channels or channels == 1:
            return None
        weight = edit.value(reader.inputs[1])
        zero, w_zero = (zero_point(edit, reader, p) for p in (2, 3))
        if weight is None or weight.ndim != 2 or zero is None or w_zero is None:
            return None
        if reader.inputs[0] != node.outputs[0]:
            return None
        return _End(reader, node, 0, 1, zero, w_zero, padded=False)
    product = _product(edit, node)
    if product is None or product.group != 1 or node.inputs[0] != name or product.axis != axis:
        return None
    w_zero = zero_point(edit, node, 3)
    last = node.attrs.get("nestling_layout") == "NHWC"
    rank = product.axis + 1 if last else len(edit.shape(name))
    along, across = (rank - 2, rank - 1) if last else (1, 0)
    assert w_zero is not None
    return _End(node, None, along, across, product.zero, w_zero, product.padded)
