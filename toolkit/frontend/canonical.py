"""One form per operator: every opset's spelling becomes the newest one, with static operands.

`canonicalise` maps a node, as imported at some opset, to nodes that mean the same under the newest
opset (`shapes.OPSET`).  `RULES` has one function an operator; an operator that is not in it means
the same in every opset from 7 on, or only gained types and optional operands.  What `ops` gets:

- every `axis` (`AXIS`): explicit, non-negative.
- Reduce*: `axes` a constant input, complete, sorted, non-negative; `noop_with_empty_axes` is
  gone, or 1 and then without axes (Sum, Mean, Max, Min and Prod become Identity there).
- Squeeze, Unsqueeze, Split, Pad, Slice, Clip, TopK, DFT: what was an attribute is an input:
  `axes`; `split` sizes; `pads` for all axes (and the value only if not 0); starts, ends, axes and
  steps, all four; min and max of the data's type; `K`; `axis`.
- Reshape, Expand: a constant concrete shape without -1 (and 0 only for empty tensors, then with
  `allowzero=1`); for Expand it is the output's.  Range: constant operands are scalars.
- Conv, ConvTranspose, ConvInteger, QLinearConv, MaxPool, AveragePool, LpPool: `kernel_shape`,
  `strides`, `dilations`, `pads` (and `group`, `output_padding`) explicit; `auto_pad` and
  `output_shape` are gone.
- Softmax, LogSoftmax, Hardmax: `axis`; `coerce_2d=1` where the meaning before opset 13 (flatten
  to 2-D at `axis`) differs from the newest one.
- BatchNormalization: 5 inputs, 1 output, `epsilon`, unless `training_mode=1`; the per-activation
  form of opset 7 (`spatial=0`) is spelled out in Sub, Add, Sqrt, Div, Mul, Add.
- Dropout: Identity; its mask is constant.
- Upsample, Resize 10: Resize, asymmetric, nearest_mode floor (ceil where it shrinks). Resize:
  absent operands are '', never empty tensors; `axes` is gone unless with a
  keep_aspect_ratio_policy.
- GroupNormalization 18: scale and bias for each channel, as from 21 on.
- GridSample, RoiAlign, Scatter, CastLike (Cast), Flatten, Transpose, MeanVarianceNormalization:
  the newest names, defaults explicit.
- Sum, Max, Min, Mean of one operand, Cast to the same type, OptionalGetElement of a tensor:
  Identity.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from toolkit.errors import ModelError, UnsupportedError
from toolkit.frontend.shapes import TO_ONNX
from toolkit.ir.graph import Node
from toolkit.ir.types import FROM_ONNX, TensorType


@dataclass(frozen=True, slots=True)
class Site:
    """A node where it stands: its opset, and what is known of the tensors it reads."""

    node: Node
    opset: int
    type_of: Callable[[str], TensorType]
    value_of: Callable[[str], np.ndarray | None]
    new_const: Callable[[np.ndarray, str], str]
    new_name: Callable[[str], str]

    def operand(self, position: int) -> str:
        """Name of an input, '' when absent."""
        inputs = self.node.inputs
        return inputs[position] if position < len(inputs) else ""

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Shape of an input that must be there."""
        name = self.operand(position)
        if not name:
            raise ModelError(f"input {position} is required")
        return self.type_of(name).shape

    def known(self, position: int) -> np.ndarray | None:
        """Value of an input, None when absent or known only at run time."""
        name = self.operand(position)
        return self.value_of(name) if name else None

    def int64(self, values: Any, hint: str) -> str:
        """Name of a new constant that holds a list of integers."""
        return self.new_const(np.array(values, dtype=np.int64).reshape(-1), hint)

    def attr_int(self, name: str, default: int) -> int:
        value = self.node.attrs.get(name, default)
        if not isinstance(value, int):
            raise ModelError(f"attribute '{name}' must be an integer")
        return value

    def attr_ints(self, name: str) -> tuple[int, ...] | None:
        value = self.node.attrs.get(name)
        if value is not None and not (
            isinstance(value, tuple) and all(isinstance(v, int) for v in value)
        ):
            raise ModelError(f"attribute '{name}' must be a list of integers")
        return value

    def attr_float(self, name: str, default: float) -> float:
        value = self.node.attrs.get(name, default)
        if not isinstance(value, int | float):
            raise ModelError(f"attribute '{name}' must be a number")
        return float(value)

    def attr_str(self, name: str, default: str) -> str:
        value = self.node.attrs.get(name, default)
        if not isinstance(value, str):
            raise ModelError(f"attribute '{name}' must be a string")
        return value

    def axis(self, value: int, rank: int, what: str = "axis") -> int:
        """Non-negative form of an axis of a tensor of that rank."""
        if not -rank <= value < rank:
            raise ModelError(f"{what} {value} is out of range for rank {rank}")
        return value % rank


Rule = Callable[[Site], list[Node]]


def canonicalise(site: Site) -> list[Node]:
    """Return the nodes that stand for `site.node`; the last ones write its outputs.

    Raises `ModelError` or `UnsupportedError` with a reason that does not name the node.
    """
    node = site.node
    if node.domain:
        return [node]
    rule = RULES.get(node.op)
    if site.opset < 7 and node.op in BEFORE_7:
        rule = BEFORE_7[node.op]
    return [_explicit_axis(site, node)] if rule is None else rule(site)


def _changed(node: Node, drop: str = "", **attrs: Any) -> Node:
    """Return the node with attributes dropped and set."""
    kept = {k: v for k, v in node.attrs.items() if k not in drop.split()}
    return node.with_(attrs=kept | attrs)


def _identity(node: Node) -> Node:
    return Node(node.name, "Identity", node.inputs[:1], node.outputs[:1])


AXIS: Mapping[str, int] = {
    "ArgMax": 0,
    "ArgMin": 0,
    "Concat": 0,
    "DequantizeLinear": 1,
    "Gather": 0,
    "GatherElements": 0,
    "LayerNormalization": -1,
    "LpNormalization": -1,
    "QuantizeLinear": 1,
    "RMSNormalization": -1,
    "ScatterElements": 0,
    "SplitToSequence": 0,
    "TopK": -1,
}
"""Operators whose `axis` counts the axes of the first input, and its default."""


def _explicit_axis(site: Site, node: Node) -> Node:
    default = AXIS.get(node.op)
    if default is None:
        return node
    rank = len(site.shape(0))
    value = site.attr_int("axis", default)
    if node.op in ("QuantizeLinear", "DequantizeLinear"):
        # Without a per-axis scale there is no axis, and its default may be out of range.
        if not site.shape(1):
            return _changed(node, "axis")
        if "axis" not in node.attrs and rank <= default:
            return node
    return _changed(node, axis=site.axis(value, rank))


def _axis_only(site: Site) -> list[Node]:
    return [_explicit_axis(site, site.node)]


# -- attributes that became inputs ------------------------------------------------------------


def _reduce(site: Site) -> list[Node]:
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
            return [_identity(node)]
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


def _squeeze(site: Site) -> list[Node]:
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
    return [
        Node(node.name, "Squeeze", (node.inputs[0], site.int64(axes, "axes")), node.outputs)
    ]


def _unsqueeze(site: Site) -> list[Node]:
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
    return [
        Node(node.name, "Unsqueeze", (node.inputs[0], site.int64(axes, "axes")), node.outputs)
    ]


def _split(site: Site) -> list[Node]:
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


def _pad(site: Site) -> list[Node]:
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


def _slice(site: Site) -> list[Node]:
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


def _clip(site: Site) -> list[Node]:
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
        return [_identity(node)]
    return [Node(node.name, "Clip", inputs, node.outputs)]


def _topk(site: Site) -> list[Node]:
    """k: attribute -> input (10)."""
    node = _explicit_axis(site, site.node)
    if site.opset < 10:
        k = site.attr_int("k", 0)
        node = _changed(node, "k").with_(inputs=(node.inputs[0], site.int64([k], "k")))
    return [node]


def _dropout(site: Site) -> list[Node]:
    """Identity, and a mask of ones; training is not supported unless nothing is dropped."""
    node = site.node
    if site.opset >= 12 and site.operand(2):
        training = site.known(2)
        ratio = site.known(1)
        never = ratio is not None and not ratio.any()
        if (training is None or training.any()) and not never:
            raise UnsupportedError("Dropout in training mode gives random values")
    nodes = [_identity(node)] if node.outputs[0] else []
    if len(node.outputs) > 1 and node.outputs[1]:
        kind = site.type_of(node.inputs[0])
        dtype = "bool" if site.opset >= 10 else kind.dtype
        shape = site.int64(kind.shape, "shape")
        fill = {"value": np.ones(1, dtype)}
        name = f"{node.name}_mask"
        nodes.append(Node(name, "ConstantOfShape", (shape,), (node.outputs[1],), fill))
    return nodes


def _dft(site: Site) -> list[Node]:
    """axis: attribute -> input (20)."""
    node, rank = site.node, len(site.shape(0))
    if site.opset < 20:
        axis = site.axis(site.attr_int("axis", 1), rank)
        name = site.new_const(np.array(axis, np.int64), "axis")
        node = _changed(node, "axis").with_(inputs=(node.inputs[0], site.operand(1), name))
    return [node]


# -- shapes -----------------------------------------------------------------------------------


def _reshape(site: Site) -> list[Node]:
    """The shape without 0 and -1."""
    node, shape = site.node, site.shape(0)
    value = site.known(1)
    if value is None:
        return [node]
    wanted = value.reshape(-1).tolist()
    if not site.attr_int("allowzero", 0):
        if any(d == 0 and i >= len(shape) for i, d in enumerate(wanted)):
            raise ModelError(f"shape {wanted} copies an axis that {list(shape)} lacks")
        wanted = [shape[i] if d == 0 else d for i, d in enumerate(wanted)]
    if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        raise ModelError(f"shape {wanted} is not valid")
    if -1 in wanted:
        rest = -math.prod(wanted)
        if not rest or math.prod(shape) % rest:
            raise ModelError(f"{list(shape)} cannot be reshaped to {wanted}")
        wanted[wanted.index(-1)] = math.prod(shape) // rest
    if math.prod(wanted) != math.prod(shape):
        raise ModelError(
            f"{list(shape)} ({math.prod(shape)} elements) cannot be reshaped to {wanted}"
        )
    inputs = (node.inputs[0], site.int64(wanted, "shape"))
    attrs = {"allowzero": 1} if 0 in wanted else {}
    return [Node(node.name, "Reshape", inputs, node.outputs, attrs)]


def _expand(site: Site) -> list[Node]:
    """The shape is the output's."""
    node, value = site.node, site.known(1)
    if value is None:
        return [node]
    wanted = tuple(value.reshape(-1).tolist())
    try:
        shape = np.broadcast_shapes(site.shape(0), wanted)
    except ValueError:
        raise ModelError(
            f"{list(site.shape(0))} cannot be expanded to {list(wanted)}"
        ) from None
    inputs = (node.inputs[0], site.int64(shape, "shape"))
    return [Node(node.name, "Expand", inputs, node.outputs)]


def _flatten(site: Site) -> list[Node]:
    rank = len(site.shape(0))
    axis = site.attr_int("axis", 1)
    if not -rank <= axis <= rank:
        raise ModelError(f"axis {axis} is out of range for rank {rank}")
    return [_changed(site.node, axis=axis + rank if axis < 0 else axis)]


def _transpose(site: Site) -> list[Node]:
    rank = len(site.shape(0))
    perm = site.attr_ints("perm")
    perm = tuple(reversed(range(rank))) if perm is None else perm
    if sorted(perm) != list(range(rank)):
        raise ModelError(f"perm {list(perm)} does not permute {rank} axes")
    return [_changed(site.node, perm=perm)]


# -- windows ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Window:
    """Kernel, strides, dilations of a convolution or pool, all explicit."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    spatial: tuple[int, ...]
    auto_pad: str
    attrs: dict[str, Any] = field(default_factory=dict)


def _window(site: Site, weight: int | None) -> _Window:
    shape = site.shape(0)
    if len(shape) < 3:
        raise ModelError(f"its input {list(shape)} has no spatial axis")
    rank = len(shape) - 2
    kernel = site.attr_ints("kernel_shape")
    if weight is not None:
        shape_w = site.shape(weight)
        if len(shape_w) != rank + 2:
            raise ModelError(
                f"weights {list(shape_w)} do not fit an input of shape {list(shape)}"
            )
        if kernel is not None and kernel != shape_w[2:]:
            raise ModelError(
                f"kernel_shape {list(kernel)} contradicts weights of shape {list(shape_w)}"
            )
        kernel = shape_w[2:]
    if kernel is None:
        raise ModelError("attribute 'kernel_shape' is required")
    strides = site.attr_ints("strides") or (1,) * rank
    dilations = site.attr_ints("dilations") or (1,) * rank
    for name, values in (("kernel_shape", kernel), ("strides", strides), ("dilations", dilations)):
        if len(values) != rank or min(values) < 1:
            raise ModelError(
                f"attribute '{name}' {list(values)} must hold {rank} positive numbers"
            )
    auto_pad = site.attr_str("auto_pad", "NOTSET") or "NOTSET"
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ModelError(f"attribute 'auto_pad' is '{auto_pad}'")
    return _Window(kernel, strides, dilations, shape[2:], auto_pad)


def _check_fit(w: _Window, pads: tuple[int, ...]) -> None:
    rank = len(w.kernel)
    padded = [n + pads[i] + pads[rank + i] for i, n in enumerate(w.spatial)]
    extents = [(k - 1) * d + 1 for k, d in zip(w.kernel, w.dilations, strict=True)]
    if any(e > n for e, n in zip(extents, padded, strict=True)):
        raise ModelError(f"a window of {extents} does not fit into a padded input of {padded}")


def _given_pads(site: Site, rank: int) -> tuple[int, ...]:
    pads = site.attr_ints("pads") or (0,) * (2 * rank)
    if len(pads) != 2 * rank:
        raise ModelError(f"attribute 'pads' {list(pads)} must hold {2 * rank} numbers")
    return pads


def _halves(total: int, upper: bool) -> tuple[int, int]:
    """Split a padding into begin and end; `upper` puts the odd one at the end."""
    small, large = total // 2, total - total // 2
    return (small, large) if upper else (large, small)


def _windowed(weight: int | None, drop: str = "") -> Rule:
    """Convolutions and pools: the window explicit, `auto_pad` as `pads`."""

    def rule(site: Site) -> list[Node]:
        w = _window(site, weight)
        attrs: dict[str, Any] = {"kernel_shape": w.kernel, "strides": w.strides}
        attrs["dilations"] = w.dilations
        if w.auto_pad == "NOTSET":
            attrs["pads"] = _given_pads(site, len(w.kernel))
            if min(attrs["pads"]) < 0:
                raise ModelError(f"attribute 'pads' {list(attrs['pads'])} is negative")
        else:
            begin, end = [], []
            for size, k, s, d in zip(w.spatial, w.kernel, w.strides, w.dilations, strict=True):
                need = 0
                if w.auto_pad != "VALID":
                    need = max((math.ceil(size / s) - 1) * s + (k - 1) * d + 1 - size, 0)
                b, e = _halves(need, w.auto_pad == "SAME_UPPER")
                begin.append(b)
                end.append(e)
            attrs["pads"] = (*begin, *end)
            if "ceil_mode" in site.node.attrs and w.auto_pad != "VALID":
                attrs["ceil_mode"] = 0
        _check_fit(w, attrs["pads"])
        if weight is not None:
            attrs["group"] = site.attr_int("group", 1)
            if attrs["group"] < 1:
                raise ModelError(f"attribute 'group' is {attrs['group']}")
        return [_changed(site.node, "auto_pad " + drop, **attrs)]

    return rule


def _conv_transpose(site: Site) -> list[Node]:
    """`auto_pad` and `output_shape` become `pads` and `output_padding`.

    With SAME_UPPER the odd padding is at the end, else at the begin (specification of opset 11
    on, and what onnxruntime does for all).  Where the kernel is smaller than the stride, SAME
    gives less than size * stride, as in onnxruntime and the shape inference of `onnx`.
    """
    w = _window(site, 1)
    rank = len(w.kernel)
    extra = site.attr_ints("output_padding") or (0,) * rank
    if len(extra) != rank or min(extra) < 0:
        raise ModelError(f"attribute 'output_padding' {list(extra)} must hold {rank} numbers")
    wanted = site.attr_ints("output_shape")
    if wanted is not None:
        wanted = wanted[-rank:]  # some exporters give all axes
        if len(wanted) != rank:
            raise ModelError(f"attribute 'output_shape' must hold {rank} numbers")
    pads = list(_given_pads(site, rank))
    out_pad = list(extra)
    if wanted is not None or w.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        for i in range(rank):
            size, k, s, d = w.spatial[i], w.kernel[i], w.strides[i], w.dilations[i]
            target = wanted[i] if wanted is not None else size * s
            full = s * (size - 1) + extra[i] + (k - 1) * d + 1
            pads[i], pads[rank + i] = _halves(max(full - target, 0), w.auto_pad == "SAME_UPPER")
            if wanted is not None:
                out_pad[i] += max(target - full, 0)
    elif w.auto_pad == "VALID":
        pads = [0] * (2 * rank)
    attrs = {
        "kernel_shape": w.kernel,
        "strides": w.strides,
        "dilations": w.dilations,
        "pads": tuple(pads),
        "output_padding": tuple(out_pad),
        "group": site.attr_int("group", 1),
    }
    return [_changed(site.node, "auto_pad output_shape", **attrs)]


def _global_free(site: Site) -> list[Node]:
    if len(site.shape(0)) < 3:
        raise ModelError(f"its input {list(site.shape(0))} has no spatial axis")
    return [site.node]


# -- normalisation ----------------------------------------------------------------------------


def _softmax(site: Site) -> list[Node]:
    """Before 13 the input is flattened to 2-D at `axis` (default 1)."""
    node, shape = site.node, site.shape(0)
    rank = len(shape)
    if site.opset >= 13:
        axis = site.attr_int("axis", -1)
        return [_changed(node, axis=site.axis(axis, max(rank, 1)))]
    axis = site.attr_int("axis", 1)
    if axis == rank:  # flattens to [N, 1]
        axis, wide = rank - 1, []
        if shape[-1] != 1:
            return [_changed(node, axis=rank, coerce_2d=1)]
    axis = site.axis(axis, rank)
    wide = [i for i in range(axis, rank) if shape[i] != 1]
    if len(wide) <= 1:
        return [_changed(node, axis=wide[0] if wide else axis)]
    return [_changed(node, axis=axis, coerce_2d=1)]


def _batch_norm(site: Site) -> list[Node]:
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
    return [
        Node(node.name, node.op, node.inputs, node.outputs[:1], {"epsilon": epsilon})
    ]


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


def _group_norm(site: Site) -> list[Node]:
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


def _mvn(site: Site) -> list[Node]:
    axes = site.attr_ints("axes")
    axes = (0, 2, 3) if axes is None else axes
    rank = len(site.shape(0))
    return [_changed(site.node, axes=tuple(site.axis(a, rank) for a in axes))]


# -- resampling -------------------------------------------------------------------------------


def _upsample(site: Site) -> list[Node]:
    """Upsample (7: attribute, 9: input) -> Resize, asymmetric."""
    node = site.node
    if site.opset < 9:
        scales = node.attrs.get("scales")
        if not isinstance(scales, tuple):
            raise ModelError("attribute 'scales' is required")
        name = site.new_const(np.array(scales, np.float32), "scales")
    else:
        name = site.operand(1)
    return _asymmetric(site, name)


def _asymmetric(site: Site, scales: str) -> list[Node]:
    """Resize as it was before 11: asymmetric; nearest rounds down, but up where it shrinks.

    The specification of 10 leaves the rounding open; this is what onnxruntime does.
    """
    node, mode = site.node, site.attr_str("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear"):
        raise ModelError(f"mode '{mode}' is not known")
    value = site.value_of(scales)
    attrs: dict[str, Any] = {
        "mode": "nearest" if mode == "nearest" else "linear",
        "coordinate_transformation_mode": "asymmetric",
    }
    if mode != "nearest" or value is None:
        inputs = (node.inputs[0], "", scales)
        return [Node(node.name, "Resize", inputs, node.outputs, attrs)]
    down = value < 1
    if down.any() and (value > 1).any():
        # Nearest is separable: shrink some axes, then enlarge the others.
        middle = site.new_name("shrunk")
        small = site.new_const(np.where(down, value, 1).astype(np.float32), "scales")
        large = site.new_const(np.where(down, 1, value).astype(np.float32), "scales")
        first = Node(
            f"{node.name}/shrink",
            "Resize",
            (node.inputs[0], "", small),
            (middle,),
            attrs | {"nearest_mode": "ceil"},
        )
        second = Node(
            node.name,
            "Resize",
            (middle, "", large),
            node.outputs,
            attrs | {"nearest_mode": "floor"},
        )
        return [first, second]
    attrs["nearest_mode"] = "ceil" if down.any() else "floor"
    inputs = (node.inputs[0], "", scales)
    return [Node(node.name, "Resize", inputs, node.outputs, attrs)]


def _resize(site: Site) -> list[Node]:
    """10 -> 11 on; empty operands -> ''; `axes` (18) -> operands for all axes."""
    node, rank = site.node, len(site.shape(0))
    if site.opset < 11:
        return _asymmetric(site, site.operand(1))
    operands: list[str] = []
    for position in (1, 2, 3):
        name = site.operand(position)
        if name and site.type_of(name).size == 0:
            name = ""
        operands.append(name)
    roi, scales, sizes = operands
    attrs = dict(node.attrs)
    if attrs.get("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize":
        roi = ""
    if bool(scales) == bool(sizes):
        raise ModelError("one of 'scales' and 'sizes' must be given, not both")
    axes = site.attr_ints("axes")
    attrs.pop("axes", None)
    if axes is not None:
        picked = [site.axis(a, rank) for a in axes]
        scales = _spread(site, scales, picked, np.ones(rank, np.float32), "scales")
        sizes = _spread(site, sizes, picked, np.array(site.shape(0), np.int64), "sizes")
        if roi:
            both = picked + [rank + a for a in picked]
            whole = np.concatenate([np.zeros(rank), np.ones(rank)])
            kind = site.type_of(roi).dtype
            roi = _spread(site, roi, both, whole.astype(kind), "roi")
        policy = attrs.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch" and sizes:
            # The policy looks at the named axes only.
            return [node]
    inputs: tuple[str, ...] = (node.inputs[0], roi, scales, sizes)
    while not inputs[-1]:
        inputs = inputs[:-1]
    return [Node(node.name, "Resize", inputs, node.outputs, attrs)]


def _spread(site: Site, name: str, picked: list[int], whole: np.ndarray, hint: str) -> str:
    value = site.value_of(name) if name else None
    if value is None:
        return name
    if value.size != len(picked):
        raise ModelError(f"{value.size} {hint} for {len(picked)} axes")
    whole[picked] = value.reshape(-1)
    return site.new_const(whole, hint)


def _grid_sample(site: Site) -> list[Node]:
    """Mode names of 16 -> 20."""
    mode = site.attr_str("mode", "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return [_changed(site.node, mode=mode)]


def _roi_align(site: Site) -> list[Node]:
    """Before 16 coordinates were not shifted by half a pixel."""
    default = "half_pixel" if site.opset >= 16 else "output_half_pixel"
    mode = site.attr_str("coordinate_transformation_mode", default)
    return [_changed(site.node, coordinate_transformation_mode=mode)]


def _range(site: Site) -> list[Node]:
    """Operands of one element are scalars."""
    node, inputs = site.node, []
    for position, part in enumerate(("start", "limit", "delta")):
        value = site.known(position)
        name = site.operand(position)
        if value is not None and value.size == 1 and value.ndim:
            name = site.new_const(value.reshape(()), part)
        inputs.append(name)
    return [node.with_(inputs=tuple(inputs))]


def _stft(site: Site) -> list[Node]:
    return [_changed(site.node, onesided=site.attr_int("onesided", 1))]


# -- small ones -------------------------------------------------------------------------------


def _scatter(site: Site) -> list[Node]:
    axis = site.axis(site.attr_int("axis", 0), len(site.shape(0)))
    return [_changed(site.node.with_(op="ScatterElements"), axis=axis)]


def _cast_like(site: Site) -> list[Node]:
    node = site.node
    to = TO_ONNX[site.type_of(node.inputs[1]).dtype]
    attrs = {k: v for k, v in node.attrs.items() if k in ("saturate", "round_mode")}
    return [Node(node.name, "Cast", node.inputs[:1], node.outputs, attrs | {"to": to})]


def _cast(site: Site) -> list[Node]:
    """A Cast to the type the tensor has already is Identity."""
    node, kind = site.node, site.type_of(site.node.inputs[0])
    to = site.attr_int("to", 0)
    if to not in TO_ONNX.values():
        raise ModelError(f"{to} is no element type")
    if FROM_ONNX.get(to) == kind.dtype:
        return [_identity(node)]
    return [node]


def _variadic(site: Site) -> list[Node]:
    node = site.node
    return [_identity(node)] if len(node.inputs) == 1 else [node]


def _optional_get(site: Site) -> list[Node]:
    return [_identity(site.node)]


def _optional_has(site: Site) -> list[Node]:
    node = site.node
    value = site.new_const(np.array(bool(site.operand(0))), "present")
    return [Node(node.name, "Identity", (value,), node.outputs)]


def _einsum(site: Site) -> list[Node]:
    """The equation without blanks; `onnx` never returns from one with foreign characters."""
    equation = site.attr_str("equation", "").replace(" ", "")
    if not re.fullmatch(r"([a-zA-Z]|\.\.\.|,)*(->([a-zA-Z]|\.\.\.)*)?", equation):
        raise ModelError(f"the equation {equation!r} is not valid")
    terms = equation.split("->")[0].split(",")
    if len(terms) != len(site.node.inputs):
        raise ModelError(f"the equation {equation!r} has {len(terms)} operands")
    return [_changed(site.node, equation=equation)]


def _gemm(site: Site) -> list[Node]:
    for position in (0, 1):
        if len(site.shape(position)) != 2:
            raise ModelError(f"input {list(site.shape(position))} is not a matrix")
    return [site.node]


# -- opset 6 ----------------------------------------------------------------------------------


def _aligned(site: Site) -> list[Node]:
    """Before 7 the second operand is aligned at `axis` (at the end without it), if `broadcast`."""
    node = _changed(site.node, "axis broadcast consumed_inputs")
    left, right = site.shape(0), site.shape(1)
    axis = site.attr_int("axis", len(left) - len(right)) % max(len(left), 1)
    after = len(left) - axis - len(right)
    if after <= 0 or not right:
        return [node]
    return _widened(site, node, right + (1,) * after)


def _channelwise(site: Site) -> list[Node]:
    """Before 7 the slope of PRelu holds one value, or one a channel."""
    node = _changed(site.node, "consumed_inputs")
    rank, size = len(site.shape(0)), math.prod(site.shape(1))
    if size == 1 or rank <= 2:
        return [node]
    return _widened(site, node, (size,) + (1,) * (rank - 2))


def _widened(site: Site, node: Node, shape: tuple[int, ...]) -> list[Node]:
    """Give the second operand another shape."""
    wide, target = site.new_name("aligned"), site.int64(shape, "shape")
    first = Node(f"{node.name}/aligned", "Reshape", (node.inputs[1], target), (wide,))
    return [first, node.with_(inputs=(node.inputs[0], wide))]


def _gemm_6(site: Site) -> list[Node]:
    return [_changed(node, "broadcast") for node in _gemm(site)]


BEFORE_7: Mapping[str, Rule] = {
    **dict.fromkeys("Add Sub Mul Div Pow And Or Xor Equal Greater Less".split(), _aligned),
    "AveragePool": _windowed(None),
    "BatchNormalization": _batch_norm,
    "Dropout": _dropout,
    "Gemm": _gemm_6,
    "PRelu": _channelwise,
}
"""Operators that changed in opset 7, and can be read as they were in opset 6."""


RULES: Mapping[str, Rule] = {
    "AveragePool": _windowed(None),
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Conv": _windowed(1),
    "ConvInteger": _windowed(1),
    "ConvTranspose": _conv_transpose,
    "DFT": _dft,
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_free,
    "GlobalMaxPool": _global_free,
    "GridSample": _grid_sample,
    "GroupNormalization": _group_norm,
    "Hardmax": _softmax,
    "LogSoftmax": _softmax,
    "LpPool": _windowed(None),
    "Max": _variadic,
    "MaxPool": _windowed(None),
    "Mean": _variadic,
    "MeanVarianceNormalization": _mvn,
    "Min": _variadic,
    "OptionalGetElement": _optional_get,
    "OptionalHasElement": _optional_has,
    "Pad": _pad,
    "QLinearConv": _windowed(3),
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "RoiAlign": _roi_align,
    "STFT": _stft,
    "Scatter": _scatter,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sum": _variadic,
    "TopK": _topk,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Upsample": _upsample,
    **{
        f"Reduce{kind}": _reduce
        for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
    },
}
