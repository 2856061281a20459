"""Writing a folder of files, all or nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from toolkit.errors import NestlingError


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below `folder`: first all to a temporary folder beside it, then into place.

    Nothing is left behind when writing fails.  Files of the same name are replaced, others stay.
    """
    if folder.exists() and not folder.is_dir():
        raise NestlingError(f"{folder} is a file, not a folder.", hint="choose another: -o DIR")
    made: list[Path] = []
    temporary: Path | None = None
    try:
        made = _make_parents(folder.resolve().parent)
        # Beside the folder, so that moving is renaming; inside it where only that may be written.
        home = folder.resolve().parent if os.access(folder.resolve().parent, os.W_OK) else folder
        temporary = Path(tempfile.mkdtemp(prefix=".nestling-", dir=home))
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if folder.exists():
            _replace(temporary, folder, list(files))
        else:
            temporary.chmod(0o755)
            temporary.rename(folder)
    except OSError as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary = None
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise NestlingError(
            f"cannot write to {folder}: {error.strerror or error}.", hint="choose another: -o DIR"
        ) from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _make_parents(folder: Path) -> list[Path]:
    """Make a folder and its parents; return those that were missing, innermost first."""
    missing = []
    path = folder
    while not path.exists():
        missing.append(path)
        path = path.parent
    made: list[Path] = []
    try:
        for path in reversed(missing):
            path.mkdir()
            made.insert(0, path)
    except OSError:
        for path in made:
            path.rmdir()
        raise
    return made


def _replace(source: Path, folder: Path, names: list[str]) -> None:
    """Move files into a folder that exists; put back what was there when one cannot be moved."""
    old = source / ".old"
    moved: list[str] = []
    saved: list[str] = []
    try:
        for name in names:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                (old / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(target, old / name)
                saved.append(name)
            os.replace(source / name, target)
            moved.append(name)
    except OSError:
        for name in moved:
            (folder / name).unlink(missing_ok=True)
        for name in saved:
            os.replace(old / name, folder / name)
        raise
