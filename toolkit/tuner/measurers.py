"""Where candidates are measured: this machine, or a board."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from toolkit.measure.candidates.host import HostMeasurer
from toolkit.measure.candidates.machine import Machine
from toolkit.pipeline import Compiled, Options
from toolkit.runners import BoardModel, BuiltModel, open_board, Runner
from toolkit.search.result import Measurer
from toolkit.targets.target import get_target


def open_measurer(
    board_name: str, options: Options, *, cache_dir: Path, jobs: int, seed: int
) -> tuple[Measurer, Callable[[Compiled], Runner]]:
    """Return what measures candidates on a board or the host, and what runs whole models there."""
    board, port = open_board(board_name)
    target = get_target(options.target)
    if board is None:
        measurer: Measurer = HostMeasurer(target, cache_dir=cache_dir, jobs=jobs, seed=seed)
        return measurer, BuiltModel
    from toolkit.measure.candidates.board import BoardMeasurer

    return (
        BoardMeasurer(board, port, target=target, cache_dir=cache_dir, jobs=jobs, seed=seed),
        lambda compiled: BoardModel(compiled, board, port),
    )


def machine_of(measurer: Measurer) -> Machine | None:
    """Measure what the core that measures can do at best; None where only costs are counted."""
    return measurer.machine() if isinstance(measurer, HostMeasurer) else None
