"""Index arithmetic: simplified, linear, bounded forms agree with the expression at every point."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from toolkit.ir.arithmetic import Exact
from toolkit.ir.expr import all_of, Binary, binary, Const, Expr, INDEX, loads, select, Var, walk
from toolkit.ir.interp import compile_expr
from toolkit.ir.regions import region, span_of
from toolkit.ir.simplify import bounds, from_linear, linear, Ranges, simplify
from toolkit.ir.text import expr_text

I, J, K = (Var(INDEX, name) for name in "ijk")


def value(expr: Expr, env: dict[str, int]) -> Any:
    return compile_expr(expr, Exact(), lambda *_: None)(env)


def points(ranges: Ranges) -> Iterator[dict[str, int]]:
    spans = [range(low, high + 1) for low, high in ranges.values()]
    for point in itertools.product(*spans):
        yield dict(zip(ranges, point, strict=True))


class Trees:
    """Random index expressions and conditions over i, j, k."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def pick(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def index(self, depth: int) -> Expr:
        roll = self.rng.random()
        if depth == 0 or roll < 0.15:
            return self.pick([I, J, K]) if self.rng.random() < 0.7 else self.number(-9, 10)
        if roll < 0.22:
            return select(self.condition(depth - 1), self.index(depth - 1), self.index(depth - 1))
        op = self.pick(["add", "add", "sub", "mul", "floordiv", "floormod", "min", "max"])
        if op in ("floordiv", "floormod"):
            divisor = self.number(1, 9) if self.rng.random() < 0.9 else self.number(-4, 0)
            return binary(op, self.index(depth - 1), divisor)
        if op == "mul" and self.rng.random() < 0.8:
            return binary(op, self.index(depth - 1), self.number(-4, 9))
        return binary(op, self.index(depth - 1), self.index(depth - 1))

    def number(self, low: int, high: int) -> Const:
        return Const(INDEX, int(self.rng.integers(low, high)))

    def condition(self, depth: int) -> Expr:
        op = self.pick(["lt", "le", "eq", "ne"])
        test = binary(op, self.index(depth), self.index(depth))
        if depth and self.rng.random() < 0.4:
            return binary(self.pick(["and", "or"]), test, self.condition(depth - 1))
        return test

    def ranges(self) -> dict[str, tuple[int, int]]:
        result = {}
        for name in "ijk":
            low = int(self.rng.integers(-3, 3)) if self.rng.random() < 0.3 else 0
            result[name] = (low, low + int(self.rng.integers(0, 5)))
        return result


@pytest.fixture
def trees(rng: np.random.Generator) -> Trees:
    return Trees(rng)


def test_simplified_expressions_are_equal_at_every_point(trees: Trees) -> None:
    for _ in range(800):
        ranges = trees.ranges()
        expr = trees.index(3) if trees.rng.random() < 0.6 else trees.condition(2)
        simple = simplify(expr, ranges)
        assert simple.dtype == expr.dtype
        for env in points(ranges):
            assert value(simple, env) == value(expr, env), (
                f"{expr_text(expr)} became {expr_text(simple)} in {ranges}, at {env}"
            )


def test_quotient_and_remainder_join(trees: Trees) -> None:
    """Subscripts of fused loops over i, j, k are the fused loop again, whatever the extents."""
    for _ in range(200):
        fused, m, n = trees.index(1), trees.number(1, 9), trees.number(1, 9)
        ij = binary("floordiv", fused, n)
        i, j, k = binary("floordiv", ij, m), binary("floormod", ij, m), binary("floormod", fused, n)
        flat = binary("add", binary("mul", binary("add", binary("mul", i, m), j), n), k)
        ranges = trees.ranges()
        simple = simplify(binary("add", flat, 3), ranges)
        assert linear(simple) == linear(simplify(binary("add", fused, 3), ranges))


def test_simplifying_twice_changes_nothing_more(trees: Trees) -> None:
    """Not a promise, but nearly so: what it found once it has used up."""
    changed = 0
    for _ in range(300):
        ranges = trees.ranges()
        once = simplify(trees.index(3), ranges)
        changed += simplify(once, ranges) != once
    assert changed < 60


def test_linear_forms_are_equal_at_every_point(trees: Trees) -> None:
    for _ in range(500):
        ranges = trees.ranges()
        expr = trees.index(3)
        terms, constant = linear(expr)
        assert all(terms.values()), "a term with coefficient 0"
        again = from_linear(terms, constant)
        assert linear(again) == (terms, constant)
        for env in points(ranges):
            total = constant + sum(k * value(atom, env) for atom, k in terms.items())
            assert total == value(expr, env) == value(again, env), expr_text(expr)


def test_bounds_hold_at_every_point_and_are_tight_for_sums(trees: Trees) -> None:
    known = 0
    for _ in range(800):
        ranges = trees.ranges()
        expr = trees.index(3)
        found = bounds(expr, ranges)
        if found is None:
            continue
        known += 1
        values = [value(expr, env) for env in points(ranges)]
        assert found[0] <= min(values), expr_text(expr)
        assert found[1] >= max(values), expr_text(expr)
    assert known > 500
    assert bounds(I * 3 - J + 2, {"i": (0, 4), "j": (1, 6)}) == (-4, 13)
    assert bounds(I + K, {"i": (0, 4)}) is None


def test_a_span_holds_every_index_for_fixed_outer_loops(trees: Trees) -> None:
    for _ in range(400):
        ranges = trees.ranges()
        expr = trees.index(3)
        found = span_of(expr, {"i"}, ranges)
        if found is None:
            continue
        base, low, high = found
        for env in points(ranges):
            start = sum(k * value(atom, env) for atom, k in base.items())
            assert start + low <= value(expr, env) <= start + high, expr_text(expr)


def test_a_region_holds_every_access(trees: Trees) -> None:
    for _ in range(200):
        ranges = trees.ranges()
        size = 40
        found = [(trees.index(2),), (trees.index(2),)]
        if any(not 0 <= value(e, env) < size for (e,) in found for env in points(ranges)):
            continue
        (span,) = region(found, (size,), {"i"}, ranges)
        for env in points(ranges):
            start = value(span.base, {"i": env["i"]})
            for (e,) in found:
                assert start <= value(e, env) < start + span.extent


def divide(expr: Expr, ranges: Ranges) -> str:
    return expr_text(simplify(expr, ranges))


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        ((I * 4 + J) // 4, "i"),
        ((I * 4 + J) % 4, "j"),
        ((I * 8 + J) // 4, "i * 2"),
        ((I + 4) % 4, "i % 4"),
        (I + J - I, "j"),
        (I * 2 + I, "i * 3"),
        (binary("min", J, 3), "j"),
        (binary("max", J - 4, 0), "0"),
        (binary("lt", J, 4), "True"),
        (binary("le", I + 5, J), "False"),
    ],
)
def test_known_simplifications(expr: Expr, text: str) -> None:
    assert divide(expr, {"i": (0, 7), "j": (0, 3)}) == text


def test_an_unchanged_expression_is_the_same_object() -> None:
    expr = I * 3 + J
    assert simplify(expr, {"i": (0, 3), "j": (0, 3)}) is expr


def test_literals_fold_as_they_are_put_together() -> None:
    assert binary("add", Const(INDEX, 2), 3) == Const(INDEX, 5)
    assert binary("and", binary("lt", I, J), Const("bool", True)) == binary("lt", I, J)
    assert all_of(Const("bool", True)) is None
    assert binary("add", Const("uint8", 200), Const("uint8", 100)) == Const("uint8", 44)
    kept = binary("add", Const("float32", 0.1), Const("float32", 0.2))
    assert isinstance(kept, Binary), "rounding is not for constant folding"
    assert not list(loads(kept))
    assert len(list(walk(kept))) == 3


def test_comparisons_of_quotients_lose_the_division() -> None:
    ranges = {"i": (0, 299)}
    for test, wanted in (
        (I // 3 < 96, "i < 288"),
        (I // 3 <= 96, "i < 291"),
        (binary("lt", 4, I // 3), "15 <= i"),
        (binary("le", 4, I // 3), "12 <= i"),
    ):
        assert expr_text(simplify(test, ranges)) == wanted
