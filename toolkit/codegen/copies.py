"""Copies of a statement that unrolled loops leave: they differ in where they read and write.

A statement is printed once, with a mark in the place of each access; a copy costs the texts of its
accesses.  Loops that change more than steps of subscripts (a condition, a value, a subscript that
is divided) keep their values in the pattern, of which there is one for each combination of those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from toolkit.codegen.resolve import Env
from toolkit.ir.expr import Const, Expr, INDEX, loads, substitute, Var, variables
from toolkit.ir.simplify import from_linear, linear

_MARK = re.compile("\x01([0-9]+)\x02")

Fill = Callable[[str], str]
"""Puts the texts of a copy's accesses in the place of their marks."""


class Varies(Exception):
    """Loops change more of a statement than where it reads and writes."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        super().__init__(", ".join(sorted(names)))


Offset = frozenset[tuple[Expr, int]]
"""What varies in a subscript: atoms and their coefficients."""


@dataclass(frozen=True, slots=True)
class Place:
    """A subscript as a sum: `terms`, atoms and their coefficients, plus `constant`.

    `offset`: the terms, where they may have a name; None where that says no more than they do, or
    where what they load may change.
    """

    terms: Mapping[Expr, int]
    constant: int
    offset: Offset | None

    @classmethod
    def of(cls, flat: Expr) -> Place:
        """Return a subscript as a sum."""
        terms, constant = linear(flat)
        lone = len(terms) == 1 and isinstance(next(iter(terms)), Var)
        named = terms and not lone and not loads(flat)
        return cls(terms, constant, frozenset(terms.items()) if named else None)

    def expr(self) -> Expr:
        """Return the subscript as an expression."""
        return from_linear(self.terms, self.constant)


@dataclass(frozen=True, slots=True)
class Access:
    """A place that moves with loops, `steps` elements each.  `text` prints the access."""

    text: Callable[[Place], str]
    place: Place
    steps: tuple[tuple[str, int], ...]

    def at(self, env: Env) -> Place:
        """Return the place in a copy."""
        constant = self.place.constant
        for name, step in self.steps:
            value = env[name]
            assert isinstance(value, Const)
            constant += step * int(value.value)
        return Place(self.place.terms, constant, self.place.offset)


@dataclass(slots=True)
class Pattern:
    """A statement with marks.  `free`: the loops whose values it does not hold."""

    free: frozenset[str]
    texts: tuple[list[str], ...] = ()
    accesses: list[Access] = field(default_factory=list)
    notes: list[Callable[[Fill], None]] = field(default_factory=list)
    """What to do with the texts of each copy."""

    def access(self, flat: Expr, text: Callable[[Place], str]) -> str:
        """Return the mark of an access; raises `Varies`."""
        terms, _ = linear(flat)
        steps = []
        for atom, step in terms.items():
            moved = variables(atom) & self.free
            if moved and not isinstance(atom, Var):
                raise Varies(moved)
            if isinstance(atom, Var) and moved:
                steps.append((atom.name, step))
        rest = substitute(flat, {name: Const(INDEX, 0) for name, _ in steps}) if steps else flat
        self.accesses.append(Access(text, Place.of(rest), tuple(steps)))
        return f"\x01{len(self.accesses) - 1}\x02"

    def copy(self, env: Env) -> tuple[list[str], ...]:
        """Return the statement's texts in a copy."""
        found: list[str] = []

        def fill(text: str) -> str:
            return _MARK.sub(lambda m: found[int(m[1])], text) if "\x01" in text else text

        for it in self.accesses:
            found.append(fill(it.text(it.at(env))))
        for note in self.notes:
            note(fill)
        return tuple([fill(text) for text in part] for part in self.texts)


__all__ = ["Access", "Fill", "Offset", "Pattern", "Place", "Varies"]
