"""Which task gets the next round of trials: the gradient of the goal by rounds spent.

Zheng et al., Ansor (OSDI 2020), section 6.2 and appendix A:

    df/dt_i ~ df/dg_i * ( alpha * (g_i(t_i) - g_i(t_i - dt)) / dt
                          + (1 - alpha) * min(-g_i(t_i) / t_i,
                                              beta * C_i / max_{k in N(i)} V_k - g_i(t_i)) )

g_i: best cost of task i; t_i: rounds it got; C_i: its operations; V_k: operations per unit of cost
that a similar task k reaches; N(i): tasks of the same kind.  (Where V says that a task is already
better than its like, the second term of the minimum is no reason to expect a loss: it counts as 0.)
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toolkit.search.goals import Goal


@dataclass(slots=True)
class TaskState:
    """What the scheduler knows about a task.

    `weights`: calls per inference, by model; `operations`: arithmetic per call; `kind`: equal for
    similar tasks; `costs`: best cost after each round, the first before any.
    """

    key: str
    weights: Mapping[str, float]
    operations: float
    kind: str
    costs: list[float] = field(default_factory=list)
    dead: bool = False
    """Nothing is left to try."""

    @property
    def rounds(self) -> int:
        """Rounds it got."""
        return max(len(self.costs) - 1, 0)

    @property
    def cost(self) -> float:
        """The best cost so far."""
        return self.costs[-1]


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`window`: rounds that the backward difference looks over; `patience`: rounds without a gain
    of `gain` after which a task counts as converged, and gets more only when all others do too.

    Tasks start from good schedules and gain at once or hardly at all, so that the optimistic guess
    of the gradient, -g_i / t_i, would keep heavy ones that have converged going; hence little
    patience.
    """

    alpha: float = 0.2
    beta: float = 2.0
    window: int = 3
    epsilon: float = 0.05
    patience: int = 2
    gain: float = 0.001


class GradientScheduler:
    """Picks tasks by the gradient; ties and exploration are drawn from `rng`."""

    name = "gradient"

    def __init__(
        self,
        tasks: Sequence[TaskState],
        goal: Goal,
        rng: random.Random,
        settings: SchedulerSettings = SchedulerSettings(),
    ) -> None:
        self.tasks, self.goal, self.rng, self.settings = list(tasks), goal, rng, settings

    def latencies(self) -> dict[str, float]:
        """Return the predicted latency of each model: the sum of its tasks' best costs."""
        result: dict[str, float] = {}
        for task in self.tasks:
            for model, weight in task.weights.items():
                result[model] = result.get(model, 0.0) + weight * task.cost
        return result

    def converged(self, task: TaskState) -> bool:
        """Tell whether the last rounds of a task brought nothing."""
        patience = self.goal.early_stop or self.settings.patience
        if task.rounds < patience:
            return False
        before = task.costs[-1 - patience]
        return before - task.cost < self.settings.gain * before

    def alive(self) -> list[TaskState]:
        """Return the tasks that may get a round: converged ones only when all others are done,
        and not at all under early stopping."""
        live = [t for t in self.tasks if not t.dead]
        moving = [t for t in live if not self.converged(t)]
        return moving if moving or self.goal.early_stop is not None else live

    def sensitivity(self, task: TaskState, latencies: Mapping[str, float]) -> float:
        """Return df/dg of a task by a small difference."""
        step = max(task.cost, 1e-30) * 1e-3
        lower = dict(latencies)
        for model, weight in task.weights.items():
            lower[model] -= weight * step
        return (self.goal.objective(latencies) - self.goal.objective(lower)) / step

    def gradient(self, task: TaskState, latencies: Mapping[str, float]) -> float:
        """Return df/dt of a task; negative where rounds are expected to help."""
        s = self.settings
        window = min(s.window, task.rounds)
        backward = (task.cost - task.costs[-1 - window]) / window if window else 0.0
        optimistic = -task.cost / max(task.rounds, 1)
        speeds = [t.operations / t.cost for t in self.tasks if t.kind == task.kind and t.cost > 0]
        like = s.beta * task.operations / max(speeds) - task.cost if max(speeds) > 0 else 0.0
        forward = min(optimistic, like) if like < 0 else optimistic
        return self.sensitivity(task, latencies) * (s.alpha * backward + (1 - s.alpha) * forward)

    def pick(self) -> TaskState | None:
        """Return the task of the next round; None when there is nothing left to do."""
        live = self.alive()
        if not live:
            return None
        fresh = [t for t in live if t.rounds == 0]
        latencies = self.latencies()
        if fresh:  # warm-up: a round each, the heaviest first
            return max(fresh, key=lambda t: (self.sensitivity(t, latencies) * t.cost, t.key))
        if self.rng.random() < self.settings.epsilon:
            return self.rng.choice(live)
        return max(live, key=lambda t: (-self.gradient(t, latencies), t.key))


class RoundRobin(GradientScheduler):
    """Gives every task that is not exhausted a round in turn: what the gradient is compared with.

    Only early stopping, where the goal asks for it, leaves tasks out.
    """

    name = "round-robin"

    def pick(self) -> TaskState | None:
        """Return the task that got the fewest rounds."""
        live = [t for t in self.tasks if not t.dead]
        if self.goal.early_stop is not None:
            live = self.alive()
        return min(live, key=lambda t: (t.rounds, self.tasks.index(t))) if live else None


SCHEDULERS = {s.name: s for s in (GradientScheduler, RoundRobin)}
