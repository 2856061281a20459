"""Vectorise and unroll what no tile covers: element-wise stages and transposes."""

from __future__ import annotations

from toolkit.ir.loop import blocks
from toolkit.schedule.program import Recorder
from toolkit.schedule.tiling import leaf_loops, transposed_loops
from toolkit.targets.target import Target

BLOCK = 64
"""Most elements of a transpose that are copied without a loop."""


def parallel_vectorize_unroll(sch: Recorder, target: Target) -> None:
    """Run element-wise blocks in vectors, and copy columns to rows in unrolled blocks."""
    lanes = target.isa.lanes("float32")
    for block in [b.name for b in blocks(sch.func.body) if b.reduce is None]:

        def vectors(block: str = block) -> None:
            first, *rest = leaf_loops(sch.func, block, target.isa)
            var = first
            for loop in rest:
                var = sch.fuse(var, loop)
            tile = sch.sample_vector_tile(lanes, name=f"{block} vectors")
            sch.vectorize(sch.split(var, tile, "guard")[1])

        def transposed(block: str = block) -> None:
            pair = transposed_loops(sch.func, block, target.isa)
            order = sch.loops(block)
            inner: list[str] = []
            for loop in pair:
                tile = sch.sample_unroll_tile(inner, 1, BLOCK, name=f"{block} {loop.var}")
                outer, unrolled = sch.split(loop.var, tile)
                order[order.index(loop.var)] = outer
                inner.append(unrolled)
            sch.reorder(*order, *inner)
            for unrolled in inner:
                sch.unroll(unrolled)

        if not sch.attempt(vectors):
            sch.attempt(transposed)
