"""AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D: windows over height and width, the channel last."""

from __future__ import annotations

from typing import Any

from toolkit.frontend.tflite.products import window_attrs
from toolkit.frontend.tflite.site import Site


def _attrs(site: Site) -> dict[str, Any]:
    if len(site.shape(0)) != 4:
        raise site.refuse(f"data {list(site.shape(0))} needs four axes")
    kernel = (site.option("FilterHeight"), site.option("FilterWidth"))
    return window_attrs(site, site.shape(0)[1:3], kernel) | {"kernel_shape": kernel}


def average_pool_2d(site: Site) -> list[str]:
    """Mean over what of each window lies in the image; integers round half away from zero."""
    attrs = _attrs(site)
    if site.info(0).dtype == "float32":
        return [site.activated(site.one("AveragePool", site.name(0), **attrs))]
    site.same_quant()
    low, high = site.limits()
    return [site.own("AveragePool", site.name(0), low=low, high=high, **attrs)]


def max_pool_2d(site: Site) -> list[str]:
    """Largest of each window."""
    attrs = _attrs(site)
    y = site.one("MaxPool", site.name(0), **attrs)
    if site.info(0).dtype == "float32":
        return [site.activated(y)]
    site.same_quant()
    return [site.limited(y)]


def l2_pool_2d(site: Site) -> list[str]:
    """sqrt of the mean of squares of each window."""
    x = site.name(0)
    if site.info(0).dtype != "float32":
        raise site.refuse(f"{site.info(0).dtype} data is not supported")
    mean = site.one("AveragePool", site.one("Mul", x, x), **_attrs(site))
    return [site.activated(site.one("Sqrt", mean))]


TABLE = {
    "AVERAGE_POOL_2D": average_pool_2d,
    "MAX_POOL_2D": max_pool_2d,
    "L2_POOL_2D": l2_pool_2d,
}
