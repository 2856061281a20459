"""Operations on vectors of int32: the meaning that all instruction sets share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from toolkit.targets.isa import Intrinsic

MEANING: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": np.minimum,
    "max": np.maximum,
    "fma": lambda a, b, c: a * b + c,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: np.where((b >= 0) & (b < 32), a << (b & 31), 0),
    "shr": lambda a, b: a >> np.where((b >= 0) & (b < 32), b, 31),
    "abs": np.abs,
    "set1": lambda a: a,
    "zero": lambda: 0,
    "load": lambda a: a,
    "store": lambda a, b: b,
    "hsum": np.sum,
    "hmax": np.max,
    "hmin": np.min,
    "load_n": lambda a, n: a,
    "store_n": lambda a, b, n: b,
    "fill_n": lambda a, n, x: a,
}
"""Of int32, wrapping."""

_HELPERS = {
    "hsum": "({0})",
    "hmax": "({0})",
    "hmin": "({0})",
    "load_n": "({0}, {1})",
    "store_n": "({0}, {1}, {2})",
    "fill_n": "({0}, {1}, {2})",
}


def int32_ops(texts: Mapping[str, str], suffix: str) -> dict[str, Intrinsic]:
    """Return the operations with their C texts; what is not in `texts` is a helper function."""
    every = {name: f"nst_{name}_{suffix}{args}" for name, args in _HELPERS.items()} | dict(texts)
    ops = {name: Intrinsic(c, MEANING[name]) for name, c in every.items()}
    return ops | {"nanmax": ops["max"], "nanmin": ops["min"]}
