"""Resource variables: VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE, CALL_ONCE.

A variable that is assigned is an input of the graph, its value before a run, and an output, its
value after it; one that is only read is a constant.  What CALL_ONCE assigns are the first values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toolkit.frontend.tflite.read import Operator
from toolkit.frontend.tflite.site import Site, Variable
from toolkit.ir.types import DTYPES, TensorType

Family = Callable[[Site], list[str]]


def _key(op: Operator) -> str:
    """Return the name of the variable that a VAR_HANDLE stands for."""
    container, name = (
        (value or b"").decode("utf-8", "replace")
        for value in (op.options.Container(), op.options.SharedName())
    )
    return f"{container}/{name}" if container else name


def _variable(site: Site, key: str) -> Variable:
    found = site.build.variables.get(key)
    if found is None:
        found = Variable(site.build.unique(key or "variable"))
        site.build.variables[key] = found
    return found


def var_handle(site: Site) -> list[str]:
    """Name a variable; the handle itself is no tensor."""
    site.build.handles[site.op.outputs[0]] = _variable(site, _key(site.op))
    return [""]


def _handle(site: Site) -> Variable:
    found = site.build.handles.get(site.op.inputs[0]) if site.op.inputs else None
    if found is None:
        raise site.refuse("its variable is not given by a VAR_HANDLE of this graph")
    return found


def read_variable(site: Site) -> list[str]:
    """The value of the last assignment, else that before the run."""
    variable, out = _handle(site), site.out()
    if out.dtype not in DTYPES:
        raise site.refuse(f"type {out.dtype} is not supported")
    if not variable.current:
        kind = TensorType(out.shape, out.dtype)
        variable.current = variable.name
        site.build.types[variable.name] = kind
    return [variable.current]


def assign_variable(site: Site) -> list[str]:
    """Give a variable another value, for what reads it later and for the next run."""
    variable = _handle(site)
    variable.current = site.name(1)
    variable.written = True
    if variable.name not in site.build.types:
        site.build.types[variable.name] = site.type(variable.current)
    return []


def call_once(site: Site) -> list[str]:
    """Take the first values of variables from a graph that assigns constants to them."""
    index = site.option("InitSubgraphIndex")
    if not 0 <= index < len(site.subgraphs):
        raise site.refuse(f"graph {index} does not exist")
    graph = site.subgraphs[index]
    handles: dict[int, Variable] = {}
    for op in graph.operators:
        if op.name == "VAR_HANDLE":
            handles[op.outputs[0]] = _variable(site, _key(op))
        elif op.name == "ASSIGN_VARIABLE" and op.inputs[0] in handles:
            value = graph.tensors[op.inputs[1]].data
            if value is None:
                raise site.refuse("it assigns what is not a constant")
            handles[op.inputs[0]].initial = np.ascontiguousarray(value)
        else:
            raise site.refuse(f"the graph of first values has an operator {op.name}")
    return []


TABLE: dict[str, Family] = {
    "VAR_HANDLE": var_handle,
    "READ_VARIABLE": read_variable,
    "ASSIGN_VARIABLE": assign_variable,
    "CALL_ONCE": call_once,
}
