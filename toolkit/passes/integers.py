"""Dequantise, compute, quantise becomes arithmetic on the integers themselves.

    QuantizeLinear(Relu(Conv(DequantizeLinear(x), DequantizeLinear(w), b)))
      -> Requantize(ConvInteger(x, w))

An operator on integers is taken only where it is proven to give what exact arithmetic gives,
rounded half to even, on every sum that can occur (`passes.requantise`): per channel, the zero
points, the bias and an activation inside.  Moves (Reshape, Slice, MaxPool, ...) run on the stored
integers, and functions of one tensor of 8 bits are tables of 256 entries.  What stays is float, in
the kernels that it is fused into.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import int_range, TensorType, type_of
from toolkit.ops.op import infer_node, Op
from toolkit.passes.edit import Edit, rewrite, Rule
from toolkit.passes.fixed import become_sum, limits_of_products, parameters
from toolkit.passes.fold_constants import fold_constants
from toolkit.passes.pairs import Pairs
from toolkit.passes.qlinear import become_product
from toolkit.passes.requantise import (
    near_ties,
    Staircase,
    staircase,
)
from toolkit.passes.simplify import clip_bounds

TO_ONNX = {"int8": 3, "uint8": 2, "int16": 5, "uint16": 4}

MOVES = (
    "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Expand", "Tile",
    "Identity", "MaxPool", "DepthToSpace", "SpaceToDepth", "ReduceMax", "ReduceMin",
    "GlobalMaxPool",
)  # fmt: skip
"""Operators whose results are elements of their first operand."""

FUNCTIONS = (
    "Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "Elu", "Selu",
    "Celu", "Softplus", "Softsign", "Mish", "Gelu", "Erf", "Exp", "Log", "Sqrt", "Reciprocal",
    "Abs", "Neg",
    "Floor", "Ceil", "Round", "ThresholdedRelu", "Sin", "Cos", "Atan",
)  # fmt: skip
"""Functions of one element that a table may hold."""

PAIRS = ("Add", "Sub", "Mul")
"""Functions of two elements that integer arithmetic may give."""

WITH_NUMBER = (*PAIRS, "Div", "Pow", "Max", "Min")
"""Functions of two elements that, with one of them a constant, a table may hold."""

MEANS = ("AveragePool", "GlobalAveragePool", "ReduceMean")

PRODUCTS = ("Conv", "MatMul", "Gemm")


MANY = 0.25
"""Share of results beside a tie from which on a product stays float, as its reference is."""


def integers(
    graph: Graph,
    ops: Mapping[str, Op],
    *,
    note: Callable[[str], None] = lambda text: None,
    fixed: bool = False,
) -> Graph:
    """Turn quantised subgraphs into operators on integers wherever that is proven equal.

    `fixed`: requantise by an integer multiplier and a shift where that is proven, for cores on
    which conversions to float cost more; else in float32 where that is.  `note` is told what stays
    float between quantised tensors, and why.
    """
    if not any(n.op_id in ("DequantizeLinear", "QuantizeLinear") for n in graph.nodes):
        return graph
    rules: dict[str, Sequence[Rule]] = {
        **dict.fromkeys(MOVES, (move,)),
        "Split": (split,),
        "DequantizeLinear": (number,),
        "QuantizeLinear": (
            same,
            concat,
            mean,
            partial(product, fixed=fixed),
            partial(table, ops),
            partial(pair, ops, fixed=fixed),
        ),
    }
    done = rewrite(graph, ops, rules)
    for text in left_in_float(done):
        note(text)
    return done


def left_in_float(graph: Graph) -> list[str]:
    """Return a sentence for each float node that reads or makes dequantised tensors."""
    producers, consumers = graph.producers(), graph.consumers()
    sentences = []
    for node in graph.nodes:
        kind = graph.types[node.outputs[0]].dtype if node.outputs[0] else ""
        moved = node.op_id in ("DequantizeLinear", "QuantizeLinear", *MOVES)
        if moved or kind != "float32":
            continue
        makers = [producers.get(n) for n in node.inputs if n]
        reads = any(
            m is not None and m.op_id == "DequantizeLinear" and m.inputs[0] not in graph.consts
            for m in makers
        )
        readers = consumers.get(node.outputs[0], ())
        if not reads and not any(r.op_id == "QuantizeLinear" for r in readers):
            continue
        sentences.append(f"node '{node.name}' ({node.op_id}) stays float: {_why(node, readers)}")
    return sentences


def _why(node: Node, readers: Sequence[Node]) -> str:
    if node.op in PRODUCTS:
        if not any(r.op_id in ("QuantizeLinear", "Relu", "Clip", "Add") for r in readers):
            return "its result is not quantised"
        return (
            "its operands are not all quantised, no integer requantisation is proven equal, or "
            "ties are so frequent that float rounding decides them"
        )
    if node.op in PAIRS:
        return "no integer arithmetic was found that gives all its 65,536 results"
    if node.op in FUNCTIONS:
        return "functions alone between quantised tensors of 8 bits become tables"
    if node.op in MEANS:
        return "exact ties are frequent in means, and float sums decide them"
    return "it is defined on floats, and has no form on integers"


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A tensor as it is stored: `name` in integers, and what its real values are.

    `scale`: float32, a scalar or one value for each index of `axis`; `zero` alike, int64.
    """

    name: str
    dtype: str
    scale: np.ndarray
    zero: np.ndarray
    axis: int | None


def stored(edit: Edit, node: Node | None, side: str) -> Stored | None:
    """Return what a DequantizeLinear reads or a QuantizeLinear writes, its parameters constant."""
    if node is None or node.op_id != side or node.attrs.get("block_size"):
        return None
    name = node.inputs[0] if side == "DequantizeLinear" else node.outputs[0]
    scale = edit.value(node.inputs[1])
    zero_name = node.inputs[2] if len(node.inputs) > 2 else ""
    zero = edit.value(zero_name) if zero_name else np.zeros((), np.int64)
    if scale is None or zero is None or scale.dtype != np.float32 or not (scale > 0).all():
        return None
    if not np.isfinite(scale).all():
        return None
    axis = node.attrs.get("axis") if scale.ndim else None
    return Stored(name, edit.dtype(name), scale, zero.astype(np.int64), axis)


def _per_tensor(found: Stored | None) -> Stored | None:
    """Return it if it has one scale and is of 8 or 16 bits."""
    if found is None or found.scale.ndim or found.zero.ndim or found.dtype not in TO_ONNX:
        return None
    return found


def _source(edit: Edit, name: str) -> Stored | None:
    return _per_tensor(stored(edit, edit.producer(name), "DequantizeLinear"))


# -- what only moves ----------------------------------------------------------------------------


def move(edit: Edit, node: Node) -> bool:
    """f(DequantizeLinear(x)) -> DequantizeLinear(f(x)) where f moves or compares elements."""
    x = _source(edit, node.inputs[0])
    if x is None or len([o for o in node.outputs if o]) != 1:
        return False
    dequantize, out = edit.producer(node.inputs[0]), node.outputs[0]
    assert dequantize is not None
    kind = TensorType(edit.shape(out), x.dtype)
    moved = edit.emit(node, node.op, (x.name, *node.inputs[1:]), kind, node.attrs, hint="stored")
    attrs = {k: v for k, v in dequantize.attrs.items() if k != "axis"}
    return edit.become(node, "DequantizeLinear", (moved, *dequantize.inputs[1:]), attrs)


def split(edit: Edit, node: Node) -> bool:
    """Split(DequantizeLinear(x)) -> DequantizeLinear of each part of Split(x)."""
    x, dequantize = _source(edit, node.inputs[0]), edit.producer(node.inputs[0])
    if x is None or dequantize is None or not all(node.outputs):
        return False
    parts = []
    for out in node.outputs:
        parts.append(edit.fresh(f"{out}.stored"))
        edit.types[parts[-1]] = TensorType(edit.shape(out), x.dtype)
    inputs = (x.name, *node.inputs[1:])
    attrs = {k: v for k, v in dequantize.attrs.items() if k != "axis"}
    edit.exchange(node, [
        node.with_(inputs=inputs, outputs=tuple(parts)),
        *(
            Node(f"{node.name}.{n}", "DequantizeLinear", (p, *dequantize.inputs[1:]), (o,), attrs)
            for n, (p, o) in enumerate(zip(parts, node.outputs, strict=True))
        ),
    ])  # fmt: skip
    return True


def number(edit: Edit, node: Node) -> bool:
    """DequantizeLinear of a constant of one element -> that number."""
    x = _source(edit, node.outputs[0])
    value = None if x is None else edit.value(x.name)
    if x is None or value is None or value.size != 1:
        return False
    real = (value.astype(np.int64) - x.zero).astype(np.float32) * x.scale
    return edit.forward(node.outputs[0], edit.const(real, "number"))


def same(edit: Edit, node: Node) -> bool:
    """QuantizeLinear(DequantizeLinear(x)) -> x for equal parameters: round(q * s / s) is q."""
    x = _source(edit, node.inputs[0])
    y = _per_tensor(stored(edit, node, "QuantizeLinear"))
    if x is None or y is None or x.dtype != y.dtype:
        return False
    if x.scale != y.scale or x.zero != y.zero:
        return False
    return edit.forward(node.outputs[0], x.name)


def concat(edit: Edit, node: Node) -> bool:
    """QuantizeLinear(Concat(DequantizeLinear(x)..)) -> Concat(QuantizeLinear(Dequantize..(x))..).

    Operands that have the parameters of the result are then `same`, others become tables.
    """
    y = _per_tensor(stored(edit, node, "QuantizeLinear"))
    joined = edit.single(node.inputs[0], "Concat")
    if y is None or joined is None:
        return False
    sources = [_source(edit, n) for n in joined.inputs]
    if any(x is None or not x.dtype.endswith("int8") for x in sources):
        return False
    parts = [
        edit.emit(
            node, "QuantizeLinear", (n, *node.inputs[1:]), TensorType(edit.shape(n), y.dtype),
            node.attrs, hint="part",
        )
        for n in joined.inputs
    ]  # fmt: skip
    return edit.become(node, "Concat", parts, joined.attrs)


# -- means --------------------------------------------------------------------------------------


def mean(edit: Edit, node: Node) -> bool:
    """QuantizeLinear(GlobalAveragePool(DequantizeLinear(x))) -> RequantizeMean(x).

    AveragePool over a whole image alike.  The sums are in float32, in onnxruntime's order.
    """
    y = _per_tensor(stored(edit, node, "QuantizeLinear"))
    pool = edit.single(node.inputs[0], "GlobalAveragePool", "AveragePool")
    if y is None or pool is None or pool.attrs.get("nestling_layout"):
        return False
    x = _source(edit, pool.inputs[0])
    shape = edit.shape(pool.inputs[0])
    if x is None or not x.dtype.endswith("int8") or len(shape) < 3:
        return False
    parts = 4
    if pool.op == "AveragePool":
        window = tuple(pool.attrs["kernel_shape"])
        plain = pool.attrs.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
        if window != shape[2:] or any(pool.attrs.get("pads", ())) or not plain:
            return False
        # With small strides the order depends on the opset that the model had.
        if tuple(pool.attrs.get("strides", (1,)))[-1] <= 2:
            return False
        parts = 1
    scales = [edit.const(s.scale.astype(np.float32), "scale") for s in (x, y)]
    zero = edit.const(x.zero.astype(x.dtype), "zero")
    attrs = {"to": TO_ONNX[y.dtype], "zero_point": int(y.zero), "parts": parts}
    return edit.become(node, "RequantizeMean", (x.name, scales[0], zero, scales[1]), attrs)


# -- tables -------------------------------------------------------------------------------------


def table(ops: Mapping[str, Op], edit: Edit, node: Node) -> bool:
    """QuantizeLinear(f(DequantizeLinear(x))) -> Lookup(x, table) for a chain f of functions.

    The chain may be empty: what is left is another scale or zero point.
    """
    y = _per_tensor(stored(edit, node, "QuantizeLinear"))
    chain, name = _functions(edit, node.inputs[0])
    x = _source(edit, name)
    if x is None or y is None or not x.dtype.endswith("int8"):
        return False
    values = _evaluated(ops, edit, chain, {name: _real(x)}) if chain else _real(x)
    if values is None:
        return False
    held = edit.const(_quantised(values, y), f"{node.outputs[0]}.table")
    lookup = Node(node.name, "Lookup", (x.name, held), node.outputs, {}, "tflite")
    edit.replace(node, lookup)
    return True


def _functions(edit: Edit, name: str) -> tuple[list[Node], str]:
    """Return the functions of one element that make a tensor of another, in order, and that."""
    chain: list[Node] = []
    while (before := edit.single(name, *FUNCTIONS, *WITH_NUMBER)) is not None:
        given = [n for n in before.inputs if n and n not in edit.consts]
        if len(given) != 1:
            break
        numbers = [n for n in before.inputs if n in edit.consts]
        one = given == [before.inputs[0]] if before.op in FUNCTIONS else _numbers(edit, numbers)
        if not one or edit.shape(given[0]) != edit.shape(before.outputs[0]):
            break
        chain.insert(0, before)
        name = given[0]
    return chain, name


def _numbers(edit: Edit, names: Sequence[str]) -> bool:
    """Tell whether constants are single numbers."""
    return all(edit.types[n].size == 1 for n in names)


def _real(x: Stored) -> np.ndarray:
    """Return the real value of each stored one, from the lowest."""
    low, high = int_range(x.dtype)
    values: np.ndarray = (np.arange(low, high + 1) - x.zero).astype(np.float32) * x.scale
    return values


def _quantised(values: np.ndarray, y: Stored) -> np.ndarray:
    """Return values of float32 as QuantizeLinear stores them."""
    with np.errstate(over="ignore"):
        scaled = np.rint(np.nan_to_num(values / y.scale, nan=-np.inf)) + np.float32(y.zero)
    entries: np.ndarray = np.clip(scaled, *int_range(y.dtype)).astype(y.dtype)
    return entries


def _evaluated(
    ops: Mapping[str, Op], edit: Edit, chain: Sequence[Node], given: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """Return what a chain of functions makes of constant values; None if it is not folded."""
    consts = {n: edit.consts[n] for node in chain for n in node.inputs if n in edit.consts}
    # A number of any rank would add axes of 1 to the table.
    consts = {n: v.reshape(()) if v.size == 1 else v for n, v in consts.items()}
    consts.update(given)
    types = {n: type_of(v) for n, v in consts.items()}
    last = chain[-1].outputs[0]
    graph = Graph("table", tuple(chain), (), (last,), types, consts, edit.graph.opset)
    folded = fold_constants(graph, lambda *site: infer_node(ops, *site))
    found = folded.consts.get(last)
    return None if found is None or found.dtype != np.float32 else found


# -- pairs --------------------------------------------------------------------------------------


def pair(ops: Mapping[str, Op], edit: Edit, node: Node, *, fixed: bool) -> bool:
    """QuantizeLinear(f(Add(DequantizeLinear(a), DequantizeLinear(b)))) -> RequantizeSum(a, b).

    Sub alike; Mul -> Requantize of a product.  f is a chain of functions, such as Relu.
    """
    y = _per_tensor(stored(edit, node, "QuantizeLinear"))
    chain, name = _functions(edit, node.inputs[0])
    made = edit.single(name, *PAIRS)
    if y is None or made is None or not y.dtype.endswith("int8"):
        return False
    sources = [_source(edit, n) for n in made.inputs]
    a, b = sources
    if a is None or b is None or made.inputs[0] == made.inputs[1]:
        return False
    if not (a.dtype.endswith("int8") and b.dtype.endswith("int8")):
        return False
    given = {made.inputs[0]: _real(a)[:, None], made.inputs[1]: _real(b)[None]}
    values = _evaluated(ops, edit, [made, *chain], given)
    if values is None:
        return False
    results = _quantised(values, y).astype(np.int64)
    low, high = int(results.min()), int(results.max())
    kinds = a.dtype, b.dtype
    if made.op == "Mul":
        slope = float(a.scale) * float(b.scale) / float(y.scale)
        pairs = Pairs(kinds, results, low, high, (slope, slope))
        zeros = int(a.zero), int(b.zero)
        return become_product(edit, node, (a.name, b.name), zeros, int(y.zero), pairs, long=fixed)
    sign = -1.0 if made.op == "Sub" else 1.0
    slopes = float(a.scale) / float(y.scale), sign * float(b.scale) / float(y.scale)
    return become_sum(edit, node, (a.name, b.name), Pairs(kinds, results, low, high, slopes))


# -- products -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """The second operand of a product: constant, channels of the result along `axis`."""

    stored: Stored
    value: np.ndarray
    axis: int

    @property
    def channels(self) -> int:
        return int(self.value.shape[self.axis])

    def rows(self) -> np.ndarray:
        """Return values less the zero point, int64, one row for each channel."""
        rows = np.moveaxis(self.value.astype(np.int64), self.axis, 0).reshape(self.channels, -1)
        less: np.ndarray = rows - self.stored.zero.reshape(-1, 1)
        return less


def _weights(edit: Edit, node: Node) -> Weights | None:
    """Return constant integer weights of a product, quantised per tensor or output channel."""
    name = node.inputs[1]
    found = stored(edit, edit.producer(name), "DequantizeLinear")
    value = None if found is None else edit.value(found.name)
    if found is None or value is None or value.dtype.itemsize != 1:
        return None
    rank = value.ndim
    axis = 0 if node.op == "Conv" or node.attrs.get("transB") else rank - 1
    if rank < 2 or (node.op == "MatMul" and rank != 2):
        return None
    if found.axis is not None and found.axis % rank != axis:
        return None
    return Weights(found, value, axis)


def _bias(edit: Edit, name: str) -> np.ndarray | None:
    """Return a constant bias in float32 as it is added: dequantised, if it is stored so."""
    value = edit.value(name)
    if value is not None:
        return value if value.dtype == np.float32 else None
    found = stored(edit, edit.producer(name), "DequantizeLinear")
    held = None if found is None else edit.value(found.name)
    if found is None or held is None or held.ndim > 1:
        return None
    real: np.ndarray = (held.astype(np.int64) - found.zero).astype(np.float32) * found.scale
    return real


@dataclass(frozen=True, slots=True)
class _Found:
    """A product with what is folded into it, from the quantised operand to QuantizeLinear."""

    node: Node
    bias: tuple[str, ...]
    bounds: tuple[tuple[float | int | None, float | int | None], ...]


def _product(edit: Edit, node: Node) -> _Found | None:
    """Walk up from QuantizeLinear over activations and a bias to a product."""
    name = node.inputs[0]
    bounds: list[tuple[float | int | None, float | int | None]] = []
    while (clip := edit.single(name, "Relu", "Clip")) is not None:
        found = clip_bounds(edit, clip)
        if found is None:
            return None
        bounds.insert(0, found)
        name = clip.inputs[0]
    bias: tuple[str, ...] = ()
    add = edit.single(name, "Add")
    if add is not None:
        for position in (0, 1):
            inner = edit.single(add.inputs[position], "MatMul")
            if inner is not None and _bias(edit, add.inputs[1 - position]) is not None:
                bias, name = (add.inputs[1 - position],), add.inputs[position]
                break
    made = edit.single(name, *PRODUCTS)
    if made is None or made.attrs.get("nestling_layout"):
        return None
    if made.op == "Gemm" and (
        made.attrs.get("alpha", 1.0) != 1.0
        or made.attrs.get("beta", 1.0) != 1.0
        or made.attrs.get("transA")
    ):
        return None
    return _Found(made, (*bias, *(n for n in made.inputs[2:] if n)), tuple(bounds))


def _range(y: Stored, bounds: Sequence[tuple[float | int | None, float | int | None]]) -> _Pair:
    """Return the integers that activations leave of the result's range: quantising is monotone."""
    low, high = int_range(y.dtype)

    def at(bound: float | int) -> int:
        with np.errstate(over="ignore"):
            ratio = float(np.rint(np.float32(bound) / y.scale))
        return int(np.clip(ratio + float(y.zero), *int_range(y.dtype)))

    for least, most in bounds:
        if least is not None:
            low, high = max(low, at(least)), max(high, at(least))
        if most is not None:
            low, high = min(low, at(most)), min(high, at(most))
    return low, high


_Pair = tuple[int, int]


def product(edit: Edit, node: Node, *, fixed: bool) -> bool:
    """Quantised product, bias, activation -> integer product, Requantize."""
    y = _per_tensor(stored(edit, node, "QuantizeLinear"))
    found = None if y is None else _product(edit, node)
    if y is None or found is None:
        return False
    x = _source(edit, found.node.inputs[0])
    weights = _weights(edit, found.node)
    if x is not None and weights is None and found.node.op == "MatMul" and not found.bias:
        return _activations(edit, node, found, x, y, fixed=fixed)
    if x is None or weights is None:
        return False
    bias = np.zeros(weights.channels, np.float64)
    for name in found.bias:
        value = _bias(edit, name)
        if value is None or value.size not in (1, weights.channels):
            return False
        bias = bias + np.broadcast_to(value.reshape(-1).astype(np.float64), bias.shape)
    low, high = _range(y, found.bounds)
    rows = weights.rows()
    limits = limits_of_products(rows, x.dtype, int(x.zero))
    padded = bool(found.node.op == "Conv" and any(found.node.attrs.get("pads", ())))
    if max(-int(limits[0].min()), int(limits[1].max())) >= 2**29 or low > high:
        return False
    scales = np.broadcast_to(weights.stored.scale.astype(np.float64), (weights.channels,))
    stairs = staircase(
        scales.tolist(), bias.tolist(), float(x.scale), float(y.scale),
        zero=int(y.zero), low=low, high=high, limits=limits,
    )  # fmt: skip
    if _decided_by_rounding(stairs, x.scale, y.scale, scales):
        return False
    # Without padding the product leaves out the operand's zero point, a constant of each channel.
    skipped = np.zeros(len(rows), np.int64) if padded else int(x.zero) * rows.sum(axis=1)
    params = parameters(edit, stairs, skipped, fixed=fixed)
    if params is None:
        return False
    inputs, extra = params
    acc = _accumulate(edit, found.node, x, weights, keep_zero=padded)
    axis = 1 if found.node.op == "Conv" else len(edit.shape(acc)) - 1
    attrs = {
        "to": TO_ONNX[y.dtype], "low": low, "high": high, "zero_point": int(y.zero),
        "axis": axis, **extra,
    }  # fmt: skip
    return edit.become(node, "Requantize", (acc, *inputs), attrs)


def _activations(
    edit: Edit, node: Node, found: _Found, x: Stored, y: Stored, *, fixed: bool
) -> bool:
    """MatMul of two quantised activations -> MatMulInteger less both zero points, Requantize."""
    other = _source(edit, found.node.inputs[1])
    if other is None or not (x.dtype.endswith("int8") and other.dtype.endswith("int8")):
        return False
    # The largest difference from each zero point, along the whole inner axis.
    reach = np.prod(
        [max(int(s.zero) - low, high - int(s.zero)) for s in (x, other)
         for low, high in (int_range(s.dtype),)]
    )  # fmt: skip
    limit = np.array([int(reach) * edit.shape(x.name)[-1]], np.int64)
    low, high = _range(y, found.bounds)
    if limit[0] >= 2**29 or low > high:
        return False
    stairs = staircase(
        [float(other.scale)], [0.0], float(x.scale), float(y.scale),
        zero=int(y.zero), low=low, high=high, limits=(-limit, limit),
    )  # fmt: skip
    if _decided_by_rounding(stairs, x.scale, other.scale, y.scale):
        return False
    params = parameters(edit, stairs, np.zeros(1, np.int64), fixed=fixed)
    if params is None:
        return False
    names, extra = params
    scalars = [edit.const(edit.consts[n].reshape(()), n) for n in names]
    zeros = [edit.const(s.zero.astype(s.dtype), "zero") if s.zero else "" for s in (x, other)]
    kind = TensorType(edit.shape(found.node.outputs[0]), "int32")
    acc = edit.emit(found.node, "MatMulInteger", (x.name, other.name, *zeros), kind, hint="sum")
    attrs = {"to": TO_ONNX[y.dtype], "low": low, "high": high, "zero_point": int(y.zero), **extra}
    return edit.become(node, "Requantize", (acc, *scalars), attrs)


def _decided_by_rounding(stairs: Staircase, *scales: np.ndarray) -> bool:
    """Tell whether many results lie beside ties, and float sums are not exact either."""
    exact = all(np.all(np.frexp(s)[0] == 0.5) for s in scales)
    return not exact and near_ties(stairs) > MANY


def _accumulate(edit: Edit, node: Node, x: Stored, weights: Weights, *, keep_zero: bool) -> str:
    """Add the product of the stored integers, in int32."""
    kind = TensorType(edit.shape(node.outputs[0]), "int32")
    dtype = np.dtype(x.dtype)
    x_zero = edit.const(x.zero.astype(dtype), "x_zero") if keep_zero and x.zero else ""
    zero = weights.stored.zero.astype(weights.value.dtype)
    w_zero = edit.const(zero, "w_zero") if zero.any() else ""
    w = weights.stored.name
    if node.attrs.get("transB"):
        w = edit.const(np.ascontiguousarray(weights.value.T), f"{w}.t")
    inputs = (x.name, w, x_zero, w_zero)
    if node.op == "Conv":
        return edit.emit(node, "ConvInteger", inputs, kind, node.attrs, hint="sum")
    return edit.emit(node, "MatMulInteger", inputs, kind, hint="sum")
