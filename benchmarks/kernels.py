"""Kernels that searches are compared on, and others that the shipped cost models learn from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx

from benchmarks.models import Net
from toolkit.api import quantize
from toolkit.ir.loop import blocks
from toolkit.lowering.tasks import tasks_of
from toolkit.pipeline import compile_model, load, Options
from toolkit.space.task import Task


def product(rows: int, inner: int, columns: int) -> onnx.ModelProto:
    """A matrix times a constant one."""
    n = Net("product")
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
    """A kernel of a model: the one numbered `number` of those that sum something up, in order."""

    build: Callable[[], onnx.ModelProto]
    number: int = 0


KERNELS: dict[str, Kernel] = {
    "matmul": Kernel(lambda: product(33, 50, 70)),
    "conv3x3": Kernel(lambda: inside(10, 12, 20), 1),
    "conv1x1": Kernel(lambda: separable(14, 40, 36), 2),
    "depthwise": Kernel(lambda: separable(14, 40, 36), 1),
    "gemv": Kernel(lambda: product(1, 128, 128)),
}
"""Kernels that one core runs in 0.5 to 5 microseconds, so that trials are cheap; none of them fits
whole vectors and tiles as the default schedule likes them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model of given sizes, which `build` takes; `kinds`: the numbers of its kernels, by name."""

    build: Callable[..., onnx.ModelProto]
    kinds: Mapping[str, int]
    sizes: tuple[int, ...]


def _shapes(
    build: Callable[..., onnx.ModelProto], kinds: Mapping[str, int], *sizes: tuple[int, ...]
) -> tuple[Shape, ...]:
    return tuple(Shape(build, kinds, s) for s in sizes)


def _kernels(shapes: Sequence[Shape], *, integer: bool = False) -> dict[str, Kernel]:
    """Return the kernels of shapes by names that tell both."""
    found: dict[str, Kernel] = {}
    for shape in shapes:
        text = "x".join(map(str, shape.sizes)) + ("_int8" if integer else "")
        build = partial(shape.build, *shape.sizes)
        for name, number in shape.kinds.items():
            kernel = Kernel(partial(quantised, build) if integer else build, number)
            found[f"{name}_{text}"] = kernel
    return found


def quantised(build: Callable[[], onnx.ModelProto]) -> onnx.ModelProto:
    """A model in 8-bit integers, for inputs of normal numbers."""
    model = build()
    rng = np.random.default_rng(0)
    samples = {
        i.name: rng.standard_normal(
            [4, *(d.dim_value for d in i.type.tensor_type.shape.dim)], np.float32
        )
        for i in model.graph.input
    }
    return quantize(model, samples).proto


_SMALL = (
    *_shapes(
        separable, {"depthwise": 1, "conv1x1": 2},
        (7, 64, 48), (9, 24, 40), (12, 33, 20), (16, 16, 24), (28, 20, 28), (15, 72, 44, 2),
        (10, 96, 52), (24, 32, 16, 2), (11, 56, 88),
    ),
    *_shapes(
        inside, {"conv3x3": 1},
        (8, 16, 16), (9, 20, 12), (12, 8, 24), (14, 12, 12), (7, 40, 36), (6, 28, 44),
    ),
    *_shapes(product, {"matmul": 0}, (17, 40, 50), (20, 100, 33), (25, 72, 90), (48, 30, 40)),
    *_shapes(product, {"gemv": 0}, (1, 64, 256), (1, 100, 100), (1, 300, 40), (1, 640, 128)),
)  # fmt: skip
_LARGE = (
    *_shapes(
        separable, {"depthwise": 1, "conv1x1": 2},
        (20, 48, 64), (32, 12, 36), (18, 44, 60), (56, 32, 64), (112, 16, 24, 2), (28, 144, 32),
    ),
    *_shapes(
        inside, {"conv3x3": 1},
        (16, 24, 20), (20, 10, 16), (11, 32, 28), (28, 6, 20), (56, 32, 32), (28, 64, 64),
    ),
    *_shapes(
        product, {"matmul": 0},
        (49, 96, 64), (64, 64, 64), (128, 128, 128), (100, 20, 28), (384, 384, 384),
        (128, 768, 256),
    ),
    *_shapes(product, {"gemv": 0}, (1, 256, 64), (1, 512, 128), (1, 72, 200), (1, 1024, 1000)),
)  # fmt: skip

TRAINING = _kernels((*_SMALL, *_LARGE))
"""Kernels of the same kinds, of other sizes, from which the models of hosts learn."""

MCU_TRAINING = {**_kernels(_SMALL), **_kernels(_SMALL, integer=True)}
"""And those of microcontrollers."""


def kernel_task(kernel: Kernel, target_name: str) -> Task:
    """Return the task of a kernel, its model compiled for a target."""
    compiled = compile_model(load(kernel.build()), Options(target=target_name))
    found = tasks_of(compiled.graph, compiled.model.ops, compiled.program, compiled.target)
    return [t for t in found if any(b.reduce for b in blocks(t.func.body))][kernel.number]
