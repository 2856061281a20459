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


def rounded_away(x: Any, bits: Any) -> Any:
    """Return x / 2**bits rounded half away from zero."""
    mask = (1 << np.asarray(bits, np.int64)) - 1
    return (x >> bits) + ((x & mask) > (mask >> 1) + (x < 0))


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
    "add_n": lambda a, b: a + b,
    "sub_n": lambda a, b: a - b,
    "mul_n": lambda a, b: a * b,
    "high_product": lambda a, b: (np.multiply(a, b, dtype=np.int64) + 2**30) >> 31,
    "high_product_n": lambda a, b: (np.multiply(a, b, dtype=np.int64) + 2**30) >> 31,
    "high_word": lambda a, b: np.multiply(a, b, dtype=np.int64) >> 32,
    "rounded_shr": lambda a, n: (a.astype(np.int64) + (1 << (n - 1))) >> n,
    "shift_half_up": lambda a, n: (a + ((1 << n) >> 1)) >> n,
    "shift_away": rounded_away,
    "shift_away_n": rounded_away,
    "saturate_int8": lambda a: np.clip(a, -128, 127),
    "saturate_uint8": lambda a: np.clip(a, 0, 255),
    "join": lambda a, b, c, d: np.array([a, b, c, d]),
    "load_long": lambda a: a,
    "load_n_long": lambda a, n: a,
    "set1_long": lambda a: a,
    "high_sum": lambda a, b, c: (np.multiply(a, b, dtype=np.int64) + c) >> 32,
    "high_sum_below": lambda a, b, c, d: (
        (np.multiply(a, b, dtype=np.int64) + c - np.where(a < 0, d, 0)) >> 32
    ),
    "store_saturated_int8": lambda a, b: np.clip(b, -128, 127),
    "store_saturated_uint8": lambda a, b: np.clip(b, 0, 255),
}
"""Wrapping; shifts are of int32, by a literal of 1..31.  `shift_away` takes 0..31 from lanes,
`shift_half_up` 0..30, and sums of at most 31 bits.  What `saturate_T` gives is right in the bits of
T.

`high_product` and those after it are optional, as is `join`, which puts scalars into lanes, and
what takes a scalar as its second operand (`add_n`).  High products are not of -2**31 twice.
`high_sum` adds an int64 to each product first, in the form that `load_long` and `set1_long` give.
"""

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


def long_texts(suffix: str) -> dict[str, str]:
    """Return the texts of fixed-point arithmetic by helper functions, and of saturating stores."""
    own = ("load_long", "set1_long")
    pairs = ("high_product", "high_word", "shift_away", "shift_half_up")
    texts = {name: f"nst_{name}_{suffix}({{0}})" for name in own}
    texts |= {name: f"nst_{name}_{suffix}({{0}}, {{1}})" for name in (*pairs, "rounded_shr")}
    return {
        **texts,
        "load_n_long": f"nst_load_n_long_{suffix}({{0}}, {{1}})",
        "high_sum": f"nst_high_sum_{suffix}({{0}}, {{1}}, {{2}})",
        "high_sum_below": f"nst_high_sum_below_{suffix}({{0}}, {{1}}, {{2}}, {{3}})",
        **{
            f"store_saturated_{t}": f"nst_store_saturated_{t}_{suffix}({{0}}, {{1}})"
            for t in ("int8", "uint8")
        },
    }


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
