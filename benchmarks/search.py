"""Search strategies of all generations at equal budgets, and how well the cost model predicts.

python -m benchmarks.search --kernels conv3x3,conv1x1 --trials 200 --seeds 5 --cache out/search.db
python -m benchmarks.search --accuracy --cache out/search.db
python -m benchmarks.search --scheduler --cache out/search.db

A candidate that two searches propose is measured once and kept in the cache, so that searches are
compared on the same costs; a run that was stopped goes on from there.  Reported is the best cost
after the budget, divided by the best cost that any search found for the kernel.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks.models import conv, matmul, Net
from benchmarks.tables import machine, number, table, write_json
from toolkit.lowering.tasks import tasks_of
from toolkit.measure.candidates.host import HostMeasurer
from toolkit.pipeline import compile_model, load, Options
from toolkit.search.cost_model import BoostedTrees, pairwise_accuracy, recall_at
from toolkit.search.records import Records
from toolkit.search.result import Measurer, MeasureResult, Status
from toolkit.search.strategies import get_strategy
from toolkit.space.spaces import load_space
from toolkit.space.task import Candidate, Task
from toolkit.space.validate import validate
from toolkit.targets.target import get_target
from toolkit.tuner.run import default_candidate, operations_of


def gemv(inner: int, out: int) -> onnx.ModelProto:
    """A row times a constant matrix."""
    n = Net("gemv")
    weight = n.normal("weight", (inner, out), math.sqrt(1 / inner))
    return n.model(n.node("MatMul", (n.input("input", 1, inner), weight)))


KERNELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "matmul": lambda: matmul(128),
    "conv3x3": lambda: conv("conv3x3", 24, 32, 32, 3),
    "conv1x1": lambda: conv("conv1x1", 14, 96, 160, 1),
    "depthwise": lambda: conv("depthwise", 28, 64, 64, 3, groups=64),
    "gemv": lambda: gemv(512, 384),
}
"""Kernels that one core runs in 5 to 100 microseconds."""

SEARCHES = (
    ("autotvm", "random"),
    ("autotvm", "grid"),
    ("autotvm", "genetic"),
    ("autotvm", "annealing"),
    ("ansor", "evolutionary"),
    ("metaschedule", "random"),
    ("metaschedule", "grid"),
    ("metaschedule", "genetic"),
    ("metaschedule", "beam"),
    ("metaschedule", "bandit"),
    ("metaschedule", "bayesian"),
    ("metaschedule", "annealing"),
    ("metaschedule", "evolutionary"),
)


@dataclass(frozen=True, slots=True)
class Cached:
    """A measurer that asks the records first."""

    measurer: Measurer
    records: Records

    @property
    def unit(self) -> str:
        return self.measurer.unit

    def measure(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        known: dict[str, MeasureResult] = {}
        for task in {c.task.key: c.task for c in candidates}.values():
            for trial in self.records.trials(task.key, unit=self.unit):
                known[trial.candidate_key] = trial.result
        missing = [c for c in candidates if c.key not in known]
        results = self.measurer.measure(missing) if missing else []
        pairs = list(zip(missing, results, strict=True))
        if pairs:
            self.records.add(pairs)
        known.update((c.key, r) for c, r in pairs)
        return [known[c.key] for c in candidates]


def kernel_task(name: str, target_name: str) -> Task:
    """Return the task of a kernel: the heaviest of its one-operator model."""
    compiled = compile_model(load(KERNELS[name]()), Options(target=target_name))
    found = tasks_of(compiled.graph, compiled.model.ops, compiled.program, compiled.target)
    return max(found, key=operations_of)


def search(
    task: Task, space: str, strategy: str, measurer: Cached, *, trials: int, batch: int, seed: int,
    base: BoostedTrees | None = None,
) -> tuple[list[float], float]:  # fmt: skip
    """Run one search; return the best cost after each trial, and seconds spent searching."""
    rng = random.Random(f"{task.key}/{seed}")
    model = BoostedTrees(base.base + tuple(base.trees) if base else (), seed=seed)
    sketches = load_space(space).sketches(task)
    if not sketches:
        return [], 0.0
    made = get_strategy(strategy)(task, sketches, rng, model, validate)
    curve: list[float] = []
    best = float("inf")
    spent = 0.0
    while len(curve) < trials:
        start = time.perf_counter()
        asked = made.ask(min(batch, trials - len(curve)))
        spent += time.perf_counter() - start
        if not asked:
            break
        pairs = list(zip(asked, measurer.measure(asked), strict=True))
        start = time.perf_counter()
        made.tell(pairs)
        model.update(pairs)
        spent += time.perf_counter() - start
        for _, result in pairs:
            best = min(best, result.cost or float("inf"))
            curve.append(best)
    curve += [best] * (trials - len(curve))
    return curve, spent


def compare_searches(args: argparse.Namespace, measurer: Cached) -> dict[str, object]:
    """Run every search on every kernel and seed; print the table."""
    found: dict[tuple[str, str, str], list[list[float]]] = {}
    spent: dict[tuple[str, str], float] = {}
    wanted = [s for s in SEARCHES if not args.searches or "/".join(s) in args.searches]
    tasks = {name: kernel_task(name, args.target) for name in args.kernels}
    for name, task in tasks.items():
        default = measurer.measure([default_candidate(task)])[0]
        for seed in range(args.seeds):
            for space, strategy in wanted:
                start = time.perf_counter()
                curve, seconds = search(
                    task, space, strategy, measurer,
                    trials=args.trials, batch=args.batch, seed=seed,
                )  # fmt: skip
                if curve:
                    found.setdefault((name, space, strategy), []).append(curve)
                    spent[space, strategy] = spent.get((space, strategy), 0.0) + seconds
                    print(
                        f"{name:10} seed {seed} {space}/{strategy:12} best "
                        f"{curve[-1] * 1e6:9.2f} us of {(default.cost or 0) * 1e6:9.2f} default, "
                        f"{time.perf_counter() - start:6.1f} s",
                        file=sys.stderr,
                    )
    floor = {
        name: min(c[-1] for (n, _, _), curves in found.items() if n == name for c in curves)
        for name in tasks
    }
    rows, result = [], []
    for space, strategy in wanted:
        means = {
            name: statistics.mean(c[-1] / floor[name] for c in found[name, space, strategy])
            for name in tasks
            if (name, space, strategy) in found
        }
        if not means:
            continue
        every = statistics.mean(means.values())
        rows.append(
            [f"{space}/{strategy}", *(number(means.get(n)) for n in tasks), number(every),
             number(spent[space, strategy])]
        )  # fmt: skip
        result.append({"space": space, "strategy": strategy, "mean": every, "kernels": means})
    rows.sort(key=lambda r: float(r[-2].replace(",", "")))
    print(f"best cost after {args.trials} trials / best known, mean of {args.seeds} seeds")
    print(table(["search", *tasks, "mean", "search s"], rows))
    return {"searches": result}


def accuracy(args: argparse.Namespace, measurer: Cached) -> dict[str, object]:
    """Hold out a third of the programs of each task of the cache; print how they are ranked."""
    rows, result = [], []
    folds: list[tuple[float, float]] = []
    for name in args.kernels:
        task = kernel_task(name, args.target)
        pairs, _ = measurer.records.results(task, unit=measurer.unit)
        pairs = [(c, r) for c, r in pairs if r.status is Status.OK]
        if len(pairs) < 60:
            continue
        random.Random(0).shuffle(pairs)
        cut = 2 * len(pairs) // 3
        model = BoostedTrees(seed=0)
        model.update(pairs[:cut])
        held = pairs[cut:]
        scores = model.predict(task, [c for c, _ in held])
        truth = np.array([1 / (r.cost or 1.0) for _, r in held])
        pair, recall = pairwise_accuracy(truth, scores), recall_at(truth, scores, 30)
        folds.append((pair, recall))
        rows.append([name, str(cut), str(len(held)), number(pair), number(recall)])
        result.append({"kernel": name, "pairwise": pair, "recall@30": recall})
    means = [statistics.mean(column) for column in zip(*folds, strict=True)]
    print("held-out programs of the same tasks (Ansor: 0.851, 0.624)")
    print(table(["kernel", "learned", "held out", "pairwise", "recall@30"],
                [*rows, ["mean", "", "", *(number(m) for m in means)]]))  # fmt: skip
    return {"accuracy": result}


def learn(cache: Path, target_name: str, path: Path) -> None:
    """Learn a model from every trial that a database holds of a target, and write it as JSON."""
    target = get_target(target_name)
    model = BoostedTrees(seed=0, trees=120)
    told: list[tuple[Candidate, MeasureResult]] = []
    with Records(cache, readonly=True) as records:
        for kept in records.tasks(target=target.name):
            pairs, _ = records.results(Task(kept.func(), target, kept.inplace))
            told += pairs
    model.update(told)
    model.save(path)
    print(f"{path}: learned from {len(told)} trials")


def speed(args: argparse.Namespace) -> dict[str, object]:
    """Print how many candidates a second are replayed, featurised and predicted, on one core."""
    rows, result = [], []
    for name in args.kernels:
        task = kernel_task(name, args.target)
        sketches = load_space("metaschedule").sketches(task)
        strategy = get_strategy("evolutionary")(
            task, sketches, random.Random(0), BoostedTrees(seed=0), validate
        )
        drawn = strategy.ask(128)
        model = BoostedTrees(seed=0)
        model.update(
            [(c, MeasureResult(Status.OK, samples=(1.0 + i,))) for i, c in enumerate(drawn)]
        )
        pool = strategy.pool  # type: ignore[attr-defined]
        pool.measured = [(float(i), c) for i, c in enumerate(drawn)]
        start, count = time.process_time(), 0
        while time.process_time() - start < 2.0:
            people = [m for c in drawn if (m := pool.mutate(c)) is not None]
            model.predict(task, people)
            count += len(people)
        rate = count / (time.process_time() - start)
        rows.append([name, number(rate)])
        result.append({"kernel": name, "candidates_per_s": rate})
    print("candidates a second: changed, replayed, featurised, predicted; one core")
    print(table(["kernel", "per second"], rows))
    return {"speed": result}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    names = ",".join(KERNELS)
    parser.add_argument("--kernels", default=names, help=f"of {names}")
    parser.add_argument("--searches", default="", help="such as ansor/evolutionary,... [all]")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--target", default="host")
    parser.add_argument("--cache", type=Path, default=Path("out/search.records.db"))
    parser.add_argument("--accuracy", action="store_true", help="of the model, on the cache")
    parser.add_argument("--speed", action="store_true", help="candidates a second")
    parser.add_argument(
        "--save-model", type=Path, help="learn from all trials of the target in the cache, write it"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    args.kernels = [k for k in args.kernels.split(",") if k]
    unknown = [k for k in args.kernels if k not in KERNELS]
    if unknown:
        raise SystemExit(f"--kernels {unknown[0]}: unknown; known: {names}")
    args.searches = [s for s in args.searches.split(",") if s]
    args.cache.parent.mkdir(parents=True, exist_ok=True)
    if args.save_model:
        learn(args.cache, args.target, args.save_model)
        return 0
    if args.speed:
        write_json(args.json, {**machine(), **speed(args)})
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="nestling_search_") as folder,
        Records(args.cache) as records,
        HostMeasurer(get_target(args.target), cache_dir=Path(folder)) as host,
    ):
        measurer = Cached(host, records)
        found = (accuracy if args.accuracy else compare_searches)(args, measurer)
    write_json(args.json, {**machine(), **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
