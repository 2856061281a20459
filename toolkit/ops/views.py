"""Operators that give storage another shape: Reshape, Flatten, Squeeze, Unsqueeze, Identity."""

from __future__ import annotations

import math
from collections.abc import Sequence

from toolkit.ir.compute import compute, Tensor
from toolkit.ir.expr import Const, Expr, INDEX
from toolkit.ops.op import Ctx, Op


def runs(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]] | None:
    """Cut two shapes of as many elements into the shortest runs of axes with equal products.

    Axes of extent 1 are left out.  None where the shapes cannot be matched.
    """
    found: list[tuple[list[int], list[int]]] = []
    left = [i for i, n in enumerate(before) if n != 1]
    right = [i for i, n in enumerate(after) if n != 1]
    i = j = 0
    while i < len(left) and j < len(right):
        a, b = [left[i]], [right[j]]
        x, y = before[left[i]], after[right[j]]
        i, j = i + 1, j + 1
        while x != y:
            if x < y and i < len(left):
                x *= before[left[i]]
                a.append(left[i])
                i += 1
            elif y < x and j < len(right):
                y *= after[right[j]]
                b.append(right[j])
                j += 1
            else:
                return None
        found.append((a, b))
    return found if i == len(left) and j == len(right) else None


def reshaped(x: Tensor, shape: tuple[int, ...], name: str = "reshape") -> Tensor:
    """Return `x` under another shape with as many elements, as a compute expression.

    Only axes that are joined or split take arithmetic; the others keep their index.
    """
    if shape == x.shape:
        return compute(shape, lambda *i: x[i], name)
    found = runs(x.shape, shape) if 0 not in shape else None
    if found is None:
        found = [(list(range(x.rank)), list(range(len(shape))))]

    def element(*index: Expr) -> Expr:
        source: list[Expr] = [Const(INDEX, 0)] * x.rank
        for before, after in found:
            flat = index[after[0]]
            for axis in after[1:]:
                flat = flat * shape[axis] + index[axis]
            stride = math.prod(x.shape[axis] for axis in before)
            for axis in before:
                extent = max(x.shape[axis], 1)
                stride //= extent
                value = flat if stride == 1 else flat // stride
                source[axis] = value if axis == before[0] else value % extent
        return x[tuple(source)]

    return compute(shape, element, name)


def _reshape(ctx: Ctx, x: Tensor, shape: Tensor) -> Tensor:
    wanted = list(ctx.ints(shape, "shape"))
    if not ctx.attr("allowzero", 0):
        for i, n in enumerate(wanted):
            if n == 0:
                if i >= x.rank:
                    raise ctx.refuse(f"shape {wanted} copies axis {i}, which the input has not.")
                wanted[i] = x.shape[i]
    size = math.prod(x.shape)
    if wanted.count(-1) == 1:
        rest = math.prod(n for n in wanted if n != -1)
        if rest == 0 or size % rest:
            raise ctx.refuse(f"{size} elements do not fit shape {wanted}.")
        wanted[wanted.index(-1)] = size // rest
    if math.prod(wanted) != size or any(n < 0 for n in wanted):
        raise ctx.refuse(f"{size} elements do not fit shape {wanted}.")
    return reshaped(x, tuple(wanted))


def _flatten(ctx: Ctx, x: Tensor) -> Tensor:
    axis = ctx.attr("axis", 1)
    if not -x.rank <= axis <= x.rank:
        raise ctx.refuse(f"axis {axis} is out of range for a tensor of rank {x.rank}.")
    axis = axis + x.rank if axis < 0 else axis
    return reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), "flatten")


def _squeeze(ctx: Ctx, x: Tensor, axes: Tensor | None = None) -> Tensor:
    if axes is None:
        drop = {i for i, n in enumerate(x.shape) if n == 1}
    else:
        drop = {ctx.axis(a, x.rank) for a in ctx.ints(axes, "axes")}
    for i in sorted(drop):
        if x.shape[i] != 1:
            raise ctx.refuse(f"axis {i} of shape {list(x.shape)} is not 1.")
    return reshaped(x, tuple(n for i, n in enumerate(x.shape) if i not in drop), "squeeze")


def _unsqueeze(ctx: Ctx, x: Tensor, axes: Tensor) -> Tensor:
    values = ctx.ints(axes, "axes")
    rank = x.rank + len(values)
    places = {ctx.axis(a, rank) for a in values}
    if len(places) != len(values):
        raise ctx.refuse(f"axes {list(values)} name an axis twice.")
    rest = iter(x.shape)
    return reshaped(x, tuple(1 if i in places else next(rest) for i in range(rank)), "unsqueeze")


def _identity(ctx: Ctx, x: Tensor) -> Tensor:
    return compute(x.shape, lambda *i: x[i], "copy")


VIEW_OPS: dict[str, Op] = {
    "Reshape": Op(_reshape, view=True),
    "Flatten": Op(_flatten, view=True),
    "Squeeze": Op(_squeeze, view=True),
    "Unsqueeze": Op(_unsqueeze, view=True),
    "Identity": Op(_identity, view=True),
}
