"""Operators of the user's own, from a Python file: `--ops my_ops.py`.

    from toolkit.ir.compute import compute

    DOMAIN = "my.domain"

    def Squash(ctx, x):
        return compute(x.shape, lambda *i: x[i] / (1 + abs(x[i])), "squash")

Every function of the file whose first parameter is `ctx` is the operator of its name in `DOMAIN`.
A dict `OPS`, from 'domain:Name' to such a function (or an `Op`), takes its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, ModuleType

from toolkit.errors import NestlingError
from toolkit.ops import Op
from toolkit.user_file import run_file


def load_ops(path: Path) -> dict[str, Op]:
    """Run a file of operators and return them by 'domain:Name'."""
    module = run_file(path, f"--ops {path}")
    return _table(path, module) if "OPS" in module.__dict__ else _functions(path, module)


def _table(path: Path, module: ModuleType) -> dict[str, Op]:
    table = module.__dict__["OPS"]
    if not isinstance(table, Mapping):
        raise NestlingError(f"--ops {path}: OPS is a {type(table).__name__}, not a dict.")
    ops: dict[str, Op] = {}
    for key, value in table.items():
        if isinstance(key, tuple):
            key = ":".join(map(str, key))
        if not isinstance(key, str):
            raise NestlingError(f"--ops {path}: key {key!r} of OPS is not 'domain:Name'.")
        if not isinstance(value, Op) and not callable(value):
            raise NestlingError(f"--ops {path}: OPS[{key!r}] is neither a function nor an Op.")
        ops[key.removeprefix("ai.onnx:")] = value if isinstance(value, Op) else Op(value)
    return ops


def _functions(path: Path, module: ModuleType) -> dict[str, Op]:
    domain = module.__dict__.get("DOMAIN")
    ops: dict[str, Op] = {}
    for name, value in module.__dict__.items():
        if isinstance(value, FunctionType) and value.__code__.co_filename == str(path):
            parameters = list(inspect.signature(value).parameters)
            if not name.startswith("_") and parameters[:1] == ["ctx"]:
                ops[f"{domain}:{name}"] = Op(value)
    if not ops:
        raise NestlingError(
            f"--ops {path}: defines no operator.",
            hint="write a function (ctx, inputs...) of the operator's name, or a dict OPS",
        )
    if not isinstance(domain, str) or not domain:
        raise NestlingError(
            f"--ops {path}: does not say which domain its operators are of.",
            hint='add DOMAIN = "my.domain", the domain of the nodes in the model',
        )
    return ops
