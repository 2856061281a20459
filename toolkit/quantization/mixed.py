"""Mixed precision: the layers that hurt most are kept in more bits until the loss is small enough.

A layer's harm is what it alone does: the signal-to-noise ratio at the model's outputs with only
this layer quantised.  Layers are lifted in that order, the most harmful first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from toolkit.quantization.plan import FLOAT, INT8, INT16

WORTH_DB = 6.0
"""Gain from 16-bit activations below which a layer goes to float: its weights are what hurts."""

Precision = Mapping[str, str]
Score = Callable[[Precision], float]


@dataclass(frozen=True, slots=True)
class Harm:
    """The ratio in dB at the outputs with one layer quantised alone, in 8 bits and in 16x8."""

    layer: str
    db: float
    wide_db: float

    @property
    def lift(self) -> str:
        """What the layer is lifted to first."""
        return INT16 if self.wide_db - self.db >= WORTH_DB else FLOAT


def find_harms(layers: Sequence[str], ratio: Score) -> list[Harm]:
    """Measure each layer alone, the most harmful first; `ratio` gives the dB of a precision."""
    alone = {name: dict.fromkeys(layers, FLOAT) for name in layers}
    harms = [
        Harm(name, ratio({**rest, name: INT8}), ratio({**rest, name: INT16}))
        for name, rest in alone.items()
    ]
    return sorted(harms, key=lambda harm: harm.db)


def lifted(harms: Sequence[Harm], count: int) -> dict[str, str]:
    """Return the precision after `count` lifts: first each layer to its own, then all to float."""
    steps = [(h.layer, h.lift) for h in harms]
    steps += [(h.layer, FLOAT) for h in harms if h.lift != FLOAT]
    precision = {h.layer: INT8 for h in harms}
    precision.update(steps[:count])
    return precision


def fewest_lifts(harms: Sequence[Harm], good: Callable[[Precision], bool]) -> dict[str, str]:
    """Return the precision with the fewest lifts that is good, found by doubling, then halving.

    What one lift more does is taken to be no worse.  All layers in float is taken as good.
    """
    most = len(harms) + sum(h.lift != FLOAT for h in harms)
    bad, count = 0, 1
    while count < most and not good(lifted(harms, count)):
        bad, count = count, count * 2
    count = min(count, most)
    while count - bad > 1:
        middle = (bad + count) // 2
        if good(lifted(harms, middle)):
            count = middle
        else:
            bad = middle
    return lifted(harms, count)
