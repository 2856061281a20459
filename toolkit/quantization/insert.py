"""The quantised graph: QuantizeLinear and DequantizeLinear around what is computed on integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType
from toolkit.ops.op import Op
from toolkit.passes.edit import Edit
from toolkit.quantization.plan import fixed_params, FLOAT, INT8, Layer, Plan, RECURRENT
from toolkit.quantization.ranges import Params, params_of, Range, Scheme
from toolkit.quantization.weights import (
    channel_axis,
    result_axis,
    store_bias,
    store_weights,
    StoredWeights,
)

RECURRENT_AXIS = 1
"""Of W and R of LSTM, GRU and RNN: gates and hidden units."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """All that decides a quantised graph of a float one.

    `narrow` and `full`: the range of each group in the calibrated scheme, and the one of everything
    seen, which 16 bits have room for.  `precision`: one of INT8, INT16, FLOAT by layer.
    `recurrent`: weights of LSTM, GRU and RNN are stored too.  `biases`: corrected ones, by layer.
    """

    plan: Plan
    base: Scheme
    narrow: Mapping[str, Range]
    full: Mapping[str, Range]
    precision: Mapping[str, str]
    per_channel: bool = True
    recurrent: bool = False
    biases: Mapping[str, np.ndarray] = field(default_factory=dict)

    def params(self, group: str, scheme: Scheme) -> Params:
        """Return scale and zero point of a group stored by `scheme`."""
        if group in self.plan.fixed:
            return fixed_params(self.plan.fixed[group], scheme)
        wide = scheme.dtype == "int16"
        return params_of((self.full if wide else self.narrow)[group], scheme)


@dataclass(frozen=True, slots=True, eq=False)
class OpenBias:
    """A bias as a graph input `name`: the float model's `value`, and the scale it is stored on."""

    name: str
    value: np.ndarray
    scale: np.ndarray

    def stored(self, bias: np.ndarray) -> np.ndarray:
        """Return what is added when `bias` is stored as int32, float32."""
        real: np.ndarray = store_bias(bias, self.scale).astype(np.float32) * self.scale
        return real


@dataclass(frozen=True, slots=True, eq=False)
class Inserted:
    """A quantised graph, and by the names of the float one what has their values in it.

    `computed`: what has values before they are stored, where it has another name than in the float
    graph.  `open_bias`: with `open_biases`, the biases of layers that are inputs of the graph.
    """

    graph: Graph
    values: Mapping[str, str]
    computed: Mapping[str, str]
    open_bias: Mapping[str, OpenBias]


def insert(
    graph: Graph, ops: Mapping[str, Op], choice: Choice, *, open_biases: bool = False
) -> Inserted:
    """Return the graph with tensors stored as integers where `choice` says so.

    Read as real numbers it computes what `graph` does up to rounding.  `open_biases` makes the bias
    of each product that can have one a float input, so that values are tried without a new build.
    """
    work = _Work(Edit(graph, ops), choice, choice.plan.storage(choice.precision, choice.base))
    for layer in choice.plan.layers:
        if layer.is_product and choice.precision[layer.out] != FLOAT:
            work.store_operands(layer, open_biases=open_biases)
    for node in graph.nodes if choice.recurrent else ():
        for position in RECURRENT.get(node.op_id, ()):
            work.store_recurrent(node, position)
    for name, group in choice.plan.group.items():
        if group in work.storage:
            work.store_tensor(name, work.storage[group])
    for layer in choice.plan.layers:
        if layer.is_product and choice.precision[layer.out] == INT8:
            work.narrow(layer)
    done = work.edit.finish()
    inputs = (*graph.inputs, *(bias.name for bias in work.open_bias.values()))
    return Inserted(done.with_(inputs=inputs), work.values, work.computed, work.open_bias)


@dataclass(eq=False)
class _Work:
    """The graph while it is changed, and what tensors are called in it."""

    edit: Edit
    choice: Choice
    storage: Mapping[str, Scheme]
    values: dict[str, str] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)
    open_bias: dict[str, OpenBias] = field(default_factory=dict)
    shared: dict[tuple[str, int | None, bytes], str] = field(default_factory=dict)

    # -- constants --

    def store_operands(self, layer: Layer, *, open_biases: bool) -> None:
        """Store weights and bias; scale of a bias = scale of the operand * scale of the weights."""
        if layer.weights is None:
            return
        node = self._now(layer.node)
        x_scale = self._read_params(layer, node.inputs[layer.acts[0]]).scale
        weights = self.edit.consts[node.inputs[layer.weights]]
        axis = channel_axis(layer, weights.ndim) if self.choice.per_channel else None
        bias = self.edit.consts[layer.bias].reshape(-1) if layer.bias else None
        held = store_weights(weights, axis, bias=bias, x_scale=x_scale)
        name = self._dequantised(node, node.inputs[layer.weights], held)
        self.edit.reread(node, layer.weights, name)
        scale = np.float32(x_scale) * held.scale
        if open_biases:
            self._open(layer, bias, scale)
            return
        bias = self.choice.biases.get(layer.out, bias)
        if bias is not None:
            stored = StoredWeights(store_bias(bias, scale), scale, 0 if scale.ndim else None)
            self._set_bias(layer, self._dequantised(node, f"{layer.before}.bias", stored))

    def store_recurrent(self, node: Node, position: int) -> None:
        """Store weights of an operator that computes in float."""
        node = self._now(node)
        weights = self.edit.value(node.inputs[position])
        if weights is not None and weights.dtype == np.float32:
            axis = RECURRENT_AXIS if self.choice.per_channel else None
            held = store_weights(weights, axis)
            self.edit.reread(node, position, self._dequantised(node, node.inputs[position], held))

    def _dequantised(self, near: Node, hint: str, held: StoredWeights) -> str:
        """Return the tensor that stored weights are read as; layers that share them share it."""
        key = hint, held.axis, held.scale.tobytes()
        if key in self.shared:
            return self.shared[key]
        stored = self.edit.const(held.stored, f"{hint}.stored")
        scale = self.edit.const(held.scale, f"{hint}.scale")
        attrs = {} if held.axis is None else {"axis": held.axis}
        kind = TensorType(held.stored.shape, "float32")
        name = self.edit.emit(near, "DequantizeLinear", (stored, scale), kind, attrs, hint=hint)
        self.shared[key] = name
        return name

    def _set_bias(self, layer: Layer, name: str) -> None:
        """Let a layer's bias be a tensor; a product without one gets it where it can have one."""
        first = self._now(layer.node)
        if first.op != "MatMul":
            self.edit.replace(first, first.with_(inputs=(*first.inputs[:2], name)))
            return
        add = self._now(layer.nodes[1])
        self.edit.reread(add, add.inputs.index(layer.bias), name)

    def _open(self, layer: Layer, bias: np.ndarray | None, scale: np.ndarray) -> None:
        if layer.node.op == "MatMul" and not layer.bias:
            return
        shape = self.edit.shape(layer.before)
        channels = shape[result_axis(layer, len(shape))]
        name = self.edit.fresh(f"{layer.before}.open")
        self.edit.types[name] = TensorType((channels,), "float32")
        value = np.zeros(channels) if bias is None else bias.astype(np.float64)
        self.open_bias[layer.out] = OpenBias(name, value, scale)
        self._set_bias(layer, name)

    # -- activations --

    def store_tensor(self, name: str, scheme: Scheme) -> None:
        """x -> DequantizeLinear(QuantizeLinear(x)) for all that read x."""
        edit = self.edit
        readers, maker = edit.readers(name), edit.producer(name)
        shown = edit.outputs[name] > 0
        if not (readers or shown) or (shown and maker is None):
            return
        params = self.choice.params(self.choice.plan.group[name], scheme)
        near = maker if maker is not None else readers[0]
        source = name
        if shown:
            assert maker is not None
            source = edit.fresh(f"{name}.float")
            edit.types[source] = edit.types[name]
            self.computed[name] = source
            for reader in readers:
                self._reread(reader, name, source)
            near = edit.replace_output(maker, name, source)
            readers = edit.readers(source)
        constants = self._constants(params)
        kind = TensorType(edit.shape(name), params.dtype)
        stored = edit.emit(near, "QuantizeLinear", (source, *constants), kind, hint="stored")
        real = name
        if not shown:
            real = edit.emit(
                near, "DequantizeLinear", (stored, *constants), edit.types[name], hint="real"
            )
        else:
            out = Node(f"{near.name}.real", "DequantizeLinear", (stored, *constants), (name,))
            edit.insert(out, near)
        for reader in readers:
            self._reread(reader, source, real)
        self.values[name] = real

    def narrow(self, layer: Layer) -> None:
        """Let a layer of 8 bits read 8 bits of a tensor of 16."""
        for position in layer.acts:
            name = layer.node.inputs[position]
            group = self.choice.plan.group[name]
            if self.storage[group] == self.choice.base:
                continue
            node = self._now(layer.node)
            params = self.choice.params(group, self.choice.base)
            constants = self._constants(params)
            kind = TensorType(self.edit.shape(name), params.dtype)
            stored = self.edit.emit(
                node, "QuantizeLinear", (node.inputs[position], *constants), kind, hint="narrow"
            )
            real = self.edit.emit(
                node, "DequantizeLinear", (stored, *constants), self.edit.types[name], hint="real"
            )
            self.edit.reread(node, position, real)

    def _read_params(self, layer: Layer, name: str) -> Params:
        """Return scale and zero point of an operand as a layer reads it."""
        group = self.choice.plan.group[name]
        narrow = self.choice.precision[layer.out] == INT8
        return self.choice.params(group, self.choice.base if narrow else self.storage[group])

    def _constants(self, params: Params) -> tuple[str, str]:
        return (
            self.edit.const(np.asarray(params.scale, np.float32), "scale"),
            self.edit.const(np.asarray(params.zero, params.dtype), "zero_point"),
        )

    def _reread(self, reader: Node, name: str, other: str) -> None:
        inputs = tuple(other if n == name else n for n in reader.inputs)
        self.edit.replace(reader, reader.with_(inputs=inputs))

    def _now(self, node: Node) -> Node:
        """Return the node that stands in the place of one of the float graph."""
        out = next(o for o in node.outputs if o)
        found = self.edit.producer(self.computed.get(out, out))
        assert found is not None, f"{out} has no producer"
        return found
