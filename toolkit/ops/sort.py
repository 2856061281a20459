"""TopK.  Unique, NonZero and NonMaxSuppression give as many elements as the data decides: refused.

Meaning: the ONNX operator specification.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from toolkit.ir.compute import opaque, Tensor
from toolkit.ir.expr import Const
from toolkit.ir.types import TensorType
from toolkit.ops.op import Ctx, Op


def _top_k(ctx: Ctx, x: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """Best first, whatever `sorted` says; of equal elements the lower index comes first.

    NaN counts as larger than any number.
    """
    axis = ctx.axis(ctx.attr("axis", -1), x.rank)
    count = ctx.ints(k, "K")[0]
    if x.rank == 0 or not 0 <= count <= x.shape[axis]:
        raise ctx.refuse(f"K={count} does not fit a tensor of shape {list(x.shape)}, axis {axis}.")
    largest = int(ctx.attr("largest", 1))
    n = x.shape[axis]
    outer, inner = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])

    def reference(data: np.ndarray, *_: Any) -> tuple[np.ndarray, np.ndarray]:
        rows = np.moveaxis(data, axis, -1)
        position = np.arange(n)
        order = np.empty(rows.shape, np.int64)
        for at in np.ndindex(rows.shape[:-1]):
            row = rows[at]
            ranked = np.argsort(row, kind="stable")
            if largest:  # equal elements stay in the order of their indices
                ranked = position[::-1][np.argsort(row[::-1], kind="stable")][::-1]
            order[at] = ranked
        best = order[..., :count]
        values = np.take_along_axis(rows, best, axis=-1)
        return np.moveaxis(values, -1, axis), np.moveaxis(best, -1, axis)

    return opaque(
        f"nst_topk_{x.dtype}",
        (x,),
        [TensorType(shape, x.dtype), TensorType(shape, "int64")],
        reference,
        params=tuple(Const("int32", v) for v in (outer, n, inner, count, largest)),
        name="top",
    )


def _data_dependent(why: str) -> Op:
    def op(ctx: Ctx, *xs: Tensor) -> Tensor:
        raise ctx.refuse(
            f"{why} at run time, but tensors have static shapes.",
            "cut the model before this node, or use TopK, which has a fixed number of results.",
        )

    return Op(op)


SORT_OPS: dict[str, Op] = {
    "TopK": Op(_top_k),
    "Unique": _data_dependent("how many elements differ is known only"),
    "NonZero": _data_dependent("how many elements are not zero is known only"),
    "NonMaxSuppression": _data_dependent("how many boxes remain is known only"),
}
