"""The command `nestling`.  The only part of the project that prints."""

from toolkit.cli.app import main, run

__all__ = ["main", "run"]
