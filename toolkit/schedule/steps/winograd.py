"""Winograd: a 3x3 convolution as transforms of tiles around a product of matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

import numpy as np

from toolkit.ir.compute import Axis
from toolkit.ir.expr import all_of, Const, const, eq, Expr, INDEX, Load, select
from toolkit.ir.loop import Block, Buffer, fresh_name, PrimFunc, rewrite_stmt, SCRATCH, seq, Stmt
from toolkit.schedule.examples import convolution
from toolkit.schedule.steps.base import block_names, loop_names, Step
from toolkit.schedule.steps.windows import nest_around, unravel, Windows, windows_of

TAPS = 3
POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}
"""Where the polynomials of F(m, 3) are taken, besides infinity; by m.

The usual points of m = 4, 1, -1, 2 and -2, give 4 times the error of these.  That it is smallest
for points near 1 in magnitude and apart: Barabasz et al., ACM TOMS 46(4), 2020.
"""

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True, slots=True)
class Transform:
    """y = A^T [(G g) * (B^T d)], the m outputs of 3 taps over m + 2 inputs.

    `outputs` is A^T, `taps` is G, `inputs` is B^T.  Of groups of columns, each row holds multiples
    of few combinations, so that rows share them: `output_groups`, `input_groups`.
    """

    outputs: Matrix
    taps: Matrix
    inputs: Matrix
    output_groups: tuple[tuple[int, ...], ...]
    input_groups: tuple[tuple[int, ...], ...]


@cache
def transform(m: int) -> Transform:
    """Return the transform of F(m, 3): Toom and Cook's, transposed.

    Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016; Blahut,
    Fast Algorithms for Signal Processing, section 5.2.
    """
    points = POINTS[m]
    count = len(points) + 1
    outputs = [[x**k for x in points] + [Fraction(k == m - 1)] for k in range(m)]
    taps, inputs = [], []
    for x in points:
        others = [y for y in points if y != x]
        scale = math.prod((x - y for y in others), start=Fraction(1))
        taps.append([x**k / scale for k in range(TAPS)])
        inputs.append([*_from_roots(others), Fraction(0)])
    taps.append([Fraction(k == TAPS - 1) for k in range(TAPS)])
    inputs.append(_from_roots(points))
    pairs = [(i, i + 1) for i in range(1, len(points), 2)]
    return Transform(
        _frozen(outputs), _frozen(taps), _frozen(inputs), ((0,), *pairs, (count - 1,)),
        (tuple(range(0, count, 2)), tuple(range(1, count, 2))),
    )  # fmt: skip


def _frozen(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(map(tuple, rows))


def _from_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the product of (x - root), lowest power first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        scaled = [-root * c for c in coefficients] + [Fraction(0)]
        coefficients = [a + b for a, b in zip(shifted, scaled, strict=True)]
    return coefficients


def combination(
    row: Sequence[Fraction], groups: Sequence[Sequence[int]], elements: Sequence[Expr]
) -> Expr:
    """Return the sum of row[i] * elements[i], each group of terms a multiple of one expression.

    The expression of a group depends on the ratios of its coefficients only.
    """
    scaled: list[tuple[Fraction, Expr]] = []
    for group in groups:
        terms = [(row[i], elements[i]) for i in group if row[i]]
        if terms:
            pivot = terms[-1][0]
            scaled.append((pivot, _total([(c / pivot, e) for c, e in terms])))
    return _total(scaled)


def _total(terms: Sequence[tuple[Fraction, Expr]]) -> Expr:
    """Return a sum of multiples, products to the left of sums, where they fuse."""
    start = next((n for n, (c, _) in enumerate(terms) if c == 1), 0)
    c, total = terms[start]
    if c != 1:
        total = _exact(c, total) * total
    for n, (c, e) in enumerate(terms):
        if n == start:
            continue
        if c == 1:
            total = total + e
        elif c == -1:
            total = total - e
        else:
            total = _exact(c, e) * e + total
    return total


def _exact(c: Fraction, e: Expr) -> Expr:
    assert Fraction(float(c)) == c, f"{c} would be rounded"
    return const(float(c), e.dtype)


@dataclass(frozen=True, slots=True)
class Winograd(Step):
    """Compute a 3x3 convolution of stride 1 by F(m x m, 3x3), m = 2 or 4.

    Tiles of m x m results need 16 (m = 2) or 36 (m = 4) products a channel, not 36 or 144.
    `operand` holds the constant weights and `kernel` its dimensions of the taps, which become m + 2
    long: the data is transformed when compiling.  Tiles run beyond the result where m does not
    divide it; a guard skips what is there.

    Rounding differs.  The largest error of random convolutions of 128 channels in float32, over the
    largest result: 3e-7 (direct), 4e-7 (m = 2), 1.9e-6 (m = 4).

    Before::                                  After (m=2; p counts tiles, from row h, column v)::

        for oh, ow, oc, kh, kw, ic:               for p, a, b, ic: d = x[h + a - 1, v + b - 1, ic]
          y: y[oh, ow, oc] sum=                   for p, i, b, ic: s = (B^T d)[i, b]
            x[oh + kh - 1, ow + kw - 1, ic]       for i, j, p, ic: v = (s B)[i, j]
            * w[kh, kw, ic, oc]                   for i, j, p, oc, ic: u[i, j, p, oc] sum= v * w
                                                  for p, r, j, oc: o = (A^T u)[r, j]
                                                  for p, r, s, oc: y[h + r, v + s, oc] = (o A)[r, s]
    """

    block: str
    operand: str
    kernel: tuple[int, int]
    m: int

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return convolution(), cls("y", "w", (0, 1), 2)

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses other convolutions, weights that are no constant, and results below m x m."""
        if self.m not in POINTS:
            self.refuse(func, f"there is no tile of {self.m}.", "m is 2 or 4.")
        windows = windows_of(self, func, self.block)
        why = unsuitable(windows)
        if why is not None:
            self.refuse(func, why)
        if windows.weight.buffer != self.operand or windows.kernel != self.kernel:
            self.refuse(
                func,
                f"the taps are dimensions {windows.kernel} of {windows.weight.buffer!r}.",
            )
        if min(windows.out) < self.m:
            down, across = windows.out
            self.refuse(func, f"a tile of {self.m} is larger than the result, {down} x {across}.")
        nests, locals_ = _nests(func, windows, self.m)
        weight = replace(
            func.buffers()[self.operand],
            shape=tuple(
                self.m + 2 if d in self.kernel else n
                for d, n in enumerate(func.buffers()[self.operand].shape)
            ),
        )
        body = rewrite_stmt(func.body, lambda s: seq(*nests) if s is windows.top else None)
        assert body is not None
        return func.with_(
            body=body,
            inputs=tuple(weight if b.name == self.operand else b for b in func.inputs),
            locals=(*func.locals, *locals_),
        )

    def laid_out(self) -> str:
        """Return the weights."""
        return self.operand

    def layout_data(self, data: np.ndarray, *others: np.ndarray) -> np.ndarray:
        """Return G g G^T in place of each g; in double precision, rounded once."""
        matrix = np.array(transform(self.m).taps, dtype=object)
        if data.dtype != object:  # of exact fractions, as the interpreter's are
            matrix = matrix.astype(np.float64)
        taps = np.moveaxis(data.astype(matrix.dtype), self.kernel, (-2, -1))
        result: np.ndarray = np.moveaxis(matrix @ taps @ matrix.T, (-2, -1), self.kernel)
        return result.astype(data.dtype)

    def layout_tag(self) -> str:
        """Return what names the layout among those of one constant."""
        return f"winograd{self.m}at{'x'.join(map(str, self.kernel))}"


def unsuitable(windows: Windows) -> str | None:
    """Tell why a convolution has no Winograd form; None if it has one."""
    if not windows.constant:
        return f"the weights {windows.weight.buffer!r} are no constant that this block alone reads."
    if windows.taps != (TAPS, TAPS) or windows.strides != (1, 1) or windows.dilations != (1, 1):
        return "only 3x3 taps of stride and dilation 1 have this form."
    if windows.weight.dtype not in ("float32", "float64"):
        return f"{windows.weight.dtype} would be rounded."
    return None


def tile_counts(windows: Windows, m: int) -> tuple[int, int, int]:
    """Return how many tiles there are: images, down, across."""
    return windows.batch.extent, -(-windows.out[0] // m), -(-windows.out[1] // m)


def _nests(func: PrimFunc, windows: Windows, m: int) -> tuple[list[Stmt], list[Buffer]]:
    """Return the stages, and the buffers between them."""
    form, size = transform(m), m + 2
    images, down, across = tile_counts(windows, m)
    buffers, names = set(func.buffers()), block_names(func)
    loops = loop_names(func)
    dtype = windows.weight.dtype
    ic, oc = (replace(a, role="spatial") for a in (windows.inner, windows.outer))
    taken = {ic.name, oc.name}

    def axis(name: str, extent: int) -> Axis:
        return Axis(INDEX, fresh_name(name, taken), extent, "spatial")

    p = axis("p", images * down * across)
    a, b, i, j = (axis(n, size) for n in "abij")
    r, s = axis("r", m), axis("s", m)
    made: list[Buffer] = []
    nests: list[Stmt] = []

    def stage(
        suffix: str, axes: Sequence[Axis], value: Expr, reduce: Axis | None = None
    ) -> tuple[Axis, ...]:
        """Add a stage that stores an element an axis; return the axes of its buffer."""
        name = fresh_name(f"{windows.block.buffer}_{suffix}", buffers)
        made.append(Buffer(name, tuple(x.extent for x in axes), dtype, SCRATCH))
        every = (*axes, *([] if reduce is None else [reduce]))
        block = fresh_name(f"{windows.block.name}_{suffix}", names)
        op = None if reduce is None else "sum"
        made_by = Block(block, every, (), name, tuple(axes), value, op)
        nests.append(nest_around(made_by, loops))
        return tuple(axes)

    def last(axes: Sequence[Axis], where: Mapping[Axis, Expr]) -> Load:
        """Return an element of the last stage, of `axes`: of the same ones, but for `where`."""
        return Load(dtype, made[-1].name, tuple(where.get(x, x) for x in axes))

    def rows(
        matrix: Sequence[Sequence[Fraction]], groups: Sequence[Sequence[int]], row: Axis,
        axes: Sequence[Axis], column: Axis,
    ) -> Expr:  # fmt: skip
        """Return the element at `row` of a matrix times the last stage along `column`."""
        elements = [last(axes, {column: Const(INDEX, n)}) for n in range(column.extent)]
        values = [combination(line, groups, elements) for line in matrix]
        chosen = values[-1]
        for n, value in reversed(list(enumerate(values[:-1]))):
            chosen = select(eq(row, n), value, chosen)
        return chosen

    image, row, column = unravel(p, (images, down, across))
    starts = [row * m, column * m]
    at = [start + tap for start, tap in zip(starts, (a, b), strict=True)]
    data, inside = windows.read(image, at, (down * m + 1, across * m + 1), ic)
    value = data if inside is None else select(inside, data, 0.0)
    axes = stage("d", (p, a, b, ic), value)
    axes = stage("s", (p, i, b, ic), rows(form.inputs, form.input_groups, i, axes, a))
    axes = stage("v", (i, j, p, ic), rows(form.inputs, form.input_groups, j, axes, b))
    weight = windows.weighted((i, j), windows.inner, oc)
    product = last(axes, {ic: windows.inner}) * weight
    axes = stage("u", (i, j, p, oc), product, windows.inner)
    axes = stage("o", (p, r, j, oc), rows(form.outputs, form.output_groups, r, axes, i))
    places = [start + x for start, x in zip(starts, (r, s), strict=True)]
    uneven = [place < out for place, out in zip(places, windows.out, strict=True) if out % m]
    result = Block(
        windows.block.name, (p, r, s, oc), (), windows.block.buffer,
        windows.place(image, places, oc), rows(form.outputs, form.output_groups, s, axes, j),
        guard=all_of(*uneven),
    )  # fmt: skip
    nests.append(nest_around(result, loops))
    return nests, made
