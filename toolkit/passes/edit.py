"""A graph while a pass changes it, and the driver that applies rewrite rules to a fixed point.

A rule is a function `(Edit, Node) -> bool`: it changes the graph around the node and says so.  The
driver visits each node once and then only what a change may concern, so a pass is linear in nodes
and changes.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType, type_of
from toolkit.ops.op import Op


class Edit:
    """Nodes with their readers kept up to date.  Lives for one pass; `finish` returns the graph.

    Nodes that nothing reads any more are removed at once, so that "has one reader" is always true
    to what the finished graph will be.
    """

    def __init__(self, graph: Graph, ops: Mapping[str, Op]) -> None:
        self.graph = graph
        self.ops = ops
        self.types: dict[str, TensorType] = dict(graph.types)
        self.consts: dict[str, np.ndarray] = dict(graph.consts)
        for name, value in graph.consts.items():
            self.types.setdefault(name, type_of(value))
        self.outputs = Counter(graph.outputs)
        self.changed = False
        self.touched: deque[Node] = deque()
        self._queued: set[int] = set()
        self._alive: dict[int, Node] = {}
        self._rank: dict[int, tuple[int, int]] = {}
        self._made: dict[str, Node] = {}
        self._read: dict[str, dict[int, int]] = {}
        self._small: dict[tuple[Any, ...], str] = {}
        self._serial = 0
        self._graveyard: list[Node] = []
        for index, node in enumerate(graph.nodes):
            self._insert(node, index)
        self.changed = False

    # -- questions --

    def nodes(self) -> list[Node]:
        """Return the nodes that are in the graph now, in no particular order."""
        return list(self._alive.values())

    def alive(self, node: Node) -> bool:
        """Tell whether a node is still in the graph."""
        return self._alive.get(id(node)) is node

    def producer(self, name: str) -> Node | None:
        """Return the node that writes a tensor; None for inputs, constants and ''."""
        return self._made.get(name)

    def readers(self, name: str) -> list[Node]:
        """Return the nodes that read a tensor, each once."""
        return [self._alive[key] for key in self._read.get(name, ())]

    def uses(self, name: str) -> int:
        """Count operands that are this tensor, a graph output counting as one."""
        return sum(self._read.get(name, {}).values()) + self.outputs[name]

    def only_reader(self, name: str) -> Node | None:
        """Return the one node that reads a tensor, if it does so once and nothing else needs it."""
        return self.readers(name)[0] if self.uses(name) == 1 and not self.outputs[name] else None

    def single(self, name: str, *ops: str) -> Node | None:
        """Return the producer of a tensor if it is one of `ops` and the tensor has one use."""
        node = self._made.get(name)
        return node if node is not None and node.op_id in ops and self.uses(name) == 1 else None

    def by(self, name: str, *ops: str) -> Node | None:
        """Return the producer of a tensor if it is one of `ops`."""
        node = self._made.get(name)
        return node if node is not None and node.op_id in ops else None

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self.types[name].shape

    def dtype(self, name: str) -> str:
        """Return a tensor's element type."""
        return self.types[name].dtype

    def value(self, name: str) -> np.ndarray | None:
        """Return a constant's value; None for everything else and for ''."""
        return self.consts.get(name)

    def ints(self, node: Node, position: int) -> tuple[int, ...] | None:
        """Return a constant operand as a flat tuple of ints; None when absent or not constant."""
        if position >= len(node.inputs):
            return None
        value = self.consts.get(node.inputs[position])
        return None if value is None else tuple(int(v) for v in value.reshape(-1))

    def uniform(self, name: str) -> float | int | None:
        """Return the value that all elements of a constant have, None if they differ."""
        value = self.consts.get(name)
        if value is None or value.size == 0 or value.dtype.kind not in "fiub":
            return None
        first = value.flat[0]
        if value.size > 1 and not (value.flat[-1] == first and bool((value == first).all())):
            return None
        result: float | int = first.item()
        return result

    # -- changes --

    def fresh(self, hint: str) -> str:
        """Return a tensor name that is not taken."""
        name, n = hint, 1
        while name in self.types or name in self.consts:
            n += 1
            name = f"{hint}_{n}"
        return name

    def const(self, value: np.ndarray, hint: str) -> str:
        """Define a constant and return its name; equal small ones share a name."""
        value = np.ascontiguousarray(value) if value.ndim else np.asarray(value)
        key: tuple[Any, ...] = ()
        if value.nbytes <= 256:
            key = (str(value.dtype), value.shape, value.tobytes())
            if key in self._small:
                return self._small[key]
        name = self.fresh(hint)
        self.consts[name] = value
        self.types[name] = type_of(value)
        if key:
            self._small[key] = name
        return name

    def ints_const(self, values: Sequence[int], hint: str) -> str:
        """Define a constant list of int64."""
        return self.const(np.array(values, dtype=np.int64).reshape(-1), hint)

    def emit(
        self,
        near: Node,
        op: str,
        inputs: Sequence[str],
        kind: TensorType,
        attrs: Mapping[str, Any] | None = None,
        *,
        hint: str | None = None,
    ) -> str:
        """Add a node with one new output of type `kind` beside `near`; return the output."""
        base = next((o for o in near.outputs if o), near.name)
        name = self.fresh(f"{base}.{hint or op.lower()}")
        self.types[name] = kind
        self.insert(
            Node(f"{near.name}.{hint or op.lower()}", op, tuple(inputs), (name,), attrs or {}), near
        )
        return name

    def insert(self, node: Node, near: Node) -> None:
        """Add a node whose outputs have types, placed beside `near`."""
        rank = self._rank.get(id(near), (len(self.graph.nodes), 0))
        self._insert(node, rank[0])

    def replace(self, old: Node, new: Node) -> Node:
        """Put `new`, which writes the same outputs, in the place of `old`."""
        rank = self._rank[id(old)]
        self._remove(old, keep_outputs=True)
        self._insert(new, rank[0])
        self._sweep(old.inputs)
        return new

    def exchange(self, old: Node, new: Sequence[Node]) -> None:
        """Put nodes that together write the same outputs in the place of `old`."""
        rank = self._rank[id(old)]
        self._remove(old, keep_outputs=True)
        for node in new:
            self._insert(node, rank[0])
        self._sweep(old.inputs)

    def become(
        self, node: Node, op: str, inputs: Sequence[str], attrs: Mapping[str, Any] | None = None
    ) -> bool:
        """Replace a node by one of another operator that writes the same outputs; return True."""
        self.replace(node, Node(node.name, op, tuple(inputs), node.outputs, attrs or {}))
        return True

    def reread(self, node: Node, position: int, name: str) -> Node:
        """Let a node read another tensor at one operand; return the new node."""
        inputs = list(node.inputs)
        inputs[position] = name
        return self.replace(node, node.with_(inputs=tuple(inputs)))

    def forward(self, name: str, to: str) -> bool:
        """Let everything that needs tensor `name` take `to`, of the same type; False if it cannot.

        A graph output keeps its name: `to` is renamed, or, when it is a graph input, a constant or
        an output itself, an Identity stays.
        """
        old = self._made[name]
        if self.outputs[name]:
            source = self._made.get(to)
            if source is None or self.outputs[to] or (to in old.outputs):
                if old.op_id == "Identity":
                    return self._forward_readers(name, to)
                hidden = self.fresh(f"{name}.was")
                self.types[hidden] = self.types[name]
                self._forward_readers(name, to)
                self.replace_output(old, name, hidden)
                kept = Node(f"Identity_{name}", "Identity", (to,), (name,))
                self._insert(kept, self._rank[id(self._made[hidden])][0])
                self._sweep((hidden,))
                return True
            hidden = self.fresh(f"{name}.was")
            self.types[hidden] = self.types[name]
            self._forward_readers(name, to)
            self.replace_output(old, name, hidden)
            self.replace_output(source, to, name)
            self._forward_readers(to, name)
            self._sweep((hidden,))
            return True
        self._forward_readers(name, to)
        self._sweep((name,))
        return True

    def replace_output(self, node: Node, old: str, new: str) -> Node:
        """Let a node write a tensor under another name; readers are not changed."""
        rank = self._rank[id(node)]
        self._remove(node, keep_outputs=True)
        changed = node.with_(outputs=tuple(new if o == old else o for o in node.outputs))
        del self._made[old]
        self._insert(changed, rank[0])
        return changed

    def sweep_unread(self) -> None:
        """Remove the nodes whose results nothing reads."""
        for node in list(self._alive.values()):
            if self.alive(node):
                self._sweep([o for o in node.outputs if o][:1])

    def finish(self) -> Graph:
        """Return the changed graph in topological order; the same object if nothing changed."""
        if not self.changed:
            return self.graph
        nodes = self._sorted()
        wanted = {n for node in nodes for n in node.inputs} | set(self.graph.outputs)
        made = {o for node in nodes for o in node.outputs}
        consts = {k: v for k, v in self.consts.items() if k in wanted}
        kept = wanted | made | set(self.graph.inputs)
        types = {k: v for k, v in self.types.items() if k in kept}
        return self.graph.with_(nodes=tuple(nodes), types=types, consts=consts)

    # -- inside --

    def _forward_readers(self, name: str, to: str) -> bool:
        done = False
        for node in self.readers(name):
            rank = self._rank[id(node)]
            self._remove(node, keep_outputs=True)
            inputs = tuple(to if i == name else i for i in node.inputs)
            self._insert(node.with_(inputs=inputs), rank[0])
            done = True
        return done

    def _insert(self, node: Node, rank: int) -> None:
        self._serial += 1
        key = id(node)
        self._alive[key] = node
        self._rank[key] = (rank, self._serial)
        for name in node.outputs:
            if name:
                self._made[name] = node
        for name in node.inputs:
            if name:
                counts = self._read.setdefault(name, {})
                counts[key] = counts.get(key, 0) + 1
        self.changed = True
        self._touch(node)
        for name in node.inputs:
            self._touch(self._made.get(name))
        for name in node.outputs:
            for reader in self.readers(name) if name else ():
                self._touch(reader)

    def _remove(self, node: Node, *, keep_outputs: bool = False) -> None:
        key = id(node)
        del self._alive[key]
        self._graveyard.append(node)  # ids of removed nodes must not be used again
        for name in node.inputs:
            if name and key in self._read.get(name, {}):
                del self._read[name][key]
        if not keep_outputs:
            for name in node.outputs:
                self._made.pop(name, None)
        self.changed = True

    def _sweep(self, names: Sequence[str]) -> None:
        """Remove what makes tensors that nothing reads now; wake the rest of their readers."""
        stack = list(names)
        while stack:
            name = stack.pop()
            node = self._made.get(name)
            if node is None or not self.alive(node):
                continue
            if any(o and self.uses(o) for o in node.outputs):
                self._touch(node)
                for out in node.outputs:
                    if out and len(self._read.get(out, ())) <= 2:
                        for reader in self.readers(out):
                            self._touch(reader)
                continue
            self._remove(node)
            stack.extend(node.inputs)

    def _touch(self, node: Node | None) -> None:
        if node is not None and id(node) not in self._queued:
            self._queued.add(id(node))
            self.touched.append(node)

    def take(self) -> Node | None:
        """Return the next node that a change may concern, None when there is none."""
        while self.touched:
            node = self.touched.popleft()
            self._queued.discard(id(node))
            if self.alive(node):
                return node
        return None

    def _sorted(self) -> list[Node]:
        waiting: dict[int, int] = {}
        ready: list[tuple[int, int, int]] = []
        for key, node in self._alive.items():
            count = len({i for i in node.inputs if i in self._made})
            waiting[key] = count
            if count == 0:
                ready.append((*self._rank[key], key))
        heapq.heapify(ready)
        order: list[Node] = []
        while ready:
            *_, key = heapq.heappop(ready)
            node = self._alive[key]
            order.append(node)
            for name in node.outputs:
                for reader in self._read.get(name, ()) if name else ():
                    waiting[reader] -= 1
                    if waiting[reader] == 0:
                        heapq.heappush(ready, (*self._rank[reader], reader))
        assert len(order) == len(self._alive), "a rewrite made a cycle"
        return order


Rule = Callable[[Edit, Node], bool]
Rules = Mapping[str, Sequence[Rule]]


def rewrite(graph: Graph, ops: Mapping[str, Op], rules: Rules) -> Graph:
    """Apply rules, keyed by operator, until none applies; the same object if none did."""
    edit = Edit(graph, ops)
    budget = 100 * len(graph.nodes) + 1000
    while budget and (node := edit.take()) is not None:
        budget -= 1
        for rule in rules.get(node.op_id, ()):
            if rule(edit, node):
                break
    return edit.finish()


def merged(*tables: Rules) -> dict[str, tuple[Rule, ...]]:
    """Return one table of several: for each operator the rules in order."""
    result: dict[str, tuple[Rule, ...]] = {}
    for table in tables:
        for op, rules in table.items():
            result[op] = (*result.get(op, ()), *rules)
    return result
