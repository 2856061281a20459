"""Arena planning: storages with lifetimes to offsets, by the best of several greedy orders.

The problem is dynamic storage allocation, NP-hard; placing storages one by one at the lowest free
offset comes close when the order is good (Pisarchyk & Lee 2020, arXiv:2001.03288, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Storage:
    """`nbytes` that are alive from step `first` to step `last`, both included."""

    name: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Offsets in bytes, the size of the arena, and the lower bound no plan can undercut."""

    offsets: dict[str, int]
    arena_bytes: int
    lower_bound_bytes: int


def align_up(value: int, align: int) -> int:
    """Round `value` up to a multiple of `align`."""
    return -(-value // align) * align


def lower_bound(storages: Sequence[Storage]) -> int:
    """Return the largest sum of bytes alive at one step."""
    changes: dict[int, int] = {}
    for s in storages:
        changes[s.first] = changes.get(s.first, 0) + s.nbytes
        changes[s.last + 1] = changes.get(s.last + 1, 0) - s.nbytes
    alive = peak = 0
    for step in sorted(changes):
        alive += changes[step]
        peak = max(peak, alive)
    return peak


def _place(order: Sequence[Storage], align: int, give_up: int) -> tuple[dict[str, int], int] | None:
    """Place storages in order, each at the lowest offset free for its whole life."""
    placed: list[tuple[int, int, Storage]] = []
    offsets: dict[str, int] = {}
    top = 0
    for item in order:
        offset = 0
        for start, end, other in placed:
            if other.first > item.last or other.last < item.first:
                continue
            if offset + item.nbytes <= start:
                break
            offset = max(offset, align_up(end, align))
        end = offset + item.nbytes
        top = max(top, end)
        if top >= give_up:
            return None
        offsets[item.name] = offset
        low, high = 0, len(placed)
        while low < high:
            middle = (low + high) // 2
            if placed[middle][0] < offset:
                low = middle + 1
            else:
                high = middle
        placed.insert(low, (offset, end, item))
    return offsets, top


def _pressure(storages: Sequence[Storage]) -> dict[str, int]:
    """Return for each storage the largest sum alive at a step of its life."""
    last = max((s.last for s in storages), default=0)
    alive = [0] * (last + 2)
    for s in storages:
        alive[s.first] += s.nbytes
        alive[s.last + 1] -= s.nbytes
    total = 0
    for step in range(last + 1):
        total += alive[step]
        alive[step] = total
    return {s.name: max(alive[s.first : s.last + 1]) for s in storages}


def plan(storages: Sequence[Storage], align: int = 8) -> Plan:
    """Plan an arena for storages; empty ones take no room.  `align`: bytes, a power of two."""
    real = [s for s in storages if s.nbytes > 0]
    bound = lower_bound(real)
    pressure = _pressure(real)
    keys: list[Callable[[Storage], tuple[int, ...]]] = [
        lambda s: (-s.nbytes, s.first),
        lambda s: (-s.nbytes * (s.last - s.first + 1), s.first),
        lambda s: (-pressure[s.name], -s.nbytes, s.first),
        lambda s: (s.first, -s.nbytes),
        lambda s: (-(s.last - s.first), -s.nbytes),
        lambda s: (s.last, -s.nbytes),
    ]
    best: tuple[dict[str, int], int] = ({}, 0)
    limit = sum(align_up(s.nbytes, align) for s in real) + 1
    for key in keys:
        found = _place(sorted(real, key=key), align, limit)
        if found is not None:
            best, limit = found, found[1]
        if limit <= bound:
            break
    offsets = dict(best[0])
    offsets.update({s.name: 0 for s in storages if s.nbytes == 0})
    return Plan(offsets, align_up(best[1], align), bound)
