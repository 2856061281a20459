"""Kernels that searches are compared on, and others that the shipped cost models learn from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx

from benchmarks.models import Net
from toolkit.lowering.tasks import tasks_of
from toolkit.pipeline import compile_model, load, Options
from toolkit.space.task import Task
from toolkit.tuner.run import operations_of


def product(name: str, rows: int, inner: int, columns: int) -> onnx.ModelProto:
    """A matrix times a constant one."""
    n = Net(name)
    weight = n.normal("weight", (inner, columns), math.sqrt(1 / inner))
    return n.model(n.node("MatMul", (n.input("input", rows, inner), weight)))


def inside(size: int, channels: int, out: int) -> onnx.ModelProto:
    """A 3x3 convolution between two that mix channels, so that it runs channel-last as in nets."""
    n = Net("inside")
    x = n.relu(n.conv(n.input("input", 1, 4, size, size), channels, 1))
    return n.model(n.conv(n.relu(n.conv(x, out, 3)), 4, 1))


def separable(size: int, channels: int, out: int, stride: int = 1) -> onnx.ModelProto:
    """A depthwise and a 1x1 convolution as in nets for mobile phones."""
    n = Net("separable")
    x = n.relu(n.conv(n.input("input", 1, 4, size, size), channels, 1))
    x = n.relu(n.conv(n.relu(n.conv(x, channels, 3, stride=stride, groups=channels)), out, 1))
    return n.model(n.conv(x, 4, 1))


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel of a model that computes its weights number `weights`, in order."""

    build: Callable[[], onnx.ModelProto]
    number: int = 0


KERNELS: dict[str, Kernel] = {
    "matmul": Kernel(lambda: product("matmul", 33, 50, 70)),
    "conv3x3": Kernel(lambda: inside(10, 12, 20), 1),
    "conv1x1": Kernel(lambda: separable(14, 40, 36), 2),
    "depthwise": Kernel(lambda: separable(14, 40, 36), 1),
    "gemv": Kernel(lambda: product("gemv", 1, 128, 128)),
}
"""Kernels that one core runs in 0.5 to 5 microseconds, so that trials are cheap; none of them fits
whole vectors and tiles as the default schedule likes them."""

SEPARABLE = (
    (7, 64, 48, 1), (9, 24, 40, 1), (12, 33, 20, 1), (16, 16, 24, 1), (20, 48, 64, 1),
    (28, 20, 28, 1), (15, 72, 44, 2), (10, 96, 52, 1), (24, 32, 16, 2), (32, 12, 36, 1),
    (11, 56, 88, 1), (18, 44, 60, 1), (56, 32, 64, 1), (112, 16, 24, 2), (28, 144, 32, 1),
)  # fmt: skip
INSIDE = (
    (8, 16, 16), (9, 20, 12), (12, 8, 24), (14, 14, 12), (16, 24, 20), (7, 40, 36), (20, 10, 16),
    (11, 32, 28), (28, 6, 20), (6, 28, 44), (56, 32, 32), (28, 64, 64),
)  # fmt: skip
PRODUCTS = (
    (17, 40, 50), (49, 96, 64), (64, 64, 64), (20, 100, 33), (128, 128, 128), (25, 72, 90),
    (48, 30, 40), (100, 20, 28), (384, 384, 384), (128, 768, 256),
)  # fmt: skip
GEMVS = (
    (1, 64, 256), (1, 256, 64), (1, 100, 100), (1, 300, 40), (1, 512, 128), (1, 72, 200),
    (1, 1024, 1000), (1, 640, 128),
)  # fmt: skip

TRAINING: dict[str, Kernel] = {
    **{
        f"{kind}_{'x'.join(map(str, shape))}": Kernel(lambda s=shape: separable(*s), number)
        for shape in SEPARABLE
        for number, kind in ((1, "depthwise"), (2, "conv1x1"))
    },
    **{f"conv3x3_{'x'.join(map(str, s))}": Kernel(lambda s=s: inside(*s), 1) for s in INSIDE},
    **{
        f"{'matmul' if s[0] > 1 else 'gemv'}_{'x'.join(map(str, s))}": Kernel(
            lambda s=s: product("product", *s)
        )
        for s in (*PRODUCTS, *GEMVS)
    },
}
"""Kernels of the same kinds, of other sizes: none is one of `KERNELS`."""


def kernel_task(kernel: Kernel, target_name: str) -> Task:
    """Return the task of a kernel."""
    compiled = compile_model(load(kernel.build()), Options(target=target_name))
    found = tasks_of(compiled.graph, compiled.model.ops, compiled.program, compiled.target)
    return [task for task in found if operations_of(task)][kernel.number]
