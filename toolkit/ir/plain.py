"""A base function as plain JSON values, and back: what records keep to rebuild a task."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from toolkit.errors import NestlingError
from toolkit.ir.compute import Axis
from toolkit.ir.expr import Binary, Call, Cast, Const, Load, Select, Var
from toolkit.ir.loop import Block, Buffer, Loop, OpaqueCall, PrimFunc, Seq, walk_stmt

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        PrimFunc, Buffer, Loop, Seq, Block, Const, Var, Axis, Load, Binary, Call, Cast, Select,
    )
}  # fmt: skip


def func_to_json(func: PrimFunc) -> dict[str, Any] | None:
    """Return a function as plain values: objects with their kind under 'is'.

    None for a function that calls C functions: their meaning is Python code.
    """
    if any(isinstance(s, OpaqueCall) for s in walk_stmt(func.body)):
        return None
    found: dict[str, Any] = _plain(func)
    return found


def _plain(value: Any) -> Any:
    if type(value) in KINDS.values():
        # Fields at their default values are left out, so that new ones do not change old texts.
        fields = {
            f.name: _plain(found)
            for f in dataclasses.fields(value)
            if (found := getattr(value, f.name)) != f.default
        }
        return {"is": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"is": "float", "text": str(value)}  # JSON has no such number
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def func_from_json(value: Any) -> PrimFunc:
    """Return the function that `func_to_json` wrote; raise `NestlingError` for anything else."""
    try:
        func = _value(value)
    except (KeyError, TypeError, ValueError) as error:
        raise NestlingError(f"function: cannot be read: {error}.") from None
    if not isinstance(func, PrimFunc):
        raise NestlingError("function: what is there is none.")
    return func


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(v) for v in value)
    if not isinstance(value, dict):
        return value
    fields = {k: _value(v) for k, v in value.items() if k != "is"}
    return float(fields["text"]) if value["is"] == "float" else KINDS[value["is"]](**fields)
