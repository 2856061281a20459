"""Softmax and the normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from toolkit.errors import ModelError, UnsupportedError
from toolkit.frontend.canonical.site import changed, Site
from toolkit.ir.graph import Node


def softmax(site: Site) -> list[Node]:
    """Before 13 the input is flattened to 2-D at `axis` (default 1)."""
    node, shape = site.node, site.shape(0)
    rank = len(shape)
    if site.opset >= 13:
        axis = site.attr_int("axis", -1)
        return [changed(node, axis=site.axis(axis, max(rank, 1)))]
    axis = site.attr_int("axis", 1)
    if axis == rank:  # flattens to [N, 1]
        axis, wide = rank - 1, []
        if shape[-1] != 1:
            return [changed(node, axis=rank, coerce_2d=1)]
    axis = site.axis(axis, rank)
    wide = [i for i in range(axis, rank) if shape[i] != 1]
    if len(wide) <= 1:
        return [changed(node, axis=wide[0] if wide else axis)]
    return [changed(node, axis=axis, coerce_2d=1)]


def batch_norm(site: Site) -> list[Node]:
    """Inference form: attributes `epsilon` only, one output; per-activation (7) spelled out."""
    node, opset = site.node, site.opset
    if len(node.inputs) != 5:
        raise ModelError(f"{len(node.inputs)} inputs; 5 are needed")
    training = opset >= 14 and site.attr_int("training_mode", 0)
    extra = [o for o in node.outputs[1:] if o]
    epsilon = site.attr_float("epsilon", 1e-5)
    if training:
        momentum = site.attr_float("momentum", 0.9)
        attrs: dict[str, Any] = {"epsilon": epsilon, "momentum": momentum, "training_mode": 1}
        return [node.with_(attrs=attrs)]
    if extra:
        raise UnsupportedError("BatchNormalization with running statistics as outputs is training")
    if opset < 9 and not site.attr_int("spatial", 1):
        return _per_activation(site, epsilon)
    return [Node(node.name, node.op, node.inputs, node.outputs[:1], {"epsilon": epsilon})]


def _per_activation(site: Site, epsilon: float) -> list[Node]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, with statistics of shape x.shape[1:]."""
    node = site.node
    x, scale, bias, mean, var = node.inputs
    eps = site.new_const(np.array(epsilon, site.type_of(x).dtype), "epsilon")
    names = [site.new_name(part) for part in ("centred", "var", "std", "normal", "scaled")]
    outs = [*names, node.outputs[0]]
    steps = (
        ("Sub", (x, mean)),
        ("Add", (var, eps)),
        ("Sqrt", (names[1],)),
        ("Div", (names[0], names[2])),
        ("Mul", (names[3], scale)),
        ("Add", (names[4], bias)),
    )
    return [
        Node(f"{node.name}/{out}", op, ins, (out,))
        for (op, ins), out in zip(steps, outs, strict=True)
    ]


def group_norm(site: Site) -> list[Node]:
    """18: scale and bias per group -> per channel (21)."""
    node, shape = site.node, site.shape(0)
    if site.opset >= 21:
        return [node]
    groups = site.attr_int("num_groups", 0)
    if groups < 1 or len(shape) < 2 or shape[1] % groups:
        raise ModelError(f"{groups} groups do not divide {list(shape)}")
    nodes, inputs = [], [node.inputs[0]]
    for position, part in ((1, "scale"), (2, "bias")):
        column, wide, flat = (site.new_name(f"{part}_{s}") for s in ("column", "wide", "channels"))
        axes, full = site.int64([1], "axes"), site.int64([groups, shape[1] // groups], "shape")
        flatten = site.int64([shape[1]], "shape")
        name = f"{node.name}/{part}"
        nodes += [
            Node(f"{name}_column", "Unsqueeze", (site.operand(position), axes), (column,)),
            Node(f"{name}_wide", "Expand", (column, full), (wide,)),
            Node(f"{name}_channels", "Reshape", (wide, flatten), (flat,)),
        ]
        inputs.append(flat)
    attrs = {"epsilon": site.attr_float("epsilon", 1e-5), "num_groups": groups}
    return [*nodes, Node(node.name, node.op, tuple(inputs), node.outputs, attrs)]


def mvn(site: Site) -> list[Node]:
    """`axes` explicit."""
    axes = site.attr_ints("axes")
    axes = (0, 2, 3) if axes is None else axes
    rank = len(site.shape(0))
    return [changed(site.node, axes=tuple(site.axis(a, rank) for a in axes))]
