"""Operators: type rule and loop nest of each, as compute expressions, in family files.

To add one: write it in its family file and add one line to the family's table.
"""

from __future__ import annotations

from toolkit.ops.elementwise import ELEMENTWISE_OPS
from toolkit.ops.matmul import MATMUL_OPS
from toolkit.ops.op import Ctx, Op, apply_op, infer_graph, infer_node
from toolkit.ops.views import VIEW_OPS

OPS: dict[str, Op] = {
    **ELEMENTWISE_OPS,
    **MATMUL_OPS,
    **VIEW_OPS,
}

__all__ = ["OPS", "Ctx", "Op", "apply_op", "infer_graph", "infer_node"]
