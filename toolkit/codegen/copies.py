"""Copies of a statement that unrolled loops leave: they differ in where they read and write.

A statement is printed once, with a mark in the place of each access; a copy costs the texts of its
accesses.  Loops that change more than steps of subscripts (a condition, a value, a subscript that
is divided) keep their values in the pattern, of which there is one for each combination of those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from toolkit.codegen.resolve import Env
from toolkit.ir.expr import Const, Expr, INDEX, loads, substitute, Var, variables
from toolkit.ir.loop import Block, Stmt
from toolkit.ir.simplify import from_linear, linear

_MARK = re.compile("\x01([0-9]+)\x02")

Texts = tuple[list[str], ...]
"""The texts of a statement, in parts that mean different things."""

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
    """An access whose place moves with loops: by `steps`, in elements, as their values go up by
    one.  `place`: where it is with all of them at 0; `text` prints it there or elsewhere."""

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
    texts: Texts = ()
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

    def copy(self, env: Env) -> Texts:
        """Return the statement's texts in a copy."""
        found: list[str] = []

        def fill(text: str) -> str:
            return _MARK.sub(lambda m: found[int(m[1])], text) if "\x01" in text else text

        for it in self.accesses:
            found.append(fill(it.text(it.at(env))))
        for note in self.notes:
            note(fill)
        return tuple([fill(text) for text in part] for part in self.texts)


class Copying:
    """The patterns of one function.

    `unrolled`: loops that may be printed as copies; `runs`: those among them whose copies look at
    one another, which patterns hold.
    """

    def __init__(self, unrolled: frozenset[str], runs: Collection[str]) -> None:
        self.unrolled, self.runs = unrolled, runs
        self.patterns: dict[tuple[str | int, ...], Pattern] = {}
        """By how a statement is printed, its identity, and the values that it holds."""
        self.making: Pattern | None = None
        self.moving: dict[int, list[str]] = {}
        """Unrolled loops that a block depends on."""
        self.held: dict[int, frozenset[str]] = {}
        """Loops whose values the patterns of a statement must hold."""

    def pattern_of(
        self, kind: str, stmt: Stmt, block: Block, env: Env,
        printed: Callable[[frozenset[str]], Texts],
    ) -> Pattern | None:  # fmt: skip
        """Return the pattern of a statement around `block`, which `printed` prints without values
        for some loops; None where no loop moves it."""
        moving = self.moving.get(id(block))
        if moving is None:
            inside = variables(block.value).union(*map(variables, block.indices))
            moving = self.moving[id(block)] = sorted(inside & self.unrolled)
        while True:
            held = self.held.get(id(stmt), frozenset())
            free = frozenset(n for n in moving if n in env and n not in held and n not in self.runs)
            if not free:
                return None
            values = (id(env.get(n)) for n in moving if n not in free)
            key: tuple[str | int, ...] = kind, id(stmt), *values
            pattern = self.patterns.get(key)
            if pattern is not None:
                return pattern
            self.making = Pattern(free)
            try:
                self.making.texts = printed(free)
            except Varies as varies:
                self.held[id(stmt)] = held | varies.names
            else:
                pattern = self.patterns[key] = self.making
                return pattern
            finally:
                self.making = None

    def placed(self, flat: Expr, text: Callable[[Place], str]) -> str:
        """Return the text of an access at a subscript; while a pattern is made, its mark."""
        return text(Place.of(flat)) if self.making is None else self.making.access(flat, text)

    def note(self, keep: Callable[[Fill], None]) -> None:
        """Do something with texts, in each copy."""
        if self.making is None:
            keep(str)
        else:
            self.making.notes.append(keep)

    def hold(self) -> None:
        """Refuse to make a pattern of what is printed: it depends on more than accesses."""
        if self.making is not None:
            raise Varies(self.making.free)


__all__ = ["Access", "Copying", "Fill", "Offset", "Pattern", "Place", "Texts", "Varies"]
