"""Register buffers: how they are accessed, and whether they become named locals for it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_SCALARS = 64
"""Elements that become named scalars, at most."""


@dataclass(slots=True)
class RegisterUse:
    """How a register buffer is accessed: as vectors at `vectors` (flat subscript of the first lane
    -> lanes in use), as scalars at `scalars`, or at a subscript that is not a constant.  `joined`:
    vectors that are only read, which scalars can make up for."""

    vectors: dict[int, int] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=dict)
    scalars: set[int] = field(default_factory=set)
    dynamic: bool = False
    reach: int = 0
    """One more than the largest subscript; beyond the buffer where a vector has lanes to spare."""

    def add(self, other: RegisterUse) -> None:
        """Add accesses to these."""
        add_lanes(self.vectors, other.vectors)
        add_lanes(self.joined, other.joined)
        self.scalars |= other.scalars
        self.dynamic |= other.dynamic
        self.reach = max(self.reach, other.reach)


def add_lanes(vectors: dict[int, int], more: Mapping[int, int]) -> None:
    """Add vectors to others: of those at one place, as many lanes as either uses."""
    for at, lanes in more.items():
        vectors[at] = max(vectors.get(at, 0), lanes)


def add_uses(uses: dict[str, RegisterUse], more: Mapping[str, RegisterUse]) -> None:
    """Add what was recorded of some buffers to what is known of them."""
    for buffer, use in more.items():
        uses.setdefault(buffer, RegisterUse()).add(use)


@dataclass(frozen=True, slots=True)
class Kept:
    """What holds a register buffer.  `kind`: 'vector' or 'scalar' locals, which `names` gives by
    flat subscript, or an 'array'."""

    kind: str
    names: Mapping[int, str]


def kept(use: RegisterUse, name: str, stem: str) -> Kept:
    """Tell what holds a buffer: locals are called by its `name`, or by `stem` and a number."""
    numbers: dict[int, int] = {}
    vectors = dict(use.vectors)
    lanes = {at + i for at, count in use.joined.items() for i in range(count)}
    if vectors or not lanes <= use.scalars:
        add_lanes(vectors, use.joined)
    if use.dynamic or (vectors and use.scalars):
        return Kept("array", {})
    if vectors:
        spans = sorted(vectors.items())
        if any(a + n > b for (a, n), (b, _) in itertools.pairwise(spans)):
            return Kept("array", {})
        kind, numbers = "vector", {at: i for i, at in enumerate(sorted(vectors))}
    elif len(use.scalars) <= MOST_SCALARS:
        kind, numbers = "scalar", {at: at for at in sorted(use.scalars)}
    else:
        return Kept("array", {})
    if len(numbers) == 1:
        return Kept(kind, dict.fromkeys(numbers, name))
    return Kept(kind, {at: f"{stem}_{i}" for at, i in numbers.items()})


__all__ = ["add_lanes", "add_uses", "Kept", "kept", "RegisterUse"]
