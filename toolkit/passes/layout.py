"""Layout: convolution nets run with the channel innermost, and transposes cancel.

Every operator of `axes.CHANNELWISE` has a form with the channel last, and what surrounds it a form
that fits.  Which nodes take theirs is a labelling of least cost, a minimum cut: a tensor that is
wanted in another order than it is stored in costs its bytes, a convolution with the channel
outside costs part of its work.  A Transpose of the model is not a node here but another way to
read its operand, so one that leads NHWC inputs into the net, or undoes what the layout did, is
gone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from toolkit.ir.graph import Graph, Node, prune
from toolkit.ir.types import DTYPES, TensorType, type_of
from toolkit.ops.op import Op
from toolkit.passes.axes import (
    CHANNELWISE,
    Form,
    Forms,
    inverse,
    is_moved,
    order_of,
    Perm,
    permuted,
    weight_operand,
)
from toolkit.passes.cut import INFINITE, Labelling

WORK_PER_BYTE = 8
"""Multiplications that cost as much as moving a byte, when their vectors must gather channels."""

PIXELS = 16
"""Pixels that fill the longest vectors."""


def layout(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """Store activations of convolutions with the channel last wherever that moves fewer bytes.

    Conv(x, w) -> T'(Conv_NHWC(T(x), w')), T moved through its neighbours, T(T'(x)) -> x.
    """
    if not any(n.op in CHANNELWISE and not n.domain for n in graph.nodes):
        return graph
    forms = Forms(graph)
    views = _views(graph)
    found = _assign(graph, forms)
    chosen = _decide(graph, forms, found, views)
    if not chosen:
        return graph
    return _Rewriter(graph, chosen, views).run()


def _views(graph: Graph) -> dict[str, tuple[str, Perm]]:
    """Map the result of each Transpose to the tensor it is, and to its axes in that one."""
    views: dict[str, tuple[str, Perm]] = {}
    for node in graph.nodes:
        if node.op_id == "Transpose" and node.inputs[0] not in graph.consts:
            perm: Perm = node.attrs["perm"]
            root, before = views.get(node.inputs[0], (node.inputs[0], tuple(range(len(perm)))))
            views[node.outputs[0]] = (root, permuted(before, perm))
    return views


# -- which forms are possible -----------------------------------------------------------------


def _assign(graph: Graph, forms: Forms) -> dict[int, Form]:
    """Give nodes the form that fits the channel-last form of a convolution near them."""
    producers, consumers = graph.producers(), graph.consumers()
    found: dict[int, Form] = {}
    queue: deque[Node] = deque()
    later: deque[tuple[str, Perm]] = deque()

    def spread(name: str, perm: Perm) -> None:
        """Offer a stored order to what makes and reads a tensor; across a Transpose, later."""
        maker = producers.get(name)
        for node in (*((maker,) if maker is not None else ()), *consumers.get(name, ())):
            if node.op_id == "Transpose":
                own: Perm = node.attrs["perm"]
                if name == node.inputs[0]:
                    other, moved = node.outputs[0], permuted(inverse(own), perm)
                else:
                    other, moved = node.inputs[0], permuted(own, perm)
                if is_moved(moved, forms.shape(other)):
                    later.append((other, moved))
            elif id(node) not in found:
                form = forms.offer(node, name, perm)
                if form is not None:
                    found[id(node)] = form
                    queue.append(node)

    for node in graph.nodes:
        form = forms.seed(node)
        if form is not None:
            found[id(node)] = form
            queue.append(node)
    crossed: set[tuple[str, Perm]] = set()
    while queue or later:
        if not queue:
            item = later.popleft()
            if item not in crossed:
                crossed.add(item)
                spread(*item)
            continue
        node = queue.popleft()
        form = found[id(node)]
        for name, perm in zip(node.outputs, form.makes, strict=True):
            if name and perm is not None:
                spread(name, perm)
        for name, perm in zip(node.inputs, form.wants, strict=True):
            if name and perm is not None and len(perm) == len(forms.shape(name)):
                spread(name, perm)
    return found


# -- which forms are best ---------------------------------------------------------------------


def _inner(want: Perm, rank: int) -> Perm:
    """Drop from a permutation the leading axes that pad an operand of lower rank."""
    extra = len(want) - rank
    return tuple(a - extra for a in want if a >= extra) if extra > 0 else want


def _slower(node: Node, forms: Forms) -> float:
    """Return the share of a convolution's work that the channel outside adds.

    A 1x1 convolution is a product in either order; what its pixels lack to whole vectors is lost.
    """
    attrs, kernel = node.attrs, forms.shape(node.inputs[weight_operand(node.op)])[2:]
    plain = all(n == 1 for n in (*kernel, *attrs.get("strides", ()), attrs.get("group", 1)))
    if node.op == "ConvTranspose" or not plain or any(attrs.get("pads", ())):
        return 1.0
    pixels = math.prod(forms.shape(node.outputs[0])[2:])
    return -(-pixels // PIXELS) * PIXELS / max(pixels, 1) - 1 + 1 / PIXELS


def _penalty(node: Node, forms: Forms) -> int:
    """Return what the channel outside costs a node, in bytes moved."""
    out = forms.types[node.outputs[0]].size
    if node.op in ("Conv", "ConvInteger", "QLinearConv", "ConvTranspose"):
        shape = forms.shape(node.inputs[weight_operand(node.op)])
        swapped = node.op == "ConvTranspose"
        work: int = shape[0] * math.prod(shape[2:]) if swapped else math.prod(shape[1:])
        return int(out * work * _slower(node, forms) // WORK_PER_BYTE)
    if node.op in CHANNELWISE:
        return int(out * math.prod(node.attrs.get("kernel_shape", (1,))) // WORK_PER_BYTE)
    return 0


def _decide(
    graph: Graph,
    forms: Forms,
    found: Mapping[int, Form],
    views: Mapping[str, tuple[str, Perm]],
) -> dict[int, Form]:
    """Return the forms to take: label 1 of the cheapest labelling."""
    cut = Labelling()
    items: dict[int, int] = {}
    for node in graph.nodes:
        if id(node) in found:
            items[id(node)] = cut.item()
            cut.cost(items[id(node)], _penalty(node, forms), 0)
    made: dict[str, tuple[int, Perm]] = {}
    for node in graph.nodes:
        for name, perm in zip(
            node.outputs, found[id(node)].makes if id(node) in found else (), strict=False
        ):
            if name and perm is not None:
                made[name] = (items[id(node)], order_of(perm, forms.shape(name)))
    wants = _wants(graph, forms, found, views, items)
    for root, readers in wants.items():
        nbytes = max(forms.types[root].size * DTYPES[forms.types[root].dtype].nbytes, 1)
        plain = order_of(tuple(range(len(forms.shape(root)))), forms.shape(root))
        maker, stored = made.get(root, (0, plain))
        for (order, label), group in readers.items():
            at_0, at_1 = (0 if order == plain else nbytes), (0 if order == stored else nbytes)
            if not at_0 and not at_1:
                continue
            if 0 in group:  # a reader that has no other form
                if maker:
                    cut.cost(maker, at_0, at_1)
                continue
            asks = group[0]
            if len(group) > 1:
                asks = cut.item()
                for item in group:
                    cut.unequal(item, asks, *((0, INFINITE) if label else (INFINITE, 0)))
            if not maker:
                cut.cost(asks, 0 if label else at_0, at_0 if label else 0)
                continue
            costs = (0, 0, at_0, at_1) if label else (at_0, at_1, 0, 0)
            if not cut.pair(asks, maker, costs):
                cut.cost(maker, at_0, at_1)
    labels = cut.solve()
    return {key: found[key] for key, item in items.items() if labels[item]}


_Asked = dict[tuple[Perm, int], list[int]]


def _wants(
    graph: Graph,
    forms: Forms,
    found: Mapping[int, Form],
    views: Mapping[str, tuple[str, Perm]],
    items: Mapping[int, int],
) -> dict[str, _Asked]:
    """Map each tensor to the orders it is asked for: {(order, label of the reader): readers}.

    A reader is an item, or 0 for one without another form.
    """
    wants: dict[str, _Asked] = {}

    def ask(name: str, want: Perm | None, item: int, label: int) -> None:
        root, view = views.get(name, (name, tuple(range(len(forms.shape(name))))))
        stored = view if want is None else permuted(view, _inner(want, len(view)))
        key = (order_of(stored, forms.shape(root)), label)
        group = wants.setdefault(root, {}).setdefault(key, [])
        if item not in group:
            group.append(item)

    for node in graph.nodes:
        if node.op_id == "Transpose" and node.outputs[0] in views:
            continue
        form = found.get(id(node))
        for position, name in enumerate(node.inputs):
            if not name or name in graph.consts:
                continue
            if form is None:
                ask(name, None, 0, 0)
            else:
                ask(name, None, items[id(node)], 0)
                ask(name, form.wants[position], items[id(node)], 1)
    for name in graph.outputs:
        if name not in graph.consts:
            ask(name, None, 0, 0)
    return wants


# -- the rewritten graph ----------------------------------------------------------------------


class _Rewriter:
    """Builds the graph in which the chosen nodes have their other form.  Lives for one `run`."""

    def __init__(
        self, graph: Graph, chosen: Mapping[int, Form], views: Mapping[str, tuple[str, Perm]]
    ) -> None:
        self.graph = graph
        self.chosen = chosen
        self.views = views
        self.types = dict(graph.types)
        self.consts = dict(graph.consts)
        self.nodes: list[Node] = []
        self.stored: dict[str, tuple[str, Perm]] = {}
        self.made: dict[tuple[object, ...], str] = {}
        self.rows: dict[str, np.ndarray] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if node.op_id == "Transpose" and node.outputs[0] in self.views:
                continue
            form = self.chosen.get(id(node))
            if form is None:
                inputs = tuple(self.read(n, None, 0) for n in node.inputs)
                self.nodes.append(self.follow_rows(node.with_(inputs=inputs)))
            else:
                self.convert(node, form)
        for name in dict.fromkeys(self.graph.outputs):
            if name not in self.consts and (name in self.views or name in self.stored):
                source = self.read(name, None, 0)
                self.nodes.append(Node(f"Identity_{name}", "Identity", (source,), (name,)))
        return prune(
            self.graph.with_(nodes=tuple(self.nodes), types=self.types, consts=self.consts)
        )

    def fresh(self, hint: str) -> str:
        name, n = hint, 1
        while name in self.types or name in self.consts:
            n += 1
            name = f"{hint}_{n}"
        return name

    def constant(self, value: np.ndarray, hint: str) -> str:
        name = self.fresh(hint)
        self.consts[name] = np.ascontiguousarray(value)
        self.types[name] = type_of(self.consts[name])
        return name

    def emit(self, op: str, source: str, operand: Sequence[int], shape: Sequence[int]) -> str:
        """Add a Transpose or Reshape of a stored tensor."""
        out = self.fresh(f"{source}.{op.lower()}")
        self.types[out] = TensorType(tuple(shape), self.types[source].dtype)
        if op == "Transpose":
            node = Node(out, op, (source,), (out,), {"perm": tuple(operand)})
        else:
            target = self.constant(np.array(operand, np.int64), "shape")
            node = Node(out, op, (source, target), (out,))
        self.nodes.append(node)
        return out

    def read(self, name: str, want: Perm | None, pad_to: int) -> str:
        """Return the tensor that holds `name` in the order wanted, adding what makes it."""
        if not name:
            return name
        shape = self.graph.types[name].shape
        rank = len(shape)
        want = tuple(range(rank)) if want is None else want
        final = permuted((1,) * (len(want) - rank) + shape, want)
        inner = _inner(want, rank)
        if name in self.graph.consts:
            return self.read_constant(name, inner, final)
        root, view = self.views.get(name, (name, tuple(range(rank))))
        order = permuted(view, inner)
        whole = self.graph.types[root].shape
        now, perm = self.stored.get(root, (root, tuple(range(len(whole)))))
        key = (root, order, final)
        if key in self.made:
            return self.made[key]
        result = now
        if order_of(order, whole) != order_of(perm, whole):
            moved = tuple(perm.index(a) for a in order)
            result = self.emit("Transpose", now, moved, permuted(whole, order))
        if self.types[result].shape != final:
            result = self.emit("Reshape", result, final, final)
        self.made[key] = result
        return result

    def read_constant(self, name: str, inner: Perm, final: Sequence[int]) -> str:
        value = self.graph.consts[name]
        if inner == tuple(range(len(inner))) and value.shape == tuple(final):
            return name
        key = (name, inner, tuple(final))
        if key not in self.made:
            moved = np.ascontiguousarray(value.transpose(inner)).reshape(final)
            self.made[key] = self.constant(moved, f"{name}.t")
        return self.made[key]

    def convert(self, node: Node, form: Form) -> None:
        """Add a node in its other form."""
        inputs = []
        for position, name in enumerate(node.inputs):
            if position in form.consts:
                inputs.append(self.constant(form.consts[position], f"{node.outputs[0]}.{position}"))
            else:
                inputs.append(self.read(name, form.wants[position], form.pad_to))
        outputs = []
        for name, perm in zip(node.outputs, form.makes, strict=True):
            if not name or perm is None or perm == tuple(range(len(perm))):
                outputs.append(name)
                continue
            kind = self.graph.types[name]
            out = self.fresh(f"{name}.nhwc")
            self.types[out] = TensorType(permuted(kind.shape, perm), kind.dtype)
            self.stored[name] = (out, perm)
            outputs.append(out)
        if form.rows is not None:
            self.rows[node.outputs[0]] = form.rows
        self.nodes.append(
            node.with_(
                inputs=tuple(inputs), outputs=tuple(outputs), attrs={**node.attrs, **form.attrs}
            )
        )

    def follow_rows(self, node: Node) -> Node:
        """Permute the weight rows of a product whose operand has its columns in another order."""
        rows = self.rows.get(node.inputs[0]) if node.inputs else None
        if rows is None:
            return node
        weight = self.consts[node.inputs[1]]
        moved = np.take(weight, rows, axis=1 if node.attrs.get("transB", 0) else 0)
        name = self.constant(moved, f"{node.inputs[1]}.rows")
        return node.with_(inputs=(node.inputs[0], name, *node.inputs[2:]))
