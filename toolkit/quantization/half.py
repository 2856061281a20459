"""Weights as 16-bit floats: half the bytes, computed in float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Never

import numpy as np

from toolkit.errors import NestlingError
from toolkit.ir.graph import Graph
from toolkit.ir.types import TensorType
from toolkit.ops.op import Op
from toolkit.passes.edit import Edit
from toolkit.quantization.plan import find_plan, RECURRENT

TABLES: Mapping[str, tuple[int, ...]] = {"Gather": (0,), "GatherElements": (0,)}

MIN_ELEMENTS = 64
"""Smaller constants stay float32; the frontend widens them when compiling anyway."""


def refuse_half_arithmetic() -> Never:
    """Say that there is no arithmetic of 16-bit floats."""
    raise NestlingError(
        "arithmetic in 16-bit floats is not supported: no code is generated for it, on no core.",
        hint="--fp16 weights halves the flash, and computes in float32",
    )


def with_half_weights(graph: Graph, ops: Mapping[str, Op]) -> tuple[Graph, tuple[str, ...]]:
    """Return a graph whose weights are stored as float16 and widened, and those that do not fit.

    Weights: constants of products, of recurrent operators, and tables that are gathered from.
    """
    positions: dict[str, list[int]] = {}
    for layer in find_plan(graph).layers:
        if layer.weights is not None:
            positions[layer.node.outputs[0]] = [layer.weights]
    for node in graph.nodes:
        for position in (*RECURRENT.get(node.op_id, ()), *TABLES.get(node.op_id, ())):
            positions.setdefault(next(o for o in node.outputs if o), []).append(position)
    edit = Edit(graph, ops)
    widened: dict[str, str] = {}
    large: list[str] = []
    for out, where in positions.items():
        for position in where:
            found = edit.producer(out)
            assert found is not None
            name = found.inputs[position]
            value = edit.value(name)
            if value is None or value.dtype != np.float32 or value.size < MIN_ELEMENTS:
                continue
            if name not in widened:
                with np.errstate(over="ignore"):
                    half = value.astype(np.float16)
                if not np.isfinite(half).all():
                    large.append(name)
                    continue
                bits = edit.const(half.view(np.uint16), f"{name}.half")
                kind = TensorType(value.shape, "float32")
                widened[name] = edit.emit(found, "HalfToFloat", (bits,), kind, hint="widened")
            edit.reread(found, position, widened[name])
    return edit.finish(), tuple(dict.fromkeys(large))
