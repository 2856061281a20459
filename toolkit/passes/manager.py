"""The order of the graph passes; each result is verified and can be dumped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from toolkit.ir.graph import Graph
from toolkit.ir.verify import verify_graph
from toolkit.ops.op import infer_graph, infer_node, Op
from toolkit.passes.arithmetic import Arithmetic, requantise
from toolkit.passes.constant_channels import drop_constant_channels
from toolkit.passes.eliminate import common_subexpressions, dead_code
from toolkit.passes.fold_affine import fold_affine, fold_batch_norm
from toolkit.passes.fold_constants import fold_constants
from toolkit.passes.fold_pads import fold_pads
from toolkit.passes.fuse import fuse
from toolkit.passes.integers import integers
from toolkit.passes.layout import layout
from toolkit.passes.merge_parallel import merge_parallel
from toolkit.passes.recognise import recognise
from toolkit.passes.simplify import simplify
from toolkit.passes.views import sink_reshapes, split_to_slices
from toolkit.passes.zero_points import count_from

Pass = Callable[[Graph, Mapping[str, Op]], Graph]
Dump = Callable[[str, Graph, Graph], None]


@dataclass(frozen=True, slots=True)
class NamedPass:
    """A pass and the name it has in dumps and on the command line.

    `rounds`: results may differ in their last bits, so `--exact` leaves the pass out.
    """

    name: str
    run: Pass
    rounds: bool = False


@dataclass(frozen=True, slots=True)
class Repeat:
    """Passes that enable each other: run in turn until none changes anything, or `limit` times."""

    passes: tuple[NamedPass, ...]
    limit: int = 6


def _fold(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """Evaluate what depends on constants only."""
    return fold_constants(graph, lambda *site: infer_node(ops, *site))


_SIMPLIFY = NamedPass("simplify", simplify)
_SINK = NamedPass("sink_reshapes", sink_reshapes)
_CONSTANTS = NamedPass("fold_constants", _fold)
_COMMON = NamedPass("common_subexpressions", common_subexpressions)

PASSES: tuple[NamedPass | Repeat, ...] = (
    NamedPass("dead_code", dead_code),
    Repeat(
        (
            _SIMPLIFY,
            _SINK,
            NamedPass("recognise", recognise, rounds=True),
            NamedPass("fold_batch_norm", fold_batch_norm, rounds=True),
            NamedPass("fold_affine", fold_affine, rounds=True),
            NamedPass("fold_pads", fold_pads),
            _CONSTANTS,
            _COMMON,
        )
    ),
    NamedPass("merge_parallel", merge_parallel),
    NamedPass("layout", layout),
    Repeat((_SIMPLIFY, _SINK, _CONSTANTS, _COMMON)),
    NamedPass("split_to_slices", split_to_slices),
    NamedPass("fuse", fuse),
)

FLOAT_PASSES = PASSES[:2]
"""Those whose results are operators that ONNX has: for what goes back to a file."""


def passes_for(
    arithmetic: Arithmetic, note: Callable[[str], None] | None = None, *, zero: int | None = None
) -> tuple[NamedPass | Repeat, ...]:
    """Return `PASSES` with the requantisations that suit a core.

    `note`: quantised subgraphs are computed in integers, and it is told which nodes between
    quantised tensors stay float, and why; None leaves them as they are.  `zero`: the zero
    point of data that a core's dot products take (`passes.zero_points`).
    """
    first, *rest = PASSES
    if zero is not None:
        at = next(n for n, p in enumerate(rest) if isinstance(p, NamedPass) and p.run is fuse)
        rest.insert(at, NamedPass("count_from", partial(count_from, zero=zero)))
    drop = partial(drop_constant_channels, multiple=4 if arithmetic == "long" else 16)
    named = [
        NamedPass("requantise", partial(requantise, arithmetic=arithmetic)),
        NamedPass("drop_constant_channels", drop),
    ]
    if note is not None:
        run = partial(integers, note=note, fixed=arithmetic != "high")
        named.insert(0, NamedPass("integers", run, rounds=True))
    return (first, *named, *rest)


def on_every_graph(run: Pass, graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """Run a pass on the branches and bodies inside a graph, then on the graph."""
    changed = False
    nodes = []
    for node in graph.nodes:
        bodies = {k: v for k, v in node.attrs.items() if isinstance(v, Graph)}
        done = {k: on_every_graph(run, v, ops) for k, v in bodies.items()}
        if any(done[k] is not v for k, v in bodies.items()):
            node, changed = node.with_(attrs={**node.attrs, **done}), True
        nodes.append(node)
    return run(graph.with_(nodes=tuple(nodes)) if changed else graph, ops)


def run_passes(
    graph: Graph,
    ops: Mapping[str, Op],
    *,
    passes: tuple[NamedPass | Repeat, ...] = PASSES,
    dump: Dump | None = None,
    exact: bool = False,
) -> Graph:
    """Infer all types, then run the passes in order; verify after each that changed the graph.

    `exact` leaves out passes that may change the rounding of results.
    """
    graph = infer_graph(ops, graph)
    verify_graph(graph)
    return apply_passes(graph, ops, passes=passes, dump=dump, exact=exact)


def apply_passes(
    graph: Graph,
    ops: Mapping[str, Op],
    *,
    passes: tuple[NamedPass | Repeat, ...] = PASSES,
    dump: Dump | None = None,
    exact: bool = False,
) -> Graph:
    """Run passes on a graph all of whose types are known; verify after each that changed it."""
    for step in passes:
        for _ in range(step.limit if isinstance(step, Repeat) else 1):
            begin = graph
            for one in step.passes if isinstance(step, Repeat) else (step,):
                if exact and one.rounds:
                    continue
                before = graph
                graph = on_every_graph(one.run, graph, ops)
                if graph is not before:
                    verify_graph(graph)
                if dump is not None:
                    dump(one.name, before, graph)
            if graph is begin:
                break
    return graph


def flat(passes: tuple[NamedPass | Repeat, ...] = PASSES) -> Iterator[NamedPass]:
    """Yield every pass once, in order."""
    for step in passes:
        yield from step.passes if isinstance(step, Repeat) else (step,)
