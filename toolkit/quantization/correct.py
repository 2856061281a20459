"""Bias correction: what quantising shifts the mean of each channel by is taken off its bias.

Nagel et al., "Data-free quantization through weight equalization and bias correction" (ICCV 2019),
section 4.2, in its empirical form: means over calibration samples, layer after layer, each with
the layers before it quantised and corrected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType
from toolkit.quantization.insert import OpenBias
from toolkit.quantization.observe import each, Run
from toolkit.quantization.plan import Layer
from toolkit.quantization.weights import result_axis
from toolkit.samples import Samples


def correct_biases(
    run: Run,
    open_bias: Mapping[str, OpenBias],
    means: Mapping[str, str],
    wanted: Mapping[str, np.ndarray],
    samples: Samples,
) -> dict[str, np.ndarray]:
    """Return corrected biases by layer, float64.

    `run` is a quantised graph whose biases are inputs, and whose tensors `means` are the means by
    channel of the results of layers, before activations as in the paper; `wanted` are those of the
    float graph.  Layers are in order, and each takes a run over all samples.
    """
    biases = {out: bias.value for out, bias in open_bias.items()}
    for out in open_bias:
        given = {bias.name: bias.stored(biases[at]) for at, bias in open_bias.items()}
        found = mean_of_each(run, {out: means[out]}, samples, given)[out]
        biases[out] = biases[out] + (wanted[out] - found)
    return biases


def with_means(
    graph: Graph, layers: Sequence[Layer], results: Mapping[str, str]
) -> tuple[Graph, dict[str, str]]:
    """Add nodes that compute the mean of each channel of a layer's result, which `results` names.

    Returns the graph, and what the nodes write by layer.
    """
    nodes, types, consts = list(graph.nodes), dict(graph.types), dict(graph.consts)
    means = {}
    for layer in layers:
        result = results[layer.out]
        kind = graph.types[result]
        axis = result_axis(layer, len(kind.shape))
        others = [a for a in range(len(kind.shape)) if a != axis]
        name, axes = f"{result}.channel_mean", f"{result}.other_axes"
        consts[axes] = np.array(others, np.int64)
        types[axes] = TensorType((len(others),), "int64")
        types[name] = TensorType((kind.shape[axis],), "float32")
        nodes.append(Node(name, "ReduceMean", (result, axes), (name,), {"keepdims": 0}))
        means[layer.out] = name
    return graph.with_(nodes=tuple(nodes), types=types, consts=consts), means


def mean_of_each(
    run: Run, names: Mapping[str, str], samples: Samples, extra: Mapping[str, np.ndarray] = {}
) -> dict[str, np.ndarray]:
    """Return the mean over samples of some tensors, float64; `extra`: inputs beside the samples."""
    sums = {key: np.zeros(()) for key in names}
    for inputs in each(samples):
        found = run({**inputs, **extra})
        sums = {key: sums[key] + found[name].astype(np.float64) for key, name in names.items()}
    return {key: total / samples.count for key, total in sums.items()}
