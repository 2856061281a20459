"""AVX2 with FMA, and AVX-512F.  Meaning: Intel Intrinsics Guide."""

from __future__ import annotations

import numpy as np

from toolkit.targets.isa import Intrinsic, Isa, VectorType
from toolkit.targets.isas.shared import shared_ops
from toolkit.targets.isas.x86_integer import (
    AVX2_TENSORS,
    AVX512_TENSORS,
    INT32X8,
    INT32X16,
    NARROW_256,
    NARROW_512,
)


def _float_ops(prefix: str, suffix: str) -> dict[str, Intrinsic]:
    """Return what both widths name alike: `prefix` of the intrinsics, `suffix` of the helpers."""

    def op(name: str, args: str) -> str:
        return f"{prefix}_{name}_ps({args})"

    return {
        "add": Intrinsic(op("add", "{0}, {1}"), lambda a, b: a + b),
        "sub": Intrinsic(op("sub", "{0}, {1}"), lambda a, b: a - b),
        "mul": Intrinsic(op("mul", "{0}, {1}"), lambda a, b: a * b),
        "div": Intrinsic(op("div", "{0}, {1}"), lambda a, b: a / b),
        "max": Intrinsic(op("max", "{0}, {1}"), lambda a, b: np.where(a > b, a, b)),
        "min": Intrinsic(op("min", "{0}, {1}"), lambda a, b: np.where(a < b, a, b)),
        "fma": Intrinsic(op("fmadd", "{0}, {1}, {2}"), lambda a, b, c: a * b + c),
        "sqrt": Intrinsic(op("sqrt", "{0}"), np.sqrt),
        "from_int32": Intrinsic(f"{prefix}_cvtepi32_ps({{0}})", lambda a: a),
        "set1": Intrinsic(op("set1", "{0}"), lambda a: a),
        "zero": Intrinsic(op("setzero", ""), lambda: 0),
        "load": Intrinsic(op("loadu", "{0}"), lambda a: a),
        "store": Intrinsic(op("storeu", "{0}, {1}"), lambda a, b: b),
        "nanmax": Intrinsic(f"nst_max_{suffix}({{0}}, {{1}})", np.maximum),
        "nanmin": Intrinsic(f"nst_min_{suffix}({{0}}, {{1}})", np.minimum),
        "hsum": Intrinsic(f"nst_hsum_{suffix}({{0}})", np.sum),
        "hmax": Intrinsic(f"nst_hmax_{suffix}({{0}})", np.max),
        "hmin": Intrinsic(f"nst_hmin_{suffix}({{0}})", np.min),
        **shared_ops(suffix),
    }


AVX512 = Isa(
    "avx512",
    "immintrin.h",
    "defined(__AVX512F__)",
    registers=32,
    vectors={
        "float32": VectorType(
            "__m512",
            16,
            {
                **_float_ops("_mm512", "f32x16"),
                "abs": Intrinsic("_mm512_abs_ps({0})", np.abs),
                "floor": Intrinsic("nst_floor_f32x16({0})", np.floor),
                "ceil": Intrinsic("nst_ceil_f32x16({0})", np.ceil),
                "round": Intrinsic("nst_round_f32x16({0})", np.rint),
            },
        ),
        "int32": INT32X16,
        **NARROW_512,
    },
    tensors=AVX512_TENSORS,
)

AVX2 = Isa(
    "avx2",
    "immintrin.h",
    "defined(__AVX2__) && defined(__FMA__)",
    registers=16,
    vectors={
        "float32": VectorType(
            "__m256",
            8,
            {
                **_float_ops("_mm256", "f32x8"),
                "abs": Intrinsic("nst_abs_f32x8({0})", np.abs),
                "floor": Intrinsic("_mm256_floor_ps({0})", np.floor),
                "ceil": Intrinsic("_mm256_ceil_ps({0})", np.ceil),
                "round": Intrinsic("_mm256_round_ps({0}, 8)", np.rint),
            },
        ),
        "int32": INT32X8,
        **NARROW_256,
    },
    tensors=AVX2_TENSORS,
)
