"""Operators whose attributes became inputs: reductions, Split, Pad, Slice, Clip, TopK, ..."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from toolkit.errors import ModelError, UnsupportedError
from toolkit.frontend.canonical.site import changed, explicit_axis, identity, Site
from toolkit.ir.graph import Node


def reduce(site: Site) -> list[Node]:
    """axes: attribute -> input (18; ReduceSum 13); all axes when none are given."""
    node, rank = site.node, len(site.shape(0))
    axes: Any = site.attr_ints("axes") if "axes" in node.attrs else None
    if axes is None and site.operand(1):
        value = site.known(1)
        if value is None:
            return [node]  # inference refuses it
        axes = tuple(value.reshape(-1).tolist())
    if not axes and site.attr_int("noop_with_empty_axes", 0):
        if node.op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
            return [identity(node)]
        return [node.with_(inputs=node.inputs[:1])]
    axes = sorted({site.axis(a, rank) for a in axes}) if axes else list(range(rank))
    keep = site.attr_int("keepdims", 1)
    return [
        Node(
            node.name,
            node.op,
            (node.inputs[0], site.int64(axes, "axes")),
            node.outputs,
            {"keepdims": keep},
        )
    ]


def squeeze(site: Site) -> list[Node]:
    """axes: attribute -> input (13); all axes of size 1 when none are given."""
    node, shape = site.node, site.shape(0)
    axes: Any = site.attr_ints("axes")
    if axes is None and site.operand(1):
        value = site.known(1)
        if value is None:
            return [node]
        axes = value.reshape(-1).tolist()
    if axes is None:
        axes = [i for i, d in enumerate(shape) if d == 1]
    axes = sorted(site.axis(a, len(shape)) for a in axes)
    for a in axes:
        if shape[a] != 1:
            raise ModelError(f"axis {a} has size {shape[a]}, only size 1 can be squeezed")
    return [Node(node.name, "Squeeze", (node.inputs[0], site.int64(axes, "axes")), node.outputs)]


def unsqueeze(site: Site) -> list[Node]:
    """axes: attribute -> input (13)."""
    node, rank = site.node, len(site.shape(0))
    axes: Any = site.attr_ints("axes")
    if axes is None:
        value = site.known(1)
        if value is None:
            return [node]
        axes = value.reshape(-1).tolist()
    axes = sorted(site.axis(a, rank + len(axes)) for a in axes)
    if len(set(axes)) < len(axes):
        raise ModelError(f"axes {axes} name one axis twice")
    return [Node(node.name, "Unsqueeze", (node.inputs[0], site.int64(axes, "axes")), node.outputs)]


def split(site: Site) -> list[Node]:
    """split: attribute -> input (13); sizes spelled out when equal parts are asked for."""
    node, shape = site.node, site.shape(0)
    axis = site.axis(site.attr_int("axis", 0), len(shape))
    sizes: Any = site.attr_ints("split")
    if sizes is None and site.operand(1):
        value = site.known(1)
        if value is None:
            return [node]
        sizes = value.reshape(-1).tolist()
    if sizes is None:
        parts = site.attr_int("num_outputs", len(node.outputs))
        if parts != len(node.outputs) or not parts:
            raise ModelError(f"num_outputs is {parts} for {len(node.outputs)} outputs")
        if shape[axis] % parts and site.opset < 18:
            raise ModelError(f"{shape[axis]} elements do not divide into {parts} equal parts")
        part = math.ceil(shape[axis] / parts)
        sizes = [min(part, shape[axis] - i * part) for i in range(parts)]
    if sum(sizes) != shape[axis] or min(sizes, default=0) < 0 or len(sizes) != len(node.outputs):
        raise ModelError(
            f"sizes {list(sizes)} do not split {shape[axis]} elements into "
            f"{len(node.outputs)} outputs"
        )
    inputs = (node.inputs[0], site.int64(sizes, "split"))
    return [Node(node.name, "Split", inputs, node.outputs, {"axis": axis})]


def pad(site: Site) -> list[Node]:
    """pads, value: attributes -> inputs (11); axes (18) -> pads of all axes."""
    node, kind = site.node, site.type_of(site.node.inputs[0])
    rank = len(kind.shape)
    mode = site.attr_str("mode", "constant")
    fill: Any = None
    if site.opset < 11:
        pads: Any = site.attr_ints("pads")
        if pads is None:
            raise ModelError("attribute 'pads' is required")
        value = site.attr_float("value", 0.0)
        if value:
            fill = site.new_const(np.array(value, dtype=kind.dtype), "value")
    else:
        known = site.known(1)
        if known is None:
            return [node]
        pads = known.reshape(-1).tolist()
        fill = site.operand(2)
        if fill:
            filled = site.value_of(fill)
            if filled is not None and filled.dtype.kind in "fiub" and not filled.any():
                fill = ""
    if site.operand(3):
        axes_value = site.known(3)
        if axes_value is None:
            return [node]
        axes = [site.axis(a, rank) for a in axes_value.reshape(-1).tolist()]
    else:
        axes = list(range(rank))
    if len(pads) != 2 * len(axes):
        raise ModelError(f"{len(pads)} pads for {len(axes)} axes; two an axis are needed")
    full = [0] * (2 * rank)
    for i, a in enumerate(axes):
        full[a], full[rank + a] = pads[i], pads[len(axes) + i]
    inputs = (node.inputs[0], site.int64(full, "pads"), *((fill,) if fill else ()))
    return [Node(node.name, "Pad", inputs, node.outputs, {"mode": mode})]


def slice_(site: Site) -> list[Node]:
    """starts, ends, axes: attributes -> inputs (10); axes and steps spelled out."""
    node, rank = site.node, len(site.shape(0))
    if site.opset < 10:
        starts: Any = site.attr_ints("starts")
        ends: Any = site.attr_ints("ends")
        axes: Any = site.attr_ints("axes")
        steps: Any = None
        if starts is None or ends is None:
            raise ModelError("attributes 'starts' and 'ends' are required")
    else:
        operands = []
        for position in range(1, 5):
            value = site.known(position)
            if value is None and site.operand(position):
                return [node]
            operands.append(None if value is None else value.reshape(-1).tolist())
        starts, ends, axes, steps = operands
        if starts is None or ends is None:
            raise ModelError("inputs 'starts' and 'ends' are required")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ModelError(
            f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes, {len(steps)} steps"
        )
    axes = [site.axis(a, rank) for a in axes]
    if 0 in steps:
        raise ModelError("a step is 0")
    operands_ = zip((starts, ends, axes, steps), "starts ends axes steps".split(), strict=True)
    inputs = (node.inputs[0], *(site.int64(values, name) for values, name in operands_))
    return [Node(node.name, "Slice", inputs, node.outputs)]


def clip(site: Site) -> list[Node]:
    """min, max: attributes -> inputs (11)."""
    node, kind = site.node, site.type_of(site.node.inputs[0])
    if site.opset >= 11:
        return [node]
    limit = float(np.finfo(np.float32).max)
    bounds = []
    for name, default in (("min", -limit), ("max", limit)):
        value = site.attr_float(name, default)
        array = np.array(value).astype(kind.dtype)
        bounds.append("" if value == default else site.new_const(array, name))
    inputs = (node.inputs[0], *bounds)
    while not inputs[-1]:
        inputs = inputs[:-1]
    if len(inputs) == 1:
        return [identity(node)]
    return [Node(node.name, "Clip", inputs, node.outputs)]


def topk(site: Site) -> list[Node]:
    """k: attribute -> input (10)."""
    node = explicit_axis(site, site.node)
    if site.opset < 10:
        k = site.attr_int("k", 0)
        node = changed(node, "k").with_(inputs=(node.inputs[0], site.int64([k], "k")))
    return [node]


def dropout(site: Site) -> list[Node]:
    """Identity, and a mask of ones; training is not supported unless nothing is dropped."""
    node = site.node
    if site.opset >= 12 and site.operand(2):
        training = site.known(2)
        ratio = site.known(1)
        never = ratio is not None and not ratio.any()
        if (training is None or training.any()) and not never:
            raise UnsupportedError("Dropout in training mode gives random values")
    nodes = [identity(node)] if node.outputs[0] else []
    if len(node.outputs) > 1 and node.outputs[1]:
        kind = site.type_of(node.inputs[0])
        dtype = "bool" if site.opset >= 10 else kind.dtype
        shape = site.int64(kind.shape, "shape")
        fill = {"value": np.ones(1, dtype)}
        name = f"{node.name}_mask"
        nodes.append(Node(name, "ConstantOfShape", (shape,), (node.outputs[1],), fill))
    return nodes


def dft(site: Site) -> list[Node]:
    """axis: attribute -> input (20)."""
    node, rank = site.node, len(site.shape(0))
    if site.opset < 20:
        axis = site.axis(site.attr_int("axis", 1), rank)
        name = site.new_const(np.array(axis, np.int64), "axis")
        node = changed(node, "axis").with_(inputs=(node.inputs[0], site.operand(1), name))
    return [node]


def range_(site: Site) -> list[Node]:
    """Operands of one element are scalars."""
    node, inputs = site.node, []
    for position, part in enumerate(("start", "limit", "delta")):
        value = site.known(position)
        name = site.operand(position)
        if value is not None and value.size == 1 and value.ndim:
            name = site.new_const(value.reshape(()), part)
        inputs.append(name)
    return [node.with_(inputs=tuple(inputs))]


def stft(site: Site) -> list[Node]:
    """`onesided` explicit: shape inference takes another default."""
    return [changed(site.node, onesided=site.attr_int("onesided", 1))]
