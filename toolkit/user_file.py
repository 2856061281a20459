"""Python files of the user's: operators, expressions, modules and templates."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import ModuleType

from toolkit.errors import NestlingError


def run_file(path: Path, what: str) -> ModuleType:
    """Run a Python file of the user's and return it as a module; errors start with `what`."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        code = compile(path.read_bytes(), str(path), "exec")
        exec(code, module.__dict__)
    except FileNotFoundError:
        raise NestlingError(f"{what}: there is no such file.") from None
    except OSError as error:
        raise NestlingError(f"{what}: cannot be read: {error.strerror}.") from None
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        where = f" (line {frames[-1].lineno})" if frames else ""
        if isinstance(error, SyntaxError):
            where = f" (line {error.lineno})"
        cause = f"{type(error).__name__}: {error}"
        raise NestlingError(f"{what}: running it failed{where}: {cause}") from None
    return module
