"""Which values a subscript takes while loops run: without gaps, and each once."""

from __future__ import annotations

from collections.abc import Iterable

from toolkit.ir.expr import Expr, Var, variables
from toolkit.ir.simplify import linear, Ranges, simplify

Terms = list[tuple[str, int, int]]
"""Loops that a subscript runs over: name, factor, iterations."""


def inner_terms(index: Expr, outer: set[str], ranges: Ranges) -> Terms | None:
    """Return the loops, other than `outer` ones, in an index; None if it is no plain sum of them.

    What is over `outer` loops alone may have any form.
    """
    terms, _ = linear(simplify(index, ranges))
    found: Terms = []
    for atom, factor in terms.items():
        if variables(atom) <= outer:
            continue
        if not isinstance(atom, Var) or atom.name not in ranges:
            return None
        found.append((atom.name, factor, ranges[atom.name][1] + 1))
    return found


def without_gaps(terms: Terms) -> bool:
    """Tell whether the sum takes every value between its least and its largest."""
    reach = 0
    for _, factor, extent in sorted(terms, key=lambda t: abs(t[1])):
        if extent > 1 and abs(factor) > reach + 1:
            return False
        reach += abs(factor) * (extent - 1)
    return True


def each_once(terms: Terms) -> bool:
    """Tell whether no two iterations of the loops give the same value."""
    reach = 0
    for _, factor, extent in sorted(terms, key=lambda t: abs(t[1])):
        if extent > 1 and abs(factor) <= reach:
            return False
        reach += abs(factor) * (extent - 1)
    return True


def apart(parts: Iterable[Terms]) -> bool:
    """Tell whether no loop drives two of the subscripts."""
    names = [name for terms in parts for name, _, _ in terms]
    return len(names) == len(set(names))
