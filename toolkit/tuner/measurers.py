"""Where candidates are measured: this machine, or a board."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from toolkit.measure.candidates.host import HostMeasurer
from toolkit.measure.candidates.machine import Machine
from toolkit.measure.flashing import flash
from toolkit.pipeline import Compiled, Options
from toolkit.runners import BoardModel, BuiltModel, open_board, open_port, Runner
from toolkit.search.result import Measurer
from toolkit.targets.board import Board
from toolkit.targets.target import get_target
from toolkit.toolchain.firmware import FirmwareArtifact


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

    found = open_port(board, port)
    return (
        BoardMeasurer(
            board, found.url if found else None, target=target, cache_dir=cache_dir, jobs=jobs,
            seed=seed,
            flash=partial(_flash, board, found.serial_number) if found and board.flashing else None,
        ),
        lambda compiled: BoardModel(compiled, board, port),
    )  # fmt: skip


def _flash(board: Board, usb_serial: str | None, firmware: FirmwareArtifact) -> None:
    flash(board, firmware.elf, usb_serial=usb_serial)


def machine_of(measurer: Measurer) -> Machine | None:
    """Measure what the core that measures can do at best; None where only costs are counted."""
    return measurer.machine() if isinstance(measurer, HostMeasurer) else None
