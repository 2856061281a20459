"""What is remembered while candidates are replayed and predicted changes no answer."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.unit.test_tuner import Made, product
from toolkit.errors import NestlingError, ScheduleError
from toolkit.ir.loop import Block, blocks, exchange, Loop, loops_of, nest_of, Seq, statements, Stmt
from toolkit.ir.regions import block_exprs, reads, writes
from toolkit.schedule.derived import IfLoop
from toolkit.schedule.hole import OneOf, replay, Replayer, Sketch
from toolkit.schedule.steps.annotate import Annotate, Unroll
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.split import Split
from toolkit.search.cost_model import BoostedTrees, Forest, Tree
from toolkit.search.features import describe, features, featurise
from toolkit.search.pool import Pool
from toolkit.search.result import MeasureResult, Status
from toolkit.space.task import Candidate, candidate, Task
from toolkit.space.validate import Limits, validate
from toolkit.targets.target import get_target

TARGET = get_target("x86-64-v3")


def drawn(count: int = 40) -> tuple[Task, list[Candidate]]:
    """Return random candidates, each replayed once."""
    task = Task(product(24, 32, 16), TARGET)
    pool = Pool(task, Made().sketches(task), random.Random(4))
    return task, pool.draw(count)


def walked(stmt: Stmt) -> Iterator[Stmt]:
    yield stmt
    if isinstance(stmt, Loop):
        yield from walked(stmt.body)
    elif isinstance(stmt, Seq):
        for part in stmt.body:
            yield from walked(part)


def same(found: Any, wanted: Any) -> bool:
    """Tell whether two sequences hold the same objects."""
    return [*map(id, found)] == [*map(id, wanted)]


def test_what_a_statement_holds_is_what_a_walk_finds() -> None:
    for c in drawn()[1]:
        body = c.func.body
        for stmt in walked(body):
            every = list(walked(stmt))
            assert same(statements(stmt), every)
            assert same(loops_of(stmt), [s for s in every if isinstance(s, Loop)])
            found = [s for s in every if isinstance(s, Block)]
            assert same(blocks(stmt), found)
            assert writes(stmt) == {b.buffer for b in found}
            loaded = {
                e.buffer for b in found for x in block_exprs(b) for e in subexpressions(x)
                if hasattr(e, "buffer")
            }  # fmt: skip
            assert reads(stmt) == loaded
        for block in blocks(body):
            around, there = nest_of(body, block.name)
            assert there is block
            assert same(around, [l for l in loops_of(body) if any(s is block for s in walked(l))])


def subexpressions(expr: Any) -> Iterator[Any]:
    yield expr
    for name in ("a", "b", "cond"):
        if hasattr(expr, name):
            yield from subexpressions(getattr(expr, name))
    for part in (*getattr(expr, "indices", ()), *getattr(expr, "args", ())):
        yield from subexpressions(part)


def test_what_is_taken_out_leaves_no_empty_loop() -> None:
    for c in drawn()[1]:
        body = c.func.body
        for block in blocks(body):
            rest = exchange(body, block, None)
            left = [b.name for b in blocks(body) if b is not block]
            assert (rest is None) == (not left)
            if rest is not None:
                assert [b.name for b in blocks(rest)] == left
                assert all(any(True for _ in blocks(s)) for s in walked(rest))
                assert not any(isinstance(s, Seq) and len(s.body) == 1 for s in walked(rest))


def test_the_same_decisions_lead_to_the_same_function() -> None:
    task, people = drawn()
    for c in people:
        again = candidate(task, c.sketch, c.decisions)
        fresh = candidate(Task(task.func, TARGET), c.sketch, c.decisions)
        assert again.func is c.func
        assert again.trace is c.trace
        assert fresh.func is not c.func
        assert str(fresh.func) == str(c.func)
        assert (fresh.key, fresh.log_prior) == (c.key, c.log_prior)


def test_a_choice_that_left_its_step_out_leaves_the_next_choice_open() -> None:
    """Where the first hole of a step is None its second is not decided; a later step asks it."""
    text = OneOf("text", ("a", "b"))
    sketch: Sketch = (
        Annotate(OneOf("where", (None, "i")), "comment", text),  # type: ignore[arg-type]
        Annotate("j", "comment", text),  # type: ignore[arg-type]
    )
    replayer = Replayer(product(24, 32, 16))
    for where in (None, "i", None, "i"):
        for value in ("b", "a", "b"):
            done = replayer.replay(sketch, {"where": where, "text": value})
            assert done.decisions == {"where": where, "text": value}
            assert done.trace[-1] == Annotate("j", "comment", value)
            assert len(done.trace) == (1 if where is None else 2)


@dataclass(frozen=True, slots=True)
class Counted(Step):
    """Refuses, and counts how often it was asked."""

    asked: list[int]

    def apply(self, func: Any) -> Any:
        """Refuse."""
        self.asked.append(1)
        self.refuse(func, "no.")


def test_a_refusal_is_remembered_and_says_the_same() -> None:
    func = product(24, 32, 16)
    step = Counted([])
    sketch: Sketch = (Split("i", OneOf("tile", ((4,), (8,)))), step)  # type: ignore[arg-type]
    replayer = Replayer(func)
    said = []
    for _ in range(3):
        with pytest.raises(ScheduleError) as refused:
            replayer.replay(sketch, {"tile": (4,)})
        said.append(str(refused.value))
    assert len(step.asked) == 1
    assert len(set(said)) == 1
    assert "for i.0" in said[0]  # the nest in the state in which it was refused


def test_steps_that_follow_from_the_nest_do_so_in_each_state() -> None:
    func = product(24, 32, 16)
    sketch: Sketch = (
        Split("i", OneOf("tile", ((2,), (4,)))),  # type: ignore[arg-type]
        Unroll(IfLoop("i.1")),  # type: ignore[arg-type]
        Unroll(IfLoop("absent")),  # type: ignore[arg-type]
    )
    replayer = Replayer(func)
    for tile in ((2,), (4,), (2,)):
        done = replayer.replay(sketch, {"tile": tile})
        assert done.trace == (Split("i", tile), Unroll("i.1"))
        assert str(done.func) == str(replay(func, done.trace, {}).func)


def test_features_kept_with_a_function_are_those_computed_for_it() -> None:
    _, people = drawn()
    funcs = [c.func for c in people]
    first, _ = features(funcs[:10], TARGET)
    kept, owner = features([*funcs, funcs[0]], TARGET)
    wanted, owner_wanted = featurise([describe(f) for f in (*funcs, funcs[0])], TARGET)
    assert np.array_equal(kept, wanted)
    assert np.array_equal(owner, owner_wanted)
    assert np.array_equal(first, kept[: len(first)])
    other, _ = features(funcs[:1], get_target("x86-64-v4"))
    assert not np.array_equal(other, kept[: len(other)])


def walk_tree(tree: Tree, row: np.ndarray) -> float:
    at = 0
    while tree.left[at] >= 0:
        below = row[tree.feature[at]] <= tree.threshold[at]
        at = int(tree.left[at] if below else tree.right[at])
    return float(tree.value[at])


def test_joined_trees_predict_what_each_tree_says() -> None:
    _, people = drawn(60)
    model = BoostedTrees(seed=1, trees=8)
    costs = [MeasureResult(Status.OK, samples=(1.0 + n % 7,)) for n in range(len(people))]
    model.update(list(zip(people, costs, strict=True)))
    x, _ = features([c.func for c in people], TARGET)
    wanted = []
    for row in x:
        total = 0.0
        for tree in model.trees:
            total += walk_tree(tree, row)
        wanted.append(total)
    assert len({*wanted}) > 3
    assert np.array_equal(Forest.of(model.trees).predict(x), wanted)
    many = np.concatenate([x] * 30)  # more rows than go down together
    assert np.array_equal(Forest.of(model.trees).predict(many), wanted * 30)
    assert np.array_equal(Forest.of([]).predict(x), np.zeros(len(x)))
    assert Forest.of(model.trees).predict(x[:0]).shape == (0,)


def test_a_verdict_is_kept_for_its_limits() -> None:
    _, people = drawn(4)
    for c in people:
        assert validate(c) is None
        tight = Limits(statements=0)
        assert validate(c, tight) is not None
        assert validate(c) is None


def test_the_nest_of_an_error_is_made_when_it_is_asked_for() -> None:
    made: list[int] = []

    def state() -> list[str]:
        made.append(1)
        return ["for i in 8:"]

    error = NestlingError("no.", state=state, hint="try again")
    assert error.what == "no."
    assert not made
    assert str(error) == "no.\n  for i in 8:\n  hint: try again"
    assert error.state == ("for i in 8:",)
    assert str(error.again()) == str(error)
    sent = pickle.loads(pickle.dumps(ScheduleError("no.", state=lambda: ["for i in 8:"])))
    assert isinstance(sent, ScheduleError)
    assert str(sent) == "no.\n  for i in 8:"
