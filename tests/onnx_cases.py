"""The test cases of `onnx.backend.test`, run many at a time.

    python -m tests.onnx_cases [--target=T] [--executor=E] [--constants] PATTERN...

prints one line a case.  PATTERN matches names (`fnmatch`), is `op:NAME` (all node tests whose only
node is NAME) or `tier:NAME` (see `tiers`).
"""

from __future__ import annotations

import fcntl
import fnmatch
import hashlib
import json
import os
import pickle
import platform
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.loader as onnx_loader
from onnx.backend.test.loader import load_node_model_tests as make_node_tests

from tests.model_batch import ModelBatch
from toolkit.backend import import_for, OPTIONS
from toolkit.errors import NestlingError, UnsupportedError
from toolkit.pipeline import compile_model, Compiled, load, Options

REPO = Path(__file__).resolve().parents[1]
TIERS_TSV = REPO / "tests" / "e2e" / "onnx_backend_tiers.tsv"
BATCH = 25
"""Cases in one library."""

DISK_KINDS = ("pytorch-converted", "pytorch-operator", "simple", "light")
"""Kinds of cases whose models lie as files in the package `onnx`."""


@dataclass(frozen=True)
class Case:
    """A model, and inputs and expected outputs for it."""

    name: str
    kind: str
    model: onnx.ModelProto
    data_sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that data sets give."""
        initialised = {t.name for t in self.model.graph.initializer}
        return [i.name for i in self.model.graph.input if i.name not in initialised]

    @property
    def op(self) -> str:
        """The operator of a model of one kind of node, else nothing."""
        ops = {n.op_type for n in self.model.graph.node}
        return ops.pop() if len(ops) == 1 else ""


# ------------------------------------------------------------------------------------------- cases


@cache
def tiers() -> dict[str, list[str]]:
    """Return the names of the cases by tier: node cases by what they need, others by kind.

    A1: operators of common models; A2: the rest of the core; A2b: niche operators; A3: operators of
    language models; expanded: A1 as function bodies; loss, control, double, ... say it themselves.
    """
    result: dict[str, list[str]] = {}
    for line in TIERS_TSV.read_text(encoding="utf-8").splitlines()[1:]:
        name, tier = line.split("\t")[:2]
        result.setdefault(tier, []).append(name)
    return result


@cache
def tier_of() -> dict[str, str]:
    """Return the tier of each case."""
    return {name: tier for tier, names in tiers().items() for name in names}


@cache
def _pickled_node_cases() -> dict[str, bytes]:
    """Return all node cases; making them takes `onnx` ten seconds, so they are kept in a file."""
    version = f"{onnx.__version__} {np.__version__} {platform.python_version()}"
    folder = REPO / ".cache"
    folder.mkdir(exist_ok=True)
    place = folder / f"onnx-node-cases-{hashlib.sha256(version.encode()).hexdigest()[:12]}.pickle"
    with (folder / "onnx-node-cases.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cases = make_node_tests()
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                pickle.dump({case.name: pickle.dumps(case) for case in cases}, file)
            os.replace(file.name, place)
    result: dict[str, bytes] = pickle.loads(place.read_bytes())
    return result


def node_tests() -> list[Any]:
    """Return all node tests as `onnx.backend.test` makes them."""
    return [pickle.loads(raw) for raw in _pickled_node_cases().values()]


@cache
def case_named(name: str) -> Case:
    """Return a case."""
    tier = tier_of().get(name, "")
    if tier in DISK_KINDS:
        return _disk_case(name, tier)
    test = pickle.loads(_pickled_node_cases()[name])
    return Case(name, "node", test.model, test.data_sets, test.rtol, test.atol)


def _disk_case(name: str, kind: str) -> Case:
    data = Path(onnx_loader.DATA_DIR)
    rtol, atol = 1e-3, 1e-7
    if kind == "light":
        return _light_case(name, data / "light" / f"light_{name.removeprefix('test_')}.onnx")
    folder = data / kind / name
    if (folder / "data.json").exists():
        settings = json.loads((folder / "data.json").read_text())
        rtol, atol = settings.get("rtol", rtol), settings.get("atol", atol)
    model = onnx.load(folder / "model.onnx")
    data_sets = []
    for place in sorted(folder.glob("test_data_set_*")):
        count = len(list(place.glob("input_*.pb")))
        inputs = [_read(place / f"input_{i}.pb", model.graph.input[i].type) for i in range(count)]
        outputs = [
            _read(place / f"output_{i}.pb", value.type)
            for i, value in enumerate(model.graph.output)
        ]
        data_sets.append((inputs, outputs))
    return Case(name, kind, model, data_sets, rtol, atol)


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    if kind.HasField("sequence_type"):
        sequence = onnx.SequenceProto.FromString(path.read_bytes())
        return onnx.numpy_helper.to_list(sequence)
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def _light_case(name: str, path: Path) -> Case:
    """Return a case of a large network whose weights a few nodes make; its input is a ramp."""
    model = onnx.load(path)
    initialised = {t.name for t in model.graph.initializer}
    inputs = []
    for value in model.graph.input:
        if value.name not in initialised:
            shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
            size = int(np.prod(shape))
            inputs.append((np.arange(size).reshape(shape) / size).astype(np.float32))
    places = [path.with_name(f"{path.stem}_output_{i}.pb") for i in range(len(model.graph.output))]
    outputs = [_read(p, v.type) for p, v in zip(places, model.graph.output, strict=True)]
    return Case(name, "light", model, [(inputs, outputs)], 1e-3, 1e-7)


def matching(patterns: Iterable[str]) -> list[str]:
    """Return the names of the cases that a pattern selects."""
    names = [*_pickled_node_cases(), *(n for kind in DISK_KINDS for n in tiers().get(kind, ()))]

    def wanted(name: str, pattern: str) -> bool:
        if pattern.startswith("op:"):
            return case_named(name).op == pattern[3:]
        if pattern.startswith("tier:"):
            return tier_of().get(name, "") == pattern[5:]
        return fnmatch.fnmatch(name, pattern)

    asked = list(patterns)
    return [n for n in names if any(wanted(n, p) for p in asked)]


# --------------------------------------------------------------------------------------------- run


@dataclass(frozen=True)
class Result:
    """What came of a case; `error` is None when it holds.  `pinned`: inputs made constants."""

    error: Exception | None
    pinned: frozenset[str] = frozenset()
    kernels: int = 0

    @property
    def text(self) -> str:
        """One line."""
        match self.error:
            case None:
                return "ok"
            case NestlingError():
                return "refused: " + " | ".join(str(self.error).split("\n"))
            case AssertionError():
                return "wrong: " + " ".join(str(self.error).split())
            case _:
                kind = type(self.error).__name__
                last = traceback.extract_tb(self.error.__traceback__)[-1]
                where = f"{Path(last.filename).name}:{last.lineno}"
                return f"broken: {kind} at {where}: {' '.join(str(self.error).split())}"


@dataclass(frozen=True)
class _Run:
    compiled: Compiled
    pinned: frozenset[str]
    inputs: dict[str, np.ndarray]
    expected: list[Any]


def run_cases(
    names: Sequence[str], options: Options = OPTIONS, *, constants: bool = False
) -> dict[str, Result]:
    """Compile cases, build them as one library, run them and compare.

    `constants`: every input but the largest becomes a constant, as weights are in a model.
    """
    results: dict[str, Result] = {}
    ready: dict[str, list[_Run]] = {}
    for name in names:
        try:
            ready[name] = _compile(case_named(name), options, constants)
        except Exception as error:  # noqa: BLE001 - a broken case must not hide the others
            results[name] = Result(error)
    with ModelBatch([r.compiled for runs in ready.values() for r in runs]) as batch:
        for name, runs in ready.items():
            pinned = runs[0].pinned
            kernels = sum(len(r.compiled.program.kernels) for r in runs)
            try:
                _check(case_named(name), runs, batch)
            except Exception as error:  # noqa: BLE001
                results[name] = Result(error, pinned, kernels)
            else:
                results[name] = Result(None, pinned, kernels)
    return results


def _compile(case: Case, options: Options, constants: bool) -> list[_Run]:
    runs = []
    for index, (inputs, outputs) in enumerate(case.data_sets):
        arrays = {
            n: to_array(x) for n, x in zip(case.inputs, inputs, strict=False) if x is not None
        }
        name = case.name if index == 0 else f"{case.name}_{index}"
        model, pinned = import_for(case.model, arrays, name)
        if constants and len(pinned) < len(arrays):
            largest = max(arrays.keys() - pinned, key=lambda n: (arrays[n].size, n))
            pinned = frozenset(arrays.keys() - {largest})
            pins, shapes = {n: arrays[n] for n in pinned}, {largest: arrays[largest].shape}
            model = load(case.model, input_shapes=shapes, pins=pins, name=name)
        compiled = compile_model(model, options)
        given = {n: a for n, a in arrays.items() if n not in pinned}
        runs.append(_Run(compiled, pinned, given, list(outputs)))
    return runs


def _check(case: Case, runs: Sequence[_Run], batch: ModelBatch) -> None:
    for run in runs:
        found = list(batch.run(run.compiled, run.inputs).values())
        assert len(found) == len(run.expected), (len(found), len(run.expected))
        for got, want in zip(found, map(to_array, run.expected), strict=True):
            assert got.shape == want.shape, f"shape {got.shape}, not {want.shape}"
            assert got.dtype == want.dtype, f"type {got.dtype}, not {want.dtype}"
            np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.atol)


def to_array(x: Any) -> np.ndarray:
    """Return an array of a data set."""
    if isinstance(x, onnx.TensorProto):
        return onnx.numpy_helper.to_array(x)
    if isinstance(x, list):
        raise UnsupportedError("sequences of tensors are not supported")
    return np.asarray(x)


def batches(names: Sequence[str], size: int = BATCH) -> list[list[str]]:
    """Return the names in groups that are built together."""
    return [list(names[i : i + size]) for i in range(0, len(names), size)]


def main() -> None:
    """Run the cases named on the command line."""
    words = sys.argv[1:]
    named = dict(w[2:].split("=", 1) for w in words if w.startswith("--") and "=" in w)
    constants = "--constants" in words
    options = Options(
        target=named.get("target", OPTIONS.target),
        executor=named.get("executor", "graph"),
        cflags=OPTIONS.cflags,
    )
    failed = count = 0
    for names in batches(matching(w for w in words if not w.startswith("--"))):
        for name, result in run_cases(names, options, constants=constants).items():
            count += 1
            failed += result.error is not None
            note = f" (pinned: {', '.join(sorted(result.pinned))})" if result.pinned else ""
            note += " (nothing left to run)" if not result.error and not result.kernels else ""
            print(f"{name}: {result.text[:400]}{note}", flush=True)
    print(f"{count - failed} passed, {failed} failed")


if __name__ == "__main__":
    main()
