"""Functions of one operand: activations, SOFTMAX, rounding, roots, QUANTIZE, DEQUANTIZE, CAST.

A function of one 8-bit value is a table of 256 results, computed here as TFLite's reference kernels
do; what they compute in fixed point is in `fixed_point`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from toolkit.frontend.tflite import fixed_point
from toolkit.frontend.tflite.multiplier import quantized_multiplier
from toolkit.frontend.tflite.site import QUANTISED, Site
from toolkit.ir.types import DTYPES, int_range

Family = Callable[[Site], list[str]]
BYTES = ("int8", "uint8")


def _quantised(site: Site) -> bool:
    info = site.info(0)
    return info.dtype in QUANTISED and info.quant is not None


def _values(site: Site) -> np.ndarray:
    """Return what lies above the zero point, for each 8-bit value of the operand."""
    info = site.info(0)
    if info.dtype not in BYTES:
        raise site.refuse(f"{info.dtype} data is not supported yet")
    low, high = int_range(info.dtype)
    return np.arange(low, high + 1, dtype=np.int64) - site.per_tensor(info)[1]


def _float_op(op: str, **attrs: Any) -> Family:
    """An operator of floats only."""

    def family(site: Site) -> list[str]:
        if site.info(0).quant is not None and site.info(0).dtype in QUANTISED:
            raise site.refuse(f"quantised {site.info(0).dtype} data is not supported")
        return [site.one(op, site.name(0), **attrs)]

    return family


def _relu(low: float, high: float) -> Family:
    """Limit to low..high; integers are requantised as TFLite's ReluX kernels do."""

    def family(site: Site) -> list[str]:
        x = site.name(0)
        if not _quantised(site):
            if (low, high) == (0.0, np.inf):
                return [site.one("Relu", x)]
            return [site.clipped(x, low, high)]
        (scale, _), (y_scale, y_zero) = site.per_tensor(site.info(0)), site.per_tensor(site.out())
        bottom, top = int_range(site.out().dtype)

        def at(bound: float) -> int:
            return y_zero + int(fixed_point.away(np.float32(bound) / y_scale))

        bottom = max(bottom, at(low))
        top = min(top, at(high)) if np.isfinite(high) else top
        pair = quantized_multiplier(float(np.float64(scale / y_scale)))
        y = fixed_point.multiply(_values(site), *pair) + y_zero
        return [site.lookup(x, np.clip(y, bottom, top).astype(site.out().dtype))]

    return family


def logistic(site: Site) -> list[str]:
    """1 / (1 + exp(-x)); of integers in fixed point, with the result in units of 1/256."""
    if not _quantised(site):
        return [site.one("Sigmoid", site.name(0))]
    values, (scale, _) = _values(site), site.per_tensor(site.info(0))
    y = fixed_point.logistic_8(values, float(scale))
    low = int_range(site.out().dtype)[0]
    return [site.lookup(site.name(0), (y + low).astype(site.out().dtype))]


def tanh(site: Site) -> list[str]:
    """tanh(x); of integers in fixed point, with the result in units of 1/128."""
    if not _quantised(site):
        return [site.one("Tanh", site.name(0))]
    values, (scale, _) = _values(site), site.per_tensor(site.info(0))
    y = fixed_point.tanh_8(values, float(scale))
    middle = 0 if site.out().dtype == "int8" else 128
    return [site.lookup(site.name(0), (y + middle).astype(site.out().dtype))]


def softmax(site: Site) -> list[str]:
    """exp(beta x) / sum along the last axis; of integers in fixed point, from exponentials in a
    table of the 256 distances to the largest value."""
    x, beta = site.name(0), site.option("Beta", 1.0)
    if not _quantised(site):
        if beta != 1.0:
            x = site.one("Mul", x, site.const(np.float32(beta), "beta"))
        return [site.one("Softmax", x, axis=len(site.shape(0)) - 1)]
    if site.info(0).dtype not in BYTES or site.out().dtype not in BYTES:
        raise site.refuse(f"{site.info(0).dtype} data is not supported yet")
    scale, _ = site.per_tensor(site.info(0))
    table = fixed_point.softmax_exponentials(float(scale), beta)
    return [site.own("Softmax", x, site.const(table, "exponentials"), dtype=site.out().dtype)]


def quantize(site: Site) -> list[str]:
    """Floats to integers, or integers to another scale."""
    info, out = site.info(0), site.out()
    y_scale, y_zero = site.per_tensor(out)
    if info.dtype == "float32":
        return [
            site.own(
                "Quantize", site.name(0), site.const(y_scale, "scale"),
                site.const(np.array(y_zero), "zero_point", "int32"), dtype=out.dtype,
            )
        ]  # fmt: skip
    values, (scale, _) = _values(site), site.per_tensor(info)
    if out.dtype not in QUANTISED:
        raise site.refuse(f"from {info.dtype} to {out.dtype} is not supported")
    pair = quantized_multiplier(float(np.float64(scale) / np.float64(y_scale)))
    y = fixed_point.multiply(values, *pair) + y_zero
    return [site.lookup(site.name(0), np.clip(y, *int_range(out.dtype)).astype(out.dtype))]


def dequantize(site: Site) -> list[str]:
    """Integers to floats; float16 constants are widened here."""
    info, x = site.info(0), site.name(0)
    if info.dtype == "float16":
        return [site.const(site.value(0, "float16 data").astype(np.float32), info.name)]
    if len(site.quant(info).scale) > 1:
        quant = site.quant(info)
        return [
            site.one(
                "DequantizeLinear", x, site.const(quant.scale, "scale"),
                site.const(quant.zero_point, "zero_point", info.dtype), axis=quant.axis,
            )
        ]  # fmt: skip
    scale, zero = site.per_tensor(info)
    return [
        site.one(
            "DequantizeLinear", x, site.const(scale, "scale"),
            site.const(np.array(zero), "zero_point", info.dtype) if zero else "",
        )
    ]  # fmt: skip


def cast(site: Site) -> list[str]:
    """Convert to the type of the result, as C does."""
    kind = site.out().dtype
    if kind not in DTYPES:
        raise site.refuse(f"type {kind} is not supported")
    return [site.one("Cast", site.name(0), to=DTYPES[kind].onnx)]


def leaky_relu(site: Site) -> list[str]:
    """x where positive, else alpha x; integers by one multiplier for each side."""
    alpha = site.option("Alpha")
    if not _quantised(site):
        return [site.one("LeakyRelu", site.name(0), alpha=float(alpha))]
    values = _values(site)
    (scale, _), (y_scale, y_zero) = site.per_tensor(site.info(0)), site.per_tensor(site.out())
    identity = quantized_multiplier(float(np.float64(scale / y_scale)))
    slope = quantized_multiplier(float(np.float64(scale * np.float32(alpha) / y_scale)))
    y = np.where(
        values >= 0,
        fixed_point.multiply(values, *identity),
        fixed_point.multiply(values, *slope),
    )
    limits = int_range(site.out().dtype)
    return [site.lookup(site.name(0), np.clip(y + y_zero, *limits).astype(site.out().dtype))]


def prelu(site: Site) -> list[str]:
    """x where positive, else a slope of each channel times x."""
    if _quantised(site):
        raise site.refuse(f"quantised {site.info(0).dtype} data is not supported yet")
    return [site.one("PRelu", site.name(0), site.name(1))]


def hard_swish(site: Site) -> list[str]:
    """x * relu6(x + 3) / 6; of integers in fixed point of 16 bits."""
    if not _quantised(site):
        return [site.one("HardSwish", site.name(0))]
    values, (scale, _) = _values(site), site.per_tensor(site.info(0))
    y_scale, y_zero = site.per_tensor(site.out())
    y = fixed_point.hard_swish_8(values, scale, y_scale) + y_zero
    limits = int_range(site.out().dtype)
    return [site.lookup(site.name(0), np.clip(y, *limits).astype(site.out().dtype))]


def gelu(site: Site) -> list[str]:
    """x times the normal distribution function of x, or its approximation by tanh."""
    if _quantised(site):
        raise site.refuse(f"quantised {site.info(0).dtype} data is not supported yet")
    how = "tanh" if site.option("Approximate") else "none"
    return [site.one("Gelu", site.name(0), approximate=how)]


def rsqrt(site: Site) -> list[str]:
    """1 / sqrt(x)."""
    if _quantised(site):
        raise site.refuse(f"quantised {site.info(0).dtype} data is not supported yet")
    return [site.one("Reciprocal", site.one("Sqrt", site.name(0)))]


def square(site: Site) -> list[str]:
    """x * x, of floats."""
    if _quantised(site):
        raise site.refuse(f"quantised {site.info(0).dtype} data is not supported")
    return [site.one("Mul", site.name(0), site.name(0))]


TABLE: dict[str, Family] = {
    "RELU": _relu(0.0, np.inf),
    "RELU6": _relu(0.0, 6.0),
    "RELU_N1_TO_1": _relu(-1.0, 1.0),
    "RELU_0_TO_1": _relu(0.0, 1.0),
    "LOGISTIC": logistic,
    "TANH": tanh,
    "SOFTMAX": softmax,
    "LOG_SOFTMAX": _float_op("LogSoftmax", axis=-1),
    "QUANTIZE": quantize,
    "DEQUANTIZE": dequantize,
    "CAST": cast,
    "LEAKY_RELU": leaky_relu,
    "PRELU": prelu,
    "HARD_SWISH": hard_swish,
    "GELU": gelu,
    "ELU": _float_op("Elu"),
    "EXP": _float_op("Exp"),
    "LOG": _float_op("Log"),
    "SQRT": _float_op("Sqrt"),
    "RSQRT": rsqrt,
    "SQUARE": square,
    "SIN": _float_op("Sin"),
    "COS": _float_op("Cos"),
    "ABS": _float_op("Abs"),
    "NEG": _float_op("Neg"),
    "FLOOR": _float_op("Floor"),
    "CEIL": _float_op("Ceil"),
    "ROUND": _float_op("Round"),
    "LOGICAL_NOT": _float_op("Not"),
}
