"""What a run keeps beside its trials: it is taken up from this, and `nestling report` shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from toolkit.ir.loop import blocks, PrimFunc
from toolkit.search.cost_model import pairwise_accuracy, recall_at
from toolkit.search.records import Run
from toolkit.search.result import MeasureResult, Status

RECALL_SHARE = 4
"""Recall is of the best one in so many of a batch."""


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """A round of a task.  `number`: of all rounds of the run; `trials`: of its batch.

    `search_s`, `measure_s`: what it took; learning from it is counted with the next round.
    `pairwise`, `recall`: how well the cost model knew the order of its results before they were
    measured, None where it had learned nothing yet or there was nothing to order.
    """

    number: int
    trials: int
    search_s: float
    measure_s: float
    pairwise: float | None = None
    recall: float | None = None


def judge(
    scores: np.ndarray, results: Sequence[MeasureResult]
) -> tuple[float | None, float | None]:
    """Return pairwise accuracy and recall of predicted scores; failures are left out."""
    pairs = [
        (1 / r.cost, score)
        for score, r in zip(scores, results, strict=True)
        if r.status is Status.OK and r.cost
    ]
    if len(pairs) < RECALL_SHARE:
        return None, None
    truth, predicted = np.array(pairs).T
    right = pairwise_accuracy(truth, predicted)
    recall = recall_at(truth, predicted, len(pairs) // RECALL_SHARE)
    return (None if np.isnan(right) else right), recall


def in_floats(func: PrimFunc) -> bool:
    """Tell whether a base function multiplies and adds float32: what a peak of such is for."""
    found = list(blocks(func.body))
    counted = [b for b in found if b.reduce is not None] or found
    return all(b.value.dtype == "float32" for b in counted)


class History:
    """The plain values that go into the records with each batch.

    `run`: of the whole run, `tasks`: of each task by its key; rounds are kept as rows.
    """

    def __init__(self, run: Run) -> None:
        self.run: dict[str, Any] = dict(run.state or {})
        self.tasks: dict[str, dict[str, Any]] = {k: dict(v) for k, v in run.tasks.items()}
        self._search_s = self._measure_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run when its last batch was kept."""
        return float(self.run.get("elapsed_s", 0.0))

    def state(self, elapsed_s: float) -> dict[str, Any]:
        """Return what to keep of the run."""
        self.run["elapsed_s"] = elapsed_s
        return self.run

    def task(self, key: str, **values: Any) -> dict[str, Any]:
        """Note values of a task; return what to keep of it, by its key."""
        self.tasks.setdefault(key, {}).update(values)
        return {key: self.tasks[key]}

    def round(
        self,
        key: str,
        number: int,
        scores: np.ndarray | None,
        results: Sequence[MeasureResult],
        *,
        search_s: float,
        measure_s: float,
    ) -> dict[str, Any]:
        """Note a round, with the seconds of search and measuring so far; return as `task` does."""
        pairwise, recall = (None, None) if scores is None else judge(scores, results)
        facts = RoundFacts(
            number, len(results), search_s - self._search_s, measure_s - self._measure_s,
            pairwise, recall,
        )  # fmt: skip
        self._search_s, self._measure_s = search_s, measure_s
        return self.task(key, rounds=[*self.tasks.get(key, {}).get("rounds", []), asdict(facts)])


def rounds_of(state: Mapping[str, Any]) -> list[RoundFacts]:
    """Return the rounds of a task as it was kept; rows of another version are left out."""
    known = {f.name for f in fields(RoundFacts)}
    rows = state.get("rounds", [])
    return [RoundFacts(**row) for row in rows if set(row) == known]
