"""Traces and sketches as JSON and as Python to paste."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from toolkit.errors import NestlingError
from toolkit.schedule.derived import Derived, ExtentOf, IfLoop, LoopAround
from toolkit.schedule.hole import (
    Around,
    ComputeLocation,
    FittingLoop,
    FittingTile,
    Hole,
    LoopOrder,
    OneOf,
    PerfectTile,
    Tile,
    VectorTile,
)
from toolkit.schedule.steps import STEPS
from toolkit.schedule.steps.base import Step

HOLES: dict[str, type[Hole | Derived]] = {
    "PerfectTile": PerfectTile,
    "Tile": Tile,
    "VectorTile": VectorTile,
    "FittingTile": FittingTile,
    "FittingLoop": FittingLoop,
    "LoopOrder": LoopOrder,
    "OneOf": OneOf,
    "ComputeLocation": ComputeLocation,
    "Around": Around,
    "ExtentOf": ExtentOf,
    "LoopAround": LoopAround,
    "IfLoop": IfLoop,
}


def trace_to_json(trace: Sequence[Step]) -> list[dict[str, Any]]:
    """Return a trace or sketch as plain JSON values: one object a step, its name under 'step'."""
    return [{"step": type(step).__name__, **_fields(step)} for step in trace]


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, Hole | Derived):
        return {"hole": type(value).__name__, **_fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def trace_from_json(rows: Sequence[dict[str, Any]]) -> tuple[Step, ...]:
    """Return the trace that `trace_to_json` wrote; raise `NestlingError` naming what is unknown."""
    return tuple(_step(row) for row in rows)


def _step(row: dict[str, Any]) -> Step:
    kind = STEPS.get(row.get("step", ""))
    if kind is None:
        raise NestlingError(
            f"trace: unknown step {row.get('step')!r}.", hint=f"known: {', '.join(STEPS)}"
        )
    return kind(**_arguments(kind, {k: v for k, v in row.items() if k != "step"}))


def _arguments(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    known = {f.name for f in dataclasses.fields(kind)}
    extra = sorted(set(values) - known)
    if extra:
        raise NestlingError(f"trace: {kind.__name__} has no field {extra[0]!r}.")
    missing = [
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.name not in values
    ]
    if missing:
        raise NestlingError(f"trace: {kind.__name__} needs the field {missing[0]!r}.")
    return {k: _value(v) for k, v in values.items()}


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        kind = HOLES.get(value.get("hole", ""))
        if kind is None:
            raise NestlingError(f"trace: unknown hole {value.get('hole')!r}.")
        return kind(**_arguments(kind, {k: v for k, v in value.items() if k != "hole"}))
    return tuple(_value(v) for v in value) if isinstance(value, list) else value


def trace_to_python(trace: Sequence[Step]) -> str:
    """Return a trace or sketch as a Python expression, one step a line."""
    lines = [f"    {step!r}," for step in trace]
    return "\n".join(["(", *lines, ")"])
