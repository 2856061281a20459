"""The interpreter: what it computes exactly, and what it refuses as meaningless."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from toolkit.ir import compute as T
from toolkit.ir.arithmetic import Arithmetic, Exact, MeaningError, Typed
from toolkit.ir.build import build
from toolkit.ir.compute import Axis
from toolkit.ir.expr import binary, call, cast, Const, const, Expr, INDEX, Load, select, Var
from toolkit.ir.interp import compile_expr, interpret
from toolkit.ir.loop import (
    Block,
    Buffer,
    Loop,
    OpaqueCall,
    PARAM,
    PrimFunc,
    REGISTER,
    SCRATCH,
    Seq,
    SERIAL,
    SPATIAL,
    Stmt,
)

I = Var(INDEX, "i")
X = Buffer("x", (4,), "float32", PARAM)
Y = Buffer("y", (4,), "float32", PARAM)
ONES = {"x": np.ones(4, np.float32)}


def func(body: Stmt, *local: Buffer) -> PrimFunc:
    return PrimFunc("f", (X,), (Y,), local, body)


def block(value: Expr, index: Expr = I, buffer: str = "y", **more: Any) -> Block:
    axis = Axis(INDEX, "i", more.pop("extent", 4), "spatial")
    return Block(more.pop("name", "b"), (axis,), (I,), buffer, (index,), value, **more)


def loop(body: Stmt, extent: int = 4) -> Loop:
    return Loop("i", extent, SPATIAL, SERIAL, body)


def load(index: Expr, buffer: str = "x") -> Load:
    return Load("float32", buffer, (index,))


def value(expr: Expr, arithmetic: Arithmetic | None = None) -> Any:
    return compile_expr(expr, arithmetic or Exact(), lambda *_: None)({"i": 5})


# --------------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (loop(block(load(I + 1))), r"block b: x\[4\] lies outside float32\[4\]"),
        (loop(block(load(I), I - 1)), r"block b: y\[-1\] lies outside float32\[4\]"),
        (loop(block(load(I)), 3), r"f: output y\[3\] is never written"),
        (loop(block(load(I, "y"))), r"block b: reads y\[0\] before it is written"),
        (loop(block(load(I), extent=3)), r"block b: axis i is 3, its extent 3"),
        (
            loop(block(load(I), reduce="sum", update_only=True)),
            "block b: updates an element before it is initialised",
        ),
        (
            loop(block(cast(cast(load(I) * 1e9, "int8"), "float32"))),
            r"the cast of 1000000000.0 to int8 is undefined in C",
        ),
    ],
)
def test_a_function_without_meaning_is_refused(body: Stmt, message: str) -> None:
    with pytest.raises(MeaningError, match=message):
        interpret(func(body), ONES)
    with pytest.raises(MeaningError, match=message):
        interpret(func(body), ONES, exact=False)


def test_only_the_chosen_side_and_a_needed_condition_are_evaluated() -> None:
    safe = select(I < 3, load(I + 1), 0.0)
    assert interpret(func(loop(block(safe))), ONES)["y"].tolist() == [1, 1, 1, 0]
    inside = binary("and", I < 3, binary("lt", load(I + 1), 5.0))
    body = Seq((loop(block(const(7, "float32"), name="a")), loop(block(load(I), guard=inside))))
    assert interpret(func(body), ONES)["y"].tolist() == [1, 1, 1, 7]


def test_a_register_is_new_in_each_iteration_of_its_loop() -> None:
    """A C local declared in a loop keeps nothing for the next iteration."""
    scalar = Buffer("t", (1,), "float32", REGISTER)
    zero = Const(INDEX, 0)
    keep = block(load(I), zero, "t", name="set", guard=I < 1)
    body = loop(Seq((keep, block(load(zero, "t")))))
    with pytest.raises(MeaningError, match=r"reads t\[0\] before it is written"):
        interpret(func(body, scalar), ONES)
    kept = Buffer("t", (1,), "float32", SCRATCH)
    assert interpret(func(body, kept), ONES)["y"].tolist() == [1, 1, 1, 1]


def test_a_reference_of_another_shape_is_refused() -> None:
    call_ = OpaqueCall("c", "f", ("y",), ("x",), None, (), lambda x: (x[:2],))
    with pytest.raises(MeaningError, match=r"call c: the reference gives float32\[2\] for y"):
        interpret(func(call_), ONES)


def test_an_input_that_lies_in_the_output_is_given_by_its_name() -> None:
    body = loop(block(load(I, "y") * 2.0))
    given = {**ONES, "y": np.array([1, 2, 3, 4], np.float32)}
    assert interpret(func(body), given)["y"].tolist() == [2, 4, 6, 8]


# ------------------------------------------------------------------------------- what it computes


def test_floats_are_rationals() -> None:
    third = binary("div", const(1, "float32"), const(3, "float32"))
    assert value(third * 3.0) == 1
    assert value(const(1e30, "float32") + 1.0 - 1e30) == 1
    assert value(const(0.1, "float64") * 10.0) == Fraction(0.1) * 10


def test_typed_numbers_are_rounded_at_each_operation() -> None:
    assert value(const(1e8, "float32") + 1.0 - 1e8, Typed()) == 0
    third = binary("div", const(1, "float32"), const(3, "float32"))
    assert value(third, Typed()) == np.float32(1) / np.float32(3)


@pytest.mark.parametrize("arithmetic", [Exact(), Typed()])
def test_infinities_and_nan_follow_ieee_754(arithmetic: Arithmetic) -> None:
    inf, one = const(math.inf, "float32"), const(1, "float32")
    assert value(one - inf, arithmetic) == -math.inf
    assert math.isnan(value(inf - inf, arithmetic))
    assert value(one / inf, arithmetic) == 0
    assert value(one / 0.0, arithmetic) == math.inf
    assert math.isnan(value(binary("max", const(math.nan, "float32"), 1.0), arithmetic))
    assert math.isnan(value(binary("min", one, math.nan), arithmetic))
    assert value(call("log", const(0, "float32")), arithmetic) == -math.inf
    assert math.isnan(value(call("sqrt", const(-1, "float32")), arithmetic))
    assert value(call("exp", const(1000, "float64")), arithmetic) == math.inf
    assert value(call("isnan", inf - inf), arithmetic) is True
    assert value(call("isinf", one), arithmetic) is False


@pytest.mark.parametrize(
    ("op", "a", "b", "result"),
    [
        ("add", 120, 10, -126), ("sub", -128, 1, 127), ("mul", 16, 16, 0),
        ("div", -7, 2, -3), ("div", -128, -1, -128), ("div", 5, 0, 0),
        ("floordiv", -7, 2, -4), ("mod", -7, 2, -1),
        ("floormod", -7, 2, 1), ("floormod", 7, -2, -1),
        ("pow", 3, 4, 81), ("pow", 2, -1, 0), ("pow", -1, -3, -1), ("pow", 2, 7, -128),
        ("and", 12, 10, 8), ("or", 12, 10, 14), ("xor", 12, 10, 6),
        ("shl", 1, 7, -128), ("shl", 1, 8, 0), ("shr", -128, 3, -16), ("shr", -1, 99, -1),
        ("min", -3, 4, -3), ("max", -3, 4, 4), ("lt", 1, 2, True), ("le", 2, 2, True),
        ("eq", 1, 2, False), ("ne", 1, 2, True),
    ],
)  # fmt: skip
def test_int8_operations(op: str, a: int, b: int, result: int | bool) -> None:
    found = Exact().operation(op, "int8")(a, b)
    assert (found, type(found)) == (result, type(result))


def test_functions_round_ties_to_even_and_casts_truncate() -> None:
    rounded = [value(call("round", const(x, "float32"))) for x in (0.5, 1.5, 2.5, -0.5, -1.5)]
    assert rounded == [0, 2, 2, 0, -2]
    assert value(cast(const(-1.9, "float32"), "int8")) == -1
    assert value(cast(cast(I, "int32") * 100, "int8")) == -12
    assert value(cast(const(0.25, "float32"), "bool")) is True
    bits = Exact().function("bits", "float32", "uint32")
    assert bits(Fraction(1)) == 0x3F800000


def test_a_reduction_over_nothing_is_its_first_value() -> None:
    x = T.placeholder((3, 0), "float32", "x")
    k = T.reduce_axis(0, "k")
    f = build([T.compute((3,), lambda i: T.max(x[i, k], k), "m")], [x])
    assert interpret(f, {"x": np.zeros((3, 0), np.float32)})["m"].tolist() == [-math.inf] * 3


def test_scatter_takes_updates_in_order() -> None:
    x = T.placeholder((2,), "float32", "x")
    u = T.placeholder((3,), "float32", "u")
    last = T.scatter(x, (3,), lambda k: ([k % 2], u[k]), name="y")
    found = interpret(build([last], [x, u]), {"x": np.zeros(2), "u": np.array([1, 2, 3])})
    assert found["y"].tolist() == [3, 2]


def test_the_smaller_of_infinity_and_a_rational_is_the_rational_itself() -> None:
    fine = Fraction(1, 3) + Fraction(1, 2**80)
    assert Exact().operation("min", "float32")(math.inf, fine) == fine
    assert Exact().operation("max", "float32")(fine, -math.inf) == fine
    assert Exact().operation("mod", "float32")(fine, math.inf) == fine
