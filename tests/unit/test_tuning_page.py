"""The commands of the pages that show some are ones that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from toolkit.cli.app import cli

REPO = Path(__file__).resolve().parents[2]
PAGES = ("docs/tuning.md", "docs/quantize.md", "README.md")


def commands(page: str) -> list[list[str]]:
    """Return the arguments of each line of a page's `sh` blocks that calls nestling."""
    text = (REPO / page).read_text(encoding="utf-8")
    lines = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)).splitlines()
    calls = [shlex.split(line, comments=True) for line in lines]
    return [c[1:] for c in calls if c and c[0].endswith("nestling")]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_is_understood(page: str) -> None:
    found = commands(page)
    assert len(found) >= 4
    for arguments in found:
        command: click.Command = cli
        context = click.Context(cli)
        while isinstance(command, click.Group):
            known = command.get_command(context, arguments[0])
            assert known is not None, arguments
            command, arguments = known, arguments[1:]
        command.make_context("nestling", list(arguments), parent=context)  # raises UsageError
