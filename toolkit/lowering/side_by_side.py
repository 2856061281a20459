"""Which steps of a program run side by side: branches that do not touch each other's storage.

Worth it where kernels are too small, or their loops too short, to be shared by all cores alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.ir.program import Call, Fork, Jump, JumpIfNot, Step
from toolkit.schedule.threads import Team

LONGEST = 32
"""Steps that are looked at together."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `first` .. `end`-1 of a storage."""

    storage: str
    first: int
    end: int

    def meets(self, other: Span) -> bool:
        """Tell whether both have a byte in common."""
        return self.storage == other.storage and self.first < other.end and other.first < self.end


@dataclass(frozen=True, slots=True)
class Work:
    """What a call touches, and the cycles it takes: on one core, and shared by all."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    alone: float
    shared: float

    def apart(self, other: Work) -> bool:
        """Tell whether both calls may run at the same time."""
        return not any(
            a.meets(b)
            for mine, theirs in (
                (self.writes, (*other.reads, *other.writes)),
                (self.reads, other.writes),
            )
            for a in mine
            for b in theirs
        )


def fork_steps(steps: Sequence[Step], work: Mapping[int, Work], team: Team) -> list[Step]:
    """Return the steps with forks before branches that are faster side by side.

    `work`: of each call, by its index.  Between forks the order stays; jumps are made to fit.
    """
    if team.threads == 1:
        return list(steps)
    targets = {s.target for s in steps if isinstance(s, Jump | JumpIfNot)}
    result: list[Step] = []
    moved: dict[int, int] = {}
    at = 0
    while at < len(steps):
        moved[at] = len(result)
        end = at
        while end < len(steps) and isinstance(steps[end], Call) and end - at < LONGEST:
            if end > at and end in targets:
                break
            end += 1
        lanes = _best_lanes(at, end, work, team)
        if lanes:
            result.append(Fork(tuple(map(len, lanes))))
            result.extend(steps[n] for lane in lanes for n in lane)
            at += sum(map(len, lanes))
        else:
            result.append(steps[at])
            at += 1
    moved[len(steps)] = len(result)
    return [
        replace(s, target=moved[s.target]) if isinstance(s, Jump | JumpIfNot) else s for s in result
    ]


def _best_lanes(
    first: int, end: int, work: Mapping[int, Work], team: Team
) -> list[list[int]] | None:
    """Return the lanes of the steps from `first`, up to any before `end`, that save most."""
    branches: list[list[int]] = []
    best: tuple[float, list[list[int]]] | None = None
    in_turn = 0.0
    for n in range(first, end):
        in_turn += min(work[n].alone, work[n].shared)
        joined = [b for b in branches if not all(work[n].apart(work[m]) for m in b)]
        branches = [b for b in branches if b not in joined]
        branches.append(sorted([n, *(m for b in joined for m in b)]))
        if len(branches) == 1:
            continue
        lanes = _share(branches, work, team.threads)
        longest = max(sum(work[m].alone for m in lane) for lane in lanes)
        saved = in_turn - longest - team.fork_cycles
        if saved > max(team.fork_cycles, 0.1 * in_turn) and (best is None or saved > best[0]):
            best = saved, lanes
    return best[1] if best else None


def _share(
    branches: Sequence[Sequence[int]], work: Mapping[int, Work], threads: int
) -> list[list[int]]:
    """Deal branches out to at most `threads` lanes: the longest first, to the emptiest."""
    lanes: list[list[int]] = [[] for _ in range(min(threads, len(branches)))]
    loads = [0.0] * len(lanes)
    cost = {tuple(b): sum(work[n].alone for n in b) for b in branches}
    for branch in sorted(cost, key=lambda b: (-cost[b], b)):
        least = loads.index(min(loads))
        lanes[least].extend(branch)
        loads[least] += cost[branch]
    return [sorted(lane) for lane in lanes]
