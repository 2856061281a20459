"""A float graph that stays built while quantised graphs of it are made, run and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from toolkit.ir.graph import Graph
from toolkit.pipeline import Model
from toolkit.quantization.correct import correct_biases, mean_of_each, with_means
from toolkit.quantization.insert import Choice, insert, Inserted
from toolkit.quantization.mixed import Precision
from toolkit.quantization.observe import find_histograms, find_signals, Run, running
from toolkit.quantization.plan import INT8, Plan
from toolkit.quantization.ranges import METHODS
from toolkit.quantization.settings import Settings
from toolkit.samples import Accuracy, Labelled, Samples


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A quantised graph, and the choice that made it."""

    inserted: Inserted
    choice: Choice


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A float graph that is built, what samples showed of it, and what it is compared on.

    `choice` has all layers in 8 bits; `means` are the means of each layer's result by channel.
    """

    model: Model
    graph: Graph
    choice: Choice
    means: Mapping[str, np.ndarray]
    samples: Samples
    settings: Settings
    labelled: Labelled | None
    reference: Run

    def made(self, precision: Precision, *, correct: bool = True) -> Made:
        """Quantise at a precision; with corrected biases, where the settings want them."""
        choice = replace(self.choice, precision=precision)
        if correct and self.settings.correct:
            biases = correct_biases(self.model, self.graph, choice, self.samples, self.means)
            choice = replace(choice, biases=biases)
        return Made(insert(self.graph, self.model.ops, choice), choice)

    @property
    def float_outputs(self) -> list[str]:
        """The outputs that ratios are told of."""
        return [n for n in self.graph.outputs if self.graph.types[n].dtype == "float32"]

    @contextmanager
    def running(self, made: Made, names: list[str]) -> Iterator[Run]:
        """Build a quantised graph; yield what gives its outputs and tensors of the float graph."""
        there = {n: made.inserted.values.get(n, n) for n in (*self.graph.outputs, *names)}
        with running(self.model, made.inserted.graph, tuple(there.values())) as run:

            def renamed(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
                found = run(inputs)
                return {n: found[here] for n, here in there.items()}

            yield renamed

    def ratios(self, run: Run, names: list[str]) -> dict[str, float]:
        """Return the dB of tensors of a quantised graph over the calibration samples."""
        signals = find_signals(self.reference, run, names, self.samples)
        return {n: s.db for n, s in signals.items()}

    def output_db(self, precision: Precision, *, correct: bool = True) -> float:
        """Return the least dB of the outputs at a precision."""
        with self.running(self.made(precision, correct=correct), []) as run:
            return min(self.ratios(run, self.float_outputs).values())

    def accuracy(self, run: Run) -> Accuracy:
        """Return the accuracy of a run on the labelled samples, by the first output."""
        assert self.labelled is not None
        first = self.graph.outputs[0]
        return self.labelled.accuracy(lambda inputs: {first: run(inputs)[first]})


@contextmanager
def open_session(
    model: Model,
    graph: Graph,
    plan: Plan,
    samples: Samples,
    settings: Settings,
    labelled: Labelled | None,
) -> Iterator[Session]:
    """Build a float graph and calibrate: one build serves all that is asked of it."""
    precision = {layer.out: INT8 for layer in plan.layers}
    groups = {g: plan.roots[g] for g in plan.needed(precision) if g not in plan.fixed}
    products = [layer for layer in plan.layers if layer.is_product]
    shown, means = with_means(graph, products, {p.out: p.before for p in products})
    outs = [layer.out for layer in plan.layers]
    roots = [n for names in groups.values() for n in names]
    names = [*graph.outputs, *outs, *roots, *means.values()]
    with running(model, shown, names) as run:
        histograms = find_histograms(run, groups, samples)
        scheme, method = settings.scheme, METHODS[settings.method]
        full = {g: (h.low, h.high) for g, h in histograms.items()}
        narrow = full
        if scheme.dtype != "int16":  # 16 bits have room for everything seen
            narrow = {g: method(h, scheme, settings.percentile) for g, h in histograms.items()}
        choice = Choice(plan, scheme, narrow, full, precision, settings.per_channel)
        seen = mean_of_each(run, means, samples) if settings.correct else {}
        yield Session(model, graph, choice, seen, samples, settings, labelled, run)
