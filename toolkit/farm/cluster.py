"""Farms to connect to: one on this computer, made from `farm.toml`, or a scheduler somewhere."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
from distributed import Client, LocalCluster, Security

from toolkit.errors import BoardError
from toolkit.farm.plan import Plan

CONNECT_S = 5.0

TLS_FILES = ("ca.pem", "cert.pem", "key.pem")
"""What a folder for `--tls` holds: who is trusted, and who one is."""


def tls(folder: Path | None, address: str = "") -> Security | None:
    """Return Dask's description of encrypted connections to `address`; None for open ones.

    Raises BoardError when one of `TLS_FILES` is missing, or all where the address wants them.
    """
    if folder is None:
        if address.startswith("tls://"):
            raise BoardError(
                f"{address} is encrypted", hint=f"--tls DIR, with {', '.join(TLS_FILES)}"
            )
        return None
    ca, cert, key = (folder / name for name in TLS_FILES)
    for path in (ca, cert, key):
        if not path.is_file():
            raise BoardError(f"--tls {folder}: {path.name} is missing")
    ends = {
        f"tls_{who}_{what}": str(path)
        for who in ("client", "worker", "scheduler")
        for what, path in (("cert", cert), ("key", key))
    }
    return Security(tls_ca_file=str(ca), require_encryption=True, **ends)


def connector(address: str, security: Security | None = None) -> Callable[[], Client]:
    """Return what connects to a scheduler.  It raises BoardError where none answers at first."""

    def connect() -> Client:
        # The loop over restarts is ours: the client gives up at once and says so.
        with dask.config.set({"distributed.comm.retry.count": 0}):
            return Client(
                address, timeout=CONNECT_S, security=security, set_as_default=False,
                direct_to_workers=False,
            )  # fmt: skip

    return connect


def first_connection(address: str, security: Security | None = None) -> Callable[[], Client]:
    """Return `connector(address)` after proof that somebody is there."""
    connect = connector(address, security)
    try:
        connect().close()
    except (OSError, TimeoutError, ValueError, RuntimeError) as error:
        raise BoardError(
            f"no Dask scheduler answers at {address}: {str(error) or type(error).__name__}",
            hint="dask scheduler",
        ) from None
    return connect


@contextmanager
def local_farm(plan_path: Path, plan: Plan) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Run a scheduler and the workers of a plan here; yield its address and the workers.

    Nobody else can connect: it listens on the loopback interface alone.
    """
    workers: list[subprocess.Popen[bytes]] = []
    with LocalCluster(
        n_workers=0, host="127.0.0.1", protocol="tcp://", dashboard_address="127.0.0.1:0",
        worker_dashboard_address="127.0.0.1:0", processes=False, silence_logs=logging.CRITICAL,
    ) as cluster:  # fmt: skip
        address = cluster.scheduler_address
        try:
            for number in range(plan.workers):
                workers.append(start_worker(address, plan_path, number))
            yield address, workers
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                try:
                    worker.wait(10)
                except subprocess.TimeoutExpired:
                    worker.kill()
                    worker.wait()


def start_worker(address: str, plan_path: Path, number: int) -> subprocess.Popen[bytes]:
    """Start `nestling farm worker` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", "from toolkit.cli.app import main; main()", "farm", "worker",
         address, "--plan", str(plan_path), "--share", str(number), "--leave", "-q"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
