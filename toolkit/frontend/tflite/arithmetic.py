"""ADD, SUB, MUL and other element-wise arithmetic of two operands, which broadcast."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toolkit.frontend.tflite.multiplier import quantized_multiplier
from toolkit.frontend.tflite.products import requantized
from toolkit.frontend.tflite.site import QUANTISED, Site

Family = Callable[[Site], list[str]]

SUM_SHIFT = 20
"""Bits by which TFLite widens the operands of an 8-bit sum."""


def _operands(site: Site) -> tuple[str, str]:
    kinds = site.info(0).dtype, site.info(1).dtype
    if kinds[0] != kinds[1]:
        raise site.refuse(f"operands of types {kinds[0]} and {kinds[1]} are not supported")
    return site.name(0), site.name(1)


def _sum(op: str) -> Family:
    """Add or Sub; of 8-bit integers both operands are brought to twice the larger scale first."""

    def family(site: Site) -> list[str]:
        a, b = _operands(site)
        kind = site.info(0).dtype
        if kind not in QUANTISED or site.info(0).quant is None:
            y = site.one(op, a, b)
            return [site.activated(y) if kind == "float32" else y]
        if kind == "int16":
            raise site.refuse("int16 data is not supported yet")
        (a_scale, a_zero), (b_scale, b_zero) = (site.per_tensor(site.info(i)) for i in (0, 1))
        y_scale, y_zero = site.per_tensor(site.out())
        twice = np.float64(np.float32(2) * max(a_scale, b_scale))
        scales = [np.float64(a_scale) / twice, np.float64(b_scale) / twice]
        scales.append(twice / (np.float64(1 << SUM_SHIFT) * np.float64(y_scale)))
        pairs = [quantized_multiplier(float(s)) for s in scales]
        if op == "Sub":
            pairs[1] = (-pairs[1][0], pairs[1][1])
        low, high = site.limits()
        return [
            site.own(
                "Add", a, b,
                site.const(np.array([a_zero, b_zero, y_zero]), "zero_points", "int32"),
                site.const(np.array([m for m, _ in pairs]), "multipliers", "int32"),
                site.const(np.array([s for _, s in pairs]), "shifts", "int32"),
                low=low, high=high, left_shift=SUM_SHIFT,
            )
        ]  # fmt: skip

    return family


def mul(site: Site) -> list[str]:
    """a * b; of integers the product of what lies above the zero points, requantised."""
    a, b = _operands(site)
    kind = site.info(0).dtype
    if kind not in QUANTISED or site.info(0).quant is None:
        y = site.one("Mul", a, b)
        return [site.activated(y) if kind == "float32" else y]
    (a_scale, a_zero), (b_scale, b_zero) = (site.per_tensor(site.info(i)) for i in (0, 1))
    y_scale, _ = site.per_tensor(site.out())
    product = site.own(
        "Product", a, b, site.const(np.array([a_zero, b_zero]), "zero_points", "int32")
    )
    return [requantized(site, product, np.array([a_scale * b_scale / y_scale], np.float64))]


def _float_only(op: str) -> Family:
    """An operator of floats (or plain integers) with a fused activation."""

    def family(site: Site) -> list[str]:
        a, b = _operands(site)
        if site.info(0).quant is not None and site.info(0).dtype in QUANTISED:
            raise site.refuse(f"quantised {site.info(0).dtype} operands are not supported")
        y = site.one(op, a, b)
        has_activation = hasattr(site.op.options, "FusedActivationFunction")
        return [site.activated(y) if has_activation else y]

    return family


def _extreme(op: str) -> Family:
    """Max or Min; TFLite wants operands and result quantised alike."""

    def family(site: Site) -> list[str]:
        a, b = _operands(site)
        if site.info(0).dtype in QUANTISED and site.info(0).quant is not None:
            site.same_quant(0)
            site.same_quant(1)
        return [site.one(op, a, b)]

    return family


def squared_difference(site: Site) -> list[str]:
    """(a - b) ** 2, of floats."""
    if site.info(0).dtype != "float32":
        raise site.refuse(f"{site.info(0).dtype} operands are not supported")
    d = site.one("Sub", *_operands(site))
    return [site.one("Mul", d, d)]


def _compare(op: str, negate: bool = False) -> Family:
    """A comparison; quantised operands must have one scale and zero point."""

    def family(site: Site) -> list[str]:
        a, b = _operands(site)
        if site.info(0).quant is not None and site.info(0).dtype in QUANTISED:
            if site.per_tensor(site.info(0)) != site.per_tensor(site.info(1)):
                raise site.refuse("its operands are quantised differently")
        y = site.one(op, a, b)
        return [site.one("Not", y) if negate else y]

    return family


def floor_div(site: Site) -> list[str]:
    """floor(a / b), of floats."""
    if site.info(0).dtype != "float32":
        raise site.refuse(f"{site.info(0).dtype} operands are not supported")
    return [site.one("Floor", site.one("Div", *_operands(site)))]


def _logical(op: str) -> Family:
    return lambda site: [site.one(op, *_operands(site))]


TABLE: dict[str, Family] = {
    "ADD": _sum("Add"),
    "SUB": _sum("Sub"),
    "MUL": mul,
    "DIV": _float_only("Div"),
    "POW": _float_only("Pow"),
    "MAXIMUM": _extreme("Max"),
    "MINIMUM": _extreme("Min"),
    "SQUARED_DIFFERENCE": squared_difference,
    "FLOOR_DIV": floor_div,
    "EQUAL": _compare("Equal"),
    "NOT_EQUAL": _compare("Equal", negate=True),
    "GREATER": _compare("Greater"),
    "GREATER_EQUAL": _compare("GreaterOrEqual"),
    "LESS": _compare("Less"),
    "LESS_EQUAL": _compare("LessOrEqual"),
    "LOGICAL_AND": _logical("And"),
    "LOGICAL_OR": _logical("Or"),
}
