"""Upsample, Resize, GridSample, RoiAlign."""

from __future__ import annotations

from typing import Any

import numpy as np

from toolkit.errors import ModelError
from toolkit.frontend.canonical.site import changed, Site
from toolkit.ir.graph import Node


def upsample(site: Site) -> list[Node]:
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


def resize(site: Site) -> list[Node]:
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


def grid_sample(site: Site) -> list[Node]:
    """Mode names of 16 -> 20."""
    mode = site.attr_str("mode", "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return [changed(site.node, mode=mode)]


def roi_align(site: Site) -> list[Node]:
    """Before 16 coordinates were not shifted by half a pixel."""
    default = "half_pixel" if site.opset >= 16 else "output_half_pixel"
    mode = site.attr_str("coordinate_transformation_mode", default)
    return [changed(site.node, coordinate_transformation_mode=mode)]
