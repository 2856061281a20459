"""Operators that changed in opset 7, as they were in opset 6."""

from __future__ import annotations

import math
from collections.abc import Mapping

from toolkit.frontend.canonical.misc import gemm
from toolkit.frontend.canonical.norm import batch_norm
from toolkit.frontend.canonical.operands import dropout
from toolkit.frontend.canonical.site import changed, Rule, Site
from toolkit.frontend.canonical.windows import windowed
from toolkit.ir.graph import Node


def _aligned(site: Site) -> list[Node]:
    """Before 7 the second operand is aligned at `axis` (at the end without it), if `broadcast`."""
    node = changed(site.node, "axis broadcast consumed_inputs")
    left, right = site.shape(0), site.shape(1)
    axis = site.attr_int("axis", len(left) - len(right)) % max(len(left), 1)
    after = len(left) - axis - len(right)
    if after <= 0 or not right:
        return [node]
    return _widened(site, node, right + (1,) * after)


def _channelwise(site: Site) -> list[Node]:
    """Before 7 the slope of PRelu holds one value, or one a channel."""
    node = changed(site.node, "consumed_inputs")
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
    return [changed(node, "broadcast") for node in gemm(site)]


BEFORE_7: Mapping[str, Rule] = {
    **dict.fromkeys("Add Sub Mul Div Pow And Or Xor Equal Greater Less".split(), _aligned),
    "AveragePool": windowed(None),
    "BatchNormalization": batch_norm,
    "Dropout": dropout,
    "Gemm": _gemm_6,
    "PRelu": _channelwise,
}
"""Operators that changed in opset 7, and can be read as they were in opset 6."""
