"""The benchmarks' models: fixed topologies, seeded weights, NCHW ONNX as exporters write it.

Weights are He-scaled so that activations neither vanish nor explode; nothing is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper, TensorProto

OPSET = 17
SEED = 20261

Kind = Literal["model", "kernel"]


@dataclass(slots=True)
class Net:
    """A graph being written: each method appends nodes and returns the name of the result."""

    name: str
    seed: int = SEED
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    consts: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([self.seed, *self.name.encode()])

    def input(self, name: str, *shape: int) -> str:
        """Declare an input."""
        self.inputs[name] = shape
        self.channels[name] = shape[1] if len(shape) == 4 else shape[-1]
        return name

    def const(self, name: str, value: np.ndarray) -> str:
        """Add an initialiser; equal names are the caller's mistake."""
        assert name not in self.consts, name
        self.consts[name] = value
        return name

    def node(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Append a node of one output."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"/{name}", **attributes))
        self.channels[name] = self.channels.get(inputs[0], 0)
        return name

    def normal(self, name: str, shape: Sequence[int], deviation: float) -> str:
        """Add an initialiser of normal numbers."""
        value = self.rng.standard_normal(tuple(shape)) * deviation
        return self.const(name, value.astype(np.float32))

    def conv(
        self,
        x: str,
        out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        *,
        pads: Sequence[int] | None = None,
        groups: int = 1,
        gain: float = 2.0,
    ) -> str:
        """Conv with bias.  `pads`: default half the kernel; `gain`: 2 before a ReLU, else 1."""
        high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
        fan_in = self.channels[x] // groups * high * wide
        at = f"conv{len(self.nodes)}"
        shape = (out, self.channels[x] // groups, high, wide)
        weight = self.normal(f"{at}.weight", shape, math.sqrt(gain / fan_in))
        bias = self.normal(f"{at}.bias", (out,), 0.1)
        y = self.node(
            "Conv",
            (x, weight, bias),
            kernel_shape=[high, wide],
            strides=[stride, stride],
            pads=list(pads) if pads is not None else [high // 2, wide // 2] * 2,
            dilations=[1, 1],
            group=groups,
        )
        self.channels[y] = out
        return y

    def relu(self, x: str) -> str:
        """Relu."""
        return self.node("Relu", (x,))

    def relu6(self, x: str) -> str:
        """Clip to 0..6, its limits inputs, as torch writes ReLU6."""
        if "zero" not in self.consts:
            self.const("zero", np.array(0, np.float32))
            self.const("six", np.array(6, np.float32))
        return self.node("Clip", (x, "zero", "six"))

    def classifier(self, x: str, classes: int) -> str:
        """GlobalAveragePool, Flatten, Gemm."""
        pooled = self.node("GlobalAveragePool", (x,))
        return self.gemm(self.node("Flatten", (pooled,), axis=1), classes, gain=1.0)

    def gemm(self, x: str, out: int, *, gain: float = 2.0) -> str:
        """Gemm with the weight as torch keeps it: outputs first."""
        fan_in, at = self.channels[x], f"fc{len(self.nodes)}"
        weight = self.normal(f"{at}.weight", (out, fan_in), math.sqrt(gain / fan_in))
        bias = self.normal(f"{at}.bias", (out,), 0.1)
        y = self.node("Gemm", (x, weight, bias), alpha=1.0, beta=1.0, transB=1)
        self.channels[y] = out
        return y

    def linear(self, x: str, out: int, *, gain: float = 1.0) -> str:
        """Linear on the last axis of three: MatMul with the transposed weight, then Add."""
        fan_in, at = self.channels[x], f"linear{len(self.nodes)}"
        weight = self.normal(f"{at}.weight", (fan_in, out), math.sqrt(gain / fan_in))
        bias = self.normal(f"{at}.bias", (out,), 0.1)
        y = self.node("MatMul", (x, weight))
        self.channels[y] = out
        y = self.node("Add", (bias, y))
        self.channels[y] = out
        return y

    def scalar(self, value: float) -> str:
        """Add a float32 scalar."""
        return self.const(f"scalar{len(self.consts)}", np.array(value, np.float32))

    def shape(self, *dims: int) -> str:
        """Add an int64 shape."""
        return self.const(f"shape{len(self.consts)}", np.array(dims, np.int64))

    def model(self, y: str) -> onnx.ModelProto:
        """Return the model with the one output `y`, renamed `output`."""
        for n in self.nodes:
            n.output[:] = ["output" if o == y else o for o in n.output]

        def info(name: str, shape: Sequence[int] | None) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        graph = helper.make_graph(
            self.nodes,
            self.name,
            [info(n, s) for n, s in self.inputs.items()],
            [info("output", None)],
            [numpy_helper.from_array(v, n) for n, v in self.consts.items()],
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=8,
            producer_name="nestling.benchmarks",
        )
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        model.graph.output[0].CopyFrom(inferred.graph.output[0])
        return model


# ----------------------------------------------------------------------------------- whole models


def ds_cnn() -> onnx.ModelProto:
    """DS-CNN for keyword spotting, the topology of MLPerf Tiny."""
    n = Net("ds_cnn")
    x = n.relu(n.conv(n.input("input", 1, 1, 49, 10), 64, (10, 4), 2, pads=(4, 1, 5, 1)))
    for _ in range(4):
        x = n.relu(n.conv(x, 64, 3, groups=64))
        x = n.relu(n.conv(x, 64, 1))
    return n.model(n.node("Softmax", (n.classifier(x, 12),), axis=-1))


def mobilenet_v1() -> onnx.ModelProto:
    """MobileNetV1 0.25 for visual wake words, the topology of MLPerf Tiny (TensorFlow's SAME)."""

    def pads(stride: int) -> tuple[int, int, int, int]:
        return (1, 1, 1, 1) if stride == 1 else (0, 0, 1, 1)

    n = Net("mobilenet_v1_025")
    x = n.relu(n.conv(n.input("input", 1, 3, 96, 96), 8, 3, 2, pads=pads(2)))
    blocks = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2)]
    for out, stride in (*blocks, (256, 1)):
        x = n.relu(n.conv(x, n.channels[x], 3, stride, pads=pads(stride), groups=n.channels[x]))
        x = n.relu(n.conv(x, out, 1))
    return n.model(n.node("Softmax", (n.classifier(x, 2),), axis=-1))


def resnet8() -> onnx.ModelProto:
    """ResNet-8 for CIFAR-10, the topology of MLPerf Tiny (TensorFlow's SAME)."""
    n = Net("resnet8")
    x = n.relu(n.conv(n.input("input", 1, 3, 32, 32), 16, 3))
    for out, stride in ((16, 1), (32, 2), (64, 2)):
        pads = (1, 1, 1, 1) if stride == 1 else (0, 0, 1, 1)
        y = n.relu(n.conv(x, out, 3, stride, pads=pads))
        y = n.conv(y, out, 3, gain=0.5)
        if stride != 1:
            x = n.conv(x, out, 1, stride, gain=1.0)
        x = n.relu(n.node("Add", (x, y)))
    return n.model(n.node("Softmax", (n.classifier(x, 10),), axis=-1))


def autoencoder() -> onnx.ModelProto:
    """The fully connected autoencoder of MLPerf Tiny, BatchNormalization folded."""
    n = Net("autoencoder")
    x = n.input("input", 1, 640)
    for out in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x = n.relu(n.gemm(x, out))
    return n.model(n.gemm(x, 640, gain=1.0))


def mobilenet_v2(size: int = 224, depth: int = 1) -> onnx.ModelProto:
    """MobileNetV2 1.0, torchvision's topology; `depth` multiplies the repeats of its blocks."""
    n = Net("mobilenet_v2" if depth == 1 else f"mobilenet_v2_x{depth}")
    x = n.relu6(n.conv(n.input("input", 1, 3, size, size), 32, 3, 2))
    for expand, out, repeats, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
        (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for i in range(repeats * depth):
            step, inner = stride if i == 0 else 1, n.channels[x] * expand
            y = n.relu6(n.conv(x, inner, 1)) if expand != 1 else x
            y = n.relu6(n.conv(y, inner, 3, step, groups=inner))
            same = step == 1 and n.channels[x] == out
            y = n.conv(y, out, 1, gain=0.5 if same else 1.0)
            x = n.node("Add", (x, y)) if same else y
    return n.model(n.classifier(n.relu6(n.conv(x, 1280, 1)), 1000))


def _resnet_stem(n: Net) -> str:
    x = n.relu(n.conv(n.input("input", 1, 3, 224, 224), 64, 7, 2, pads=(3, 3, 3, 3)))
    return n.node(
        "MaxPool", (x,), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1],
        dilations=[1, 1], ceil_mode=0,
    )  # fmt: skip


def resnet18() -> onnx.ModelProto:
    """ResNet-18, torchvision's topology, BatchNormalization folded as torch's exporter does."""
    n = Net("resnet18")
    x = _resnet_stem(n)
    for stage, out in enumerate((64, 128, 256, 512)):
        for i in range(2):
            stride = 2 if stage > 0 and i == 0 else 1
            y = n.relu(n.conv(x, out, 3, stride))
            y = n.conv(y, out, 3, gain=0.5)
            if stride != 1:
                x = n.conv(x, out, 1, stride, gain=1.0)
            x = n.relu(n.node("Add", (y, x)))
    return n.model(n.classifier(x, 1000))


def resnet50() -> onnx.ModelProto:
    """ResNet-50 (v1.5: the stride in the 3x3), torchvision's, BatchNormalization folded."""
    n = Net("resnet50")
    x = _resnet_stem(n)
    for stage, (wide, repeats) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for i in range(repeats):
            stride = 2 if stage > 0 and i == 0 else 1
            y = n.relu(n.conv(x, wide, 1))
            y = n.relu(n.conv(y, wide, 3, stride))
            y = n.conv(y, 4 * wide, 1, gain=0.5)
            if i == 0:
                x = n.conv(x, 4 * wide, 1, stride, gain=1.0)
            x = n.relu(n.node("Add", (y, x)))
    return n.model(n.classifier(x, 1000))


def encoder(wide: int, heads: int, tokens: int = 128) -> onnx.ModelProto:
    """A transformer encoder layer, post-LN with GELU, spelled out as torch exports BERT's."""
    n = Net(f"encoder_{wide}")
    x = n.input("input", 1, tokens, wide)
    per_head = wide // heads
    to_heads = n.shape(1, tokens, heads, per_head)

    def norm(y: str) -> str:
        at = f"norm{len(n.nodes)}"
        scale = n.const(f"{at}.weight", n.rng.uniform(0.8, 1.2, wide).astype(np.float32))
        bias = n.normal(f"{at}.bias", (wide,), 0.1)
        return n.node("LayerNormalization", (y, scale, bias), axis=-1, epsilon=1e-5)

    def split(y: str, perm: Sequence[int]) -> str:
        return n.node("Transpose", (n.node("Reshape", (y, to_heads)),), perm=list(perm))

    q, k, v = (n.linear(x, wide) for _ in range(3))
    scores = n.node("MatMul", (split(q, (0, 2, 1, 3)), split(k, (0, 2, 3, 1))))
    scores = n.node("Div", (scores, n.scalar(math.sqrt(per_head))))
    weights = n.node("Softmax", (scores,), axis=-1)
    mixed = n.node("MatMul", (weights, split(v, (0, 2, 1, 3))))
    mixed = n.node("Transpose", (mixed,), perm=[0, 2, 1, 3])
    mixed = n.node("Reshape", (mixed, n.shape(1, tokens, wide)))
    n.channels[mixed] = wide
    x = norm(n.node("Add", (n.linear(mixed, wide), x)))
    h = n.linear(x, 4 * wide)
    bell = n.node("Erf", (n.node("Div", (h, n.scalar(math.sqrt(2.0)))),))
    h = n.node("Mul", (h, n.node("Add", (bell, n.scalar(1.0)))))
    h = n.node("Mul", (h, n.scalar(0.5)))
    return n.model(norm(n.node("Add", (n.linear(h, wide), x))))


# ---------------------------------------------------------------------------------- single kernels


def matmul(size: int) -> onnx.ModelProto:
    """A square MatMul with a constant second operand."""
    n = Net(f"matmul_{size}")
    x = n.input("input", size, size)
    weight = n.normal("weight", (size, size), math.sqrt(1 / size))
    return n.model(n.node("MatMul", (x, weight)))


def conv(
    name: str, size: int, inner: int, out: int, kernel: int, groups: int = 1
) -> onnx.ModelProto:
    """One convolution on a square image, stride 1, size kept."""
    n = Net(name)
    return n.model(
        n.conv(n.input("input", 1, inner, size, size), out, kernel, groups=groups, gain=1)
    )


# ------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the tables.  `kind` "model" rows enter the geometric means.

    `twin`: the corpus's `.tflite` file of the same topology, for runtimes that read no ONNX.
    `file`: what ours is compiled from, if that is not `build()`, in integers; samples with the
    answers of its reference lie beside it.
    """

    name: str
    title: str
    kind: Kind
    build: Callable[[], onnx.ModelProto]
    macs: int
    twin: str | None = None
    file: Path | None = None


def _rows() -> dict[str, Row]:
    def model(name: str, title: str, build: Callable[[], onnx.ModelProto], macs: int,
              twin: str | None = None) -> Row:  # fmt: skip
        return Row(name, title, "model", build, macs, twin)

    def kernel(name: str, title: str, build: Callable[[], onnx.ModelProto], macs: int) -> Row:
        return Row(name, title, "kernel", build, macs)

    rows = (
        model("ds_cnn", "DS-CNN keyword spotting", ds_cnn, 2_656_768),
        model("mobilenet_v1", "MobileNetV1 0.25 96x96", mobilenet_v1, 7_489_664,
              "mlperf_vww_mbv1_float.tflite"),
        model("resnet8", "ResNet-8 32x32", resnet8, 12_501_632, "mlperf_ic_resnet8_float.tflite"),
        model("autoencoder", "FC autoencoder", autoencoder, 264_192, "mlperf_ad_fcae_float.tflite"),
        model("mobilenet_v2", "MobileNetV2 224", mobilenet_v2, 300_774_272),
        model("resnet18", "ResNet-18 224", resnet18, 1_814_073_344),
        model("resnet50", "ResNet-50 224", resnet50, 4_089_184_256),
        model("encoder_256", "encoder layer 256/4, seq 128", lambda: encoder(256, 4), 109_051_904),
        model("encoder_768", "encoder layer 768/12, seq 128", lambda: encoder(768, 12),
              931_135_488),
        kernel("matmul_64", "matmul 64, constant B", lambda: matmul(64), 64**3),
        kernel("matmul_256", "matmul 256, constant B", lambda: matmul(256), 256**3),
        kernel("matmul_512", "matmul 512, constant B", lambda: matmul(512), 512**3),
        kernel("conv_3x3", "conv 3x3 56x56 64->64",
               lambda: conv("conv_3x3", 56, 64, 64, 3), 56 * 56 * 64 * 64 * 9),
        kernel("conv_1x1", "conv 1x1 28x28 128->256",
               lambda: conv("conv_1x1", 28, 128, 256, 1), 28 * 28 * 128 * 256),
        kernel("depthwise_3x3", "depthwise 3x3 56x56 128",
               lambda: conv("depthwise_3x3", 56, 128, 128, 3, 128), 56 * 56 * 128 * 9),
    )  # fmt: skip
    return {row.name: row for row in rows}


ROWS: dict[str, Row] = _rows()
"""All rows by name, in the table's order."""


INT8 = (
    ("kws_int8", "DS-CNN int8", "mlperf_kws_dscnn_int8", 2_656_768),
    ("vww_int8", "MobileNetV1 0.25 int8", "mlperf_vww_mbv1_int8", 7_489_664),
    ("ic_int8", "ResNet-8 int8", "mlperf_ic_resnet8_int8", 12_501_632),
    ("ad_int8", "FC autoencoder int8", "mlperf_ad_fcae_int8", 264_192),
)
"""Quantised models of the corpus: name, title, the files' stem, multiply-adds."""


def int8_rows(corpus: Path | None) -> dict[str, Row]:
    """Return two rows for each quantised model: ours from the ONNX file, and from the TFLite file.

    Peers run the format they read.  Raises SystemExit where the corpus is not here.
    """
    if corpus is None or not corpus.is_dir():
        raise SystemExit(f"--int8: the models of the corpus are not here: --corpus, not {corpus}")
    rows = []
    for name, title, stem, macs in INT8:
        onnx_file, twin = corpus / f"{stem}.onnx", f"{stem}.tflite"
        for suffix, file in (("", onnx_file), ("_tflite", corpus / twin)):
            kind = "QDQ" if file == onnx_file else "TFLite"
            rows.append(Row(f"{name}{suffix}", f"{title}, {kind}", "model",
                            partial(onnx.load, onnx_file), macs, twin, file))  # fmt: skip
    return {row.name: row for row in rows}


@cache
def build(name: str) -> onnx.ModelProto:
    """Return the model of a row; it is shared, so leave it as it is."""
    return ROWS[name].build()


def pick(
    names: str | None, default: Sequence[str] | None = None, rows: Mapping[str, Row] = ROWS
) -> list[Row]:
    """Return the rows of a list of names with commas; SystemExit names an unknown one."""
    wanted = [n.strip() for n in names.split(",")] if names else list(default or rows)
    unknown = [n for n in wanted if n not in rows]
    if unknown:
        raise SystemExit(f"no row named {', '.join(unknown)}; known: {', '.join(rows)}")
    return [rows[n] for n in wanted]


def make_inputs(model: onnx.ModelProto, seed: int = SEED) -> dict[str, np.ndarray]:
    """Return seeded inputs for a model with fixed shapes: normal, or any integer of its type."""
    rng = np.random.default_rng(seed)
    made = {}
    for i in model.graph.input:
        shape = [d.dim_value or 1 for d in i.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        if dtype.kind == "f":
            made[i.name] = rng.standard_normal(shape).astype(dtype)
        else:
            limits = np.iinfo(dtype)
            made[i.name] = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return made


def count_macs(model: onnx.ModelProto) -> int:
    """Count the multiply-adds of Conv, Gemm and MatMul; padding counts, as is usual."""
    return sum(node_macs(model).values())


def node_macs(model: onnx.ModelProto) -> dict[str, int]:
    """Return the multiply-adds of each Conv, Gemm and MatMul, by the node's name."""
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    shapes = {c.name: tuple(c.dims) for c in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        shapes[value.name] = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
    found = {}
    for node in model.graph.node:
        if node.op_type == "Conv":
            found[node.name] = math.prod(shapes[node.output[0]]) * math.prod(
                shapes[node.input[1]][1:]
            )
        elif node.op_type in ("MatMul", "Gemm"):
            flipped = any(a.name == "transA" and a.i for a in node.attribute)
            depth = shapes[node.input[0]][-2 if flipped else -1]
            found[node.name] = math.prod(shapes[node.output[0]]) * depth
    return found
