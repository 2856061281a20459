"""python -m benchmarks.memory [CORPUS]: every float model's arena beside the lower bound.

The bound is the largest sum of tensors alive at one step, which no placement can undercut.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from benchmarks.host import CORPUS, geometric_mean
from benchmarks.tables import number, table, write_json
from toolkit.errors import NestlingError
from toolkit.pins import load_for
from toolkit.pipeline import compile_model, load, Options
from toolkit.samples import read_samples


def measure(path: Path, target: str) -> dict[str, Any]:
    """Compile a model for the samples beside it, if there are some, and return its bytes."""
    recorded = path.with_name(path.name + ".npz")
    if recorded.is_file():
        proto = onnx.load(str(path), load_external_data=False)
        model = load_for(path, proto, read_samples(recorded), pins={})[0][0]
    else:
        model = load(path)
    compiled = compile_model(model, Options(target=target))
    program = compiled.program
    bound = max(program.lower_bound_bytes, 1)
    return {
        "model": path.name, "kernels": len(program.kernels), "weights_bytes": program.weights_bytes,
        "arena_bytes": program.arena_bytes, "lower_bound_bytes": program.lower_bound_bytes,
        "ratio": program.arena_bytes / bound,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a model could not be compiled."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("corpus", type=Path, nargs="?", default=CORPUS)
    parser.add_argument("--list", default="FLOAT.txt", help="names of models, in the corpus")
    parser.add_argument("--target", default="generic")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    found, refused = [], []
    for name in (args.corpus / args.list).read_text(encoding="utf-8").split():
        try:
            found.append(measure(args.corpus / name, args.target))
        except NestlingError as error:
            refused.append(f"{name}: {error}")
    print(f"target {args.target}, bytes")
    print(table(["model", "kernels", "weights", "arena", "lower bound", "ratio"], [
        [r["model"], str(r["kernels"]), f"{r['weights_bytes']:,}", f"{r['arena_bytes']:,}",
         f"{r['lower_bound_bytes']:,}", f"{r['ratio']:.3f}"]
        for r in found]))  # fmt: skip
    if found:
        ratios = [r["ratio"] for r in found]
        exact = sum(r <= 1.001 for r in ratios)
        print(f"at the bound within 0.1 %: {exact} of {len(ratios)}; geometric mean "
              f"{geometric_mean(ratios):.4f}, worst {number(max(ratios))}")  # fmt: skip
    for line in refused:
        print(line)
    write_json(args.json, {"target": args.target, "rows": found, "refused": refused})
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
