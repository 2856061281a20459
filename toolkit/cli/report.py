"""`nestling report`: a run of tuning as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli.console import Console
from toolkit.cli.options import output_options
from toolkit.errors import RecordsError


@click.command("report", short_help="Write what tuning did as one HTML page.")
@click.argument("source", type=click.Path(path_type=Path), metavar="SOURCE")
@click.option(
    "-o", "--output", "output_path", type=click.Path(path_type=Path), metavar="FILE",
    help="File to write [default: NAME.report.html beside the database].",
)  # fmt: skip
@click.option(
    "--run", "number", type=click.IntRange(1), metavar="N",
    help="Which run of the database, from 1 [default: the newest].",
)  # fmt: skip
@output_options
def report_command(
    *,
    source: Path,
    output_path: Path | None,
    number: int | None,
    console: Console,
    json_path: Path | None,
) -> int:
    """Write what `nestling tune` did as one HTML page that reads without a network.

    SOURCE is a database of trials, or a model with NAME.records.db beside it.

    \b
    Examples:
      nestling report kws.onnx
      nestling report kws.records.db --run 2 -o second.html
    """
    database = source if _is_database(source) else source.with_suffix(".records.db")
    if not database.exists():
        raise RecordsError(
            f"{source}: there are no records of it: {database}: no such file.",
            hint="nestling tune MODEL makes them",
        )
    place = output_path or database.with_name(f"{database.name.split('.')[0]}.report.html")
    write_report(database, place, console, number=number, json_path=json_path)
    return 0


def _is_database(path: Path) -> bool:
    """Tell databases by their name, or by what they begin with."""
    if path.suffix == ".db" or path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            return file.read(15) == b"SQLite format 3"
    except OSError:
        return False


def write_report(
    database: Path,
    place: Path,
    console: Console,
    *,
    number: int | None = None,
    json_path: Path | None = None,
) -> None:
    """Read a run of a database and write its page."""
    from toolkit.packaging.write import write_folder
    from toolkit.report.facts import read_run
    from toolkit.report.page import make_page, write_page
    from toolkit.search.records import Records

    with Records(database, readonly=True) as records:
        facts = read_run(records, number)
    data = write_page(make_page(facts)).encode()
    write_folder(place.absolute().parent, {place.name: data})
    console.fact("report", f"{place}: {len(data):,} bytes")
    console.json(
        json_path,
        {
            "report": str(place), "bytes": len(data), "run": facts.number, "unit": facts.unit,
            "tasks": len(facts.tasks), "trials": len(facts.trials),
            "tuned": sum(t.tuned for t in facts.tasks),
        },
    )  # fmt: skip
