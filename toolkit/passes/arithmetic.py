"""Requantise by what suits a core, wherever that is proven equal to what was imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from toolkit.ir.graph import Graph
from toolkit.ops.op import Op
from toolkit.passes import fixed, qlinear
from toolkit.passes.edit import rewrite, Rule
from toolkit.targets.isa import Isa

Arithmetic = Literal["float", "long", "high"]
"""What suits a core: in lanes long sums, and float32 where onnxruntime has it ("float"); long
multiplications; or high words of products in lanes."""


def arithmetic_of(isa: Isa) -> Arithmetic:
    """Return what an instruction set requantises by.

    A multiplication in 64 bits costs less than conversions to and from float, without vectors and
    in even and odd lanes of those of x86 and AArch64; Helium has rounded high words of products.
    """
    if not isa.vectors:
        return "long"
    return "high" if isa.name == "helium" else "float"


def requantise(graph: Graph, ops: Mapping[str, Op], *, arithmetic: Arithmetic) -> Graph:
    """Replace requantisations by equal ones that suit a core; operators on integers by their parts.

    TFLite's are replaced by one long multiplication where that is proven; onnxruntime's, which are
    in float32, where `arithmetic` is 'long'.
    """
    long = arithmetic == "long"
    rules: dict[str, Sequence[Rule]] = {
        "tflite:Requantize": (fixed.half_up if arithmetic == "high" else fixed.tflite,),
        "tflite:Add": (fixed.tflite_sum,),
        "QLinearConv": (partial(qlinear.conv, long=long),),
        "QLinearMatMul": (partial(qlinear.matmul, long=long),),
        "com.microsoft:QGemm": (partial(qlinear.gemm, long=long),),
        "com.microsoft:QLinearAdd": (qlinear.add,),
        "com.microsoft:QLinearMul": (partial(qlinear.mul, long=long),),
    }
    if not any(n.op_id in rules for n in graph.nodes):
        return graph
    return rewrite(graph, ops, rules)


__all__ = ["Arithmetic", "arithmetic_of", "requantise"]
