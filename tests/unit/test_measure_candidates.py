"""Measuring candidates: their data, their reference, names, cache, comparison."""

from __future__ import annotations

import contextlib
import gc
import math
import os
from pathlib import Path

import numpy as np
import pytest

from toolkit.codegen.collector import paused_collector
from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder, reduce_axis
from toolkit.ir.compute import sum as add_up
from toolkit.ir.evaluate import evaluate
from toolkit.ir.expr import call, cast
from toolkit.ir.loop import PrimFunc
from toolkit.measure.candidates import builder
from toolkit.measure.candidates.builder import Builder, Built
from toolkit.measure.candidates.check import Expected, expected, first_wrong, TOLERANCE
from toolkit.measure.candidates.compare import median_bounds
from toolkit.measure.candidates.data import is_exact, task_data, widen
from toolkit.measure.candidates.host import HostMeasurer, UNIT_SIZE, unit_sizes
from toolkit.measure.candidates.source import copies, print_trial, source_text
from toolkit.measure.candidates.worker import pace
from toolkit.schedule.default import default_trace
from toolkit.schedule.examples import byte_products, copy_rows, matmul
from toolkit.schedule.steps.annotate import Unroll
from toolkit.schedule.steps.split import Split
from toolkit.search.result import Status
from toolkit.space.task import Candidate, candidate, Task
from toolkit.targets.target import get_target
from toolkit.toolchain.compiler import Compiler, find_compiler

TARGET = get_target("host")
TASK = Task(matmul(24, 32, 16), TARGET)


def default(task: Task = TASK) -> Candidate:
    return candidate(task, default_trace(task.func, TARGET.isa), {}, origin="default")


def gather() -> PrimFunc:
    """y[i] = x[at[i]]."""
    x, at = placeholder((5,), "float32", "x"), placeholder((7,), "int64", "at")
    return build([compute((7,), lambda i: x[cast(at[i], "index")], "y")], [x, at])


# ---- data


def test_data_is_the_same_for_a_seed_and_another_for_another() -> None:
    func = matmul()
    one, same, other = task_data(func, 1), task_data(func, 1), task_data(func, 2)
    for name in ("a", "w"):
        assert np.array_equal(one.check[name], same.check[name])
        assert not np.array_equal(one.check[name], other.check[name])


def test_inputs_hold_awkward_values_only_where_they_are_checked() -> None:
    data = task_data(matmul(32, 16, 32), 0)
    odd, plain = data.check["a"], data.time["a"]
    denormal = (np.abs(odd) < np.finfo(np.float32).tiny) & (odd != 0)
    assert denormal.any()
    assert (odd == 0).any()
    assert (np.abs(odd) >= 100).any()
    assert np.abs(plain).max() < 10
    assert (np.abs(plain) >= np.finfo(np.float32).tiny).all()
    assert np.array_equal(data.check["w"], data.time["w"])


def test_values_that_are_subscripts_stay_within_what_they_index() -> None:
    values = task_data(gather(), 3).check["at"]
    assert values.min() >= 0
    assert values.max() < 5
    assert len(set(values.tolist())) > 1


def test_positive_data_has_no_negative_floats() -> None:
    data = task_data(matmul(), 0, positive=True)
    assert all((v >= 0).all() for v in (*data.check.values(), *data.time.values()))


def test_a_widened_function_computes_the_same_with_less_rounding() -> None:
    func = matmul(4, 8, 64)
    data = task_data(func, 0).time
    wide = evaluate(widen(func), {n: v.astype(np.float64) for n, v in data.items()})["y"]
    narrow = evaluate(func, data)["y"]
    exact = np.maximum(data["a"].astype(np.float64) @ data["w"].astype(np.float64), 0)
    assert wide.dtype == np.float64
    assert np.abs(wide - exact).max() < 1e-12, "rounding of float64: 64 terms of size 1"
    assert 0 < np.abs(narrow - exact).max() < 1e-4, "rounding of float32: 64 terms of size 1"


def test_functions_of_the_bits_of_floats_are_not_widened() -> None:
    x = placeholder((4,), "float32", "x")
    func = build([compute((4,), lambda i: call("bits", x[i]), "y")], [x])
    assert widen(func) is func


def test_only_functions_without_floats_are_exact() -> None:
    assert is_exact(byte_products())
    assert not is_exact(copy_rows())
    x = placeholder((4,), "int8", "x")
    through = compute((4,), lambda i: cast(cast(x[i], "float32") * 0.3, "int8"), "y")
    assert not is_exact(build([through], [x]))


# ---- check


def test_floats_may_differ_by_the_tolerance_of_the_largest_magnitude() -> None:
    value = np.array([0.0, 1.0, -100.0])
    want = expected(value, value.astype(np.float32), "y", exact=False)
    limit = TOLERANCE * 100
    assert not first_wrong((value + 0.9 * limit).astype(np.float32), want)
    wrong = value.copy()
    wrong[1] += 1.5 * limit
    assert first_wrong(wrong.astype(np.float32), want) == (
        f"y[1] is {np.float32(wrong[1]):.9g}, expected 1 (1 of 3 elements differ)"
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_must_be_expected(bad: float) -> None:
    value = np.array([1.0, 2.0])
    want = expected(value, value.astype(np.float32), "y", exact=False)
    assert "y[0] is" in first_wrong(np.array([bad, 2.0], np.float32), want)
    odd = np.array([bad, 2.0])
    want = expected(odd, odd.astype(np.float32), "y", exact=False)
    assert not first_wrong(odd.astype(np.float32), want)
    assert "y[0] is 1" in first_wrong(np.array([1.0, 2.0], np.float32), want)


def test_elements_that_overflow_float32_alone_are_not_judged() -> None:
    wide, narrow = np.array([1e39, 1.0]), np.array([np.inf, 1.0], np.float32)
    want = expected(wide, narrow, "y", exact=False)
    assert not first_wrong(np.array([np.nan, 1.0], np.float32), want)
    assert first_wrong(np.array([np.nan, 3.0], np.float32), want)


def test_an_ill_conditioned_element_may_be_as_far_off_as_its_two_references() -> None:
    wide, narrow = np.array([1.0, 1.0]), np.array([1.5, 1.0], np.float32)
    want = expected(wide, narrow, "y", exact=False)
    assert not first_wrong(np.array([2.0, 1.0], np.float32), want)
    assert "y[1]" in first_wrong(np.array([2.0, 2.0], np.float32), want)


def test_integers_are_exact_unless_floats_were_rounded_to_them() -> None:
    value = np.array([1, 2], np.int8)
    near = np.array([1, 3], np.int8)
    assert "y[1] is 3, expected 2" in first_wrong(near, expected(value, value, "y", exact=True))
    assert not first_wrong(near, expected(value, value, "y", exact=False))
    assert first_wrong(np.array([1, 4], np.int8), expected(value, value, "y", exact=False))


def test_integers_at_the_ends_of_their_type_do_not_wrap() -> None:
    low, high = np.array([-128], np.int8), np.array([127], np.int8)
    assert first_wrong(high, Expected("y", low, np.asarray(1.0)))
    assert first_wrong(low, Expected("y", high, np.asarray(1.0)))


# ---- comparing


@pytest.mark.parametrize("count", [5, 11, 41, 101])
def test_the_bounds_hold_the_median_as_often_as_they_say(count: int) -> None:
    low, high = median_bounds(count, 0.95)
    assert 0 <= low <= high < count
    assert low + high == count - 1
    # The median lies below position `low` where at most `low` values are below it.
    outside = 2 * sum(math.comb(count, k) for k in range(low + 1)) / 2**count
    tighter = 2 * sum(math.comb(count, k) for k in range(low + 2)) / 2**count
    assert outside <= 0.05 or low == 0
    assert tighter > 0.05


# ---- source


@pytest.mark.parametrize("jobs", [1, 2, 8])
@pytest.mark.parametrize("count", [1, 2, 5, 16, 64, 300])
def test_files_hold_every_candidate_and_begin_and_end_small(count: int, jobs: int) -> None:
    sizes = unit_sizes(count, jobs)
    assert sum(sizes) == count
    assert all(1 <= size <= UNIT_SIZE for size in sizes)
    assert max(sizes[0], sizes[-1]) <= 4
    if count >= 16 * jobs:  # what all do together is not one file a candidate
        assert len(sizes) < count / 2


def test_the_collector_of_cycles_is_paused_and_runs_again() -> None:
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
        with paused_collector():
            pass
        assert not gc.isenabled()
    with contextlib.suppress(KeyError), paused_collector():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()  # who switched it off before is obeyed
    finally:
        gc.enable()


def test_equal_kernels_have_one_name_and_stand_in_a_file_once() -> None:
    one, same = print_trial(TASK.func), print_trial(TASK.func.with_(name="another"))
    other = print_trial(candidate(TASK, (Split("i", (4,)),), {}).func)
    assert one == same
    assert one.entry != other.entry
    text = source_text([one, other, same])
    assert text.count(f"void {one.entry}(void *const *p) {{") == 1
    assert text.count(f"void {other.entry}(void *const *p) {{") == 1


def test_copies_are_counted_before_they_are_printed() -> None:
    assert copies(TASK.func) == 2
    assert copies(candidate(TASK, (Unroll("j"), Unroll("k")), {}).func) == 32 * 16 + 1


# ---- host


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


pytestmark = pytest.mark.needs("gcc")


def test_what_was_built_is_not_built_again_whatever_stands_beside_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    gcc = tmp_path / "gcc"
    gcc.write_text(f'#!/bin/sh\necho "$*" >> {log}\nexec {find_compiler().command} "$@"\n')
    gcc.chmod(0o755)
    some = [default(), *(candidate(TASK, (Split("i", (n,)),), {}) for n in (2, 3, 4))]

    def built() -> int:
        return log.read_text().count("unit.c")

    with HostMeasurer(TARGET, cache_dir=tmp_path / "cache", compiler=Compiler(str(gcc))) as host:
        host.measure(some[:2])
        first = built()
        host.measure(some)
        second = built()
    assert first > 0
    assert second == first + 1, "the two new ones, in one file"
    with HostMeasurer(TARGET, cache_dir=tmp_path / "cache", compiler=Compiler(str(gcc))) as host:
        results = host.measure(list(reversed(some)))
    assert built() == second
    assert [r.status for r in results] == [Status.OK] * 4


def test_a_small_cache_keeps_what_was_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "_YOUNG_S", -1.0)
    compiler = find_compiler()
    kernels = [print_trial(candidate(TASK, (Split("i", (n,)),), {}).func) for n in (2, 3, 4)]
    made = Builder(compiler, ("-O0",), tmp_path)
    libraries = [b.library for k in kernels for b in made.build([k]) if isinstance(b, Built)]
    size = libraries[0].stat().st_size
    for age, library in zip((10, 30, 20), libraries, strict=True):
        os.utime(library, (1e9 - age, 1e9 - age))
    small = Builder(compiler, ("-O0",), tmp_path, limit_bytes=int(2.5 * size))
    assert [p.exists() for p in libraries] == [True, False, True]
    assert [small.find(k) is not None for k in kernels] == [True, False, True]
    assert len(list((tmp_path / "kernels").iterdir())) == 2, "no link dangles"


def test_a_result_says_what_the_candidate_takes(cache: Path) -> None:
    with HostMeasurer(TARGET, cache_dir=cache) as host:
        plain, tuned = host.measure([candidate(TASK, (), {}), default()])
    weights = 16 * 32 * 4
    assert plain.ram_bytes == 24 * 32 * 4, "the sums before the maximum"
    assert tuned.ram_bytes == 0
    for result in (plain, tuned):
        assert result.flash_bytes is not None
        assert weights < result.flash_bytes < weights + 20_000
        assert result.device == TARGET.name
        assert len(result.samples) >= 2


def test_storage_that_a_candidate_cannot_share_counts_as_its_ram(cache: Path) -> None:
    a = placeholder((8, 8), "float32", "a")
    k = reduce_axis(8, "k")
    total = compute((8,), lambda i: add_up(a[i, k], k), "t")
    func = build([compute((8, 8), lambda i, j: a[i, j] - total[i], "y")], [a])
    shared = Task(func, TARGET, inplace=(("a", "y"),))
    with HostMeasurer(TARGET, cache_dir=cache) as host:
        (alone,) = host.measure([candidate(Task(func, TARGET), (), {})])
        (result,) = host.measure([candidate(shared, (), {})])
    assert alone.ram_bytes == 8 * 4
    assert result.ram_bytes == 8 * 4 + 8 * 8 * 4


def test_more_work_is_found_to_take_longer_and_loses_the_race(cache: Path) -> None:
    """The same kernel called 30 times: no machine is so busy that this is not seen."""
    base, slow = candidate(TASK, (), {}), candidate(TASK, (Split("i", (1,)),), {})

    def alter(one: Candidate, text: str) -> str:
        if one.key != slow.key:
            return text
        head, calling = text.rstrip()[:-1].rsplit("{\n", 1)
        return f"{head}{{\n    for (int i = 0; i < 30; i++) {{\n{calling}    }}\n}}\n"

    with HostMeasurer(TARGET, cache_dir=cache, alter=alter) as host:
        first, second = host.measure([base, slow])
        same, other = host.compare([base, slow], rounds=15)
    assert first.confident or len(first.samples) > 3
    assert not second.confident
    assert len(second.samples) < 7
    assert same.ratio == same.low == same.high == 1.0
    assert other.low is not None
    assert other.low > 2.0


def test_a_candidate_that_fails_is_left_out_of_a_comparison(cache: Path) -> None:
    good, bad = default(), candidate(TASK, (Split("i", (2,)),), {})

    def alter(one: Candidate, text: str) -> str:
        return text.replace("*p) {\n", "*p) {\n    __builtin_trap();\n") if one is bad else text

    with HostMeasurer(TARGET, cache_dir=cache, alter=alter) as host:
        found = host.compare([good, bad, candidate(TASK, (), {})], rounds=3)
    assert [f.status for f in found] == [Status.OK, Status.CRASHED, Status.OK]
    assert found[1].ratio is None
    assert found[2].ratio is not None


def test_the_caller_may_use_all_its_cores_again(cache: Path) -> None:
    before = os.sched_getaffinity(0)
    with HostMeasurer(TARGET, cache_dir=cache) as host:
        host.measure([default()])
        assert os.sched_getaffinity(0) == before


def test_an_interrupted_yardstick_makes_no_sample_fast() -> None:
    assert pace(100.0, 104.0) == 102.0
    assert pace(100.0, 800.0) == pace(800.0, 100.0) == 100.0
