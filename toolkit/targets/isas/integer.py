"""Operations on vectors of int32: the meaning that all instruction sets share.

Narrower integers are widened when they are loaded, and cut to their bits when they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from toolkit.targets.isa import Intrinsic

NARROW = ("int8", "uint8", "int16", "uint16")
"""Element types that fit in lanes of int32."""

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
    "shl": lambda a, n: a << n,
    "shr": lambda a, n: a >> n,
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
    "select_lt": lambda a, b, x, y: np.where(a < b, x, y),
    "select_le": lambda a, b, x, y: np.where(a <= b, x, y),
    "select_eq": lambda a, b, x, y: np.where(a == b, x, y),
    "from_float32": np.trunc,
    "rint_float32": np.rint,
}
"""Of int32, wrapping; shifts are by a literal of 1..31."""

_HELPERS = {
    "hsum": "({0})",
    "hmax": "({0})",
    "hmin": "({0})",
    "load_n": "({0}, {1})",
    "store_n": "({0}, {1}, {2})",
    "fill_n": "({0}, {1}, {2})",
    "select_lt": "({0}, {1}, {2}, {3})",
    "select_le": "({0}, {1}, {2}, {3})",
    "select_eq": "({0}, {1}, {2}, {3})",
}


def int32_ops(texts: Mapping[str, str], suffix: str) -> dict[str, Intrinsic]:
    """Return the operations with their C texts; what is not in `texts` is a helper function."""
    every = {name: f"nst_{name}_{suffix}{args}" for name, args in _HELPERS.items()} | dict(texts)
    ops = {name: Intrinsic(c, MEANING[name]) for name, c in every.items()}
    for dtype in NARROW:
        for name in ("load", "store", "load_n", "store_n"):
            args = {"load": "({0})", "store": "({0}, {1})"}.get(name, _HELPERS.get(name))
            ops[f"{name}_{dtype}"] = Intrinsic(f"nst_{name}_{dtype}_{suffix}{args}", MEANING[name])
    return ops | {"nanmax": ops["max"], "nanmin": ops["min"]}
