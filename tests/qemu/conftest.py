"""What tests on boards in QEMU share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from toolkit.targets.board import Board, load_board


@pytest.fixture(scope="session")
def qemu_board(need_tool: Callable[[str], str]) -> Callable[[str], Board]:
    """Return a function that loads a board in QEMU, whose compiler and emulator must be here."""

    def load(name: str) -> Board:
        board = load_board(name)
        assert board.compiler is not None
        assert board.qemu is not None
        need_tool(board.compiler.name)
        need_tool(board.qemu.program)
        return board

    return load
