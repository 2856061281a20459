"""Strategies, the cost model and the task scheduler on made-up costs, in milliseconds a trial."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.unit.test_tuner import Made, Model, product
from toolkit.errors import NestlingError
from toolkit.search.cost_model import BoostedTrees, pairwise_accuracy, recall_at
from toolkit.search.features import describe, feature_names, featurise
from toolkit.search.goals import early_stop_goal, Goal, parse_goal, sum_goal
from toolkit.search.pool import Pool
from toolkit.search.result import MeasureResult, Status
from toolkit.search.strategies import get_strategy, STRATEGIES
from toolkit.search.task_scheduler import GradientScheduler, RoundRobin, TaskState
from toolkit.space.task import Candidate, candidate, Task
from toolkit.targets.target import get_target

TARGET = get_target("x86-64-v3")
NAMES = [n for n in STRATEGIES if n != "gaussian"]  # needs PyTorch


def task(rows: int = 96, columns: int = 192, depth: int = 128) -> Task:
    return Task(product(rows, columns, depth), TARGET)


def run(name: str, what: Task, trials: int, seed: int = 0) -> tuple[list[Candidate], float]:
    """Search with a strategy; return what it proposed and its best cost."""
    if name in ("bayesian", "gaussian"):
        pytest.importorskip("optuna", reason="strategy bayesian needs the extra `bayes`")
    model = BoostedTrees(seed=seed)
    strategy = get_strategy(name)(what, Made().sketches(what), random.Random(seed), model)
    measurer = Model()
    proposed: list[Candidate] = []
    best = float("inf")
    while len(proposed) < trials:
        batch = strategy.ask(min(16, trials - len(proposed)))
        if not batch:
            break
        results = list(zip(batch, measurer.measure(batch), strict=True))
        proposed += batch
        strategy.tell(results)
        model.update(results)
        best = min([best, *(r.cost for _, r in results if r.cost is not None)])
    return proposed, best


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_proposes_nothing_twice_and_nothing_illegal(name: str) -> None:
    what = task()
    proposed, best = run(name, what, 40)
    assert len(proposed) == 40
    assert len({c.key for c in proposed}) == 40
    for c in proposed:
        again = candidate(what, c.sketch, c.decisions)
        assert again.key == c.key
    assert best < float("inf")


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_draws_only_from_its_generator(name: str) -> None:
    first, _ = run(name, task(), 32, seed=3)
    second, _ = run(name, task(), 32, seed=3)
    assert [c.key for c in first] == [c.key for c in second]


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_ends_where_the_space_ends(name: str) -> None:
    small = task(4, 4, 2)
    every = {c.key for c in Pool(small, Made().sketches(small), random.Random(0)).draw(1000)}
    proposed, _ = run(name, small, len(every) + 16)
    assert {c.key for c in proposed} <= every
    assert len(proposed) >= 0.8 * len(every)


def test_the_model_makes_evolution_better_than_chance() -> None:
    """In the mean over seeds, on a space of some hundred points at a budget of a tenth of it."""
    guided = [run("evolutionary", task(), 32, seed)[1] for seed in range(3)]
    blind = [run("random", task(), 32, seed)[1] for seed in range(3)]
    assert np.mean(guided) <= np.mean(blind)


def test_evolution_starts_around_the_most_probable_schedule() -> None:
    """Of the first batch, without a model, up to half differ from it by one decision."""
    what = task()
    sketches = Made().sketches(what)
    made = get_strategy("evolutionary")(what, sketches, random.Random(0))
    usual = {s: candidate(what, s, {}).decisions for s in sketches}

    def changed(c: Candidate) -> int:
        return sum(value != usual[c.sketch][name] for name, value in c.decisions.items())

    first = made.ask(32)
    blind = get_strategy("random")(what, sketches, random.Random(0)).ask(32)
    assert sum(changed(c) <= 1 for c in first) > 2 * sum(changed(c) <= 1 for c in blind)


def test_a_bandit_comes_back_to_the_values_that_paid() -> None:
    """Costs that a decision changes by a tenth alone: small beside the spread of its start."""
    what = task()
    sketches = Made().sketches(what)[:1]
    bandit = get_strategy("bandit")(what, sketches, random.Random(0))
    shares = []
    for _ in range(5):
        batch = bandit.ask(12)
        paid = [c.decisions["d2"] == (4,) for c in batch]
        shares.append(sum(paid) / len(paid))
        costs = [1.0 if good else 1.1 for good in paid]
        bandit.tell(
            [(c, MeasureResult(Status.OK, samples=(t,))) for c, t in zip(batch, costs, strict=True)]
        )
    assert max(shares[-2:]) >= 0.6
    assert max(shares[-2:]) > shares[0]


def test_crossover_takes_a_nodes_decisions_from_one_parent() -> None:
    what = task()
    pool = Pool(what, Made().sketches(what), random.Random(1))
    a, b = pool.draw(2)
    nodes = pool.nodes(a.sketch)
    assert set(nodes) == set(a.decisions)
    child = pool.cross(a, b)
    assert child is not None
    for node in set(nodes.values()):
        names = [n for n in nodes if nodes[n] == node]
        sides = [{n: p.decisions[n] for n in names} for p in (a, b)]
        assert {n: child.decisions[n] for n in names} in sides


def test_features_tell_a_register_tile_from_a_spilling_one() -> None:
    what = task()
    sketch = Made().sketches(what)[0]
    small, large = (candidate(what, sketch, {"d0": (rows,), "d1": (16,)}) for rows in (4, 8))
    x, owner = featurise([describe(small.func), describe(large.func)], TARGET)
    pressure = x[:, feature_names().index("registers_over")]
    assert owner.tolist() == sorted(owner.tolist())
    assert pressure[owner == 0].max() == 0
    assert pressure[owner == 1].max() > 0  # 8 rows of 2 vectors, and 16 registers


def test_features_are_finite_and_do_not_depend_on_the_company() -> None:
    what = task()
    pool = Pool(what, Made().sketches(what), random.Random(2))
    found = [describe(c.func) for c in pool.draw(20)]
    x, owner = featurise(found, TARGET)
    assert np.isfinite(x).all()
    for i, one in enumerate(found):
        alone, _ = featurise([one], TARGET)
        assert np.array_equal(alone, x[owner == i])


def trained(seed: int = 0) -> tuple[BoostedTrees, list[tuple[Candidate, MeasureResult]]]:
    what = task()
    pool = Pool(what, Made().sketches(what), random.Random(seed))
    drawn = pool.draw(200)
    results = list(zip(drawn, Model().measure(drawn), strict=True))
    model = BoostedTrees(seed=seed)
    model.update(results[:120])
    return model, [(c, r) for c, r in results[120:] if r.cost is not None]


def test_the_model_ranks_what_it_has_not_seen() -> None:
    model, held_out = trained()
    scores = model.predict(held_out[0][0].task, [c for c, _ in held_out])
    truth = np.array([1 / r.cost for _, r in held_out if r.cost])
    assert pairwise_accuracy(truth, scores) > 0.8
    # Which of many near equal ones comes first is noise; that the first ones are fast is not.
    first = truth[np.argsort(-scores)[:8]]
    assert first.mean() >= 0.9 * np.sort(truth)[-8:].mean()


def test_a_saved_model_predicts_the_same(tmp_path: Path) -> None:
    model, held_out = trained()
    path = tmp_path / "model.json"
    model.save(path)
    again = BoostedTrees.load(path)
    candidates = [c for c, _ in held_out]
    before = model.predict(candidates[0].task, candidates)
    assert np.allclose(before, again.predict(candidates[0].task, candidates), atol=1e-3)
    path.write_text("{}")
    with pytest.raises(NestlingError, match="not a cost model"):
        BoostedTrees.load(path)


def test_what_pairwise_accuracy_and_recall_mean() -> None:
    truth = np.array([1.0, 2.0, 3.0, 4.0])
    assert pairwise_accuracy(truth, truth) == 1.0
    assert pairwise_accuracy(truth, -truth) == 0.0
    assert recall_at(truth, np.array([0, 0, 9, 8]), 2) == 1.0
    assert recall_at(truth, np.array([9, 8, 0, 0]), 2) == 0.0


# -- the task scheduler ---------------------------------------------------------------------------


def states(*costs: float) -> list[TaskState]:
    return [TaskState(str(i), {"m": 1.0}, 1e6, f"k{i}", [c]) for i, c in enumerate(costs)]


def spend(scheduler: GradientScheduler, rounds: int, improve: dict[str, float]) -> dict[str, int]:
    """Give rounds; a task's cost falls towards its floor by a fifth of the way a round."""
    given: dict[str, int] = {}
    for _ in range(rounds):
        state = scheduler.pick()
        if state is None:
            break
        given[state.key] = given.get(state.key, 0) + 1
        floor = improve[state.key]
        state.costs.append(floor + (state.cost - floor) * 0.8)
    return given


def test_warm_up_gives_every_task_a_round_the_heaviest_first() -> None:
    tasks = states(1.0, 5.0, 2.0)
    scheduler = GradientScheduler(tasks, sum_goal(), random.Random(0))
    order = []
    for _ in tasks:
        state = scheduler.pick()
        assert state is not None
        order.append(state.key)
        state.costs.append(state.cost)
    assert order == ["1", "2", "0"]


def test_rounds_go_where_time_is_spent() -> None:
    tasks = states(1.0, 1.0, 1.0)
    tasks[0].weights = {"m": 12.0}
    scheduler = GradientScheduler(tasks, sum_goal(), random.Random(0))
    given = spend(scheduler, 30, {"0": 0.5, "1": 0.5, "2": 0.5})
    assert given["0"] > 1.5 * (given["1"] + given["2"])


def test_what_does_not_move_gets_less() -> None:
    tasks = states(1.0, 1.0)
    scheduler = GradientScheduler(tasks, sum_goal(), random.Random(0))
    given = spend(scheduler, 12, {"0": 0.7, "1": 1.0})  # then the other is done too
    assert given["0"] > 3 * given["1"]


def test_the_gradient_reaches_what_round_robin_reaches_with_fewer_rounds() -> None:
    floors = {str(i): f for i, f in enumerate((0.3, 0.99, 0.99, 0.95, 0.5, 0.99, 0.98, 0.97))}
    costs = (4.0, 0.1, 0.2, 0.5, 2.0, 0.1, 0.3, 0.2)
    floors = {k: f * c for (k, f), c in zip(floors.items(), costs, strict=True)}
    turns = RoundRobin(states(*costs), sum_goal(), random.Random(0))
    spend(turns, 80, floors)
    wanted = sum(t.cost for t in turns.tasks)
    gradient = GradientScheduler(states(*costs), sum_goal(), random.Random(0))
    used = 0
    while sum(t.cost for t in gradient.tasks) > wanted:
        spend(gradient, 1, floors)
        used += 1
    assert used <= 0.6 * 80


def test_dead_tasks_get_nothing_and_converged_ones_only_what_is_left() -> None:
    tasks = states(1.0, 1.0)
    tasks[0].dead = True
    scheduler = GradientScheduler(tasks, sum_goal(), random.Random(0))
    given = spend(scheduler, 10, {"0": 0.1, "1": 1.0})
    assert given == {"1": 10}  # nothing else is left, so a converged task may go on
    stopping = GradientScheduler(states(1.0), early_stop_goal(3), random.Random(0))
    assert spend(stopping, 10, {"0": 1.0}) == {"0": 3}


def test_a_model_within_its_deadline_gets_no_more_rounds() -> None:
    tasks = [
        TaskState("a", {"A": 1.0}, 1e6, "k", [1e-3]),
        TaskState("b", {"B": 1.0}, 1e6, "l", [9e-3]),
    ]
    goal = parse_goal("deadline:A=5ms,B=2ms", ["A", "B"])
    given = spend(GradientScheduler(tasks, goal, random.Random(1)), 20, {"a": 0.2e-3, "b": 1e-3})
    assert given["b"] > 3 * given["a"]


def test_geomean_counts_relative_gains() -> None:
    goal = parse_goal("geomean", ["A", "B"], {"A": 1.0, "B": 100.0})
    both = {"A": 1.0, "B": 100.0}
    assert goal.objective(both) == pytest.approx(-1.0)
    half_a, half_b = {"A": 0.5, "B": 100.0}, {"A": 1.0, "B": 50.0}
    assert goal.objective(half_a) == pytest.approx(goal.objective(half_b))


def test_a_goal_of_the_users_own_is_a_function() -> None:
    worst = Goal("worst", lambda latencies: max(latencies.values()))
    tasks = [
        TaskState("a", {"A": 1.0}, 1e6, "k", [1.0]),
        TaskState("b", {"B": 1.0}, 1e6, "l", [3.0]),
    ]
    given = spend(GradientScheduler(tasks, worst, random.Random(1)), 12, {"a": 0.1, "b": 1.5})
    assert given["b"] > given["a"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fastest", "is unknown"),
        ("sum:1", "takes no arguments"),
        ("deadline", "names no deadline"),
        ("deadline:C=5ms", "there is no model 'C'"),
        ("deadline:A=5", "a time such as 5ms"),
        ("deadline:A=-1ms", "a time such as 5ms"),
    ],
)
def test_a_goal_that_cannot_be_read_is_refused(text: str, says: str) -> None:
    with pytest.raises(NestlingError, match=says):
        parse_goal(text, ["A", "B"])


def test_failures_teach_nothing_wrong() -> None:
    """A wrong result has no cost, and the model does not learn from it."""
    what = task()
    drawn = Pool(what, Made().sketches(what), random.Random(0)).draw(4)
    model = BoostedTrees()
    model.update([(c, MeasureResult(Status.WRONG_RESULT)) for c in drawn])
    assert not model.trained
