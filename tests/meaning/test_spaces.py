"""Random candidates of every space compute what their base function does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.base_functions import layer_functions, LAYERS
from tests.conftest import REPO
from tests.meaning.batch import Batch
from tests.meaning.machines import run_on
from toolkit.ir.interp import interpret, same
from toolkit.ir.loop import PrimFunc
from toolkit.ir.verify import verify_func
from toolkit.lowering.kernels import pack_constant, packing
from toolkit.schedule.default import Trace
from toolkit.schedule.steps.rfactor import RFactor
from toolkit.space.spaces import load_space, SPACES
from toolkit.space.task import Candidate, candidate, Task
from toolkit.space.validate import validate
from toolkit.targets.target import get_target

TARGETS = ("x86-64-v4", "x86-64-v3", "aarch64", "cortex-m4")
Arrays = dict[str, np.ndarray]


def operands(func: PrimFunc, rng: np.random.Generator) -> Arrays:
    return {b.name: rng.integers(-3, 4, b.shape).astype(b.dtype) for b in func.inputs}


def laid_out(arrays: Arrays, trace: Trace) -> Arrays:
    return {
        n: pack_constant(trace, n, arrays.__getitem__) if packing(trace, n) else a
        for n, a in arrays.items()
    }


def candidates(space: str, task: Task, draw: random.Random, each: int) -> Iterator[Candidate]:
    for sketch in SPACES[space].sketches(task):
        for _ in range(each):
            yield candidate(task, sketch, {}, draw)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("space", SPACES)
def test_random_candidates_mean_their_function(
    space: str, layer: str, rng: np.random.Generator
) -> None:
    draw = random.Random(int(rng.integers(2**31)))
    for func in layer_functions(layer):
        arrays = operands(func, rng)
        want = interpret(func, arrays)
        for name in draw.sample(TARGETS, 2):
            task = Task(func, get_target(name))
            for found in candidates(space, task, draw, 2):
                verify_func(found.func)
                assert validate(found) is None, found.trace
                got = interpret(found.func, laid_out(arrays, found.trace))
                for output in want:
                    assert same(want[output], got[output]), (name, found.trace)


def test_the_example_of_a_module_means_its_function(rng: np.random.Generator) -> None:
    draw = random.Random(int(rng.integers(2**31)))
    space = load_space("metaschedule", [REPO / "examples" / "chains.py"])
    [func] = layer_functions("gemv")
    arrays = operands(func, rng)
    want = interpret(func, arrays)
    for name in TARGETS[:2]:  # whose vectors hold ten columns in two or less
        task = Task(func, get_target(name))
        for _ in range(8):
            found = candidate(task, space.sketches(task)[0], {}, draw)
            assert any(isinstance(step, RFactor) for step in found.trace)
            got = interpret(found.func, laid_out(arrays, found.trace))
            assert all(same(want[output], got[output]) for output in want)


@pytest.mark.parametrize("target", TARGETS)
def test_random_candidates_compute_the_same_in_c(
    target: str,
    tmp_path: Path,
    rng: np.random.Generator,
    need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:
    draw = random.Random(int(rng.integers(2**31)))
    isa = get_target(target).isa
    batch = Batch()
    calls: list[tuple[int, Arrays]] = []
    wanted: list[Arrays] = []
    for space in SPACES:
        for layer in LAYERS:
            for func in layer_functions(layer):
                arrays = operands(func, rng)
                want = interpret(func, arrays, exact=False)
                found = list(candidates(space, Task(func, get_target(target)), draw, 2))
                for one in draw.sample(found, min(len(found), 2)):
                    number = batch.add(one.func, [str(step) for step in one.trace], isa)
                    calls.append((number, laid_out(arrays, one.trace)))
                    wanted.append(want)
    got = run_on(isa.name, batch, calls, tmp_path, need_tool, need_cpu, ("-O1",))
    for (number, _), want, result in zip(calls, wanted, got, strict=True):
        comment = batch.kernels[number][0].comment
        for name, array in want.items():
            # Sums of small integers are exact; the rest may be fused and reassociated.
            np.testing.assert_allclose(
                result[name], array.astype(np.float32), rtol=1e-4, atol=1e-5, err_msg=str(comment)
            )


def test_guards_name_no_loop_of_one_iteration(
    tmp_path: Path, rng: np.random.Generator, need_tool: Callable[[str], str]
) -> None:
    """Found by a random candidate: all taps in one tile, and a guard outside that tile's loop."""
    need_tool("gcc")
    func = layer_functions("depthwise")[1]
    arrays = operands(func, rng)
    task = Task(func, get_target("generic"))
    decisions = {"unroll": (3,), "rows": (2,), "columns": (4,)}
    found = candidate(task, SPACES["metaschedule"].sketches(task)[0], decisions)
    assert found.decisions["unroll"] == (3,)
    batch = Batch()
    batch.add(found.func)
    batch.build(tmp_path)
    got = batch.run(0, laid_out(arrays, found.trace))
    for name, array in interpret(func, arrays).items():
        np.testing.assert_allclose(got[name], array.astype(np.float32), rtol=1e-5)
