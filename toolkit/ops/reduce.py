"""Reductions: Reduce*, ArgMax/ArgMin, the Softmax family, cumulative sums, Lp and mean-variance
normalisation, Det, Einsum.  Meaning: the ONNX operator specification, newest version of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from toolkit.ir.compute import (
    Axis,
    compute,
    max,
    min,
    prod,
    Reduce,
    reduce_axis,
    reduce_identity,
    scan,
    sum,
    Tensor,
)
from toolkit.ir.expr import (
    binary,
    call,
    cast,
    Const,
    const,
    eq,
    Expr,
    INDEX,
    maximum,
    ne,
    select,
)
from toolkit.ir.types import is_float
from toolkit.ops.op import Ctx, Op

Index = tuple[Expr, ...]


def reduced(
    shape: Sequence[int],
    axes: Sequence[int],
    fn: Callable[[Index, tuple[Axis, ...]], Reduce],
    name: str,
    *,
    keepdims: bool = False,
) -> Tensor:
    """Define a reduction over `axes` of a space of `shape`.

    `fn(at, k)` gets an index into `shape` and the reduce axes in it, and returns the reduction.
    """
    names = ["k"] if len(axes) == 1 else [f"k{n}" for n in range(len(axes))]
    ks = tuple(reduce_axis(shape[a], name) for a, name in zip(axes, names, strict=True))
    by_axis = dict(zip(axes, ks, strict=True))
    outer = [1 if a in by_axis else n for a, n in enumerate(shape)]
    if not keepdims:
        outer = [n for a, n in enumerate(shape) if a not in by_axis]

    def element(*i: Expr) -> Reduce:
        rest = iter(i)
        at: list[Expr] = []
        for a in range(len(shape)):
            if a in by_axis and keepdims:
                next(rest)
            at.append(by_axis[a] if a in by_axis else next(rest))
        return fn(tuple(at), ks)

    return compute(outer, element, name)


def kept(index: Sequence[Expr], axes: Sequence[int]) -> Index:
    """Return the index into a tensor reduced over `axes` (dropped) that belongs to a full index."""
    return tuple(i for a, i in enumerate(index) if a not in axes)


def mean_of(x: Tensor, axes: Sequence[int], name: str = "mean") -> Tensor:
    """Define the mean over `axes`, which are dropped."""
    total = reduced(x.shape, axes, lambda at, k: sum(x[at], k), f"{name}_sum")
    return compute(total.shape, lambda *i: total[i] / count(x.shape, axes), name)


def variance_of(x: Tensor, mean: Tensor, axes: Sequence[int], name: str = "var") -> Tensor:
    """Define the biased variance over `axes` about `mean`, in two passes."""

    def term(at: Index, k: tuple[Axis, ...]) -> Reduce:
        d = x[at] - mean[kept(at, axes)]
        return sum(d * d, k)

    total = reduced(x.shape, axes, term, f"{name}_sum")
    return compute(total.shape, lambda *i: total[i] / count(x.shape, axes), name)


def count(shape: Sequence[int], axes: Sequence[int]) -> int:
    """Return the number of elements that one result of a reduction covers."""
    return math.prod(shape[a] for a in axes)


# -- Reduce* ----------------------------------------------------------------------------------


def _axes(ctx: Ctx, x: Tensor, axes: Tensor | None) -> tuple[int, ...]:
    values = () if axes is None else ctx.ints(axes, "axes")
    if not values and not ctx.attr("noop_with_empty_axes", 0):
        return tuple(range(x.rank))
    return tuple(sorted({ctx.axis(a, x.rank) for a in values}))


Combine = Callable[..., Reduce]
Step = Callable[[Expr], Expr]


def _same(value: Expr) -> Expr:
    return value


def reduce_op(
    combine: Combine,
    name: str,
    *,
    before: Step = _same,
    after: Callable[[Expr, int], Expr] | None = None,
    real: bool = False,
) -> Op:
    """Return the operator that combines before(x) over axes and applies after(total, count).

    `real`: integers are computed in double precision and converted at the end.
    """

    def op(ctx: Ctx, x: Tensor, axes: Tensor | None = None) -> Tensor:
        dims = _axes(ctx, x, axes)
        keep = bool(ctx.attr("keepdims", 1))
        dtype = "float64" if real and not is_float(x.dtype) else x.dtype
        total = reduced(
            x.shape, dims, lambda at, k: combine(before(cast(x[at], dtype)), k), name, keepdims=keep
        )
        if after is None:
            return total
        number = count(x.shape, dims)
        return compute(
            total.shape, lambda *i: cast(after(total[i], number), x.dtype), f"{name}_out"
        )

    return Op(op)


def _mean(total: Expr, number: int) -> Expr:
    return total / (number if is_float(total.dtype) or number else 1)


def _square(x: Expr) -> Expr:
    return x * x


def _reduce_log_sum_exp(ctx: Ctx, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """log(sum(exp(x))), with the largest finite x taken out of the sum."""
    dims = _axes(ctx, x, axes)
    keep = bool(ctx.attr("keepdims", 1))
    dtype = x.dtype if is_float(x.dtype) else "float64"
    top = reduced(x.shape, dims, lambda at, k: max(cast(x[at], dtype), k), "top", keepdims=keep)
    shift = compute(top.shape, lambda *i: select(call("isinf", top[i]), 0, top[i]), "shift")

    def term(at: Index, k: tuple[Axis, ...]) -> Reduce:
        row = [Const(INDEX, 0) if a in dims else i for a, i in enumerate(at)]
        where = tuple(row) if keep else kept(at, dims)
        return sum(call("exp", cast(x[at], dtype) - shift[where]), k)

    total = reduced(x.shape, dims, term, "sum_exp", keepdims=keep)
    return compute(
        total.shape, lambda *i: cast(call("log", total[i]) + shift[i], x.dtype), "log_sum_exp"
    )


# -- ArgMax, ArgMin, Hardmax ------------------------------------------------------------------


def arg_of(
    x: Tensor, axes: Sequence[int], *, largest: bool, last: bool = False, keepdims: bool = False
) -> Tensor:
    """Define the int32 position, flat over `axes`, of the largest or smallest element.

    The first one of equal elements, or the last one; NaN wins, as in NumPy.
    """
    best = reduced(
        x.shape, axes, lambda at, k: (max if largest else min)(x[at], k), "best", keepdims=keepdims
    )

    def position(at: Index, k: tuple[Axis, ...]) -> Reduce:
        row = [Const(INDEX, 0) if a in axes else i for a, i in enumerate(at)]
        found = eq(x[at], best[tuple(row) if keepdims else kept(at, axes)])
        if is_float(x.dtype):
            found = found | call("isnan", x[at])
        flat: Expr = Const(INDEX, 0)
        for axis in k:
            flat = flat * axis.extent + axis
        return (max if last else min)(cast(flat, "int32"), k, where=found)

    return reduced(x.shape, axes, position, "position", keepdims=keepdims)


def arg_op(largest: bool) -> Op:
    """Return ArgMax or ArgMin."""
    name = "argmax" if largest else "argmin"

    def op(ctx: Ctx, x: Tensor) -> Tensor:
        axis = ctx.axis(ctx.attr("axis", 0), x.rank)
        axes = (axis,) if x.rank else ()
        if x.rank and not x.shape[axis]:
            raise ctx.refuse(f"axis {axis} of shape {list(x.shape)} is empty.")
        found = arg_of(
            x, axes, largest=largest, last=bool(ctx.attr("select_last_index", 0)),
            keepdims=bool(ctx.attr("keepdims", 1)),
        )  # fmt: skip
        return compute(found.shape, lambda *i: cast(found[i], "int64"), name)

    return Op(op)


def _softmax_axes(ctx: Ctx, x: Tensor) -> tuple[int, ...]:
    """The axis, or before opset 13 (`coerce_2d`) that axis and all behind it."""
    if ctx.attr("coerce_2d", 0):
        axis = ctx.attr("axis", 1)
        return tuple(range(x.rank if axis == x.rank else ctx.axis(axis, x.rank), x.rank))
    return (ctx.axis(ctx.attr("axis", -1), x.rank),) if x.rank else ()


def _hardmax(ctx: Ctx, x: Tensor) -> Tensor:
    axes = _softmax_axes(ctx, x)
    found = arg_of(x, axes, largest=True)

    def element(*i: Expr) -> Expr:
        flat: Expr = Const(INDEX, 0)
        for a in axes:
            flat = flat * x.shape[a] + i[a]
        return cast(eq(cast(flat, "int32"), found[kept(i, axes)]), x.dtype)

    return compute(x.shape, element, "hardmax")


# -- Softmax ----------------------------------------------------------------------------------


def softmax(x: Tensor, axes: Sequence[int], *, log: bool = False) -> Tensor:
    """Define exp(x) / sum(exp(x)) over `axes` or its logarithm, the largest x taken out first."""
    top = reduced(x.shape, axes, lambda at, k: max(x[at], k), "top")
    shifted = compute(x.shape, lambda *i: x[i] - top[kept(i, axes)], "shifted")
    power = compute(x.shape, lambda *i: call("exp", shifted[i]), "power")
    total = reduced(x.shape, axes, lambda at, k: sum(power[at], k), "total")
    if log:
        logs = compute(total.shape, lambda *i: call("log", total[i]), "logs")
        return compute(x.shape, lambda *i: shifted[i] - logs[kept(i, axes)], "log_softmax")
    scale = compute(total.shape, lambda *i: 1 / total[i], "scale")
    return compute(x.shape, lambda *i: power[i] * scale[kept(i, axes)], "softmax")


def _softmax(ctx: Ctx, x: Tensor) -> Tensor:
    return softmax(x, _softmax_axes(ctx, x))


def _log_softmax(ctx: Ctx, x: Tensor) -> Tensor:
    return softmax(x, _softmax_axes(ctx, x), log=True)


# -- normalisation of vectors -----------------------------------------------------------------


def _lp_normalization(ctx: Ctx, x: Tensor) -> Tensor:
    """x / norm(x) along an axis; 0 where the norm is 0."""
    axes = (ctx.axis(ctx.attr("axis", -1), x.rank),)
    p = ctx.attr("p", 2)
    if p not in (1, 2):
        raise ctx.refuse(f"p must be 1 or 2, not {p}.")
    size = _abs if p == 1 else _square
    total = reduced(x.shape, axes, lambda at, k: sum(size(x[at]), k), "total")

    def norm(*i: Expr) -> Expr:
        return total[i] if p == 1 else call("sqrt", total[i])

    norms = compute(total.shape, norm, "norm")

    def element(*i: Expr) -> Expr:
        length = norms[kept(i, axes)]
        return select(eq(length, 0), 0, x[i] / length)

    return compute(x.shape, element, "lp_normalization")


def _mean_variance_normalization(ctx: Ctx, x: Tensor) -> Tensor:
    """(x - mean) / (standard deviation + 1e-9)."""
    axes = tuple(sorted({ctx.axis(a, x.rank) for a in ctx.attr("axes", (0, 2, 3))}))
    mean = mean_of(x, axes)
    var = variance_of(x, mean, axes)
    scale = compute(var.shape, lambda *i: 1 / (call("sqrt", var[i]) + 1e-9), "scale")
    return compute(x.shape, lambda *i: (x[i] - mean[kept(i, axes)]) * scale[kept(i, axes)], "mvn")


# -- CumSum, CumProd --------------------------------------------------------------------------


def cumulative_op(op: str, name: str) -> Op:
    """Return the operator that combines all elements up to each one along an axis."""

    def cumulate(ctx: Ctx, x: Tensor, axis: Tensor) -> Tensor:
        values = ctx.ints(axis, "axis")
        if len(values) != 1:
            raise ctx.refuse(f"takes one axis, not {list(values)}.")
        a = ctx.axis(values[0], x.rank)
        if not x.rank:
            raise ctx.refuse("its input must have at least one axis.")
        if not x.shape[a]:
            return compute(x.shape, lambda *i: x[i], name)
        rest = (*x.shape[:a], *x.shape[a + 1 :])
        start = reduce_identity("prod" if op == "mul" else "sum", x.dtype)
        first = compute(rest, lambda *i: start, "first")

        def step(t: Expr, state: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
            new = compute(
                rest, lambda *i: binary(op, state[i], x[(*i[:a], t, *i[a:])]), f"{name}_next"
            )
            return [new], [state if ctx.attr("exclusive", 0) else new]

        back = bool(ctx.attr("reverse", 0))
        collected, _ = scan(x.shape[a], [first], step, reverse=back, collect_axis=a, name=name)
        return collected[0]

    return Op(cumulate)


# -- Det --------------------------------------------------------------------------------------


def _det(ctx: Ctx, x: Tensor) -> Tensor:
    """Gaussian elimination with partial pivoting, one column a step."""
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise ctx.refuse(f"takes square matrices, not {list(x.shape)}.")
    lead, n = x.shape[:-2], x.shape[-1]
    one = compute(lead, lambda *b: const(1, x.dtype), "one")
    if not n:
        return one
    matrix = compute(x.shape, lambda *i: x[i], "matrix")

    def step(t: Expr, a: Tensor, det: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        column = compute(
            (*lead, n),
            lambda *i: select(binary("le", t, i[-1]), call("abs", a[(*i, t)]), const(-1, x.dtype)),
            "column",
        )
        chosen = arg_of(column, (len(lead),), largest=True)

        def row(batch: Index) -> Expr:
            return maximum(Const(INDEX, 0), cast(chosen[batch], INDEX))

        pivot = compute(lead, lambda *b: a[(*b, row(b), t)], "pivot")

        def swapped(batch: Index, i: Expr, j: Expr) -> Expr:
            p = row(batch)
            source = select(eq(i, t), p, select(eq(i, p), t, i))
            return a[(*batch, source, j)]

        factor = compute(
            (*lead, n),
            lambda *i: select(
                (i[-1] > t) & ne(pivot[i[:-1]], 0),
                swapped(i[:-1], i[-1], t) / pivot[i[:-1]],
                0,
            ),
            "factor",
        )

        def eliminated(*i: Expr) -> Expr:
            batch, j = i[:-2], i[-1]
            return swapped(batch, i[-2], j) - factor[i[:-1]] * a[(*batch, row(batch), j)]

        new = compute(x.shape, eliminated, "eliminated")
        grown = compute(
            lead,
            lambda *b: det[b] * select(eq(row(b), t), pivot[b], -pivot[b]),
            "det_next",
        )
        return [new, grown], []

    _, finals = scan(n, [matrix, one], step, name="det")
    return finals[1]


# -- Einsum -----------------------------------------------------------------------------------


def _labels(ctx: Ctx, term: str, rank: int) -> list[str]:
    """Return one label an axis; the axes of an ellipsis are numbered from the right."""
    head, dots, tail = term.partition("...")
    named = len(head) + len(tail)
    letters = head + tail
    if not all(c.isalpha() for c in letters) or (rank != named if not dots else rank < named):
        raise ctx.refuse(f"term {term!r} does not name the axes of a tensor of rank {rank}.")
    spread = [f".{n}" for n in reversed(range(rank - named))]
    return [*head, *spread, *tail]


def _einsum(ctx: Ctx, *operands: Tensor) -> Tensor:
    """Products summed over the labels that the result lacks; operands two at a time."""
    equation = "".join(str(ctx.attr("equation")).split())
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ctx.refuse(f"{len(operands)} inputs do not fit equation {equation!r}.")
    labels = [_labels(ctx, term, x.rank) for term, x in zip(terms, operands, strict=True)]
    sizes: dict[str, int] = {}
    for names, x in zip(labels, operands, strict=True):
        for label, size in zip(names, x.shape, strict=True):
            if sizes.setdefault(label, size) == 1:
                sizes[label] = size
            elif size not in (1, sizes[label]):
                raise ctx.refuse(f"label {label!r} of {equation!r} is {sizes[label]} and {size}.")
    dots = sorted((s for s in sizes if s[0] == "."), key=lambda s: -int(s[1:]))
    if arrow:
        head, ellipsis, tail = right.partition("...")
        result = [*head, *(dots if ellipsis else ()), *tail]
    else:
        once = [s for s in sizes if s[0] != "." and left.count(s) == 1]
        result = [*dots, *sorted(once)]
    if not set(result) <= set(sizes) or len(set(result)) != len(result):
        raise ctx.refuse(f"the result of equation {equation!r} names unknown or repeated labels.")

    def contract(parts: Sequence[tuple[Tensor, list[str]]], out: list[str], name: str) -> Tensor:
        found = dict.fromkeys(label for _, names in parts for label in names)
        ks = {s: reduce_axis(sizes[s], s.strip(".") or "k") for s in found if s not in out}
        ks = {s: reduce_axis(k.extent, f"k{n}") for n, (s, k) in enumerate(ks.items())}

        def element(*i: Expr) -> Expr | Reduce:
            at: dict[str, Expr] = {**dict(zip(out, i, strict=True)), **ks}
            value: Expr | None = None
            for x, names in parts:
                load = x[
                    tuple(
                        Const(INDEX, 0) if n == 1 else at[s]
                        for s, n in zip(names, x.shape, strict=True)
                    )
                ]
                value = load if value is None else value * load
            assert value is not None
            return sum(value, tuple(ks.values())) if ks else value

        return compute([sizes[s] for s in out], element, name)

    parts = list(zip(operands, labels, strict=True))
    current = parts[0]
    for position, part in enumerate(parts[1:-1], start=2):
        later = {s for _, names in parts[position:] for s in names} | set(result)
        both = [s for s in dict.fromkeys([*current[1], *part[1]]) if s in later]
        current = contract([current, part], both, "einsum_part"), both
    return contract([current, parts[-1]] if len(parts) > 1 else [current], result, "einsum")


def _sqrt(total: Expr, number: int) -> Expr:
    return call("sqrt", total)


def _log(total: Expr, number: int) -> Expr:
    return call("log", total)


def _abs(x: Expr) -> Expr:
    return call("abs", x)


REDUCE_OPS: dict[str, Op] = {
    "ReduceSum": reduce_op(sum, "sum"),
    "ReduceMean": reduce_op(sum, "mean", after=_mean),
    "ReduceMax": reduce_op(max, "max"),
    "ReduceMin": reduce_op(min, "min"),
    "ReduceProd": reduce_op(prod, "prod"),
    "ReduceL1": reduce_op(sum, "l1", before=_abs),
    "ReduceL2": reduce_op(sum, "l2", before=_square, after=_sqrt, real=True),
    "ReduceLogSum": reduce_op(sum, "log_sum", after=_log, real=True),
    "ReduceLogSumExp": Op(_reduce_log_sum_exp),
    "ReduceSumSquare": reduce_op(sum, "sum_square", before=_square),
    "ArgMax": arg_op(True),
    "ArgMin": arg_op(False),
    "Hardmax": Op(_hardmax),
    "Softmax": Op(_softmax),
    "LogSoftmax": Op(_log_softmax),
    "LpNormalization": Op(_lp_normalization),
    "MeanVarianceNormalization": Op(_mean_variance_normalization),
    "CumSum": cumulative_op("add", "cumsum"),
    "CumProd": cumulative_op("mul", "cumprod"),
    "Det": Op(_det),
    "Einsum": Op(_einsum),
}

__all__ = ["REDUCE_OPS", "arg_of", "kept", "mean_of", "reduced", "softmax", "variance_of"]
