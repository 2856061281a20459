"""A bare compute expression as a model of one operator.

A, B = placeholder((8, 32), "float32", "A"), placeholder((32, 16), "float32", "B")
k = reduce_axis(32, "k")
model_of([compute((8, 16), lambda i, j: sum(A[i, k] * B[k, j], k), "C")])
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from toolkit.codegen.names import c_name, c_names, library_name
from toolkit.errors import NestlingError
from toolkit.ir.compute import (
    AssembleStage,
    ComputeStage,
    OpaqueStage,
    Part,
    Reduce,
    ScanStage,
    ScatterStage,
    Stage,
    Tensor,
    topological,
)
from toolkit.ir.expr import Expr, Load, rewrite
from toolkit.ir.graph import Graph, Node
from toolkit.ir.loop import PrimFunc
from toolkit.ir.types import type_of
from toolkit.lowering.kernels import group_kernel
from toolkit.ops import Op, OPS
from toolkit.ops.op import Ctx
from toolkit.pipeline import Model
from toolkit.user_file import run_file

DOMAIN = "nestling.expression"


def model_of(outputs: Sequence[Tensor], *, name: str | None = None) -> Model:
    """Return a model whose inputs are the expression's placeholders, in order of first use.

    A placeholder with data is a constant.
    """
    if not outputs or not all(isinstance(t, Tensor) for t in outputs):
        raise NestlingError("an expression is one or more tensors of toolkit.ir.compute.")
    given = [t for t in topological(outputs) if t.stage is None]
    every = [t.name for t in (*given, *outputs)]
    for tensor in outputs:
        if tensor.stage is None:
            raise NestlingError(f"tensor {tensor.name!r} is a placeholder: nothing computes it.")
    twice = sorted({n for n in every if every.count(n) > 1})
    if twice:
        raise NestlingError(
            f"two tensors of the expression have the name {twice[0]!r}.",
            hint="give placeholders and outputs names of their own",
        )

    def expression(ctx: Ctx, *operands: Tensor) -> list[Tensor]:
        known = {id(old): new for old, new in zip(given, operands, strict=True)}
        return rebind(outputs, known)

    # Names of parameters become names in the generated C.
    names = [n if n != "ctx" else "ctx_" for n in c_names(t.name for t in given).values()]
    by_position = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, by_position) for n in ("ctx", *names)]
    expression.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    node = Node(
        outputs[0].name, c_name(outputs[0].name), tuple(t.name for t in given),
        tuple(t.name for t in outputs), domain=DOMAIN,
    )  # fmt: skip
    graph = Graph(
        name=name or outputs[0].name,
        nodes=(node,),
        inputs=tuple(t.name for t in given if t.data is None),
        outputs=tuple(t.name for t in outputs),
        types={t.name: t.type for t in (*given, *outputs)},
        consts={t.name: t.data for t in given if t.data is not None},
        opset=1,
    )
    for const_name, value in graph.consts.items():
        if type_of(value) != graph.types[const_name]:
            kind = graph.types[const_name]
            raise NestlingError(f"placeholder {const_name!r} is {kind}, its data {type_of(value)}.")
    ops = {**OPS, node.op_id: Op(expression)}
    return Model(graph, library_name(name or outputs[0].name), graph.digest(), (), ops)


def function_of(outputs: Sequence[Tensor]) -> PrimFunc:
    """Return the base function of an expression: what a trace for it is applied to."""
    model = model_of(outputs)
    graph = model.graph
    return group_kernel(
        model.ops, graph.nodes, graph.outputs, graph.types, graph.consts, graph.opset
    ).func


def rebind(outputs: Sequence[Tensor], known: Mapping[int, Tensor]) -> list[Tensor]:
    """Return the same expression over other placeholders: `known`, id of an old -> the new."""
    new = dict(known)
    stages: dict[int, Stage] = {}

    def tensor(t: Tensor) -> Tensor:
        if id(t) not in new:
            if t.stage is None:
                return t
            if id(t.stage) not in stages:
                stages[id(t.stage)] = moved(t.stage)
            stage = stages[id(t.stage)]
            if id(t) not in new:
                new[id(t)] = Tensor(t.name, t.shape, t.dtype, stage, t.data)
        return new[id(t)]

    def tensors(many: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tensor(t) for t in many)

    def expr(e: Expr) -> Expr:
        def rule(x: Expr) -> Expr | None:
            if isinstance(x, Load) and isinstance(x.buffer, Tensor):
                return replace(x, buffer=tensor(x.buffer))
            return None

        return rewrite(e, rule)

    def exprs(many: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(expr(e) for e in many)

    def maybe(e: Expr | None) -> Expr | None:
        return None if e is None else expr(e)

    def moved(stage: Stage) -> Stage:
        match stage:
            case ComputeStage(body=Reduce() as body):
                return ComputeStage(
                    stage.axes,
                    replace(
                        body, value=expr(body.value), where=maybe(body.where), init=maybe(body.init)
                    ),
                )
            case ComputeStage(body=Expr() as body):
                return ComputeStage(stage.axes, expr(body))
            case AssembleStage():
                return AssembleStage(
                    tuple(Part(p.axes, exprs(p.indices), expr(p.value)) for p in stage.parts)
                )
            case ScatterStage():
                return replace(
                    stage,
                    base=tensor(stage.base),
                    indices=exprs(stage.indices),
                    value=expr(stage.value),
                    where=maybe(stage.where),
                )
            case ScanStage():
                return replace_results(
                    stage,
                    replace(
                        stage,
                        init=tensors(stage.init),
                        updates=tensors(stage.updates),
                        collect=tensors(stage.collect),
                    ),
                )
            case OpaqueStage():
                return replace_results(stage, replace(stage, inputs=tensors(stage.inputs)))
        raise AssertionError(type(stage))

    def replace_results(old: ScanStage | OpaqueStage, stage: ScanStage | OpaqueStage) -> Stage:
        stage.results = tuple(Tensor(t.name, t.shape, t.dtype, stage, t.data) for t in old.results)
        new.update((id(t), made) for t, made in zip(old.results, stage.results, strict=True))
        return stage

    for t in topological(outputs):
        tensor(t)
    return [tensor(t) for t in outputs]


def load_expression(path: Path, name: str) -> list[Tensor]:
    """Return the compute expression `name` of a Python file: a tensor, several, or a function
    without arguments that makes them."""
    what = f"{path}:{name}"
    module = run_file(path, what)
    if name not in module.__dict__:
        known = [
            n
            for n, v in module.__dict__.items()
            if isinstance(v, Tensor) or getattr(v, "__module__", "") == module.__name__
        ]
        raise NestlingError(
            f"{what}: the file defines no {name!r}.", hint=f"it defines: {', '.join(known)}"
        )
    value = module.__dict__[name]
    if callable(value):
        try:
            value = value()
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            raise NestlingError(f"{what}: {type(error).__name__}: {error}") from None
    tensors = [value] if isinstance(value, Tensor) else value
    if not isinstance(tensors, list | tuple) or not all(isinstance(t, Tensor) for t in tensors):
        raise NestlingError(
            f"{what}: is a {type(value).__name__}, not a compute expression.",
            hint="write a tensor of toolkit.ir.compute, or a function that returns one",
        )
    return list(tensors)
