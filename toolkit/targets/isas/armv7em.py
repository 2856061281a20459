"""Armv7E-M and Armv8-M with DSP extension and FPU.  Meaning: Armv7-M Arm ARM, A7; ACLE."""

from __future__ import annotations

from toolkit.targets.isa import Isa
from toolkit.targets.isas.nests import products, widened, windows
from toolkit.targets.tensor import tensor_table, TensorIntrinsic, TensorOperand

_INT = TensorOperand("int32_t")
_HALVES = TensorOperand("int32_t", ("nst_load_word({0})",))
_HALVES_2 = TensorOperand("int32_t", ("nst_load_word({0})",), over=("h",))
_BYTES = TensorOperand(
    "int32_t", ("nst_even_bytes(nst_load_word({0}))", "nst_odd_bytes(nst_load_word({0}))")
)
_TAPS_3 = TensorOperand("int32_t", ("nst_load_pair({0})", "nst_load_pair({0} + 1)"))

DSP = tensor_table(
    TensorIntrinsic(
        "dsp_dot2_s16s16",
        products({"k": 2}, "", ("int16", "k"), ("int16", "k")),
        {"C": _INT, "A": _HALVES, "B": _HALVES},
        ("{C0} = __smlad({A0}, {B0}, {C0});",),
    ),
    TensorIntrinsic(
        "dsp_dot2_s16s16_s64",
        products({"k": 2}, "", ("int16", "k"), ("int16", "k"), total="int64"),
        {"C": TensorOperand("int64_t"), "A": _HALVES, "B": _HALVES},
        ("{C0} = __smlald({A0}, {B0}, {C0});",),
    ),
    # Both operands fall into even and odd bytes alike, which does not change the sum.
    TensorIntrinsic(
        "dsp_dot4_s8s8",
        products({"k": 4}, "", ("int8", "k"), ("int8", "k")),
        {"C": _INT, "A": _BYTES, "B": _BYTES},
        ("{C0} = __smlad({A0}, {B0}, {C0});", "{C0} = __smlad({A1}, {B1}, {C0});"),
    ),
    # Bytes stored 0, 2, 1, 3 come out in order, beside halves that were widened before.
    TensorIntrinsic(
        "dsp_dot4_s16s8",
        products({"h": 2, "k": 2}, "", ("int16", "hk"), ("int8", "kh")),
        {"C": _INT, "A": _HALVES_2, "B": _BYTES},
        ("{C0} = __smlad({A0}, {B0}, {C0});", "{C0} = __smlad({A1}, {B1}, {C0});"),
    ),
    # Three taps of two neighbouring windows: the words of the row serve both, and three taps lie in
    # two words, of which the middle one is in both.
    TensorIntrinsic(
        "dsp_row3_s16s8",
        windows(2, 3, 1, "int16", "int8"),
        {"C": TensorOperand("int32_t", over=("p",)),
         "A": TensorOperand("int32_t", ("nst_load_word({0})", "nst_load_word({0} + 2)")),
         "B": _TAPS_3},
        (
            "{C0} = __smlad({A0}, {B0}, {C0});",
            "{C1} = __smlatb({A0}, {B0}, {C1});",
            "{C0} = __smlabt({A1}, {B1}, {C0});",
            "{C1} = __smlad({A1}, {B1}, {C1});",
        ),
    ),
    TensorIntrinsic(
        "dsp_row3_by2_s16s8",
        windows(2, 3, 2, "int16", "int8"),
        {"C": TensorOperand("int32_t", over=("p",)),
         "A": TensorOperand(
             "int32_t",
             ("nst_load_word({0})", "nst_load_word({0} + 2)", "(int32_t)*({0} + 4)"),
         ),
         "B": _TAPS_3},
        (
            "{C0} = __smlad({A0}, {B0}, {C0});",
            "{C0} = __smlabt({A1}, {B1}, {C0});",
            "{C1} = __smlad({A1}, {B0}, {C1});",
            "{C1} = __smlabt({A2}, {B1}, {C1});",
        ),
    ),
    *(
        TensorIntrinsic(
            f"dsp_widen4_{name}{kind}s16",
            widened(4, dtype, "int16", less=bool(name)),
            {"C": TensorOperand("int16_t *"),
             "A": TensorOperand(f"const {dtype}_t *", ("{0}",)),
             **({"Z": TensorOperand("int32_t", ("*{0}",))} if name else {})},
            (f"nst_store_widened_{dtype}({{C}}, {{A0}}, {'{Z0}' if name else '0'});",),
        )
        for name in ("", "less_")
        for kind, dtype in (("s8", "int8"), ("u8", "uint8"))
    ),
    # Two taps of a depthwise convolution for four channels.
    TensorIntrinsic(
        "dsp_taps2_s8s16",
        products({"t": 2, "c": 4}, "c", ("int8", "tc"), ("int16", "ct")),
        {
            "C": TensorOperand("int32_t", over=("c",)),
            "A": TensorOperand("int32_t", _BYTES.loads, over=("t",)),
            "B": TensorOperand("int32_t", _HALVES.loads, over=("c",)),
        },
        (
            "{C0} = __smlad(nst_low_halves({A0}, {A2}), {B0}, {C0});",
            "{C1} = __smlad(nst_low_halves({A1}, {A3}), {B1}, {C1});",
            "{C2} = __smlad(nst_high_halves({A0}, {A2}), {B2}, {C2});",
            "{C3} = __smlad(nst_high_halves({A1}, {A3}), {B3}, {C3});",
        ),
    ),
)  # fmt: skip

ARMV7EM = Isa(
    "armv7em",
    "arm_acle.h",
    "defined(__ARM_FEATURE_DSP)",
    registers=32,
    tensors=DSP,
)
"""32 registers s0..s31 of the FPU; the general ones, which integers use, are 13."""
