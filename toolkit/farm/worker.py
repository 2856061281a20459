"""A worker of a farm: a Dask worker that offers boards as resources, and comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

from distributed import Security, Worker

from toolkit.farm.boards import Boards
from toolkit.farm.plan import Plan, RESOURCE, resources

RETRY_S = 1.0
"""Between attempts to reach the scheduler."""


async def serve(
    scheduler: str,
    plan: Plan,
    *,
    security: Security | None = None,
    folder: Path | None = None,
    stay: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Offer the boards of a plan until SIGTERM or SIGINT.

    `folder`: for Dask's own files; None leaves it to Dask.  `stay`: wait for a scheduler that is
    gone.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    offered = resources(plan.places)
    worker: Worker | None = None

    def withdraw(board: str) -> None:
        """Offer a board of this kind less: called by a job's thread."""
        name = RESOURCE + board
        offered[name] -= 1
        say(f"a board '{board}' failed too often: {offered[name]:.0f} of its kind stay")
        if worker is not None:
            asyncio.run_coroutine_threadsafe(worker.set_resources(**{name: offered[name]}), loop)

    boards = Boards(plan.places, lost_after_s=plan.lost_after_s, on_quarantine=withdraw)
    with boards:
        while not stop.is_set():
            worker = Worker(
                scheduler, nthreads=len(plan.places), resources=dict(offered),
                local_directory=str(folder) if folder else None, security=security,
                dashboard=False,
            )  # fmt: skip
            worker.nestling_boards = boards
            try:
                await worker
            except (OSError, TimeoutError, RuntimeError) as error:
                say(f"no scheduler at {scheduler}: {error}")
            else:
                say(f"{worker.address}: {', '.join(s.name for s in boards.slots)}")
                finished = asyncio.ensure_future(worker.finished())
                stopping = asyncio.ensure_future(stop.wait())
                await asyncio.wait({finished, stopping}, return_when=asyncio.FIRST_COMPLETED)
                finished.cancel()
                stopping.cancel()
            with contextlib.suppress(Exception):
                await worker.close(timeout=5)
            if not stay:
                return
            if not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), RETRY_S)
