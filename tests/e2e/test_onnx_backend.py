"""The backend tests of ONNX, through the C compiler: exactly the known ones fail.

Cases are built by the batch, one library each (`tests.onnx_cases.run_cases`); the first case of a
batch that a process runs pays for the others that were selected with it.  `make test` runs the
operators of common models on plain C, and samples with the vector code of this machine, with
direct calls, and with operands that are constants; `make test-all` runs everything that can be
compiled, on both.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.onnx_cases import BATCH, batches, Result, run_cases, tiers
from toolkit.errors import ModelError, UnsupportedError
from toolkit.pipeline import Options

KNOWN_TSV = Path(__file__).with_name("onnx_backend_known.tsv")

CORE = ("A1", "A2", "pytorch-converted", "pytorch-operator", "simple")
REST = ("expanded", "A2b", "A3", "double", "loss", "control", "signal", "dynamic", "light")
"""What else can be compiled.  Not asked: random numbers, training, sequences, strings, float16,
types of 8 and fewer bits, ai.onnx.ml."""

AT_LEAST = {
    ("A1",): 486,
    ("A2",): 310,
    ("pytorch-converted", "pytorch-operator"): 117,
    ("expanded",): 335,
}
FAILURES = {"refused": (ModelError, UnsupportedError), "differs": AssertionError}
"""How a case may fail: refused, with a sentence; or with another answer, which needs a reason."""
SAMPLE, SEED = 60, 7
HEAVY = 3
"""Whole networks in one library."""

GENERIC = Options(target="generic", cflags=("-O1",))
HOST = Options(target="host", cflags=("-O1",))
AOT = Options(target="generic", executor="aot", cflags=("-O1",))


@cache
def known() -> dict[str, tuple[str, str]]:
    """Return how and why each case fails that is known to."""
    rows = (line.split("\t") for line in KNOWN_TSV.read_text(encoding="utf-8").splitlines()[1:])
    return {name: (how, reason) for name, how, reason in rows}


@dataclass(frozen=True)
class Place:
    """A case, and the batch it is built with."""

    name: str
    batch: str
    options: Options
    constants: bool = False


def names_of(names: Sequence[str]) -> list[str]:
    return [name for tier in names for name in tiers()[tier]]


def sampled() -> list[str]:
    """Return cases of all core tiers that hold, always the same."""
    names = [name for name in names_of(CORE) if name not in known()]
    return sorted(random.Random(SEED).sample(names, SAMPLE))


def places(
    kind: str, names: Sequence[str], options: Options, *marks: Any, constants: bool = False
) -> list[Any]:
    """Return parameters for cases, in batches that keep together on one worker."""
    light = set(tiers()["light"])
    small = [n for n in names if n not in light]
    groups = [*batches(small, BATCH), *batches([n for n in names if n in light], HEAVY)]
    result = []
    for number, group in enumerate(groups):
        batch = f"{kind}-{number}"
        for name in group:
            place = Place(name, batch, options, constants)
            own = [*marks, pytest.mark.xdist_group(f"onnx-{batch}")]
            if name in known():
                how, reason = known()[name]
                raises = FAILURES[how]
                own.append(pytest.mark.xfail(reason=reason, raises=raises, strict=True))
            result.append(pytest.param(place, id=name, marks=own))
    return result


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, dict[str, Result]]]:
    """Results by batch and case, of the batches that this process has run."""
    found: dict[str, dict[str, Result]] = {}
    yield found
    found.clear()


def check(
    place: Place, results: dict[str, dict[str, Result]], request: pytest.FixtureRequest
) -> None:
    """Run the case's batch, as far as it is selected, when it has not run; assert the case."""
    if place.batch not in results:
        names = [
            item.callspec.params["place"].name
            for item in request.session.items
            if getattr(item, "callspec", None) is not None
            and isinstance(item.callspec.params.get("place"), Place)
            and item.callspec.params["place"].batch == place.batch
        ]
        results[place.batch] = run_cases(names, place.options, constants=place.constants)
    error = results[place.batch][place.name].error
    if error is not None:
        raise error


SAMPLED = sampled()
EVERYTHING = [name for name in names_of((*CORE, *REST)) if name not in SAMPLED]


OTHERS = [
    name for name in names_of(("A1", "A2", "A2b")) if name not in SAMPLED and name not in known()
]


@pytest.mark.parametrize(
    "place",
    [
        *places("core", names_of(CORE), GENERIC),
        *places("rest", names_of(REST), GENERIC, pytest.mark.full),
    ],
)
def test_plain_c(
    place: Place, results: dict[str, dict[str, Result]], request: pytest.FixtureRequest
) -> None:
    check(place, results, request)


@pytest.mark.parametrize(
    "place",
    [
        *places("sample-host", SAMPLED, HOST),
        *places("all-host", EVERYTHING, HOST, pytest.mark.full),
    ],
)
def test_vector_code_of_this_machine(
    place: Place, results: dict[str, dict[str, Result]], request: pytest.FixtureRequest
) -> None:
    check(place, results, request)


@pytest.mark.parametrize("place", places("sample-aot", SAMPLED, AOT))
def test_direct_calls(
    place: Place, results: dict[str, dict[str, Result]], request: pytest.FixtureRequest
) -> None:
    check(place, results, request)


@pytest.mark.parametrize(
    "place",
    [
        *places("sample-constants", SAMPLED, HOST, constants=True),
        *places("all-constants", OTHERS, HOST, pytest.mark.full, constants=True),
    ],
)
def test_all_operands_but_one_are_constants(
    place: Place, results: dict[str, dict[str, Result]], request: pytest.FixtureRequest
) -> None:
    check(place, results, request)


@pytest.mark.parametrize("group", AT_LEAST, ids="+".join)
def test_enough_cases_hold(group: tuple[str, ...]) -> None:
    names = names_of(group)
    assert sum(name not in known() for name in names) >= AT_LEAST[group]


def test_known_failures_are_cases_and_have_a_reason() -> None:
    every = {name for names in tiers().values() for name in names}
    assert set(known()) <= every
    assert all(how in FAILURES and reason for how, reason in known().values())
