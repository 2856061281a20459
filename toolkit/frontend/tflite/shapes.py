"""Operators that move elements or name them anew: RESHAPE, PAD, CONCATENATION, STRIDED_SLICE, ...

Stored values are moved as they are, so a result must be quantised as its operand; CONCATENATION
alone brings operands of other scales to that of its result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toolkit.frontend.tflite.site import QUANTISED, Site
from toolkit.ir.types import int_range

Family = Callable[[Site], list[str]]


def _moved(site: Site, *positions: int) -> None:
    """Refuse quantised operands whose scale or zero point are not those of the result."""
    for position in positions or (0,):
        info = site.info(position)
        if info.dtype in QUANTISED and info.quant is not None and site.out().quant is not None:
            site.same_quant(position)


def _int64(site: Site, values: object, name: str) -> str:
    return site.const(np.array(values, np.int64), name)


def reshape(site: Site) -> list[str]:
    """The shape is the second operand, else the option, else that of the result in the file."""
    _moved(site)
    x = site.name(0)
    wanted: tuple[int, ...] = site.out().shape
    if site.has(1) and site.name(1) in site.build.consts:
        wanted = site.ints(1, "shape")
    elif not site.has(1) and site.op.options is not None and site.option("NewShapeLength"):
        wanted = tuple(int(n) for n in site.option("NewShapeAsNumpy"))
    return [site.one("Reshape", x, _int64(site, wanted, "shape"))]


def squeeze(site: Site) -> list[str]:
    """Drop axes of 1: those listed, else all."""
    _moved(site)
    axes = () if site.option("SqueezeDimsLength") == 0 else site.option("SqueezeDimsAsNumpy")
    given = tuple(int(a) for a in axes)
    return [site.one("Squeeze", site.name(0), _int64(site, given, "axes") if given else "")]


def expand_dims(site: Site) -> list[str]:
    """Add an axis of 1."""
    _moved(site)
    axes = site.ints(1, "axis")
    return [site.one("Unsqueeze", site.name(0), _int64(site, axes, "axes"))]


def transpose(site: Site) -> list[str]:
    """Permute axes."""
    _moved(site)
    rank = len(site.shape(0))
    perm = tuple(p % rank for p in site.ints(1, "permutation"))
    return [site.one("Transpose", site.name(0), perm=perm)]


def _pad_amounts(site: Site) -> str:
    pads = np.asarray(site.value(1, "amounts of padding"), np.int64)
    if pads.shape != (len(site.shape(0)), 2):
        raise site.refuse(f"amounts {list(pads.shape)} do not fit data {list(site.shape(0))}")
    return site.const(pads.T.reshape(-1), "pads")


def pad(site: Site) -> list[str]:
    """Pad with 0, which of quantised data is the zero point; PADV2 with its third operand."""
    _moved(site)
    info = site.info(0)
    fill = ""
    if site.has(2):
        fill = site.name(2)
        if site.type(fill).shape:
            fill = site.one("Reshape", fill, _int64(site, (), "scalar"))
    elif info.dtype in QUANTISED and info.quant is not None:
        zero = site.per_tensor(info)[1]
        fill = site.const(np.array(zero), "zero_point", info.dtype) if zero else ""
    return [site.one("Pad", site.name(0), _pad_amounts(site), fill)]


def mirror_pad(site: Site) -> list[str]:
    """Pad by reflection about the border element, which is not repeated."""
    _moved(site)
    if site.option("Mode") != 0:
        raise site.refuse("mode SYMMETRIC is not supported")
    return [site.one("Pad", site.name(0), _pad_amounts(site), mode="reflect")]


def concatenation(site: Site) -> list[str]:
    """Join along an axis; uint8 operands of other scales are requantised in float32."""
    if site.activation() != "NONE":
        raise site.refuse(f"the fused activation {site.activation()} is not supported")
    out = site.out()
    parts = []
    for position in range(len(site.op.inputs)):
        x, info = site.name(position), site.info(position)
        quantised = info.dtype in QUANTISED and info.quant is not None
        if quantised and site.per_tensor(info) != site.per_tensor(out):
            x = _rescaled(site, position)
        parts.append(x)
    rank = len(site.shape(0))
    return [site.one("Concat", *parts, axis=site.option("Axis") % max(rank, 1))]


def _rescaled(site: Site, position: int) -> str:
    """Bring a uint8 operand to the scale of the result, through a table of its values.

    round(q * (scale / y_scale) - zero * scale / y_scale) + y_zero in float32, as
    `ConcatenationWithScaling` in TFLite's reference kernels.
    """
    info, out = site.info(position), site.out()
    if info.dtype != "uint8":
        raise site.refuse(f"{info.dtype} operands of different scales are not supported")
    (scale, zero), (y_scale, y_zero) = site.per_tensor(info), site.per_tensor(out)
    low, high = int_range(info.dtype)
    inverse = np.float32(1) / y_scale
    ratio = scale * inverse
    bias = np.float32(-zero) * ratio
    real = np.arange(low, high + 1, dtype=np.float32) * ratio + bias
    rounded = np.trunc(real + np.copysign(np.float32(0.5), real)).astype(np.int64) + y_zero
    return site.lookup(site.name(position), np.clip(rounded, low, high).astype(info.dtype))


def pack(site: Site) -> list[str]:
    """Join along a new axis."""
    count = len(site.op.inputs)
    _moved(site, *range(count))
    rank = len(site.shape(0)) + 1
    axis = site.option("Axis") % rank
    axes = _int64(site, [axis], "axes")
    parts = [site.one("Unsqueeze", site.name(i), axes) for i in range(count)]
    return [site.one("Concat", *parts, axis=axis)]


def unpack(site: Site) -> list[str]:
    """Cut into one tensor an index of an axis, which is dropped."""
    axis = site.option("Axis") % max(len(site.shape(0)), 1)
    axes = _int64(site, [axis], "axes")
    count = site.shape(0)[axis]
    parts = _pieces(site, site.name(0), axis, [1] * count)
    return [site.one("Squeeze", p, axes) for p in parts]


def _pieces(site: Site, x: str, axis: int, sizes: list[int]) -> list[str]:
    if len(sizes) == 1:
        return [x]
    split = _int64(site, sizes, "split")
    return list(site.emit("Split", x, split, count=len(sizes), axis=axis))


def split(site: Site) -> list[str]:
    """Cut the second operand into equal pieces along the axis that the first says."""
    _moved(site, 1)
    axis = site.ints(0, "axis")[0] % len(site.shape(1))
    count = site.option("NumSplits")
    extent = site.shape(1)[axis]
    if count < 1 or extent % count:
        raise site.refuse(f"an extent of {extent} does not divide into {count}")
    return _pieces(site, site.name(1), axis, [extent // count] * count)


def split_v(site: Site) -> list[str]:
    """Cut into pieces of given sizes, one of which may be -1."""
    _moved(site)
    axis = site.ints(2, "axis")[0] % len(site.shape(0))
    sizes = list(site.ints(1, "sizes"))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = site.shape(0)[axis] - sum(sizes) - 1
    return _pieces(site, site.name(0), axis, sizes)


def slice_(site: Site) -> list[str]:
    """`size` elements from `begin`, -1 for all that follow."""
    _moved(site)
    begin, size = site.ints(1, "begin"), site.ints(2, "size")
    shape = site.shape(0)
    ends = [b + s if s >= 0 else n for b, s, n in zip(begin, size, shape, strict=True)]
    return [_slice(site, site.name(0), begin, ends)]


def _slice(site: Site, x: str, begin: object, end: object, steps: object = None) -> str:
    rank = len(site.type(x).shape)
    axes = _int64(site, range(rank), "axes")
    more = () if steps is None else (_int64(site, steps, "steps"),)
    return site.one("Slice", x, _int64(site, begin, "begin"), _int64(site, end, "end"), axes, *more)


def strided_slice(site: Site) -> list[str]:
    """NumPy's x[begin:end:stride, ...], with masks of axes taken whole or dropped."""
    _moved(site)
    shape = site.shape(0)
    begin, end, steps = (
        list(site.ints(i, what)) for i, what in ((1, "begin"), (2, "end"), (3, "strides"))
    )
    if site.option("EllipsisMask") or site.option("NewAxisMask") or site.option("Offset"):
        raise site.refuse("ellipsis_mask, new_axis_mask and offset are not supported")
    if not len(begin) == len(end) == len(steps) <= len(shape) or 0 in steps:
        raise site.refuse(f"begin {begin}, end {end} and strides {steps} do not fit {list(shape)}")
    dropped = []
    for axis in range(len(begin)):
        extent, backwards = shape[axis], steps[axis] < 0
        if site.option("ShrinkAxisMask") >> axis & 1:
            at = begin[axis] + extent if begin[axis] < 0 else begin[axis]
            begin[axis], end[axis], steps[axis] = at, at + 1, 1
            dropped.append(axis)
            continue
        if site.option("BeginMask") >> axis & 1:
            begin[axis] = extent - 1 if backwards else 0
        if site.option("EndMask") >> axis & 1:
            end[axis] = -extent - 1 if backwards else extent
    rest = shape[len(begin) :]
    begin, end, steps = begin + [0] * len(rest), [*end, *rest], steps + [1] * len(rest)
    y = _slice(site, site.name(0), begin, end, steps)
    return [site.one("Squeeze", y, _int64(site, dropped, "axes")) if dropped else y]


def tile(site: Site) -> list[str]:
    """Repeat along each axis."""
    _moved(site)
    return [site.one("Tile", site.name(0), _int64(site, site.ints(1, "multiples"), "repeats"))]


def broadcast_to(site: Site) -> list[str]:
    """Broadcast to a constant shape."""
    _moved(site)
    return [site.one("Expand", site.name(0), _int64(site, site.ints(1, "shape"), "shape"))]


def gather(site: Site) -> list[str]:
    """Take the elements at given indices of an axis."""
    _moved(site)
    if site.option("BatchDims"):
        raise site.refuse("batch_dims is not supported")
    axis = site.option("Axis") % max(len(site.shape(0)), 1)
    return [site.one("Gather", site.name(0), site.name(1), axis=axis)]


def shape(site: Site) -> list[str]:
    """The shape is known when compiling."""
    return [site.const(np.array(site.shape(0)), "shape", site.out().dtype)]


def reverse(site: Site) -> list[str]:
    """Reverse the order along given axes."""
    _moved(site)
    extents = site.shape(0)
    axes = [a % len(extents) for a in site.ints(1, "axes")]
    begin = [n - 1 if a in axes else 0 for a, n in enumerate(extents)]
    end = [-n - 1 if a in axes else n for a, n in enumerate(extents)]
    steps = [-1 if a in axes else 1 for a in range(len(extents))]
    return [_slice(site, site.name(0), begin, end, steps)]


def space_to_depth(site: Site) -> list[str]:
    """[n, h * b, w * b, c] -> [n, h, w, b * b * c]."""
    _moved(site)
    n, h, w, c = site.shape(0)
    b = site.option("BlockSize")
    inner = site.one("Reshape", site.name(0), _int64(site, (n, h // b, b, w // b, b, c), "blocks"))
    moved = site.one("Transpose", inner, perm=(0, 1, 3, 2, 4, 5))
    return [site.one("Reshape", moved, _int64(site, (n, h // b, w // b, b * b * c), "shape"))]


def depth_to_space(site: Site) -> list[str]:
    """[n, h, w, b * b * c] -> [n, h * b, w * b, c]."""
    _moved(site)
    n, h, w, c = site.shape(0)
    b = site.option("BlockSize")
    inner = site.one("Reshape", site.name(0), _int64(site, (n, h, w, b, b, c // (b * b)), "blocks"))
    moved = site.one("Transpose", inner, perm=(0, 1, 3, 2, 4, 5))
    return [site.one("Reshape", moved, _int64(site, (n, h * b, w * b, c // (b * b)), "shape"))]


TABLE: dict[str, Family] = {
    "RESHAPE": reshape,
    "SQUEEZE": squeeze,
    "EXPAND_DIMS": expand_dims,
    "TRANSPOSE": transpose,
    "PAD": pad,
    "PADV2": pad,
    "MIRROR_PAD": mirror_pad,
    "CONCATENATION": concatenation,
    "PACK": pack,
    "UNPACK": unpack,
    "SPLIT": split,
    "SPLIT_V": split_v,
    "SLICE": slice_,
    "STRIDED_SLICE": strided_slice,
    "TILE": tile,
    "BROADCAST_TO": broadcast_to,
    "GATHER": gather,
    "SHAPE": shape,
    "REVERSE_V2": reverse,
    "SPACE_TO_DEPTH": space_to_depth,
    "DEPTH_TO_SPACE": depth_to_space,
}
