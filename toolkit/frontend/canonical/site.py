"""A node where it stands: what a canonicalising rule may ask, and what all rules use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.errors import ModelError
from toolkit.ir.graph import Node
from toolkit.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Site:
    """A node where it stands: its opset, and what is known of the tensors it reads."""

    node: Node
    opset: int
    type_of: Callable[[str], TensorType]
    value_of: Callable[[str], np.ndarray | None]
    new_const: Callable[[np.ndarray, str], str]
    new_name: Callable[[str], str]
    note: Callable[[str], None]
    whole_value_of: Callable[[str], np.ndarray | None] = lambda name: None
    """As `value_of`, of constants of any size."""

    def operand(self, position: int) -> str:
        """Name of an input, '' when absent."""
        inputs = self.node.inputs
        return inputs[position] if position < len(inputs) else ""

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Shape of an input that must be there."""
        name = self.operand(position)
        if not name:
            raise ModelError(f"input {position} is required")
        return self.type_of(name).shape

    def known(self, position: int) -> np.ndarray | None:
        """Value of an input, None when absent or known only at run time."""
        name = self.operand(position)
        return self.value_of(name) if name else None

    def int64(self, values: Any, hint: str) -> str:
        """Name of a new constant that holds a list of integers."""
        return self.new_const(np.array(values, dtype=np.int64).reshape(-1), hint)

    def attr_int(self, name: str, default: int) -> int:
        value = self.node.attrs.get(name, default)
        if not isinstance(value, int):
            raise ModelError(f"attribute '{name}' must be an integer")
        return value

    def attr_ints(self, name: str) -> tuple[int, ...] | None:
        value = self.node.attrs.get(name)
        if value is not None and not (
            isinstance(value, tuple) and all(isinstance(v, int) for v in value)
        ):
            raise ModelError(f"attribute '{name}' must be a list of integers")
        return value

    def attr_float(self, name: str, default: float) -> float:
        value = self.node.attrs.get(name, default)
        if not isinstance(value, int | float):
            raise ModelError(f"attribute '{name}' must be a number")
        return float(value)

    def attr_str(self, name: str, default: str) -> str:
        value = self.node.attrs.get(name, default)
        if not isinstance(value, str):
            raise ModelError(f"attribute '{name}' must be a string")
        return value

    def axis(self, value: int, rank: int, what: str = "axis") -> int:
        """Non-negative form of an axis of a tensor of that rank."""
        if not -rank <= value < rank:
            raise ModelError(f"{what} {value} is out of range for rank {rank}")
        return value % rank


Rule = Callable[[Site], list[Node]]


def changed(node: Node, drop: str = "", **attrs: Any) -> Node:
    """Return the node with attributes dropped and set."""
    kept = {k: v for k, v in node.attrs.items() if k not in drop.split()}
    return node.with_(attrs=kept | attrs)


def identity(node: Node) -> Node:
    """Return Identity in the place of a node."""
    return Node(node.name, "Identity", node.inputs[:1], node.outputs[:1])


AXIS: Mapping[str, int] = {
    "ArgMax": 0,
    "ArgMin": 0,
    "Concat": 0,
    "DequantizeLinear": 1,
    "Gather": 0,
    "GatherElements": 0,
    "LayerNormalization": -1,
    "LpNormalization": -1,
    "QuantizeLinear": 1,
    "RMSNormalization": -1,
    "ScatterElements": 0,
    "SplitToSequence": 0,
    "TopK": -1,
}
"""Operators whose `axis` counts the axes of the first input, and its default."""


def explicit_axis(site: Site, node: Node) -> Node:
    """Return the node with `axis` given and non-negative, if it has one."""
    default = AXIS.get(node.op)
    if default is None:
        return node
    rank = len(site.shape(0))
    value = site.attr_int("axis", default)
    return changed(node, axis=site.axis(value, rank))
