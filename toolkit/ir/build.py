"""Compute expressions to a `PrimFunc`: one nest a stage, loops in the order of the axes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from toolkit.ir.compute import (
    AssembleStage,
    Axis,
    ComputeStage,
    OpaqueStage,
    Reduce,
    scan_body,
    ScanStage,
    ScatterStage,
    Tensor,
    topological,
)
from toolkit.ir.expr import const, Expr, INDEX, Load, rewrite, Var, variables
from toolkit.ir.live import live_part
from toolkit.ir.loop import (
    Block,
    Buffer,
    CONST,
    Loop,
    OpaqueCall,
    PARAM,
    PrimFunc,
    rewrite_stmt,
    SCAN,
    SCRATCH,
    seq,
    SERIAL,
    Stmt,
    wrap,
)
from toolkit.ir.regions import reads, writes


class _Builder:
    """Names buffers, blocks and loops, and turns stages into nests.  Lives for one `build`."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.names: dict[int, str] = {}
        self.taken: set[str] = set()
        self.loop_names: set[str] = set()
        self.buffers: dict[str, Buffer] = {}
        self.stmts: list[Stmt] = []
        self.done: set[int] = set()
        self.keep: list[Tensor] = []
        self.outputs = outputs

    def unique(self, wanted: str, taken: set[str]) -> str:
        base = re.sub(r"\W", "_", wanted) or "x"
        if base[0].isdigit():
            base = f"x{base}"
        name, n = base, 1
        while name in taken:
            n += 1
            name = f"{base}_{n}"
        taken.add(name)
        return name

    def buffer(self, tensor: Tensor, scope: str = SCRATCH) -> str:
        if id(tensor) not in self.names:
            name = self.unique(tensor.name, self.taken)
            self.names[id(tensor)] = name
            self.keep.append(tensor)
            self.buffers[name] = Buffer(name, tensor.shape, tensor.dtype, scope)
        return self.names[id(tensor)]

    def resolve(self, expr: Expr) -> Expr:
        """Replace tensors by buffer names, and single constant elements by their value."""

        def rule(e: Expr) -> Expr | None:
            if isinstance(e, Load) and isinstance(e.buffer, Tensor):
                data = e.buffer.data
                if data is not None and math.prod(e.buffer.shape) == 1:
                    return const(data.reshape(()).item(), e.dtype)
                return Load(e.dtype, self.buffer(e.buffer), e.indices)
            return None

        return rewrite(expr, rule)

    def store(
        self,
        name: str,
        axes: Iterable[Axis],
        buffer: str,
        indices: Sequence[Expr],
        value: Expr,
        *,
        reduce: str | None = None,
        init: Expr | None = None,
        guard: Expr | None = None,
        order: Sequence[Axis] | None = None,
    ) -> Stmt:
        """Return loops over `axes` around one block."""
        axes = tuple(axes)
        loops = [(self.unique(a.name, self.loop_names), a.extent, a.role) for a in axes]
        block = Block(
            self.unique(name, self.taken) if name not in self.buffers else name,
            axes,
            tuple(Var(INDEX, var) for var, _, _ in loops),
            buffer,
            tuple(indices),
            value,
            reduce,
            init,
            guard,
        )
        return wrap(loops, block)

    def copy(
        self, name: str, source: str, target: str, at: Sequence[Expr] = (), axis: int = 0
    ) -> Stmt:
        """Return a nest that copies `source` to `target`, `at` being its indices from `axis` on."""
        src = self.buffers[source]
        axes = [Axis(INDEX, f"c{i}", n, "spatial") for i, n in enumerate(src.shape)]
        value = Load(src.dtype, source, tuple(axes))
        return self.store(name, axes, target, (*axes[:axis], *at, *axes[axis:]), value)

    def nest(self, tensor: Tensor) -> Stmt:
        """Return the nest that computes `tensor`, whose inputs are computed already."""
        match tensor.stage:
            case ComputeStage(axes=axes, body=Reduce() as body):
                taken = {a.name for a in axes}
                renames: dict[str, Expr] = {}
                reduce_axes = []
                for axis in body.axes:
                    fresh = replace(axis, name=self.unique(axis.name, taken))
                    reduce_axes.append(fresh)
                    renames[axis.name] = fresh
                target = self.buffer(tensor)

                by_axis = {id(old): new for old, new in zip(body.axes, reduce_axes, strict=True)}

                def fix(expr: Expr | None) -> Expr | None:
                    if expr is None:
                        return None
                    resolved = rewrite(
                        expr, lambda e: by_axis.get(id(e)) if isinstance(e, Axis) else None
                    )
                    return self.resolve(resolved)

                value, guard, init = fix(body.value), fix(body.where), fix(body.init)
                assert value is not None
                return self.store(
                    target, (*axes, *reduce_axes), target, axes, value,
                    reduce=body.op, guard=guard, init=init,
                )  # fmt: skip
            case ComputeStage(axes=axes, body=Expr() as body):
                target = self.buffer(tensor)
                return self.store(target, axes, target, axes, self.resolve(body))
            case AssembleStage() as stage:
                target = self.buffer(tensor)
                return seq(
                    *(
                        self.store(
                            f"{target}_part", part.axes, target,
                            [self.resolve(i) for i in part.indices], self.resolve(part.value),
                        )
                        for part in stage.parts
                    )
                )  # fmt: skip
            case ScatterStage() as stage:
                target = self.buffer(tensor)
                base = self.buffer(stage.base)
                copy = self.copy(f"{target}_base", base, target)
                update = self.store(
                    target, stage.axes, target, [self.resolve(i) for i in stage.indices],
                    self.resolve(stage.value),
                    reduce=None if stage.combine == "set" else stage.combine,
                    guard=None if stage.where is None else self.resolve(stage.where),
                )  # fmt: skip
                return seq(copy, _update_only(update))
            case ScanStage() as stage:
                return self.scan(stage)
            case OpaqueStage() as stage:
                outs = tuple(self.buffer(t) for t in stage.results)
                scratch = None
                if stage.scratch is not None:
                    scratch = self.unique(f"{stage.function}_scratch", self.taken)
                    self.buffers[scratch] = Buffer(
                        scratch, stage.scratch.shape, stage.scratch.dtype, SCRATCH
                    )
                return OpaqueCall(
                    self.unique(stage.function, self.taken), stage.function, outs,
                    tuple(self.buffer(t) for t in stage.inputs), scratch, stage.params,
                    stage.reference,
                )  # fmt: skip
        raise AssertionError(f"placeholder {tensor.name} has no nest")

    def scan(self, stage: ScanStage) -> Stmt:
        """A recurrence: initialise the states, then step by step compute, collect and update."""
        count = len(stage.collect)
        collected, finals = stage.results[:count], stage.results[count:]
        before: list[Stmt] = []
        for state, final, init in zip(stage.states, finals, stage.init, strict=True):
            name = self.buffer(final)
            self.names[id(state)] = name
            self.keep.append(state)
            before.append(self.copy(f"{name}_init", self.buffer(init), name))
        body = [self.nest(tensor) for tensor in scan_body(stage)]
        var = self.unique(stage.step.name, self.loop_names)
        at = rewrite(
            stage.collect_at, lambda e: Var(INDEX, stage.step.name) if e is stage.step else None
        )
        for out, source in zip(collected, stage.collect, strict=True):
            name = self.buffer(out)
            body.append(
                self.copy(f"{name}_put", self.buffer(source), name, (at,), stage.collect_axis)
            )
        for final, update in zip(finals, stage.updates, strict=True):
            if self.buffer(update) != self.buffer(final):
                name = self.buffer(final)
                body.append(self.copy(f"{name}_next", self.buffer(update), name))
        inner = seq(*body) if body else None
        if inner is None or stage.step.extent == 0:
            return seq(*before)
        inner = _bind_step(inner, stage.step, var)
        return seq(*before, Loop(var, stage.step.extent, SCAN, SERIAL, inner))


def _bind_step(stmt: Stmt, step: Axis, var: str) -> Stmt:
    """Give every block that reads the scan axis `step` an axis bound to the scan loop `var`."""
    axis = step.name

    def rule(s: Stmt) -> Stmt | None:
        if not isinstance(s, Block):
            return None
        exprs = [e for e in (*s.indices, s.value, s.guard, s.init) if e is not None]
        if axis in {a.name for a in s.axes} or not any(axis in variables(e) for e in exprs):
            return None
        return replace(s, axes=(step, *s.axes), binds=(Var(INDEX, var), *s.binds))

    result = rewrite_stmt(stmt, rule)
    assert result is not None
    return result


def _update_only(stmt: Stmt) -> Stmt:
    result = rewrite_stmt(
        stmt, lambda s: replace(s, update_only=True) if isinstance(s, Block) else None
    )
    assert result is not None
    return result


def build(outputs: Sequence[Tensor], inputs: Sequence[Tensor], name: str = "kernel") -> PrimFunc:
    """Build the function that computes `outputs` from `inputs`, every stage in a nest of its own.

    `inputs` fixes the order of the parameters and must cover every placeholder that is not a
    single constant element.  An output that is a placeholder is copied.
    """
    builder = _Builder(outputs)
    for tensor in inputs:
        builder.buffer(tensor, PARAM if tensor.data is None else CONST)
    order = topological(outputs)
    missing = [
        t.name
        for t in order
        if t.stage is None
        and id(t) not in builder.names
        and not (t.data is not None and math.prod(t.shape) == 1)
    ]
    if missing:
        raise ValueError(f"build {name!r}: placeholders without a parameter: {', '.join(missing)}")
    stmts: list[Stmt] = []
    built: set[int] = set()
    given = {id(t) for t in inputs}
    out_names: list[str] = []
    copies: list[Stmt] = []
    for position, tensor in enumerate(outputs):
        source = tensor.stage is None or id(tensor) in given
        if source or any(t is tensor for t in outputs[:position]):
            fresh = Tensor(f"{tensor.name}_out", tensor.shape, tensor.dtype)
            builder.keep.append(fresh)
            target = builder.buffer(fresh, PARAM)
            if tensor.data is not None and math.prod(tensor.shape) == 1 and id(tensor) not in given:
                axes = [Axis(INDEX, f"c{i}", n, "spatial") for i, n in enumerate(tensor.shape)]
                value = const(tensor.data.reshape(()).item(), tensor.dtype)
                copies.append(builder.store(target, axes, target, axes, value))
            else:
                copies.append(builder.copy(f"{target}_copy", builder.buffer(tensor), target))
            out_names.append(target)
        else:
            out_names.append(builder.buffer(tensor, PARAM))
    for tensor in order:
        if tensor.stage is None or id(tensor) in given or id(tensor.stage) in built:
            continue
        built.add(id(tensor.stage))
        stmts.append(builder.nest(tensor))
    body = live_part(seq(*stmts, *copies), out_names)
    assert body is not None
    used = reads(body) | writes(body)
    in_names = [builder.names[id(t)] for t in inputs]
    params = set(in_names) | set(out_names)
    return PrimFunc(
        builder.unique(name, set()),
        tuple(builder.buffers[n] for n in in_names),
        tuple(builder.buffers[n] for n in out_names),
        tuple(b for n, b in builder.buffers.items() if n not in params and n in used),
        body,
    )
