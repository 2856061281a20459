"""Trials a second of the measurer: random candidates, from default traces with their tiles open.

python -m benchmarks.measuring --model resnet8 --count 64
"""

from __future__ import annotations

import argparse
import collections
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import models
from toolkit.errors import ScheduleError
from toolkit.lowering.steps import RawCall, Steps
from toolkit.measure.candidates.board import BoardMeasurer
from toolkit.measure.candidates.host import HostMeasurer
from toolkit.passes.manager import run_passes
from toolkit.pipeline import load
from toolkit.schedule.default import default_trace
from toolkit.schedule.hole import PerfectTile, Sketch, Tile
from toolkit.schedule.steps.split import Split
from toolkit.search.result import Measurer
from toolkit.space.task import Candidate, candidate, Task
from toolkit.targets.board import load_board
from toolkit.targets.target import get_target, Target


def tasks_of(name: str, target: Target) -> list[Task]:
    """Return the different kernels of a benchmark model, convolutions first."""
    model = load(models.build(name))
    graph = run_passes(model.graph, model.ops)
    work = Steps(model.ops, dict(graph.types), dict(graph.consts), opset=graph.opset)
    work.graph(graph)
    tasks: dict[str, Task] = {}
    for step in work.steps:
        if isinstance(step, RawCall):
            task = Task(step.group.func, target)
            tasks.setdefault(task.key, task)
    return sorted(tasks.values(), key=lambda t: "conv" not in t.name)


def opened(task: Task) -> Sketch:
    """Return the default trace of a task with the factors of its splits open."""
    steps = []
    for number, step in enumerate(default_trace(task.func, task.target.isa)):
        if isinstance(step, Split) and len(step.factors) == 1:
            name = f"tile{number}"
            perfect = step.tail == "perfect"
            hole = PerfectTile(name, 2) if perfect else Tile(name, 64, 0.5)
            step = replace(step, factors=hole)
        steps.append(step)
    return tuple(steps)


def random_candidates(task: Task, count: int, rng: random.Random) -> list[Candidate]:
    """Return the default and up to `count` - 1 others that are legal, all different."""
    default = candidate(task, default_trace(task.func, task.target.isa), {}, origin="default")
    found = {default.key: default}
    sketch = opened(task)
    for _ in range(20 * count):
        if len(found) == count:
            break
        try:
            one = candidate(task, sketch, {}, rng)
        except ScheduleError:
            continue
        found.setdefault(one.key, one)
    return list(found.values())


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table of trials a second, and the statuses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--count", type=int, default=24, help="candidates a task")
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--board", help="for instance qemu_mps2_an386; the host without it")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        measurer: Measurer
        if options.board:
            board = load_board(options.board)
            target = get_target(board.target)
            measurer = BoardMeasurer(board, cache_dir=Path(folder), jobs=options.jobs)
        else:
            target = get_target("host")
            measurer = HostMeasurer(target, cache_dir=Path(folder), jobs=options.jobs)
        try:
            total = spent = 0.0
            for task in tasks_of(options.model, target)[: options.tasks]:
                some = random_candidates(task, options.count, rng)
                start = time.monotonic()
                results = measurer.measure(some)
                took = time.monotonic() - start
                total, spent = total + len(some), spent + took
                known = [r.cost for r in results if r.cost is not None]
                statuses = collections.Counter(str(r.status) for r in results)
                default = results[0].cost
                assert default is not None, results[0]
                print(
                    f"{task.name:32s} {len(some):3d} trials  {len(some) / took:6.1f}/s  "
                    f"default {default:.4g}  best {min(known):.4g} {measurer.unit}  "
                    f"{dict(statuses)}"
                )
            print(f"{total / spent:.1f} trials/s, checks included")
        finally:
            measurer.close()


if __name__ == "__main__":
    main()
