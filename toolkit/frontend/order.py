"""Execution order of a list of ONNX nodes: what is needed, sorted, with every name defined once."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

import onnx
from onnx import AttributeProto

from toolkit.errors import ModelError


def reads(node: onnx.NodeProto) -> set[str]:
    """Return the names a node reads, those its subgraphs capture included."""
    names = {n for n in node.input if n}
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            names |= _captured(attribute.g)
        elif attribute.type == AttributeProto.GRAPHS:
            for graph in attribute.graphs:
                names |= _captured(graph)
    return names


def _captured(graph: onnx.GraphProto) -> set[str]:
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {s.values.name for s in graph.sparse_initializer}
    own |= {o for node in graph.node for o in node.output}
    wanted = {o.name for o in graph.output}
    for node in graph.node:
        wanted |= reads(node)
    return wanted - own


def execution_order(
    nodes: Sequence[onnx.NodeProto],
    wanted: Iterable[str],
    defined: Callable[[str], bool],
    taken: Container[str],
    label: str,
) -> list[onnx.NodeProto]:
    """Return the nodes that the wanted names need, each after those it reads from.

    `defined` tells what can be read besides the nodes' outputs, `taken` holds the part of it that
    is defined beside the nodes: inputs and initialisers.  Nodes stay in the order of the file
    where that is an execution order.  Raises `ModelError` for a name defined twice, a name nothing
    defines, and a cycle.
    """
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if name in taken:
                raise ModelError(
                    f"{label}: tensor '{name}' is an input or initialiser, and the output of node "
                    f"{_shown(node)}"
                )
            if name in maker:
                raise ModelError(
                    f"{label}: tensor '{name}' is the output of two nodes: "
                    f"{_shown(nodes[maker[name]])} and {_shown(node)}"
                )
            maker[name] = index
    needs = [reads(node) for node in nodes]
    for index, names in enumerate(needs):
        for name in sorted(names):
            if name not in maker and not defined(name):
                raise ModelError(
                    f"{label}: node {_shown(nodes[index])} reads '{name}', which nothing defines"
                )
    done: list[bool] = [False] * len(nodes)
    order: list[int] = []
    live = _live(nodes, needs, maker, wanted)
    waiting = [i for i in range(len(nodes)) if i in live]
    while waiting:
        later = []
        for index in waiting:
            if all(done[maker[n]] for n in needs[index] if n in maker):
                done[index] = True
                order.append(index)
            else:
                later.append(index)
        if len(later) == len(waiting):
            shown = ", ".join(_shown(nodes[i]) for i in later[:5])
            more = f" and {len(later) - 5} more" if len(later) > 5 else ""
            raise ModelError(f"{label}: the graph has a cycle among the nodes {shown}{more}")
        waiting = later
    return [nodes[i] for i in order]


def _live(
    nodes: Sequence[onnx.NodeProto],
    needs: Sequence[set[str]],
    maker: dict[str, int],
    wanted: Iterable[str],
) -> set[int]:
    live: set[int] = set()
    stack = [maker[n] for n in wanted if n in maker]
    while stack:
        index = stack.pop()
        if index not in live:
            live.add(index)
            stack.extend(maker[n] for n in needs[index] if n in maker)
    return live


def _shown(node: onnx.NodeProto) -> str:
    first = next((o for o in node.output if o), "")
    return f"'{node.name or f'{node.op_type}_{first}'}' ({node.op_type})"
