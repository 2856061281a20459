"""Quantisation, casts, renamed operators, and what turns out to be Identity."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from toolkit.errors import ModelError
from toolkit.frontend.canonical.site import changed, explicit_axis, identity, Site
from toolkit.frontend.shapes import TO_ONNX
from toolkit.ir.graph import Node
from toolkit.ir.types import FROM_ONNX

PACKED = {"int4": np.int8, "uint4": np.uint8, "int2": np.int8, "uint2": np.uint8}
"""Element types of less than a byte, and those that hold their values."""


def _unpacked(site: Site) -> Site:
    """Return the site with constants of less than 8 bits as bytes, for DequantizeLinear."""
    inputs = list(site.node.inputs)
    for position in range(len(inputs) if site.node.op == "DequantizeLinear" else 0):
        name = inputs[position]
        wide = PACKED.get(site.type_of(name).dtype) if name else None
        value = site.whole_value_of(name) if wide is not None else None
        if wide is not None and value is not None:
            inputs[position] = site.new_const(value.astype(wide), "unpacked")
    return replace(site, node=site.node.with_(inputs=tuple(inputs)))


def quantize_linear(site: Site) -> list[Node]:
    """A scale of one element is a scalar, and then there is no axis; else `axis` is explicit.

    Constants of 4 or 2 bits that are dequantised are unpacked to bytes.
    """
    site = _unpacked(site)
    node, shape, scale = site.node, site.shape(0), site.shape(1)
    if site.attr_int("block_size", 0):
        return [explicit_axis(site, node)]
    if math.prod(scale) == 1:
        operands = [node.inputs[0]]
        for position in range(1, len(node.inputs)):
            known = site.known(position)
            if known is not None and known.shape == (1,):
                operands.append(site.new_const(known.reshape(()), "scalar"))
            else:
                operands.append(node.inputs[position])
        return [changed(node, "axis").with_(inputs=tuple(operands))]
    axis = site.attr_int("axis", 1)
    if len(shape) == 1 and not -1 <= axis < 1 and scale == shape:
        if "axis" in node.attrs:
            # TFLite's quantized_dimension of biases, copied by converters.
            site.note(f"axis {axis} is out of range for its 1-D input and was taken as 0")
        return [changed(node, axis=0)]
    return [changed(node, axis=site.axis(axis, len(shape)))]


def scatter(site: Site) -> list[Node]:
    """Scatter (9) -> ScatterElements."""
    axis = site.axis(site.attr_int("axis", 0), len(site.shape(0)))
    return [changed(site.node.with_(op="ScatterElements"), axis=axis)]


def cast_like(site: Site) -> list[Node]:
    """Cast to the type of the second operand."""
    node = site.node
    to = TO_ONNX[site.type_of(node.inputs[1]).dtype]
    attrs = {k: v for k, v in node.attrs.items() if k in ("saturate", "round_mode")}
    return [Node(node.name, "Cast", node.inputs[:1], node.outputs, attrs | {"to": to})]


MIN_STORED = 64
"""Constants of fewer elements are widened when compiling."""


def cast(site: Site) -> list[Node]:
    """A Cast to the type the tensor has already is Identity; constants of float16 stay so."""
    node, kind = site.node, site.type_of(site.node.inputs[0])
    to = site.attr_int("to", 0)
    if to not in TO_ONNX.values():
        raise ModelError(f"{to} is no element type")
    if FROM_ONNX.get(to) == kind.dtype:
        return [identity(node)]
    if kind.dtype == "float16" and FROM_ONNX.get(to) == "float32" and kind.size >= MIN_STORED:
        half = site.whole_value_of(node.inputs[0])
        if half is not None and np.isfinite(half).all():
            bits = site.new_const(half.view(np.uint16), "bits")
            return [Node(node.name, "HalfToFloat", (bits,), node.outputs)]
    return [node]


def variadic(site: Site) -> list[Node]:
    """Of one operand: Identity."""
    node = site.node
    return [identity(node)] if len(node.inputs) == 1 else [node]


def optional_get(site: Site) -> list[Node]:
    """Of a tensor: Identity."""
    return [identity(site.node)]


def optional_has(site: Site) -> list[Node]:
    """Known from whether there is an operand."""
    node = site.node
    value = site.new_const(np.array(bool(site.operand(0))), "present")
    return [Node(node.name, "Identity", (value,), node.outputs)]


def einsum(site: Site) -> list[Node]:
    """The equation without blanks; `onnx` never returns from one with foreign characters."""
    equation = site.attr_str("equation", "").replace(" ", "")
    if not re.fullmatch(r"([a-zA-Z]|\.\.\.|,)*(->([a-zA-Z]|\.\.\.)*)?", equation):
        raise ModelError(f"the equation {equation!r} is not valid")
    terms = equation.split("->")[0].split(",")
    if len(terms) != len(site.node.inputs):
        raise ModelError(f"the equation {equation!r} has {len(terms)} operands")
    return [changed(site.node, equation=equation)]


def gemm(site: Site) -> list[Node]:
    """Only matrices."""
    for position in (0, 1):
        if len(site.shape(position)) != 2:
            raise ModelError(f"input {list(site.shape(position))} is not a matrix")
    return [site.node]
