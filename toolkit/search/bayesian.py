"""Bayesian optimisation by Optuna's tree-structured Parzen estimator or Gaussian process.

A trial of Optuna is a sketch and, for each of its holes, a place in the hole's domain, scaled to
0..1 where the domain is ordered; so samplers see numbers.  Optuna is an extra (`bayes`).
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from toolkit.errors import NestlingError
from toolkit.schedule.hole import Sketch
from toolkit.search.base import PoolStrategy
from toolkit.search.pool import Validate
from toolkit.search.result import MeasureResult, Status
from toolkit.search.strategy import CostModel
from toolkit.space.task import Candidate, Task

TRIES = 10


class BayesianSearch(PoolStrategy):
    """Asks Optuna's TPE for candidates."""

    name = "bayesian"
    sampler = "TPESampler"

    def __init__(
        self,
        task: Task,
        sketches: Sequence[Sketch],
        rng: random.Random,
        model: CostModel | None = None,
        validate: Validate | None = None,
    ) -> None:
        super().__init__(task, sketches, rng, model, validate)
        if find_spec("optuna") is None:
            raise NestlingError(
                f"strategy {self.name!r} needs Optuna, which is not installed.",
                hint="pip install 'nestling[bayes]'",
            )
        self._told: list[tuple[Candidate, MeasureResult]] = []

    def tell(self, results: Sequence[tuple[Candidate, MeasureResult]]) -> None:
        """Keep results; each `ask` hands them all to a new study, so that nothing else is state."""
        super().tell(results)
        self._told.extend(results)

    def ask(self, n: int) -> list[Candidate]:
        """Return what the sampler suggests; random candidates until it has something to go by."""
        import optuna

        taken: set[str] = set()
        if len(self.pool.measured) < 8:
            return self.pool.propose(self.pool.draw(n))
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=self._sampler(optuna))
        best = self.pool.best or 1.0
        for c, r in self._told:
            past = self._past(optuna, c, (r.cost or 10 * best) / best)
            if past is not None and r.status is not Status.DEVICE_LOST:
                study.add_trial(past)
        found: list[Candidate] = []
        for _ in range(n * TRIES):
            if len(found) == n:
                break
            trial = study.ask()
            suggested = self._suggest(trial)
            if suggested is not None and self.pool.fresh(suggested, taken):
                found.append(suggested)
                # What is under way counts as middling, so that a batch spreads (constant liar).
                study.tell(trial, 1.5)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return self.pool.propose(found + self.pool.draw(n - len(found), taken))

    def _sampler(self, optuna: Any) -> Any:
        seed = self.rng.randrange(1 << 31)
        with warnings.catch_warnings():
            # That its options are experimental: they are pinned by our tests.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=4, multivariate=True, group=True
            )

    def _past(self, optuna: Any, c: Candidate, value: float) -> Any:
        """Return a finished trial for a result; None for a candidate of other sketches."""
        if c.sketch not in self.pool.sketches:
            return None
        number = self.pool.sketches.index(c.sketch)
        domains = self.pool.domains(c.sketch, c.decisions)
        parameters: dict[str, Any] = {}
        distributions: dict[str, Any] = {}
        if len(self.pool.sketches) > 1:
            parameters["sketch"] = number
            ways = list(range(len(self.pool.sketches)))
            distributions["sketch"] = optuna.distributions.CategoricalDistribution(ways)
        for name, values in domains.items():
            if len(values) > 1 and c.decisions.get(name) in values:
                key = f"{number}/{name}"
                parameters[key] = values.index(c.decisions[name]) / (len(values) - 1)
                distributions[key] = optuna.distributions.FloatDistribution(0.0, 1.0)
        return optuna.trial.create_trial(
            params=parameters, distributions=distributions, value=value
        )

    def _suggest(self, trial: Any) -> Candidate | None:
        number = 0
        if len(self.pool.sketches) > 1:
            ways = list(range(len(self.pool.sketches)))
            number = trial.suggest_categorical("sketch", ways)
        sketch = self.pool.sketches[number]
        decisions: dict[str, Any] = {}
        while True:
            domains = self.pool.domains(sketch, decisions)
            name = next((d for d in domains if d not in decisions), None)
            if name is None:
                return self.pool.replayed(sketch, decisions, self.name)
            values = domains[name]
            at = 0
            if len(values) > 1:
                place = trial.suggest_float(f"{number}/{name}", 0.0, 1.0)
                at = min(int(place * (len(values) - 1) + 0.5), len(values) - 1)
            decisions[name] = values[at]


class GaussianSearch(BayesianSearch):
    """Asks Optuna's Gaussian process for candidates (needs PyTorch and SciPy beside Optuna)."""

    name = "gaussian"

    def _sampler(self, optuna: Any) -> Any:
        return optuna.samplers.GPSampler(seed=self.rng.randrange(1 << 31), n_startup_trials=4)
