"""What the function of an operator sees: its operands, options, and the graph it adds nodes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tflite

from toolkit.errors import UnsupportedError
from toolkit.frontend import reference
from toolkit.frontend.builder import Infer
from toolkit.frontend.shapes import OPSET
from toolkit.frontend.tflite.read import Operator, Quant, Subgraph, TensorInfo
from toolkit.ir.graph import Node
from toolkit.ir.types import DTYPES, int_range, TensorType, type_of

DOMAIN = "tflite"
"""Of the operators that keep TFLite's own integer arithmetic (`toolkit.ops.tflite`)."""

ACTIVATIONS = {v: k for k, v in vars(tflite.ActivationFunctionType).items() if isinstance(v, int)}

QUANTISED = ("int8", "uint8", "int16")


@dataclass(eq=False)
class Build:
    """The graph under construction."""

    infer: Infer
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    consts: dict[str, np.ndarray] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    shared: dict[tuple[Any, ...], str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    """Resource variables, by container and name."""
    handles: dict[int, Variable] = field(default_factory=dict)
    """The variable that a tensor of the file is the handle of."""

    def unique(self, name: str) -> str:
        """Return a name that nothing else has: `name`, or with a number."""
        number, candidate = 2, name
        while candidate in self.used:
            candidate, number = f"{name}_{number}", number + 1
        self.used.add(candidate)
        return candidate

    def const(self, value: np.ndarray, name: str) -> str:
        """Define a constant, or find an equal one."""
        key = (str(value.dtype), value.shape, value.tobytes())
        found = self.shared.get(key)
        if found is None:
            found = self.shared[key] = self.unique(name)
            self.consts[found] = value
            self.types[found] = type_of(value)
        return found

    def add(self, node: Node) -> None:
        """Append a node, or fold one of constants; raises `UnsupportedError`."""
        values = [self.consts.get(n) for n in node.inputs]
        outputs = self.infer(node, self.types, self.consts, OPSET)
        known = all(v is not None or not n for v, n in zip(values, node.inputs, strict=True))
        plain = not node.domain and "nestling_layout" not in node.attrs
        if known and plain and reference.worth_folding(node, values, outputs):
            try:
                results = reference.evaluate(node, values)
            except reference.CannotEvaluate:
                results = []
            for name, result in zip(node.outputs, results, strict=False):
                self.consts[name] = result
                self.types[name] = type_of(result)
            if results:
                return
        self.nodes.append(node)
        self.types.update((n, t) for n, t in zip(node.outputs, outputs, strict=True) if n and t)

    def rename(self, old: str, new: str) -> None:
        """Give a tensor that the last nodes made, and that no one else knows, another name."""
        self.types[new] = self.types.pop(old)
        for place in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[place]
            self.nodes[place] = node.with_(
                inputs=tuple(new if n == old else n for n in node.inputs),
                outputs=tuple(new if n == old else n for n in node.outputs),
            )
            if old in node.outputs:
                return


@dataclass
class Variable:
    """A resource variable: `current` holds its value at this point of the walk, '' if untouched.

    `name`: the graph's input that holds its value before a run.  `initial`: before the first.
    """

    name: str
    initial: np.ndarray | None = None
    current: str = ""
    written: bool = False


@dataclass(frozen=True, eq=False)
class Site:
    """One operator of the file, as its family's function sees it."""

    build: Build
    graph: Subgraph
    op: Operator
    names: Mapping[int, str]
    """The graph's tensor of each tensor of the file that is known so far."""
    label: str
    """The node's name: that of the first output, with the operator's position."""
    subgraphs: Sequence[Subgraph] = ()

    # -- operands --

    def has(self, position: int) -> bool:
        """Tell whether an operand is there."""
        return position < len(self.op.inputs) and self.op.inputs[position] >= 0

    def info(self, position: int) -> TensorInfo:
        """Return what the file says of an operand."""
        if not self.has(position):
            raise self.refuse(f"input {position} is required")
        return self.graph.tensors[self.op.inputs[position]]

    def out(self, position: int = 0) -> TensorInfo:
        """Return what the file says of a result."""
        if position >= len(self.op.outputs):
            raise self.refuse(f"output {position} is missing")
        return self.graph.tensors[self.op.outputs[position]]

    def name(self, position: int) -> str:
        """Return the graph's tensor of an operand, '' for an absent one."""
        if not self.has(position):
            return ""
        index = self.op.inputs[position]
        found = self.names.get(index)
        if found is None:
            raise self.refuse(f"input {position} ('{self.graph.tensors[index].name}') has no value")
        return found

    def type(self, name: str) -> TensorType:
        """Return the type of a tensor of the graph."""
        return self.build.types[name]

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an operand."""
        return self.type(self.name(position)).shape

    def value(self, position: int, what: str) -> np.ndarray:
        """Return the value of an operand that must be a constant."""
        found = self.build.consts.get(self.name(position)) if self.has(position) else None
        if found is None:
            raise self.refuse(f"its {what} must be a constant")
        return found

    def ints(self, position: int, what: str) -> tuple[int, ...]:
        """Return a constant operand as a flat tuple of ints."""
        return tuple(int(v) for v in self.value(position, what).reshape(-1))

    def option(self, name: str, default: Any = 0) -> Any:
        """Return an option by the name of its accessor in the schema."""
        if self.op.options is None:
            return default
        return getattr(self.op.options, name)()

    def quant(self, info: TensorInfo) -> Quant:
        """Return the quantisation that a tensor must have."""
        if info.quant is None:
            raise self.refuse(f"tensor '{info.name}' ({info.dtype}) has no scale")
        return info.quant

    def per_tensor(self, info: TensorInfo) -> tuple[np.float32, int]:
        """Return the scale, as the float32 it is stored as, and zero point of a tensor."""
        quant = self.quant(info)
        if len(quant.scale) != 1:
            raise self.refuse(
                f"tensor '{info.name}' has {len(quant.scale)} scales where one is needed"
            )
        low, high = int_range(info.dtype)
        zero = int(quant.zero_point[0])
        if not low <= zero <= high or not quant.scale[0] > 0:
            raise self.refuse(f"tensor '{info.name}': scale {quant.scale[0]} and zero point {zero}")
        return np.float32(quant.scale[0]), zero

    def kind(self) -> str:
        """Return how the operator computes: 'float', 'integer' or 'hybrid', by data and weights."""
        data, weights = self.info(0).dtype, self.info(1).dtype
        if data == "float32" and weights in ("int8", "uint8"):
            return "hybrid"
        if data == weights == "float32":
            return "float"
        if data in QUANTISED and weights in QUANTISED:
            return "integer"
        raise self.refuse(f"{data} data with {weights} weights is not supported")

    # -- nodes --

    def const(self, value: Any, name: str, dtype: str | None = None) -> str:
        """Return a constant tensor of the graph."""
        array = np.ascontiguousarray(value, dtype=dtype)
        return self.build.const(array.reshape(np.shape(value)), name)

    def emit(
        self, op: str, *inputs: str, count: int = 1, domain: str = "", **attrs: Any
    ) -> tuple[str, ...]:
        """Add a node; return the names of its results."""
        base = self.out().name if self.op.outputs else self.label
        outputs = tuple(self.build.unique(f"{base}/{op}") for _ in range(count))
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        self.build.add(Node(f"{self.label}", op, tuple(given), outputs, attrs, domain))
        return outputs

    def one(self, op: str, *inputs: str, domain: str = "", **attrs: Any) -> str:
        """Add a node with one result; return its name."""
        return self.emit(op, *inputs, domain=domain, **attrs)[0]

    def own(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Add a node of TFLite's own arithmetic with one result; return its name."""
        return self.one(op, *inputs, domain=DOMAIN, **attrs)

    def refuse(self, why: str) -> UnsupportedError:
        """Return the error that says why this operator cannot be compiled."""
        return UnsupportedError(why)

    # -- what families share --

    def activation(self) -> str:
        """Return the name of the fused activation."""
        options = self.op.options
        number = 0
        if hasattr(options, "FusedActivationFunction"):
            number = int(options.FusedActivationFunction())
        name: str = ACTIVATIONS.get(number, f"ACTIVATION_{number}")
        return name

    def activated(self, x: str) -> str:
        """Apply the fused activation to floats."""
        activation = self.activation()
        match activation:
            case "NONE":
                return x
            case "RELU":
                return self.one("Relu", x)
            case "RELU6":
                return self.clipped(x, 0.0, 6.0)
            case "RELU_N1_TO_1":
                return self.clipped(x, -1.0, 1.0)
            case "TANH":
                return self.one("Tanh", x)
        raise self.refuse(f"the fused activation {activation} is not supported")

    def clipped(self, x: str, low: float, high: float) -> str:
        """Limit floats to low..high."""
        bounds = (self.const(np.float32(low), "low"), self.const(np.float32(high), "high"))
        return self.one("Clip", x, *bounds)

    def limits(self) -> tuple[int, int]:
        """Return the range of a quantised result under the fused activation.

        As `CalculateActivationRangeQuantized` in TFLite: bounds are zero + round(bound / scale), in
        float32 with ties away from zero, within the type's range.
        """
        info = self.out()
        scale, zero = self.per_tensor(info)
        low, high = int_range(info.dtype)

        def at(bound: float) -> int:
            ratio = np.float32(bound) / scale
            return zero + int(np.trunc(ratio + np.copysign(np.float32(0.5), ratio)))

        activation = self.activation()
        match activation:
            case "NONE":
                return low, high
            case "RELU":
                return max(low, at(0.0)), high
            case "RELU6":
                return max(low, at(0.0)), min(high, at(6.0))
            case "RELU_N1_TO_1":
                return max(low, at(-1.0)), min(high, at(1.0))
        raise self.refuse(f"the fused activation {activation} is not supported for integers")

    def limited(self, x: str) -> str:
        """Limit a quantised result to the range of the fused activation."""
        info, (low, high) = self.out(), self.limits()
        if (low, high) == int_range(info.dtype):
            return x
        bounds = (self.const(v, "limit", info.dtype) for v in (np.array(low), np.array(high)))
        return self.one("Clip", x, *bounds)

    def lookup(self, x: str, table: np.ndarray) -> str:
        """Replace 8-bit values by those of a table, which starts at the lowest value of x."""
        low = int_range(self.type(x).dtype)[0]
        same = table.dtype == np.dtype(self.type(x).dtype)
        if same and np.array_equal(table, np.arange(low, low + 256)):
            return x
        return self.own("Lookup", x, self.const(table, "table"))

    def same_quant(self, position: int = 0) -> None:
        """Refuse an operand whose scale and zero point are not those of the result."""
        ours, its = self.per_tensor(self.out()), self.per_tensor(self.info(position))
        if ours != its:
            raise self.refuse(f"its input {position} and its output are quantised differently")


assert set(QUANTISED) <= set(DTYPES)
