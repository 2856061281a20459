"""Reading and writing at given indices: Gather, GatherElements, GatherND, Scatter*.

Meaning: the ONNX operator specification.  An index below 0 counts from the end.  Known indices
become arithmetic or tables, checked when compiling.  A run-time index out of range, which ONNX
leaves undefined, never leads outside a buffer: reads are clamped to the nearest element, writes
skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from toolkit.ir.compute import compute, scatter, Tensor
from toolkit.ir.expr import all_of, binary, cast, Const, Expr, INDEX, maximum, minimum, select
from toolkit.ops.op import Ctx, Op
from toolkit.ops.shape import constant, known_index, narrowed, Subscript


def _known(ctx: Ctx, indices: Tensor, extents: Sequence[int] | int) -> np.ndarray | None:
    """Return constant indices, wrapped and checked; `extents`: of the axes the last axis names."""
    if indices.data is None:
        return None
    values = np.asarray(indices.data)
    limit = np.asarray(extents)
    wrapped = np.where(values < 0, values + limit, values)
    outside = (wrapped < 0) | (wrapped >= limit)
    if outside.any():
        first = values[outside].flat[0]
        raise ctx.refuse(f"index {first} is out of range for extent {np.max(limit)}.")
    return narrowed(wrapped)


def _wrapped(indices: Tensor, at: Sequence[Expr | int], extent: int) -> Expr:
    """Return a run-time index with `extent` added when it is negative."""
    index = cast(indices[tuple(at)], INDEX)
    if indices.dtype.startswith("u"):
        return index
    return select(index < 0, index + extent, index)


def _clamped(index: Expr, extent: int) -> Expr:
    return minimum(maximum(index, 0), max(extent - 1, 0))


def subscript(ctx: Ctx, indices: Tensor, extent: int) -> Subscript:
    """Return the function from a position in `indices` to a subscript of an axis of `extent`.

    Constant indices that step evenly become arithmetic, other constants a table, run-time indices a
    load that is wrapped and clamped.
    """
    known = _known(ctx, indices, extent)
    if known is None:
        return lambda *i: _clamped(_wrapped(indices, i, extent), extent)
    return known_index(known)


def _refuse_empty(ctx: Ctx, data: Tensor, out: Sequence[int]) -> None:
    if math.prod(out) and not math.prod(data.shape):
        raise ctx.refuse(f"it reads from an empty tensor of shape {list(data.shape)}.")


def _gather(ctx: Ctx, data: Tensor, indices: Tensor) -> Tensor:
    if data.rank == 0:
        raise ctx.refuse("its data must have at least one axis.")
    axis = ctx.axis(ctx.attr("axis", 0), data.rank)
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    _refuse_empty(ctx, data, shape)
    at = subscript(ctx, indices, data.shape[axis])
    end = axis + indices.rank
    return compute(shape, lambda *i: data[(*i[:axis], at(*i[axis:end]), *i[end:])], "gather")


def _gather_elements(ctx: Ctx, data: Tensor, indices: Tensor) -> Tensor:
    axis = ctx.axis(ctx.attr("axis", 0), data.rank)
    _check_rank(ctx, data, indices, axis)
    _refuse_empty(ctx, data, indices.shape)
    at = subscript(ctx, indices, data.shape[axis])
    return compute(
        indices.shape,
        lambda *i: data[tuple(at(*i) if a == axis else v for a, v in enumerate(i))],
        "gather",
    )


def _check_rank(ctx: Ctx, data: Tensor, indices: Tensor, axis: int) -> None:
    fits = indices.rank == data.rank and all(
        n <= m or a == axis for a, (n, m) in enumerate(zip(indices.shape, data.shape, strict=False))
    )
    if not fits:
        raise ctx.refuse(f"indices {list(indices.shape)} do not fit data {list(data.shape)}.")


def _tuples(ctx: Ctx, data: Tensor, indices: Tensor, batch: int) -> int:
    """Return how many axes of the data an index tuple names; refuse shapes that do not fit."""
    named = indices.shape[-1] if indices.rank else 0
    if indices.rank <= batch or not 0 < named <= data.rank - batch:
        raise ctx.refuse(
            f"indices {list(indices.shape)} do not fit data {list(data.shape)}, batch_dims {batch}."
        )
    if indices.shape[:batch] != data.shape[:batch]:
        raise ctx.refuse(f"the first {batch} axes of data and indices differ.")
    return named


def _gather_nd(ctx: Ctx, data: Tensor, indices: Tensor) -> Tensor:
    batch = ctx.attr("batch_dims", 0)
    named = _tuples(ctx, data, indices, batch)
    extents = data.shape[batch : batch + named]
    lead = indices.shape[:-1]
    shape = (*lead, *data.shape[batch + named :])
    _refuse_empty(ctx, data, shape)
    known = _known(ctx, indices, extents)
    table = indices if known is None else constant(known, "at")

    def element(*i: Expr) -> Expr:
        head, tail = i[: len(lead)], i[len(lead) :]
        at = []
        for position, extent in enumerate(extents):
            if known is None:
                at.append(_clamped(_wrapped(table, (*head, position), extent), extent))
            else:
                at.append(cast(table[(*head, position)], INDEX))
        return data[(*head[:batch], *at, *tail)]

    return compute(shape, element, "gather")


_REDUCTIONS = {"none": "set", "add": "sum", "mul": "prod", "max": "max", "min": "min"}


def _reduction(ctx: Ctx) -> str:
    name = ctx.attr("reduction", "none")
    if name not in _REDUCTIONS:
        raise ctx.refuse(f"reduction {name!r} is not known.")
    return _REDUCTIONS[name]


def _inside(index: Expr, extent: int) -> Expr:
    inside = all_of(index >= 0, index < extent)
    return Const("bool", True) if inside is None else inside


def _scatter_elements(ctx: Ctx, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = ctx.axis(ctx.attr("axis", 0), data.rank)
    _check_rank(ctx, data, indices, axis)
    if updates.shape != indices.shape:
        raise ctx.refuse(f"updates {list(updates.shape)} and indices {list(indices.shape)} differ.")
    extent = data.shape[axis]
    known = _known(ctx, indices, extent)
    table = None if known is None else constant(known, "at")

    def at(i: Sequence[Expr]) -> Expr:
        if table is not None:
            return cast(table[tuple(i)], INDEX)
        return _wrapped(indices, i, extent)

    return scatter(
        data,
        indices.shape,
        lambda *i: (tuple(at(i) if a == axis else v for a, v in enumerate(i)), updates[i]),
        combine=_reduction(ctx),
        where=(lambda *i: _inside(at(i), extent)) if table is None else None,
        name="scatter",
    )


def _scatter_nd(ctx: Ctx, data: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    named = _tuples(ctx, data, indices, 0)
    lead = indices.shape[:-1]
    shape = (*lead, *data.shape[named:])
    if updates.shape != shape:
        raise ctx.refuse(f"updates have shape {list(updates.shape)}, not {list(shape)}.")
    extents = data.shape[:named]
    known = _known(ctx, indices, extents)
    table = indices if known is None else constant(known, "at")

    def at(i: Sequence[Expr]) -> list[Expr]:
        head = i[: len(lead)]
        if known is not None:
            return [cast(table[(*head, p)], INDEX) for p in range(named)]
        return [_wrapped(table, (*head, p), n) for p, n in enumerate(extents)]

    def where(*i: Expr) -> Expr:
        tests = [_inside(index, n) for index, n in zip(at(i), extents, strict=True)]
        inside = all_of(*tests)
        return Const("bool", True) if inside is None else inside

    return scatter(
        data,
        shape,
        lambda *i: ((*at(i), *i[len(lead) :]), updates[i]),
        combine=_reduction(ctx),
        where=where if known is None else None,
        name="scatter",
    )


def _tensor_scatter(ctx: Ctx, past: Tensor, update: Tensor, starts: Tensor | None = None) -> Tensor:
    """The cache of keys or values, with the new ones from `starts` on, a start for each batch."""
    axis = ctx.axis(ctx.attr("axis", -2), past.rank)
    extent, count = past.shape[axis], update.shape[axis] if update.rank == past.rank else 0
    if axis == 0 or (*past.shape[:axis], count, *past.shape[axis + 1 :]) != update.shape:
        raise ctx.refuse(f"update {list(update.shape)} does not fit {list(past.shape)}.")
    if starts is not None and starts.shape != past.shape[:1]:
        raise ctx.refuse(f"write_indices {list(starts.shape)} are not one for each batch.")
    circular = ctx.attr("mode", "linear") == "circular"

    def element(*i: Expr) -> Expr:
        at = i[axis] if starts is None else i[axis] - cast(starts[i[0]], INDEX)
        if circular:
            at = binary("floormod", at, Const(INDEX, extent))
        new = update[(*i[:axis], _clamped(at, count), *i[axis + 1 :])]
        return select(binary("and", at >= 0, at < count), new, past[i])

    return compute(past.shape, element, "cache")


GATHER_OPS: dict[str, Op] = {
    "Gather": Op(_gather),
    "GatherElements": Op(_gather_elements),
    "GatherND": Op(_gather_nd),
    "Scatter": Op(_scatter_elements),
    "ScatterElements": Op(_scatter_elements),
    "ScatterND": Op(_scatter_nd),
    "TensorScatter": Op(_tensor_scatter),
}
