"""What every schedule step is: frozen data with `apply`, refusing where it would change meaning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import numpy as np

from toolkit.errors import ScheduleError
from toolkit.ir.loop import (
    Block,
    blocks,
    find_loop,
    Loop,
    loops_of,
    nest_of,
    OpaqueCall,
    PrimFunc,
    statements,
)
from toolkit.ir.text import func_text


@dataclass(frozen=True, slots=True)
class Step:
    """One transformation of a nest.  Two functions `apply` relates compute the same values."""

    @classmethod
    def example(cls) -> tuple[PrimFunc, Step]:
        """Return a function and a step of this class that is legal in it, for tests."""
        raise NotImplementedError

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Return the transformed function; raise `ScheduleError` where the step is illegal."""
        raise NotImplementedError

    def check(self, func: PrimFunc) -> None:
        """Raise `ScheduleError` where the step is illegal in `func`.

        Legality is decided where the step is carried out, so that the two cannot disagree.
        """
        self.apply(func)

    def laid_out(self) -> str | None:
        """Return the operand whose layout in memory the step changes; None for none."""
        return None

    def layout_from(self) -> tuple[str, ...]:
        """Return the other constants that the data in that layout depends on."""
        return ()

    def layout_data(self, data: np.ndarray, *others: np.ndarray) -> np.ndarray:
        """Return the data of a constant in the layout that this step gives `laid_out()`.

        `others`: data of `layout_from()`, in the layouts that earlier steps gave them.
        """
        raise NotImplementedError

    def layout_tag(self) -> str:
        """Return what names that layout among those of one constant."""
        raise NotImplementedError

    def refuse(self, func: PrimFunc, why: str, hint: str | None = None) -> NoReturn:
        """Raise the refusal of this step, showing the nest it was applied to."""
        raise ScheduleError(
            f"{self!r}: {why}", state=lambda: func_text(func).splitlines(), hint=hint
        )

    def find_loop(self, func: PrimFunc, var: str) -> Loop:
        """Return the loop named `var`; refuse if there is none."""
        loop = find_loop(func.body, var)
        if loop is None:
            self.refuse(func, f"there is no loop {var!r}.")
        return loop

    def refuse_whole(self, func: PrimFunc, buffer: str) -> None:
        """Refuse to change a buffer that a call takes whole."""
        for s in statements(func.body):
            if isinstance(s, OpaqueCall) and buffer in (*s.inputs, *s.outputs, s.scratch):
                self.refuse(func, f"buffer {buffer!r} is passed whole to {s.function}.")

    def find(self, func: PrimFunc, block: str) -> tuple[list[Loop], Block]:
        """Return the loops around a block and the block; refuse if there is none of that name."""
        try:
            return nest_of(func.body, block)
        except KeyError:
            names = ", ".join(b.name for b in blocks(func.body))
            self.refuse(func, f"there is no block {block!r}.", f"blocks: {names}")


def loop_names(func: PrimFunc) -> set[str]:
    """Return the loop names in use, those of split and fused loops included."""
    names: set[str] = set()
    for loop in loops_of(func.body):
        names.update(_parts(loop.var))
    return names


@lru_cache(maxsize=1 << 12)
def _parts(var: str) -> tuple[str, ...]:
    """Return a loop's name, and those of the loops it was made of."""
    split = [part.split(".") for part in var.split("+")]
    return var, *(".".join(p[:n]) for p in split for n in range(1, len(p) + 1))


def block_names(func: PrimFunc) -> set[str]:
    """Return the names of all blocks."""
    return {b.name for b in blocks(func.body)}
