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
from toolkit.pipeline import Model
from toolkit.quantization.insert import Choice, insert
from toolkit.quantization.observe import each, Run, running
from toolkit.quantization.plan import Layer
from toolkit.quantization.weights import result_axis
from toolkit.samples import Samples


def correct_biases(
    model: Model,
    graph: Graph,
    choice: Choice,
    samples: Samples,
    wanted: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Return corrected biases by layer, float64; `wanted` are the means of the float graph.

    The quantised graph is built once, its biases inputs; each layer then takes a run over all
    samples.  Means are those of results before activations, as in the paper.
    """
    inserted = insert(graph, model.ops, choice, open_biases=True)
    layers = [layer for layer in choice.plan.layers if layer.out in inserted.open_bias]
    if not layers:
        return {}
    results = {p.out: inserted.computed.get(p.before, p.before) for p in layers}
    shown, means = with_means(inserted.graph, layers, results)
    biases = {out: value.astype(np.float64) for out, (_, value) in inserted.open_bias.items()}
    with running(model, shown, tuple(means.values())) as run:
        for layer in layers:
            given = {
                inserted.open_bias[out][0]: bias.astype(np.float32) for out, bias in biases.items()
            }
            only = {layer.out: means[layer.out]}
            found = mean_of_each(run, only, samples, given)[layer.out]
            biases[layer.out] = biases[layer.out] + (wanted[layer.out] - found)
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
