"""The traces that records hold for the kernels of a graph."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toolkit.errors import NestlingError
from toolkit.ir.graph import Graph
from toolkit.ir.loop import PrimFunc
from toolkit.lowering.kernels import func_key
from toolkit.lowering.steps import RawCall, Steps
from toolkit.ops.op import Op
from toolkit.schedule.default import apply_trace, Trace
from toolkit.search.packs import find, TraceSource
from toolkit.search.records import text_key


@dataclass(frozen=True, slots=True)
class Recorded:
    """What records say of a graph.  `traces`: by `func_key`.  `counts`: kernels by the file that
    knew them, those for which it says that the default is best included.  `notes`: for people."""

    traces: Mapping[str, Trace] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    kernels: int = 0
    digest: str = "none"
    notes: tuple[str, ...] = ()


def base_functions(graph: Graph, ops: Mapping[str, Op]) -> dict[str, PrimFunc]:
    """Return the different functions of a graph in which fusion has run, by `func_key`."""
    work = Steps(ops, dict(graph.types), dict(graph.consts), opset=graph.opset)
    work.graph(graph)
    calls = (s.group.func for s in work.steps if isinstance(s, RawCall))
    return {func_key(func): func for func in calls}


def recorded_traces(
    graph: Graph, ops: Mapping[str, Op], sources: Sequence[TraceSource], target: str
) -> Recorded:
    """Look up every kernel of a graph in which fusion has run.

    A trace that this nestling cannot replay is left out, with a note.  The digest is that of the
    traces used, wherever they come from.
    """
    if not sources:
        return Recorded()
    funcs = base_functions(graph, ops)
    keys = {text_key(key): key for key in funcs}
    traces: dict[str, Trace] = {}
    counts: Counter[str] = Counter()
    used: list[tuple[str, str]] = []
    notes = []
    for short, choice in find(sources, list(keys), target).items():
        func = funcs[keys[short]]
        try:
            trace = choice.trace
            if trace is not None:
                apply_trace(func, trace)
        except NestlingError as error:
            notes.append(
                f"{choice.where}: its trace for {func.name} does not fit this nestling any more; "
                f"the default one is used: {error.what}"
            )
            continue
        counts[choice.where] += 1
        if trace is not None and choice.trace_text is not None:
            traces[keys[short]] = trace
            used.append((short, choice.trace_text))
    digest = hashlib.sha256(json.dumps(sorted(used)).encode()).hexdigest()
    text = f"sha256 {digest}" if used else "none"
    return Recorded(traces, dict(counts), len(funcs), text, tuple(notes))
