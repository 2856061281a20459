"""Tensor intrinsics: instructions that compute a small loop nest, such as dot products of bytes.

An intrinsic is data: the nest it computes, how each operand's elements come into registers, and C
text.  `ir.unify` finds the nest in a kernel; the step `Tensorize` marks the place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toolkit.ir.loop import Block, Loop, PrimFunc, SPATIAL, walk_stmt


@dataclass(frozen=True, slots=True)
class TensorOperand:
    """How the elements of one operand come into registers of type `c_type`.

    `loads`: C text of each register, {0} standing for the address of its first element; of the
    result, which is accumulated in place, none.  Each iteration of the loops `over` has registers
    of its own, whose elements may lie anywhere; within, elements lie as in the nest's buffer.
    `partial`: the same texts where only the first {1} elements along the intrinsic's `tail` exist.
    `following`: where a load can move its pointer on, the text of a load that does, {0} standing
    for the pointer's address.
    """

    c_type: str
    loads: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    following: str = ""


@dataclass(frozen=True, slots=True)
class TensorIntrinsic:
    """`nest` as C statements.

    `nest` is one block in loops, accumulating in its output; `c` are statements, of which copies of
    the intrinsic side by side take turns.  They name registers {A0}, {A1}, ...: a buffer of the
    nest and a number, loops `over` first, then `loads`; a buffer without dimensions may be a
    literal in the kernel.  Where the output is stored, not accumulated in, {C} is its address.
    `tail`: the loop of which any number of leading iterations can be computed, by `c_partial`, {n}
    standing for it.
    `c_first`: the statements where the result was zero before, if those are shorter.
    """

    name: str
    nest: PrimFunc
    operands: Mapping[str, TensorOperand]
    c: tuple[str, ...]
    tail: str | None = None
    c_partial: tuple[str, ...] = ()
    c_first: tuple[str, ...] = ()

    @property
    def loops(self) -> list[Loop]:
        """Loops of the nest, outermost first."""
        return [s for s in walk_stmt(self.nest.body) if isinstance(s, Loop)]

    @property
    def block(self) -> Block:
        """The block of the nest."""
        return next(s for s in walk_stmt(self.nest.body) if isinstance(s, Block))

    @property
    def result(self) -> str:
        """Name of the buffer that is accumulated in."""
        return self.nest.outputs[0].name

    def points(self, operand: str) -> Iterator[dict[str, int]]:
        """Yield the iterations of the loops `over` of an operand, in the order of registers."""
        over = self.operands[operand].over
        loops = [l for l in self.loops if l.var in over]
        for values in itertools.product(*(range(l.extent) for l in loops)):
            yield {l.var: v for l, v in zip(loops, values, strict=True)}

    def lanes(self) -> int:
        """Return how many elements one register of the result holds."""
        over = self.operands[self.result].over
        lanes = 1
        for loop in self.loops:
            if loop.role == SPATIAL and loop.var not in over:
                lanes *= loop.extent
        return lanes


def tensor_table(*intrinsics: TensorIntrinsic) -> dict[str, TensorIntrinsic]:
    """Return intrinsics by name."""
    return {intrinsic.name: intrinsic for intrinsic in intrinsics}
