"""Execution order of a list of ONNX nodes: what is needed, sorted, with every name defined once."""

from __future__ import annotations

import heapq
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
    live = _live(needs, maker, wanted)
    order = _sorted(needs, maker, live)
    if len(order) < len(live):
        cycle = _cycle(needs, maker, live - set(order))
        shown = [_shown(nodes[i]) for i in cycle]
        if len(shown) > 6:
            shown[3:-2] = [f"{len(shown) - 5} more"]
        raise ModelError(f"{label}: the graph has a cycle: {' -> '.join([*shown, shown[0]])}")
    return [nodes[i] for i in order]


def _sorted(needs: Sequence[set[str]], maker: dict[str, int], live: set[int]) -> list[int]:
    """Sort topologically, the earliest in the file first; not what waits for a cycle."""
    missing: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for index in live:
        sources = {maker[n] for n in needs[index] if n in maker}
        missing[index] = len(sources)
        for source in sources:
            readers.setdefault(source, []).append(index)
    ready = [index for index in live if not missing[index]]
    heapq.heapify(ready)
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return order


def _cycle(needs: Sequence[set[str]], maker: dict[str, int], stuck: set[int]) -> list[int]:
    """Return a cycle among nodes of which each waits for another one, in execution order."""
    path = [min(stuck)]
    while True:
        sources = sorted({maker[n] for n in needs[path[-1]] if n in maker} & stuck)
        if sources[0] in path:
            ring = path[path.index(sources[0]) :][::-1]
            first = ring.index(min(ring))
            return ring[first:] + ring[:first]
        path.append(sources[0])


def _live(
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
