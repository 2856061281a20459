"""Small models, made here, that the tests of the command line share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, TensorProto

AWKWARD_NAMES = (
    "int", "a b", "a/b", "a_b", "α", "0", "for", "x:0", "main", "nst_x", "arena", "9", "*/",
    '"q"', "\\", "a?b", "??/",
)  # fmt: skip
"""No C identifiers, equal as C identifiers, keywords, names that break comments and strings."""


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Mapping[str, Sequence[int | str | None]],
    consts: Mapping[str, np.ndarray] = {},
    *,
    dtypes: Mapping[str, int] = {},
    domain: str = "",
) -> Path:
    """Write a model whose tensors are float32 where `dtypes` says nothing."""

    def info(name: str, shape: Sequence[int | str | None]) -> onnx.ValueInfoProto:
        kind = dtypes.get(name, TensorProto.FLOAT)
        return helper.make_tensor_value_info(name, kind, list(shape))

    graph = helper.make_graph(
        nodes,
        "small",
        [info(n, s) for n, s in inputs.items()],
        [info(n, s) for n, s in outputs.items()],
        [numpy_helper.from_array(v, n) for n, v in consts.items()],
    )
    imports = [helper.make_opsetid("", 17)]
    if domain:
        imports.append(helper.make_opsetid(domain, 1))
    path.write_bytes(
        helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    )
    return path


def dense(path: Path, *, weight: float = 0.5) -> Path:
    """Write y = relu(x W + b), x of 2x3, with an open batch named N."""
    rng = np.random.default_rng(3)
    w = rng.standard_normal((3, 4)).astype(np.float32) * np.float32(weight)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Add", ["m", "b"], ["s"], name="shift"),
        helper.make_node("Relu", ["s"], ["y"], name="clip"),
    ]
    b = np.array([0.5, -0.5, 0.0, 1.0], np.float32)
    return save(path, nodes, {"x": ("N", 3)}, {"y": ("N", 4)}, {"w": w, "b": b})


def awkward(path: Path) -> Path:
    """Write a chain of operators over tensors with `AWKWARD_NAMES`, most of them outputs."""
    nodes, first = [], AWKWARD_NAMES[0]
    for index, name in enumerate(AWKWARD_NAMES[1:]):
        kind = "Sigmoid" if index % 2 else "Exp"
        nodes.append(helper.make_node(kind, [first], [name], name=f"n {name}"))
        first = name
    shown = dict.fromkeys(AWKWARD_NAMES[1::2], (4,))
    return save(path, nodes, {AWKWARD_NAMES[0]: (4,)}, shown)


def scaled(path: Path, *, domain: str = "my.domain") -> Path:
    """Write y = Squash(x), an operator of a custom domain."""
    nodes = [helper.make_node("Squash", ["x"], ["y"], domain=domain, gain=2.0)]
    return save(path, nodes, {"x": (2, 5)}, {"y": (2, 5)}, domain=domain)


def switched(path: Path) -> Path:
    """Write y = x * 2 if mode == 1 else x + 10; `mode` is a scalar input."""
    names = {"then": ("Mul", 2.0), "else": ("Add", 10.0)}
    branches = {}
    for key, (op, value) in names.items():
        branches[f"{key}_branch"] = helper.make_graph(
            [helper.make_node(op, ["x", f"{key}_c"], [f"{key}_y"])],
            key,
            [],
            [helper.make_tensor_value_info(f"{key}_y", TensorProto.FLOAT, [3])],
            [numpy_helper.from_array(np.array(value, np.float32), f"{key}_c")],
        )
    nodes = [
        helper.make_node("Equal", ["mode", "one"], ["is_one"]),
        helper.make_node("If", ["is_one"], ["y"], name="branch", **branches),
    ]
    return save(
        path, nodes, {"x": (3,), "mode": ()}, {"y": (3,)}, {"one": np.array(1, np.int64)},
        dtypes={"mode": TensorProto.INT64},
    )  # fmt: skip
