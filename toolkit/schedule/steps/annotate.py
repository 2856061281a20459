"""Unroll, Vectorize, Parallel, Annotate: how a loop is run, and what is to be said about it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.expr import variables
from toolkit.ir.loop import (
    blocks,
    Loop,
    PARALLEL,
    PrimFunc,
    REDUCE,
    replace_loop,
    SCAN,
    SPATIAL,
    UNROLL,
    VECTORIZE,
    walk_stmt,
)
from toolkit.ir.regions import accesses, bound_expr
from toolkit.schedule.examples import copy_rows, row_sums
from toolkit.schedule.steps.base import Step

UNROLL_LIMIT = 128
"""Copies one unrolled loop may print: beyond it code size hurts more than it helps."""


@dataclass(frozen=True, slots=True)
class Unroll(Step):
    """Print the body of `loop` once an iteration.

    Before::                        After::

        for i in 2:                     y: y[0] = a[0]
          y: y[i] = a[i]                y: y[1] = a[1]
    """

    loop: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return row_sums(), cls("k")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses loops of more than UNROLL_LIMIT iterations."""
        loop = self.find_loop(func, self.loop)
        if loop.extent > UNROLL_LIMIT:
            self.refuse(
                func, f"loop {self.loop!r} has {loop.extent} iterations, over {UNROLL_LIMIT}."
            )
        return func.with_(body=replace_loop(func.body, loop, replace(loop, kind=UNROLL)))


@dataclass(frozen=True, slots=True)
class Vectorize(Step):
    """Run the iterations of `loop` in the lanes of vectors; a tail shorter than a vector is masked.

    Before::                        After (4 lanes)::

        for i in 8:                     y[0:4] = a[0:4]
          y: y[i] = a[i]                y[4:8] = a[4:8]
    """

    loop: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return copy_rows(), cls("j")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses recurrences and loops that hold another loop.

        The lanes of a reduce loop are reduced to one value at the end of each vector.
        """
        loop = self.find_loop(func, self.loop)
        if loop.role == SCAN:
            self.refuse(func, f"loop {self.loop!r} is a {loop.role} loop.")
        if any(isinstance(s, Loop) for s in walk_stmt(loop.body)):
            self.refuse(func, f"loop {self.loop!r} is not innermost.")
        return func.with_(body=replace_loop(func.body, loop, replace(loop, kind=VECTORIZE)))


@dataclass(frozen=True, slots=True)
class Parallel(Step):
    """Let the iterations of `loop` run on several cores.

    Before::                        After::

        for i in 8:                     for i in 8:  # parallel
          y: y[i] = a[i]                  y: y[i] = a[i]
    """

    loop: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return copy_rows(), cls("i")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses loops that carry a reduction or recurrence, or that share buffers."""
        loop = self.find_loop(func, self.loop)
        if loop.role != SPATIAL:
            self.refuse(func, f"loop {self.loop!r} is a {loop.role} loop.")
        outputs = {b.name for b in func.outputs}
        for block in blocks(loop):
            for axis, bind in zip(block.axes, block.binds, strict=True):
                if axis.role == REDUCE and loop.var in variables(bind):
                    self.refuse(func, f"block {block.name!r} reduces over loop {self.loop!r}.")
            own = any(loop.var in variables(bound_expr(block, i)) for i in block.indices)
            shared = block.buffer in outputs or (
                len(accesses(func.body, block.buffer) or ())
                != len(accesses(loop, block.buffer) or ())
            )
            if shared and not own:
                self.refuse(func, f"every iteration writes the same elements of {block.buffer!r}.")
        return func.with_(body=replace_loop(func.body, loop, replace(loop, kind=PARALLEL)))


NOTES = ("comment",)
"""Keys of notes.  `comment`: printed above the loop in C."""


@dataclass(frozen=True, slots=True)
class Annotate(Step):
    """Keep a note on `loop`, in place of one with the same key.

    Before::                        After (key="comment", value="rows")::

        for i in 8:                     for i in 8:  # comment: rows
          y: y[i] = a[i]                  y: y[i] = a[i]
    """

    loop: str
    key: str
    value: str

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return copy_rows(), cls("i", "comment", "rows of the batch")

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses unknown keys, and values that do not fit in a comment of one line."""
        loop = self.find_loop(func, self.loop)
        if self.key not in NOTES:
            self.refuse(func, f"there is no note {self.key!r}.", f"notes: {', '.join(NOTES)}")
        if not self.value.isprintable() or any(mark in self.value for mark in ("*/", "/*")):
            self.refuse(func, f"{self.value!r} is no text of one line for a comment in C.")
        kept = tuple(note for note in loop.notes if note[0] != self.key)
        noted = replace(loop, notes=(*kept, (self.key, self.value)))
        return func.with_(body=replace_loop(func.body, loop, noted))
