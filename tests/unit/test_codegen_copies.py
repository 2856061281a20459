"""Copies of unrolled statements: patterns give what printing each copy by itself gives."""

from __future__ import annotations

import random
import re

import pytest

from tests.base_functions import layer_functions, LAYERS
from toolkit.codegen.copies import Copying, Pattern, Place, Varies
from toolkit.codegen.kernel import CKernel, print_kernel
from toolkit.codegen.lines import flatten
from toolkit.ir.expr import binary, Cast, Const, Expr, INDEX, Load, Var
from toolkit.search.pool import Pool
from toolkit.space.spaces import load_space
from toolkit.space.task import Task
from toolkit.space.validate import validate
from toolkit.targets.target import get_target

I, J, K = (Var(INDEX, name) for name in "ijk")


def number(value: int) -> Const:
    return Const(INDEX, value)


def show(place: Place) -> str:
    terms = {str(getattr(atom, "name", atom)): k for atom, k in place.terms.items()}
    return f"<{terms}+{place.constant}>"


def test_a_copy_moves_by_its_steps() -> None:
    pattern = Pattern(frozenset("ij"))
    flat = binary("add", binary("add", binary("mul", I, 8), binary("mul", J, 2)), K)
    one = pattern.access(binary("add", flat, 5), show)
    two = pattern.access(K, lambda place: f"f({one}, {show(place)})")
    pattern.texts = ([f"{two};", "fixed;"],)
    env: dict[str, Expr] = {"i": number(3), "j": number(1)}
    assert pattern.copy(env) == (["f(<{'k': 1}+31>, <{'k': 1}+0>);", "fixed;"],)
    assert pattern.copy({"i": number(0), "j": number(0)})[0][0] == "f(<{'k': 1}+5>, <{'k': 1}+0>);"


def test_a_divided_subscript_is_no_step() -> None:
    pattern = Pattern(frozenset("ij"))
    flat = binary("add", binary("floordiv", binary("add", I, K), 3), J)
    with pytest.raises(Varies) as caught:
        pattern.access(flat, show)
    assert caught.value.names == {"i"}


def test_notes_are_told_the_texts_of_each_copy() -> None:
    pattern, seen = Pattern(frozenset("i")), []
    mark = pattern.access(I, show)
    pattern.notes.append(lambda fill: seen.append(fill(f"load({mark})")))
    for i in range(3):
        pattern.copy({"i": number(i)})
    assert seen == [f"load(<{{}}+{i}>)" for i in range(3)]


def test_what_is_loaded_has_no_name() -> None:
    """It may change between two uses."""
    inside = Cast(INDEX, Load("int64", "table", (I,)))
    assert Place.of(binary("add", inside, J)).offset is None
    assert Place.of(binary("add", binary("mul", I, 4), J)).offset is not None
    assert Place.of(I).offset is None


def words(kernel: CKernel) -> list[list[str]]:
    """Return what each line says, whatever the order of its sums."""
    lines = flatten([*kernel.lines, *(line for part in kernel.parts for line in part.lines)])
    return [sorted(re.findall(r"\w+|[^\w\s()+]", line.text)) for line in lines]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("target", ["x86-64-v4", "cortex-m4", "riscv32"])
def test_patterns_print_what_each_copy_would(
    layer: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over random candidates, whose unrolled loops are many."""
    it = get_target(target)
    rng = random.Random(f"{layer} {target}")
    for func in layer_functions(layer):
        task = Task(func, it)
        sketches = load_space("metaschedule").sketches(task)
        for candidate in Pool(task, sketches, rng, validate).draw(6) if sketches else []:
            by_pattern = print_kernel(candidate.func, "kernel", isa=it.isa)
            with monkeypatch.context() as patch:
                patch.setattr(Copying, "pattern_of", lambda *_: None)
                one_by_one = print_kernel(candidate.func, "kernel", isa=it.isa)
            assert words(by_pattern) == words(one_by_one)
