"""Convolutions and pools: kernel, strides, dilations and pads explicit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from toolkit.errors import ModelError
from toolkit.frontend.canonical.site import changed, Rule, Site
from toolkit.ir.graph import Node


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
            raise ModelError(f"weights {list(shape_w)} do not fit an input of shape {list(shape)}")
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
            raise ModelError(f"attribute '{name}' {list(values)} must hold {rank} positive numbers")
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


def windowed(weight: int | None, drop: str = "") -> Rule:
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
        return [changed(site.node, "auto_pad " + drop, **attrs)]

    return rule


def conv_transpose(site: Site) -> list[Node]:
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
    return [changed(site.node, "auto_pad output_shape", **attrs)]


def global_free(site: Site) -> list[Node]:
    """Refuse an input without spatial axes."""
    if len(site.shape(0)) < 3:
        raise ModelError(f"its input {list(site.shape(0))} has no spatial axis")
    return [site.node]
