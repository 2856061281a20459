"""Constant operands as integers: weights of 8 bits, biases of 32 bits on the scale of the sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toolkit.quantization.plan import Layer
from toolkit.quantization.ranges import LARGEST_SCALE, SMALLEST_SCALE

WEIGHT_LIMIT = 127
"""Weights lie in -127..127, as in TFLite's quantisation specification."""

BIAS_LIMIT = 2.0**28
"""No bias is larger; where one would be, its channel's weights take a larger scale."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredWeights:
    """Weights = stored * scale; `scale` is float32, one value along `axis`, or a scalar."""

    stored: np.ndarray
    scale: np.ndarray
    axis: int | None

    @property
    def real(self) -> np.ndarray:
        """What the integers stand for, float32."""
        value: np.ndarray = self.stored.astype(np.float32) * _along(
            self.scale, self.axis, self.stored.ndim
        )
        return value


def channel_axis(layer: Layer, rank: int) -> int | None:
    """Return the axis of weights that is the channels of the result; None if there is not one."""
    node = layer.node
    match node.op:
        case "Conv":
            return 0
        case "ConvTranspose":
            return 1 if node.attrs.get("group", 1) == 1 else None
        case "Gemm":
            return 0 if node.attrs.get("transB", 0) else 1
        case "MatMul":
            return 1 if layer.weights == 1 and rank == 2 else None
    return None


def result_axis(layer: Layer, rank: int) -> int:
    """Return the axis of the result that is its channels."""
    return 1 if layer.node.op in ("Conv", "ConvTranspose") else rank - 1


def store_weights(
    weights: np.ndarray, axis: int | None, *, bias: np.ndarray | None = None, x_scale: float = 1.0
) -> StoredWeights:
    """Quantise symmetrically, along `axis` or all together.

    `bias` and the scale of the other operand keep scales large enough for the bias to fit.
    """
    w = weights.astype(np.float64)
    others = tuple(a for a in range(w.ndim) if a != axis)
    reach = np.abs(w).max(axis=None if axis is None else others, initial=0.0)
    scale = np.asarray(reach / WEIGHT_LIMIT)
    if bias is not None:
        least = np.abs(bias.reshape(-1).astype(np.float64)) / (x_scale * BIAS_LIMIT)
        scale = np.maximum(scale, least if axis is not None else least.max(initial=0.0))
    scale = np.where(scale > 0, scale, 1.0).astype(np.float32)
    scale = np.clip(scale, np.float32(SMALLEST_SCALE), np.float32(LARGEST_SCALE))
    ratio = np.rint(w / _along(scale.astype(np.float64), axis, w.ndim))
    stored = np.clip(ratio, -WEIGHT_LIMIT, WEIGHT_LIMIT).astype(np.int8)
    return StoredWeights(stored, scale, axis)


def store_bias(bias: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return a bias as int32 multiples of `scale`, the product of both operands' scales."""
    ratio = np.rint(bias.reshape(-1).astype(np.float64) / scale.astype(np.float64))
    limits = np.iinfo(np.int32)
    return np.clip(ratio, limits.min, limits.max).astype(np.int32)


def _along(scale: np.ndarray, axis: int | None, rank: int) -> np.ndarray:
    """Return a scale that broadcasts along `axis` of a tensor of `rank`."""
    if axis is None:
        return scale
    return scale.reshape(tuple(-1 if a == axis else 1 for a in range(rank)))
