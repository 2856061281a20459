"""The cost models that nestling ships, by instruction set: plain JSON beside the packs.

A shipped model was learned from trials of many kernels on one core of its kind; in a run it is the
start that new trees correct (`BoostedTrees.base`).  Made by `python -m benchmarks.search`
with `--gather`, then `--save-model`.
"""

from __future__ import annotations

from functools import lru_cache

from toolkit.errors import NestlingError
from toolkit.paths import PACKS
from toolkit.search.cost_model import BoostedTrees, Tree
from toolkit.targets.isa import Isa

SHIPPED: dict[str, str] = {
    "avx512": "avx512",
    "avx512vnni": "avx512",
    "avx2": "avx2",
    "avxvnni": "avx2",
    "armv7em": "armv7em",
}
"""Instruction set -> its model; those that differ in integer instructions only share one."""


def pretrained(isa: Isa) -> tuple[Tree, ...]:
    """Return the trees of the shipped model; none where none fits, or it is of another version."""
    stem = SHIPPED.get(isa.name)
    return _load(stem) if stem is not None else ()


@lru_cache(maxsize=4)
def _load(stem: str) -> tuple[Tree, ...]:
    path = PACKS / f"{stem}.model.json"
    if not path.is_file():
        return ()
    try:
        return BoostedTrees.load(path).base
    except NestlingError:  # its features are those of another version: a tuner learns without it
        return ()
