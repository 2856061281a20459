"""Trials a second of the measurer: random candidates of the space `metaschedule`.

python -m benchmarks.measuring --model resnet8 --count 64
"""

from __future__ import annotations

import argparse
import collections
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import models
from toolkit.lowering.tasks import tasks_of
from toolkit.measure.candidates.board import BoardMeasurer
from toolkit.measure.candidates.host import HostMeasurer
from toolkit.pipeline import compile_model, load, Options
from toolkit.search.pool import Pool
from toolkit.search.result import Measurer
from toolkit.space.spaces import load_space
from toolkit.space.task import Candidate, Task
from toolkit.space.validate import validate
from toolkit.targets.board import load_board
from toolkit.targets.target import get_target, Target
from toolkit.tuner.run import default_candidate


def model_tasks(name: str, target: Target) -> list[Task]:
    """Return the different kernels of a benchmark model, convolutions first."""
    compiled = compile_model(load(models.build(name), records=()), Options(target=target.name))
    found = tasks_of(compiled.graph, compiled.model.ops, compiled.program, target)
    return sorted(found, key=lambda t: "conv" not in t.name)


def random_candidates(task: Task, count: int, rng: random.Random) -> list[Candidate]:
    """Return the default and up to `count` - 1 others of the space `metaschedule`."""
    default = default_candidate(task)
    pool = Pool(task, load_space("metaschedule").sketches(task), rng, validate)
    pool.propose([default])
    return [default, *pool.draw(count - 1)]


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
            for task in model_tasks(options.model, target)[: options.tasks]:
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
