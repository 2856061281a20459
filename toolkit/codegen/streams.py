"""How loops of tensor intrinsics read memory: pointers that loads move on, or that stay put.

Instruction sets whose loads have short offsets take an instruction more for each address beyond
them, unless the load itself moves its pointer to the next elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stream:
    """A load of `elements` neighbours as text, and the text that loads the next ones: {0} stands
    for the address of the pointer that it moves on."""

    load: str
    following: str
    elements: int


def in_order(
    lines: Sequence[str], constants: Mapping[str, int], streams: Mapping[str, Stream], step: int
) -> list[Stream] | None:
    """Return the loads of one iteration in the order in which they occur, if they follow each
    other in memory without a gap, and the next iteration's follow them; else None.

    `constants`: addresses, and where they lie from a common place on; `step`: elements between
    iterations.
    """
    ordered = sorted(constants, key=constants.__getitem__)
    found = [streams[text] for text in ordered if text in streams]
    if len(found) != len(ordered) or sum(s.elements for s in found) != step:
        return None
    at = constants[ordered[0]]
    where = []
    for text, stream in zip(ordered, found, strict=True):
        holders = [n for n, line in enumerate(lines) for _ in range(line.count(text))]
        if constants[text] != at or len(holders) != 1 or stream.load not in lines[holders[0]]:
            return None
        at += stream.elements
        where += holders
    ascending = all(a < b for a, b in itertools.pairwise(where))
    return found if ascending else None


def clusters(constants: Mapping[str, int], reach: int) -> list[dict[str, int]]:
    """Return addresses in groups that one pointer reaches with offsets of at most `reach`."""
    groups: list[dict[str, int]] = []
    for text in sorted(constants, key=constants.__getitem__):
        if not groups or constants[text] - min(groups[-1].values()) > reach:
            groups.append({})
        groups[-1][text] = constants[text]
    return groups


__all__ = ["clusters", "in_order", "Stream"]
