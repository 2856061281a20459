"""Named sums: subscripts that differ by a constant share one, where there are enough of them.

Copies of an unrolled statement so share what compilers would have to find again in each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from toolkit.codegen.c_expr import C_INDEX
from toolkit.codegen.copies import Offset, Place
from toolkit.ir.expr import Expr, variables
from toolkit.ir.simplify import from_linear

SHARED = 4
"""Uses from which on a sum has a name."""


class Offsets:
    """The sums of one function.  `text` prints an expression.

    A first pass over the function counts uses; `start_naming` begins the one that names.
    """

    def __init__(self, text: Callable[[Expr], str]) -> None:
        self.text = text
        self.counting = True
        self.uses: Counter[Offset] = Counter()
        self.names: dict[Offset, str] = {}
        self.open: dict[str, Expr] = {}
        """Sums that what was printed uses and no loop so far has declared."""

    def start_naming(self) -> None:
        """End the first pass."""
        self.counting = False

    def subscript(self, place: Place) -> str:
        """Return the text of a subscript."""
        offset = place.offset
        if offset is None:
            return self.text(place.expr())
        if self.counting:
            self.uses[offset] += 1
            return ""
        if self.uses[offset] < SHARED:
            return self.text(place.expr())
        name = self.names.setdefault(offset, f"nst_i{len(self.names)}")
        if name not in self.open:
            self.open[name] = from_linear(place.terms, 0)
        constant = place.constant
        if not constant:
            return name
        return f"{name} + {constant}" if constant > 0 else f"{name} - {-constant}"

    def declared(self, body: Callable[[], str], var: str | None = None) -> list[str]:
        """Return declarations of the sums that the text `body` uses and that vary with `var`; of
        all that are open for None."""
        ready = [n for n, it in self.open.items() if var is None or var in variables(it)]
        if not ready:
            return []
        used = set(re.findall(r"\bnst_i[0-9]+\b", body()))
        sums = {name: self.open.pop(name) for name in ready}
        return [
            f"const {C_INDEX} {name} = {self.text(it)};"
            for name, it in sums.items()
            if name in used
        ]


__all__ = ["Offsets"]
