"""Operations on vectors of integers: the meaning that all instruction sets share.

In lanes of int32, narrower integers are widened when they are loaded, and cut to their bits when
they are stored.  Where nothing is wider, they have vectors of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from toolkit.targets.isa import Intrinsic, VectorType

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
"""Wrapping; shifts are of int32, by a literal of 1..31."""

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


def narrow_vectors(
    texts: Callable[[str, str], Mapping[str, str]], c_type: Callable[[str], str], bits: int
) -> dict[str, VectorType]:
    """Return the vectors that hold nothing but narrow integers, by element type.

    `texts(dtype, short)`: the C texts of the operations for a type and its short name (i8, u16),
    those of partial loads and stores being helpers; `c_type(dtype)`: of a vector of `bits`.
    """
    result = {}
    for dtype in NARROW:
        width, sign = int(dtype.lstrip("uint")), dtype[0]
        lanes = bits // width
        suffix = f"{sign}{width}x{lanes}"
        every = {
            **{name: f"nst_{name}_{suffix}{_HELPERS[name]}" for name in _PARTIAL},
            **texts(dtype, f"{sign}{width}"),
        }
        ops = {name: Intrinsic(c, MEANING[name]) for name, c in every.items()}
        ops |= {"nanmax": ops["max"], "nanmin": ops["min"]}
        result[dtype] = VectorType(c_type(dtype), lanes, ops)
    return result


_PARTIAL = ("load_n", "store_n", "fill_n")


def int32_ops(texts: Mapping[str, str], suffix: str) -> dict[str, Intrinsic]:
    """Return the operations with their C texts; what is not in `texts` is a helper function."""
    every = {name: f"nst_{name}_{suffix}{args}" for name, args in _HELPERS.items()} | dict(texts)
    ops = {name: Intrinsic(c, MEANING[name]) for name, c in every.items()}
    for dtype in NARROW:
        for name in ("load", "store", "load_n", "store_n"):
            args = {"load": "({0})", "store": "({0}, {1})"}.get(name, _HELPERS.get(name))
            ops[f"{name}_{dtype}"] = Intrinsic(f"nst_{name}_{dtype}_{suffix}{args}", MEANING[name])
    return ops | {"nanmax": ops["max"], "nanmin": ops["min"]}


def arm_narrow(dtype: str, short: str) -> dict[str, str]:
    """Return the texts that NEON and Helium share."""
    suffix = ("s" if short[0] == "i" else "u") + short[1:]
    names = {"add": "add", "sub": "sub", "mul": "mul", "min": "min", "max": "max",
             "and": "and", "or": "orr", "xor": "eor"}  # fmt: skip
    return {
        **{op: f"v{name}q_{suffix}({{0}}, {{1}})" for op, name in names.items()},
        "set1": f"vdupq_n_{suffix}(({dtype}_t)({{0}}))",
        "zero": f"vdupq_n_{suffix}(0)",
        "load": f"vld1q_{suffix}({{0}})",
        "store": f"vst1q_{suffix}({{0}}, {{1}})",
    }


def arm_type(dtype: str) -> str:
    """Return the type of a vector of 128 bits."""
    return f"{dtype}x{128 // int(dtype.lstrip('uint'))}_t"
