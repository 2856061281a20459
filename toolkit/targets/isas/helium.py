"""Helium (M-profile vector extension) of Cortex-M55.  Meaning: Armv8-M Arm ARM, C2; ACLE.

Vectors of floats take denormal numbers for zero.
"""

from __future__ import annotations

import numpy as np

from toolkit.targets.isa import Intrinsic, Isa, VectorType
from toolkit.targets.isas.armv7em import DSP
from toolkit.targets.isas.integer import arm_narrow, arm_type, int32_ops, narrow_vectors
from toolkit.targets.isas.nests import products
from toolkit.targets.isas.shared import shared_ops
from toolkit.targets.tensor import tensor_table, TensorIntrinsic, TensorOperand

_FLOAT = {
    "add": Intrinsic("vaddq_f32({0}, {1})", lambda a, b: a + b),
    "sub": Intrinsic("vsubq_f32({0}, {1})", lambda a, b: a - b),
    "mul": Intrinsic("vmulq_f32({0}, {1})", lambda a, b: a * b),
    "div": Intrinsic("nst_vdiv_f32x4({0}, {1})", lambda a, b: a / b),
    "max": Intrinsic("nst_vmax_f32x4({0}, {1})", lambda a, b: np.where(a > b, a, b)),
    "min": Intrinsic("nst_vmin_f32x4({0}, {1})", lambda a, b: np.where(a < b, a, b)),
    "nanmax": Intrinsic("nst_max_f32x4({0}, {1})", np.maximum),
    "nanmin": Intrinsic("nst_min_f32x4({0}, {1})", np.minimum),
    "fma": Intrinsic("vfmaq_f32({2}, {0}, {1})", lambda a, b, c: a * b + c),
    "fma_n": Intrinsic("vfmaq_n_f32({2}, {0}, {1})", lambda a, b, c: a * b + c),
    "sqrt": Intrinsic("nst_vsqrt_f32x4({0})", np.sqrt),
    "abs": Intrinsic("vabsq_f32({0})", np.abs),
    "floor": Intrinsic("vrndmq_f32({0})", np.floor),
    "ceil": Intrinsic("vrndpq_f32({0})", np.ceil),
    "round": Intrinsic("vrndnq_f32({0})", np.rint),
    "set1": Intrinsic("vdupq_n_f32({0})", lambda a: a),
    "zero": Intrinsic("vdupq_n_f32(0.0f)", lambda: 0),
    "load": Intrinsic("vld1q_f32({0})", lambda a: a),
    "store": Intrinsic("vst1q_f32({0}, {1})", lambda a, b: b),
    "hsum": Intrinsic("nst_hsum_f32x4({0})", np.sum),
    "hmax": Intrinsic("nst_hmax_f32x4({0})", np.max),
    "hmin": Intrinsic("nst_hmin_f32x4({0})", np.min),
    "from_int32": Intrinsic("vcvtq_f32_s32({0})", lambda a: a),
    **shared_ops("f32x4"),
}

_INT32 = int32_ops(
    {
        "add": "vaddq_s32({0}, {1})",
        "sub": "vsubq_s32({0}, {1})",
        "mul": "vmulq_s32({0}, {1})",
        "min": "vminq_s32({0}, {1})",
        "max": "vmaxq_s32({0}, {1})",
        "fma": "vaddq_s32(vmulq_s32({0}, {1}), {2})",
        "and": "vandq_s32({0}, {1})",
        "or": "vorrq_s32({0}, {1})",
        "xor": "veorq_s32({0}, {1})",
        "shl": "vshlq_n_s32({0}, {1})",
        "shr": "vshrq_n_s32({0}, {1})",
        "abs": "vabsq_s32({0})",
        "set1": "vdupq_n_s32({0})",
        "zero": "vdupq_n_s32(0)",
        "load": "vld1q_s32({0})",
        "store": "vst1q_s32({0}, {1})",
        "hsum": "vaddvq_s32({0})",
        "from_float32": "vcvtq_s32_f32({0})",
        "rint_float32": "vcvtnq_s32_f32({0})",
        "add_n": "vaddq_n_s32({0}, {1})",
        "sub_n": "vsubq_n_s32({0}, {1})",
        "mul_n": "vmulq_n_s32({0}, {1})",
        "high_product": "vqrdmulhq_s32({0}, {1})",
        "high_product_n": "vqrdmulhq_n_s32({0}, {1})",
        "high_word": "vmulhq_s32({0}, {1})",
        "load_long": "vld2q_s32((const int32_t *)(const void *){0})",
        "load_n_long": "nst_load_n_long_i32x4({0}, {1})",
        "set1_long": "nst_set1_long_i32x4({0})",
        "high_sum": "nst_high_sum_i32x4({0}, {1}, {2})",
        "high_sum_below": "nst_high_sum_below_i32x4({0}, {1}, {2}, {3})",
        "rounded_shr": "vrshrq_n_s32({0}, {1})",
        "shift_half_up": "vrshlq_s32({0}, vnegq_s32({1}))",
        "shift_away": "nst_shift_away_i32x4({0}, {1})",
        "shift_away_n": "vrshrq_n_s32(nst_lower_i32x4({0}), {1})",
        "saturate_int8": "nst_saturate_int8_i32x4({0})",
        "saturate_uint8": "nst_saturate_uint8_i32x4({0})",
        "join": "nst_join_i32x4({0}, {1}, {2}, {3})",
    },
    "i32x4",
)

_TOTAL = TensorOperand("int32_t")


def _operand(c_type: str, load: str, lanes: int, following: str = "") -> TensorOperand:
    """Return an operand whose load {p} may be predicated, which gives zeros beyond the end."""
    predicate = f"vctp{128 // lanes}q((uint32_t)({{1}}))"
    whole, part = load.format(p="", n=""), load.format(p="_z", n=f", {predicate}")
    return TensorOperand(c_type, (whole,), partial=(part,), following=following)


_BYTES = _operand("int8x16_t", "vldrbq{p}_s8({{0}}{n})", 16, "nst_next_int8_i8x16({0})")
_HALVES = _operand("int16x8_t", "vldrhq{p}_s16({{0}}{n})", 8)
_WIDENED_8 = _operand("int16x8_t", "vldrbq{p}_s16({{0}}{n})", 8, "nst_next_int8_i16x8({0})")
_WIDENED_4 = _operand("int32x4_t", "vldrbq{p}_s32({{0}}{n})", 4, "nst_next_int8_i32x4({0})")
_LANES = TensorOperand("int32x4_t")
_PREDICATED = "{{C0}} = vmladavaq_p_s{0}({{C0}}, {{A0}}, {{B0}}, vctp{0}q((uint32_t)({{n}})));"

MVE_TENSORS = tensor_table(
    *(
        TensorIntrinsic(
            name,
            products({"k": lanes}, "", (a, "k"), (b, "k")),
            {"C": _TOTAL, "A": left, "B": right},
            (f"{{C0}} = vmladavaq_s{128 // lanes}({{C0}}, {{A0}}, {{B0}});",),
            tail="k",
            c_partial=(_PREDICATED.format(128 // lanes),),
            c_first=(f"{{C0}} = vmladavq_s{128 // lanes}({{A0}}, {{B0}});",),
        )
        for name, lanes, a, left, b, right in (
            ("mve_dot16_s8s8", 16, "int8", _BYTES, "int8", _BYTES),
            ("mve_dot8_s8s8", 8, "int8", _WIDENED_8, "int8", _WIDENED_8),
            ("mve_dot4_s8s8", 4, "int8", _WIDENED_4, "int8", _WIDENED_4),
            ("mve_dot8_s16s16", 8, "int16", _HALVES, "int16", _HALVES),
            ("mve_dot8_s16s8", 8, "int16", _HALVES, "int8", _WIDENED_8),
        )
    ),
    TensorIntrinsic(
        "mve_mla4_s8s8",
        products({"i": 4}, "i", ("int8", ""), ("int8", "i")),
        {"C": _LANES, "A": TensorOperand("int32_t", ("(int32_t)*({0})",)), "B": _WIDENED_4},
        ("{C0} = vmlaq_n_s32({C0}, {B0}, {A0});",),
    ),
    # Element by element: depthwise convolutions.
    TensorIntrinsic(
        "mve_taps4_s8s8",
        products({"i": 4}, "i", ("int8", "i"), ("int8", "i")),
        {"C": _LANES, "A": _WIDENED_4, "B": _WIDENED_4},
        ("{C0} = vaddq_s32({C0}, vmulq_s32({A0}, {B0}));",),
    ),
)

HELIUM = Isa(
    "helium",
    "arm_mve.h",
    "defined(__ARM_FEATURE_MVE)",
    registers=8,
    vectors={
        "float32": VectorType("float32x4_t", 4, _FLOAT),
        "int32": VectorType("int32x4_t", 4, _INT32, "int32x4x2_t"),
        **narrow_vectors(arm_narrow, arm_type, 128),
    },
    tensors={**DSP, **MVE_TENSORS},
)
