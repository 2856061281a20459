"""`nestling bench`: how fast, beside another runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from toolkit.cli.console import Console
from toolkit.cli.options import (
    executor_option,
    integers_option,
    math_option,
    model_options,
    ModelRequest,
    output_options,
    threads_option,
)


@click.command("bench", short_help="Time a model's C beside another runtime.")
@model_options
@click.option(
    "--vs", "peers", metavar="PEER,...",
    help="The runtimes to compare with: onnxruntime, openvino, litert [default: onnxruntime, of a "
    ".tflite file litert].",
)  # fmt: skip
@click.option(
    "--input", "input_path", type=click.Path(path_type=Path), metavar="X.npz",
    help="Arrays in__NAME; the first sample is used [default: random inputs].",
)  # fmt: skip
@click.option(
    "--runs", type=click.IntRange(1), default=1000, show_default=True, metavar="N",
    help="Runs of each runtime that are timed.",
)  # fmt: skip
@click.option("--target", metavar="T", help="Kind of core that code is for [default: host].")
@executor_option
@math_option
@integers_option
@threads_option
@output_options
def bench_command(
    *,
    request: ModelRequest,
    peers: str | None,
    input_path: Path | None,
    runs: int,
    target: str | None,
    executor: str,
    math: str,
    integers: bool,
    threads: int,
    console: Console,
    json_path: Path | None,
) -> int:
    """Time MODEL as C and in another runtime, by turns, each with one thread, or with --threads.

    The outputs are compared first, with what `nestling verify` compares them with: a fast wrong
    answer is exit code 1.

    \b
    Examples:
      nestling bench digits.onnx --vs onnxruntime --input digits.npz --json bench.json
      nestling bench kws.tflite --vs litert,openvino
    """
    from toolkit.bench import compare_speed, default_peer, PEERS
    from toolkit.cli.verifying import expected_outputs, oracle_inputs
    from toolkit.cli.work import compile_work, import_model, place_of
    from toolkit.errors import NestlingError
    from toolkit.runners import BuiltModel
    from toolkit.verify import compare

    proto, works = import_model(request, console, input_path=input_path)
    names = [n.strip() for n in (peers or default_peer(proto)).split(",") if n.strip()]
    for name in names:
        if name not in PEERS:
            raise NestlingError(f"--vs {name}: is unknown; known are: {', '.join(PEERS)}.")
    work = replace(works[0], samples=works[0].samples.take([0]))
    options = place_of(
        "host", target, executor=executor, math=math, integers=integers, threads=threads
    )
    compiled = compile_work(work, options, console)
    given = {n: a for n, a in work.samples.input(0).items() if n in compiled.inputs}
    opened = [
        PEERS[name](proto, str(request.path), oracle_inputs(work, proto, 0), threads)
        for name in names
    ]
    expected, who = expected_outputs(work, proto, console)
    results, rows = [], []
    with BuiltModel(compiled) as built:
        found = built.run(given)
        checks = [compare(n, found[n], a[0]) for n, a in expected.items() if n in found]
        wrong = [f"{c.name}: differs from {who}: {c.why}" for c in checks if not c.ok]
        for name, peer in zip(names, opened, strict=True):
            with console.working(f"timing beside {name}"):
                done = compare_speed(built, peer, given, runs=runs)
            rows.append((f"{name} {done.version}", f"{done.ours_us:,.2f}", f"{done.peer_us:,.2f}",
                         f"{done.ratio:.2f}"))  # fmt: skip
            results.append(
                {
                    "peer": name, "version": done.version, "ours_us": done.ours_us,
                    "peer_us": done.peer_us, "ratio": done.ratio, "ours_runs": done.ours_runs,
                    "peer_runs": done.peer_runs,
                }
            )  # fmt: skip
    console.table(
        ["beside", "ours, us", "peer, us", "ours / peer"], rows,
        right=["ours, us", "peer, us", "ours / peer"],
    )  # fmt: skip
    for line in wrong:
        console.result(f"WRONG: {line}", good=False)
    first = {k: results[0][k] for k in ("ours_us", "peer_us", "ratio")} if results else {}
    console.json(json_path, {"ok": not wrong, **first, "peers": results})
    return 1 if wrong else 0
