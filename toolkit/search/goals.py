"""What a tuning run minimises: a function of the latencies of its models.

Zheng et al., Ansor (OSDI 2020), table 2.  Latencies are in the unit of the run; deadlines are given
in seconds and are only for runs that are timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from toolkit.errors import NestlingError

Objective = Callable[[Mapping[str, float]], float]
"""From the latency of each model to what is minimised."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal.  `early_stop`: rounds without gain after which a task gets no more trials; None: the
    default of the scheduler."""

    name: str
    objective: Objective
    early_stop: int | None = None


def _sum(latencies: Mapping[str, float]) -> float:
    return sum(latencies.values())


def sum_goal() -> Goal:
    """Minimise the sum of the latencies."""
    return Goal("sum", _sum)


def early_stop_goal(rounds: int = 3) -> Goal:
    """Minimise the sum, and leave a task after `rounds` rounds without gain."""
    return Goal("early-stop", _sum, rounds)


def deadline_goal(deadlines: Mapping[str, float]) -> Goal:
    """Minimise the sum of max(latency, deadline), a model without a deadline counting in full."""

    def objective(latencies: Mapping[str, float]) -> float:
        return sum(max(t, deadlines.get(name, 0.0)) for name, t in latencies.items())

    return Goal("deadline", objective)


def geomean_goal(reference: Mapping[str, float]) -> Goal:
    """Maximise the geometric mean of the speed-ups against the reference latencies."""

    def objective(latencies: Mapping[str, float]) -> float:
        logs = [math.log(max(reference[n], 1e-30) / max(t, 1e-30)) for n, t in latencies.items()]
        return -math.exp(sum(logs) / max(len(logs), 1))

    return Goal("geomean", objective)


GOALS = ("sum", "deadline", "geomean", "early-stop")

_UNITS = {"us": 1e-6, "ms": 1e-3, "min": 60.0, "h": 3600.0, "s": 1.0}


def parse_goal(text: str, models: list[str], reference: Mapping[str, float] | None = None) -> Goal:
    """Read `sum`, `geomean`, `early-stop` or `deadline:A=5ms,B=20ms`.

    `models`: names that may have a deadline; `reference`: latencies for `geomean`.
    """
    kind, _, rest = text.partition(":")
    if kind not in GOALS:
        raise NestlingError(f"goal {text!r} is unknown.", hint=f"known: {', '.join(GOALS)}")
    if kind != "deadline":
        if rest:
            raise NestlingError(f"goal {kind!r} takes no arguments, but got {rest!r}.")
        if kind == "geomean":
            return geomean_goal(reference or {})
        return sum_goal() if kind == "sum" else early_stop_goal()
    deadlines: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        name, _, value = part.partition("=")
        if name not in models:
            raise NestlingError(
                f"goal {text!r}: there is no model {name!r}.", hint=f"models: {', '.join(models)}"
            )
        deadlines[name] = parse_seconds(value, f"the deadline of {name!r}")
    if not deadlines:
        raise NestlingError(
            f"goal {text!r} names no deadline.", hint="such as deadline:kws=5ms,vww=20ms"
        )
    return deadline_goal(deadlines)


def parse_seconds(text: str, what: str) -> float:
    """Read a time such as '5ms', '1.5s' or '10min'; `what` names it where it cannot be read."""
    for unit, seconds in _UNITS.items():
        if text.endswith(unit):
            try:
                value = float(text[: -len(unit)])
            except ValueError:
                break
            if 0 < value < 1e9:
                return value * seconds
            break
    raise NestlingError(f"{what}: {text!r} is not a time such as 5ms, 90s or 10min.")
