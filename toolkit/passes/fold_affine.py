"""Scales and shifts into weights, and BatchNormalization, which is a scale and a shift.

Sums are reassociated: results differ in the last bits, so `--exact` leaves these passes out.
Arithmetic on weights is done in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import is_float
from toolkit.ops.op import Op
from toolkit.passes.edit import Edit, rewrite, Rule

PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm")


def fold_batch_norm(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """BatchNormalization(x) of constants -> x * s + t.

    s = scale / sqrt(var + epsilon), t = bias - mean * s.  `fold_affine` then puts s and t into
    the weights beside it.
    """
    return rewrite(graph, ops, {"BatchNormalization": (batch_norm,)})


def fold_affine(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """Mul and Add of constants, one value a channel, into the weights of the product beside them.

    f: Conv, ConvTranspose, MatMul, Gemm.  f(x, w) * s -> f(x, w * s); f(x, w) + t -> f(x, w) with
    bias t; f(x * s, w) -> f(x, s * w); f(x + t, w) -> f(x, w) + f(t, w) without padding.
    """
    return rewrite(graph, ops, RULES)


def batch_norm(edit: Edit, node: Node) -> bool:
    """BatchNormalization(x) -> Add(Mul(x, s), t)."""
    if node.attrs.get("training_mode") or node.attrs.get("nestling_layout"):
        return False
    values = [edit.value(n) for n in node.inputs[1:5]]
    x, out = node.inputs[0], node.outputs[0]
    if any(v is None for v in values) or len([o for o in node.outputs if o]) != 1:
        return False
    scale, bias, mean, var = (np.asarray(v, np.float64) for v in values)
    factor = scale / np.sqrt(var + node.attrs.get("epsilon", 1e-5))
    shape = (-1, *(1,) * (len(edit.shape(x)) - 2))
    dtype = edit.dtype(x)
    s = edit.const(factor.reshape(shape).astype(dtype), f"{out}.scale")
    t = edit.const((bias - mean * factor).reshape(shape).astype(dtype), f"{out}.shift")
    scaled = edit.emit(node, "Mul", (x, s), edit.types[x], hint="scaled")
    return edit.become(node, "Add", (scaled, t))


@dataclass(frozen=True, slots=True)
class Product:
    """A product with constant weights: how channels lie in the weights.

    `outs` and `ins` are the channels along the result's and the operand's `axis`.
    """

    node: Node
    weight: np.ndarray
    bias: np.ndarray | None
    out_axis: int
    in_axis: int

    @property
    def group(self) -> int:
        group: int = self.node.attrs.get("group", 1)
        return group


def product_of(edit: Edit, node: Node | None) -> Product | None:
    """Return a product of `PRODUCTS` whose weights (and bias) are constants of its own layout."""
    if node is None or node.op_id not in PRODUCTS or node.attrs.get("nestling_layout"):
        return None
    weight = edit.value(node.inputs[1])
    if weight is None or not is_float(str(weight.dtype)):
        return None
    bias = None
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = edit.value(node.inputs[2])
        if bias is None:
            return None
    rank_out, rank_in = len(edit.shape(node.outputs[0])), len(edit.shape(node.inputs[0]))
    if node.op in ("Conv", "ConvTranspose"):
        return Product(node, weight, bias, 1, 1)
    if node.op == "MatMul":
        if weight.ndim != 2 or rank_in < 2:
            return None
        return Product(node, weight, None, rank_out - 1, rank_in - 1)
    attrs = node.attrs
    if attrs.get("transA", 0) or attrs.get("transB", 0) or attrs.get("alpha", 1.0) != 1.0:
        return None
    if attrs.get("beta", 1.0) != 1.0 and bias is not None:
        return None
    if bias is not None and (bias.ndim == 2 and bias.shape[0] != 1):
        return None
    return Product(node, weight, bias, 1, 1)


def _channels(edit: Edit, name: str, rank: int, axis: int, extent: int) -> np.ndarray | None:
    """Return a constant that varies along `axis` only, as a float64 vector of `extent`."""
    value = edit.value(name)
    if value is None or value.ndim > rank or not is_float(str(value.dtype)):
        return None
    shape = (1,) * (rank - value.ndim) + value.shape
    if any(n != 1 for i, n in enumerate(shape) if i != axis) or shape[axis] not in (1, extent):
        return None
    return np.broadcast_to(value.reshape(-1).astype(np.float64), (extent,))


def scaled_out(product: Product, s: np.ndarray) -> np.ndarray:
    """Weights times s along the output channels."""
    w = product.weight.astype(np.float64)
    match product.node.op:
        case "Conv":
            return np.asarray(w * s.reshape(-1, *(1,) * (w.ndim - 1)))
        case "ConvTranspose":
            g, m = product.group, w.shape[1]
            grouped = w.reshape(g, -1, *w.shape[1:]) * s.reshape(g, 1, m, *(1,) * (w.ndim - 2))
            return np.asarray(grouped.reshape(w.shape))
        case _:
            return np.asarray(w * s)


def scaled_in(product: Product, s: np.ndarray) -> np.ndarray:
    """Weights times s along the input channels."""
    w = product.weight.astype(np.float64)
    match product.node.op:
        case "Conv":
            g, c = product.group, w.shape[1]
            grouped = w.reshape(g, -1, *w.shape[1:]) * s.reshape(g, 1, c, *(1,) * (w.ndim - 2))
            return np.asarray(grouped.reshape(w.shape))
        case "ConvTranspose":
            return np.asarray(w * s.reshape(-1, *(1,) * (w.ndim - 1)))
        case _:
            return np.asarray(w * s[:, None])


def _summed(product: Product, t: np.ndarray) -> np.ndarray | None:
    """What t, one value an input channel, adds to each output channel; None with padding."""
    w = product.weight.astype(np.float64)
    match product.node.op:
        case "Conv":
            if any(product.node.attrs.get("pads", ())):
                return None
            g, c = product.group, w.shape[1]
            taps = w.reshape(g, -1, c, int(np.prod(w.shape[2:]))).sum(axis=3)
            return np.asarray(np.einsum("gmc,gc->gm", taps, t.reshape(g, c)).reshape(-1))
        case "ConvTranspose":
            return None
        case _:
            return np.asarray(t @ w)


def rebuild(
    edit: Edit,
    product: Product,
    weight: np.ndarray,
    bias: np.ndarray | None,
    source: str | None = None,
) -> Node:
    """Put a product with other weights, bias and input in the place of one."""
    node, dtype = product.node, str(product.weight.dtype)
    out = node.outputs[0]
    inputs = [source or node.inputs[0]]
    if weight is product.weight:
        inputs.append(node.inputs[1])
    else:
        inputs.append(edit.const(weight.astype(dtype), f"{node.inputs[1]}.scaled"))
    if bias is not None:
        inputs.append(edit.const(bias.astype(dtype), f"{out}.bias"))
    return edit.replace(node, node.with_(inputs=tuple(inputs)))


def flat_bias(product: Product, extent: int) -> np.ndarray | None:
    """Return the bias as a float64 vector; None where there is none."""
    if product.bias is None:
        return None
    return np.broadcast_to(product.bias.reshape(-1).astype(np.float64), (extent,))


def _beside(edit: Edit, node: Node) -> tuple[Product, str] | None:
    """Return (product, other operand) where `node` combines a product with a constant."""
    for position in (0, 1) if node.op != "Div" else (0,):
        name, other = node.inputs[position], node.inputs[1 - position]
        if other in edit.consts and name not in edit.consts:
            product = product_of(edit, edit.single(name, *PRODUCTS))
            if product is not None and edit.types[name] == edit.types[node.outputs[0]]:
                return product, other
    return None


def scale_behind(edit: Edit, node: Node) -> bool:
    """Mul(f(x, w, b), s) -> f(x, w * s, b * s); Div likewise by 1 / s."""
    found = _beside(edit, node)
    if found is None:
        return False
    product, other = found
    shape = edit.shape(node.outputs[0])
    extent = shape[product.out_axis]
    s = _channels(edit, other, len(shape), product.out_axis, extent)
    if s is None or (node.op == "Div" and not s.all()):
        return False
    s = 1 / s if node.op == "Div" else s
    bias = flat_bias(product, extent)
    rebuild(edit, product, scaled_out(product, s), None if bias is None else bias * s)
    return edit.forward(node.outputs[0], product.node.outputs[0])


def sign_behind(edit: Edit, node: Node) -> bool:
    """Neg(f(x, w, b)) -> f(x, -w, -b)."""
    product = product_of(edit, edit.single(node.inputs[0], *PRODUCTS))
    if product is None:
        return False
    rebuild(edit, product, -product.weight, None if product.bias is None else -product.bias)
    return edit.forward(node.outputs[0], product.node.outputs[0])


def shift_behind(edit: Edit, node: Node) -> bool:
    """Add(f(x, w, b), t) -> f(x, w, b + t); MatMul of a matrix becomes Gemm."""
    found = _beside(edit, node)
    if found is None:
        return False
    product, other = found
    shape = edit.shape(node.outputs[0])
    extent = shape[product.out_axis]
    t = _channels(edit, other, len(shape), product.out_axis, extent)
    if t is None or (product.node.op == "MatMul" and len(shape) != 2):
        return False
    if product.node.op == "MatMul" and len(edit.shape(product.node.inputs[0])) != 2:
        return False
    bias = flat_bias(product, extent)
    made = rebuild(edit, product, product.weight, t if bias is None else bias + t)
    if made.op == "MatMul":
        edit.replace(made, made.with_(op="Gemm"))
    return edit.forward(node.outputs[0], product.node.outputs[0])


def scale_of_shift(edit: Edit, node: Node) -> bool:
    """Mul(Add(f, t), s) -> Add(Mul(f, s), t * s) for a product f, so that s reaches its weights."""
    for position in (0, 1):
        before = edit.single(node.inputs[position], "Add")
        s = edit.value(node.inputs[1 - position])
        if before is None or s is None:
            continue
        if edit.types[before.outputs[0]] != edit.types[node.outputs[0]]:
            continue
        for inner in (0, 1):
            t = edit.value(before.inputs[1 - inner])
            name = before.inputs[inner]
            product = product_of(edit, edit.single(name, *PRODUCTS))
            if t is None or product is None or edit.types[name] != edit.types[node.outputs[0]]:
                continue
            shape = edit.shape(name)
            axis, factor = product.out_axis, node.inputs[1 - position]
            if _channels(edit, factor, len(shape), axis, shape[axis]) is None:
                continue
            shifted = np.asarray(t.astype(np.float64) * s.astype(np.float64), t.dtype)
            if shifted.size > max(t.size, s.size):
                continue
            scaled = edit.emit(node, "Mul", (name, factor), edit.types[name], hint="scaled")
            shift = edit.const(shifted, f"{node.outputs[0]}.shift")
            return edit.become(node, "Add", (scaled, shift))
    return False


def affine_before(edit: Edit, node: Node) -> bool:
    """f(Mul(x, s), w) -> f(x, s * w); f(Add(x, t), w) -> f(x, w) + f(t, w).

    The latter without padding: the padding's zeros have no t.
    """
    product = product_of(edit, node)
    before = edit.single(node.inputs[0], "Mul", "Add", "Div")
    if product is None or before is None:
        return False
    shape = edit.shape(before.outputs[0])
    extent = shape[product.in_axis]
    for position in (0, 1) if before.op != "Div" else (0,):
        source, other = before.inputs[position], before.inputs[1 - position]
        if edit.types[source] != edit.types[before.outputs[0]] or source in edit.consts:
            continue
        c = _channels(edit, other, len(shape), product.in_axis, extent)
        if c is None:
            continue
        outs = edit.shape(node.outputs[0])[product.out_axis]
        bias = flat_bias(product, outs)
        if before.op == "Add":
            added = _summed(product, c)
            if added is None or not np.isfinite(added).all():
                return False
            if node.op == "MatMul":
                if len(shape) != 2:
                    return False
                node = edit.replace(node, node.with_(op="Gemm"))
                product = product_of(edit, node)
                assert product is not None
            rebuild(edit, product, product.weight, added if bias is None else bias + added, source)
            return True
        if before.op == "Div" and not c.all():
            return False
        c = 1 / c if before.op == "Div" else c
        rebuild(edit, product, scaled_in(product, c), bias, source)
        return True
    return False


def gemm_factors(edit: Edit, node: Node) -> bool:
    """alpha and beta of a Gemm with constant b, c -> into b and c."""
    alpha, beta = node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0)
    weight = edit.value(node.inputs[1])
    has_bias = len(node.inputs) > 2 and bool(node.inputs[2])
    bias = edit.value(node.inputs[2]) if has_bias else None
    if (alpha == 1.0 and beta == 1.0) or weight is None or (has_bias and bias is None):
        return False
    inputs = list(node.inputs)
    if alpha != 1.0:
        inputs[1] = edit.const(_times(weight, alpha), f"{node.inputs[1]}.scaled")
    if bias is not None and beta != 1.0:
        inputs[2] = edit.const(_times(bias, beta), f"{node.inputs[2]}.scaled")
    attrs = {k: v for k, v in node.attrs.items() if k not in ("alpha", "beta")}
    return edit.become(node, "Gemm", inputs, attrs)


def _times(value: np.ndarray, factor: float) -> np.ndarray:
    return (value.astype(np.float64) * factor).astype(value.dtype)


def chain(edit: Edit, node: Node) -> bool:
    """Mul(Mul(x, a), b) -> Mul(x, a * b); Add(Add(x, a), b) -> Add(x, a + b) of constants."""
    for position in (0, 1):
        before = edit.single(node.inputs[position], node.op)
        b = edit.value(node.inputs[1 - position])
        if before is None or b is None or not is_float(str(b.dtype)):
            continue
        for inner in (0, 1):
            a, x = edit.value(before.inputs[1 - inner]), before.inputs[inner]
            if a is None or x in edit.consts:
                continue
            combine = np.multiply if node.op == "Mul" else np.add
            wide = combine(a.astype(np.float64), b.astype(np.float64))
            if wide.size > max(a.size, b.size) or edit.types[x] != edit.types[node.outputs[0]]:
                continue
            if not np.isfinite(wide).all():
                continue
            name = edit.const(np.asarray(wide, b.dtype), f"{node.outputs[0]}.both")
            return edit.become(node, node.op, (x, name))
    return False


def division(edit: Edit, node: Node) -> bool:
    """Div(x, c) -> Mul(x, 1 / c) for a constant c; Mul(x, Reciprocal(y)) -> Div(x, y)."""
    if node.op == "Mul":
        for position in (0, 1):
            before = edit.single(node.inputs[position], "Reciprocal")
            x = node.inputs[1 - position]
            if before is None or x in edit.consts:
                continue
            if edit.types[node.outputs[0]] == edit.types[node.inputs[position]]:
                return edit.become(node, "Div", (x, before.inputs[0]))
        return False
    value = edit.value(node.inputs[1])
    if value is None or not is_float(str(value.dtype)) or node.inputs[0] in edit.consts:
        return False
    with np.errstate(all="ignore"):
        wide = np.asarray(1 / value.astype(np.float64), value.dtype)
    tiny = np.finfo(value.dtype).tiny
    if not np.isfinite(wide).all() or bool((np.abs(wide) < tiny).any()):
        return False
    return edit.become(node, "Mul", (node.inputs[0], edit.const(wide, "reciprocal")))


_BEHIND: tuple[Rule, ...] = (affine_before,)
RULES: dict[str, tuple[Rule, ...]] = {
    "Mul": (scale_behind, scale_of_shift, chain, division),
    "Div": (scale_behind, division),
    "Add": (shift_behind, chain),
    "Neg": (sign_behind,),
    "Conv": _BEHIND,
    "ConvTranspose": _BEHIND,
    "MatMul": _BEHIND,
    "Gemm": (gemm_factors, *_BEHIND),
}
