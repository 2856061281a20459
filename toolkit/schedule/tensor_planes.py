"""Default schedules of depthwise convolutions: a channel at a time, its taps in registers."""

from __future__ import annotations

from toolkit.errors import ScheduleError
from toolkit.ir.compute import Axis
from toolkit.ir.expr import Load, Select, variables
from toolkit.ir.loop import nest_of, PrimFunc, REDUCE
from toolkit.ir.simplify import linear
from toolkit.schedule.sliding import cut_border
from toolkit.schedule.steps.annotate import Unroll
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.pad_read import PadRead
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.schedule.steps.transform_layout import TransformLayout
from toolkit.schedule.tensor_default import sum_of, Way
from toolkit.schedule.tiling import copied, dim_of, Take
from toolkit.targets.isa import Isa
from toolkit.targets.isas import TENSOR_INTRINSICS

SHORT_ROW = 4
"""Tiles of a row that are printed one by one where the last is shifted: so places are constants."""


def plane_windows(func: PrimFunc, reduction: str, isa: Isa, take: Take, way: Way) -> PrimFunc:
    """Compute a depthwise convolution channel by channel, from a padded copy of a channel's plane.

    Taps stay in registers; neighbouring windows of a row share what they read.
    """
    intrinsic = TENSOR_INTRINSICS[way.intrinsic]
    pixels, taps = (l.extent for l in intrinsic.loops)
    stride = (intrinsic.nest.inputs[0].shape[0] - taps) // (pixels - 1)
    found = sum_of(func, reduction)
    factors, block = found.factors, found.block
    outer, drive, spatial = found.outer, found.drive, found.spatial
    steps = [a for a in block.axes if a.role == REDUCE and a.extent > 1]
    if len(spatial) < 2 or not steps:
        raise ScheduleError("no windows over a row of a channel")
    channel, row = spatial[-1], spatial[-2]
    plane, weight = factors.data, factors.weight
    at, along = dim_of(plane, channel.name), dim_of(weight, steps[-1].name)
    dim = dim_of(weight, channel.name)
    if at is None or dim is None or along is None or steps[-1].extent != taps:
        raise ScheduleError("no windows over a row of a channel")
    slides = [d for d, i in enumerate(plane.indices) if row.name in variables(i)]
    if len(slides) != 1:
        raise ScheduleError("windows slide along no dimension, or several")
    [sliding] = slides
    terms, _ = linear(plane.indices[sliding])
    if terms != {row: stride, steps[-1]: 1} or row.extent < pixels:
        raise ScheduleError("windows are not neighbours in a row")
    rank = len(plane.indices)
    if sliding != max(d for d in range(rank) if d != at):
        raise ScheduleError("windows slide along another dimension than the last")
    rest = [d for d in range(len(weight.indices)) if d not in (along, dim)]
    take(TransformLayout(weight.buffer, (dim, *rest, along)))
    func, copy = copied(func, PadRead(reduction, plane.buffer, (), (), way.dtype), take)
    buffer = nest_of(func.body, copy)[1].buffer
    rows, channels = outer[-2], outer[-1]
    take(Split(rows, (pixels,), "shift" if row.extent % pixels else "perfect"))
    pairs = list(zip(outer, spatial, strict=True))[:-2]
    images = [out for out, axis in pairs if _picks(plane, axis, steps)]
    inside = [out for out, _ in pairs if out not in images]
    take(Reorder((*images, channels, *inside, f"{rows}.0", f"{rows}.1")))
    take(ComputeAt(reduction, f"{rows}.0"))
    take(ComputeAt(copy, channels))
    take(TransformLayout(buffer, (at, *(d for d in range(rank) if d != at))))
    own = [drive[a.name] for a in steps]
    take(Reorder((*own[:-1], drive[row.name], own[-1])))
    for var in own[:-1]:
        take(Unroll(var))
    take(Tensorize(drive[row.name], way.intrinsic))
    func = take(Unroll(f"{rows}.1"))
    if row.extent % pixels and -(-row.extent // pixels) <= SHORT_ROW:
        func = take(Unroll(f"{rows}.0"))
    if isinstance(nest_of(func.body, copy)[1].value, Select):
        func = cut_border(func, copy, take)
    return func


def _picks(plane: Load, axis: Axis, steps: list[Axis]) -> bool:
    """Tell whether an axis picks a plane: it drives a subscript in which nothing slides."""
    found = [i for i in plane.indices if axis.name in variables(i)]
    return not any(s.name in variables(i) for s in steps for i in found)
