"""Channels of one value are left out, as far as can be, and results stay the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType, type_of
from toolkit.ir.verify import verify_graph
from toolkit.ops import infer_graph, OPS
from toolkit.passes.constant_channels import drop_constant_channels

SHIFT = 38


def meaning(graph: Graph, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Evaluate the few operators of these networks on int64 arrays, channels made axis 1."""
    known: dict[str, np.ndarray] = {**graph.consts, **inputs}
    for node in graph.nodes:
        values = [known[n].astype(np.int64) if n else np.int64(0) for n in node.inputs]
        match node.op:
            case "ConvInteger":
                result = convolved(node, *values)
            case "MatMulInteger":
                result = (values[0] - (values[2] if len(values) > 2 else 0)) @ values[1]
            case "Add":
                result = values[0] + values[1]
            case "Reshape":
                result = values[0].reshape(values[1])
            case "MaxPool":
                x = values[0]
                result = np.maximum.reduce([x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)])
            case "Requantize":
                result = requantised(node, values, known[node.inputs[1]])
        kind = graph.types[node.outputs[0]]
        assert result.shape == kind.shape
        known[node.outputs[0]] = result.astype(kind.dtype)
    return known[graph.outputs[0]]


def convolved(node: Node, x: np.ndarray, w: np.ndarray, zero: np.ndarray) -> np.ndarray:
    last = node.attrs.get("nestling_layout") == "NHWC"
    if last:
        x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, (-1, -2), (0, 1))
    p, group = node.attrs["pads"][0], node.attrs["group"]
    x = np.pad(x - zero, ((0, 0), (0, 0), (p, p), (p, p)))
    k, outputs = w.shape[2], len(w) // group
    size = x.shape[2] - k + 1
    parts = []
    for g in range(group):
        data = x[:, g * w.shape[1] : (g + 1) * w.shape[1]]
        own = w[g * outputs : (g + 1) * outputs]
        parts.append(sum(
            np.einsum("nihw,oi->nohw", data[:, :, a : a + size, b : b + size], own[:, :, a, b])
            for a in range(k) for b in range(k)
        ))  # fmt: skip
    y = np.concatenate(parts, axis=1)
    return np.moveaxis(y, 1, -1) if last else y


def requantised(node: Node, values: list[np.ndarray], multiplier: np.ndarray) -> np.ndarray:
    acc, factor, offset = values[:3]
    axis = node.attrs["axis"] % acc.ndim
    along = [-1 if a == axis else 1 for a in range(acc.ndim)]
    if multiplier.dtype == np.float32:
        total = (acc + offset.reshape(along)).astype(np.float32)
        y = np.rint(total * multiplier.reshape(along)) + node.attrs["zero_point"]
    else:
        y = (acc * factor.reshape(along) + offset.reshape(along)) >> node.attrs["shift"]
    return np.clip(y, node.attrs["low"], node.attrs["high"])


class Net:
    """A network of int8 products under construction, [1, C, 6, 6] or the channel last."""

    def __init__(self, rng: np.random.Generator, *, last: bool, in_float: bool) -> None:
        self.rng, self.last, self.in_float = rng, last, in_float
        self.nodes: list[Node] = []
        self.consts: dict[str, np.ndarray] = {}
        self.x = "x"

    def add(self, op: str, *inputs: str, **attrs: object) -> None:
        out = f"t{len(self.nodes)}"
        self.nodes.append(Node(f"n{len(self.nodes)}", op, (self.x, *inputs), (out,), attrs))
        self.x = out

    def const(self, value: np.ndarray) -> str:
        self.consts[f"c{len(self.consts)}"] = value
        return f"c{len(self.consts) - 1}"

    def requantize(self, values: np.ndarray, axis: int) -> None:
        """Requantise, the channels of `values` that are no nan holding that value."""
        count = len(values)
        held = ~np.isnan(values)
        low = np.where(held, values, self.rng.uniform(-60, 60, count)).astype(np.int64)
        attrs = {"to": 3, "low": -100, "high": 127, "axis": axis}
        slope = self.rng.uniform(0.002, 0.0075, count)
        if self.in_float:
            factor = slope.astype(np.float32)
            bias = np.rint(low / factor).astype(np.int32)
            self.add("Requantize", self.const(factor), self.const(bias), **attrs, zero_point=0)
            return
        factor = (slope * 2.0**SHIFT).astype(np.int32)
        offset = (low << SHIFT) + (1 << (SHIFT - 1))
        self.add("Requantize", self.const(factor), self.const(offset), **attrs, shift=SHIFT)

    def conv(self, inner: int, values: np.ndarray, *, zero: int, k: int, pad: int) -> None:
        """A convolution, depthwise if `inner` is 0; channels that hold a value have no weights."""
        group = 1 if inner else len(values)
        w = self.rng.integers(-99, 100, (len(values), inner or 1, k, k)).astype(np.int8)
        w[~np.isnan(values)] = 0 if inner else w[~np.isnan(values)]
        if self.last:
            w = np.moveaxis(w, (0, 1), (-1, -2))
        attrs = {"nestling_layout": "NHWC"} if self.last else {}
        zero_point = self.const(np.array(zero, np.int8))
        self.add("ConvInteger", self.const(w), zero_point, pads=(pad,) * 4, group=group, **attrs)
        self.requantize(values, 3 if self.last else 1)

    def graph(self, channels: int) -> Graph:
        shape = (1, 6, 6, channels) if self.last else (1, channels, 6, 6)
        types = {n: type_of(v) for n, v in self.consts.items()}
        types["x"] = TensorType(shape, "int8")
        graph = Graph("net", tuple(self.nodes), ("x",), (self.x,), types, self.consts, 21)
        return infer_graph(OPS, graph)


def widths(graph: Graph) -> list[int]:
    """Return the numbers of channels that products make."""
    return [
        graph.types[n.outputs[0]].shape[-1 if n.attrs.get("nestling_layout") else 1]
        for n in graph.nodes
        if n.op in ("ConvInteger", "MatMulInteger")
    ]


def holding(count: int, **values: float) -> np.ndarray:
    """Return the values that channels hold, nan where none: `c3=-7`."""
    found = np.full(count, np.nan)
    for name, value in values.items():
        found[int(name[1:])] = value
    return found


def check(graph: Graph, rng: np.random.Generator, multiple: int = 1) -> list[int]:
    after = drop_constant_channels(graph, OPS, multiple=multiple)
    verify_graph(after)
    assert {n: t for n, t in infer_graph(OPS, after).types.items() if n in after.types} == dict(
        after.types
    )
    for _ in range(3):
        x = {"x": rng.integers(-128, 128, graph.types["x"].shape).astype(np.int8)}
        np.testing.assert_array_equal(meaning(graph, x), meaning(after, x))
    return widths(after)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("in_float", [False, True])
def test_what_products_add_for_channels_of_one_value_is_a_bias(
    rng: np.random.Generator, last: bool, in_float: bool
) -> None:
    """Channel 1 is the zero point of what reads it, channel 4 is not: only a window without padding
    sees it everywhere."""
    values = holding(7, c1=-5, c4=20)
    for pad, left in ((0, 5), (1, 6)):
        net = Net(rng, last=last, in_float=in_float)
        net.conv(3, values, zero=4, k=1, pad=0)
        net.conv(7, holding(4), zero=-5, k=3, pad=pad)
        assert check(net.graph(3), rng) == [left, 4]


@pytest.mark.parametrize("last", [False, True])
def test_channels_go_through_depthwise_windows_and_pools(
    rng: np.random.Generator, last: bool
) -> None:
    net = Net(rng, last=last, in_float=False)
    net.conv(3, holding(9, c0=-5, c2=-5, c7=30), zero=4, k=1, pad=0)
    net.conv(0, holding(9), zero=-5, k=3, pad=1)  # channel 7 differs at the border
    if not last:
        net.add("MaxPool", kernel_shape=(2, 2), strides=(2, 2))
    net.conv(9, holding(6, c5=1), zero=3, k=1, pad=0)
    net.conv(6, holding(2), zero=1, k=1, pad=0)
    assert check(net.graph(3), rng) == [7, 7, 5, 2]


def test_what_is_left_is_a_multiple(rng: np.random.Generator) -> None:
    values = holding(11, c1=0, c3=0, c4=0, c6=0, c9=0)
    for multiple, left in ((1, 6), (4, 8), (8, 8), (16, 11)):
        net = Net(rng, last=True, in_float=False)
        net.conv(3, values, zero=4, k=1, pad=0)
        net.conv(11, holding(5), zero=0, k=1, pad=0)
        assert check(net.graph(3), rng, multiple) == [left, 5]


def test_a_dense_layer_reads_what_is_left(rng: np.random.Generator) -> None:
    net = Net(rng, last=True, in_float=False)
    net.conv(3, holding(8, c2=9, c3=0), zero=4, k=6, pad=0)
    net.add("Reshape", net.const(np.array([1, 8])))
    w = net.const(rng.integers(-9, 10, (8, 5)).astype(np.int8))
    net.add("MatMulInteger", w, net.const(np.array(-3, np.int8)))
    assert check(net.graph(3), rng) == [6, 5]


def test_what_something_else_reads_stays(rng: np.random.Generator) -> None:
    net = Net(rng, last=False, in_float=False)
    net.conv(3, holding(7, c1=-5), zero=4, k=1, pad=0)
    graph = net.graph(3)
    assert drop_constant_channels(graph, OPS, multiple=1) is graph  # it is the result
    out = net.x
    net.conv(7, holding(4), zero=-5, k=1, pad=0)
    graph = net.graph(3)
    both = graph.with_(outputs=(out, *graph.outputs))
    assert drop_constant_channels(both, OPS, multiple=1) is both


def test_if_all_channels_hold_a_value_one_is_left(rng: np.random.Generator) -> None:
    net = Net(rng, last=False, in_float=False)
    net.conv(3, holding(2, c0=7, c1=8), zero=4, k=1, pad=0)
    net.conv(2, holding(4), zero=-5, k=1, pad=0)
    assert check(net.graph(3), rng) == [1, 4]
