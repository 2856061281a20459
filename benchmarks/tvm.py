"""Tuning beside TVM's MetaSchedule: the same trials and cores, both timed in turns in one run.

python -m benchmarks.tvm --python VENV/bin/python --rows matmul_512,conv_3x3,ds_cnn

VENV has the extra `bench-tvm` and nothing else.  Both start from an empty database; nestling has
the cost model and the packs that ship, in which none of these kernels is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import models
from benchmarks.host import compile_row, relative_error
from benchmarks.tables import machine, number, table, write_json
from benchmarks.timing import interleave, Native, pinned, ratio, Side
from toolkit.runners import BuiltModel
from toolkit.search.packs import open_source

SIDE = Path(__file__).with_name("tvm_side.py")
TRIALS = {"model": 200}
"""By kind of row; kernels get `KERNEL_TRIALS`."""
KERNEL_TRIALS = 64


class Peer:
    """The process in which TVM runs."""

    def __init__(self, python: Path, log: Path, workers: int) -> None:
        self.log = log.open("w")
        self.process = subprocess.Popen(
            # Not with its folder on the path, where this module would be found as `tvm`.
            [python, "-P", SIDE, str(workers)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, "TVM_NUM_THREADS": "1"},  # of a kernel, whatever it may build with
        )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the reply to a request; raise where the process ended instead."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"TVM ended; see {self.log.name}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def pin(self, cores: Sequence[int]) -> None:
        """Keep the process, which may have tuned on more cores, to those of timing."""
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            os.sched_setaffinity(int(thread), cores)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.log.close()


def tune_ours(model: Path, trials: int, records: Path, target: str) -> tuple[float, int]:
    """Tune as a user does; return the seconds and the trials."""
    report = records.with_suffix(".json")
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "from toolkit.cli import main; main()", "tune", model, "-q",
         "--trials", str(trials), "--target", target, "--records", records, "--json", report],
        check=True, stdout=subprocess.DEVNULL,
        # No kernel that an earlier run built.
        env={**os.environ, "XDG_CACHE_HOME": str(records.with_suffix(".cache"))},
    )  # fmt: skip
    return time.perf_counter() - start, int(json.loads(report.read_text())["trials"])


def compare(row: models.Row, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tune one row with both, then time both in turns."""
    model = row.build()
    inputs = models.make_inputs(model)
    path = folder / f"{row.name}.onnx"
    onnx.save(model, path)
    trials = args.trials or TRIALS.get(row.kind, KERNEL_TRIALS)
    records = folder / f"{row.name}.records.db"
    seconds, ours_trials = tune_ours(path, trials, records, args.target)
    peer = Peer(args.python, folder / f"{row.name}.tvm.log", args.tvm_workers)
    try:
        tuned = peer.ask(
            op="tune", model=str(path), cpu=args.cpu, nhwc=row.name.startswith(("conv", "ds")),
            work_dir=str(folder / f"{row.name}.tvm"), trials=trials,
            per_task=args.per_task if row.kind == "model" else trials,
            inputs={n: a.ravel().tolist() for n, a in inputs.items()},
            shapes={n: list(a.shape) for n, a in inputs.items()},
        )  # fmt: skip
        compiled, _ = compile_row(row, args.target, records=(open_source(records),))
        place = folder / row.name
        place.mkdir()
        with BuiltModel(compiled, place, timeout_s=120) as built:
            found = list(built.run(inputs).values())
        error = relative_error([np.array(tuned["output"])], [found[0].ravel()])
        with pinned() as cores:
            peer.pin(cores)
            native = Native(folder, "wall")
            ours = Side("nestling", native.model(compiled, built.library, inputs).timed)
            theirs = Side("tvm", lambda n: list(peer.ask(op="time", runs=n)["seconds"]))
            interleave([ours, theirs], runs=args.runs, seconds=args.seconds)
    finally:
        peer.close()
    return {
        "row": row.name, "trials": ours_trials, "tvm_trials": tuned["trials"],
        "tune_s": seconds, "tvm_tune_s": tuned["seconds"], "tvm": tuned["tvm"],
        "us": ours.median * 1e6, "tvm_us": theirs.median * 1e6, "ratio": ratio(ours, theirs),
        "tune_ratio": seconds / tuned["seconds"], "error": error,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--python", type=Path, required=True, help="of the environment with TVM")
    parser.add_argument("--rows", default="matmul_512,conv_3x3,ds_cnn")
    parser.add_argument("--trials", type=int, help="of every row [64; 200 of models]")
    parser.add_argument("--per-task", type=int, default=20, help="TVM's most for a task of a model")
    parser.add_argument("--target", default="host")
    parser.add_argument("--cores", type=int, default=1, help="that both tune on [1]")
    parser.add_argument("--tvm-workers", type=int, default=1, help="that TVM builds with [1]")
    parser.add_argument("--cpu", default="znver4", help="LLVM's name of this core")
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--keep", type=Path, help="folder for databases and logs")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    results = []
    with tempfile.TemporaryDirectory(prefix="nestling_tvm_") as temporary, pinned(args.cores):
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in args.rows.split(","):
            results.append(compare(models.ROWS[name], args, folder))
            print(results[-1], file=sys.stderr)
    print(
        table(
            ["row", "trials", "TVM's", "tuned in s", "TVM in s", "ratio", "us", "TVM us", "ratio"],
            [
                [r["row"], str(r["trials"]), str(r["tvm_trials"]), number(r["tune_s"]),
                 number(r["tvm_tune_s"]), number(r["tune_ratio"]), number(r["us"]),
                 number(r["tvm_us"]), number(r["ratio"])]
                for r in results
            ],
        )
    )  # fmt: skip
    write_json(args.json, {**machine(), "tvm": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
