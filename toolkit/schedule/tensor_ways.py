"""Which ways of integer products each instruction set has: a table, best first.

The first way that a kernel fits is taken.  Ways are functions that take steps, so that a target
with an instruction like one that is here adds a line.
"""

from __future__ import annotations

from toolkit.errors import ScheduleError
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.steps.base import Step
from toolkit.schedule.tensor_default import Way
from toolkit.schedule.tensor_lanes import lane_products, lane_taps
from toolkit.schedule.tensor_planes import plane_windows
from toolkit.schedule.tensor_taps import row_taps
from toolkit.schedule.tensor_words import window_products, word_products
from toolkit.schedule.tiling import Take
from toolkit.targets.isa import Isa


def tile_tensor(func: PrimFunc, *, reduction: str, isa: Isa, take: Take) -> PrimFunc:
    """Schedule a sum of integer products by the first way whose intrinsic the target has.

    Raises `ScheduleError` where none fits; steps of the last that was tried are taken back.
    """
    for way in WAYS:
        if way.intrinsic in isa.tensors:
            steps: list[Step] = []
            try:
                way.schedule(func, reduction, isa, _recorder(func, steps), way)
            except ScheduleError:
                continue
            for step in steps:
                func = take(step)
            return func
    raise ScheduleError("no intrinsic computes this reduction")


def _recorder(func: PrimFunc, steps: list[Step]) -> Take:
    """Return what applies one step after another to a function, and keeps them."""
    current = func

    def take(step: Step) -> PrimFunc:
        nonlocal current
        current = step.apply(current)
        steps.append(step)
        return current

    return take


DSP_WIDEN = tuple(f"dsp_widen4_{less}{kind}s16" for less in ("", "less_") for kind in ("s8", "u8"))

WAYS: tuple[Way, ...] = (
    Way("mve_dot16_s8s8", word_products, columns=4, unroll=20),
    Way("mve_dot16_s8s8", window_products, columns=4, unroll=20),
    Way("mve_dot8_s8s8", word_products, columns=4, unroll=20),
    Way("mve_dot4_s8s8", word_products, columns=4, unroll=20),
    Way("mve_taps4_s8s8", row_taps, rows=6),
    Way("dsp_row3_s16s8", plane_windows, dtype="int16"),
    Way("dsp_row3_by2_s16s8", plane_windows, dtype="int16"),
    Way("dsp_dot4_s8s8", word_products, columns=4, unroll=8, alone=True),
    Way("dsp_dot4_s16s8", word_products, 6, 2, 4, 8, "int16", DSP_WIDEN),
    Way("avx512vnni_dot4_o8s8", lane_products),
    Way("avx512vnni_dot4_u8s8", lane_products),
    Way("avx512vnni_dot4_u8s8", lane_products, dtype="uint8"),
    Way("avxvnni_dot4_o8s8", lane_products),
    Way("avxvnni_dot4_u8s8", lane_products),
    Way("avxvnni_dot4_u8s8", lane_products, dtype="uint8"),
    Way("avx512_dot2_s16s8", lane_products, dtype="int16"),
    Way("avx2_dot2_s16s8", lane_products, dtype="int16"),
    *(
        Way(f"{name}_{kind}s8", lane_taps, dtype=dtype)
        for name in ("avx512_taps16", "avx2_taps8")
        for kind, dtype in (("u8", "uint8"), ("u8", ""), ("o8", ""), ("s8", ""))
    ),
    Way("neon_dot16_s8s8", lane_products),
    Way("neon_dot4_s8s8", lane_products),
    Way("neon_dot4_s8s8", lane_products, dtype="int8"),
    Way("neon_mla8_s8s8", lane_products),
    Way("neon_taps8_s8s8", lane_taps),
    Way("neon_taps8_s16s8", lane_taps, dtype="int16"),
)
"""Ways to compute a reduction, best first."""
