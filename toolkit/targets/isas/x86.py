"""AVX2 with FMA, and AVX-512F.  Meaning: Intel Intrinsics Guide."""

from __future__ import annotations

import numpy as np

from toolkit.targets.isa import Intrinsic, Isa, VectorType


def _float_ops(prefix: str, suffix: str, extra: dict[str, Intrinsic]) -> dict[str, Intrinsic]:
    """Return the operations that both widths name alike."""

    def op(name: str) -> str:
        return f"{prefix}_{name}_{suffix}"

    return {
        "add": Intrinsic(op("add") + "({0}, {1})", lambda a, b: a + b),
        "sub": Intrinsic(op("sub") + "({0}, {1})", lambda a, b: a - b),
        "mul": Intrinsic(op("mul") + "({0}, {1})", lambda a, b: a * b),
        "div": Intrinsic(op("div") + "({0}, {1})", lambda a, b: a / b),
        "max": Intrinsic(op("max") + "({0}, {1})", lambda a, b: np.where(a > b, a, b)),
        "min": Intrinsic(op("min") + "({0}, {1})", lambda a, b: np.where(a < b, a, b)),
        "fma": Intrinsic(op("fmadd") + "({0}, {1}, {2})", lambda a, b, c: a * b + c),
        "sqrt": Intrinsic(op("sqrt") + "({0})", np.sqrt),
        "set1": Intrinsic(op("set1") + "({0})", lambda a: a),
        "zero": Intrinsic(op("setzero") + "()", lambda: 0),
        "load": Intrinsic(op("loadu") + "({0})", lambda a: a),
        "store": Intrinsic(op("storeu") + "({0}, {1})", lambda a, b: b),
        **extra,
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
            _float_ops(
                "_mm512",
                "ps",
                {
                    "load_n": Intrinsic("nst_load_n_f32x16({0}, {1})", lambda a, n: a),
                    "store_n": Intrinsic("nst_store_n_f32x16({0}, {1}, {2})", lambda a, b, n: b),
                    "abs": Intrinsic("_mm512_abs_ps({0})", np.abs),
                    "floor": Intrinsic("_mm512_roundscale_ps({0}, 9)", np.floor),
                    "ceil": Intrinsic("_mm512_roundscale_ps({0}, 10)", np.ceil),
                    "round": Intrinsic("_mm512_roundscale_ps({0}, 8)", np.rint),
                    "nanmax": Intrinsic("nst_max_f32x16({0}, {1})", np.maximum),
                    "nanmin": Intrinsic("nst_min_f32x16({0}, {1})", np.minimum),
                    "exp": Intrinsic("nst_exp_f32x16({0})", np.exp),
                    "sigmoid": Intrinsic("nst_sigmoid_f32x16({0})", lambda a: 1 / (1 + np.exp(-a))),
                    "tanh": Intrinsic("nst_tanh_f32x16({0})", np.tanh),
                    "fill_n": Intrinsic(
                        "nst_fill_n_f32x16({0}, {1}, {2})",
                        lambda a, n, x: np.where(np.arange(a.shape[-1]) < n, a, x),
                    ),
                    "hsum": Intrinsic("nst_hsum_f32x16({0})", np.sum),
                    "hmax": Intrinsic("nst_hmax_f32x16({0})", np.max),
                    "hmin": Intrinsic("nst_hmin_f32x16({0})", np.min),
                    "map": Intrinsic("nst_map_f32x16({0}, {1})", lambda a, f: f(a)),
                    "select_lt": Intrinsic(
                        "nst_vselect_lt_f32x16({0}, {1}, {2}, {3})",
                        lambda a, b, x, y: np.where(a < b, x, y),
                    ),
                    "select_le": Intrinsic(
                        "nst_vselect_le_f32x16({0}, {1}, {2}, {3})",
                        lambda a, b, x, y: np.where(a <= b, x, y),
                    ),
                    "select_eq": Intrinsic(
                        "nst_vselect_eq_f32x16({0}, {1}, {2}, {3})",
                        lambda a, b, x, y: np.where(a == b, x, y),
                    ),
                },
            ),
        )
    },
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
            _float_ops(
                "_mm256",
                "ps",
                {
                    "load_n": Intrinsic("nst_load_n_f32x8({0}, {1})", lambda a, n: a),
                    "store_n": Intrinsic("nst_store_n_f32x8({0}, {1}, {2})", lambda a, b, n: b),
                    "abs": Intrinsic("nst_abs_f32x8({0})", np.abs),
                    "floor": Intrinsic("_mm256_floor_ps({0})", np.floor),
                    "ceil": Intrinsic("_mm256_ceil_ps({0})", np.ceil),
                    "round": Intrinsic("_mm256_round_ps({0}, 8)", np.rint),
                    "nanmax": Intrinsic("nst_max_f32x8({0}, {1})", np.maximum),
                    "nanmin": Intrinsic("nst_min_f32x8({0}, {1})", np.minimum),
                    "exp": Intrinsic("nst_exp_f32x8({0})", np.exp),
                    "sigmoid": Intrinsic("nst_sigmoid_f32x8({0})", lambda a: 1 / (1 + np.exp(-a))),
                    "tanh": Intrinsic("nst_tanh_f32x8({0})", np.tanh),
                    "fill_n": Intrinsic(
                        "nst_fill_n_f32x8({0}, {1}, {2})",
                        lambda a, n, x: np.where(np.arange(a.shape[-1]) < n, a, x),
                    ),
                    "hsum": Intrinsic("nst_hsum_f32x8({0})", np.sum),
                    "hmax": Intrinsic("nst_hmax_f32x8({0})", np.max),
                    "hmin": Intrinsic("nst_hmin_f32x8({0})", np.min),
                    "map": Intrinsic("nst_map_f32x8({0}, {1})", lambda a, f: f(a)),
                    "select_lt": Intrinsic(
                        "nst_vselect_lt_f32x8({0}, {1}, {2}, {3})",
                        lambda a, b, x, y: np.where(a < b, x, y),
                    ),
                    "select_le": Intrinsic(
                        "nst_vselect_le_f32x8({0}, {1}, {2}, {3})",
                        lambda a, b, x, y: np.where(a <= b, x, y),
                    ),
                    "select_eq": Intrinsic(
                        "nst_vselect_eq_f32x8({0}, {1}, {2}, {3})",
                        lambda a, b, x, y: np.where(a == b, x, y),
                    ),
                },
            ),
        )
    },
)
