"""StorageAlign: rows of a local buffer that start at multiples of a vector or a cache line."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolkit.ir.loop import PrimFunc
from toolkit.schedule.examples import matmul
from toolkit.schedule.steps.base import Step

ALIGN_LIMIT = 1024
"""Largest multiple, in elements."""


@dataclass(frozen=True, slots=True)
class StorageAlign(Step):
    """Give dimension `dim` of local `buffer` room for a multiple of `multiple` elements.

    Lowering adds the room, after it has shrunk the buffer to what is alive at once.

    Before::                        After (dim=1, multiple=16)::

        scratch t: float32[8, 10]       scratch t: float32[8, 10]  # room: [8, 16]
    """

    buffer: str
    dim: int
    multiple: int

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function, and a step that is legal in it."""
        return matmul(columns=10), cls("t", 1, 4)

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Refuses parameters, whose layout is the caller's, and buffers that a call takes whole."""
        buffer = next((b for b in func.locals if b.name == self.buffer), None)
        if buffer is None:
            self.refuse(func, f"{self.buffer!r} is no local buffer.")
        if not 0 <= self.dim < len(buffer.shape):
            self.refuse(func, f"{self.buffer!r} has {len(buffer.shape)} dimensions.")
        if not 1 <= self.multiple <= ALIGN_LIMIT:
            self.refuse(func, f"the multiple must lie in 1 .. {ALIGN_LIMIT}.")
        self.refuse_whole(func, self.buffer)
        room = list(buffer.multiples or (1,) * len(buffer.shape))
        room[self.dim] = self.multiple
        grown = replace(buffer, multiples=tuple(room))
        return func.with_(locals=tuple(grown if b is buffer else b for b in func.locals))
