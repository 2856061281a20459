"""RESIZE_NEAREST_NEIGHBOR, RESIZE_BILINEAR: other heights and widths, the channel last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toolkit.frontend.tflite.site import QUANTISED, Site

Family = Callable[[Site], list[str]]

ONE_10 = 1 << 10
"""1.0 in TFLite's coordinates of integer images."""


def _sizes(site: Site) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return height and width before and after."""
    shape, wanted = site.shape(0), site.ints(1, "size")
    if len(shape) != 4 or len(wanted) != 2 or min(wanted) < 1:
        raise site.refuse(f"data {list(shape)} does not fit size {list(wanted)}")
    return (shape[1], shape[2]), (wanted[0], wanted[1])


def _modes(site: Site) -> tuple[bool, bool]:
    """Return align_corners and half_pixel_centers."""
    modes = bool(site.option("AlignCorners")), bool(site.option("HalfPixelCenters"))
    if all(modes):
        raise site.refuse("it has both aligned corners and half pixel centers")
    return modes


def nearest_places(size: int, out: int, align: bool, half: bool) -> np.ndarray:
    """Return which element each result takes, as `GetNearestNeighbor` in TFLite, in float32."""
    scale = np.float32(size - 1) / np.float32(out - 1) if align and out > 1 else None
    if scale is None:
        scale = np.float32(size) / np.float32(out)
    at = (np.arange(out, dtype=np.float32) + np.float32(0.5 if half else 0.0)) * scale
    found = np.trunc(at + np.float32(0.5)) if align else np.floor(at)
    places: np.ndarray = np.clip(found, 0, size - 1).astype(np.int64)
    return places


def resize_nearest(site: Site) -> list[str]:
    """The nearest element, which is known here."""
    if site.info(0).dtype in QUANTISED and site.info(0).quant is not None:
        site.same_quant()
    before, after = _sizes(site)
    align, half = _modes(site)
    y = site.name(0)
    for axis, (size, out) in enumerate(zip(before, after, strict=True), 1):
        places = nearest_places(size, out, align, half)
        if not np.array_equal(places, np.arange(size)):
            y = site.one("Gather", y, site.const(places, "places"), axis=axis)
    return [y]


def bilinear_places(
    size: int, out: int, align: bool, half: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the elements below and above each result, and how far it lies above the one below.

    As `ComputeInterpolationValuesInteger` in TFLite's reference/resize_bilinear.h: with 10 bits of
    fraction.
    """
    if align and out > 1:
        scale = (ONE_10 * (size - 1) + (out - 1) // 2) // (out - 1)
    else:
        scale = (ONE_10 * size + out // 2) // out
    at = np.arange(out, dtype=np.int64) * scale + (scale // 2 - ONE_10 // 2 if half else 0)
    low = np.maximum(np.trunc(at / ONE_10).astype(np.int64), 0)
    high = np.minimum(np.trunc((at + ONE_10 - 1) / ONE_10).astype(np.int64), size - 1)
    return low, high, at - ONE_10 * low


def resize_bilinear(site: Site) -> list[str]:
    """Between the four elements around; integers with 10 bits of fraction an axis."""
    before, after = _sizes(site)
    align, half = _modes(site)
    info, x = site.info(0), site.name(0)
    if info.dtype == "float32":
        shape = site.shape(0)
        sizes = site.const(np.array([shape[0], *after, shape[3]], np.int64), "sizes")
        mode = "align_corners" if align else "half_pixel" if half else "asymmetric"
        return [
            site.one("Resize", x, "", "", sizes, mode="linear", coordinate_transformation_mode=mode)
        ]
    if info.dtype != "int8":  # of uint8 TFLite's own arithmetic is that of floats
        raise site.refuse(f"{info.dtype} data is not supported yet")
    site.same_quant()
    tables = []
    for size, out in zip(before, after, strict=True):
        tables += [
            site.const(t.astype(np.int32), name)
            for t, name in zip(
                bilinear_places(size, out, align, half), ("below", "above", "part"), strict=True
            )
        ]
    return [site.own("ResizeBilinear", x, *tables)]


TABLE: dict[str, Family] = {
    "RESIZE_NEAREST_NEIGHBOR": resize_nearest,
    "RESIZE_BILINEAR": resize_bilinear,
}
