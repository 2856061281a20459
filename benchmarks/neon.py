"""python -m benchmarks.neon: exact instructions of float kernels on AArch64, in QEMU user mode.

A TCG plugin of our own (count.c) counts what a program executes that runs the model once or twice;
what a run costs is the difference.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks import models
from benchmarks.host import relative_error
from benchmarks.tables import number, table, write_json
from toolkit.errors import NestlingError
from toolkit.oracle import answers
from toolkit.pipeline import compile_model, Compiled, load, Options
from toolkit.toolchain.compiler import run_compiler

HERE = Path(__file__).parent
ROWS = ("conv_3x3", "conv_1x1", "depthwise_3x3", "matmul_256", "ds_cnn")
BARS = {"conv_3x3": 0.40}
"""What we promise, in instructions per multiply-add, of the direct form."""
TOOLS = {"aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu", "qemu-aarch64": "qemu-user"}
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Result:
    """A row of the table."""

    name: str
    title: str
    macs: int
    instructions: int
    per_mac: float
    error: float
    bar: float | None


class Counter:
    """A model built for AArch64, and the plugin that counts.  Lives in one folder."""

    def __init__(self, compiled: Compiled, folder: Path) -> None:
        self.compiled, self.folder = compiled, folder
        self.plugin, self.program = folder / "count.so", folder / "model"
        run_compiler(
            ["gcc", "-O2", "-shared", "-fPIC", str(HERE / "count.c"), "-o", str(self.plugin)]
        )
        compiled.write_library(folder / "lib")
        sources = sorted((folder / "lib" / "src").glob("*.c"))
        run_compiler([
            "aarch64-linux-gnu-gcc", "-std=c99", "-O3", *compiled.target.cflags, "-static",
            f"-DNB_RUN={compiled.name}_run", f"-DNB_ARENA={compiled.arena_bytes}",
            f"-I{folder / 'lib' / 'include'}", str(HERE / "count_main.c"), *map(str, sources),
            "-o", str(self.program), "-lm",
        ])  # fmt: skip

    def run(self, runs: int, arena: bytes) -> tuple[int, bytes]:
        """Run the model in an arena; return the instructions of the program, and the arena."""
        before, after = self.folder / "before.bin", self.folder / "after.bin"
        counted = self.folder / "counted"
        before.write_bytes(arena)
        done = subprocess.run(
            ["qemu-aarch64", "-plugin", f"{self.plugin},out={counted}", str(self.program),
             str(runs), str(before), str(after)],
            capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
        if done.returncode != 0:
            raise NestlingError(
                f"{self.compiled.name} on AArch64 answered status {done.returncode}.",
                state=done.stderr.splitlines()[:5],
            )
        return int(counted.read_text()), after.read_bytes()


def measure_row(row: models.Row, folder: Path, *, exact: bool) -> Result:
    """Compile a row for AArch64, count the instructions of a run, and check what it answers."""
    model = models.build(row.name)
    inputs = models.make_inputs(model)
    options = Options(executor="aot", weights="c", target="aarch64", exact=exact)
    compiled = compile_model(load(model, name=row.name), options)
    counter = Counter(compiled, folder)
    arena = bytearray(compiled.arena_bytes)
    for name in compiled.program.inputs:
        at, data = compiled.program.offsets[name], np.ascontiguousarray(inputs[name]).tobytes()
        arena[at : at + len(data)] = data
    once, after = counter.run(1, bytes(arena))
    twice, _ = counter.run(2, bytes(arena))
    found = []
    for name, kind in zip(compiled.program.outputs, compiled.outputs.values(), strict=True):
        at = compiled.program.offsets[name]
        found.append(np.frombuffer(after, kind.dtype, kind.size, at).reshape(kind.shape))
    _, (wanted,) = answers(model, None, [inputs])
    count = twice - once
    return Result(
        row.name, row.title, row.macs, count, count / row.macs,
        relative_error(found, list(wanted.values())), BARS.get(row.name),
    )  # fmt: skip


def show(results: Sequence[Result]) -> str:
    """Return the table."""

    def against(r: Result) -> str:
        if r.bar is None:
            return "-"
        return f"{r.bar:.2f} {'met' if r.per_mac <= r.bar else 'MISSED'}"

    head = ["row", "MMAC", "M instructions", "per MAC", "bar", "error"]
    return table(head, [
        [r.title, number(r.macs / 1e6), f"{r.instructions / 1e6:.3f}", f"{r.per_mac:.3f}",
         against(r), f"{r.error:.0e}"]
        for r in results])  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a result is wrong or a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neon", description=__doc__)
    parser.add_argument("--rows", help=f"names with commas [{','.join(ROWS)}]")
    parser.add_argument("--fast", action="store_true",
                        help="also algorithms that round otherwise, as Winograd's")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is not here: apt-get install {package}")
    results, failed = [], False
    for row in models.pick(args.rows, ROWS):
        with tempfile.TemporaryDirectory(prefix="nestling-neon-") as folder:
            try:
                results.append(measure_row(row, Path(folder), exact=not args.fast))
            except NestlingError as error:
                print(f"{row.name}: {error}")
                failed = True
    print(show(results))
    write_json(args.json, {"rows": [asdict(r) for r in results]})
    wrong = [r.name for r in results if not r.error <= 1e-4]
    missed = [r.name for r in results if r.bar is not None and r.per_mac > r.bar]
    if wrong:
        print(f"WRONG beyond 1e-4: {', '.join(wrong)}")
    return 1 if wrong or missed or failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
