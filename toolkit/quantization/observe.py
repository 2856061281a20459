"""What samples show of a graph: it is built for this machine with the tensors asked for as outputs.

Nothing is kept of a sample but sums, ranges and counts, so that memory does not grow with samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from toolkit.errors import NestlingError
from toolkit.ir.graph import Graph, prune
from toolkit.pipeline import compile_model, Model, Options
from toolkit.quantization.ranges import empty_histogram, Histogram
from toolkit.runners import BuiltModel
from toolkit.samples import Samples

QUICK = Options(cflags=("-O1",))
"""Built for one use: less time in the compiler."""

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Arrays], dict[str, np.ndarray]]


@contextmanager
def running(model: Model, graph: Graph, outputs: Sequence[str]) -> Iterator[Run]:
    """Build `graph` in the place of a model's, with `outputs`; yield what runs it.

    An output that is an input of the graph is given back as it came.
    """
    made = {o for node in graph.nodes for o in node.outputs}
    computed = tuple(n for n in dict.fromkeys(outputs) if n in made)
    shown = prune(graph.with_(outputs=computed))
    used = {n for node in shown.nodes for n in node.inputs}
    shown = shown.with_(inputs=tuple(n for n in shown.inputs if n in used))
    built = BuiltModel(compile_model(replace(model, graph=shown, traces={}, records=()), QUICK))
    try:

        def run(inputs: Arrays) -> dict[str, np.ndarray]:
            found = built.run({n: inputs[n] for n in shown.inputs})
            return {n: found[n] if n in found else inputs[n] for n in outputs}

        yield run
    finally:
        built.close()


def each(samples: Samples) -> Iterator[dict[str, np.ndarray]]:
    """Yield the inputs of each sample."""
    for index in range(samples.count):
        yield samples.input(index)


def find_histograms(
    run: Run, groups: Mapping[str, Sequence[str]], samples: Samples
) -> dict[str, Histogram]:
    """Return a histogram for each group of tensors, over the range of all its values.

    Raises `NestlingError` when one is not finite.
    """
    limits = dict.fromkeys(groups, (0.0, 0.0))
    for index, inputs in enumerate(each(samples)):
        found = run(inputs)
        for group, tensors in groups.items():
            for name in tensors:
                least, most = float(np.min(found[name])), float(np.max(found[name]))
                if not (np.isfinite(least) and np.isfinite(most)):
                    raise NestlingError(
                        f"{samples.label}: sample {index} makes tensor {name!r} of the float "
                        f"model {most if np.isfinite(least) else least}.",
                        hint="calibrate with samples that the float model can answer",
                    )
                low, high = limits[group]
                limits[group] = min(low, least), max(high, most)
    histograms = {g: empty_histogram(*found_range) for g, found_range in limits.items()}
    for inputs in each(samples):
        found = run(inputs)
        for group, tensors in groups.items():
            for name in tensors:
                histograms[group] = histograms[group].with_values(found[name])
    return histograms


@dataclass(frozen=True, slots=True)
class Signal:
    """Sums of squares over samples: of what is wanted, and of what is off."""

    signal: float = 0.0
    noise: float = 0.0

    def plus(self, wanted: np.ndarray, found: np.ndarray) -> Signal:
        """Return the sums with another sample."""
        ref = wanted.astype(np.float64)
        off = np.sum(np.square(ref - found.astype(np.float64)))
        return Signal(self.signal + float(np.sum(np.square(ref))), self.noise + float(off))

    @property
    def db(self) -> float:
        """The signal-to-noise ratio in dB; infinite without noise."""
        if self.noise == 0.0:
            return float("inf")
        return 10.0 * float(np.log10(max(self.signal, 1e-300) / self.noise))


def find_signals(
    wanted: Run, found: Run, names: Sequence[str], samples: Samples
) -> dict[str, Signal]:
    """Compare tensors of two runs over samples."""
    signals = {name: Signal() for name in names}
    for inputs in each(samples):
        right, other = wanted(inputs), found(inputs)
        for name in names:
            signals[name] = signals[name].plus(right[name], other[name])
    return signals
