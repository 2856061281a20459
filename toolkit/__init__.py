"""nestling: turns a trained ONNX or TFLite model into a small, fast, proven C library.

    import toolkit

    library = toolkit.build("model.onnx")      # ONNX -> C -> built with the system compiler
    outputs = library(array)                   # NumPy in, NumPy out

    toolkit.compile("model.onnx").write("model_c")    # the folder for a firmware project

Importing this is cheap: what does the work is imported when it is first used.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from toolkit.errors import NestlingError
from toolkit.version import __version__

if TYPE_CHECKING:
    from toolkit import backend as backend
    from toolkit.api import build as build
    from toolkit.api import compile as compile
    from toolkit.api import function as function
    from toolkit.api import load as load
    from toolkit.api import quantize as quantize
    from toolkit.pipeline import Compiled as Compiled
    from toolkit.pipeline import Model as Model
    from toolkit.pipeline import Options as Options
    from toolkit.runners import BuiltModel as BuiltModel

__all__ = [
    "BuiltModel",
    "Compiled",
    "Model",
    "NestlingError",
    "Options",
    "__version__",
    "backend",
    "build",
    "compile",
    "function",
    "load",
    "quantize",
]

_HOME = {
    "BuiltModel": "toolkit.runners",
    "Compiled": "toolkit.pipeline",
    "Model": "toolkit.pipeline",
    "Options": "toolkit.pipeline",
    "build": "toolkit.api",
    "compile": "toolkit.api",
    "function": "toolkit.api",
    "load": "toolkit.api",
    "quantize": "toolkit.api",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "backend":
        return import_module("toolkit.backend")
    if name not in _HOME:
        raise AttributeError(f"module 'toolkit' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
