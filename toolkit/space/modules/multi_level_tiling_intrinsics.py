"""Multi-level tiling with tensor intrinsics: integer products in dot-product instructions."""

from __future__ import annotations

from functools import partial

from toolkit.errors import ScheduleError
from toolkit.ir.loop import nest_of, REDUCE, SPATIAL
from toolkit.schedule.derived import ExtentOf, IfLoop, LoopAround
from toolkit.schedule.program import Recorder
from toolkit.schedule.tiling import dim_of, Product, product_of
from toolkit.targets.isas import ISAS
from toolkit.targets.target import Target
from toolkit.targets.tensor import TensorIntrinsic


def multi_level_tiling_intrinsics(sch: Recorder, target: Target) -> None:
    """Tile products that a tensor intrinsic of the target computes; a sketch for each that does.

    Intrinsics with columns in lanes and a few steps of the reduction in each are known here: the
    weights are packed in the order of their lanes.
    Source: Shao et al. (NeurIPS 2022, section 6.3, Use-Tensor-Core), for CPUs.
    """
    known = [i for i in target.isa.tensors.values() if _shape(i) == (SPATIAL, REDUCE)]
    for block in sch.reductions():
        ways = [partial(_tensorized, sch, block, target, i) for i in known]
        fitting = [way for way in ways if sch.legal(way)]
        if fitting:
            sch.branch(*fitting)()


def _shape(intrinsic: TensorIntrinsic) -> tuple[str, ...]:
    return tuple(loop.role for loop in intrinsic.loops)


def _tensorized(sch: Recorder, block: str, target: Target, intrinsic: TensorIntrinsic) -> None:
    """Tile a product in accumulators of rows x vectors, `depth` steps of it an instruction."""
    if any(b.name == nest_of(sch.func.body, block)[1].buffer for b in sch.func.outputs):
        sch.cache_write(block)
    p = product_of(sch.func, block, ISAS["scalar"])  # of integers, whose lanes the intrinsic has
    if not p.pad or not p.reduce:
        raise ScheduleError("no operand is a constant along the columns alone")
    lanes, depth = (loop.extent for loop in intrinsic.loops)
    columns = sch.sample_vector_tile(lanes, vectors=4, name="columns")
    c0, c1 = sch.split(p.column.out, columns, "guard")
    inner = [c1]
    outer = [loop for loop in p.outer if loop != p.column.out]
    for row in [d for d in p.rows if d.reused and d.extent > 1][:2]:
        tile = sch.sample_register_tile(inner, lanes, target.isa.registers, name=f"{row.out} rows")
        r0, r1 = sch.split(row.out, tile, "shift")
        outer[outer.index(row.out)] = r0
        inner.append(r1)
    orders = [(c0, *outer, *inner[::-1]), (*outer, c0, *inner[::-1])]
    _pack(sch, p, depth, c1)
    sch.reorder(sch.sample_order(*orders, name="order"))
    sch.compute_at(block, LoopAround(inner[-1]))
    rows = [d.loop for d in p.rows if d.reused and d.extent > 1][1::-1]
    k0, k1 = sch.split(p.reduce[-1], (depth,))
    j0, j1 = sch.split(p.column.loop, (lanes,))
    sch.reorder(sch.sample_order((*p.reduce[:-1], k0, *rows, j0, j1, k1), name="tile_order"))
    for loop in rows:
        sch.unroll(IfLoop(loop))
    sch.unroll(j0)
    sch.tensorize(j1, intrinsic.name)
    for loop in inner[1:]:
        sch.unroll(loop)
    sch.vectorize(c1)


def _pack(sch: Recorder, p: Product, depth: int, columns: str) -> None:
    """Lay out the weights in tiles: `depth` steps of the reduction for each column, columns next.

    Raises `ScheduleError` where the reduction is no multiple of `depth`.
    """
    weight, dim = p.weight, p.dim
    assert weight is not None
    assert dim is not None
    block = nest_of(sch.func.body, p.reduction)[1]
    drive = {b.name: a.name for a, b in zip(block.axes, block.binds, strict=True)}  # type: ignore[attr-defined]
    steps = dim_of(weight, drive[p.reduce[-1]])
    if steps is None:
        raise ScheduleError("the weights do not lie along the reduction")
    name, size = weight.buffer, len(weight.indices)
    sch.pad_constant(p.column.loop, name, dim, ExtentOf(columns))
    sch.pack(name, steps, depth)
    sch.pack(name, 1 + dim - (dim > steps), ExtentOf(columns))
    sch.transform_layout(name, (*range(size), size + 1, size))
