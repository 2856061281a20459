"""MEAN, SUM, REDUCE_MAX, REDUCE_MIN, REDUCE_PROD: axes brought to one value."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from toolkit.frontend.tflite.multiplier import quantized_multiplier
from toolkit.frontend.tflite.site import QUANTISED, Site
from toolkit.ir.types import int_range

Family = Callable[[Site], list[str]]


def _axes(site: Site) -> tuple[int, ...]:
    rank = len(site.shape(0))
    axes = site.ints(1, "axes")
    if any(not -rank <= a < rank for a in axes):
        raise site.refuse(f"its axes {axes} are not those of data {list(site.shape(0))}")
    return tuple(sorted({a % rank for a in axes}))


def _reduced(site: Site, op: str, x: str) -> str:
    axes = site.const(np.array(_axes(site), np.int64), "axes")
    keep = int(bool(site.option("KeepDims")))
    return site.one(op, x, axes, keepdims=keep, noop_with_empty_axes=1)


def _floats(op: str) -> Family:
    def family(site: Site) -> list[str]:
        if site.info(0).dtype in QUANTISED and site.info(0).quant is not None:
            raise site.refuse(f"quantised {site.info(0).dtype} data is not supported")
        return [_reduced(site, op, site.name(0))]

    return family


def _extreme(op: str) -> Family:
    """The largest or smallest value is that of the stored integers."""

    def family(site: Site) -> list[str]:
        if site.info(0).dtype in QUANTISED and site.info(0).quant is not None:
            site.same_quant()
        return [_reduced(site, op, site.name(0))]

    return family


def mean(site: Site) -> list[str]:
    """Mean over axes; of integers the sum by a multiplier that holds the division.

    As `QuantizedMeanOrSum` in TFLite's reference/reduce.h: the multiplier is shifted up as far as
    the count's highest bit before it is divided.
    """
    info, out, x = site.info(0), site.out(), site.name(0)
    if info.dtype == "float32":
        return [_reduced(site, "ReduceMean", x)]
    if info.dtype not in ("int8", "uint8"):
        raise site.refuse(f"{info.dtype} data is not supported yet")
    (scale, zero), (y_scale, _) = site.per_tensor(info), site.per_tensor(out)
    count = math.prod(site.shape(0)[a] for a in _axes(site))
    multiplier, shift = quantized_multiplier(float(scale) / float(y_scale))
    low, high = int_range(out.dtype)
    up = min(count.bit_length() - 1, 32, 31 + shift)
    if up < 0:
        raise site.refuse(f"its scales {scale} and {y_scale} lie too far apart")
    total = _reduced(site, "ReduceSum", site.one("Cast", x, to=6))
    if zero:
        bias = site.const(np.array(-zero * count, np.int32), "bias")
        total = site.one("Add", total, bias)
    return [
        site.own(
            "Requantize", total,
            site.const(np.array([(multiplier << up) // count], np.int32), "multiplier"),
            site.const(np.array([shift - up], np.int32), "shift"),
            site.const(np.array(site.per_tensor(out)[1]), "zero_point", "int32"),
            low=low, high=high, dtype=out.dtype,
        )
    ]  # fmt: skip


TABLE: dict[str, Family] = {
    "MEAN": mean,
    "SUM": _floats("ReduceSum"),
    "REDUCE_PROD": _floats("ReduceProd"),
    "REDUCE_MAX": _extreme("ReduceMax"),
    "REDUCE_MIN": _extreme("ReduceMin"),
}
