"""The cost models that ship: plain data that ranks what it never saw."""

from __future__ import annotations

import pytest

from tests.unit.test_tuner import Made, product
from toolkit.search.cost_model import BoostedTrees
from toolkit.search.pretrained import pretrained
from toolkit.space.task import candidate, Task
from toolkit.targets.target import get_target


@pytest.mark.parametrize(
    ("name", "better", "worse"),
    [
        ("x86-64-v4", (6, 48), (12, 96)),
        ("x86-64-v3", (6, 16), (12, 48)),
        # Tiles that spill, no space proposes there, so that the model knows of none.
        ("cortex-m4", (4, 4), (2, 2)),
    ],
)
def test_a_shipped_cost_model_loads_and_ranks_what_it_never_saw(
    name: str, better: tuple[int, int], worse: tuple[int, int]
) -> None:
    """It was learned from other kernels; a tile that spills, or loads more a product, is slower."""
    target = get_target(name)
    trees = pretrained(target.isa)
    assert trees
    what = Task(product(60, 96, 80), target)
    sketch = Made().sketches(what)[0]
    good, bad = (
        candidate(what, sketch, {"d0": (rows,), "d1": (wide,), "d2": (4,)})
        for rows, wide in (better, worse)
    )
    scores = BoostedTrees(trees).predict(what, [good, bad])
    assert scores[0] > scores[1]
    assert pretrained(get_target("cortex-m0").isa) == ()
