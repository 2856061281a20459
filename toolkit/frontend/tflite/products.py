"""CONV_2D, DEPTHWISE_CONV_2D, FULLY_CONNECTED: products of activations and constant weights.

Floats become Conv and MatMul with the channel last.  Integers become ConvInteger and MatMulInteger,
whose int32 sums `tflite:Requantize` brings to the result's scale; the zero point of the data goes
into the bias where no window reaches into the padding.  Hybrid operators quantise each batch of the
data when they run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tflite

from toolkit.frontend.tflite.multiplier import tables
from toolkit.frontend.tflite.site import DOMAIN, Site
from toolkit.ir.types import DTYPES


def same_pads(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """Return the padding before and after an axis that gives ceil(size / stride) windows."""
    out = -(-size // stride)
    total = max((out - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2


def window_attrs(site: Site, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> dict[str, Any]:
    """Return the attributes of windows over height and width, as strides and padding say."""
    strides = (site.option("StrideH"), site.option("StrideW"))
    dilations = (1, 1)
    if hasattr(site.op.options, "DilationHFactor"):
        dilations = (site.option("DilationHFactor"), site.option("DilationWFactor"))
    if min(*strides, *dilations, *kernel) < 1:
        raise site.refuse(
            f"strides {strides}, dilations {dilations} or kernel {kernel} not positive"
        )
    pads = [(0, 0), (0, 0)]
    if site.option("Padding") == tflite.Padding.SAME:
        pads = [
            same_pads(n, k, s, d)
            for n, k, s, d in zip(spatial, kernel, strides, dilations, strict=True)
        ]
    return {
        "strides": strides,
        "dilations": dilations,
        "pads": (pads[0][0], pads[1][0], pads[0][1], pads[1][1]),
        "nestling_layout": "NHWC",
    }


def conv_2d(site: Site) -> list[str]:
    """y[n, h, w, o] = act(b[o] + sum x[n, h', w', i] * w[o, kh, kw, i]), in groups."""
    weight = site.value(1, "weights")
    if weight.ndim != 4 or len(site.shape(0)) != 4:
        raise site.refuse(
            f"data {list(site.shape(0))} and weights {list(weight.shape)} need four axes"
        )
    channels = site.shape(0)[3]
    if weight.shape[3] == 0 or channels % weight.shape[3]:
        raise site.refuse(f"{channels} channels do not divide into groups of {weight.shape[3]}")
    return _windows(site, weight.transpose(1, 2, 3, 0), channels // weight.shape[3], axis=0)


def depthwise_conv_2d(site: Site) -> list[str]:
    """As CONV_2D with a group a channel; weights [1, kh, kw, channels * multiplier]."""
    weight = site.value(1, "weights")
    if weight.ndim != 4 or len(site.shape(0)) != 4 or weight.shape[0] != 1:
        raise site.refuse(f"weights {list(weight.shape)} do not fit data {list(site.shape(0))}")
    return _windows(site, weight.transpose(1, 2, 0, 3), site.shape(0)[3], axis=3)


def _windows(site: Site, weight: np.ndarray, group: int, axis: int) -> list[str]:
    """Convolve with weights [kh, kw, i, o]; `axis` is that of the channels in the file."""
    attrs = window_attrs(site, site.shape(0)[1:3], weight.shape[:2]) | {"group": group}
    match site.kind():
        case "float":
            w = site.const(weight, site.info(1).name)
            return [site.activated(site.one("Conv", site.name(0), w, site.name(2), **attrs))]
        case "integer":
            return [_integer(site, weight, "ConvInteger", attrs, axis)]
    return [_hybrid(site, weight, "ConvInteger", attrs, axis)]


def fully_connected(site: Site) -> list[str]:
    """y = act(x w' + b), x flattened to rows as long as those of the weights [o, i]."""
    weight = site.value(1, "weights")
    if weight.ndim != 2:
        raise site.refuse(f"weights {list(weight.shape)} need two axes")
    if site.option("WeightsFormat"):
        raise site.refuse("its weights are shuffled")
    shape = site.shape(0)
    x = site.name(0)
    size = int(np.prod(shape, dtype=np.int64))
    keep = bool(site.option("KeepNumDims"))
    if weight.shape[1] == 0 or size % weight.shape[1]:
        raise site.refuse(f"data {list(shape)} does not divide into rows of {weight.shape[1]}")
    rows = size // weight.shape[1]
    if shape != (rows, weight.shape[1]):
        x = site.one("Reshape", x, site.const(np.array([rows, weight.shape[1]]), "rows", "int64"))
    transposed = np.ascontiguousarray(weight.T)
    match site.kind():
        case "float":
            y = site.one("MatMul", x, site.const(transposed, site.info(1).name))
            if site.has(2):
                y = site.one("Add", y, site.name(2))
            y = site.activated(y)
        case "integer":
            y = _integer(site, transposed, "MatMulInteger", {}, 0, x)
        case _:
            y = _hybrid(site, transposed, "MatMulInteger", {}, 0, x)
    if keep and len(shape) != 2:
        wanted = np.array([*shape[:-1], weight.shape[0]])
        y = site.one("Reshape", y, site.const(wanted, "shape", "int64"))
    return [y]


def _weight_scales(site: Site, count: int, axis: int) -> np.ndarray:
    """Return the scale of each output channel of the weights, as float32."""
    quant = site.quant(site.info(1))
    if len(quant.scale) not in (1, count):
        raise site.refuse(f"{len(quant.scale)} scales do not fit {count} output channels")
    if len(quant.scale) > 1 and quant.axis != axis:
        raise site.refuse(f"its weights are quantised along axis {quant.axis}, not {axis}")
    return quant.scale


def _integer(
    site: Site, weight: np.ndarray, op: str, attrs: dict[str, Any], axis: int, x: str = ""
) -> str:
    """Return requantised int32 sums of (x - zero) * (w - zero) + bias, weights [.., o]."""
    x = x or site.name(0)
    x_scale, x_zero = site.per_tensor(site.info(0))
    y_scale, _ = site.per_tensor(site.out())
    channels = weight.shape[-1]
    w_scales = _weight_scales(site, channels, axis)
    w_zeros = np.unique(site.quant(site.info(1)).zero_point)
    if len(w_zeros) != 1:
        raise site.refuse("its weights have several zero points")
    if site.info(0).dtype not in ("int8", "uint8") or site.info(1).dtype not in ("int8", "uint8"):
        raise site.refuse(f"{site.info(0).dtype} data is not supported yet")
    bias = np.zeros(channels, np.int64)
    if site.has(2):
        bias = bias + site.value(2, "bias").astype(np.int64)
    zeros = [x_zero, int(w_zeros[0])]
    if zeros[1] == 0 and not any(attrs.get("pads", ())):
        taps = weight.astype(np.int64).reshape(-1, channels).sum(axis=0)
        bias, zeros[0] = bias - zeros[0] * taps, 0
    operands = [
        site.const(np.array(z), "zero_point", site.info(i).dtype) if z else ""
        for i, z in enumerate(zeros)
    ]
    w = site.const(weight, site.info(1).name)
    acc = site.one(op, x, w, *operands, **attrs)
    wrapped = bias.astype(np.uint64).astype(np.uint32).view(np.int32)
    if wrapped.any():
        acc = site.one("Add", acc, site.const(wrapped, f"{site.out().name}/bias"))
    # TFLite multiplies in double; of a dense layer, and of uint8, the first two scales in float.
    if op == "ConvInteger" and site.info(1).dtype == "int8":
        reals = np.float64(x_scale) * w_scales.astype(np.float64) / np.float64(y_scale)
    else:
        reals = (x_scale * w_scales).astype(np.float64) / np.float64(y_scale)
    return requantized(site, acc, reals, single=op == "MatMulInteger")


def requantized(site: Site, acc: str, reals: np.ndarray, *, single: bool = False) -> str:
    """Bring int32 sums to the scale of the result: acc * real + zero point, within its limits.

    `single`: by one rounding, as LiteRT 2's reference of FULLY_CONNECTED (older ones round twice).
    """
    _, y_zero = site.per_tensor(site.out())
    low, high = site.limits()
    multiplier, shift = tables(reals)
    return site.own(
        "Requantize", acc, site.const(multiplier, "multiplier"), site.const(shift, "shift"),
        site.const(np.array(y_zero), "zero_point", "int32"),
        low=low, high=high, dtype=site.out().dtype, single=int(single),
    )  # fmt: skip


def _hybrid(
    site: Site, weight: np.ndarray, op: str, attrs: dict[str, Any], axis: int, x: str = ""
) -> str:
    """Return float sums of data that is quantised to int8, batch by batch, when the operator runs.

    y = act(sum(q * w) * (scale of the batch * scale of the weights) + bias).
    """
    x = x or site.name(0)
    if site.info(1).dtype != "int8":
        raise site.refuse(f"float data with {site.info(1).dtype} weights is not supported")
    scales = _weight_scales(site, weight.shape[-1], axis)
    if site.option("AsymmetricQuantizeInputs") if op == "MatMulInteger" else len(scales) > 1:
        raise site.refuse("float data that is quantised with a zero point is not supported yet")
    if site.quant(site.info(1)).zero_point.any():
        raise site.refuse("its weights have a zero point")
    q, scale = site.emit("QuantizeBatches", x, domain=DOMAIN, count=2)
    acc = site.one(op, q, site.const(weight, site.info(1).name), **attrs)
    total = site.one("Cast", acc, to=DTYPES["float32"].onnx)
    rank = len(site.type(acc).shape)
    batches = site.const(np.array([-1] + [1] * (rank - 1)), "batches", "int64")
    scale = site.one("Mul", site.one("Reshape", scale, batches), site.const(scales, "scales"))
    y = site.one("Mul", total, scale)
    return site.activated(site.one("Add", y, site.name(2)) if site.has(2) else y)


def transpose_conv(site: Site) -> list[str]:
    """y[n, h s + kh - p, ...] += x[n, h, w, i] * w[o, kh, kw, i], in the shape of operand 0."""
    weight, shape = site.value(1, "weights"), site.ints(0, "shape of the result")
    info, x = site.info(2), site.name(2)
    data = site.type(x).shape
    if weight.ndim != 4 or len(data) != 4 or len(shape) != 4 or weight.shape[3] != data[3]:
        raise site.refuse(f"weights {list(weight.shape)} do not fit data {list(data)}")
    strides = (site.option("StrideH"), site.option("StrideW"))
    same = site.option("Padding") == tflite.Padding.SAME
    pads, extra = [(0, 0), (0, 0)], [0, 0]
    for a, (size, out, kernel, stride) in enumerate(
        zip(data[1:3], shape[1:3], weight.shape[1:3], strides, strict=True)
    ):
        before = same_pads(out, kernel, stride, 1)[0] if same else 0
        after = (size - 1) * stride + kernel - before - out
        pads[a], extra[a] = (before, max(after, 0)), max(-after, 0)
    attrs: dict[str, Any] = {
        "strides": strides, "output_padding": tuple(extra), "nestling_layout": "NHWC",
        "pads": (pads[0][0], pads[1][0], pads[0][1], pads[1][1]),
    }  # fmt: skip
    turned = weight.transpose(1, 2, 3, 0)
    if info.dtype == weight.dtype == "float32":
        w = site.const(turned, site.info(1).name)
        return [site.activated(site.one("ConvTranspose", x, w, site.name(3), **attrs))]
    if info.dtype != "int8" or weight.dtype != np.int8:
        raise site.refuse(f"{info.dtype} data with {weight.dtype} weights is not supported yet")
    x_scale, x_zero = site.per_tensor(info)
    scales = _weight_scales(site, weight.shape[0], 0)
    if site.quant(site.info(1)).zero_point.any():
        raise site.refuse("its weights have a zero point")
    wide = site.one("Cast", x, to=DTYPES["int32"].onnx)
    if x_zero:
        wide = site.one("Sub", wide, site.const(np.array(x_zero, np.int32), "zero_point"))
    w = site.const(turned.astype(np.int32), site.info(1).name)
    acc = site.one("ConvTranspose", wide, w, site.name(3), **attrs)
    y_scale, _ = site.per_tensor(site.out())
    reals = np.float64(x_scale) * scales.astype(np.float64) / np.float64(y_scale)
    return [requantized(site, acc, reals)]


def batch_matmul(site: Site) -> list[str]:
    """x y, matrices of the last two axes, each as it is or transposed."""
    operands = []
    for position, option in ((0, "AdjX"), (1, "AdjY")):
        name, rank = site.name(position), len(site.shape(position))
        if site.option(option):
            name = site.one("Transpose", name, perm=(*range(rank - 2), rank - 1, rank - 2))
        operands.append(name)
    kinds = {site.info(0).dtype, site.info(1).dtype}
    if kinds == {"float32"}:
        return [site.one("MatMul", *operands)]
    if kinds != {"int8"}:
        raise site.refuse(f"operands of {' and '.join(sorted(kinds))} are not supported yet")
    (x_scale, x_zero), (w_scale, w_zero) = (site.per_tensor(site.info(i)) for i in (0, 1))
    zeros = [
        site.const(np.array(zero, np.int8), "zero_point") if zero else ""
        for zero in (x_zero, w_zero)
    ]
    acc = site.one("MatMulInteger", *operands, *zeros)
    y_scale, _ = site.per_tensor(site.out())
    real = np.array([np.float64(x_scale * w_scale) / np.float64(y_scale)])
    return [requantized(site, acc, real)]


TABLE = {
    "TRANSPOSE_CONV": transpose_conv,
    "BATCH_MATMUL": batch_matmul,
    "CONV_2D": conv_2d,
    "DEPTHWISE_CONV_2D": depthwise_conv_2d,
    "FULLY_CONNECTED": fully_connected,
}
