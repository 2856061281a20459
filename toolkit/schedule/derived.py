"""Fields of schedule steps that are not known before a sketch is replayed, and are no choice.

After a tile of one row there is no loop over rows: a sketch says `Unroll(IfLoop("i"))`, and the
step is left out.  The packing of a constant follows the tile: `Pack("w", 1, ExtentOf("j.1"))`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolkit.ir.loop import enclosing, find_loop, PrimFunc


@dataclass(frozen=True, slots=True)
class Derived:
    """A field that follows from the state of the nest: no decision, but not known beforehand."""

    def value(self, func: PrimFunc) -> Any:
        """Return the value in the state `func`; None leaves the step out."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ExtentOf(Derived):
    """The extent of a loop."""

    loop: str

    def value(self, func: PrimFunc) -> Any:
        """Return the extent; None where there is no such loop."""
        loop = find_loop(func.body, self.loop)
        return None if loop is None else loop.extent


@dataclass(frozen=True, slots=True)
class LoopAround(Derived):
    """The loop directly around a loop."""

    loop: str

    def value(self, func: PrimFunc) -> Any:
        """Return the outer loop's name; None for an outermost loop."""
        loop = find_loop(func.body, self.loop)
        above = enclosing(func.body, loop) or [] if loop is not None else []
        return above[-2].var if len(above) > 1 else None


@dataclass(frozen=True, slots=True)
class IfLoop(Derived):
    """A loop, unless a step such as `ComputeAt` left it out for having one iteration."""

    loop: str

    def value(self, func: PrimFunc) -> Any:
        """Return the loop, or None."""
        return None if find_loop(func.body, self.loop) is None else self.loop
