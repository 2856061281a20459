"""Search strategies of all generations at equal budgets, and how well the cost model predicts.

python -m benchmarks.search --kernels conv3x3,conv1x1 --trials 200 --seeds 5 --cache out/search.db
python -m benchmarks.search --accuracy --cache out/search.db
python -m benchmarks.search --scheduler --model mobilenet.onnx --trials 1200 --cache out/search.db

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from benchmarks.kernels import kernel_task, KERNELS, MCU_TRAINING, TRAINING
from benchmarks.tables import machine, number, table, write_json
from toolkit.measure.candidates.board import BoardMeasurer
from toolkit.measure.candidates.host import HostMeasurer
from toolkit.pipeline import compile_model, load, Options
from toolkit.schedule.hole import Sketch
from toolkit.search.cost_model import BoostedTrees, pairwise_accuracy, recall_at
from toolkit.search.goals import sum_goal
from toolkit.search.pool import Pool
from toolkit.search.pretrained import pretrained
from toolkit.search.records import Records
from toolkit.search.result import Measurer, MeasureResult, Status
from toolkit.search.strategies import get_strategy
from toolkit.search.structure import structure_key
from toolkit.search.task_scheduler import SCHEDULERS, TaskState
from toolkit.space.modules.compose import ModuleSpace
from toolkit.space.spaces import load_space, SPACES
from toolkit.space.task import Candidate, Task
from toolkit.space.validate import validate
from toolkit.targets.board import load_board
from toolkit.targets.target import get_target
from toolkit.tuner.run import default_candidate, model_tasks, operations_of, SMALL_SHARE


@dataclass(frozen=True, slots=True)
class Search:
    """A space and how it is searched.  `shipped`: the cost model starts as the one that ships."""

    space: str
    strategy: str
    shipped: bool = False

    def __str__(self) -> str:
        return f"{self.space}/{self.strategy}{' shipped' if self.shipped else ''}"


SEARCHES = (
    Search("autotvm", "random"),
    Search("autotvm", "grid"),
    Search("autotvm", "genetic"),
    Search("autotvm", "annealing"),
    Search("ansor", "random"),
    Search("ansor", "evolutionary"),
    Search("metaschedule", "random"),
    Search("metaschedule", "grid"),
    Search("metaschedule", "genetic"),
    Search("metaschedule", "beam"),
    Search("metaschedule", "bandit"),
    Search("metaschedule", "bayesian"),
    Search("metaschedule", "annealing"),
    Search("metaschedule", "evolutionary"),
    Search("metaschedule", "evolutionary", shipped=True),
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


@dataclass(frozen=True, slots=True)
class Found:
    """A search's end.  `best`: the best candidate after each trial, by the costs it was told;
    `seconds` spent searching."""

    best: tuple[Candidate, ...]
    seconds: float


def sketches_of(space_name: str, task: Task, *, with_default: bool) -> Sequence[Sketch]:
    """Return the sketches of a space, without those around default schedules if so wanted."""
    space = load_space(space_name)
    if not with_default and isinstance(space, ModuleSpace):
        space = replace(space, defaults=False)
    return space.sketches(task)


def search(
    task: Task, how: Search, measurer: Cached, *, trials: int, batch: int, seed: int,
    with_default: bool = True,
) -> Found | None:  # fmt: skip
    """Run one search; None where no sketch of its space fits the task.

    It starts from the default's cost, as a tuning run does, and its choices depend on the seed
    alone.  Without the default, the space has no sketches around it either; the default stands as
    the best until something ran.
    """
    rng = random.Random(f"{task.key}/{seed}")
    model = BoostedTrees(pretrained(task.target.isa) if how.shipped else (), seed=seed)
    sketches = sketches_of(how.space, task, with_default=with_default)
    if not sketches:
        return None
    made = get_strategy(how.strategy)(task, sketches, rng, model, validate)
    default = default_candidate(task)
    best, cost = default, math.inf
    found: list[Candidate] = []
    if with_default:
        told = list(zip([default], measurer.measure([default]), strict=True))
        cost = told[0][1].cost or math.inf
        made.tell(told)
        model.update(told)
    spent, start = 0.0, time.perf_counter()
    while len(found) < trials:
        asked = made.ask(min(batch, trials - len(found)))
        spent += time.perf_counter() - start
        if not asked:
            break
        told = list(zip(asked, measurer.measure(asked), strict=True))
        start = time.perf_counter()
        made.tell(told)
        model.update(told)
        for c, result in told:
            if result.cost is not None and result.cost < cost and result.confident:
                best, cost = c, result.cost
            found.append(best)
    found += [best] * (trials - len(found))
    return Found(tuple(found), spent)


def remeasured(
    task: Task, candidates: Sequence[Candidate], measurer: HostMeasurer
) -> dict[str, float]:
    """Return what candidates take as a part of the default's time, by turns: what a search took for
    its best may have been luck."""
    default = default_candidate(task)
    ratios = {default.key: 1.0}
    rest = [c for c in {c.key: c for c in candidates}.values() if c.key != default.key]
    for group in (rest[i : i + 12] for i in range(0, len(rest), 12)):
        measurer.measure([default])  # what it takes while the core is not shared, ever better known
        for one in measurer.compare([default, *group], rounds=31)[1:]:
            if one.ratio is not None:
                ratios[one.candidate.key] = one.ratio
    return ratios


def compare_searches(args: argparse.Namespace, measurer: Cached) -> dict[str, object]:
    """Run every search on every kernel and seed; print the table."""
    wanted = [s for s in SEARCHES if not args.searches or str(s) in args.searches]
    points = sorted({min(n, args.trials) for n in (32, 64, args.trials)})
    tasks = {name: kernel_task(KERNELS[name], args.target) for name in args.kernels}
    found: dict[tuple[str, Search], list[Found]] = {}
    for seed in range(args.seeds):
        for name, task in tasks.items():
            for how in wanted:
                start = time.perf_counter()
                one = search(
                    task, how, measurer, trials=args.trials, batch=args.batch, seed=seed,
                    with_default=not args.without_default,
                )  # fmt: skip
                if one is not None:
                    found.setdefault((name, how), []).append(one)
                    print(
                        f"{name:10} seed {seed} {how!s:36} {time.perf_counter() - start:6.1f} s",
                        file=sys.stderr,
                    )
    ratios: dict[tuple[str, Search, int], float] = {}
    for name, task in tasks.items():
        mine = {how: fs for (n, how), fs in found.items() if n == name}
        ends = [f.best[at - 1] for fs in mine.values() for f in fs for at in points]
        assert isinstance(measurer.measurer, HostMeasurer)
        told = remeasured(task, ends, measurer.measurer)
        floor = min(told.values())
        for how, fs in mine.items():
            for at in points:
                ratios[name, how, at] = statistics.mean(
                    told[f.best[at - 1].key] / floor for f in fs
                )
    rows, result = [], []
    for how in wanted:
        of = {name: ratios[name, how, args.trials] for name in tasks if (name, how) in found}
        if not of:
            continue
        means = {
            at: statistics.mean(ratios[name, how, at] for name in of) for at in points
        }  # fmt: skip
        seconds = statistics.mean(f.seconds for name in of for f in found[name, how])
        rows.append([str(how), *(number(of.get(n), 4) for n in tasks),
                     *(number(means[at], 4) for at in points), number(seconds)])  # fmt: skip
        result.append({"search": str(how), "kernels": of, "means": means, "search_s": seconds})
    rows.sort(key=lambda r: r[-2])
    print(
        f"time of the best after {args.trials} trials / of the best known, measured by turns; mean "
        f"of {args.seeds} seeds; means over kernels after {points} trials; seconds of search"
    )
    print(table(["search", *tasks, *(f"mean {n}" for n in points), "search s"], rows))
    return {"searches": result}


class TaskCurve:
    """One search of a task, which goes on as far as it is asked: the same for every scheduler."""

    def __init__(self, task: Task, measurer: Cached, args: argparse.Namespace, seed: int) -> None:
        self.task, self.measurer, self.batch = task, measurer, args.batch
        sketches = sketches_of(args.space, task, with_default=not args.without_default)
        rng = random.Random(f"{task.key}/{seed}")
        if args.without_default:
            self.model = BoostedTrees(seed=seed)
            drawn = Pool(task, sketches, rng, validate).draw(8)
            start = next([c] for c in drawn if measurer.measure([c])[0].cost is not None)
        else:
            self.model = BoostedTrees(pretrained(task.target.isa), seed=seed)
            start = [default_candidate(task)]
        self.strategy = get_strategy("evolutionary")(task, sketches, rng, self.model, validate)
        told = list(zip(start, measurer.measure(start), strict=True))
        self.strategy.tell(told)
        self.model.update(told)
        self.rounds: list[tuple[int, float]] = [(0, told[0][1].cost or math.inf)]
        """Trials of each round, and the best cost after it."""

    def round(self, number: int) -> tuple[int, float]:
        """Return the trials of a round and the best cost after it; no trials where none is left."""
        while len(self.rounds) <= number:
            asked = self.strategy.ask(self.batch)
            told = list(zip(asked, self.measurer.measure(asked), strict=True))
            self.strategy.tell(told)
            self.model.update(told)
            best = min((r.cost for _, r in told if r.cost), default=math.inf)
            self.rounds.append((len(asked), min(best, self.rounds[-1][1])))
        return self.rounds[number]


def spend(
    scheduler: str, curves: Sequence[TaskCurve], calls: Mapping[str, float], trials: int, seed: int,
    *, idle_s: float,
) -> list[tuple[int, float]]:  # fmt: skip
    """Spend trials as a scheduler says; return, after each round, how many were spent and what the
    model takes, in seconds.  `idle_s`: what kernels take that get no trials."""
    states = {
        c.task.key: TaskState(
            c.task.key, {"model": calls[c.task.key]}, operations_of(c.task),
            structure_key(c.task.func), [c.rounds[0][1]],
        )
        for c in curves
    }  # fmt: skip
    by_key = {c.task.key: c for c in curves}
    chooses = SCHEDULERS[scheduler](list(states.values()), sum_goal(), random.Random(seed))
    points = [(0, idle_s + sum(chooses.latencies().values()))]
    while points[-1][0] < trials:
        state = chooses.pick()
        if state is None:
            break
        count, cost = by_key[state.key].round(state.rounds + 1)
        state.dead = not count
        if count:
            state.costs.append(cost)
            points.append((points[-1][0] + count, idle_s + sum(chooses.latencies().values())))
    return points


def fewest(curves: Sequence[TaskCurve], calls: Mapping[str, float], latency: float) -> int:
    """Return about how few trials reach a latency, for one who knows every curve beforehand: of all
    rounds ahead the run that gains most a trial is taken, again and again."""
    spent, at = 0, dict.fromkeys((c.task.key for c in curves), 0)
    left = sum(calls[c.task.key] * c.rounds[0][1] for c in curves) - latency
    while left > 1e-6 * latency:
        steps = []
        for c in curves:
            key = c.task.key
            now, trials = at[key], 0
            for index, (count, cost) in enumerate(c.rounds[now + 1 :], now + 1):
                trials += count
                gain = calls[key] * (c.rounds[now][1] - cost)
                if count:
                    steps.append((gain / trials, gain, trials, key, index))
        _, gain, trials, key, index = max(steps)
        if gain <= 0:
            break
        left, spent, at[key] = left - gain, spent + trials, index
    return spent


def compare_schedulers(args: argparse.Namespace, measurer: Cached) -> dict[str, object]:
    """Spend the same budget by gradients and by turns, on the same searches; print the table."""
    compiled = compile_model(load(onnx.load(args.model)), Options(target=args.target))
    tasks, weights = model_tasks({"model": compiled})
    calls = {key: found["model"] for key, found in weights.items()}
    able = [
        t for t in tasks
        if operations_of(t)
        and sketches_of(args.space, t, with_default=not args.without_default)
    ]  # fmt: skip
    rows, result = [], []
    for seed in range(args.seeds):
        every = [TaskCurve(t, measurer, args, seed) for t in able]
        start_s = {c.task.key: calls[c.task.key] * c.rounds[0][1] for c in every}
        least_s = SMALL_SHARE * sum(start_s.values())
        curves = [c for c in every if start_s[c.task.key] >= least_s]
        small = sum(start_s.values()) - sum(start_s[c.task.key] for c in curves)
        gradient = spend("gradient", curves, calls, args.trials, seed, idle_s=small)
        for among, idle_s in ((every, 0.0), (curves, small)):
            turns = spend("round-robin", among, calls, args.trials, seed, idle_s=idle_s)
            shares = [
                next(
                    (n / turns[-1][0] for n, latency in gradient if latency <= near * turns[-1][1]),
                    None,
                )
                for near in (1.0, 1.001)
            ]
            least = fewest(curves, calls, turns[-1][1] - small) / turns[-1][0]
            middles = [
                number(run[at][1] * 1e6, 5)
                for run in (turns, gradient)
                for at in (0, len(run) // 2, -1)
            ]
            rows.append([str(seed), str(len(among)), *middles, *map(number, (*shares, least))])
            result.append({
                "seed": seed, "turns of": len(among), "shares": shares, "fewest": least,
                "round-robin": turns, "gradient": gradient,
            })  # fmt: skip
            print(f"seed {seed}: {len(among)} tasks, shares {shares}", file=sys.stderr)
    start = "random candidates and untrained models" if args.without_default else "the default"
    print(
        f"{args.model.name}: {args.trials} trials in the space {args.space}, from {start}; sum of "
        f"kernels in us after none, half and all of them. Turns go to all {len(able)} tasks that "
        "compute and have a space, "
        f"and to those that take {SMALL_SHARE:.1%} of the time or more, as the gradient's do. "
        "Share of the trials in which the gradient reaches what turns end with, comes within 0.1 % "
        "of it, and in which it could have been reached"
    )
    print(table(["seed", "tasks", "turns", "half", "end", "gradient", "half", "end", "share",
                 "within", "least"], rows))  # fmt: skip
    return {"schedulers": result}


def accuracy(args: argparse.Namespace, measurer: Cached) -> dict[str, object]:
    """Hold out a third of the programs of each task of the cache; print how they are ranked."""
    rows, result = [], []
    folds: list[tuple[float, float]] = []
    for name in args.kernels:
        task = kernel_task(KERNELS[name], args.target)
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


GATHER = (
    (Search("metaschedule", "random"), True, 32),
    (Search("metaschedule", "evolutionary"), True, 64),
    (Search("metaschedule", "evolutionary"), False, 80),
)
"""What a shipped model learns from: searches, whether they start from the default, trials."""


def gather(args: argparse.Namespace, measurer: Cached) -> dict[str, object]:
    """Measure candidates of the training kernels for `--save-model`; the cache keeps them."""
    kernels = MCU_TRAINING if args.board else TRAINING
    for count, (name, kernel) in enumerate(kernels.items(), 1):
        start = time.perf_counter()
        task = kernel_task(kernel, args.target)
        for how, with_default, trials in GATHER:
            search(
                task, how, measurer, trials=trials, batch=args.batch, seed=0,
                with_default=with_default,
            )  # fmt: skip
        seconds = time.perf_counter() - start
        print(f"{name}: {count} of {len(kernels)}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return {}


FOLDS = 4
"""Parts of the tasks, each of which is held out once."""


def learn(cache: Path, target_name: str, path: Path, without: Sequence[Task]) -> None:
    """Learn a model from every trial that a database holds of a target, and write it as JSON.

    `without`: tasks that are left out.  Printed is how well such a model ranks the programs of
    tasks that it has not seen.
    """
    target = get_target(target_name)
    told: list[list[tuple[Candidate, MeasureResult]]] = []
    with Records(cache, readonly=True) as records:
        for kept in records.tasks(target=target.name):
            task = Task(kept.func(), target, kept.inplace)
            if task.key not in {t.key for t in without}:
                told.append(records.results(task)[0])
    told = [pairs for pairs in told if len(pairs) > 1]
    scores = [s for fold in range(min(FOLDS, len(told))) for s in _held_out(told, fold)]
    model = BoostedTrees(seed=0, programs=sum(map(len, told)))
    model.update([pair for pairs in told for pair in pairs])
    model.save(path)
    print(f"{path}: learned from {sum(map(len, told))} trials of {len(told)} tasks")
    if scores:
        pair, recall = (statistics.mean(column) for column in zip(*scores, strict=True))
        print(
            f"tasks held out: pairwise accuracy {pair:.3f}, recall@30 {recall:.3f}, "
            f"mean of {len(scores)}"
        )


def _held_out(
    told: Sequence[Sequence[tuple[Candidate, MeasureResult]]], fold: int
) -> Iterator[tuple[float, float]]:
    """Yield pairwise accuracy and recall@30 of each task of a fold, by a model of the others."""
    model = BoostedTrees(seed=0, programs=sum(map(len, told)))
    model.update([p for n, pairs in enumerate(told) if n % FOLDS != fold for p in pairs])
    for pairs in told[fold::FOLDS]:
        ok = [(c, r.cost) for c, r in pairs if r.cost is not None]
        if len(ok) >= 32:
            truth = np.array([1 / cost for _, cost in ok])
            scores = model.predict(ok[0][0].task, [c for c, _ in ok])
            yield pairwise_accuracy(truth, scores), recall_at(truth, scores, 30)


def speed(args: argparse.Namespace) -> dict[str, object]:
    """Print how many candidates a second are replayed, featurised and predicted, on one core."""
    rows, result = [], []
    for name in args.kernels:
        task = kernel_task(KERNELS[name], args.target)
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


def open_measurer(target: str, board: str | None, folder: Path) -> HostMeasurer | BoardMeasurer:
    """Return what measures candidates of a target here, or on a board in QEMU."""
    if board is not None:
        return BoardMeasurer(load_board(board), cache_dir=folder)
    return HostMeasurer(get_target(target), cache_dir=folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    names = ",".join(KERNELS)
    parser.add_argument("--kernels", default=names, help=f"of {names}")
    parser.add_argument("--searches", default="", help="such as ansor/evolutionary,...  [all]")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--target", default="host")
    parser.add_argument("--cache", type=Path, default=Path("out/search.records.db"))
    parser.add_argument("--accuracy", action="store_true", help="of the model, on the cache")
    parser.add_argument("--scheduler", action="store_true", help="gradients against turns")
    parser.add_argument("--model", type=Path, help="what --scheduler tunes: an .onnx file")
    parser.add_argument(
        "--space", default="metaschedule", choices=SPACES, help="in which --scheduler searches"
    )
    parser.add_argument(
        "--without-default", action="store_true",
        help="searches know nothing of the default schedule; tasks of --scheduler start from a "
        "random candidate and an untrained cost model, as Ansor's do",
    )  # fmt: skip
    parser.add_argument("--speed", action="store_true", help="candidates a second")
    parser.add_argument(
        "--gather", action="store_true", help="measure what --save-model learns from"
    )
    parser.add_argument("--board", help="--gather on this board in QEMU, on kernels of its size")
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
    if args.board and not (args.gather or args.save_model):
        raise SystemExit("--board is for --gather and --save-model; searches are compared here.")
    if args.board:
        args.target = load_board(args.board).target
    if args.scheduler and args.model is None:
        raise SystemExit("--scheduler needs --model FILE.onnx")
    args.cache.parent.mkdir(parents=True, exist_ok=True)
    if args.save_model:
        # What the table judges a shipped model by, it has not learned from.
        judged = [kernel_task(KERNELS[name], args.target) for name in args.kernels]
        learn(args.cache, args.target, args.save_model, without=judged)
        return 0
    if args.speed:
        write_json(args.json, {**machine(), **speed(args)})
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="nestling_search_") as folder,
        Records(args.cache) as records,
        open_measurer(args.target, args.board, Path(folder)) as opened,
    ):
        measurer = Cached(opened, records)
        jobs = {"accuracy": accuracy, "scheduler": compare_schedulers, "gather": gather}
        job = next((jobs[n] for n in jobs if getattr(args, n)), compare_searches)
        found = job(args, measurer)
    write_json(args.json, {**machine(), **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
