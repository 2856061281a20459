"""The cost models that ship: plain data that ranks what it never saw."""

from __future__ import annotations

import pytest

from tests.unit.test_tuner import Made, product
from toolkit.search.cost_model import BoostedTrees
from toolkit.search.pretrained import pretrained
from toolkit.space.task import candidate, Task
from toolkit.targets.target import get_target


@pytest.mark.parametrize(
    ("name", "fits", "spills"),
    [
        ("x86-64-v4", (6, 48), (12, 96)),
        ("x86-64-v3", (6, 16), (12, 48)),
        ("cortex-m4", (4, 4), (12, 16)),
    ],
)
def test_a_shipped_cost_model_loads_and_ranks_what_it_never_saw(
    name: str, fits: tuple[int, int], spills: tuple[int, int]
) -> None:
    """It was learned from other kernels; a tile that spills is slower on every core."""
    target = get_target(name)
    trees = pretrained(target.isa)
    assert trees
    what = Task(product(60, 96, 80), target)
    sketch = Made().sketches(what)[0]
    good, spilling = (
        candidate(what, sketch, {"d0": (rows,), "d1": (wide,), "d2": (4,)})
        for rows, wide in (fits, spills)
    )
    scores = BoostedTrees(trees).predict(what, [good, spilling])
    assert scores[0] > scores[1]
    assert pretrained(get_target("cortex-m0").isa) == ()
