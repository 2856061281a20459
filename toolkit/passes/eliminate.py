"""Nodes that compute nothing: dead code, common subexpressions, and identities."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from toolkit.frontend.reference import RANDOM
from toolkit.ir.graph import Graph, Node, prune
from toolkit.ir.types import FROM_ONNX
from toolkit.ops.op import Op
from toolkit.passes.edit import Edit, Rule

VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that give the same elements in the same order another shape."""


def dead_code(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """Drop nodes and constants that no output needs."""
    return prune(graph)


# -- common subexpressions --------------------------------------------------------------------


def common_subexpressions(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """f(x), f(x) -> one f(x); equal constants -> one constant."""
    edit = Edit(graph, ops)
    first: dict[str, str] = {}
    by_value: dict[tuple[Any, ...], str] = {}
    alike: dict[tuple[Any, ...], list[str]] = {}
    for name, value in graph.consts.items():
        head = (str(value.dtype), value.shape, value.reshape(-1)[:4].tobytes())
        alike.setdefault(head, []).append(name)
    for head, names in alike.items():
        for name in names if len(names) > 1 else ():
            key = (*head, _digest(graph.consts[name]))
            first[name] = by_value.setdefault(key, name)
    for name, kept in first.items():
        if name != kept and not edit.outputs[name]:
            for reader in edit.readers(name):
                inputs = tuple(kept if i == name else i for i in reader.inputs)
                edit.replace(reader, reader.with_(inputs=inputs))
    seen: dict[tuple[Any, ...], tuple[str, ...]] = {}
    for name in [o for node in graph.nodes for o in node.outputs if o]:
        node = edit.producer(name)
        known = None if node is None else _key(node)
        if node is None or known is None or next(o for o in node.outputs if o) != name:
            continue
        earlier = seen.setdefault(known, node.outputs)
        if earlier is node.outputs:
            continue
        pairs = [(o, k) for o, k in zip(node.outputs, earlier, strict=True) if o]
        if any(edit.producer(k) is None or (edit.outputs[o] and edit.outputs[k]) for o, k in pairs):
            continue
        for old, kept in pairs:
            edit.forward(old, kept)
        # A graph output keeps its own name, so the tensors may have changed theirs.
        both = zip(node.outputs, earlier, strict=True)
        seen[known] = tuple(o if edit.producer(o) else k for o, k in both)
    return edit.finish()


def _digest(value: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).digest()


def _key(node: Node) -> tuple[Any, ...] | None:
    if node.op in RANDOM or not node.inputs or node.op_id == "Identity":
        return None
    attrs = []
    for name, value in sorted(node.attrs.items()):
        if isinstance(value, Graph):
            return None
        kind = type(value).__name__
        if isinstance(value, np.ndarray):
            value = (str(value.dtype), value.shape, value.tobytes())
        attrs.append((name, kind, value))
    used = tuple(bool(o) for o in node.outputs)
    return (node.op_id, node.inputs, tuple(attrs), used)


# -- identities -------------------------------------------------------------------------------


def _to_input(edit: Edit, node: Node) -> bool:
    """Let the readers of a node's first output read its first input, where the types agree."""
    source, out = node.inputs[0], node.outputs[0]
    if edit.types[source] != edit.types[out]:
        return False
    return edit.forward(out, source)


def identity(edit: Edit, node: Node) -> bool:
    """Identity(x) -> x."""
    return _to_input(edit, node)


def dropout(edit: Edit, node: Node) -> bool:
    """Dropout(x) at inference, its mask unused -> x."""
    if any(o and edit.uses(o) for o in node.outputs[1:]):
        return False
    training = edit.value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if len(node.inputs) > 2 and node.inputs[2] and (training is None or training.any()):
        return False
    return _to_input(edit, node)


def same_cast(edit: Edit, node: Node) -> bool:
    """Cast(x) to the type x has -> x."""
    same = FROM_ONNX.get(node.attrs.get("to", 0)) == edit.dtype(node.inputs[0])
    return same and _to_input(edit, node)


def same_shape(edit: Edit, node: Node) -> bool:
    """Reshape, Flatten, Squeeze, Unsqueeze, Expand, Tile to the shape x has -> x."""
    return _to_input(edit, node)


def same_order(edit: Edit, node: Node) -> bool:
    """Transpose that moves only axes of extent 1 -> Reshape; one that moves none -> x."""
    shape, perm = edit.shape(node.inputs[0]), node.attrs["perm"]
    if tuple(perm) == tuple(range(len(shape))):
        return _to_input(edit, node)
    moved = [axis for axis in perm if shape[axis] != 1]
    if moved != sorted(moved):
        return False
    target = edit.shape(node.outputs[0])
    return edit.become(node, "Reshape", (node.inputs[0], edit.ints_const(target, "shape")))


def no_pad(edit: Edit, node: Node) -> bool:
    """Pad by nothing -> x."""
    pads = edit.ints(node, 1)
    return pads is not None and not any(pads) and _to_input(edit, node)


def whole_slice(edit: Edit, node: Node) -> bool:
    """Slice of everything, steps 1 -> x."""
    steps = edit.ints(node, 4)
    return steps is not None and all(s == 1 for s in steps) and _to_input(edit, node)


def one_split(edit: Edit, node: Node) -> bool:
    """Split into one part -> x."""
    return len(node.outputs) == 1 and _to_input(edit, node)


def whole_gather(edit: Edit, node: Node) -> bool:
    """Gather of 0..n-1 along an axis of n -> x."""
    index = edit.value(node.inputs[1])
    n = edit.shape(node.inputs[0])[node.attrs["axis"]]
    if index is None or index.shape != (n,) or not np.array_equal(index % n, np.arange(n)):
        return False
    return _to_input(edit, node)


def short_concat(edit: Edit, node: Node) -> bool:
    """Concat(x, empty) -> Concat(x) -> x."""
    kept = tuple(i for i in node.inputs if edit.types[i].size or i == node.inputs[0])
    if len(kept) > 1 and not edit.types[kept[0]].size:
        kept = kept[1:]
    if len(kept) == 1:
        return edit.types[kept[0]] == edit.types[node.outputs[0]] and edit.forward(
            node.outputs[0], kept[0]
        )
    if len(kept) == len(node.inputs):
        return False
    edit.replace(node, node.with_(inputs=kept))
    return True


def of_one(edit: Edit, node: Node) -> bool:
    """Sum, Max, Min, Mean of one operand -> the operand."""
    return len(node.inputs) == 1 and _to_input(edit, node)


def same_size(edit: Edit, node: Node) -> bool:
    """Resize by 1 along every axis -> x."""
    mode = node.attrs.get("coordinate_transformation_mode", "half_pixel")
    if mode in ("tf_crop_and_resize", b"tf_crop_and_resize"):
        return False
    shape = edit.shape(node.inputs[0])
    if len(node.inputs) > 3 and node.inputs[3]:
        sizes = edit.ints(node, 3)
        return sizes == shape and _to_input(edit, node)
    scales = edit.value(node.inputs[2]) if len(node.inputs) > 2 else None
    return scales is not None and bool((scales == 1).all()) and _to_input(edit, node)


def unit_window(edit: Edit, node: Node) -> bool:
    """A pool of one element, stride 1, no padding -> x."""
    attrs = node.attrs
    if len([o for o in node.outputs if o]) != 1 or any(attrs.get("pads", ())):
        return False
    if any(k != 1 for k in attrs["kernel_shape"]) or any(s != 1 for s in attrs.get("strides", ())):
        return False
    return _to_input(edit, node)


def neutral(*, left: bool, right: bool, value: float) -> Rule:
    """x op e -> x for the neutral element e of an operator on that side."""

    def rule(edit: Edit, node: Node) -> bool:
        for position, allowed in ((1, right), (0, left)):
            if not allowed or edit.uniform(node.inputs[position]) != value:
                continue
            other = node.inputs[1 - position]
            if edit.types[other] == edit.types[node.outputs[0]]:
                return edit.forward(node.outputs[0], other)
        return False

    rule.__doc__ = f"x op {value} -> x, the neutral element on either side it may stand."
    return rule


def constant_where(edit: Edit, node: Node) -> bool:
    """Where(true, a, b) -> a; Where(false, a, b) -> b; Where(c, a, a) -> a."""
    cond = edit.uniform(node.inputs[0])
    a, b = node.inputs[1:3]
    if cond is None and a != b:
        return False
    chosen = a if a == b or cond else b
    if edit.types[chosen] != edit.types[node.outputs[0]]:
        return False
    return edit.forward(node.outputs[0], chosen)


IDENTITIES: dict[str, tuple[Rule, ...]] = {
    "Identity": (identity,),
    "Dropout": (dropout,),
    "Cast": (same_cast,),
    **dict.fromkeys((*VIEWS, "Expand", "Tile"), (same_shape,)),
    "Transpose": (same_order,),
    "Pad": (no_pad,),
    "Slice": (whole_slice,),
    "Split": (one_split,),
    "Gather": (whole_gather,),
    "Concat": (short_concat,),
    "Resize": (same_size,),
    **dict.fromkeys(("MaxPool", "AveragePool"), (unit_window,)),
    **dict.fromkeys(("Sum", "Max", "Min", "Mean"), (of_one,)),
    "Add": (neutral(left=True, right=True, value=0),),
    "Sub": (neutral(left=False, right=True, value=0),),
    "Mul": (neutral(left=True, right=True, value=1),),
    "Div": (neutral(left=False, right=True, value=1),),
    "Pow": (neutral(left=False, right=True, value=1),),
    "BitShift": (neutral(left=False, right=True, value=0),),
    "Where": (constant_where,),
}
