"""Fusion: nodes that one kernel computes become one group node.

Nothing here lists operators: how a node may be fused follows from its compute expressions, from
which elements of its operands each element of its result reads.  (Attention is the one named
shape: product, softmax of rows, product.)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import DTYPES
from toolkit.ops.op import Op
from toolkit.passes.pattern import Access, compose, is_free, Pattern, Patterns
from toolkit.passes.views import is_view, joined_offsets

GROUP = "nestling:Group"
GROUP_LIMIT = 24
"""Nodes in one group at most: keeps generated functions readable and compile time linear."""


def fuse(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """Group nodes into kernels.

    1. A region grows from every node that reduces, over the element-wise nodes behind it, as long
    as only one tensor leaves it: epilogues.  2. Product, softmax, product become one: attention.
    3. The element-wise nodes left grow likewise: chains.  4. Chains and nodes that move data join
    the one group that reads them, where it reads each element once, or where reading in their
    place costs nothing: prologues.  A region ends where its elements are narrowest, so that these
    lie in memory, if whoever reads what is behind them can compute it there.
    """
    if not graph.nodes:
        return graph
    work = _Fusion(graph, ops)
    anchors = [n for n in graph.nodes if work.starts(n) and not work.patterns[id(n)].injective]
    for node in anchors:
        work.grow(node)
    for node in graph.nodes:
        if node.op_id == "Softmax":
            work.attention(node)
    for node in graph.nodes:
        if work.starts(node):
            work.grow(node)
    work.absorb()
    work.take_back()
    return work.result()


class _Fusion:
    """The groups of one graph while they form.  Lives for one `fuse`."""

    def __init__(self, graph: Graph, ops: Mapping[str, Op]) -> None:
        self.graph = graph
        self.ops = ops
        self.order = {id(n): i for i, n in enumerate(graph.nodes)}
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self.outputs = set(graph.outputs)
        self.views = {
            id(n)
            for n in graph.nodes
            if n.op_id in ops and is_view(n, ops, graph.types, graph.consts)
        }
        self.patterns: dict[int, Pattern] = {}
        known = Patterns(graph, ops)
        for node in graph.nodes:
            if node.op_id in ops and not any(isinstance(v, Graph) for v in node.attrs.values()):
                self.patterns[id(node)] = known.of(node)
        self.group: dict[int, list[Node]] = {}
        """The group of each node that is in one."""
        self.read: dict[int, tuple[tuple[Access, ...], bool]] = {}
        """Of a move in a group: how the group reads its operand, and whether at most once."""
        self.held: list[Node] = []
        """Nodes behind the narrowest elements of a region, left out of it."""

    # -- growing --

    def starts(self, node: Node) -> bool:
        """Tell whether a region may grow from a node."""
        pattern = self.patterns.get(id(node))
        return (
            pattern is not None
            and id(node) not in self.group
            and id(node) not in self.views
            and not pattern.whole
            and len([o for o in node.outputs if o]) == 1
        )

    def grow(self, node: Node) -> None:
        """Make the largest region behind `node` from which one tensor leaves a group."""
        region = [node]
        best = 1
        inside = {id(node)}
        made = {node.outputs[0]}
        pending: list[tuple[int, Node]] = []
        queued: set[int] = set()

        def queue(name: str) -> None:
            for reader in self.consumers.get(name, ()):
                if id(reader) not in queued:
                    queued.add(id(reader))
                    heapq.heappush(pending, (self.order[id(reader)], reader))

        queue(node.outputs[0])
        while pending and len(region) < GROUP_LIMIT:
            _, candidate = heapq.heappop(pending)
            pattern = self.patterns.get(id(candidate))
            if pattern is None or id(candidate) in self.group or len(candidate.outputs) != 1:
                break
            if id(candidate) in self.views:
                break
            if not all(pattern.same[i] for i, n in enumerate(candidate.inputs) if n in made):
                break
            region.append(candidate)
            inside.add(id(candidate))
            made.add(candidate.outputs[0])
            queue(candidate.outputs[0])
            if self.leaving(region, inside) == [candidate.outputs[0]]:
                best = len(region)
        self.put(region[: self.narrow(region, best)])

    def narrow(self, region: list[Node], best: int) -> int:
        """Return how much of a region ends in its narrowest elements, the latest such place."""

        def width(count: int) -> int:
            return DTYPES[self.graph.types[region[count - 1].outputs[0]].dtype].nbytes

        for count in sorted(range(1, best), key=lambda n: (width(n), -n)):
            if width(count) >= width(best):
                break
            inside = {id(n) for n in region[:count]}
            if self.leaving(region[:count], inside) == [region[count - 1].outputs[0]]:
                self.held.append(region[count])
                return count
        return best

    def take_back(self) -> None:
        """Let regions take the nodes left out that no reader took, with what is behind them."""
        for node in self.held:
            before = self.group.get(id(self.producers.get(node.inputs[0])))
            own = self.group.get(id(node))
            if own is None or own[0] is not node or before is None or own is before:
                continue
            both = [*before, *own]
            made = {o for n in both for o in n.outputs}
            grown = len(both) <= GROUP_LIMIT and all(
                self.patterns[id(n)].same[i]
                for n in own
                for i, name in enumerate(n.inputs)
                if name in made
            )
            if grown and self.reader(node.inputs[0]) is own:
                self.put(both)

    def put(self, nodes: list[Node]) -> None:
        """Make nodes a group."""
        nodes.sort(key=lambda n: self.order[id(n)])
        for node in nodes:
            self.group[id(node)] = nodes

    def leaving(self, nodes: Iterable[Node], inside: set[int]) -> list[str]:
        """Return the tensors that something outside a set of nodes needs."""
        return [
            name
            for n in nodes
            for name in n.outputs
            if name
            and (
                name in self.outputs
                or not self.consumers.get(name)
                or any(id(c) not in inside for c in self.consumers[name])
            )
        ]

    def reader(self, name: str) -> list[Node] | None:
        """Return the one group that reads a tensor, if no other node and no output needs it."""
        if name in self.outputs or not self.consumers.get(name):
            return None
        groups = {id(self.group.get(id(c))): self.group.get(id(c)) for c in self.consumers[name]}
        found = next(iter(groups.values()))
        return found if len(groups) == 1 else None

    # -- attention --

    def attention(self, softmax: Node) -> None:
        """softmax(f(q k)) v -> one group, for a softmax of rows and an element-wise f."""
        out, scores = softmax.outputs[0], softmax.inputs[0]
        rank = len(self.graph.types[out].shape)
        own = self.group.get(id(softmax))
        before = self.group.get(id(self.producers.get(scores)))
        if softmax.attrs["axis"] != rank - 1 or softmax.attrs.get("coerce_2d") or own is None:
            return
        weights = own[-1].outputs[0]
        behind = self.reader(weights)
        if before is None or behind is None or self.reader(scores) is not own:
            return
        if before[0].op_id != "MatMul" or behind[0].op_id != "MatMul":
            return
        if behind[0].inputs[0] != weights or behind[0].inputs[1] == weights:
            return
        if sum(n.inputs.count(weights) for n in behind) != 1:
            return
        nodes = [*before, *own, *behind]
        if len(nodes) <= GROUP_LIMIT and scores == before[-1].outputs[0]:
            self.put(nodes)

    # -- prologues --

    def absorb(self) -> None:
        """Let groups take what makes their operands, last groups first."""
        for node in reversed(self.graph.nodes):
            group = self.group.get(id(node))
            if group is None and self.takes_parts(node):
                group = [node]
                self.put(group)
            if group is not None and group[-1] is node:
                self.absorb_into(node)

    def takes_parts(self, node: Node) -> bool:
        """Tell whether a node assembles its result from parts that may be computed there."""
        pattern = self.patterns.get(id(node))
        if pattern is None or not pattern.assembles or id(node) in self.views:
            return False
        return joined_offsets(node, self.graph.types) is None

    def absorb_into(self, last: Node) -> None:
        """Take injective groups whose only reader is the group of `last`, while there are any."""
        tried: set[str] = set()
        while True:
            group = self.group[id(last)]
            inside = {id(n) for n in group}
            names = dict.fromkeys(
                i
                for n in group
                for i in n.inputs
                if i and i not in tried and id(self.producers.get(i)) not in inside
            )
            taken = False
            for name in names:
                tried.add(name)
                maker = self.producers.get(name)
                if maker is not None and self.may_take(group, name, maker):
                    own = self.group.get(id(maker)) or [maker]
                    self.put([*own, *group])
                    taken = True
                    break
            if not taken:
                break
        self.drop_outer_views(last)

    def may_take(self, group: list[Node], name: str, maker: Node) -> bool:
        """Tell whether a group may compute operand `name` of `maker` where it reads it."""
        own = self.group.get(id(maker)) or [maker]
        patterns = [self.patterns.get(id(n)) for n in own]
        if any(p is None or not p.injective for p in patterns) or own[-1] is not maker:
            return False
        if len([o for o in maker.outputs if o]) != 1:
            return False
        if len(own) + len(group) > GROUP_LIMIT or self.reader(name) is not group:
            return False
        if id(maker) in self.views and not self.hides_group(maker):
            return False
        reads: list[tuple[Access, ...]] = []
        once = True
        for node in group:
            pattern = self.patterns[id(node)]
            for position, operand in enumerate(node.inputs):
                if operand == name:
                    found, alone = self.read.get(id(node), (pattern.accesses[position], True))
                    if found is None:
                        return False
                    reads.append(found)
                    once = once and alone and pattern.once[position]
        anchored = any(self.patterns[id(n)].reduces for n in group)
        move = patterns[0].move if len(own) == 1 and patterns[0] is not None else None
        if move is not None:
            through = [compose(r, move) for r in reads]
            if all(is_free(r, anchored) for r in through) or (once and not anchored):
                self.read[id(maker)] = (tuple(a for r in through for a in r), once)
                return True
            return False
        if anchored and not all(all(p.aligned) for p in patterns if p is not None):
            return False
        return once

    def hides_group(self, view: Node) -> bool:
        """Tell whether behind a view stands an injective group that nothing else reads."""
        name = view.inputs[0]
        while (maker := self.producers.get(name)) is not None:
            pattern = self.patterns.get(id(maker))
            if pattern is None or not pattern.injective or name in self.outputs:
                return False
            if len({id(c) for c in self.consumers.get(name, ())}) != 1:
                return False
            if id(maker) not in self.views:
                return True
            name = maker.inputs[0]
        return False

    def drop_outer_views(self, last: Node) -> None:
        """Leave views of what comes from outside out of a group: they cost nothing there."""
        group = self.group[id(last)]
        while True:
            made = {o for n in group for o in n.outputs}
            outer = [n for n in group if id(n) in self.views and n.inputs[0] not in made]
            if not outer:
                return
            for node in outer:
                group.remove(node)
                del self.group[id(node)]

    # -- the result --

    def result(self) -> Graph:
        """Return the graph of group nodes, each at the place of its last node."""
        nodes = []
        changed = False
        for node in self.graph.nodes:
            group = self.group.get(id(node))
            if group is None or len(group) == 1:
                nodes.append(node)
            elif group[-1] is node:
                nodes.append(self.group_node(group))
                changed = True
        return self.graph.with_(nodes=tuple(nodes)) if changed else self.graph

    def group_node(self, group: list[Node]) -> Node:
        """Return the node of a group."""
        graph = self.graph
        made = {o for n in group for o in n.outputs if o}
        reads = tuple(dict.fromkeys(i for n in group for i in n.inputs if i and i not in made))
        leaving = tuple(self.leaving(group, {id(n) for n in group}))
        assert leaving == (group[-1].outputs[0],), "a group gives one tensor, made last"
        body = Graph(
            name="+".join(n.op for n in group),
            nodes=tuple(group),
            inputs=tuple(n for n in reads if n not in graph.consts),
            outputs=leaving,
            types={k: graph.types[k] for k in (*reads, *made)},
            consts={k: graph.consts[k] for k in reads if k in graph.consts},
            opset=graph.opset,
        )
        domain, op = GROUP.split(":")
        return Node(self.label(group).name, op, body.inputs, leaving, {"body": body}, domain)

    def label(self, group: list[Node]) -> Node:
        """Return the node a group is named after: the first that reduces, or its first."""
        return next((n for n in group if not self.patterns[id(n)].injective), group[0])
