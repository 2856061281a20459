"""What an operator is: a function from tensors to tensors, which also is its type rule.

    def relu(ctx: Ctx, x: Tensor) -> Tensor:
        return compute(x.shape, lambda *i: maximum(x[i], 0), "relu")

The operands of a node arrive as `Tensor`s, None for an absent optional one; a constant's value is
in
`Tensor.data`.  The result's shape and dtype are the node's output types, so nothing states them
twice. Names of parameters and results become the names in the generated C.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from toolkit.errors import NestlingError, UnsupportedError
from toolkit.ir.compute import placeholder, Tensor
from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType, type_of

Outputs = Tensor | Sequence[Tensor | None]
ComputeFn = Callable[..., Outputs]


@dataclass(frozen=True, slots=True)
class Op:
    """An operator.  `view`: the output is the first input's storage under another shape."""

    compute: ComputeFn
    view: bool = False


@dataclass(frozen=True, slots=True)
class Ctx:
    """What a compute function may ask of its node."""

    node: Node
    opset: int

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute, `default` when absent; bytes come as str."""
        value = self.node.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    @property
    def output_count(self) -> int:
        """Number of outputs up to the last that is used."""
        return len(self.node.outputs)

    def wants(self, index: int) -> bool:
        """Tell whether output `index` is used."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def refuse(self, why: str, hint: str | None = None) -> UnsupportedError:
        """Return the error that says why this node cannot be compiled."""
        return UnsupportedError(f"node {self.node.name!r} ({self.node.op_id}): {why}", hint=hint)

    def value(self, tensor: Tensor | None, what: str) -> np.ndarray:
        """Return the compile-time value of an operand; refuse when it is computed at run time."""
        if tensor is None or tensor.data is None:
            raise self.refuse(
                f"its {what} must be known when compiling, but is computed at run time.",
                f"pin the input that decides it: --set NAME=VALUE, or fold {what} into the model.",
            )
        return np.asarray(tensor.data)

    def ints(self, tensor: Tensor | None, what: str) -> tuple[int, ...]:
        """Return the compile-time value of an operand as a flat tuple of ints."""
        return tuple(int(v) for v in self.value(tensor, what).reshape(-1))

    def axis(self, axis: int, rank: int, what: str = "axis") -> int:
        """Return a possibly negative axis as 0..rank-1; refuse one out of range."""
        if not -rank <= axis < max(rank, 1):
            raise self.refuse(f"{what} {axis} is out of range for a tensor of rank {rank}.")
        return axis % rank if rank else 0


@cache
def operand_names(fn: ComputeFn) -> tuple[tuple[str, ...], bool]:
    """Return the names of the operands of a compute function, and whether it takes any number."""
    parameters = list(inspect.signature(fn).parameters.values())[1:]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return tuple(p.name for p in parameters), variadic


def apply_op(
    op: Op, node: Node, operands: Sequence[Tensor | None], opset: int
) -> list[Tensor | None]:
    """Call an operator's compute function on operands; return one tensor an output of the node."""
    names, variadic = operand_names(op.compute)
    given = list(operands)
    while given and given[-1] is None:
        given.pop()
    ctx = Ctx(node, opset)
    if not variadic and len(given) > len(names):
        raise ctx.refuse(f"takes at most {len(names)} inputs, not {len(given)}.")
    try:
        result = op.compute(ctx, *given)
    except NestlingError:
        raise
    except (TypeError, ValueError, IndexError, KeyError, ZeroDivisionError) as error:
        raise ctx.refuse(f"its inputs or attributes do not fit: {error}") from error
    outs: list[Tensor | None] = [result] if isinstance(result, Tensor) else list(result)
    outs = outs[: len(node.outputs)]
    if len(outs) < len(node.outputs) and any(node.outputs[len(outs) :]):
        raise ctx.refuse(f"output {len(outs)} ({node.outputs[len(outs)]!r}) is not supported.")
    outs += [None] * (len(node.outputs) - len(outs))
    return outs


def operand_name(op: Op, position: int) -> str:
    """Return the name that operand `position` has in the compute function."""
    names, variadic = operand_names(op.compute)
    if position < len(names) - (1 if variadic else 0):
        return names[position]
    return f"{names[-1].rstrip('s')}{position}" if names else f"x{position}"


def infer_node(
    ops: Mapping[str, Op],
    node: Node,
    types: Mapping[str, TensorType],
    consts: Mapping[str, np.ndarray],
    opset: int,
) -> list[TensorType | None]:
    """Return the types of a node's outputs; `UnsupportedError` for what cannot be compiled."""
    op = ops.get(node.op_id)
    if op is None:
        raise UnsupportedError(f"node {node.name!r}: operator {node.op_id} is not supported.")
    operands = [
        placeholder(types[n].shape, types[n].dtype, n, consts.get(n)) if n else None
        for n in node.inputs
    ]
    return [None if t is None else t.type for t in apply_op(op, node, operands, opset)]


def infer_graph(ops: Mapping[str, Op], graph: Graph) -> Graph:
    """Return the graph with the type of every tensor; report all unsupported nodes at once."""
    problems: list[str] = []
    graph = _infer(ops, graph, problems)
    if problems:
        count = len(problems)
        raise UnsupportedError(
            f"{count} node{'s' if count > 1 else ''} of model {graph.name!r} cannot be compiled.",
            state=problems,
        )
    return graph


def _infer(ops: Mapping[str, Op], graph: Graph, problems: list[str]) -> Graph:
    """Infer a graph and the branches inside it; add what cannot be compiled to `problems`."""
    types = {**graph.types, **{n: type_of(v) for n, v in graph.consts.items()}}
    nodes = []
    for node in graph.nodes:
        known = [graph.types.get(n) for n in node.outputs]
        if node.op_id == "If":
            branches = {
                k: _infer(ops, v, problems) if isinstance(v, Graph) else v
                for k, v in node.attrs.items()
            }
            node, outs = node.with_(attrs=branches), known
        elif any(n and n not in types for n in node.inputs):
            outs = []
        else:
            try:
                outs = infer_node(ops, node, types, graph.consts, graph.opset)
            except UnsupportedError as error:
                problems.append(error.what)
                outs = known
        nodes.append(node)
        types.update({n: t for n, t in zip(node.outputs, outs, strict=False) if n and t})
    return graph.with_(nodes=tuple(nodes), types=types)
