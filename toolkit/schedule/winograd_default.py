"""The schedule of a Winograd convolution: what one block of tiles needs stays in the caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ScheduleError
from toolkit.ir.expr import variables
from toolkit.ir.loop import blocks, Loop, nest_of, PrimFunc, SPATIAL
from toolkit.ir.regions import block_loads, reads
from toolkit.schedule.algorithm import WinogradPlan
from toolkit.schedule.derived import ExtentOf, IfLoop
from toolkit.schedule.hole import Hole, LoopOrder
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.base import block_names
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.reverse_inline import ReverseInline
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.transform_layout import TransformLayout
from toolkit.schedule.steps.winograd import Winograd
from toolkit.schedule.tiling import flat_index, stride_in, Take
from toolkit.targets.isa import Isa

GATHER_BYTES = 12 * 1024
"""Input of a tile, gathered for one transform: it stays in the first-level cache."""


@dataclass(frozen=True, slots=True)
class WinogradTiles:
    """The factors of the splits: numbers, or holes.

    `block`: tiles that are transformed at once; `rows` of them, told the loop of the columns, and
    `columns` of output channels are a register tile of the product; `chunk`: input channels
    gathered at once, as vectors of lanes.
    """

    block: Any
    rows: Callable[[str], Any]
    columns: Any
    chunk: Any


def schedule_winograd(func: PrimFunc, plan: WinogradPlan, isa: Isa, take: Take) -> PrimFunc:
    """Schedule the stages that the plan's step made; raises `ScheduleError` where one refuses."""
    return tile_winograd(func, plan.step, planned_tiles(func, plan, isa), isa, take)


def planned_tiles(func: PrimFunc, plan: WinogradPlan, isa: Isa) -> WinogradTiles:
    """Return the factors of a plan whose step `func` has taken."""
    tile, lanes = plan.tile, isa.lanes("float32")
    chunk = _chunk(input_channels(func, plan.step), lanes, (plan.step.m + 2) ** 2)
    return WinogradTiles(
        block=(tile.rows * plan.many,),
        rows=lambda _: (tile.rows,),
        columns=(tile.columns,),
        chunk=(chunk // lanes, lanes),
    )


def image_tiles(func: PrimFunc, step: Winograd) -> int:
    """Return in how many tiles the image is cut, of a function that has taken `step`."""
    return _loops(func, f"{step.block}_v")[2].extent


def input_channels(func: PrimFunc, step: Winograd) -> int:
    """Return how many channels the input has, of a function that has taken `step`."""
    return _loops(func, f"{step.block}_v")[3].extent


def tile_winograd(
    func: PrimFunc, step: Winograd, tiles: WinogradTiles, isa: Isa, take: Take
) -> PrimFunc:
    """Schedule the stages that a step made.

    Blocks of tiles are gathered, transformed, multiplied and transformed back; the product has a
    register tile of tiles x output channels.  Raises `ScheduleError` where a step is refused.
    """
    name = step.block
    if {f"{name}_{s}" for s in "dsvuo"} - block_names(func):
        raise ScheduleError(f"the stages of {name!r} have other names")
    loops = {s: _loops(func, f"{name}_{s}") for s in "dsvuo"}
    lanes = isa.lanes("float32")

    reader = _reader(func, name)
    if reader is not None:
        with suppress(ScheduleError):  # then it reads a stored result
            func = take(ReverseInline(reader))
    p, r, s, oc = (l.var for l in _loops(func, name))
    even = not isinstance(tiles.block, Hole) and not image_tiles(func, step) % tiles.block[0]
    func = take(Split(p, tiles.block, "perfect" if even else "shift"))
    func = take(Split(oc, (lanes,)))
    func = take(Reorder((f"{p}.0", f"{p}.1", f"{oc}.0", r, s, f"{oc}.1")))
    func = take(ComputeAt(f"{name}_o", f"{oc}.0"))
    func = _in_vectors((r, s, f"{oc}.1"), take)
    _, r, j, oc = (l.var for l in loops["o"])
    func = take(Reorder((j, r, oc)))
    func = _in_vectors((j, r, oc), take)

    func = take(CacheWrite(f"{name}_u"))
    write = f"{name}_u_write"
    i, j, rp, oc = (l.var for l in _loops(func, write))
    func = take(ComputeAt(write, f"{p}.0"))
    func = take(Split(oc, tiles.columns))
    rows = tiles.rows(f"{oc}.1")
    opened = isinstance(rows, Hole)
    func = take(Split(rp, rows, "shift" if opened else "perfect"))
    func = take(Reorder((i, j, f"{oc}.0", f"{rp}.0", f"{rp}.1", f"{oc}.1")))
    func = take(ComputeAt(f"{name}_u", f"{rp}.0"))
    func = _in_vectors((f"{rp}.1", f"{oc}.1"), take)
    around = [l.var for l in _loops(func, f"{name}_u")]
    *own, ic = around[around.index(f"{rp}.0") + 1 :]
    func = _product_in_vectors(ic, own, opened, take)
    dim = _dim(func, f"{name}_u", step.operand)
    open_columns: Any = ExtentOf(own[-1])
    wide = open_columns if isinstance(tiles.columns, Hole) else tiles.columns[0]
    func = take(Pack(step.operand, dim, wide))
    rest = [d for d in range(4) if d != dim]  # behind the tiles of output channels
    taps = [1 + rest.index(d) for d in step.kernel]
    func = take(TransformLayout(step.operand, (*taps, 0, 6 - sum(taps), 4)))

    i, j, vp, ic = (l.var for l in loops["v"])
    func = take(ComputeAt(f"{name}_v", f"{p}.0"))
    func = take(Split(ic, tiles.chunk))
    func = take(Reorder((vp, f"{ic}.0", f"{ic}.1", i, j, f"{ic}.2")))
    func = take(ComputeAt(f"{name}_s", f"{ic}.1"))
    func = _in_vectors((i, j, f"{ic}.2"), take)
    _, i, b, sc = (l.var for l in loops["s"])
    func = take(Reorder((b, i, sc)))
    func = _in_vectors((b, i, sc), take)
    func = take(ComputeAt(f"{name}_d", f"{ic}.0"))
    _, a, b, dc = (l.var for l in loops["d"])
    _, gather = nest_of(func.body, f"{name}_d")
    if any(stride_in(flat_index(func, gather, l), dc) != 1 for l in block_loads(gather)):
        return take(Reorder((a, dc, b)))
    return take(Vectorize(dc))


def _in_vectors(loops: Sequence[str], take: Take) -> PrimFunc:
    """Unroll loops, and run the last one in vectors."""
    for var in loops[:-1]:
        take(Unroll(var))
    return take(Vectorize(loops[-1]))


def _product_in_vectors(ic: str, own: Sequence[str], opened: bool, take: Take) -> PrimFunc:
    """Put the input channels around a register tile; one of a single row has no loop of rows."""
    if not opened:
        take(Reorder((ic, *own)))
        return _in_vectors(own, take)
    order: Any = LoopOrder("tile_order", ((ic, *own),))
    take(Reorder(order))
    for var in own[:-1]:
        there: Any = IfLoop(var)
        take(Unroll(there))
    return take(Vectorize(own[-1]))


def _chunk(inner: int, lanes: int, size: int) -> int:
    """Return how many channels are gathered at once: all, or a divisor."""
    most = max(lanes, GATHER_BYTES // (4 * size))
    return max(c for c in range(lanes, inner + 1, lanes) if inner % c == 0 and c <= most)


def _loops(func: PrimFunc, name: str) -> list[Loop]:
    return nest_of(func.body, name)[0]


def _reader(func: PrimFunc, name: str) -> str | None:
    """Return the one block that reads the convolution; None if there is none, or if it is more."""
    _, block = nest_of(func.body, name)
    found = [b.name for b in blocks(func.body) if block.buffer in reads(b)]
    return found[0] if len(found) == 1 else None


def _dim(func: PrimFunc, name: str, operand: str) -> int:
    """Return the dimension of the weights that the output channels, the last axis, drive."""
    _, block = nest_of(func.body, name)
    last = [a for a in block.axes if a.role == SPATIAL][-1].name
    weight = next(l for l in block_loads(block) if l.buffer == operand)
    return next(d for d, i in enumerate(weight.indices) if last in variables(i))
