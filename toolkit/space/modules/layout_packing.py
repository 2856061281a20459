"""Layout packing: constant operands in the order in which a register tile reads them."""

from __future__ import annotations

from functools import partial

from toolkit.ir.expr import variables
from toolkit.ir.loop import nest_of, VECTORIZE
from toolkit.ir.regions import block_loads
from toolkit.schedule.derived import ExtentOf
from toolkit.schedule.program import Recorder
from toolkit.schedule.tiling import dim_of, flat_index, is_constant, stride_in
from toolkit.targets.target import Target


def layout_packing(sch: Recorder, target: Target) -> None:
    """Sample whether the constant that a vectorised reduction reads is laid out by its vectors."""
    for name in sch.reductions():
        loops, block = nest_of(sch.func.body, name)
        if not loops or loops[-1].kind != VECTORIZE:
            continue
        inner = loops[-1].var
        axis = next(
            (a.name for a, b in zip(block.axes, block.binds, strict=True) if inner in variables(b)),
            None,
        )
        loads = list(dict.fromkeys(block_loads(block)))
        along = [l for l in loads if stride_in(flat_index(sch.func, block, l), inner) == 1]
        if axis is None or len(along) != 1 or not is_constant(sch.func, along[0]):
            continue
        dim = dim_of(along[0], axis)
        if dim is None:
            continue
        operand = along[0].buffer
        packed = sch.sample_categorical((None, operand), (1, 3), name=f"pack {operand}")
        sch.attempt(partial(sch.pack, packed, dim, ExtentOf(inner)))
