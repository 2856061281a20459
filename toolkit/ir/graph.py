"""`Graph`: operators on tensors, one of the three frozen values that cross layers.

A graph is in topological order and in single-assignment form: every tensor name is a graph input,
a constant, or the output of exactly one node.  A pass is a function from graph to graph.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toolkit.ir.types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator application.

    `inputs` may hold '' for an absent optional input; `outputs` may hold '' for an unused one.
    `attrs` values are int, float, str, bytes, tuples of these, NumPy arrays, or `Graph`s (branches
    of `If`, bodies of loops and of fused groups).  A subgraph has no implicit captures: the
    frontend makes each outer tensor it reads an explicit input of the node, after the operator's
    own inputs, and a graph input of the subgraph of the same position.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""

    def with_(self, **changes: Any) -> Node:
        """Return a copy with the given fields replaced."""
        return replace(self, **changes)

    @property
    def op_id(self) -> str:
        """The operator's key in `OPS`: 'Conv', or 'domain:Op' outside ai.onnx."""
        return f"{self.domain}:{self.op}" if self.domain else self.op


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A model or subgraph with static shapes.

    `types` holds an entry for every graph input and constant, and after `infer_types` for every
    tensor.  `opset` is the ai.onnx version that gives the nodes their meaning.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    consts: Mapping[str, np.ndarray]
    opset: int = 0

    def with_(self, **changes: Any) -> Graph:
        """Return a copy with the given fields replaced."""
        return replace(self, **changes)

    def producers(self) -> dict[str, Node]:
        """Map each tensor that a node writes to that node."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    def consumers(self) -> dict[str, list[Node]]:
        """Map each tensor to the nodes that read it, once per reading operand, in order."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                if name:
                    readers.setdefault(name, []).append(node)
        return readers

    def use_counts(self) -> Counter[str]:
        """Count how often each tensor is read, a graph output counting as one read."""
        uses = Counter(name for node in self.nodes for name in node.inputs if name)
        uses.update(self.outputs)
        return uses

    def subgraphs(self) -> Iterator[Graph]:
        """Yield every graph held in an attribute, at any depth."""
        for node in self.nodes:
            for value in node.attrs.values():
                if isinstance(value, Graph):
                    yield value
                    yield from value.subgraphs()

    def digest(self) -> str:
        """Return a SHA-256 hex digest of the whole content; equal graphs give equal digests."""
        state = hashlib.sha256()
        _hash_graph(state, self)
        return state.hexdigest()

    def __str__(self) -> str:
        return "\n".join(graph_lines(self))


def _hash_value(state: Any, value: Any) -> None:
    if isinstance(value, Graph):
        _hash_graph(state, value)
    elif isinstance(value, np.ndarray):
        state.update(f"{value.dtype}{value.shape}".encode())
        state.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, tuple | list):
        for item in value:
            _hash_value(state, item)
    else:
        state.update(repr(value).encode())
    state.update(b";")


def _hash_graph(state: Any, graph: Graph) -> None:
    state.update(repr((graph.opset, graph.inputs, graph.outputs)).encode())
    for name in graph.inputs:
        state.update(str(graph.types.get(name)).encode())
    for name in sorted(graph.consts):
        state.update(name.encode())
        _hash_value(state, graph.consts[name])
    for node in graph.nodes:
        state.update(repr((node.domain, node.op, node.inputs, node.outputs)).encode())
        for key in sorted(node.attrs):
            state.update(key.encode())
            _hash_value(state, node.attrs[key])


def _attr_text(value: Any) -> str:
    if isinstance(value, Graph):
        return f"<graph {value.name}: {len(value.nodes)} nodes>"
    if isinstance(value, np.ndarray):
        return f"<{value.dtype}{list(value.shape)}>"
    return repr(value)


def graph_lines(graph: Graph, indent: str = "") -> Iterator[str]:
    """Yield the text form of a graph: one line a node, subgraphs indented below their node."""

    def typed(name: str) -> str:
        kind = graph.types.get(name)
        return f"{name}: {kind}" if kind else name

    inputs = ", ".join(typed(name) for name in graph.inputs)
    yield f"{indent}graph {graph.name}({inputs}) -> ({', '.join(map(typed, graph.outputs))})"
    for node in graph.nodes:
        attrs = ", ".join(f"{k}={_attr_text(v)}" for k, v in sorted(node.attrs.items()))
        outs = ", ".join(typed(o) if o else "_" for o in node.outputs)
        ins = ", ".join(f"const {i}" if i in graph.consts else (i or "_") for i in node.inputs)
        yield f"{indent}  {outs} = {node.op_id}({ins})" + (f" {{{attrs}}}" if attrs else "")
        for value in node.attrs.values():
            if isinstance(value, Graph):
                yield from graph_lines(value, indent + "    ")


def prune(graph: Graph, *, outputs: Iterable[str] | None = None) -> Graph:
    """Drop nodes, constants and types that no graph output needs; the same object if none."""
    wanted = set(graph.outputs if outputs is None else outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(name in wanted for name in node.outputs):
            kept.append(node)
            wanted.update(name for name in node.inputs if name)
    if len(kept) == len(graph.nodes) and all(name in wanted for name in graph.consts):
        return graph
    names = wanted | set(graph.inputs) | {o for node in kept for o in node.outputs}
    return graph.with_(
        nodes=tuple(reversed(kept)),
        consts={k: v for k, v in graph.consts.items() if k in wanted},
        types={k: v for k, v in graph.types.items() if k in names},
    )
