"""Operators that give a tensor another shape: the shape explicit."""

from __future__ import annotations

import math

import numpy as np

from toolkit.errors import ModelError
from toolkit.frontend.canonical.site import changed, Site
from toolkit.ir.graph import Node


def reshape(site: Site) -> list[Node]:
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


def expand(site: Site) -> list[Node]:
    """The shape is the output's."""
    node, value = site.node, site.known(1)
    if value is None:
        return [node]
    wanted = tuple(value.reshape(-1).tolist())
    try:
        shape = np.broadcast_shapes(site.shape(0), wanted)
    except ValueError:
        raise ModelError(f"{list(site.shape(0))} cannot be expanded to {list(wanted)}") from None
    inputs = (node.inputs[0], site.int64(shape, "shape"))
    return [Node(node.name, "Expand", inputs, node.outputs)]


def flatten(site: Site) -> list[Node]:
    """`axis` explicit, 0 to the rank."""
    rank = len(site.shape(0))
    axis = site.attr_int("axis", 1)
    if not -rank <= axis <= rank:
        raise ModelError(f"axis {axis} is out of range for rank {rank}")
    return [changed(site.node, axis=axis + rank if axis < 0 else axis)]


def transpose(site: Site) -> list[Node]:
    """`perm` explicit."""
    rank = len(site.shape(0))
    perm = site.attr_ints("perm")
    perm = tuple(reversed(range(rank))) if perm is None else perm
    if sorted(perm) != list(range(rank)):
        raise ModelError(f"perm {list(perm)} does not permute {rank} axes")
    return [changed(site.node, perm=perm)]
