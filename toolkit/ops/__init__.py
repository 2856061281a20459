"""Operators: type rule and loop nest of each, as compute expressions, in family files.

To add one: write it in its family file and add one line to the family's table.
"""

from __future__ import annotations

from toolkit.ops.conv import CONV_OPS
from toolkit.ops.elementwise import ELEMENTWISE_OPS
from toolkit.ops.gather import GATHER_OPS
from toolkit.ops.half import HALF_OPS
from toolkit.ops.matmul import MATMUL_OPS
from toolkit.ops.norm import NORM_OPS
from toolkit.ops.op import apply_op, Ctx, infer_graph, infer_node, Op
from toolkit.ops.pool import POOL_OPS
from toolkit.ops.quant import QUANT_OPS
from toolkit.ops.quant_fixed import FIXED_OPS
from toolkit.ops.quant_microsoft import MICROSOFT_OPS
from toolkit.ops.recurrent import RECURRENT_OPS
from toolkit.ops.reduce import REDUCE_OPS
from toolkit.ops.resize import RESIZE_OPS
from toolkit.ops.sample import SAMPLE_OPS
from toolkit.ops.shape import SHAPE_OPS
from toolkit.ops.signal import SIGNAL_OPS
from toolkit.ops.sort import SORT_OPS
from toolkit.ops.tflite import TFLITE_OPS
from toolkit.ops.tflite_lstm import TFLITE_LSTM_OPS
from toolkit.ops.views import VIEW_OPS

OPS: dict[str, Op] = {
    **ELEMENTWISE_OPS,
    **MATMUL_OPS,
    **VIEW_OPS,
    **CONV_OPS,
    **POOL_OPS,
    **GATHER_OPS,
    **SHAPE_OPS,
    **RESIZE_OPS,
    **SAMPLE_OPS,
    **SORT_OPS,
    **QUANT_OPS,
    **FIXED_OPS,
    **HALF_OPS,
    **MICROSOFT_OPS,
    **REDUCE_OPS,
    **NORM_OPS,
    **RECURRENT_OPS,
    **SIGNAL_OPS,
    **TFLITE_OPS,
    **TFLITE_LSTM_OPS,
}

__all__ = ["OPS", "Ctx", "Op", "apply_op", "infer_graph", "infer_node"]
