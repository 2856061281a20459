"""Invariants of graphs and functions, checked after every pass."""

from __future__ import annotations

from toolkit.ir.expr import Expr, Load, loads, Var, walk
from toolkit.ir.graph import Graph
from toolkit.ir.loop import Block, Loop, OpaqueCall, PrimFunc, Seq, Stmt, walk_stmt
from toolkit.ir.types import type_of


def verify_graph(graph: Graph) -> None:
    """Assert single assignment, topological order, known types, and the same of every subgraph."""
    known = {*graph.inputs, *graph.consts}
    for name, value in graph.consts.items():
        kind = graph.types.get(name)
        assert kind is None or kind == type_of(value), (
            f"constant {name}: {kind} != {type_of(value)}"
        )
    for node in graph.nodes:
        for name in node.inputs:
            assert not name or name in known, f"node {node.name} reads {name!r} before it is made"
        for name in node.outputs:
            assert name not in known or not name, f"node {node.name} writes {name!r} again"
            assert not name or name in graph.types, (
                f"tensor {name!r} of node {node.name} has no type"
            )
        known.update(n for n in node.outputs if n)
    for name in graph.outputs:
        assert name in known, f"graph output {name!r} is never made"
    for sub in graph.subgraphs():
        verify_graph(sub)


def verify_func(func: PrimFunc) -> None:
    """Assert that names are declared, loops unique on a path, and subscripts of the right rank."""
    buffers = func.buffers()
    assert len(buffers) == len(func.inputs) + len(func.outputs) + len(func.locals), (
        "buffer names clash"
    )

    def check(expr: Expr, names: set[str], where: str) -> None:
        for load in loads(expr):
            assert load.buffer in buffers, f"{where}: unknown buffer {load.buffer!r}"
            info = buffers[load.buffer]
            assert len(load.indices) == len(info.shape), (
                f"{where}: {load.buffer} has rank {len(info.shape)}"
            )
            assert load.dtype == info.dtype, f"{where}: {load.buffer} is {info.dtype}"
        for e in walk(expr):
            if isinstance(e, Var):
                assert e.name in names, f"{where}: unknown variable {e.name!r}"
            elif isinstance(e, Load):
                assert all(i.dtype == "index" for i in e.indices), f"{where}: subscript is no index"

    extents: dict[str, int] = {}
    names = [s.name for s in walk_stmt(func.body) if isinstance(s, Block | OpaqueCall)]
    assert len(names) == len(set(names)), f"block names clash: {names}"

    def visit(stmt: Stmt, scope: tuple[str, ...]) -> None:
        match stmt:
            case Loop():
                # Ranges of variables are looked up by name in the whole function.
                known = extents.setdefault(stmt.var, stmt.extent)
                assert known == stmt.extent, f"loops {stmt.var} have extents {known}, {stmt.extent}"
                assert stmt.var not in scope, f"loop {stmt.var} is nested in itself"
                assert stmt.extent >= 0
                visit(stmt.body, (*scope, stmt.var))
            case Seq():
                assert stmt.body, "empty sequence"
                for part in stmt.body:
                    visit(part, scope)
            case Block():
                assert len(stmt.axes) == len(stmt.binds), stmt.name
                for bind in stmt.binds:
                    check(bind, set(scope), stmt.name)
                names = {a.name for a in stmt.axes} if stmt.axes else set(scope)
                for expr in (*stmt.indices, stmt.value, stmt.guard, stmt.init):
                    if expr is not None:
                        check(expr, names, stmt.name)
                assert stmt.buffer in buffers, (
                    f"{stmt.name} stores to unknown buffer {stmt.buffer!r}"
                )
                assert len(stmt.indices) == len(buffers[stmt.buffer].shape), stmt.name
                assert stmt.value.dtype == buffers[stmt.buffer].dtype, (
                    f"{stmt.name}: stores {stmt.value.dtype} to {buffers[stmt.buffer].dtype}"
                )
            case OpaqueCall():
                for name in (*stmt.outputs, *stmt.inputs):
                    assert name in buffers, f"{stmt.name}: unknown buffer {name!r}"

    visit(func.body, ())
