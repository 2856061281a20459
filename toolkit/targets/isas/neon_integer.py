"""Integer vectors and dot products of AArch64.  Meaning: Arm Architecture Reference Manual, C7."""

from __future__ import annotations

from toolkit.targets.isa import VectorType
from toolkit.targets.isas.integer import (
    arm_narrow,
    arm_type,
    int32_ops,
    long_texts,
    narrow_vectors,
)
from toolkit.targets.isas.nests import products
from toolkit.targets.tensor import tensor_table, TensorIntrinsic, TensorOperand

NARROW_128 = narrow_vectors(arm_narrow, arm_type, 128)
INT32X4 = VectorType(
    "int32x4_t",
    4,
    int32_ops(
        {
            "add": "vaddq_s32({0}, {1})",
            "sub": "vsubq_s32({0}, {1})",
            "mul": "vmulq_s32({0}, {1})",
            "min": "vminq_s32({0}, {1})",
            "max": "vmaxq_s32({0}, {1})",
            "fma": "vmlaq_s32({2}, {0}, {1})",
            "and": "vandq_s32({0}, {1})",
            "or": "vorrq_s32({0}, {1})",
            "xor": "veorq_s32({0}, {1})",
            "shl": "vshlq_n_s32({0}, {1})",
            "shr": "vshrq_n_s32({0}, {1})",
            "abs": "vabsq_s32({0})",
            "from_float32": "vcvtq_s32_f32({0})",
            "rint_float32": "vcvtnq_s32_f32({0})",
            "set1": "vdupq_n_s32({0})",
            "zero": "vdupq_n_s32(0)",
            "load": "vld1q_s32({0})",
            "store": "vst1q_s32({0}, {1})",
            "hsum": "vaddvq_s32({0})",
            "hmax": "vmaxvq_s32({0})",
            "hmin": "vminvq_s32({0})",
            **long_texts("i32x4"),
            "high_product": "vqrdmulhq_s32({0}, {1})",
            "rounded_shr": "vrshrq_n_s32({0}, {1})",
            "shift_away_n": "nst_shift_away_i32x4({0}, vdupq_n_s32({1}))",
        },
        "i32x4",
    ),
    "nst_long_i32x4",
)

_TOTAL = TensorOperand("int32x4_t")
_BYTES = "vld1q_s8({0})"
_WORD = "vreinterpretq_s8_s32(vdupq_n_s32(nst_load_word({0})))"

NEON_TENSORS = tensor_table(
    TensorIntrinsic(
        "neon_mla8_s8s8",
        products({"h": 2, "i": 4}, "hi", ("int8", ""), ("int8", "hi")),
        {
            "C": TensorOperand("int32x4_t", over=("h",)),
            "A": TensorOperand("int16x8_t", ("vdupq_n_s16(*({0}))",)),
            "B": TensorOperand("int16x8_t", ("vmovl_s8(vld1_s8({0}))",)),
        },
        (
            "{C0} = vmlal_s16({C0}, vget_low_s16({B0}), vget_low_s16({A0}));",
            "{C1} = vmlal_high_s16({C1}, {B0}, {A0});",
        ),
    ),
    # Element by element: depthwise convolutions.
    *(
        TensorIntrinsic(
            f"neon_taps8_{short}s8",
            products({"h": 2, "i": 4}, "hi", (dtype, "hi"), ("int8", "hi")),
            {
                "C": TensorOperand("int32x4_t", over=("h",)),
                "A": TensorOperand("int16x8_t", (load,)),
                "B": TensorOperand("int16x8_t", ("vmovl_s8(vld1_s8({0}))",)),
            },
            (
                "{C0} = vmlal_s16({C0}, vget_low_s16({B0}), vget_low_s16({A0}));",
                "{C1} = vmlal_high_s16({C1}, {B0}, {A0});",
            ),
        )
        for short, dtype, load in (
            ("s8", "int8", "vmovl_s8(vld1_s8({0}))"),
            ("s16", "int16", "vld1q_s16({0})"),
        )
    ),
)

NEON_DOT_TENSORS = tensor_table(
    TensorIntrinsic(
        "neon_dot4_s8s8",
        products({"i": 4, "k": 4}, "i", ("int8", "k"), ("int8", "ik")),
        {
            "C": _TOTAL,
            "A": TensorOperand("int8x16_t", (_WORD,)),
            "B": TensorOperand("int8x16_t", (_BYTES,)),
        },
        ("{C0} = vdotq_s32({C0}, {B0}, {A0});",),
    ),
    # Sixteen bytes of the row are loaded once, and taken four at a time.
    TensorIntrinsic(
        "neon_dot16_s8s8",
        products({"g": 4, "i": 4, "k": 4}, "i", ("int8", "gk"), ("int8", "gik")),
        {
            "C": _TOTAL,
            "A": TensorOperand("int8x16_t", (_BYTES,)),
            "B": TensorOperand("int8x16_t", (_BYTES,), over=("g",)),
        },
        tuple(f"{{C0}} = vdotq_laneq_s32({{C0}}, {{B{g}}}, {{A0}}, {g});" for g in range(4)),
    ),
)
