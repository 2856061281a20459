"""Which tensors of a float graph are stored as integers, and which of them share a scale.

A layer is a node that computes on quantised operands, with the bias and the activations behind it:
their results are not stored between.  Tensors that a node only moves (Reshape, MaxPool, Concat)
form a group with what they are moved from, of one scale; so do both sides of AveragePool, as in
TFLite's quantisation specification.  What is neither stays float and reads dequantised tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import int_range
from toolkit.passes.integers import MEANS, MOVES, PRODUCTS
from toolkit.quantization.ranges import Params, Scheme

MULTIPLIES = (*PRODUCTS, "ConvTranspose")
"""Operators of weights, or of two activations."""

JOINS = ("Add", "Sub", "Mul")
"""Operators of two activations."""

FUNCTIONS = (
    "Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu",
    "Selu", "Celu", "Softplus", "Softsign", "Mish", "Gelu", "Swish", "Softmax",
)  # fmt: skip
"""Activations of networks.  Exp, Log or Sqrt spread their results too widely for 8 bits."""

RECURRENT: Mapping[str, tuple[int, ...]] = {"LSTM": (1, 2), "GRU": (1, 2), "RNN": (1, 2)}
"""Operators that stay float; of these operands only the weights are stored as integers."""

HALF_OPEN = {"Softmax": True, "Sigmoid": True, "Tanh": False}
"""Functions with results in 0..1 (True) or -1..1, whose scale is fixed."""

ACTIVATIONS = ("Relu", "Clip")
"""What is folded into the range of the tensor before it."""

INT8, INT16, FLOAT = "int8", "16x8", "float"
"""What a layer may be computed in: weights are of 8 bits in the first two."""

WIDE = Scheme("int16", True)


@dataclass(frozen=True, slots=True)
class Layer:
    """A node with the nodes folded into it; known by `out`, the tensor that the last one writes.

    `acts` are the operands that are activations, by position in the first node, `weights` is the
    position of constant weights there, if it has any, and `bias` the name of a constant bias that
    is stored as int32.  `before` is the result without activations (`out` if there are none).
    """

    node: Node
    nodes: tuple[Node, ...]
    acts: tuple[int, ...]
    weights: int | None
    bias: str
    before: str

    @property
    def out(self) -> str:
        """The tensor that is stored."""
        return self.nodes[-1].outputs[0]

    @property
    def name(self) -> str:
        """What users know it by."""
        return self.node.name or self.out

    @property
    def is_product(self) -> bool:
        """Tell whether it multiplies quantised operands."""
        return self.node.op in MULTIPLIES


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Layers in order, and for each tensor that may be stored its group.

    `roots`: the tensors of a group that no move makes, whose values are the group's.  `fixed`: the
    function whose fixed scale a group has.
    """

    layers: tuple[Layer, ...]
    group: Mapping[str, str]
    roots: Mapping[str, tuple[str, ...]]
    fixed: Mapping[str, str]

    def needed(self, precision: Mapping[str, str]) -> dict[str, set[str]]:
        """Return for each group the precisions of the layers that read or write it."""
        found: dict[str, set[str]] = {}
        for layer in self.layers:
            for name in self.touched(layer):
                found.setdefault(self.group[name], set()).add(precision[layer.out])
        return found

    def touched(self, layer: Layer) -> tuple[str, ...]:
        """Return the tensors that are stored for a layer's sake."""
        inputs = (layer.node.inputs[i] for i in layer.acts) if layer.is_product else ()
        return (*inputs, layer.out)

    def storage(self, precision: Mapping[str, str], base: Scheme) -> dict[str, Scheme]:
        """Return how each group is stored; those between float layers only are not.

        Beside a layer of 16x8 or float, tensors have 16 bits: a float layer is then at least as
        exact as one of 16x8, and its neighbours still compute on integers.
        """
        schemes = {}
        for group, kinds in self.needed(precision).items():
            if kinds != {FLOAT}:
                schemes[group] = base if kinds == {INT8} else WIDE
        return schemes


def find_plan(graph: Graph) -> Plan:
    """Find the layers and groups of a float graph (without its subgraphs)."""
    layers = _layers(graph)
    group, roots, fixed = _groups(graph)
    return Plan(layers, group, roots, fixed)


def fixed_params(function: str, scheme: Scheme) -> Params:
    """Return scale and zero point of Softmax, Sigmoid and Tanh, as TFLite fixes them.

    8 bits: 0..1 in 256 steps, -1..1 in 256 steps; 16 bits: steps of 1/32768 for both.
    """
    low, high = int_range(scheme.dtype)
    if scheme.dtype == "int16":
        return Params("int16", 2.0**-15, 0)
    middle = (low + high + 1) // 2
    if not HALF_OPEN[function]:
        return Params(scheme.dtype, 2.0**-7, middle)
    if scheme.symmetric:
        return Params(scheme.dtype, float(np.float32(1 / (high - middle))), middle)
    return Params(scheme.dtype, 2.0**-8, low)


# -- layers -------------------------------------------------------------------------------------


def _layers(graph: Graph) -> tuple[Layer, ...]:
    readers = graph.consumers()
    outputs = set(graph.outputs)
    behind: set[str] = set()  # what some product has a part in
    taken: set[str] = set()  # nodes folded into a layer, by what they write
    found: list[Layer] = []

    def only_reader(name: str) -> Node | None:
        nodes = readers.get(name, ())
        return nodes[0] if len(nodes) == 1 and name not in outputs else None

    for node in graph.nodes:
        out = node.outputs[0] if node.outputs else ""
        kind = graph.types.get(out)
        product = _product(graph, node)
        if product is not None or any(n in behind for n in node.inputs):
            behind.update(o for o in node.outputs if o)
        if kind is None or kind.dtype != "float32" or out in taken or node.domain:
            continue
        layer = product
        if layer is None and out in behind:
            layer = _other(graph, node)
        if layer is None:
            continue
        layer = _with_bias(graph, layer, only_reader(layer.out))
        while (following := only_reader(layer.out)) is not None and _folds(graph, layer, following):
            layer = replace(layer, nodes=(*layer.nodes, following))
        taken.update(n.outputs[0] for n in layer.nodes)
        found.append(layer)
    return tuple(found)


def _product(graph: Graph, node: Node) -> Layer | None:
    """Return a product with constant weights, or of two activations, as a layer without a tail."""
    if node.op_id not in MULTIPLIES:
        return None
    constant = [n in graph.consts for n in node.inputs[:2]]
    if all(constant) or graph.types[node.inputs[0]].dtype != "float32":
        return None
    out = node.outputs[0]
    if node.op == "MatMul":
        if min(len(graph.types[n].shape) for n in node.inputs) < 2:
            return None
        acts = tuple(i for i in (0, 1) if not constant[i])
        return Layer(node, (node,), acts, constant.index(True) if any(constant) else None, "", out)
    if constant != [False, True]:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if node.op == "Gemm":
        if node.attrs.get("alpha", 1.0) != 1.0 or node.attrs.get("transA", 0):
            return None
        if bias and node.attrs.get("beta", 1.0) != 1.0:
            return None
    if bias and (bias not in graph.consts or graph.consts[bias].size != graph.types[out].shape[1]):
        return None
    return Layer(node, (node,), (0,), 1, bias, out)


def _other(graph: Graph, node: Node) -> Layer | None:
    """Return a layer that is no product: what joins, averages or activates quantised tensors."""
    acts = tuple(i for i, n in enumerate(node.inputs) if n and n not in graph.consts)
    out = node.outputs[0]
    if (node.op in JOINS and len(acts) == 2) or (node.op in (*MEANS, *FUNCTIONS) and acts == (0,)):
        return Layer(node, (node,), acts, None, "", out)
    return None


def _with_bias(graph: Graph, layer: Layer, following: Node | None) -> Layer:
    """Take in the Add of a constant, one value a column, behind a MatMul."""
    if layer.node.op != "MatMul" or layer.weights != 1 or following is None:
        return layer
    if following.op_id != "Add" or graph.types[following.outputs[0]] != graph.types[layer.out]:
        return layer
    columns = graph.types[layer.out].shape[-1]
    other = next((n for n in following.inputs if n != layer.out), "")
    if other not in graph.consts or graph.consts[other].shape != (columns,):
        return layer
    nodes = (*layer.nodes, following)
    return replace(layer, nodes=nodes, bias=other, before=following.outputs[0])


def _folds(graph: Graph, layer: Layer, following: Node) -> bool:
    """Tell whether a node is an activation that the range of the stored tensor can express."""
    if following.op_id not in ACTIVATIONS or layer.node.op in FUNCTIONS:
        return False
    return all(not n or n in graph.consts for n in following.inputs[1:])


# -- groups -------------------------------------------------------------------------------------


def _groups(
    graph: Graph,
) -> tuple[dict[str, str], dict[str, tuple[str, ...]], dict[str, str]]:
    """Return (tensor -> group, group -> its roots, group -> the function that fixes its scale)."""
    floats = [n for n, t in graph.types.items() if t.dtype == "float32" and n not in graph.consts]
    parent = {n: n for n in floats}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    moved: set[str] = set()
    fixed = {
        o: n.op for n in graph.nodes if not n.domain and n.op in HALF_OPEN for o in n.outputs if o
    }
    concats = []
    for node in graph.nodes:
        if node.op_id == "Concat" and node.outputs[0] in parent:
            concats.append(node)
        elif _keeps_values(graph, node):
            for out in node.outputs:
                if out in parent:
                    parent[out] = root(node.inputs[0])
                    if node.op != "AveragePool":
                        moved.add(out)
    for node in concats:
        sources = [n for n in node.inputs if n in parent]
        functions_of = {root(n): f for n, f in fixed.items() if n in parent}
        kinds = {functions_of.get(root(n)) for n in sources}
        if len(sources) < len(node.inputs) or len(kinds) > 1:
            continue  # operands are requantised to the scale of the result
        moved.add(node.outputs[0])
        for name in (*sources, node.outputs[0]):
            parent[root(name)] = root(sources[0])
    group = {n: root(n) for n in floats}
    roots: dict[str, list[str]] = {}
    functions: dict[str, str] = {}
    for name in floats:
        if name not in moved:
            roots.setdefault(group[name], []).append(name)
        if name in fixed:
            functions[group[name]] = fixed[name]
    return group, {k: tuple(v) for k, v in roots.items()}, functions


def _keeps_values(graph: Graph, node: Node) -> bool:
    """Tell whether results have the scale of the first operand."""
    if node.domain or not node.inputs or node.inputs[0] in graph.consts:
        return False
    if node.op == "Pad":
        value = node.inputs[2] if len(node.inputs) > 2 else ""
        return not value or not bool(np.any(graph.consts.get(value, np.ones(1))))
    if node.op == "Resize":
        return bool(node.attrs.get("mode", "nearest") == "nearest")
    return node.op in (*MOVES, "Split", "Gather", "AveragePool", "Dropout")
