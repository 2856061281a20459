"""Mixed precision: the layers that hurt most are kept in more bits until the loss is small enough.

A layer's harm is what it alone does: the signal-to-noise ratio at the model's outputs with only
this layer quantised.  Layers are lifted in that order, the most harmful first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from toolkit.quantization.plan import FLOAT, INT8

WORTH_DB = 6.0
"""Gain from 16-bit activations below which a layer goes to float: its weights are what hurts."""

Precision = Mapping[str, str]
Lift = Callable[[str], str]


def lifts(order: Sequence[str], lift: Lift) -> Iterator[tuple[str, str]]:
    """Yield (layer, precision): first each layer's own lift in order, then float for the rest."""
    asked = {}
    for layer in order:
        asked[layer] = lift(layer)
        yield layer, asked[layer]
    yield from ((layer, FLOAT) for layer in order if asked[layer] != FLOAT)


def lifted(order: Sequence[str], lift: Lift, count: int) -> dict[str, str]:
    """Return the precision after the first `count` lifts."""
    return {**dict.fromkeys(order, INT8), **dict(islice(lifts(order, lift), count))}


def fewest_lifts(
    order: Sequence[str], lift: Lift, good: Callable[[Precision], bool]
) -> dict[str, str]:
    """Return the precision with the fewest lifts that is good, found by doubling, then halving.

    `order`: layers, the most harmful first; `lift` says what a layer is lifted to, asked once each
    and only of those that are lifted.  What one lift more does is taken to be no worse; all layers
    in float are taken as good.
    """
    lift = functools.cache(lift)
    bad, count, all_float = 0, 1, dict.fromkeys(order, FLOAT)
    while (tried := lifted(order, lift, count)) != all_float and not good(tried):
        bad, count = count, count * 2
    while count - bad > 1:
        middle = (bad + count) // 2
        if good(lifted(order, lift, middle)):
            count = middle
        else:
            bad = middle
    return lifted(order, lift, count)
