"""Two-way labelling of least cost, as a minimum cut (Dinic's algorithm).

Kolmogorov & Zabih, What energy functions can be minimized via graph cuts, PAMI 2004: a sum of
costs of single labels and of pairs of labels has its minimum at a minimum cut when every pair cost
c satisfies c(0,0) + c(1,1) <= c(0,1) + c(1,0).
"""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 60


class Labelling:
    """Items labelled 0 or 1; costs are non-negative integers.  Lives for one `solve`."""

    def __init__(self) -> None:
        self.count = 2
        self._edges: list[list[int]] = [[], []]
        self._to: list[int] = []
        self._room: list[int] = []

    def item(self) -> int:
        """Return a new item."""
        self._edges.append([])
        self.count += 1
        return self.count - 1

    def cost(self, item: int, if_0: int, if_1: int) -> None:
        """Add the costs of an item's labels."""
        if if_0 > 0:
            self._edge(0, item, if_0)
        if if_1 > 0:
            self._edge(item, 1, if_1)

    def unequal(self, a: int, b: int, a0_b1: int, a1_b0: int) -> None:
        """Add the costs of two items with unequal labels."""
        self._edge(a, b, a1_b0, a0_b1)

    def pair(self, a: int, b: int, costs: tuple[int, int, int, int]) -> bool:
        """Add costs (a0 b0, a0 b1, a1 b0, a1 b1); False, and nothing added, if no cut can do so."""
        c00, c01, c10, c11 = costs
        slack = c01 + c10 - c00 - c11
        if slack < 0:
            return False
        # c = c00 + (c10 - c00) a + (c11 - c10) b + slack * (1 - a) b
        for item, linear in ((a, c10 - c00), (b, c11 - c10)):
            self.cost(item, max(-linear, 0), max(linear, 0))
        self._edge(b, a, slack)
        return True

    def solve(self) -> list[bool]:
        """Return the labels of all items; of several best labellings the one with most 1."""
        while True:
            level = self._levels()
            if level[1] < 0:
                break
            at = [0] * self.count
            while self._push(level, at):
                pass
        reaches = [False] * self.count
        reaches[1] = True
        queue = deque([1])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                other = self._to[edge]
                if not reaches[other] and self._room[edge ^ 1] > 0:
                    reaches[other] = True
                    queue.append(other)
        return [not r for r in reaches]

    def _edge(self, a: int, b: int, room: int, back: int = 0) -> None:
        if room <= 0 and back <= 0:
            return
        self._edges[a].append(len(self._to))
        self._to.append(b)
        self._room.append(room)
        self._edges[b].append(len(self._to))
        self._to.append(a)
        self._room.append(back)

    def _levels(self) -> list[int]:
        level = [-1] * self.count
        level[0] = 0
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                other = self._to[edge]
                if level[other] < 0 and self._room[edge] > 0:
                    level[other] = level[node] + 1
                    queue.append(other)
        return level

    def _push(self, level: list[int], at: list[int]) -> bool:
        """Send flow along one path of the level graph."""
        path: list[int] = []
        node = 0
        while node != 1:
            edges = self._edges[node]
            while at[node] < len(edges):
                edge = edges[at[node]]
                other = self._to[edge]
                if self._room[edge] > 0 and level[other] == level[node] + 1:
                    break
                at[node] += 1
            else:
                if not path:
                    return False
                node = self._to[path.pop() ^ 1]
                at[node] += 1
                continue
            path.append(edge)
            node = other
        flow = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= flow
            self._room[edge ^ 1] += flow
        return True
