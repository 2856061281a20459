"""Graphs made here, node by node, for tests of the passes: single constructs and random nets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType, type_of
from toolkit.ops import infer_node, OPS

OPSET = 22


class Maker:
    """A graph under construction: `maker.Relu(x)` adds a node and returns its output's name.

    Operands are names or arrays; keywords are attributes.
    """

    def __init__(self, dtype: str = "float64", seed: int = 0) -> None:
        self.dtype = dtype
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, np.ndarray] = {}

    def input(self, *shape: int, dtype: str | None = None) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.types[name] = TensorType(shape, dtype or self.dtype)
        return name

    def const(self, value: Any, dtype: str | None = None) -> str:
        array = np.asarray(value)
        if dtype is not None or array.dtype.kind == "f":
            array = array.astype(dtype or self.dtype)
        name = f"c{len(self.consts)}"
        self.consts[name] = array
        self.types[name] = type_of(array)
        return name

    def random(self, *shape: int, low: float | None = None) -> str:
        values = self.rng.standard_normal(shape)
        return self.const(values if low is None else np.abs(values) + low)

    def ints(self, *values: int) -> str:
        return self.const(np.array(values, np.int64), "int64")

    def shape(self, name: str) -> tuple[int, ...]:
        return self.types[name].shape

    def op(self, op: str, *operands: Any, count: int = 1, **attrs: Any) -> Any:
        names = [o if isinstance(o, str) else "" if o is None else self.const(o) for o in operands]
        outputs = tuple(f"t{len(self.nodes)}_{i}" for i in range(count))
        node = Node(f"n{len(self.nodes)}", op, tuple(names), outputs, attrs)
        kinds = infer_node(OPS, node, self.types, self.consts, OPSET)
        for name, kind in zip(outputs, kinds, strict=True):
            assert kind is not None
            self.types[name] = kind
        self.nodes.append(node)
        return outputs[0] if count == 1 else outputs

    def __getattr__(self, op: str) -> Any:
        if not op[0].isupper():
            raise AttributeError(op)
        return lambda *operands, **attrs: self.op(op, *operands, **attrs)

    def graph(self, *outputs: str) -> Graph:
        return Graph(
            "made", tuple(self.nodes), tuple(self.inputs), outputs, self.types, self.consts, OPSET
        )

    # -- with the attributes that the frontend always gives --

    def conv(
        self,
        x: str,
        channels: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        pad: int | None = None,
        group: int = 1,
        bias: bool = True,
        transposed: bool = False,
    ) -> str:
        rank, width = len(self.shape(x)) - 2, self.shape(x)[1]
        pad = kernel // 2 if pad is None else pad
        if transposed:
            weight = self.random(width, channels // group, *(kernel,) * rank)
        else:
            weight = self.random(channels, width // group, *(kernel,) * rank)
        return self.op(
            "ConvTranspose" if transposed else "Conv", x, weight,
            *((self.random(channels),) if bias else ()),
            kernel_shape=(kernel,) * rank, strides=(stride,) * rank, dilations=(1,) * rank,
            pads=(pad,) * (2 * rank), group=group,
            **({"output_padding": (0,) * rank} if transposed else {}),
        )  # fmt: skip

    def batch_norm(self, x: str) -> str:
        c = self.shape(x)[1]
        operands = (self.random(c), self.random(c), self.random(c), self.random(c, low=0.5))
        return self.op("BatchNormalization", x, *operands, epsilon=1e-3)

    def pool(self, op: str, x: str, kernel: int, stride: int, pad: int = 0, **attrs: Any) -> str:
        rank = len(self.shape(x)) - 2
        return self.op(
            op, x, kernel_shape=(kernel,) * rank, strides=(stride,) * rank,
            dilations=(1,) * rank, pads=(pad,) * (2 * rank), **attrs,
        )  # fmt: skip

    def reduce(self, op: str, x: str, *axes: int, keepdims: int = 1) -> str:
        return self.op(op, x, self.ints(*axes), keepdims=keepdims)

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.ints(*shape))

    def pad(self, x: str, begin: Sequence[int], end: Sequence[int], **attrs: Any) -> str:
        return self.op("Pad", x, self.ints(*begin, *end), mode="constant", **attrs)

    def slice(self, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
        return self.op(
            "Slice", x, self.ints(start), self.ints(end), self.ints(axis), self.ints(step)
        )

    def split(self, x: str, axis: int, *sizes: int) -> tuple[str, ...]:
        found: tuple[str, ...] = self.op("Split", x, self.ints(*sizes), axis=axis, count=len(sizes))
        return found


def inputs_of(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random inputs."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for name in graph.inputs:
        kind = graph.types[name]
        if kind.dtype == "bool":
            found[name] = rng.integers(0, 2, kind.shape).astype(bool)
        elif kind.dtype.startswith("float"):
            found[name] = rng.standard_normal(kind.shape).astype(kind.dtype)
        else:
            found[name] = rng.integers(0, 5, kind.shape).astype(kind.dtype)
    return found


# -- random nets ------------------------------------------------------------------------------


def conv_net(seed: int, dtype: str = "float64") -> Graph:
    """A small convolution net: residuals, groups, pads, pools, concatenation, squeeze-excite."""
    m = Maker(dtype, seed)
    rng = m.rng
    rank = int(rng.integers(1, 3))
    size, channels = int(rng.integers(6, 10)), int(rng.integers(1, 5))
    if rng.integers(0, 2):  # as tf2onnx gives it: NHWC in, a Transpose first
        x = m.input(1, *(size,) * rank, channels)
        x = m.Transpose(x, perm=(0, rank + 1, *range(1, rank + 1)))
    else:
        x = m.input(int(rng.integers(1, 3)), channels, *(size,) * rank)
    outputs = []
    for _ in range(int(rng.integers(4, 9))):
        x = _conv_block(m, x)
        if rng.integers(0, 5) == 0:
            outputs.append(x)
    if rng.integers(0, 2):
        x = m.op("GlobalAveragePool", x)
    if rng.integers(0, 2):
        shape = m.shape(x)
        x = m.reshape(x, shape[0], int(np.prod(shape[1:])))
        x = m.Relu(x) if rng.integers(0, 2) else x
        x = m.Gemm(x, m.random(5, m.shape(x)[1]), m.random(5), transB=1)
        x = m.Softmax(x, axis=1)
    elif rng.integers(0, 2):
        x = m.Transpose(x, perm=(0, *range(2, rank + 2), 1))
        shape = m.shape(x)
        x = m.reshape(x, shape[0], -1, shape[-1])
    return m.graph(*dict.fromkeys((*outputs, x)))


def _conv_block(m: Maker, x: str) -> str:
    rng, shape = m.rng, m.shape(x)
    channels, rank = shape[1], len(shape) - 2
    kind = int(rng.integers(0, 14))
    big = min(shape[2:]) >= 4
    if kind <= 3:
        y = m.conv(x, int(rng.integers(1, 7)), stride=int(rng.integers(1, 3)) if big else 1)
        y = m.batch_norm(y) if rng.integers(0, 2) else y
        return m.op(str(rng.choice(["Relu", "Sigmoid", "Tanh"])), y)
    if kind == 4:
        return m.Clip(m.conv(x, channels, group=channels, bias=False), np.float64(0), np.float64(6))
    if kind == 5:
        return m.Relu(m.Add(x, m.batch_norm(m.conv(x, channels, 1))))
    if kind == 6 and big:
        y = m.pad(x, (0, 0, *(1,) * rank), (0, 0, *(1,) * rank))
        return m.conv(y, 4, pad=0)
    if kind == 7 and big:
        op = str(rng.choice(["MaxPool", "AveragePool"]))
        return m.pool(op, x, 2, 2)
    if kind == 8:
        return m.Concat(x, m.conv(x, 3), axis=1)
    if kind == 9:
        s = m.Sigmoid(m.conv(m.reduce("ReduceMean", x, *range(2, rank + 2)), channels, 1))
        return m.Mul(x, s)
    if kind == 10 and channels % 2 == 0:  # channel shuffle
        y = m.reshape(x, shape[0], 2, channels // 2, *shape[2:])
        y = m.Transpose(y, perm=(0, 2, 1, *range(3, rank + 3)))
        return m.reshape(y, *shape)
    if kind == 11 and channels > 1:
        a, b = m.split(x, 1, 1, channels - 1)
        return m.Concat(m.Relu(b), a, axis=1)
    if kind == 12:
        scale = m.random(channels, *(1,) * rank)
        return m.Add(m.Mul(m.conv(x, channels), scale), m.random(1, channels, *(1,) * rank))
    if kind == 13:
        return m.conv(x, 4, 2, stride=1, pad=0, transposed=True)
    return m.PRelu(x, m.random(channels, *(1,) * rank))


def transformer(seed: int, dtype: str = "float64") -> Graph:
    """A block of attention and a block of two products, spelled in one of several ways."""
    m = Maker(dtype, seed)
    rng = m.rng
    steps, heads, depth = int(rng.integers(3, 7)), int(rng.integers(1, 4)), int(rng.integers(2, 5))
    width = heads * depth
    x = m.input(1, steps, width)
    y = _normal(m, x)
    if rng.integers(0, 2):
        qkv = m.Add(m.MatMul(y, m.random(width, 3 * width)), m.random(3 * width))
        qkv = m.Transpose(m.reshape(qkv, 1, steps, 3, heads, depth), perm=(2, 0, 3, 1, 4))
        parts = m.split(qkv, 0, 1, 1, 1)
        q, k, v = (m.reshape(p, 1, heads, steps, depth) for p in parts)
    else:
        q, k, v = (
            m.Transpose(
                m.reshape(
                    m.Add(m.random(width), m.MatMul(y, m.random(width, width))),
                    1, steps, heads, depth,
                ),
                perm=(0, 2, 1, 3),
            )
            for _ in range(3)
        )  # fmt: skip
    scores = m.Div(m.MatMul(q, m.Transpose(k, perm=(0, 1, 3, 2))), np.float64(np.sqrt(depth)))
    if rng.integers(0, 2):
        mask = np.triu(np.full((steps, steps), -1e9), 1)
        scores = m.Add(scores, mask)
    z = m.MatMul(m.Softmax(scores, axis=3), v)
    z = m.reshape(m.Transpose(z, perm=(0, 2, 1, 3)), 1, steps, width)
    x = m.Add(x, m.Add(m.MatMul(z, m.random(width, width)), m.random(width)))
    y = _normal(m, x)
    y = _gelu(m, m.Add(m.MatMul(y, m.random(width, 2 * width)), m.random(2 * width)))
    x = m.Add(m.Add(m.MatMul(y, m.random(2 * width, width)), m.random(width)), x)
    return m.graph(m.reduce("ReduceMean", x, 1, keepdims=0))


def _normal(m: Maker, x: str) -> str:
    width = m.shape(x)[-1]
    scale, shift = m.random(width), m.random(width)
    if m.rng.integers(0, 2):
        return m.LayerNormalization(x, scale, shift, axis=2, epsilon=1e-5)
    centred = m.Sub(x, m.reduce("ReduceMean", x, 2))
    square = m.Pow(centred, np.float64(2)) if m.rng.integers(0, 2) else m.Mul(centred, centred)
    deviation = m.Sqrt(m.Add(m.reduce("ReduceMean", square, 2), np.float64(1e-5)))
    return m.Add(m.Mul(m.Div(centred, deviation), scale), shift)


def _gelu(m: Maker, x: str) -> str:
    kind = int(m.rng.integers(0, 4))
    if kind == 0:
        return m.Gelu(x)
    if kind == 1:
        inner = m.Erf(m.Div(x, np.float64(np.sqrt(2))))
        return m.Mul(m.Mul(x, m.Add(inner, np.float64(1))), np.float64(0.5))
    if kind == 2:
        return m.Mul(x, m.Sigmoid(x))
    cube = m.Mul(m.Mul(x, m.Mul(x, x)), np.float64(0.044715))
    inner = m.Tanh(m.Mul(m.Add(x, cube), np.float64(np.sqrt(2 / np.pi))))
    return m.Mul(m.Mul(x, m.Add(inner, np.float64(1))), np.float64(0.5))


def soup(seed: int, dtype: str = "float64") -> Graph:
    """Operators that move data and element-wise ones, at random, with tensors read repeatedly."""
    m = Maker(dtype, seed)
    rng = m.rng
    pool = [m.input(2, 3, 4), m.input(2, 3, 4)]
    for _ in range(int(rng.integers(8, 20))):
        pool.append(_soup_node(m, pool))
    last = pool[-1]
    chosen = [last, *(n for n in pool[2:-1] if rng.integers(0, 8) == 0)]
    return m.graph(*dict.fromkeys(chosen))


def _soup_node(m: Maker, pool: Sequence[str]) -> str:
    rng = m.rng
    x = str(pool[int(rng.integers(max(0, len(pool) - 4), len(pool)))])
    shape = m.shape(x)
    rank = len(shape)
    unary = ["Relu", "Neg", "Abs", "Tanh", "Identity", "Sigmoid", "Floor"]
    kind = int(rng.integers(0, 13))
    axis = int(rng.integers(0, rank))
    if kind <= 2:
        return m.op(str(rng.choice(unary)), x)
    if kind == 3:
        value = [0, 1, 2, -3, 0.5][int(rng.integers(0, 5))]
        return m.op(str(rng.choice(["Add", "Mul", "Sub", "Div"])), x, np.float64(value or 1.0))
    if kind == 4:
        same = [n for n in pool if m.shape(n) == shape]
        return m.op(str(rng.choice(["Add", "Mul", "Max", "Sub"])), x, str(rng.choice(same)))
    if kind == 5:
        return m.Transpose(x, perm=tuple(int(a) for a in rng.permutation(rank)))
    if kind == 6:
        total = int(np.prod(shape))
        first = [d for d in (1, 2, 3, 4, 6) if total % d == 0]
        a = int(rng.choice(first))
        return m.reshape(x, a, total // a) if rng.integers(0, 2) else m.reshape(x, 1, total // a, a)
    if kind == 7 and shape[axis] > 1:
        start = int(rng.integers(0, shape[axis] - 1))
        return m.slice(x, axis, start, int(rng.integers(start + 1, shape[axis] + 1)))
    if kind == 8 and shape[axis] > 1:
        cut = int(rng.integers(1, shape[axis]))
        a, b = m.split(x, axis, cut, shape[axis] - cut)
        return (
            m.Concat(a, b, axis=axis) if rng.integers(0, 2) else m.Concat(b, m.Relu(a), axis=axis)
        )
    if kind == 9 and np.prod(shape) < 200:
        same = [n for n in pool if m.shape(n) == shape]
        return m.Concat(x, str(rng.choice(same)), axis=axis)
    if kind == 10:
        return m.Clip(x, np.float64(rng.integers(-2, 1)), np.float64(rng.integers(1, 3)))
    if kind == 11 and rank > 1:
        return m.reduce("ReduceSum", x, axis, keepdims=int(rng.integers(0, 2)))
    if kind == 12:
        begin, end = [0] * rank, [0] * rank
        begin[axis] = int(rng.integers(0, 2))
        return m.pad(x, begin, end)
    return m.Relu(x)


NETS: Mapping[str, Any] = {"conv_net": conv_net, "transformer": transformer, "soup": soup}
