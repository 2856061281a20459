"""Where `templates/`, `runtime_c/`, `boards/` and the packs are, in a checkout and in a wheel."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _data_folder(name: str) -> Path:
    """Return the data folder `name`: inside the package (wheel) or beside it (checkout)."""
    inside = _PACKAGE / "_data" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


TEMPLATES = _data_folder("templates")
RUNTIME_C = _data_folder("runtime_c")
BOARDS = _data_folder("boards")
PACKS = _PACKAGE / "packs"
