"""Templates for products: conv2d, depthwise, gemm and gemv.

Each says what it fits and in which loops it is tiled; the knobs are its own.  Channels or columns
run in vectors, pixels or rows are unrolled beside them, and the weights are packed as they are
read.
"""

from __future__ import annotations

from functools import partial

from toolkit.errors import ScheduleError
from toolkit.schedule.algorithm import algorithms, winograd_plans, WinogradPlan
from toolkit.schedule.default import inline_stages
from toolkit.schedule.derived import ExtentOf, IfLoop, LoopAround
from toolkit.schedule.hole import divisors, Hole
from toolkit.schedule.program import Recorder
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.inline import Inline
from toolkit.schedule.tiling import (
    default_tile,
    Product,
    product_of,
    split_reader,
    vectorize_leaf,
)
from toolkit.schedule.winograd_default import (
    image_tiles,
    input_channels,
    planned_tiles,
    tile_winograd,
    WinogradTiles,
)
from toolkit.space.templates.config import Config


def _prepare(cfg: Config, sch: Recorder) -> Product:
    """Inline what surrounds the one reduction of the kernel, and return it as a product."""
    inline_stages(
        lambda: sch.func, lambda step: sch.attempt(lambda: sch.take(step)), cfg.target.isa
    )
    reductions = sch.reductions()
    if len(reductions) != 1:
        raise ScheduleError(f"the kernel has {len(reductions)} reductions, not one")
    block = reductions[0]
    if any(b.name == block for b in sch.func.outputs):
        sch.cache_write(block)
    split_reader(sch.func, block, sch.step)
    found = product_of(sch.func, block, cfg.target.isa)
    if found.weight is None or found.dim is None:
        raise ScheduleError("no operand is a constant along the columns")
    return found


def _columns(cfg: Config, sch: Recorder, p: Product, knob: str) -> list[str]:
    """Split the columns into vectors; pad the weights where they leave a tail."""
    tail = "guard" if p.pad else "shift"
    _, tile = default_tile(p, cfg.target.isa)
    cfg.define_vectors(knob, tail=tail, fallback=(tile.columns,))
    loops = sch.split(p.column.out, cfg[knob], tail)
    if p.pad and p.weight is not None and p.dim is not None:
        sch.pad_constant(p.column.loop, p.weight.buffer, p.dim, ExtentOf(loops[1]))
    sch.vectorize(loops[1])
    return loops


def _rows(
    cfg: Config, sch: Recorder, p: Product, knob: str, row: int, beside: list[str]
) -> list[str]:
    """Split an axis of rows, to be unrolled over accumulators beside the loops `beside`."""
    _, tile = default_tile(p, cfg.target.isa)
    cfg.define_unroll(knob, beside, registers=True, fallback=(1 if row else tile.rows,))
    loops = sch.split(p.rows[row].out, cfg[knob], "shift")
    sch.unroll(loops[1])
    return loops


def _reduce(cfg: Config, sch: Recorder, p: Product, tile: list[str], knob: str) -> list[str]:
    """Compute the product at the tile, its reduce loops outside; unroll the innermost by a knob."""
    loops = list(p.reduce)
    cfg.define_unroll(knob, tile[::-1], fallback=(1,))
    loops[-1:] = sch.split(loops[-1], cfg[knob])
    orders = [(*loops, *tile)]
    if p.depthwise:  # an element is loaded once for all pixels whose taps reach it
        orders.append((*loops[:-1], *tile[:-1], loops[-1], tile[-1]))
    cfg.define_reorder("tile_order", orders)
    sch.reorder(cfg["tile_order"])
    sch.unroll(IfLoop(loops[-1]))
    for loop in tile[:-1]:
        sch.unroll(IfLoop(loop))
    return loops


def _finish(cfg: Config, sch: Recorder, p: Product) -> None:
    """Vectorise the columns of the product, and pack its weights if the knob says so."""
    sch.vectorize(IfLoop(p.column.loop))
    if p.weight is not None and p.dim is not None and not p.depthwise:
        cfg.define_knob("pack", (p.weight.buffer, None), fallback=p.weight.buffer)
        sch.pack(cfg["pack"], p.dim, ExtentOf(p.column.loop))


def conv2d(cfg: Config, sch: Recorder) -> None:
    """Compute a convolution as it is written, or by Winograd's F(m x m, 3x3): the knob `algorithm`.

    Its values are "direct" and, where the convolution has such forms, "winograd 2", "winograd 4".
    """
    isa = cfg.target.isa
    plans = {
        f"winograd {plan.step.m}": plan
        for block in sch.reductions()
        for plan in winograd_plans(sch.func, block, isa)
    }
    best = next(algorithms(sch.func, isa), None)
    name = cfg.define_branch(
        "algorithm", sch, ("direct", *plans),
        fallback=f"winograd {best.step.m}" if best is not None else "direct",
    )  # fmt: skip
    if name == "direct":
        _direct(cfg, sch)
    else:
        _winograd(cfg, sch, plans[name])


def _winograd(cfg: Config, sch: Recorder, plan: WinogradPlan) -> None:
    """Tile a Winograd convolution: blocks of `tile_p` tiles of the image, their product in register
    tiles of `tile_rows` x `tile_oc`; `tile_ic` vectors of channels are gathered at once."""
    isa, step = cfg.target.isa, plan.step
    lanes = isa.lanes("float32")
    base = set(sch.blocks())
    sch.take(step)
    stages = {step.block} | (set(sch.blocks()) - base)

    def inlined(inline: Step) -> bool:
        of_stage = isinstance(inline, Inline) and inline.block in stages
        return not of_stage and sch.attempt(lambda: sch.take(inline))

    inline_stages(lambda: sch.func, inlined, isa)
    usual = planned_tiles(sch.func, plan, isa)
    chunks = [(n, lanes) for n in divisors(input_channels(sch.func, step) // lanes)]
    count = image_tiles(sch.func, step)
    if count < 2:
        raise ScheduleError("the image is one tile")
    blocks = [(n,) for n in range(2, min(count, 64) + 1) if -(-count // n) * n <= 1.25 * count]

    def rows(columns: str) -> Hole:
        fallback = usual.rows(columns)
        return cfg.define_unroll("tile_rows", [columns], registers=True, fallback=fallback)

    tiles = WinogradTiles(
        block=cfg.define_knob("tile_p", blocks, fallback=usual.block),
        rows=rows,
        columns=cfg.define_vectors("tile_oc", tail="perfect", fallback=usual.columns),
        chunk=cfg.define_knob("tile_ic", chunks, fallback=usual.chunk),
    )
    tile_winograd(sch.func, step, tiles, isa, sch.step)
    for block in [b for b in sch.blocks() if not b.startswith(step.block)]:
        sch.attempt(partial(vectorize_leaf, sch.func, block, isa, sch.step))


def _direct(cfg: Config, sch: Recorder) -> None:
    """Tile a convolution: `tile_oc` vectors x `tile_ow` pixels, in `tile_oh` rows of the image."""
    p = _prepare(cfg, sch)
    if p.depthwise or len(p.rows) != 3 or not p.reduce:
        raise ScheduleError("not a convolution of images")
    w, h, n = p.rows
    oc0, oc1 = _columns(cfg, sch, p, "tile_oc")
    ow0, ow1 = _rows(cfg, sch, p, "tile_ow", 0, [oc1])
    oh0, oh1 = _rows(cfg, sch, p, "tile_oh", 1, [oc1, ow1])
    inner = (oh1, ow1, oc1)
    orders = [
        (n.out, oh0, ow0, oc0, *inner),
        (n.out, oh0, oc0, ow0, *inner),
        (oc0, n.out, oh0, ow0, *inner),
    ]
    cfg.define_reorder("order", orders, fallback=orders[-1])
    sch.reorder(cfg["order"])
    sch.compute_at(p.reduction, LoopAround(oh1))
    tile = [h.loop, w.loop, p.column.loop]
    reduce = _reduce(cfg, sch, p, tile, "tile_ic")
    if len(reduce) > 2:
        cfg.define_annotate("unroll_kw", reduce[-3], [*tile[::-1], reduce[-1]])
        sch.unroll(cfg["unroll_kw"])
    _finish(cfg, sch, p)


def depthwise(cfg: Config, sch: Recorder) -> None:
    """Tile a depthwise convolution: `tile_c` vectors x `tile_ow` pixels, taps unrolled."""
    p = _prepare(cfg, sch)
    if not p.depthwise or len(p.rows) != 3 or len(p.reduce) < 2:
        raise ScheduleError("not a depthwise convolution of images")
    w, h, n = p.rows
    c0, c1 = _columns(cfg, sch, p, "tile_c")
    ow0, ow1 = _rows(cfg, sch, p, "tile_ow", 0, [c1])
    orders = [(n.out, h.out, ow0, c0, ow1, c1), (n.out, h.out, c0, ow0, ow1, c1)]
    cfg.define_reorder("order", orders, fallback=orders[0])
    sch.reorder(cfg["order"])
    sch.compute_at(p.reduction, LoopAround(ow1))
    reduce = _reduce(cfg, sch, p, [w.loop, p.column.loop], "tile_kw")
    cfg.define_annotate("unroll_kh", reduce[-3], [p.column.loop, w.loop, reduce[-1]])
    sch.unroll(cfg["unroll_kh"])
    _finish(cfg, sch, p)


def gemm(cfg: Config, sch: Recorder) -> None:
    """Tile a matrix product: `tile_x` vectors x `tile_y` rows, in blocks of rows."""
    p = _prepare(cfg, sch)
    if p.depthwise or len(p.reduce) != 1 or not p.rows or p.rows[0].extent < 2:
        raise ScheduleError("not a product of matrices")
    x0, x1 = _columns(cfg, sch, p, "tile_x")
    y0, y1 = _rows(cfg, sch, p, "tile_y", 0, [x1])
    cfg.define_split("block_y", fallback=(1,))
    y00, y01 = sch.split(y0, cfg["block_y"])
    batch = [d.out for d in p.rows[:0:-1]]
    inner = (y1, x1)
    orders = [(x0, *batch, y00, y01, *inner), (*batch, y00, x0, y01, *inner),
              (*batch, y00, y01, x0, *inner)]  # fmt: skip
    cfg.define_reorder("order", orders, fallback=orders[0])
    sch.reorder(cfg["order"])
    sch.compute_at(p.reduction, LoopAround(y1))
    _reduce(cfg, sch, p, [p.rows[0].loop, p.column.loop], "tile_k")
    _finish(cfg, sch, p)


def gemv(cfg: Config, sch: Recorder) -> None:
    """Tile a product of a matrix and one vector: `tile_x` vectors, `tile_k` steps unrolled."""
    p = _prepare(cfg, sch)
    if p.depthwise or len(p.reduce) != 1 or any(d.extent > 1 for d in p.rows):
        raise ScheduleError("not a product of a matrix and one vector")
    x0, x1 = _columns(cfg, sch, p, "tile_x")
    sch.reorder(*(loop for loop in p.outer if loop != p.column.out), x0, x1)
    sch.compute_at(p.reduction, x0)
    _reduce(cfg, sch, p, [p.column.loop], "tile_k")
    _finish(cfg, sch, p)
