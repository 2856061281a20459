"""What a block that slides windows over an image does: the pattern behind algorithms for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
        """The dimensions of the weights that the taps drive."""
        names = [next(iter(variables(i))) for i in self.weight.indices]
        return names.index(self.tap_axes[0].name), names.index(self.tap_axes[1].name)

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
    """Return what a block slides over what; the step refuses where it does something else."""
    loops, block = step.find(func, name)
    own = own_loops(loops)

    def no(why: str) -> None:
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
    assert isinstance(block.value, Binary)
    axes = {a.name: a for a in block.axes}
    reduce = {a.name for a in block.axes if a.role == "reduce"}
    factors = [block.value.a, block.value.b]
    if not all(isinstance(f, Load) for f in factors) or len(reduce) != 3 or len(axes) != 7:
        no("it does not sum products of two operands over three axes")
    weights = [f for f in factors if isinstance(f, Load) and _permutes(f, axes, reduce)]
    if len(weights) != 1:
        no("no operand is one element a tap, input and output channel")
    weight = weights[0]
    data = factors[0] if factors[1] is weight else factors[1]
    assert isinstance(data, Load)
    if len(data.indices) != 4 or not all(isinstance(i, Var) for i in block.indices):
        no("its operands have not four dimensions")
    outer = next(n for i in weight.indices for n in variables(i) if n not in reduce)
    dims: dict[str, int] = {}
    sliding: list[tuple[int, Axis, Axis, int, int, int]] = []
    for dim, index in enumerate(data.indices):
        terms, offset = linear(index)
        names = {e.name: k for e, k in terms.items() if isinstance(e, Var)}
        if len(names) != len(terms):
            no("its subscripts are not linear")
        over = [n for n in names if n in reduce]
        if len(names) == 1 and offset == 0 and set(names.values()) == {1}:
            dims[next(iter(names))] = dim
        elif len(names) == 2 and len(over) == 1:
            place = next(n for n in names if n not in reduce)
            tap = over[0]
            sliding.append((dim, axes[place], axes[tap], names[place], names[tap], offset))
        else:
            no(f"dimension {dim} of {data.buffer!r} is no place and tap")
    plain_reduce = [n for n in dims if n in reduce]
    batch = [n for n in dims if n not in reduce]
    if len(sliding) != 2 or len(plain_reduce) != 1 or len(batch) != 1 or batch[0] == outer:
        no("two dimensions slide, one is the batch and one the channel")
    if any(s[3] < 1 or s[4] < 1 for s in sliding):
        no("its windows run backwards")
    buffers = func.buffers()
    shape = buffers[data.buffer].shape
    stored = {i.name: d for d, i in enumerate(block.indices) if isinstance(i, Var)}
    first, second = sliding
    constant = buffers[weight.buffer].scope == CONST and not any(
        load.buffer == weight.buffer
        for b in blocks(func.body)
        if b is not block
        for load in block_loads(b)
    )
    windows = Windows(
        own[0], block, data, weight, axes[batch[0]], (first[1], second[1]), axes[outer],
        (first[2], second[2]), axes[plain_reduce[0]], (first[3], second[3]),
        (first[4], second[4]), (first[5], second[5]), (shape[first[0]], shape[second[0]]),
        (dims[batch[0]], first[0], second[0], dims[plain_reduce[0]]),
        (stored[batch[0]], stored[first[1].name], stored[second[1].name], stored[outer]),
        constant,
    )  # fmt: skip
    if not _skips_outside(windows, axes):
        no("its guard is not that the windows lie inside")
    return windows


def _permutes(load: Load, axes: dict[str, Axis], reduce: set[str]) -> bool:
    """Tell whether a load takes each reduce axis, and one more, as a subscript."""
    names = [i.name for i in load.indices if isinstance(i, Var)]
    return (
        len(names) == len(load.indices) == len(set(names)) == 4
        and reduce < set(names)
        and set(names) <= set(axes)
    )


def _skips_outside(windows: Windows, axes: dict[str, Axis]) -> bool:
    """Tell whether the guard holds exactly where the subscripts of x lie inside it."""
    ranges = {a.name: (0, a.extent - 1) for a in axes.values()}
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


def nest_around(block: Block, taken: set[str]) -> Stmt:
    """Return serial loops, with names not in `taken`, one an axis of the block, around it."""
    loops = [(fresh_name(a.name, taken), a.extent, a.role) for a in block.axes]
    binds = tuple(Var(INDEX, var) for var, _, _ in loops)
    return wrap(loops, replace(block, binds=binds))
