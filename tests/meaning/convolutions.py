"""Convolutions of random shape, as the operator builds them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder
from toolkit.ir.expr import maximum
from toolkit.ir.graph import Node
from toolkit.ir.loop import PrimFunc
from toolkit.ops import OPS
from toolkit.ops.op import apply_op


def convolution(
    size: Sequence[int],
    channels: tuple[int, int],
    *,
    batch: int = 1,
    pads: Sequence[int] = (1, 1, 1, 1),
    kernel: Sequence[int] = (3, 3),
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    layout: str = "NHWC",
    bias: bool = True,
    dtype: str = "float32",
    constant: bool = True,
) -> PrimFunc:
    """Return max(conv(x, w) + b, 0), or conv(x, w) alone without `bias`, as parameters x, w, b."""
    inner, outer = channels
    last = layout == "NHWC"
    shape = (batch, *size, inner) if last else (batch, inner, *size)
    weights = (*kernel, inner, outer) if last else (outer, inner, *kernel)
    x = placeholder(shape, dtype, "x")
    w = placeholder(weights, dtype, "w", data=np.zeros(weights, dtype) if constant else None)
    b = placeholder((outer,), dtype, "b", data=np.zeros(outer, dtype))
    attrs = {
        "nestling_layout": layout,
        "pads": tuple(pads),
        "strides": tuple(strides),
        "dilations": tuple(dilations),
    }
    node = Node("conv", "Conv", ("x", "w", *(("b",) if bias else ())), ("y",), attrs)
    (y,) = apply_op(OPS[node.op_id], node, [x, w, *([b] if bias else [])], 22)
    assert y is not None
    if not bias:
        return build([y], [x, w])
    relu = compute(y.shape, lambda n, i, j, k: maximum(y[n, i, j, k], 0.0), "z")
    return build([relu], [x, w, b])


def float_inputs(func: PrimFunc, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random values, weights scaled so that results are about as large as x."""
    result = {}
    for buffer in func.inputs:
        values = rng.standard_normal(buffer.shape)
        if buffer.name == "w":
            values *= np.sqrt(buffer.shape[-1] / buffer.type.size)
        result[buffer.name] = values.astype(buffer.dtype)
    return result


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest difference over the largest magnitude of what is wanted."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())
