"""Cross-layer equalisation: channels between two products get ranges of equal size.

Nagel et al., "Data-free quantization through weight equalization and bias correction" (ICCV 2019),
section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ops.op import Op
from toolkit.passes.edit import Edit
from toolkit.passes.fold_affine import (
    flat_bias,
    Product,
    product_of,
    rebuild,
    scaled_in,
    scaled_out,
)

HOMOGENEOUS = (
    "Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Identity",
)  # fmt: skip
"""f(s * x) = s * f(x) for s > 0, channel by channel."""

SWEEPS = 50
CONVERGED = 1e-3
"""Of the logarithm of the largest factor of a sweep."""

LARGEST_FACTOR = 1e4


def equalize(graph: Graph, ops: Mapping[str, Op]) -> Graph:
    """Return a graph that computes the same, the reach of weights equal on both sides of a channel.

    f(W2 * relu(W1 x + b1)) = f((W2 S) * relu(S^-1 (W1 x + b1))) with S = sqrt(r1 / r2), r1 the
    reach of rows of W1 and r2 that of columns of W2; pair after pair until nothing changes.
    """
    edit = Edit(graph, ops)
    originals: dict[str, Product] = {}
    pairs: list[tuple[str, str]] = []
    for node in graph.nodes:
        second = product_of(edit, node)
        first = None if second is None else _before(edit, second)
        if second is not None and first is not None:
            names = first.node.outputs[0], second.node.outputs[0]
            originals.update(zip(names, (first, second), strict=True))
            pairs.append(names)
    if not pairs:
        return graph
    products = {name: _float64(product) for name, product in originals.items()}
    for _ in range(SWEEPS):
        largest = 0.0
        for one, two in pairs:
            factor = _factor(products[one], products[two])
            largest = max(largest, float(np.abs(np.log(factor)).max(initial=0.0)))
            products[one] = _divided(products[one], factor)
            weight = scaled_in(products[two], factor)
            products[two] = replace(products[two], weight=weight)
        if largest < CONVERGED:
            break
    for name, product in products.items():
        rebuild(edit, originals[name], product.weight, product.bias)
    return edit.finish()


def _before(edit: Edit, second: Product) -> Product | None:
    """Return the product whose channels, through activations and pooling, are the operand's."""
    name, axis = second.node.inputs[0], second.in_axis
    while (node := edit.single(name, *HOMOGENEOUS, "Reshape", "ReduceMean")) is not None:
        if not _keeps_channels(edit, node):
            return None
        name = node.inputs[0]
    if edit.uses(name) != 1:
        return None
    first = product_of(edit, edit.producer(name))
    if first is None or first.weight.dtype != np.float32 or second.weight.dtype != np.float32:
        return None
    shape = edit.shape(name)
    same = first.out_axis == axis and shape[axis] == edit.shape(second.node.inputs[0])[axis]
    return first if same else None


def _keeps_channels(edit: Edit, node: Node) -> bool:
    """Tell whether a node leaves axis 1 as it is: means and views over the other axes."""
    if node.op in HOMOGENEOUS:
        return True
    before, after = edit.shape(node.inputs[0]), edit.shape(node.outputs[0])
    if node.op == "ReduceMean":
        return len(before) == len(after) > 1 and before[1] == after[1]
    plain = len(before) > 1 and len(after) > 1 and before[:2] == after[:2]
    return plain and max((*before[2:], *after[2:]), default=1) == 1


def _float64(product: Product) -> Product:
    bias = product.bias
    return replace(
        product,
        weight=product.weight.astype(np.float64),
        bias=None if bias is None else bias.astype(np.float64),
    )


def _factor(first: Product, second: Product) -> np.ndarray:
    """Return S by channel; 1 where a side is all zeros."""
    r1, r2 = reach_out(first), reach_in(second)
    dead = (r1 == 0) | (r2 == 0)
    ratio = np.where(dead, 1.0, r1) / np.where(dead, 1.0, r2)
    return np.asarray(np.clip(np.sqrt(ratio), 1 / LARGEST_FACTOR, LARGEST_FACTOR))


def _divided(product: Product, factor: np.ndarray) -> Product:
    bias = flat_bias(product, len(factor))
    return replace(
        product,
        weight=scaled_out(product, 1 / factor),
        bias=None if bias is None else bias / factor,
    )


def reach_out(product: Product) -> np.ndarray:
    """Return the largest magnitude of weights for each output channel."""
    w = np.abs(product.weight)
    match product.node.op:
        case "Conv":
            return np.asarray(w.reshape(len(w), -1).max(axis=1))
        case "ConvTranspose":
            g = product.group
            grouped = w.reshape(g, -1, w.shape[1], int(np.prod(w.shape[2:])))
            return np.asarray(grouped.max(axis=(1, 3)).reshape(-1))
        case _:
            return np.asarray(w.max(axis=0))


def reach_in(product: Product) -> np.ndarray:
    """Return the largest magnitude of weights for each input channel."""
    w = np.abs(product.weight)
    match product.node.op:
        case "Conv":
            g = product.group
            grouped = w.reshape(g, -1, w.shape[1], int(np.prod(w.shape[2:])))
            return np.asarray(grouped.max(axis=(1, 3)).reshape(-1))
        case "ConvTranspose":
            return np.asarray(w.reshape(len(w), -1).max(axis=1))
        case _:
            return np.asarray(w.max(axis=1))
