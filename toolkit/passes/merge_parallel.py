"""Products of one operand with several constants become one product, cut behind.

One kernel then reads the operand once and fills its vectors; the cuts join what reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import is_float, TensorType
from toolkit.ops.op import Op
from toolkit.passes.edit import Edit
from toolkit.passes.simplify import POINTWISE, REDUCTIONS

WIDE = 64
"""Output channels from which a product alone fills the vectors of every target."""
GROWTH = 4
"""Bytes that may be alive at once after the merged product, in bytes of its operand."""


def merge_parallel(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """f(x, v), f(x, w) -> Split(f(x, Concat(v, w))) for Conv, MatMul, Gemm of constant weights.

    Followed by the same activations, these move before the Split.  Only where a product is narrow,
    and every result is read once, by what can read a part of a tensor in place.
    """
    edit = Edit(graph, ops)
    for name in [*graph.inputs, *(o for n in graph.nodes for o in n.outputs if o)]:
        alike: dict[tuple[Any, ...], list[Node]] = {}
        for node in edit.readers(name) if edit.uses(name) > 1 else ():
            key = _key(edit, node, name)
            if key is not None:
                alike.setdefault(key, []).append(node)
        for nodes in alike.values():
            if len(nodes) > 1 and all(edit.alive(n) for n in nodes):
                _merge(edit, name, nodes)
    return edit.finish()


def _axis(node: Node, rank: int) -> int:
    return 1 if node.op == "Conv" else rank - 1


def _key(edit: Edit, node: Node, name: str) -> tuple[Any, ...] | None:
    """Return what products must share to become one; None for a node that is none."""
    if node.op_id not in ("Conv", "MatMul", "Gemm") or node.inputs.count(name) != 1:
        return None
    attrs = node.attrs
    weight = edit.value(node.inputs[1])
    if node.inputs[0] != name or weight is None or not is_float(str(weight.dtype)):
        return None
    bias = edit.value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if bias is None and len(node.inputs) > 2 and node.inputs[2]:
        return None
    if node.op == "Conv":
        if attrs.get("group", 1) != 1 or attrs.get("nestling_layout"):
            return None
        return ("Conv", weight.shape[1:], tuple(sorted(attrs.items())))
    if weight.ndim != 2 or attrs.get("transA", 0) or attrs.get("transB", 0):
        return None
    if attrs.get("alpha", 1.0) != 1.0 or attrs.get("beta", 1.0) != 1.0:
        return None
    if bias is not None and (bias.ndim > 2 or (bias.ndim == 2 and bias.shape[0] != 1)):
        return None
    return (node.op, weight.shape[:1])


def _merge(edit: Edit, name: str, nodes: Sequence[Node]) -> None:
    """Merge products of `name`, if it pays."""
    first = nodes[0]
    out_shape = edit.shape(first.outputs[0])
    axis = _axis(first, len(out_shape))
    widths = [edit.shape(n.outputs[0])[axis] for n in nodes]
    made = sum(edit.types[n.outputs[0]].nbytes for n in nodes)
    if min(widths) >= WIDE or made > GROWTH * edit.types[name].nbytes:
        return
    outs, chain = _common_chain(edit, [n.outputs[0] for n in nodes])
    if not all(_reads_in_place(edit, out) for out in outs):
        return
    weights = [edit.consts[n.inputs[1]] for n in nodes]
    joined = np.concatenate(weights, axis=0 if first.op == "Conv" else 1)
    inputs = [name, edit.const(joined, f"{first.inputs[1]}.merged")]
    if any(len(n.inputs) > 2 and n.inputs[2] for n in nodes):
        biases = [
            np.broadcast_to(edit.consts[n.inputs[2]].reshape(-1), (width,))
            if len(n.inputs) > 2 and n.inputs[2]
            else np.zeros(width, joined.dtype)
            for n, width in zip(nodes, widths, strict=True)
        ]
        inputs.append(edit.const(np.concatenate(biases), f"{first.outputs[0]}.biases"))
    shape = (*out_shape[:axis], sum(widths), *out_shape[axis + 1 :])
    kind = TensorType(shape, edit.dtype(first.outputs[0]))
    wide = edit.emit(first, first.op, inputs, kind, first.attrs, hint="merged")
    for step in chain:
        wide = edit.emit(first, step.op, (wide, *step.inputs[1:]), kind, step.attrs)
    sizes = edit.ints_const(widths, "split")
    for out in outs:
        maker = edit.producer(out)
        assert maker is not None
        hidden = edit.fresh(f"{out}.apart")
        edit.types[hidden] = edit.types[out]
        edit.replace_output(maker, out, hidden)
    split = Node(f"{first.name}.split", "Split", (wide, sizes), tuple(outs), {"axis": axis})
    edit.insert(split, first)
    edit.sweep_unread()


def _common_chain(edit: Edit, outs: list[str]) -> tuple[list[str], list[Node]]:
    """Follow activations that all results go through; return the last results and one branch's."""
    chain: list[Node] = []
    while True:
        readers = [edit.only_reader(out) for out in outs]
        steps = [r for r in readers if r is not None]
        if len(steps) < len(outs) or not _same_step(edit, steps, outs):
            return outs, chain
        chain.append(steps[0])
        outs = [step.outputs[0] for step in steps]


def _same_step(edit: Edit, steps: Sequence[Node], outs: Sequence[str]) -> bool:
    """Tell whether nodes apply one function of one tensor, and scalars that they share."""
    first = steps[0]
    for step, out in zip(steps, outs, strict=True):
        if step.op not in POINTWISE or step.op != first.op or step.inputs[0] != out:
            return False
        if step.inputs[1:] != first.inputs[1:] or dict(step.attrs) != dict(first.attrs):
            return False
        if any(n and (n not in edit.consts or edit.types[n].size != 1) for n in step.inputs[1:]):
            return False
        if edit.types[step.outputs[0]] != edit.types[out]:
            return False
    return True


def _reads_in_place(edit: Edit, out: str) -> bool:
    """Tell whether the one reader of a result can read it as a part of a larger tensor."""
    reader = edit.only_reader(out)
    if reader is None or reader.domain:
        return False
    if reader.op in ("MatMul", "Gemm"):
        return reader.inputs[0] == out and not reader.attrs.get("transA", 0)
    if reader.op == "Conv":
        return reader.inputs[0] == out and reader.attrs.get("group", 1) == 1
    return reader.op in (*POINTWISE, *REDUCTIONS, "Softmax", "Concat", "Reshape")
