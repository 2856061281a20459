"""AArch64 Advanced SIMD.  Meaning: Arm Architecture Reference Manual, C7, and the ACLE."""

from __future__ import annotations

import numpy as np

from toolkit.targets.isa import Intrinsic, Isa, VectorType
from toolkit.targets.isas.neon_integer import INT32X4, NARROW_128, NEON_TENSORS
from toolkit.targets.isas.shared import shared_ops

NEON = Isa(
    "neon",
    "arm_neon.h",
    "defined(__aarch64__)",
    registers=32,
    vectors={
        "float32": VectorType(
            "float32x4_t",
            4,
            {
                "add": Intrinsic("vaddq_f32({0}, {1})", lambda a, b: a + b),
                "sub": Intrinsic("vsubq_f32({0}, {1})", lambda a, b: a - b),
                "mul": Intrinsic("vmulq_f32({0}, {1})", lambda a, b: a * b),
                "div": Intrinsic("vdivq_f32({0}, {1})", lambda a, b: a / b),
                "max": Intrinsic("vmaxq_f32({0}, {1})", np.maximum),
                "min": Intrinsic("vminq_f32({0}, {1})", np.minimum),
                "nanmax": Intrinsic("vmaxq_f32({0}, {1})", np.maximum),
                "nanmin": Intrinsic("vminq_f32({0}, {1})", np.minimum),
                "fma": Intrinsic("vfmaq_f32({2}, {0}, {1})", lambda a, b, c: a * b + c),
                "fma_n": Intrinsic("vfmaq_n_f32({2}, {0}, {1})", lambda a, b, c: a * b + c),
                "fma_lane": Intrinsic(
                    "vfmaq_laneq_f32({2}, {0}, {1}, {3})", lambda a, b, c, n: a * b[n] + c
                ),
                "from_int32": Intrinsic("vcvtq_f32_s32({0})", lambda a: a),
                "sqrt": Intrinsic("vsqrtq_f32({0})", np.sqrt),
                "abs": Intrinsic("vabsq_f32({0})", np.abs),
                "floor": Intrinsic("vrndmq_f32({0})", np.floor),
                "ceil": Intrinsic("vrndpq_f32({0})", np.ceil),
                "round": Intrinsic("vrndnq_f32({0})", np.rint),
                "set1": Intrinsic("vdupq_n_f32({0})", lambda a: a),
                "zero": Intrinsic("vdupq_n_f32(0.0f)", lambda: 0),
                "load": Intrinsic("vld1q_f32({0})", lambda a: a),
                "store": Intrinsic("vst1q_f32({0}, {1})", lambda a, b: b),
                "hsum": Intrinsic("vaddvq_f32({0})", np.sum),
                "hmax": Intrinsic("vmaxvq_f32({0})", np.max),
                "hmin": Intrinsic("vminvq_f32({0})", np.min),
                **shared_ops("f32x4"),
            },
        ),
        "int32": INT32X4,
        **NARROW_128,
    },
    tensors=NEON_TENSORS,
)
