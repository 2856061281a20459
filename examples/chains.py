"""A module of schedules for `nestling tune`: sums of products in several chains.

    nestling tune head.onnx --module examples/chains.py

A multiply-add takes four cycles, and a core starts one or two a cycle: the product of a vector and
a matrix of few columns waits for the one sum it adds to.  This module splits the sum into chains,
each in a register of its own, that are added up at the end.  The last layer of a classifier,
`Gemm` 512 -> 10, takes half the time of the best that the built-in space finds.
"""

from __future__ import annotations

from functools import partial

from toolkit.schedule.program import Recorder
from toolkit.schedule.tiling import product_of
from toolkit.targets.target import Target

VECTORS = 2
"""Products of more columns have sums enough to add to."""


def chains(sch: Recorder, target: Target) -> None:
    """Add up products of a vector and a matrix of few columns in up to 16 chains."""
    for block in sch.reductions():
        sch.attempt(partial(_split_sum, sch, block, target))


def _split_sum(sch: Recorder, block: str, target: Target) -> None:
    product = product_of(sch.func, block, target.isa)  # refuses what is no product
    lanes = target.isa.lanes("float32")
    columns, weight = product.column, product.weight
    few = columns.extent <= VECTORS * lanes and all(row.extent == 1 for row in product.rows)
    counts = [(n,) for n in (2, 4, 8, 16) if product.depth % n == 0]
    if weight is None or not (product.pad and few and counts) or len(product.reduce) != 1:
        return
    # Whole vectors of columns: the constant is padded, the result is guarded.
    width = -(-columns.extent // lanes) * lanes
    sch.pad_constant(columns.loop, weight.buffer, product.dim, width)
    place, result = sch.split(columns.out, (width,), "guard")
    # A chain sums every n-th product; how many there are is left to the search.
    count = sch.sample_categorical(counts, name="chains")
    steps, chain = sch.split(product.reduce[-1], count)
    sums = sch.rfactor(block, chain)
    # All of it stands where the result is stored, so that the chains stay in registers.
    sch.compute_at(block, place)
    sch.compute_at(sums, place)
    sch.reorder(steps, chain, columns.loop)
    column, last = sch.loops(block)[-2:]
    sch.reorder(last, column)
    for loop in (chain, last):
        sch.unroll(loop)
    for loop in (columns.loop, column, result):
        sch.vectorize(loop)
    sch.transform_layout(sch.func.locals[-1].name, (0, 2, 1))  # columns side by side
