"""Where candidates are measured: this machine, or a board."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import NestlingError
from toolkit.measure.candidates.host import HostMeasurer
from toolkit.measure.candidates.machine import Machine
from toolkit.pipeline import Compiled, Options
from toolkit.runners import (
    BoardModel,
    BuiltModel,
    flasher,
    open_board,
    open_port,
    PortOwner,
    Runner,
)
from toolkit.search.result import Measurer
from toolkit.targets.board import Board
from toolkit.targets.target import get_target, Target


@dataclass(frozen=True, slots=True)
class FarmRequest:
    """A farm that measures: the boards of `plan_path` on this computer, or behind `scheduler`.

    `tls_folder`: see `farm.cluster.tls`.  `on_note`: told what a person should know.
    """

    plan_path: Path | None = None
    scheduler: str | None = None
    tls_folder: Path | None = None
    on_note: Callable[[str], None] = lambda text: None


def open_measurer(
    board_name: str,
    options: Options,
    *,
    cache_dir: Path,
    jobs: int,
    seed: int,
    farm: FarmRequest | None = None,
) -> tuple[Measurer, Callable[[Compiled], Runner]]:
    """Return what measures candidates on a board or the host, and what runs whole models there."""
    board, port = open_board(board_name)
    target = get_target(options.target)
    if farm is not None:
        if board is None or port is not None:
            raise NestlingError(
                f"a farm measures on a kind of board, not on {board_name!r}.",
                hint="--board NAME, a name of `nestling boards list`, without a port",
            )
        return _open_farm(farm, board, target, seed)
    if board is None:
        measurer: Measurer = HostMeasurer(target, cache_dir=cache_dir, jobs=jobs, seed=seed)
        return measurer, BuiltModel
    from toolkit.measure.candidates.board import BoardMeasurer

    found = open_port(board, port)
    owner = PortOwner() if found else None
    return (
        BoardMeasurer(
            board, found.url if found else None, target=target, cache_dir=cache_dir, jobs=jobs,
            seed=seed,
            flash=flasher(board, found),
        ),
        lambda compiled: BoardModel(compiled, board, port, owner=owner),
    )  # fmt: skip


def _open_farm(
    request: FarmRequest, board: Board, target: Target, seed: int
) -> tuple[Measurer, Callable[[Compiled], Runner]]:
    from toolkit.farm.cluster import first_connection, local_farm, tls
    from toolkit.farm.measurer import Farm, FarmMeasurer, FarmModel
    from toolkit.farm.plan import load_plan

    with ExitStack() as stack:
        patience_s = 60.0
        if request.plan_path is not None:
            plan = load_plan(request.plan_path)
            if all(p.board != board.name for p in plan.places):
                names = ", ".join(sorted({p.board for p in plan.places}))
                raise NestlingError(
                    f"{request.plan_path} has no board {board.name!r}.", hint=f"it has {names}"
                )
            address, _ = stack.enter_context(local_farm(request.plan_path, plan))
            patience_s = plan.patience_s
        else:
            assert request.scheduler is not None, "a farm has a plan or a scheduler"
            address = request.scheduler
        connect = first_connection(address, tls(request.tls_folder, address))
        opened = Farm(connect, board, patience_s=patience_s, on_note=request.on_note)
        stack.callback(opened.close)
        measurer = FarmMeasurer(opened, target, seed=seed, ends=stack.pop_all())
    return measurer, lambda compiled: FarmModel(compiled, opened)


def machine_of(measurer: Measurer) -> Machine | None:
    """Measure what the core that measures can do at best; None where only costs are counted."""
    return measurer.machine() if isinstance(measurer, HostMeasurer) else None
