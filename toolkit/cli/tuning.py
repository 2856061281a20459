"""`nestling tune`: search and measure the schedules of a model's kernels."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolkit.cli.console import Console
from toolkit.cli.farm import need_dask, tls_option
from toolkit.cli.options import import_options, ImportRequest, output_options, place_options
from toolkit.errors import NestlingError

if TYPE_CHECKING:
    from toolkit.tuner.models import Outcome


def _list_strategies(context: click.Context, _: click.Parameter, name: str) -> str:
    """Answer `--strategy help` before anything else is asked for."""
    if name == "help":
        from toolkit.search.strategies import STRATEGIES

        for known, strategy in STRATEGIES.items():
            says = (strategy.__doc__ or "").splitlines()[0]
            click.echo(f"{known:<14}{says}")
        context.exit(0)
    return name


@click.command("tune", short_help="Make a model faster by search and measurement.")
@click.argument(
    "models", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="MODEL..."
)
@import_options
@click.option("--trials", type=click.IntRange(1), metavar="N", help="Trials in all, at most.")
@click.option(
    "--budget", metavar="TIME",
    help="Time in all, at most: 90s, 10min, 1h [default: 10min, unless --trials is given].",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="S",
              help="Seed of every choice.")  # fmt: skip
@click.option("--strategy", default="evolutionary", show_default=True, metavar="NAME",
              is_eager=True, callback=_list_strategies,
              help="How schedules to try are found; `--strategy help` lists them.")  # fmt: skip
@click.option(
    "--space", "space_name", default="metaschedule", show_default=True, metavar="NAME|FILE",
    help="Which schedules there are to find: metaschedule, ansor, autotvm, or a Python file of "
    "templates, rules or modules.",
)  # fmt: skip
@click.option("--module", "modules", type=click.Path(path_type=Path), multiple=True, metavar="FILE",
              help="Python file of schedule programs of yours, before the space's.")  # fmt: skip
@click.option(
    "--goal", default="sum", show_default=True, metavar="GOAL",
    help="What is minimised over several models: sum, geomean, early-stop, or "
    "deadline:NAME=5ms,NAME=20ms.",
)  # fmt: skip
@click.option(
    "--objective", default="latency", show_default=True, metavar="NAME",
    help="What is sought: latency, ram, flash, or pareto: the fastest is chosen, and all that are "
    "best in some way are listed for `compile --point`.",
)  # fmt: skip
@click.option("--ram", metavar="BYTES", help="Most RAM the arena may take: 64k, 1.5M.")
@click.option("--flash", metavar="BYTES", help="Most flash kernels and weights may take: 256k.")
@click.option("--scheduler", default="gradient", show_default=True, metavar="NAME",
              help="Which kernel is next: gradient (most to gain) or round-robin.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 256), default=16, show_default=True, metavar="N",
              help="Trials of a round, all of one kernel.")  # fmt: skip
@click.option(
    "--shipped-model/--no-shipped-model", default=True, show_default=True,
    help="Start from the cost model that nestling ships for this kind of core.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, metavar="N",
              help="Compiler processes at a time.")  # fmt: skip
@click.option(
    "--records", type=click.Path(path_type=Path), metavar="DB",
    help="Database of trials [default: NAME.records.db beside the first MODEL].",
)  # fmt: skip
@click.option(
    "--input", "input_path", type=click.Path(path_type=Path), metavar="X.npz",
    help="Arrays in__NAME for the comparison at the end [default: random inputs].",
)  # fmt: skip
@click.option(
    "--report", "report_path", type=click.Path(path_type=Path), metavar="FILE",
    help="Also write an HTML page about the run, as `nestling report` does.",
)  # fmt: skip
@click.option(
    "--farm", "farm_path", type=click.Path(path_type=Path), metavar="FARM.toml",
    help="Measure on the boards of this file, all of the kind of --board at once.",
)  # fmt: skip
@click.option(
    "--dask", "scheduler_address", metavar="URL",
    help="Measure on the boards of a lab: a Dask scheduler that has `nestling farm worker`s.",
)  # fmt: skip
@tls_option
@place_options
@output_options
def tune_command(
    *,
    models: tuple[Path, ...],
    imports: ImportRequest,
    trials: int | None,
    budget: str | None,
    seed: int,
    strategy: str,
    space_name: str,
    modules: tuple[Path, ...],
    goal: str,
    objective: str,
    ram: str | None,
    flash: str | None,
    scheduler: str,
    batch: int,
    jobs: int,
    shipped_model: bool,
    records: Path | None,
    input_path: Path | None,
    report_path: Path | None,
    farm_path: Path | None,
    scheduler_address: str | None,
    tls_folder: Path | None,
    board: str,
    target: str | None,
    console: Console,
    json_path: Path | None,
) -> int:
    """Search the schedules of MODEL's kernels, measured here or on a board.

    A trial is one schedule of one kernel: built, checked and measured. All are kept in the
    records, from which `compile`, `run`, `verify` and `bench` then take the best. A run that was
    stopped goes on when the same command is given again. What comes out is never slower: at the
    end tuned and default kernels, and whole models, are measured side by side, and the better
    ones are kept.

    MODEL is an .onnx or .tflite file, or FILE.py:NAME, a compute expression in a Python file.

    \b
    Examples:
      nestling tune kws.onnx --budget 10min
      nestling tune kws.onnx --board nucleo_f446re@/dev/ttyACM0 --trials 300
      nestling tune a.onnx b.onnx --goal deadline:a=5ms,b=20ms
      nestling tune kws.onnx --board qemu_mps2_an386 --farm farm.toml
    """
    from toolkit.cli.report import write_report
    from toolkit.cli.tuning_view import make_view
    from toolkit.cli.work import compile_work, import_works, place_of
    from toolkit.packaging.write import check_place
    from toolkit.search.cost_model import BoostedTrees
    from toolkit.search.goals import parse_seconds
    from toolkit.search.pretrained import pretrained
    from toolkit.space.spaces import load_space
    from toolkit.space.validate import validate
    from toolkit.targets.target import get_target
    from toolkit.tuner.measurers import FarmRequest, machine_of, open_measurer
    from toolkit.tuner.models import tune
    from toolkit.tuner.run import TuneSettings
    from toolkit.verify import BYTES, parse_quantity

    ram_bytes = None if ram is None else parse_quantity(ram, BYTES, "--ram")
    flash_bytes = None if flash is None else parse_quantity(flash, BYTES, "--flash")
    if report_path is not None:
        check_place(report_path)
    if farm_path is not None and scheduler_address is not None:
        raise NestlingError("--farm and --dask: a farm is here or elsewhere, not both.")
    farm = None
    if farm_path is not None or scheduler_address is not None:
        need_dask()
        farm = FarmRequest(farm_path, scheduler_address, tls_folder, console.note)
    settings = TuneSettings(
        trials=trials,
        budget_s=parse_seconds(budget, "--budget") if budget else (None if trials else 600.0),
        seed=seed,
        strategy=strategy,
        scheduler=scheduler,
        batch=batch,
    )
    space = load_space(space_name, modules)
    # Here the assembler takes weights in at once; a C compiler takes seconds for 10 MB.
    options = place_of(board, target, weights="incbin" if board == "host" else "c")
    works = {}
    for path in models:
        # Without its records: tuning starts from the default schedules.
        request = imports.of(path, use_records=False)
        work = import_works(request, console, input_path=input_path)[0]
        if work.model.name in works:
            raise NestlingError(f"two models are called {work.model.name!r}.")
        works[work.model.name] = work
    compiled = {name: compile_work(work, options, console) for name, work in works.items()}
    place = records or Path(str(models[0]).partition(".py:")[0]).with_suffix(".records.db")
    with ExitStack() as stack:
        stack.enter_context(_interrupts(place))
        cache = stack.enter_context(_cache())
        measurer, open_runner = open_measurer(
            board, options, cache_dir=cache, jobs=jobs, seed=seed, farm=farm
        )
        stack.callback(measurer.close)
        view = stack.enter_context(make_view(console, settings))
        outcome = tune(
            compiled,
            {
                name: {n: a for n, a in work.samples.input(0).items() if n in compiled[name].inputs}
                for name, work in works.items()
            },
            measurer=measurer,
            records_path=place,
            space=space,
            settings=settings,
            open_runner=open_runner,
            command="nestling " + shlex.join(sys.argv[1:]),
            goal=goal,
            cost_model=BoostedTrees(
                pretrained(get_target(options.target).isa) if shipped_model else (), seed=seed
            ),
            validate=validate,
            listener=view,
            objective=objective,
            ram_bytes=ram_bytes,
            flash_bytes=flash_bytes,
            describe_run={"shipped_model": shipped_model, "board": board.partition("@")[0]},
            machine=machine_of(measurer),
        )
    done = _report(outcome, place, console, json_path, list_points=objective == "pareto")
    if report_path is not None:
        write_report(place, report_path, console)
    return done


@contextmanager
def _interrupts(place: Path) -> Iterator[None]:
    """Say how a run goes on that the user interrupts."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.Abort(
            f"finished rounds are kept in {place}; the same command goes on from there"
        ) from None


@contextmanager
def _cache() -> Iterator[Path]:
    """Return where built candidates are kept, and the programs that reproduce failures.

    The commands in the records name these, so they outlive the run; but in a temporary folder where
    the user has no cache that can be written.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "nestling" / "tune"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK)
    except OSError:
        usable = False
    if usable:
        yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="nestling_tune_") as temporary:
            yield Path(temporary)


def _report(
    outcome: Outcome, place: Path, console: Console, json_path: Path | None, *, list_points: bool
) -> int:
    """Print and write what came out."""
    from toolkit.cli.tuning_view import cost_text

    for model in outcome.models:
        verdict = "kept" if model.kept else "not faster: the default schedules stay"
        console.fact(
            model.name,
            f"{cost_text(model.default, model.unit)} -> {cost_text(model.tuned, model.unit)}, "
            f"{1 / model.ratio:.2f} x, {verdict}",
        )
    tuned = sum(v.tuned for v in outcome.verdicts)
    console.fact("kernels", f"{tuned} of {len(outcome.verdicts)} tuned")
    failed = ", ".join(f"{n} {status}" for status, n in sorted(outcome.failures.items()))
    console.fact(
        "trials",
        f"{outcome.trials} in {outcome.elapsed_s:.0f} s, of which search {outcome.search_s:.0f} s; "
        f"failed: {failed or 'none'}",
    )
    if outcome.ended:
        console.fact("ended early", outcome.ended)
    for task, why in outcome.untouched:
        console.detail(f"no trials for {task.name}: {why}")
    console.fact("records", str(place))
    unit = outcome.models[0].unit
    if list_points:
        console.table(
            ["point", "sum of kernels", "arena", "kernels and weights"],
            [
                (str(i), cost_text(p.cost, unit), f"{p.ram_bytes:,}", f"{p.flash_bytes:,}")
                for i, p in enumerate(outcome.points)
            ],
            right=["point", "sum of kernels", "arena", "kernels and weights"],
        )
        console.print("compile one with: nestling compile MODEL --point K")
    console.json(
        json_path,
        {
            "ok": True,
            "models": [
                {
                    "name": m.name, "unit": m.unit, "default": m.default, "tuned": m.tuned,
                    "ratio": m.ratio, "kept": m.kept,
                }
                for m in outcome.models
            ],
            "trials": outcome.trials,
            "failures": outcome.failures,
            "elapsed_s": outcome.elapsed_s,
            "search_s": outcome.search_s,
            "measure_s": outcome.measure_s,
            "resumed": outcome.resumed,
            "ended": outcome.ended,
            "records": str(place),
            "points": [
                {"cost": p.cost, "ram_bytes": p.ram_bytes, "flash_bytes": p.flash_bytes}
                for p in outcome.points
            ],
            "tasks": [
                {
                    "key": v.task.key, "name": v.task.name, "tuned": v.tuned, "ratio": v.ratio,
                    "detail": v.detail, "nodes": list(v.task.nodes),
                }
                for v in outcome.verdicts
            ],
            "untouched": [{"name": t.name, "why": why} for t, why in outcome.untouched],
        },
    )  # fmt: skip
    return 0
