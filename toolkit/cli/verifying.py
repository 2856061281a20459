"""`nestling verify`: is what the C computes what the model means?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TYPE_CHECKING

import click

from toolkit.cli.console import Console
from toolkit.cli.options import (
    executor_option,
    integers_option,
    math_option,
    model_options,
    ModelRequest,
    output_options,
    place_options,
    threads_option,
    timeout_option,
)

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from toolkit.cli.work import Work
    from toolkit.pipeline import Compiled
    from toolkit.runners import BoardModel, BuiltModel, Cost
    from toolkit.samples import Accuracy
    from toolkit.verify import Check, NodeCheck, Range


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Tensors compared node by node, how many were `skipped` because the original model has none of
    that name, and where the kernel of the first that differs is: file, first and last line."""

    checks: tuple[NodeCheck, ...]
    skipped: int
    lines: tuple[str, int, int] | None


@click.command("verify", short_help="Check a model's C against expected outputs.")
@model_options
@click.option(
    "--input", "input_path", type=click.Path(path_type=Path), metavar="X.npz",
    help="Arrays in__NAME and out__NAME, axis 0 counting samples.",
)  # fmt: skip
@click.option("--per-node", is_flag=True, help="Name the first node whose output differs.")
@click.option(
    "--limit", "limits", multiple=True, metavar="NAME=VALUE",
    help="Fail over a limit: ram=18k flash=64k instructions=4.1M time=200us.",
)  # fmt: skip
@click.option(
    "--labels", "labels_path", type=click.Path(path_type=Path), metavar="L.npz",
    help="Labelled samples x, y: print how often the largest output is the label.",
)  # fmt: skip
@click.option(
    "--junit", type=click.Path(path_type=Path), metavar="X.xml", help="Write a JUnit report."
)
@place_options
@executor_option
@math_option
@integers_option
@threads_option
@timeout_option
@output_options
def verify_command(
    *,
    request: ModelRequest,
    input_path: Path | None,
    per_node: bool,
    limits: tuple[str, ...],
    labels_path: Path | None,
    junit: Path | None,
    board: str,
    target: str | None,
    executor: str,
    math: str,
    integers: bool,
    threads: int,
    timeout_s: float | None,
    console: Console,
    json_path: Path | None,
) -> int:
    """Compile MODEL, run it and compare its outputs with the expected ones.

    Expected outputs are the arrays out__NAME of --input; without them, onnxruntime (when installed)
    or the ONNX reference evaluator is asked (of a .tflite file LiteRT's reference kernels, when
    ai-edge-litert is installed), on the given or on random inputs. A float output is right when no
    element is off by more than 1e-4 of the largest magnitude expected of that output; integers and
    booleans must be equal, NaN and infinities must be where they are expected.

    In limits, k and M of sizes are 1024 and 1024*1024, of instructions 1000 and 1000000.

    Exit code: 0 right, 1 wrong or over a limit, 2 cannot be done.

    \b
    Examples:
      nestling verify digits.onnx
      nestling verify digits.onnx --input digits.npz --limit ram=16k --junit report.xml
      nestling verify digits.onnx --input digits.npz --board qemu_mps2_an386 --per-node
    """
    from toolkit.cli.work import (
        carried,
        compile_work,
        import_model,
        open_runner,
        place_of,
        stack_outputs,
    )
    from toolkit.samples import read_labelled
    from toolkit.verify import check_limit, compare, parse_limit, write_junit

    start = time.monotonic()
    bounds = [parse_limit(text) for text in limits]
    proto, works = import_model(request, console, input_path=input_path)
    found_parts: list[dict[str, np.ndarray]] = []
    expected_parts: list[dict[str, np.ndarray]] = []
    nodes: NodeReport | None = None
    cost: Cost | None = None
    accuracy: Accuracy | None = None
    who = ""
    for work in works:
        expected, who = expected_outputs(work, proto, console)
        options = place_of(
            board, target, executor=executor, math=math, integers=integers, threads=threads
        )
        compiled = compile_work(work, options, console)
        with open_runner(compiled, board, console, timeout_s=timeout_s) as runner:
            found: dict[str, np.ndarray] | None = None
            for index in range(work.samples.count):
                given = carried(work, index, found)
                given = {n: a for n, a in given.items() if n in compiled.inputs}
                if cost is None:
                    found, cost = runner.measure(given, 20 if bounds and board == "host" else 1)
                else:
                    found = runner.run(given)
                found_parts.append(found)
                expected_parts.append({n: a[index] for n, a in expected.items()})
            if labels_path is not None and accuracy is None:
                labelled = read_labelled(labels_path, compiled.inputs)
                with console.working(f"running {len(labelled.y)} labelled samples"):
                    accuracy = labelled.accuracy(runner.run)
            if per_node and nodes is None:
                expected_tensors = _every_tensor(request, work, proto, console)
                with _graph_form(work, compiled, runner, board, console, timeout_s) as stepped:
                    nodes = _per_node(work, compiled, stepped, expected_tensors, console)
    assert cost is not None
    found_all, expected_all = stack_outputs(found_parts), stack_outputs(expected_parts)
    checks = [compare(n, a, expected_all[n]) for n, a in found_all.items() if n in expected_all]
    kept = {s.output for work in works for s in work.model.states.values()}
    for name in found_all:
        if name not in expected_all and name not in kept:
            console.note(f"output {name!r} has no expected array out__{name}: not compared")
    over = [check_limit(bound, cost) for bound in bounds]
    ok = all(c.ok for c in checks) and all(c.ok for c in over)
    _print_checks(console, checks, len(found_parts), who)
    if accuracy is not None:
        share = f"{accuracy.share:.1%} ({accuracy.right:,} of {accuracy.count:,})"
        console.fact("accuracy", f"{share} on {labels_path}")
    for limit in over:
        console.result(limit.text, good=limit.ok)
    result: dict[str, Any] = {
        "ok": ok,
        "outputs": [c.as_json() for c in checks],
        "samples": len(found_parts),
        "expected_from": who,
        "limits": [{"limit": c.limit.text, "found": c.found, "ok": c.ok} for c in over],
        **cost.as_json(),
    }
    if accuracy is not None:
        result["accuracy"] = accuracy.share
    if nodes is not None:
        result["nodes"] = _print_nodes(console, nodes)
    if junit is not None:
        write_junit(junit, request.path.name, checks, over, time.monotonic() - start)
    console.json(json_path, result)
    return 0 if ok else 1


def expected_outputs(
    work: Work, proto: onnx.ModelProto | None, console: Console
) -> tuple[dict[str, np.ndarray], str]:
    """Return the expected outputs, stacked over samples, and where they come from."""
    from toolkit.cli.work import stack_outputs
    from toolkit.oracle import answers, litert_answers

    states = {s.output for s in work.model.states.values()}
    names = set(work.model.graph.outputs) - states
    known = {n: a for n, a in work.samples.expected.items() if n in names}
    if known:
        return known, work.samples.label
    if work.samples.expected:
        console.note(
            f"{work.samples.label} has no out__ array of this model's outputs "
            f"({', '.join(sorted(names))})"
        )
    with console.working("asking what the model should answer"):
        inputs = [oracle_inputs(work, proto, i) for i in range(work.samples.count)]
        if proto is None:
            who, parts = litert_answers(Path(str(work.model.source)), inputs)
        else:
            who, parts = answers(proto, str(work.model.source), inputs)
    return stack_outputs(parts), f"{who} on {work.samples.label}"


def oracle_inputs(work: Work, proto: onnx.ModelProto | None, index: int) -> dict[str, np.ndarray]:
    """Return the original model's inputs of one sample, pinned ones included."""
    import numpy as np

    inputs = work.samples.input(index)
    if proto is None:
        pinned = {n: np.asarray(v) for n, v in work.model.pins.items()}
        return {n: a for n, a in {**inputs, **pinned}.items() if n not in work.model.states}
    for name, value in work.model.pins.items():
        inputs[name] = _as_declared(proto, name, value)
    declared = {i.name for i in proto.graph.input}
    return {n: a for n, a in inputs.items() if n in declared}


def _as_declared(proto: onnx.ModelProto, name: str, value: np.ndarray) -> np.ndarray:
    import numpy as np
    from onnx import helper

    info = next(i for i in proto.graph.input if i.name == name)
    tensor = info.type.tensor_type
    array = np.asarray(value).astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    rank = len(tensor.shape.dim) if tensor.HasField("shape") else array.ndim
    return array.reshape((1,) * rank) if array.size == 1 else array


def _every_tensor(
    request: ModelRequest, work: Work, proto: onnx.ModelProto | None, console: Console
) -> dict[str, np.ndarray]:
    """Return what each tensor of the original model is on the first sample."""
    from toolkit.oracle import answers, litert_answers, with_all_outputs

    with console.working("asking what every node should answer"):
        first = [oracle_inputs(work, proto, 0)]
        if proto is None:
            _, expected = litert_answers(request.path, first, every_tensor=True)
        else:
            copy, names = with_all_outputs(request.path)
            _, expected = answers(copy, None, first, names)
    return expected[0]


@contextmanager
def _graph_form(
    work: Work,
    compiled: Compiled,
    runner: BuiltModel | BoardModel,
    board: str,
    console: Console,
    timeout_s: float | None,
) -> Iterator[BuiltModel | BoardModel]:
    """Yield what runs the model node by node: `runner`, or in its place one that has the nodes."""
    from toolkit.cli.work import open_runner
    from toolkit.pipeline import compile_model

    if compiled.options.executor == "graph":
        yield runner
        return
    runner.close()
    graph_form = compile_model(work.model, replace(compiled.options, executor="graph"))
    with open_runner(graph_form, board, console, timeout_s=timeout_s) as stepped:
        yield stepped


def _per_node(
    work: Work,
    compiled: Compiled,
    runner: BuiltModel | BoardModel,
    expected: dict[str, np.ndarray],
    console: Console,
) -> NodeReport:
    """Run the first sample node by node; compare each tensor with the original's."""
    from toolkit.ir.program import Call
    from toolkit.runners import BuiltModel
    from toolkit.verify import compare_board_nodes, compare_nodes, counterparts

    program = runner.compiled.program
    wanted = counterparts(program, expected)
    given = {n: a for n, a in work.samples.input(0).items() if n in compiled.inputs}
    with console.working("comparing node by node"):
        if isinstance(runner, BuiltModel):
            checks = compare_nodes(runner, given, wanted)
        else:
            checks = compare_board_nodes(runner, given, wanted)
    made = sum(len(s.outputs) for s in program.steps if isinstance(s, Call))
    bad = [n for n in checks if not n.check.ok]
    return NodeReport(
        tuple(checks),
        made - sum(map(len, wanted.values())),
        compiled.kernel_lines(bad[0].kernel) if bad else None,
    )


def _print_checks(console: Console, checks: list[Check], samples: int, who: str) -> None:
    bad = [c for c in checks if not c.ok]
    console.table(
        ["output", "max error", "of the largest", "equal", ""],
        [
            (c.name, f"{c.max_abs:.3g}" if c.max_lsb is None else f"{c.max_lsb} LSB",
             f"{c.max_rel:.2e}" if c.max_rel else "0", f"{c.equal:,} of {c.size:,}",
             "exact" if c.exact else ("ok" if c.ok else "WRONG"))
            for c in checks
        ],
        right=["max error", "of the largest", "equal"],
    )  # fmt: skip
    for c in bad:
        console.result(f"output {c.name}: {c.why}", good=False)
    count = f"{samples} sample{'s' * (samples > 1)}"
    if bad:
        what = f"{len(bad)} of {len(checks)} outputs"
        console.result(f"WRONG: {what}, {count}, against {who}", good=False)
    else:
        what = f"{len(checks)} output{'s' * (len(checks) > 1)}"
        console.result(f"right: {what}, {count}, against {who}", good=True)


def _print_nodes(console: Console, report: NodeReport) -> dict[str, Any]:
    nodes = report.checks
    bad = [n for n in nodes if not n.check.ok]
    if bad:
        assert report.lines is not None
        first, (file, start, stop) = bad[0], report.lines
        console.result(
            f"first to differ: tensor {first.check.name!r} of node {', '.join(first.nodes)} "
            f"(step {first.index}, kernel {first.kernel}, {file}:{start}-{stop}): "
            f"{first.check.why}; its values are {_span(first.found)}, expected "
            f"{_span(first.expected)}",
            good=False,
        )
    else:
        console.print(
            f"node by node: {len(nodes)} tensors compared, none differs; {report.skipped} are not "
            "in the original model"
        )
    if console.level > 0:
        for n in nodes:
            console.detail(
                f"{n.index:>4} {n.kernel}: {n.check.name} crc {n.crc:08x} {_span(n.found)} "
                f"{n.check.max_rel:.1e}"
            )
    return {
        "compared": len(nodes),
        "skipped": report.skipped,
        "differing": len(bad),
        "first": None if not bad or report.lines is None else {
            **bad[0].as_json(), "file": report.lines[0], "lines": list(report.lines[1:]),
        },
        "tensors": [n.as_json() for n in nodes],
    }  # fmt: skip


def _span(found: Range | None) -> str:
    return "none" if found is None else f"{found[0]:.6g}..{found[1]:.6g}"
