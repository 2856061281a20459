"""Base functions of small layers, as lowering makes them of ONNX models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import onnx

from benchmarks.models import Net
from toolkit.ir.loop import PrimFunc
from toolkit.lowering.kernels import func_key
from toolkit.lowering.steps import RawCall, Steps
from toolkit.passes.manager import run_passes
from toolkit.pipeline import load


def base_functions(model: onnx.ModelProto) -> list[PrimFunc]:
    """Return the different base functions of a model, in the order of its steps."""
    loaded = load(model)
    graph = run_passes(loaded.graph, loaded.ops)
    work = Steps(loaded.ops, dict(graph.types), dict(graph.consts), opset=graph.opset)
    work.graph(graph)
    calls = [step.group.func for step in work.steps if isinstance(step, RawCall)]
    return list({func_key(func): func for func in calls}.values())


def _convolution() -> onnx.ModelProto:
    n = Net("convolution")
    x = n.relu(n.conv(n.input("x", 1, 2, 5, 6), 3, 1))
    return n.model(n.classifier(n.relu(n.conv(x, 18, 3)), 2))


def _first_channels() -> onnx.ModelProto:
    n = Net("first_channels")
    return n.model(n.conv(n.input("x", 1, 4, 7, 6), 5, 3, 2))


def _depthwise() -> onnx.ModelProto:
    n = Net("depthwise")
    x = n.relu(n.conv(n.input("x", 1, 2, 5, 5), 20, 1))
    x = n.relu6(n.conv(x, 20, 3, groups=20))
    return n.model(n.classifier(n.relu(n.conv(x, 20, 1)), 2))


def _matmul() -> onnx.ModelProto:
    n = Net("matmul")
    return n.model(n.linear(n.input("x", 1, 7, 6), 19))


def _plain_matmul() -> onnx.ModelProto:
    n = Net("plain_matmul")
    return n.model(n.node("MatMul", (n.input("x", 6, 5), n.normal("w", (5, 16), 1.0))))


def _gemv() -> onnx.ModelProto:
    n = Net("gemv")
    return n.model(n.relu(n.gemm(n.input("x", 1, 12), 10)))


def _pool() -> onnx.ModelProto:
    n = Net("pool")
    x = n.relu(n.conv(n.input("x", 1, 2, 6, 6), 9, 1))
    x = n.node("MaxPool", (x,), kernel_shape=[2, 2], strides=[2, 2])
    return n.model(n.classifier(x, 3))


def _softmax() -> onnx.ModelProto:
    n = Net("softmax")
    return n.model(n.node("Softmax", (n.input("x", 3, 32),), axis=-1))


def _layer_norm() -> onnx.ModelProto:
    n = Net("layer_norm")
    x = n.input("x", 1, 3, 32)
    scale, bias = n.normal("s", (32,), 1.0), n.normal("b", (32,), 1.0)
    return n.model(n.node("LayerNormalization", (x, scale, bias), axis=-1, epsilon=1e-5))


def _sum_of_two() -> onnx.ModelProto:
    n = Net("sum_of_two")
    return n.model(n.relu(n.node("Add", (n.input("a", 3, 11), n.input("b", 3, 11)))))


def _transpose() -> onnx.ModelProto:
    n = Net("transpose")
    return n.model(n.node("Transpose", (n.input("x", 4, 6, 8),), perm=[0, 2, 1]))


LAYERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "convolution": _convolution,
    "first_channels": _first_channels,
    "depthwise": _depthwise,
    "matmul": _matmul,
    "plain_matmul": _plain_matmul,
    "gemv": _gemv,
    "pool": _pool,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "sum_of_two": _sum_of_two,
    "transpose": _transpose,
}


@cache
def layer_functions(name: str) -> tuple[PrimFunc, ...]:
    """Return the base functions of one of `LAYERS`."""
    return tuple(base_functions(LAYERS[name]()))
