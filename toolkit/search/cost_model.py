"""Boosted trees that predict the throughput of a program as the sum over its statements.

Zheng et al., Ansor (OSDI 2020), section 5.2: the loss of a program with statements S and
throughput y, normalised to 0..1 within its task, is y * (sum over s in S of f(s) - y)^2, so that
fast programs weigh more.  Trees are grown by scikit-learn on the residuals of that sum; the values
of their leaves are then solved for jointly, a ridge regression of programs on how many of their
statements fall into each leaf (the Newton step that gradient boosting would take).

A trained model is plain arrays: it is saved as JSON, and shipped that way per instruction set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.tree import ExtraTreeRegressor

from toolkit.errors import NestlingError
from toolkit.ir.loop import blocks
from toolkit.search.features import feature_names, features
from toolkit.search.result import MeasureResult, Status
from toolkit.space.task import Candidate, Task

TREES = 60
DEPTH = 8
LEARNING_RATE = 0.3
RIDGE = 1.0
MAX_PROGRAMS = 6000
"""The newest programs that are learned from; older ones say less about where the search is now."""

VERSION = 1


@dataclass(frozen=True)
class Tree:
    """One regression tree as arrays over its nodes; `left` < 0 marks a leaf."""

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray

    def as_json(self) -> dict[str, list[Any]]:
        """Return the arrays as lists."""
        return {
            "feature": self.feature.tolist(),
            "threshold": [float(f"{t:.6g}") for t in self.threshold],
            "left": self.left.tolist(),
            "right": self.right.tolist(),
            "value": [float(f"{v:.5g}") for v in self.value],
        }

    @classmethod
    def from_json(cls, row: dict[str, list[Any]]) -> Tree:
        """Return the tree that `as_json` wrote."""
        return cls(
            np.array(row["feature"], np.int32),
            np.array(row["threshold"], np.float32),
            np.array(row["left"], np.int32),
            np.array(row["right"], np.int32),
            np.array(row["value"], np.float64),
        )


def predict_rows(trees: Sequence[Tree], x: np.ndarray) -> np.ndarray:
    """Return the sum of the trees' values for each row."""
    return Forest.of(trees).predict(x)


ROWS = 1024
"""Rows that go down all trees together: their places stay in a core's cache."""


@dataclass(frozen=True)
class Forest:
    """Trees as one array a field, one tree behind the other; a leaf's children are itself.

    `roots`: of each tree.  `depth`: steps that lead from any root to a leaf.
    """

    feature: np.ndarray
    threshold: np.ndarray
    children: np.ndarray
    value: np.ndarray
    roots: np.ndarray
    depth: int

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> Forest:
        """Join trees."""
        sizes = [len(t.left) for t in trees]
        starts = np.cumsum([0, *sizes[:-1]]) if trees else np.zeros(0, int)
        left, right = [], []
        for tree, start in zip(trees, starts, strict=True):
            itself = np.arange(len(tree.left))
            left.append(np.where(tree.left < 0, itself, tree.left) + start)
            right.append(np.where(tree.left < 0, itself, tree.right) + start)

        def joined(parts: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
            return np.concatenate(parts).astype(dtype) if parts else np.zeros(0, dtype)

        # Child 2n of node n is where the feature is at most the threshold, 2n + 1 where it is not.
        children = np.stack([joined(left, np.int32), joined(right, np.int32)], axis=1).ravel()
        return cls(
            joined([t.feature for t in trees], np.int32),
            joined([t.threshold for t in trees], np.float32),
            children,
            joined([t.value for t in trees], np.float64),
            starts.astype(np.int32),
            max((_depth(t) for t in trees), default=0),
        )

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the sum of the trees' values for each row of `x`, [rows, F]."""
        parts = [self._predict(x[at : at + ROWS]) for at in range(0, len(x), ROWS)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _predict(self, x: np.ndarray) -> np.ndarray:
        rows, width = x.shape
        flat = np.ascontiguousarray(x).ravel()
        line = np.arange(rows, dtype=np.int32) * width
        at = np.repeat(self.roots[:, None], rows, axis=1)
        for _ in range(self.depth):
            above = flat[self.feature[at] + line] > self.threshold[at]
            at = self.children[2 * at + above]
        total: np.ndarray = self.value[at].sum(axis=0)
        return total


def _depth(tree: Tree) -> int:
    """Return the most steps from the root to a leaf."""
    depth, level = 0, np.zeros(1, np.int32)
    while True:
        level = level[tree.left[level] >= 0]
        if not len(level):
            return depth
        level = np.concatenate([tree.left[level], tree.right[level]])
        depth += 1


def per_program(values: np.ndarray, owner: np.ndarray, count: int) -> np.ndarray:
    """Add the values of each program's statements."""
    return np.bincount(owner, values, minlength=count)


def grow(
    x: np.ndarray,
    owner: np.ndarray,
    y: np.ndarray,
    start: np.ndarray,
    *,
    trees: int = TREES,
    seed: int = 0,
) -> list[Tree]:
    """Boost trees so that their sums over the statements of programs, added to `start`, give `y`.

    `x` [statements, F] with the program of each statement in `owner`; `y`, `start` [programs].
    """
    weight = np.maximum(y, 0.05)
    predicted = start.copy()
    statements = np.bincount(owner, minlength=len(y)).astype(float)
    grown: list[Tree] = []
    for number in range(trees):
        residual = y - predicted
        fitted = ExtraTreeRegressor(
            max_depth=DEPTH, min_samples_leaf=3, max_features=0.5, random_state=seed * 1000 + number
        ).fit(x, (residual / np.maximum(statements, 1))[owner], weight[owner])
        inner = fitted.tree_
        at = inner.apply(x)
        leaves = np.flatnonzero(inner.children_left < 0)
        column = np.full(inner.node_count, -1)
        column[leaves] = np.arange(len(leaves))
        counts = np.zeros((len(y), len(leaves)))
        np.add.at(counts, (owner, column[at]), 1.0)
        gram = counts.T @ (counts * weight[:, None]) + RIDGE * np.eye(len(leaves))
        solved = np.linalg.solve(gram, counts.T @ (weight * residual))
        value = np.zeros(inner.node_count)
        value[leaves] = LEARNING_RATE * solved
        predicted += counts @ value[leaves]
        grown.append(
            Tree(
                np.maximum(inner.feature, 0).astype(np.int32),
                inner.threshold.astype(np.float32),
                inner.children_left.astype(np.int32),
                inner.children_right.astype(np.int32),
                value,
            )
        )
    return grown


class BoostedTrees:
    """The cost model.  `base`: trees learned before, kept as they are; new ones learn the rest.
    `programs`: how many are learned from, the newest ones."""

    def __init__(
        self,
        base: Sequence[Tree] = (),
        *,
        seed: int = 0,
        trees: int = TREES,
        programs: int = MAX_PROGRAMS,
    ) -> None:
        self.base = tuple(base)
        self.trees: list[Tree] = []
        self.seed, self.count, self.programs = seed, trees, programs
        self._forest: tuple[list[Tree], Forest] | None = None
        """The trees of `trees` and all of them joined with `base`."""
        self._features: dict[tuple[str, str], np.ndarray] = {}
        """Of each task and candidate: equal traces of different tasks are different programs."""
        self._costs: dict[str, list[tuple[str, float | None]]] = {}
        """Of each task key: candidate key and cost, in the order measured."""

    @property
    def trained(self) -> bool:
        """Tell whether predictions mean anything yet."""
        return bool(self.base or self.trees)

    def update(self, results: Sequence[tuple[Candidate, MeasureResult]]) -> None:
        """Remember results and learn from all of them."""
        fresh = [(c, r) for c, r in results if r.status in (Status.OK, Status.TIMED_OUT)]
        by_target: dict[str, list[tuple[Candidate, MeasureResult]]] = {}
        for c, r in fresh:
            by_target.setdefault(c.task.target.name, []).append((c, r))
        for pairs in by_target.values():
            self._remember([c for c, _ in pairs])
            for c, r in pairs:
                self._costs.setdefault(c.task.key, []).append((c.key, r.cost))
        self._learn()

    def _remember(self, candidates: Sequence[Candidate]) -> None:
        new = [c for c in candidates if (c.task.key, c.key) not in self._features]
        if new:
            x, owner = features([c.func for c in new], new[0].task.target)
            for i, c in enumerate(new):
                self._features[c.task.key, c.key] = x[owner == i]

    def data(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what was learned from: features, owners, throughputs relative to the best."""
        parts, throughput = [], []
        for task, trials in self._costs.items():
            best = min((c for _, c in trials if c), default=None)
            if best is None:
                continue
            for key, cost in trials:
                parts.append(self._features[task, key])
                throughput.append(best / cost if cost else 0.0)
        parts, throughput = parts[-self.programs :], throughput[-self.programs :]
        if not parts:
            return np.zeros((0, len(feature_names())), np.float32), np.zeros(0, int), np.zeros(0)
        owner = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
        return np.concatenate(parts), owner, np.array(throughput)

    def _learn(self) -> None:
        x, owner, y = self.data()
        if len(y) < 8:
            return
        start = per_program(predict_rows(self.base, x), owner, len(y))
        self.trees = grow(x, owner, y, start, trees=self.count, seed=self.seed)

    @property
    def forest(self) -> Forest:
        """All trees, joined."""
        if self._forest is None or self._forest[0] is not self.trees:
            self._forest = self.trees, Forest.of([*self.base, *self.trees])
        return self._forest[1]

    def predict(self, task: Task, candidates: Sequence[Candidate]) -> np.ndarray:
        """Return predicted throughput relative to the task's best so far, one a candidate."""
        if not candidates:
            return np.zeros(0)
        x, owner = features([c.func for c in candidates], task.target)
        rows = self.forest.predict(x)
        return per_program(rows, owner, len(candidates))

    def statements(
        self, task: Task, candidates: Sequence[Candidate]
    ) -> dict[str, dict[str, float]]:
        """Return, of each candidate key, the part of its score that each block adds."""
        x, owner = features([c.func for c in candidates], task.target)
        rows = self.forest.predict(x)
        names = [b.name for c in candidates for b in blocks(c.func.body)]
        result: dict[str, dict[str, float]] = {c.key: {} for c in candidates}
        for value, at, name in zip(rows.tolist(), owner.tolist(), names, strict=True):
            scores = result[candidates[at].key]
            scores[name] = scores.get(name, 0.0) + value
        return result

    # Plain data

    def save(self, path: Path) -> None:
        """Write all trees as JSON, whole or not at all."""
        data = {
            "version": VERSION,
            "features": list(feature_names()),
            "trees": [t.as_json() for t in (*self.base, *self.trees)],
        }
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(data, separators=(",", ":")))
        os.replace(part, path)

    @classmethod
    def load(cls, path: Path, *, seed: int = 0, trees: int = TREES) -> BoostedTrees:
        """Read what `save` wrote; raise `NestlingError` when it is not of this version."""
        try:
            data = json.loads(path.read_text())
            if data["version"] != VERSION or data["features"] != list(feature_names()):
                raise NestlingError(f"{path}: a cost model of another version.")
            return cls([Tree.from_json(t) for t in data["trees"]], seed=seed, trees=trees)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NestlingError(f"{path}: not a cost model ({error}).") from None


def pairwise_accuracy(truth: np.ndarray, scores: np.ndarray) -> float:
    """Return the share of pairs of programs in the right order, ties of the truth left out."""
    if len(truth) < 2:
        return float("nan")
    a, b = np.triu_indices(len(truth), 1)
    apart = truth[a] != truth[b]
    right = (truth[a] > truth[b]) == (scores[a] > scores[b])
    return float(right[apart].mean()) if apart.any() else float("nan")


def recall_at(truth: np.ndarray, scores: np.ndarray, k: int) -> float:
    """Return how many of the k truly best are among the k predicted best, as a share."""
    k = min(k, len(truth))
    if k == 0:
        return float("nan")
    best = set(np.argsort(-truth, kind="stable")[:k].tolist())
    return len(best & set(np.argsort(-scores, kind="stable")[:k].tolist())) / k
