"""Expressions of unrolled copies: what is kept between copies changes none of them."""

from __future__ import annotations

import random

import pytest

from toolkit.codegen.resolve import Resolver
from toolkit.ir.expr import binary, Const, Expr, INDEX, Load, select, substitute, Var
from toolkit.ir.loop import Buffer, SCRATCH
from toolkit.ir.simplify import simplify

LOOPS = {"i": 7, "j": 4, "u": 3, "v": 5}
UNROLLED = ("u", "v")
RANGES = {var: (0, extent - 1) for var, extent in LOOPS.items()}
BUFFERS = {"A": Buffer("A", (9, 1, 13), "float32", SCRATCH)}


def subscript(rng: random.Random, depth: int) -> Expr:
    """Return random index arithmetic over all loops."""
    if depth == 0 or rng.random() < 0.15:
        return Var(INDEX, rng.choice(list(LOOPS))) if rng.random() < 0.8 else Const(INDEX, 2)
    op = rng.choice(("add", "add", "sub", "mul", "floordiv", "floormod", "min", "max"))
    right: Expr | int = subscript(rng, depth - 1)
    if op in ("mul", "floordiv", "floormod"):
        right = rng.randrange(1, 7)
    return binary(op, subscript(rng, depth - 1), right)


def load(rng: random.Random) -> Expr:
    return Load("float32", "A", tuple(subscript(rng, 3) for _ in range(3)))


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_is_what_its_values_put_in_and_simplified_give(seed: int) -> None:
    rng = random.Random(seed)
    resolver = Resolver(BUFFERS, UNROLLED, dict(RANGES))
    index = subscript(rng, 4)
    sum_of_loads = binary("add", load(rng), binary("mul", load(rng), load(rng)))
    places = tuple(subscript(rng, 3) for _ in range(3))
    copies = [{"u": resolver.value(u), "v": resolver.value(v)} for u in range(3) for v in range(5)]
    for env in [{}, *copies, *copies]:
        for expr in (index, sum_of_loads):
            assert resolver.resolve(expr, env) == simplify(substitute(expr, env), RANGES)
        row_major = binary("add", binary("mul", places[0], 13), places[2])
        assert resolver.flat("A", places, env) == simplify(substitute(row_major, env), RANGES)


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_keeps_the_side_that_its_values_choose(seed: int) -> None:
    rng = random.Random(seed)
    resolver = Resolver(BUFFERS, UNROLLED, dict(RANGES))
    test = binary("lt", Var(INDEX, "u"), rng.randrange(1, 3))
    yes, no = load(rng), load(rng)
    expr = select(test, yes, binary("add", no, yes))
    for u in range(3):
        env = {"u": resolver.value(u)}
        chosen = substitute(expr, env)
        assert resolver.resolve(expr, env) == simplify(chosen, RANGES)


def test_values_of_one_copy_that_nobody_else_keeps_do_not_pass_for_those_of_another() -> None:
    resolver = Resolver(BUFFERS, UNROLLED, dict(RANGES))
    expr = binary("add", binary("mul", Var(INDEX, "u"), 5), Var(INDEX, "i"))
    for u in range(50):
        got = resolver.resolve(expr, {"u": Const(INDEX, u)})
        assert got == simplify(substitute(expr, {"u": Const(INDEX, u)}), RANGES)
