"""python -m benchmarks.compile_time: seconds and memory from ONNX to C, and then gcc's.

The bars: MobileNetV2 to C in under 10 s on one core, growing linearly with nodes; its weights as
text under 40 MB, compiled by gcc in under 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from benchmarks import models
from benchmarks.tables import machine, number, table, write_json
from benchmarks.timing import pinned
from toolkit.paths import RUNTIME_C
from toolkit.pipeline import compile_model, load, Options
from toolkit.targets.target import get_target
from toolkit.toolchain.compiler import find_compiler

BAR_COMPILE_S, BAR_WEIGHTS_S, BAR_WEIGHTS_MB = 10.0, 10.0, 40.0


def compile_here(path: Path, folder: Path, target: str, weights: str) -> dict[str, Any]:
    """Compile a model in this process and write its bundle; return seconds and memory."""
    wall, cpu = time.perf_counter(), time.process_time()
    model = load(path, name="model")
    loaded = time.process_time() - cpu
    compiled = compile_model(model, Options(target=target, weights=weights))
    generated = time.process_time() - cpu
    compiled.write(folder)
    return {
        "nodes": len(model.graph.nodes), "kernels": len(compiled.program.kernels),
        "import_s": loaded, "generate_s": generated - loaded,
        "write_s": time.process_time() - cpu - generated,
        "cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


def compile_apart(path: Path, folder: Path, target: str, weights: str) -> dict[str, Any]:
    """Do the same in a fresh process, whose peak memory is its own."""
    command = [sys.executable, "-m", "benchmarks.compile_time", "--one", str(path), str(folder),
               "--target", target, "--weights", weights]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def gcc_seconds(files: Sequence[Path], folder: Path, target: str) -> tuple[float, float]:
    """Compile C files to objects; return gcc's own seconds (user and system), and peak MB."""
    flags = ["-O3", *get_target(target).cflags, "-std=c99", "-c"]
    includes = [f"-I{folder / 'include'}", f"-I{folder / 'src'}", f"-I{RUNTIME_C / 'include'}"]
    seconds = peak = 0.0
    for file in files:
        out = folder / (file.stem + ".o")
        process = subprocess.Popen(
            [find_compiler().command, *flags, *includes, str(file), "-o", str(out)]
        )
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"gcc failed on {file}")
        seconds += usage.ru_utime + usage.ru_stime
        peak = max(peak, usage.ru_maxrss / 1024)
    return seconds, peak


def measure(depth: int, place: Path, target: str) -> dict[str, Any]:
    """Measure MobileNetV2 with its blocks repeated `depth` times as often."""
    path = place / f"depth{depth}.onnx"
    onnx.save(models.mobilenet_v2(depth=depth), str(path))
    folder = place / f"depth{depth}"
    result = {"depth": depth, **compile_apart(path, folder, target, "c")}
    sources = sorted((folder / "src").glob("*.c"))
    weights = [f for f in sources if f.stem.endswith("_weights")]
    others = [f for f in sources if f not in weights]
    result["weights_mb"] = sum(f.stat().st_size for f in weights) / 1e6
    result["weights_gcc_s"], result["weights_gcc_mb"] = gcc_seconds(weights, folder, target)
    result["code_kb"] = sum(f.stat().st_size for f in others) / 1e3
    result["code_gcc_s"], result["code_gcc_mb"] = gcc_seconds(others, folder, target)
    return result


def show(results: Sequence[dict[str, Any]]) -> str:
    """Return the table; growth is seconds per node over that of the first row."""
    head = ["depth", "nodes", "kernels", "import s", "generate s", "write s", "CPU s", "growth",
            "peak MB", "weights MB", "gcc s", "gcc MB", "code kB", "gcc s"]  # fmt: skip
    first = results[0]["cpu_s"] / results[0]["nodes"]
    return table(head, [
        [f"{r['depth']}x", str(r["nodes"]), str(r["kernels"]), number(r["import_s"], 2),
         number(r["generate_s"], 2), number(r["write_s"], 2), number(r["cpu_s"], 3),
         f"{r['cpu_s'] / r['nodes'] / first:.2f}", number(r["peak_mb"]), number(r["weights_mb"]),
         number(r["weights_gcc_s"], 2), number(r["weights_gcc_mb"]), number(r["code_kb"]),
         number(r["code_gcc_s"], 3)]
        for r in results])  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time", description=__doc__)
    parser.add_argument("--depths", default="1,2,4")
    parser.add_argument("--target", default="host")
    parser.add_argument("--weights", default="c")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--one", type=Path, nargs=2, metavar=("MODEL", "DIR"),
                        help="only compile MODEL to DIR and print JSON")  # fmt: skip
    args = parser.parse_args(argv)
    if args.one is not None:
        model, folder = args.one
        print(json.dumps(compile_here(model, folder, args.target, args.weights)))
        return 0
    about, results = machine(), []
    with pinned(), tempfile.TemporaryDirectory(prefix="nestling-compile-") as place:
        for depth in args.depths.split(","):
            results.append(measure(int(depth), Path(place), args.target))
    print(f"{about['processor']}, load {about['load']:.1f}, one core, CPU seconds; MobileNetV2 224")
    print(show(results))
    one = results[0]
    bars = [
        (f"to C in under {BAR_COMPILE_S:g} s", one["cpu_s"] < BAR_COMPILE_S),
        (f"weights under {BAR_WEIGHTS_MB:g} MB", one["weights_mb"] < BAR_WEIGHTS_MB),
        (f"gcc takes them in under {BAR_WEIGHTS_S:g} s", one["weights_gcc_s"] < BAR_WEIGHTS_S),
    ]
    for what, met in bars:
        print(f"{what}: {'met' if met else 'MISSED'}")
    write_json(args.json, {"machine": about, "target": args.target, "rows": results})
    return 0 if all(met for _, met in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
