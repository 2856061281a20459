"""Writing generated files with the runtime they need, all or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from toolkit.errors import NestlingError
from toolkit.paths import RUNTIME_C

RUNTIME_HEADERS = ("nst.h", "nst_config.h", "nst_kernels.h")
RUNTIME_SOURCES = ("nst.c", "nst_status.c")


def runtime_files() -> dict[str, bytes]:
    """Return the runtime as the bundle holds it: headers under include/, sources under src/."""
    files = {f"include/{n}": (RUNTIME_C / "include" / n).read_bytes() for n in RUNTIME_HEADERS}
    files.update({f"src/{n}": (RUNTIME_C / "src" / n).read_bytes() for n in RUNTIME_SOURCES})
    return files


def place(files: Mapping[str, str | bytes]) -> dict[str, bytes]:
    """Put generated files in folders: headers in include/, everything else in src/."""
    return {
        f"{'include' if name.endswith('.h') else 'src'}/{name}": (
            content.encode() if isinstance(content, str) else content
        )
        for name, content in files.items()
    }


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below `folder`: first all to a temporary folder beside it, then into place.

    Nothing is left behind when writing fails.  Files of the same name are replaced, others stay.
    """
    parent = folder.parent
    made: list[Path] = []
    try:
        missing = parent
        while not missing.exists():
            made.append(missing)
            missing = missing.parent
        parent.mkdir(parents=True, exist_ok=True)
        if folder.exists() and not folder.is_dir():
            raise NestlingError(f"{folder} is a file; -o takes a folder.")
        if folder.exists() and not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=parent))
    except OSError as error:
        for path in made:
            path.rmdir() if path.exists() else None
        raise NestlingError(
            f"cannot write to {folder}: {error.strerror}.", hint="choose another folder with -o DIR"
        ) from None
    try:
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if not folder.exists():
            temporary.chmod(0o755)
            temporary.rename(folder)
        else:
            for name in files:
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(temporary / name, target)
    except OSError as error:
        raise NestlingError(f"cannot write to {folder}: {error.strerror}.") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
