"""Blocks that initialise the elements of a reduction."""

from __future__ import annotations

from dataclasses import replace

from toolkit.ir.compute import reduce_identity
from toolkit.ir.expr import all_of, Expr, variables
from toolkit.ir.loop import Block, Loop, nest_of, SPATIAL, Stmt
from toolkit.ir.simplify import bounds, Ranges


def init_block(block: Block, ranges: Ranges) -> Block:
    """Return the block that initialises a reduction where its axes lie in their extents."""
    assert block.reduce is not None
    keep = [i for i, a in enumerate(block.axes) if a.role != "reduce"]
    identity = reduce_identity(block.reduce, block.value.dtype)
    inside: list[Expr] = []
    for i in keep:
        reach = bounds(block.binds[i], ranges)
        if reach is None or reach[1] >= block.axes[i].extent:
            inside.append(block.axes[i] < block.axes[i].extent)
        if reach is not None and reach[0] < 0:
            inside.append(block.axes[i] >= 0)
    return Block(
        f"{block.name}_init",
        tuple(block.axes[i] for i in keep),
        tuple(block.binds[i] for i in keep),
        block.buffer,
        block.indices,
        identity if block.init is None else block.init,
        guard=all_of(*inside),
    )


def init_nest(top: Loop, block: Block, ranges: Ranges) -> Stmt:
    """Return loops over the spatial loops at or under `top` that drive `block`, around its init."""
    inside, _ = nest_of(top, block.name)
    used: set[str] = set()
    for axis, bind in zip(block.axes, block.binds, strict=True):
        if axis.role != "reduce":
            used |= variables(bind)
    body: Stmt = init_block(block, ranges)
    for loop in reversed(inside):
        if loop.var in used:
            body = replace(loop, role=SPATIAL, body=body)
    return body
