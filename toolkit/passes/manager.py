"""The order of the graph passes; each result is verified and can be dumped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from toolkit.ir.graph import Graph, prune
from toolkit.ir.verify import verify_graph
from toolkit.ops.op import Op, infer_graph
from toolkit.passes.fuse import fuse

Pass = Callable[[Graph, Mapping[str, Op]], Graph]
Dump = Callable[[str, Graph, Graph], None]


@dataclass(frozen=True, slots=True)
class NamedPass:
    """A pass and the name it has in dumps and on the command line."""

    name: str
    run: Pass


PASSES: tuple[NamedPass, ...] = (
    NamedPass("dead_code", lambda g, ops: prune(g)),
    NamedPass("fuse", fuse),
)


def run_passes(
    graph: Graph, ops: Mapping[str, Op], *, passes: tuple[NamedPass, ...] = PASSES, dump: Dump | None = None
) -> Graph:
    """Infer all types, then run the passes in order, verifying the graph after each that changed it."""
    graph = infer_graph(ops, graph)
    verify_graph(graph)
    for step in passes:
        before = graph
        graph = step.run(graph, ops)
        if graph is not before:
            verify_graph(graph)
        if dump is not None:
            dump(step.name, before, graph)
    return graph
