"""What a block that slides windows over an image does: the pattern behind algorithms for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from toolkit.ir.compute import Axis
from toolkit.ir.expr import (
    all_of,
    Binary,
    binary,
    conjuncts,
    Const,
    Expr,
    INDEX,
    Load,
    substitute,
    Var,
    variables,
)
from toolkit.ir.loop import Block, blocks, CONST, fresh_name, own_loops, PrimFunc, Stmt, wrap
from toolkit.ir.regions import block_loads, writes
from toolkit.ir.simplify import bounds, linear
from toolkit.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class Windows:
    """y[batch, place.., outer] sum= x[batch, place * stride + tap * dilation + offset.., inner]
    * w[tap.., inner, outer], dimensions in any order, taps outside of x skipped.

    `top`: the nest of the block.  `dims`: dimensions of x of batch, place.. and inner.
    `stored`: dimensions of y of batch, place.. and outer.
    """

    top: Stmt
    block: Block
    data: Load
    weight: Load
    batch: Axis
    places: tuple[Axis, Axis]
    outer: Axis
    tap_axes: tuple[Axis, Axis]
    inner: Axis
    strides: tuple[int, int]
    dilations: tuple[int, int]
    offsets: tuple[int, int]
    sizes: tuple[int, int]
    dims: tuple[int, int, int, int]
    stored: tuple[int, int, int, int]
    constant: bool
    """Whether the weights are a constant that nothing else reads."""

    @property
    def out(self) -> tuple[int, int]:
        """Extents of the result in places."""
        return self.places[0].extent, self.places[1].extent

    @property
    def taps(self) -> tuple[int, int]:
        """Extents of the window."""
        return self.tap_axes[0].extent, self.tap_axes[1].extent

    @property
    def reach(self) -> tuple[int, ...]:
        """The largest of place * stride + tap * dilation along each axis."""
        return tuple(
            (o - 1) * s + (t - 1) * d
            for o, s, t, d in zip(self.out, self.strides, self.taps, self.dilations, strict=True)
        )

    @property
    def kernel(self) -> tuple[int, int]:
        """The dimensions of the weights that the taps drive; both must have an axis."""
        driven = [set(variables(i)) for i in self.weight.indices]
        first, second = (driven.index({axis.name}) for axis in self.tap_axes)
        return first, second

    def read(
        self, batch: Expr, at: Sequence[Expr], limits: Sequence[int], inner: Expr
    ) -> tuple[Load, Expr | None]:
        """Return the element of x at `at` + offset, and the condition under which there is one.

        `limits`: the largest values of `at`.
        """
        tests: list[Expr] = []
        items = [batch]
        for n, place in enumerate(at):
            index = place + self.offsets[n]
            items.append(index)
            if self.offsets[n] < 0:
                tests.append(index >= 0)
            if limits[n] + self.offsets[n] >= self.sizes[n]:
                tests.append(index < self.sizes[n])
        items.append(inner)
        placed = dict(zip(self.dims, items, strict=True))
        indices = tuple(placed[d] for d in range(len(self.dims)))
        return Load(self.data.dtype, self.data.buffer, indices), all_of(*tests)

    def weighted(self, taps: Sequence[Expr], inner: Expr, outer: Expr) -> Load:
        """Return an element of the weights."""
        axes = (*self.tap_axes, self.inner, self.outer)
        values = {a.name: e for a, e in zip(axes, (*taps, inner, outer), strict=True)}
        indices = tuple(substitute(i, values) for i in self.weight.indices)
        return Load(self.weight.dtype, self.weight.buffer, indices)

    def place(self, batch: Expr, at: Sequence[Expr], outer: Expr) -> tuple[Expr, ...]:
        """Return the subscripts of an element of y."""
        placed = dict(zip(self.stored, (batch, *at, outer), strict=True))
        return tuple(placed[d] for d in range(len(self.stored)))


def windows_of(step: Step, func: PrimFunc, name: str) -> Windows:
    """Return what a block slides over what; the step refuses where it does something else.

    Taps and channels of an extent of 1, which have no axis, get one that drives nothing.
    """
    loops, block = step.find(func, name)
    own = own_loops(loops)

    def no(why: str) -> NoReturn:
        step.refuse(func, f"block {name!r} is no convolution over two axes: {why}.")

    if block.reduce != "sum" or block.update_only or block.init is not None:
        no("it is no sum from zero")
    if len(own) != len(loops) or not own:
        no("its loops hold other blocks too")
    if [b.name if isinstance(b, Var) else "" for b in block.binds] != [l.var for l in own]:
        no("its loops were transformed before")
    if sum(block.buffer in writes(b) for b in blocks(func.body)) > 1:
        no(f"other blocks write {block.buffer!r}")
    if not isinstance(block.value, Binary) or block.value.op != "mul":
        no("it sums no products")
    factors = [f for f in (block.value.a, block.value.b) if isinstance(f, Load)]
    weight = next((f for f in factors if _is_weight(f, block)), None)
    if weight is None or len(factors) != 2:
        no("no operand is one element a tap, input and output channel")
    data = factors[0] if factors[1] is weight else factors[1]
    spatial = [a for a in block.axes if a.role == "spatial"]
    if len(data.indices) != 4 or len(spatial) != 4:
        no("its operands have not four dimensions")
    if not all(isinstance(i, Var) for i in block.indices):
        no("it does not store one element an axis")
    taken = {a.name for a in block.axes}
    slides = [_slide(block, n, index, taken) for n, index in enumerate(data.indices)]
    whole = [s for s in slides if s is not None]
    channels = [s for s in whole if s.place is None]
    still = [s for s in whole if s.place is not None and s.plain]
    if len(whole) != 4 or len(channels) != 1 or not still:
        no(f"its subscripts of {data.buffer!r} are no batch, channel, and two places and taps")
    first, second = (s for s in whole if s is not channels[0] and s is not still[0])
    batch, places = still[0].place, (first.place, second.place)
    outer = next(a for a in spatial if a.name in _names(weight))
    if batch is None or places[0] is None or places[1] is None or outer in (batch, *places):
        no("its output channel is a place too")
    buffers = func.buffers()
    shape = buffers[data.buffer].shape
    stored = {i.name: d for d, i in enumerate(block.indices) if isinstance(i, Var)}
    alone = not any(
        load.buffer == weight.buffer
        for b in blocks(func.body)
        if b is not block
        for load in block_loads(b)
    )
    windows = Windows(
        own[0], block, data, weight, batch, (places[0], places[1]), outer,
        (first.tap, second.tap), channels[0].tap, (first.stride, second.stride),
        (first.dilation, second.dilation), (first.offset, second.offset),
        (shape[first.dim], shape[second.dim]),
        (still[0].dim, first.dim, second.dim, channels[0].dim),
        (stored[batch.name], stored[places[0].name], stored[places[1].name], stored[outer.name]),
        buffers[weight.buffer].scope == CONST and alone,
    )  # fmt: skip
    if not _skips_outside(windows):
        no("its guard is not that the windows lie inside")
    return windows


@dataclass(frozen=True, slots=True)
class _Slide:
    """One dimension of x: place * stride + tap * dilation + offset; no place for the channel."""

    dim: int
    place: Axis | None
    tap: Axis
    stride: int
    dilation: int
    offset: int

    @property
    def plain(self) -> bool:
        """Whether the dimension is the place itself."""
        return (self.tap.extent, self.stride, self.offset) == (1, 1, 0)


def _slide(block: Block, dim: int, index: Expr, taken: set[str]) -> _Slide | None:
    """Return what a subscript of x is; None if it is something else."""
    axes = {a.name: a for a in block.axes}
    terms, offset = linear(index)
    by_role: dict[str, tuple[Axis, int]] = {}
    for atom, k in terms.items():
        if not isinstance(atom, Var) or k < 1 or axes[atom.name].role in by_role:
            return None
        by_role[axes[atom.name].role] = axes[atom.name], k
    place, stride = by_role.get("spatial", (None, 1))
    none = Axis(INDEX, "none", 1, "reduce")
    tap, dilation = by_role.get("reduce", (none, 1))
    if tap is none:
        tap = replace(none, name=fresh_name(f"t{dim}", taken))
    if place is None and (offset, dilation) != (0, 1):
        return None
    return _Slide(dim, place, tap, stride, dilation, offset)


def _is_weight(load: Load, block: Block) -> bool:
    """Tell whether a load takes each reduce axis, and one more, as a subscript."""
    reduce = {a.name for a in block.axes if a.role == "reduce"}
    names = _names(load)
    fixed = sum(isinstance(i, Const) and i.value == 0 for i in load.indices)
    return (
        len(names) == len(set(names)) == len(reduce) + 1
        and fixed + len(names) == len(load.indices)
        and reduce < set(names)
    )


def _names(load: Load) -> list[str]:
    return [i.name for i in load.indices if isinstance(i, Var)]


def _skips_outside(windows: Windows) -> bool:
    """Tell whether the guard holds exactly where the subscripts of x lie inside it."""
    ranges = {a.name: (0, a.extent - 1) for a in windows.block.axes}
    wanted: set[tuple[frozenset[tuple[Expr, int]], int]] = set()
    for dim, size in zip(windows.dims[1:3], windows.sizes, strict=True):
        index = windows.data.indices[dim]
        reach = bounds(index, ranges)
        assert reach is not None
        if reach[0] < 0:
            wanted.add(_positive(index))
        if reach[1] >= size:
            wanted.add(_positive(binary("sub", size - 1, index)))
    found: set[tuple[frozenset[tuple[Expr, int]], int]] = set()
    for test in conjuncts(windows.block.guard):
        if not isinstance(test, Binary) or test.op not in ("lt", "le") or test.a.dtype != INDEX:
            return False
        slack = binary("sub", test.b, test.a)
        if test.op == "lt":
            slack = binary("sub", slack, Const(INDEX, 1))
        least = bounds(slack, ranges)
        if least is None or least[0] < 0:
            found.add(_positive(slack))
    return found == wanted


def _positive(expr: Expr) -> tuple[frozenset[tuple[Expr, int]], int]:
    """Return a key of the condition that an index expression is not negative."""
    terms, constant = linear(expr)
    return frozenset(
        (Var(INDEX, e.name) if isinstance(e, Var) else e, k) for e, k in terms.items()
    ), constant


def unravel(index: Expr, extents: Sequence[int]) -> list[Expr]:
    """Return the indices of an element by its number in row-major order."""
    result: list[Expr] = []
    inner = 1
    for position in range(len(extents) - 1, -1, -1):
        item = index // inner
        result.insert(0, item % extents[position] if math.prod(extents[:position]) > 1 else item)
        inner *= extents[position]
    return [Const(INDEX, 0) if n == 1 else i for n, i in zip(extents, result, strict=True)]


def nest_around(block: Block, taken: set[str]) -> Stmt:
    """Return serial loops, with names not in `taken`, one an axis of the block, around it."""
    loops = [(fresh_name(a.name, taken), a.extent, a.role) for a in block.axes]
    binds = tuple(Var(INDEX, var) for var, _, _ in loops)
    return wrap(loops, replace(block, binds=binds))
