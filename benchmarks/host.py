"""python -m benchmarks.host: time beside other runtimes, in turns: one thread, or --threads."""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models
from benchmarks.peers import Conditions, NotHereError, Opened, Peer, PEERS
from benchmarks.plot import write_bars
from benchmarks.tables import machine, number, table, write_json
from benchmarks.timing import Clock, interleave, Native, NativeModel, pinned, ratio, Side
from toolkit.errors import NestlingError
from toolkit.ir.program import Call
from toolkit.pipeline import compile_model, Compiled, load, Options
from toolkit.runners import build_host, BuiltModel
from toolkit.samples import read_samples
from toolkit.search.packs import open_source, TraceSource
from toolkit.targets.target import get_target
from toolkit.toolchain.parallel import PARALLEL

REPO = Path(__file__).resolve().parents[1]
CORPUS = REPO.parent / "shared" / "corpus"


@dataclass(slots=True)
class PeerResult:
    """A peer's times of a row in microseconds; `ratio` is ours / peer.  `note` says why not.

    `speed_up`: its time with one thread, over that with several.
    """

    median_us: float | None = None
    min_us: float | None = None
    ratio: float | None = None
    ratio_of_minima: float | None = None
    speed_up: float | None = None
    note: str = ""


@dataclass(slots=True)
class Result:
    """A row of the table.  `error`: largest difference / largest magnitude of the reference.

    `speed_up`: our time with one thread, over that with several.
    """

    name: str
    title: str
    kind: str
    macs: int
    compile_s: float = 0.0
    error: float | None = None
    median_us: float = 0.0
    min_us: float = 0.0
    gflops: float = 0.0
    peak_gflops: float = 0.0
    percent_of_peak: float = 0.0
    runs: int = 0
    arena_bytes: int = 0
    speed_up: float | None = None
    peers: dict[str, PeerResult] = field(default_factory=dict)
    profile: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says about measuring."""

    target: str
    executor: str
    runs: int
    seconds: float
    clock: Clock
    corpus: Path | None
    profile: bool
    keep: Path | None
    threads: int = 1
    parallel: str = "port"
    records: tuple[TraceSource, ...] = ()


def relative_error(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """Return the largest difference of any output over the largest magnitude of what is wanted."""
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        a, b = a.astype(np.float64), b.astype(np.float64)
        worst = max(worst, float(np.abs(a - b).max()) / max(float(np.abs(b).max()), 1e-30))
    return worst


def sample_error(built: BuiltModel, file: Path) -> float:
    """Return the largest `relative_error` on the samples that lie beside a model's file."""
    samples, worst = read_samples(Path(f"{file}.npz")), 0.0
    for index in range(samples.count):
        found = built.run(samples.input(index))
        wanted = {n: samples.expected[n][index] for n in found}
        worst = max(worst, relative_error(list(found.values()), list(wanted.values())))
    return worst


def compile_row(
    row: models.Row,
    target: str,
    executor: str = "aot",
    threads: int = 1,
    parallel: str = "port",
    records: Sequence[TraceSource] = (),
) -> tuple[Compiled, float]:
    """Compile a row's model; return it and the seconds that took.

    `records`: where tuned schedules are looked up; none for the default ones.
    """
    model = row.file or row.build()
    start = time.perf_counter()
    options = Options(
        executor=executor, weights="incbin", target=target, threads=threads, parallel=parallel,
        integers=row.file is not None,
    )  # fmt: skip
    compiled = compile_model(load(model, name=row.name, records=records), options)
    return compiled, time.perf_counter() - start


def measure_row(
    row: models.Row, peers: Sequence[Peer], native: Native, settings: Settings, folder: Path
) -> Result:
    """Compile, build, check and time one row."""
    result = Result(row.name, row.title, row.kind, row.macs)
    model, target = row.build(), get_target(settings.target)
    inputs = models.make_inputs(model)
    compiled, result.compile_s = compile_row(
        row, settings.target, settings.executor, settings.threads, settings.parallel,
        settings.records,
    )  # fmt: skip
    result.arena_bytes = compiled.arena_bytes
    place = (settings.keep or folder) / row.name
    place.mkdir(parents=True, exist_ok=True)
    opened: dict[str, Opened] = {}
    alone: dict[str, Side] = {}
    """With one thread, to be compared with several."""
    how = Conditions(settings.threads, settings.clock, settings.corpus)
    for peer in peers:
        result.peers[peer.name] = PeerResult()
        try:
            opened[peer.name] = peer.open(row, model, inputs, how)
            if settings.threads > 1:
                single = peer.open(row, model, inputs, replace(how, threads=1))
                alone[peer.name] = Side(f"{peer.name} alone", single.timed)
            result.peers[peer.name].note = opened[peer.name].note
        except NotHereError as error:
            result.peers[peer.name].note = str(error)
    # A TFLite file names its inputs otherwise.
    given = dict(zip(compiled.inputs, inputs.values(), strict=True))
    with BuiltModel(compiled, place, timeout_s=120) as built:
        found = list(built.run(given).values())
        reference = opened.get("onnxruntime") or next(
            (o for o in opened.values() if o.outputs is not None), None
        )
        if row.file is not None:
            result.error = sample_error(built, row.file)
        elif reference is not None and reference.outputs is not None:
            result.error = relative_error(found, reference.outputs)
    loaded = native.model(compiled, built.library, given)
    if settings.profile:
        result.profile = profile_lines(loaded, models.node_macs(model))
    lanes = target.isa.lanes("float32")
    isa = {16: "avx512", 8: "avx2"}.get(lanes, "plain")
    if row.file is not None and target.isa.name == "avx512vnni":
        isa = target.isa.name
    peak_timed, peak_flop = native.peak(isa)
    ours, peak = Side("ours", loaded.timed), Side("peak", peak_timed)
    others = {name: Side(name, o.timed) for name, o in opened.items()}
    if settings.threads > 1:
        single_thread, _ = compile_row(
            row, settings.target, settings.executor, records=settings.records
        )
        place = place / "alone"
        place.mkdir()
        library = build_host(single_thread, place)
        alone["ours"] = Side("ours alone", native.model(single_thread, library, given).timed)
    interleave(
        [peak, ours, *others.values(), *alone.values()],
        runs=settings.runs,
        seconds=settings.seconds,
    )
    result.runs = len(ours.times)
    result.median_us, result.min_us = ours.median * 1e6, ours.least * 1e6
    result.peak_gflops = peak_flop / peak.least * 1e-9
    result.gflops = 2 * row.macs / ours.median * 1e-9
    rounds = (
        2 * row.macs / statistics.median(a) / (peak_flop / statistics.median(b))
        for a, b in zip(ours.turns, peak.turns, strict=True)
    )
    result.percent_of_peak = 100 * statistics.median(rounds) / settings.threads
    result.speed_up = ratio(alone["ours"], ours) if alone else None
    for name, side in others.items():
        at = result.peers[name]
        at.speed_up = ratio(alone[name], side) if name in alone else None
        at.median_us, at.min_us = side.median * 1e6, side.least * 1e6
        at.ratio, at.ratio_of_minima = ratio(ours, side), ours.least / side.least
    return result


def profile_lines(loaded: NativeModel, macs: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the kernels' least microseconds and multiply-adds, summed over calls, dear first."""
    loaded.timed(1)
    runs = max(5, min(200, int(0.5 / loaded.timed(1)[0])))
    lines: dict[str, dict[str, Any]] = {}
    for step, seconds in zip(loaded.compiled.program.steps, loaded.profile(runs), strict=True):
        if not isinstance(step, Call) or seconds > 1e6:
            continue
        empty = {"kernel": step.kernel, "calls": 0, "us": 0.0, "macs": 0, "nodes": []}
        line = lines.setdefault(step.kernel, empty)
        line["calls"] += 1
        line["us"] += seconds * 1e6
        line["macs"] += sum(macs.get(n, 0) for n in step.nodes)
        line["nodes"] += step.nodes
    return sorted(lines.values(), key=lambda l: -float(l["us"]))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


def means(results: Sequence[Result], peers: Sequence[Peer]) -> dict[str, float]:
    """Return for each peer the geometric mean of our ratio over the model rows it ran."""
    found = {}
    for peer in peers:
        ratios = [r.peers[peer.name].ratio for r in results if r.kind == "model"]
        known = [x for x in ratios if x is not None]
        if known:
            found[peer.name] = geometric_mean(known)
    return found


def notes(results: Sequence[Result]) -> dict[str, list[str]]:
    """Return what is to be said about peers, and the rows it is said of."""
    found: dict[str, list[str]] = {}
    for r in results:
        for name, p in r.peers.items():
            if p.note:
                found.setdefault(f"{name}: {p.note}", []).append(r.name)
    return found


def show(results: Sequence[Result], peers: Sequence[Peer]) -> str:
    """Return the table."""
    head = ["row", "MMAC", "ours us", "min", "error"]
    several = any(r.speed_up is not None for r in results)
    head += ["speed-up"] * several
    for peer in peers:
        head += [f"{peer.short} us", "min", "ratio", "of min", *["speed-up"] * several]
    head += ["GOP/s", "% peak"]
    lines = []
    for r in results:
        line = [r.title, number(r.macs / 1e6), number(r.median_us, 4), number(r.min_us, 4),
                "n/a" if r.error is None else f"{r.error:.0e}",
                *[number(r.speed_up)] * several]  # fmt: skip
        for peer in peers:
            p = r.peers[peer.name]
            line += [number(p.median_us, 4), number(p.min_us, 4), number(p.ratio),
                     number(p.ratio_of_minima), *[number(p.speed_up)] * several]  # fmt: skip
        lines.append([*line, number(r.gflops), number(r.percent_of_peak)])
    return table(head, lines)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host", description=__doc__)
    parser.add_argument("--rows", help="names with commas [all]: " + ", ".join(models.ROWS))
    parser.add_argument(
        "--int8", action="store_true",
        help="the quantised models of the corpus instead, in integers: kws_int8, kws_int8_tflite, "
        "vww_int8, ic_int8, ad_int8, ...",
    )  # fmt: skip
    parser.add_argument("--vs", default="onnxruntime", help=f"with commas: {', '.join(PEERS)}")
    parser.add_argument("--target", default="host", help="host, x86-64-v3, ... [host]")
    parser.add_argument(
        "--records", type=Path, metavar="DB", help="tuned schedules [none: the default ones]"
    )
    parser.add_argument(
        "--write", type=Path, metavar="DIR", help="write the rows' models there, and stop"
    )
    parser.add_argument("--executor", default="aot", choices=("aot", "graph"))
    parser.add_argument("--runs", type=int, default=1000, help="runs of each side [1000]")
    parser.add_argument("--seconds", type=float, default=6, help="limit for one row [6]")
    parser.add_argument("--clock", default="wall", choices=("wall", "cpu"),
                        help="cpu: time of the process alone, for a busy machine")  # fmt: skip
    parser.add_argument(
        "--threads", type=int, default=1,
        help="of ours and of the peers; more than one are compared with one too [1]",
    )  # fmt: skip
    parser.add_argument("--parallel", default="port", choices=tuple(PARALLEL),
                        help="what runs our threads [port: POSIX threads of our own]")  # fmt: skip
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="holds .tflite twins")
    parser.add_argument(
        "--profile", action="store_true", help="also the costliest kernels (--executor graph)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep generated C and libraries")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    return parser.parse_args(argv)


def installed(names: str) -> list[Peer]:
    """Return the peers asked for that are installed; say how to install the others."""
    peers = []
    for name in filter(None, (n.strip() for n in names.split(","))):
        if name not in PEERS:
            raise SystemExit(f"--vs {name}: unknown; known: {', '.join(PEERS)}")
        peer = PEERS[name]
        if peer.version is None:
            print(f"{name} is not installed: pip install {peer.package}, or all: '.[bench]'")
        else:
            peers.append(peer)
    return peers


def run(
    args: argparse.Namespace, rows: Sequence[models.Row], peers: Sequence[Peer],
    settings: Settings, cores: Sequence[int], about: Mapping[str, Any],
) -> list[Result]:  # fmt: skip
    """Measure all rows, and say so row by row."""
    results: list[Result] = []
    versions = ", ".join(f"{p.name} {p.version}" for p in peers)
    pins = ", ".join(map(str, cores))
    print(f"{about['processor']}, core {pins}, load {about['load']:.1f}; {args.clock} clock")
    print(f"target {args.target}, threads {args.threads}; {versions}")
    with tempfile.TemporaryDirectory(prefix="nestling-bench-") as folder:
        native = Native(Path(folder), args.clock)
        for row in rows:
            try:
                results.append(measure_row(row, peers, native, settings, Path(folder)))
            except NestlingError as error:
                print(f"{row.name}: {error}")
                continue
            r = results[-1]
            shown = ", ".join(f"{n} {number(p.ratio)}" for n, p in r.peers.items())
            print(f"  {row.name}: {number(r.median_us, 4)} us; {shown}", flush=True)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a result is wrong."""
    args = arguments(argv)
    known = models.int8_rows(args.corpus) if args.int8 else models.ROWS
    rows, peers = models.pick(args.rows, rows=known), installed(args.vs)
    executor = "graph" if args.profile else args.executor
    settings = Settings(args.target, executor, args.runs, args.seconds, args.clock,
                        args.corpus, args.profile, args.keep, args.threads,
                        args.parallel,
                        (open_source(args.records),) if args.records else ())  # fmt: skip
    if args.write is not None:
        args.write.mkdir(parents=True, exist_ok=True)
        for row in rows:
            (args.write / f"{row.name}.onnx").write_bytes(row.build().SerializeToString())
        return 0
    if args.threads > 1 and args.clock == "cpu":
        raise SystemExit("--threads: the clock of the process counts one thread: --clock wall")
    about = machine()
    with pinned(args.threads) as cores:
        results = run(args, rows, peers, settings, cores, about)
    print("\n" + show(results, peers))
    averages = means(results, peers)
    for name, mean in averages.items():
        print(f"geometric mean of the model rows, ours / {name}: {mean:.3f}")
    if results:
        peak = statistics.median(r.peak_gflops for r in results)
        print(f"measured peak: {peak:.1f} {'GOP/s' if args.int8 else 'GFLOP/s'}")
    for note, of in notes(results).items():
        print(f"{note}: {', '.join(of)}")
    for r in results:
        if r.profile:
            print(f"\n{r.name}, costliest kernels:")
            total = sum(c["us"] for c in r.profile)
            print(table(["kernel", "calls", "us", "%", "MMAC", "GFLOP/s", "nodes"], [
                [c["kernel"], str(c["calls"]), number(c["us"], 4), number(100 * c["us"] / total, 2),
                 number(c["macs"] / 1e6), number(2e-3 * c["macs"] / c["us"]),
                 ", ".join(c["nodes"])[:50]]
                for c in r.profile[:12]]))  # fmt: skip
    write_json(args.json, {
        "machine": about, "clock": args.clock, "target": args.target, "threads": args.threads,
        "peers": {p.name: p.version for p in peers}, "geometric_means": averages,
        "rows": [asdict(r) for r in results]})  # fmt: skip
    if args.svg is not None:
        write_bars(args.svg, results, peers)
    wrong = [r.name for r in results if r.error is not None and not r.error <= 1e-4]
    if wrong:
        print(f"WRONG beyond 1e-4: {', '.join(wrong)}")
    return 1 if wrong or len(results) < len(rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
