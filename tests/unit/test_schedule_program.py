"""Holes, sketches and recorded programs: domains, projection, replay, and their text forms."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pytest

from toolkit.errors import NestlingError, ScheduleError
from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder, reduce_axis, sum
from toolkit.ir.expr import maximum
from toolkit.ir.interp import interpret
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.hole import divisors, OneOf, PerfectTile, replay, Tile
from toolkit.schedule.program import record, Recorder
from toolkit.schedule.steps.split import Split
from toolkit.schedule.trace import HOLES, trace_from_json, trace_to_json, trace_to_python


def product(m: int = 12, n: int = 8, depth: int = 6) -> PrimFunc:
    """y = relu(a b), a [m, depth], b [depth, n]."""
    a, b = placeholder((m, depth), "float32", "a"), placeholder((depth, n), "float32", "b")
    k = reduce_axis(depth, "k")
    c = compute((m, n), lambda i, j: sum(a[i, k] * b[k, j], k), "c")
    y = compute((m, n), lambda i, j: maximum(c[i, j], 0), "y")
    return build([y], [a, b], "product")


def tiled(sch: Recorder) -> None:
    """A register tile with every choice left open."""
    i, j = sch.loops("y")
    i0, i1 = sch.split(i, sch.sample_perfect_tile(2, max_inner=8, name="rows"))
    j0, j1 = sch.split(j, sch.sample_tile(max_inner=8, name="columns"), "guard")
    sch.reorder(i0, j0, i1, j1)
    if sch.branch("unrolled", "plain") == "unrolled":
        sch.unroll(i1)
    sch.vectorize(j1)
    sch.compute_at("c", sch.sample_compute_location(name="where"))


def run(func: PrimFunc) -> np.ndarray:
    rng = np.random.default_rng(3)
    inputs = {b.name: rng.integers(-4, 5, b.shape).astype(b.dtype) for b in func.inputs}
    return np.asarray(interpret(func, inputs)["y"], dtype=np.float64)


def test_a_program_is_recorded_once_for_each_branch() -> None:
    sketches = record(product(), tiled)
    assert len(sketches) == 2
    assert len(sketches[0]) == len(sketches[1]) + 1


def test_random_decisions_replay_and_keep_the_meaning(rng: np.random.Generator) -> None:
    func = product()
    expected = run(func)
    draw = random.Random(int(rng.integers(2**31)))
    for sketch in record(func, tiled):
        for _ in range(20):
            result = replay(func, sketch, {}, draw)
            assert result.log_prior < 0
            np.testing.assert_array_equal(run(result.func), expected)
            again = replay(func, sketch, result.decisions)
            assert again.trace == result.trace


def test_decisions_transfer_between_shapes_by_projection() -> None:
    sketch = record(product(), tiled)[0]
    decisions = replay(product(), sketch, {}, random.Random(5)).decisions
    other = product(m=35, n=9, depth=4)
    moved = replay(other, sketch, {**decisions, "rows": (6,)})
    assert moved.decisions["rows"] in {(5,), (7,)}
    np.testing.assert_array_equal(run(moved.func), run(other))


def test_perfect_tiles_are_all_the_factorisations() -> None:
    func = product(m=12)
    i, _ = Recorder(func, ()).loops("y")
    tile = PerfectTile("t", 3, max_inner=4)
    domain = tile.values(func, Split(i, (1, 1)))
    assert set(domain) == {
        (a, b) for a in divisors(12) for b in divisors(12) if 12 % (a * b) == 0 and b <= 4
    }


def test_wasteful_tiles_are_left_out() -> None:
    func = product(m=13)
    i, _ = Recorder(func, ()).loops("y")
    domain = Tile("t", max_inner=13, waste=0.1).values(func, Split(i, (1,), "guard"))
    assert domain == ((1,), (2,), (7,), (13,))


def test_a_sampled_value_cannot_steer_the_program() -> None:
    def wrong(sch: Recorder) -> None:
        if sch.sample_categorical((1, 2)):
            raise AssertionError

    with pytest.raises(TypeError, match=r"sch\.branch"):
        record(product(), wrong)


def test_a_refused_way_is_left_out_and_a_hopeless_program_says_why() -> None:
    def half(sch: Recorder) -> None:
        i, _ = sch.loops("y")
        sch.split(i, (sch.branch(4, 5),))

    assert len(record(product(), half)) == 1

    def hopeless(sch: Recorder) -> None:
        sch.split("nowhere", (4,))

    with pytest.raises(ScheduleError, match="there is no loop 'nowhere'"):
        record(product(), hopeless)


def test_traces_and_sketches_survive_json_and_python() -> None:
    func = product()
    for sketch in record(func, tiled):
        trace = replay(func, sketch, {}).trace
        for steps in (sketch, trace):
            rows = json.loads(json.dumps(trace_to_json(steps)))
            assert trace_from_json(rows) == steps
        names = {type(s).__name__: type(s) for s in trace}
        assert eval(trace_to_python(trace), dict(names)) == trace


def test_unknown_steps_and_fields_are_named() -> None:
    with pytest.raises(NestlingError, match="unknown step 'Splice'"):
        trace_from_json([{"step": "Splice"}])
    with pytest.raises(NestlingError, match="Split has no field 'factor'"):
        trace_from_json([{"step": "Split", "loop": "i", "factor": 4}])
    with pytest.raises(NestlingError, match="Split needs the field 'factors'"):
        trace_from_json([{"step": "Split", "loop": "i"}])


def test_numbers_project_to_the_nearest_octave() -> None:
    hole = OneOf("u", (1, 4, 16, 64))
    assert hole.project(hole.choices, 20) == 16
    assert hole.project(hole.choices, 1000) == 64


def test_no_field_of_a_hole_hides_what_kind_it_is_in_json() -> None:
    for kind in HOLES.values():
        assert "hole" not in {f.name for f in dataclasses.fields(kind)}
