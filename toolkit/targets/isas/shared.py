"""Operations that are functions of `nst_simd.h`, alike for every vector type."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from toolkit.targets.isa import Intrinsic

_MATH: tuple[tuple[str, float, Callable[..., np.ndarray]], ...] = (
    ("exp", 1.5, np.exp),
    ("sigmoid", 2.5, lambda a: 1 / (1 + np.exp(-a))),
    ("tanh", 2.0, np.tanh),
    ("erf", 2.0, np.vectorize(math.erf)),
    ("log", 1.5, np.log),
    ("log1p", 2.0, np.log1p),
)
"""Functions that stand in for those of <math.h>, with their largest error in ULP."""


def shared_ops(suffix: str) -> dict[str, Intrinsic]:
    """Return the helper functions for the vector type of `suffix`, such as 'f32x8'."""

    def select(op: str) -> str:
        return f"nst_vselect_{op}_{suffix}({{0}}, {{1}}, {{2}}, {{3}})"

    return {
        "load_n": Intrinsic(f"nst_load_n_{suffix}({{0}}, {{1}})", lambda a, n: a),
        "store_n": Intrinsic(f"nst_store_n_{suffix}({{0}}, {{1}}, {{2}})", lambda a, b, n: b),
        "fill_n": Intrinsic(f"nst_fill_n_{suffix}({{0}}, {{1}}, {{2}})", lambda a, n, x: a),
        "map": Intrinsic(f"nst_map_{suffix}({{0}}, {{1}})", lambda a, f: f(a)),
        "select_lt": Intrinsic(select("lt"), lambda a, b, x, y: np.where(a < b, x, y)),
        "select_le": Intrinsic(select("le"), lambda a, b, x, y: np.where(a <= b, x, y)),
        "select_eq": Intrinsic(select("eq"), lambda a, b, x, y: np.where(a == b, x, y)),
        **{
            name: Intrinsic(f"nst_{name}_{suffix}({{0}})", meaning, ulps)
            for name, ulps, meaning in _MATH
        },
    }
