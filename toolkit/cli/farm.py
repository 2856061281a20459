"""`nestling farm`: boards of many computers behind one tuner."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit.cli.console import Console
from toolkit.cli.options import output_options
from toolkit.errors import NestlingError

tls_option = click.option(
    "--tls", "tls_folder", type=click.Path(path_type=Path), metavar="DIR",
    help="Encrypt: a folder with ca.pem, cert.pem and key.pem.",
)  # fmt: skip


def need_dask() -> None:
    """Refuse in a line where the extra is not installed."""
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise NestlingError(
            "a farm needs Dask, which is not installed.", hint="pip install 'nestling[farm]'"
        ) from None


@click.group("farm", short_help="Boards of many computers behind one tuner.")
def farm_command() -> None:
    """Boards of many computers behind one tuner, through Dask's scheduler.

    \b
    Examples:
      nestling tune kws.onnx --board qemu_mps2_an386 --farm farm.toml
      dask scheduler                                   # on one computer, and on each with boards:
      nestling farm worker tcp://10.0.0.1:8786 --plan farm.toml
      nestling tune kws.onnx --board nucleo_f446re --dask tcp://10.0.0.1:8786
    """


@farm_command.command("worker", short_help="Offer this computer's boards to a farm.")
@click.argument("scheduler", metavar="SCHEDULER")
@click.option("--plan", "plan_path", type=click.Path(path_type=Path), required=True,
              metavar="FARM.toml", help="The boards of this computer.")  # fmt: skip
@click.option("--share", type=click.IntRange(0), metavar="K",
              help="Only what worker K of the plan's `workers` offers.")  # fmt: skip
@click.option("--stay/--leave", default=True, show_default=True,
              help="Whether to wait for a scheduler that is gone.")  # fmt: skip
@tls_option
@output_options
def farm_worker(
    *,
    scheduler: str,
    plan_path: Path,
    share: int | None,
    stay: bool,
    tls_folder: Path | None,
    console: Console,
    json_path: Path | None,
) -> int:
    """Offer the boards of a plan to the scheduler at SCHEDULER, until Ctrl-C or SIGTERM.

    Kernels are built here too. Where the scheduler restarts, the worker comes back by itself.

    \b
    Example:
      nestling farm worker tcp://10.0.0.1:8786 --plan farm.toml
    """
    need_dask()
    import asyncio
    import logging

    from toolkit.farm.cluster import tls
    from toolkit.farm.plan import load_plan
    from toolkit.farm.worker import serve

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what matters is said below
    plan = load_plan(plan_path)
    if share is not None:
        if share >= plan.workers:
            raise NestlingError(f"--share {share}: {plan_path} has {plan.workers} workers.")
        plan = plan.share(share)
    security = tls(tls_folder, scheduler)
    asyncio.run(serve(scheduler, plan, security=security, stay=stay, say=console.note))
    console.json(json_path, {"ok": True})
    return 0


@farm_command.command("status", short_help="Print the boards of a farm and how they do.")
@click.argument("scheduler", metavar="SCHEDULER")
@tls_option
@output_options
def farm_status(
    *, scheduler: str, tls_folder: Path | None, console: Console, json_path: Path | None
) -> int:
    """Print every board that workers offer to SCHEDULER, and which failed too often.

    \b
    Example:
      nestling farm status tcp://10.0.0.1:8786
    """
    need_dask()
    from toolkit.farm.cluster import first_connection, tls
    from toolkit.farm.measurer import boards_of

    client = first_connection(scheduler, tls(tls_folder, scheduler))()
    try:
        rows = boards_of(client)
    finally:
        client.close()
    console.table(
        ["board", "port", "worker", "state", "failures", "last failure"],
        [
            (
                r["name"], r["port"], r["worker"],
                "quarantined" if r["quarantined"] else "busy" if r["busy"] else "free",
                str(r["failures"]), r["why"],
            )
            for r in rows
        ],
        right=["failures"],
    )  # fmt: skip
    if not rows:
        console.result(f"{scheduler}: no worker offers a board", good=False)
    console.json(json_path, {"ok": bool(rows), "boards": rows})
    return 0 if rows else 1
