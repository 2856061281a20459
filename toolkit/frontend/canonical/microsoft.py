"""Quantised operators of the domain com.microsoft in terms of others.

A function of one quantised tensor (sigmoid, leaky ReLU), and what only moves elements (concat,
where), is DequantizeLinear -> operator -> QuantizeLinear, which is how onnxruntime makes its tables
of 256 entries for them.  What rounds in a way of its own stays an operator: `ops.quant_microsoft`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from toolkit.errors import ModelError
from toolkit.frontend.canonical.misc import quantize_linear
from toolkit.frontend.canonical.site import changed, Rule, Site
from toolkit.frontend.canonical.windows import windowed
from toolkit.frontend.shapes import TO_ONNX
from toolkit.ir.graph import Node
from toolkit.ir.types import TensorType


def _scalar(site: Site, position: int) -> str:
    """Name of a scale or zero point of one element, as a scalar; '' when absent."""
    known = site.known(position)
    if known is not None and known.shape == (1,):
        return site.new_const(known.reshape(()), "scalar")
    return site.operand(position)


def _steps(site: Site, hint: str, op: str, inputs: tuple[str, ...], output: str = "") -> Node:
    """Return one step of the operator; its result is new where `output` is not given."""
    return Node(f"{site.node.name}.{hint}", op, inputs, (output or site.new_name(hint),))


def _dequantized(site: Site, at: int, hint: str = "dequantized") -> Node:
    """DequantizeLinear of the operand at `at`, whose scale and zero point follow it."""
    operands = (site.operand(at), _scalar(site, at + 1), _scalar(site, at + 2))
    return _steps(site, hint, "DequantizeLinear", operands)


def _quantized(site: Site, source: str, scale: int, output: str = "") -> Node:
    """QuantizeLinear with the scale at operand `scale` and the zero point behind it.

    Without a zero point the result has the type of the first operand.
    """
    zero = _scalar(site, scale + 1)
    node = _steps(site, "quantized", "QuantizeLinear", (source, _scalar(site, scale), zero), output)
    if zero:
        return node
    return node.with_(attrs={"output_dtype": TO_ONNX[site.type_of(site.operand(0)).dtype]})


def function(op: str, *attrs: str) -> Rule:
    """QLinearF(x, x_scale, x_zero, y_scale, y_zero) -> QuantizeLinear(F(DequantizeLinear(x)))."""

    def rule(site: Site) -> list[Node]:
        x = _dequantized(site, 0)
        y = _steps(site, op.lower(), op, x.outputs)
        y = y.with_(attrs={k: v for k, v in site.node.attrs.items() if k in attrs})
        return [x, y, _quantized(site, y.outputs[0], 3, site.node.outputs[0])]

    return rule


def _same_quantisation(site: Site, scale: int, other: int) -> bool:
    """Tell whether two pairs of constants, scale and zero point, are equal."""
    pairs = [(site.known(scale + i), site.known(other + i)) for i in (0, 1)]
    return all(a is not None and b is not None and a.item() == b.item() for a, b in pairs)


def _moved(site: Site, data: int, to: int) -> tuple[str, list[Node]]:
    """Return the operand at `data` with the quantisation at `to`, and the nodes that make it."""
    if _same_quantisation(site, data + 1, to):
        return site.operand(data), []
    x = _dequantized(site, data, f"dequantized_{data}")
    q = _quantized(site, x.outputs[0], to)
    return q.outputs[0], [x, q]


def concat(site: Site) -> list[Node]:
    """QLinearConcat(y_scale, y_zero, (x, scale, zero)..) -> Concat of requantised operands."""
    if (len(site.node.inputs) - 2) % 3 or len(site.node.inputs) < 5:
        raise ModelError("needs a scale and a zero point with every tensor")
    made = [_moved(site, at, 0) for at in range(2, len(site.node.inputs), 3)]
    axis = site.axis(site.attr_int("axis", 0), len(site.shape(2)))
    inputs = tuple(name for name, _ in made)
    joined = Node(site.node.name, "Concat", inputs, site.node.outputs, {"axis": axis})
    return [*(node for _, nodes in made for node in nodes), joined]


def where(site: Site) -> list[Node]:
    """QLinearWhere(condition, x.., y.., z_scale, z_zero) -> Where of requantised operands."""
    (x, left), (y, right) = _moved(site, 1, 7), _moved(site, 4, 7)
    chosen = Node(site.node.name, "Where", (site.operand(0), x, y), site.node.outputs)
    return [*left, *right, chosen]


def reduce_mean(site: Site) -> list[Node]:
    """QLinearReduceMean -> QuantizeLinear(ReduceMean(DequantizeLinear(x)))."""
    rank = len(site.shape(0))
    axes = site.attr_ints("axes") or tuple(range(rank))
    found = site.int64(sorted({site.axis(a, rank) for a in axes}), "axes")
    x = _dequantized(site, 0)
    mean = _steps(site, "mean", "ReduceMean", (*x.outputs, found))
    mean = mean.with_(attrs={"keepdims": site.attr_int("keepdims", 1)})
    return [x, mean, _quantized(site, mean.outputs[0], 3, site.node.outputs[0])]


def standard(site: Site) -> list[Node]:
    """QuantizeLinear and DequantizeLinear, which only had more types than those of ai.onnx."""
    return quantize_linear(replace(site, node=site.node.with_(domain="")))


def matmul_to_float(site: Site) -> list[Node]:
    """MatMulIntegerToFloat(a, b, scales, zeros, bias) -> MatMulInteger, Cast, Mul, Add."""
    scale = _steps(site, "scale", "Mul", (_scalar(site, 2), _scalar(site, 3)))
    zeros = (_scalar(site, 4), _scalar(site, 5))
    return _scaled_product(site, site.operand(0), site.operand(1), zeros, scale)


def dynamic_matmul(site: Site) -> list[Node]:
    """DynamicQuantizeMatMul(a, b, b_scale, b_zero, bias) -> DynamicQuantizeLinear, then the same.

    onnxruntime adds the bias, here operand 4, to the product as MatMulIntegerToFloat does.
    """
    names = tuple(site.new_name(h) for h in ("a", "a_scale", "a_zero"))
    a = Node(f"{site.node.name}.a", "DynamicQuantizeLinear", (site.operand(0),), names)
    scale = _steps(site, "scale", "Mul", (names[1], _scalar(site, 2)))
    zeros = (names[2], _scalar(site, 3))
    return [a, *_scaled_product(site, names[0], site.operand(1), zeros, scale, bias=4)]


def _scaled_product(
    site: Site, a: str, b: str, zeros: tuple[str, str], scale: Node, *, bias: int = 6
) -> list[Node]:
    out, added = site.node.outputs[0], site.operand(bias)
    product = _steps(site, "product", "MatMulInteger", (a, b, *zeros))
    wide = _steps(site, "float", "Cast", product.outputs).with_(attrs={"to": TO_ONNX["float32"]})
    scaled = _steps(site, "scaled", "Mul", (*wide.outputs, *scale.outputs), "" if added else out)
    nodes = [scale, product, wide, scaled]
    if added:
        nodes.append(_steps(site, "biased", "Add", (*scaled.outputs, added), out))
    return nodes


def channel_first(rule: Rule) -> Rule:
    """Take a node with `channels_last=1` between two Transposes, and then by `rule`."""

    def moved(site: Site) -> list[Node]:
        node = changed(site.node, "channels_last")
        if not site.attr_int("channels_last", 0):
            return rule(replace(site, node=node))
        shape = site.shape(0)
        rank = len(shape)
        if rank < 3:
            raise ModelError(f"its input {list(shape)} has no spatial axis")
        first, last = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
        x = _steps(site, "nchw", "Transpose", node.inputs[:1]).with_(attrs={"perm": first})
        y = site.new_name("result")
        kinds = {x.outputs[0]: TensorType(tuple(shape[a] for a in first), "float32")}
        inner = node.with_(inputs=(*x.outputs, *node.inputs[1:]), outputs=(y,))
        back = _steps(site, "nhwc", "Transpose", (y,), node.outputs[0])
        known = replace(site, node=inner, type_of=lambda n: kinds.get(n) or site.type_of(n))
        return [x, *rule(known), back.with_(attrs={"perm": last})]

    return moved


def _domestic(site: Site) -> list[Node]:
    return windowed(3)(replace(site, node=site.node.with_(domain="")))


def _global_pool(site: Site) -> list[Node]:
    if len(site.shape(0)) < 3:
        raise ModelError(f"its input {list(site.shape(0))} has no spatial axis")
    return [site.node]


def gemm(site: Site) -> list[Node]:
    """QGemm of transposed operands -> Transpose, QGemm."""
    inputs, made = list(site.node.inputs), []
    for flag, position in (("transA", 0), ("transB", 3)):
        if len(site.shape(position)) != 2:
            raise ModelError(f"input {list(site.shape(position))} is not a matrix")
        if site.attr_int(flag, 0):
            step = _steps(site, f"{flag}_{position}", "Transpose", (inputs[position],))
            made.append(step.with_(attrs={"perm": (1, 0)}))
            inputs[position] = step.outputs[0]
    node = changed(site.node, "transA transB").with_(inputs=tuple(inputs))
    return [*made, node]


RULES: Mapping[str, Rule] = {
    "DequantizeLinear": standard,
    "DynamicQuantizeMatMul": dynamic_matmul,
    "MatMulIntegerToFloat": matmul_to_float,
    "QGemm": gemm,
    "QLinearAveragePool": channel_first(windowed(None)),
    "QLinearConcat": concat,
    "QLinearConv": channel_first(_domestic),
    "QLinearGlobalAveragePool": channel_first(_global_pool),
    "QLinearLeakyRelu": function("LeakyRelu", "alpha"),
    "QLinearReduceMean": reduce_mean,
    "QLinearSigmoid": function("Sigmoid"),
    "QLinearWhere": where,
    "QuantizeLinear": standard,
}
