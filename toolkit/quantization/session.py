"""A float graph that stays built while quantised graphs of it are made, run and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from toolkit.ir.graph import Graph
from toolkit.pipeline import Model
from toolkit.quantization.correct import correct_biases, mean_of_each, with_means
from toolkit.quantization.insert import Choice, insert
from toolkit.quantization.mixed import Precision
from toolkit.quantization.observe import find_histograms, find_signals, Run, running
from toolkit.quantization.plan import INT8, Plan
from toolkit.quantization.ranges import METHODS
from toolkit.quantization.settings import Settings
from toolkit.samples import Accuracy, Labelled, Samples


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A quantised graph that is built with its biases open, and the choice with those it has.

    `run` gives the model's outputs and the results of layers by the names of the float graph.
    """

    choice: Choice
    means: Mapping[str, str]
    run: Run


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A float graph that is built, what samples showed of it, and what it is compared on.

    `choice` has all layers in 8 bits; `means` are the means of each product's result by channel.
    """

    model: Model
    graph: Graph
    choice: Choice
    means: Mapping[str, np.ndarray]
    samples: Samples
    settings: Settings
    labelled: Labelled | None
    reference: Run

    @property
    def float_outputs(self) -> list[str]:
        """The outputs that ratios are told of."""
        return [n for n in self.graph.outputs if self.graph.types[n].dtype == "float32"]

    def made(self, choice: Choice) -> Graph:
        """Return the quantised graph of a choice."""
        return insert(self.graph, self.model.ops, choice).graph

    @contextmanager
    def trial(self, precision: Precision, *, correct: bool = True) -> Iterator[Trial]:
        """Build the quantised graph of a precision; correct its biases, where settings want it.

        The graph is built once, with biases that are inputs: given what they are stored as, it
        computes what the graph that is written does.
        """
        choice = replace(self.choice, precision=precision)
        made = insert(self.graph, self.model.ops, choice, open_biases=True)
        layers = [layer for layer in choice.plan.layers if layer.out in made.open_bias]
        results = {p.out: made.computed.get(p.before, p.before) for p in layers}
        shown, means = with_means(made.graph, layers, results)
        outs = [layer.out for layer in choice.plan.layers]
        there = {n: made.values.get(n, n) for n in dict.fromkeys((*self.graph.outputs, *outs))}
        with running(self.model, shown, (*there.values(), *means.values())) as run:
            biases = {out: bias.value for out, bias in made.open_bias.items()}
            if correct and self.settings.correct:
                biases = correct_biases(run, made.open_bias, means, self.means, self.samples)
            given = {bias.name: bias.stored(biases[out]) for out, bias in made.open_bias.items()}

            def renamed(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
                found = run({**inputs, **given})
                return {**found, **{n: found[here] for n, here in there.items()}}

            yield Trial(replace(choice, biases=_used(choice, biases)), means, renamed)

    def ratios(self, run: Run, names: Sequence[str]) -> dict[str, float]:
        """Return the dB of tensors of a quantised graph over the calibration samples."""
        signals = find_signals(self.reference, run, names, self.samples)
        return {n: s.db for n, s in signals.items()}

    def output_db(self, precision: Precision, *, correct: bool = True) -> float:
        """Return the least dB of the outputs at a precision."""
        with self.trial(precision, correct=correct) as trial:
            return min(self.ratios(trial.run, self.float_outputs).values())

    def accuracy(self, run: Run) -> Accuracy:
        """Return the accuracy of a run on the labelled samples, by the first output."""
        assert self.labelled is not None
        first = self.graph.outputs[0]
        return self.labelled.accuracy(lambda inputs: {first: run(inputs)[first]})


def _used(choice: Choice, biases: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return biases without those that layers without one do not need."""
    has = {layer.out for layer in choice.plan.layers if layer.bias}
    return {out: bias for out, bias in biases.items() if out in has or bias.any()}


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
        choice = Choice(
            plan, scheme, narrow, full, precision, settings.per_channel, settings.recurrent
        )
        seen = mean_of_each(run, means, samples) if settings.correct else {}
        yield Session(model, graph, choice, seen, samples, settings, labelled, run)
