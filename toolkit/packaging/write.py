"""Writing a folder of files, all or nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from errno import EISDIR, ENOTDIR
from pathlib import Path

from toolkit.errors import NestlingError


def write_folder(
    folder: Path, files: Mapping[str, bytes], *, remove: Iterable[str] = (), hint: str | None = None
) -> None:
    """Write files below `folder`: first all to a temporary folder beside it, then into place.

    Nothing is left behind, and nothing is lost, when writing fails.  Files of the same name are
    replaced, those of `remove` removed, others stay.  `hint` goes to the error.
    """
    made: list[Path] = []
    temporary: Path | None = None
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(ENOTDIR, "it is a file, not a folder")
        home = folder.resolve().parent
        made = _make_parents(home)
        # Beside the folder, so that moving is renaming; inside it where only that may be written.
        if folder.exists() and not os.access(home, os.W_OK):
            home = folder
        temporary = Path(tempfile.mkdtemp(prefix=".nestling-", dir=home))
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if folder.exists():
            _replace(temporary, folder, list(files), list(remove))
        else:
            temporary.chmod(0o755)
            temporary.rename(folder)
    except (OSError, ValueError) as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary = None
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        reason = error.strerror if isinstance(error, OSError) else error
        raise NestlingError(f"cannot write to {folder}: {reason}.", hint=hint) from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def check_place(path: Path) -> None:
    """Refuse a file that cannot be written, before hours of work are done for it."""
    home = path.absolute().parent
    while not home.exists():
        home = home.parent
    try:
        if path.is_dir():
            raise IsADirectoryError(EISDIR, "it is a folder")
        with tempfile.TemporaryDirectory(prefix=".nestling-", dir=home):
            pass
    except OSError as error:
        raise NestlingError(f"cannot write to {path}: {error.strerror}.") from None


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


def _replace(source: Path, folder: Path, names: list[str], remove: list[str]) -> None:
    """Move files into a folder that exists; put back what was there when one cannot be moved."""
    old = source / ".old"
    moved: list[str] = []
    saved: list[str] = []

    def set_aside(name: str) -> None:
        if (folder / name).exists():
            (old / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, old / name)
            saved.append(name)

    try:
        for name in remove:
            set_aside(name)
        for name in names:
            if (folder / name).is_dir():
                raise IsADirectoryError(EISDIR, f"{name} is a folder")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            set_aside(name)
            os.replace(source / name, folder / name)
            moved.append(name)
    except OSError:
        for name in moved:
            (folder / name).unlink(missing_ok=True)
        for name in saved:
            os.replace(old / name, folder / name)
        raise
    for name in remove:
        with contextlib.suppress(OSError):
            (folder / name).parent.rmdir()
