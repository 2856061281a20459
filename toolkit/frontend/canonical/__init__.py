"""One form per operator: every opset's spelling becomes the newest one, with static operands.

`canonicalise` maps a node, as imported at some opset, to nodes that mean the same under the newest
opset (`shapes.OPSET`).  `RULES` has one function an operator; an operator that is not in it means
the same in every opset from 7 on, or only gained types and optional operands.  What `ops` gets:

- every `axis` (`AXIS`): explicit, non-negative.
- Reduce*: `axes` a constant input, complete, sorted, non-negative; `noop_with_empty_axes` is
  gone, or 1 and then without axes (Sum, Mean, Max, Min and Prod become Identity there).
- Squeeze, Unsqueeze, Split, Pad, Slice, Clip, TopK, DFT: what was an attribute is an input:
  `axes`; `split` sizes; `pads` for all axes (and the value only if not 0); starts, ends, axes and
  steps, all four; min and max of the data's type; `K`; `axis`.
- Reshape, Expand: a constant concrete shape without -1 (and 0 only for empty tensors, then with
  `allowzero=1`); for Expand it is the output's.  Range: constant operands are scalars.
- Conv, ConvTranspose, ConvInteger, QLinearConv, MaxPool, AveragePool, LpPool: `kernel_shape`,
  `strides`, `dilations`, `pads` (and `group`, `output_padding`) explicit; `auto_pad` and
  `output_shape` are gone.
- Softmax, LogSoftmax, Hardmax: `axis`; `coerce_2d=1` where the meaning before opset 13 (flatten
  to 2-D at `axis`) differs from the newest one.
- QuantizeLinear, DequantizeLinear: a scale of one element is a scalar, and then there is no `axis`.
- BatchNormalization: 5 inputs, 1 output, `epsilon`, unless `training_mode=1`; the per-activation
  form of opset 7 (`spatial=0`) is spelled out in Sub, Add, Sqrt, Div, Mul, Add.
- Dropout: Identity; its mask is constant.
- Upsample, Resize 10: Resize, asymmetric, nearest_mode floor (ceil where it shrinks). Resize:
  absent operands are '', never empty tensors; `axes` is gone unless with a
  keep_aspect_ratio_policy.
- GroupNormalization 18: scale and bias for each channel, as from 21 on.
- GridSample, RoiAlign, Scatter, CastLike (Cast), Flatten, Transpose, MeanVarianceNormalization:
  the newest names, defaults explicit.
- com.microsoft: quantised functions and moves are DequantizeLinear, the operator and
  QuantizeLinear; integer products to float are spelled out; the channel is axis 1.
- Sum, Max, Min, Mean of one operand, Cast to the same type, OptionalGetElement of a tensor:
  Identity.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.frontend.canonical import microsoft
from toolkit.frontend.canonical.before_7 import BEFORE_7
from toolkit.frontend.canonical.misc import (
    cast,
    cast_like,
    einsum,
    gemm,
    optional_get,
    optional_has,
    quantize_linear,
    scatter,
    variadic,
)
from toolkit.frontend.canonical.norm import batch_norm, group_norm, mvn, softmax
from toolkit.frontend.canonical.operands import (
    clip,
    dft,
    dropout,
    pad,
    range_,
    reduce,
    slice_,
    split,
    squeeze,
    stft,
    topk,
    unsqueeze,
)
from toolkit.frontend.canonical.resample import grid_sample, resize, roi_align, upsample
from toolkit.frontend.canonical.site import explicit_axis, Rule, Site
from toolkit.frontend.canonical.views import expand, flatten, reshape, transpose
from toolkit.frontend.canonical.windows import conv_transpose, global_free, windowed
from toolkit.ir.graph import Node

RULES: Mapping[str, Rule] = {
    "AveragePool": windowed(None),
    "BatchNormalization": batch_norm,
    "Cast": cast,
    "CastLike": cast_like,
    "Clip": clip,
    "Conv": windowed(1),
    "ConvInteger": windowed(1),
    "ConvTranspose": conv_transpose,
    "DFT": dft,
    "DequantizeLinear": quantize_linear,
    "Dropout": dropout,
    "Einsum": einsum,
    "Expand": expand,
    "Flatten": flatten,
    "Gemm": gemm,
    "GlobalAveragePool": global_free,
    "GlobalMaxPool": global_free,
    "GridSample": grid_sample,
    "GroupNormalization": group_norm,
    "Hardmax": softmax,
    "LogSoftmax": softmax,
    "LpPool": windowed(None),
    "Max": variadic,
    "MaxPool": windowed(None),
    "Mean": variadic,
    "MeanVarianceNormalization": mvn,
    "Min": variadic,
    "OptionalGetElement": optional_get,
    "OptionalHasElement": optional_has,
    "Pad": pad,
    "QLinearConv": windowed(3),
    "QuantizeLinear": quantize_linear,
    "Range": range_,
    "Reshape": reshape,
    "Resize": resize,
    "RoiAlign": roi_align,
    "STFT": stft,
    "Scatter": scatter,
    "Slice": slice_,
    "Softmax": softmax,
    "Split": split,
    "Squeeze": squeeze,
    "Sum": variadic,
    "TopK": topk,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
    "Upsample": upsample,
    **{
        f"Reduce{kind}": reduce
        for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
    },
}


def canonicalise(site: Site) -> list[Node]:
    """Return the nodes that stand for `site.node`; the last ones write its outputs.

    Raises `ModelError` or `UnsupportedError` with a reason that does not name the node.
    """
    node = site.node
    if node.domain:
        foreign = microsoft.RULES.get(node.op) if node.domain == "com.microsoft" else None
        return [node] if foreign is None else foreign(site)
    rule = RULES.get(node.op)
    if site.opset < 7 and node.op in BEFORE_7:
        rule = BEFORE_7[node.op]
    return [explicit_axis(site, node)] if rule is None else rule(site)
