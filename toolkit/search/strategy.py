"""The two ends of a search: a strategy is asked for candidates and told results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from toolkit.search.result import MeasureResult
from toolkit.space.task import Candidate, Task


class Strategy(Protocol):
    """Proposes candidates of one task.  Draws only from the generator it was made with."""

    name: str

    def ask(self, n: int) -> list[Candidate]:
        """Return up to `n` candidates that were not proposed before; none when exhausted."""

    def tell(self, results: Sequence[tuple[Candidate, MeasureResult]]) -> None:
        """Learn what candidates cost, whoever proposed them; records of earlier runs too."""


class CostModel(Protocol):
    """Predicts throughput, relative to the best of a task, from the program alone."""

    @property
    def trained(self) -> bool:
        """Tell whether predictions mean anything yet."""

    def update(self, results: Sequence[tuple[Candidate, MeasureResult]]) -> None:
        """Learn from results, of any task."""

    def predict(self, task: Task, candidates: Sequence[Candidate]) -> np.ndarray:
        """Return one score a candidate, higher is faster; comparable within a task."""

    def statements(
        self, task: Task, candidates: Sequence[Candidate]
    ) -> dict[str, dict[str, float]]:
        """Return, of each candidate key, the part of its score that each block adds."""
