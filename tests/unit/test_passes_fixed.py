"""TFLite's two roundings as one long multiplication: equal on every sum, or left as they are."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from toolkit.ir.graph import Graph, Node
from toolkit.ir.types import TensorType, type_of
from toolkit.ops import OPS
from toolkit.passes.arithmetic import Arithmetic, requantise
from toolkit.passes.fixed import rounded_once, rounded_twice
from toolkit.passes.requantise import FAR, fixed_form, Staircase, steps_of
from toolkit.pipeline import compile_model, Model, Options
from toolkit.runners import BuiltModel

TAPS = 9


def half_away(value: Fraction) -> int:
    sign = -1 if value < 0 else 1
    return sign * int(abs(value) + Fraction(1, 2))


def tflite(total: int, multiplier: int, shift: int) -> int:
    """Both roundings in fractions: half up at 2**31, half away from zero behind."""
    high = (Fraction(total * 2 ** max(shift, 0) * multiplier, 2**31) + Fraction(1, 2)).__floor__()
    return half_away(Fraction(high, 2 ** max(-shift, 0)))


def test_roundings_are_those_of_fractions(rng: np.random.Generator) -> None:
    total = rng.integers(-(2**16), 2**16, (1, 60))
    multiplier, shift = rng.integers(2**30, 2**31, (9, 1)), rng.integers(-9, 3, (9, 1))
    multiplier[0], shift[0] = 2**30, -4  # every odd multiple of 16 is a tie
    total[0, :9] = [16, -16, 48, -48, 1, -1, 0, 80, -80]
    twice, once = (f(total, multiplier, shift) for f in (rounded_twice, rounded_once))
    for (c, i), found in np.ndenumerate(twice):
        x, m, s = int(total[0, i]), int(multiplier[c, 0]), int(shift[c, 0])
        assert found == tflite(x, m, s)
        real = Fraction(x * m) * Fraction(2) ** (s - 31)
        assert once[c, i] == (real + Fraction(1, 2)).__floor__()


def test_steps_are_where_a_function_rises(rng: np.random.Generator) -> None:
    """Also where it never or always has risen, and where several levels are passed at once."""
    slopes, starts = np.array([0.01, 7.3, 0.0, 0.4, 0.0]), np.array([3, -9, -50, 900, 60])

    def rounded(x: np.ndarray) -> np.ndarray:
        return np.floor(x * slopes[:, None]).astype(np.int64) + starts[:, None]

    least, most = np.full(5, -300), np.array([300, 300, 300, 300, -300])
    steps = steps_of(rounded, (least, most), low=-20, high=40)
    for channel in range(5):
        x = np.arange(least[channel], most[channel] + 1)
        values = np.clip(rounded(np.tile(x, (5, 1)))[channel], -20, 40)
        found = -20 + (steps[channel][None] <= x[:, None]).sum(axis=1)
        np.testing.assert_array_equal(found, values)
    assert (steps[2] == FAR).all()
    assert (steps[4] == -FAR).all()


def network(
    rng: np.random.Generator,
    low: int,
    zero: int,
    *,
    single: bool = False,
    shifts: tuple[int, int],
    taps: int = TAPS,
) -> tuple[Graph, np.ndarray]:
    """x int8 [400, taps] by a dense layer of 11 channels, one of them without weights."""
    w = rng.integers(-127, 128, (taps, 11)).astype(np.int8)
    w[:, 4] = 0
    consts = {
        "w": w,
        "x_zero": np.array(-7, np.int8),
        "b": rng.integers(-3000, 3000, 11).astype(np.int32),
        "m": rng.integers(2**30, 2**31, 11).astype(np.int32),
        "s": rng.integers(*shifts, 11).astype(np.int32),
        "z": np.array(zero, np.int32),
    }
    consts["m"][3], consts["s"][3] = 2**30, -6  # ties
    types = {n: type_of(v) for n, v in consts.items()}
    types |= {
        "x": TensorType((400, taps), "int8"), "acc": TensorType((400, 11), "int32"),
        "t": TensorType((400, 11), "int32"), "y": TensorType((400, 11), "int8"),
    }  # fmt: skip
    attrs = {"low": low, "high": 127, "dtype": "int8", "single": int(single)}
    nodes = (
        Node("product", "MatMulInteger", ("x", "w", "x_zero"), ("acc",), {}),
        Node("bias", "Add", ("acc", "b"), ("t",), {}),
        Node("scale", "Requantize", ("t", "m", "s", "z"), ("y",), attrs, "tflite"),
    )
    graph = Graph("net", nodes, ("x",), ("y",), types, consts, 21)
    x = rng.integers(-128, 128, (400, taps)).astype(np.int8)
    return graph, x


@pytest.mark.parametrize("arithmetic", ["long", "high", "float"])
@pytest.mark.parametrize(("low", "zero", "single"), [
    (-128, -128, False), (5, 5, False), (-128, 3, False), (-128, 3, True),
])  # fmt: skip
def test_networks_give_tflites_bits(
    rng: np.random.Generator, arithmetic: Arithmetic, low: int, zero: int, single: bool
) -> None:
    graph, x = network(rng, low, zero, single=single, shifts=(-9, -3))
    c = graph.consts
    total = (x.astype(np.int64) + 7) @ c["w"].astype(np.int64) + c["b"]
    function = rounded_once if single else rounded_twice
    want = np.clip(
        function(total, c["m"].astype(np.int64), c["s"].astype(np.int64)) + zero, low, 127
    )
    done = requantise(graph, OPS, arithmetic=arithmetic)
    last = done.nodes[-1]
    if arithmetic == "high":
        assert last.attrs.get("half_up", 0) == (low >= zero and not single)
    else:
        assert last.op_id == "Requantize"
        assert last.attrs["shift"] >= 32
        # A sign is asked for only where results can lie below zero; else the bias is folded.
        signed = low < zero and not single
        assert [n.op for n in done.nodes] == ["MatMulInteger", *["Add"] * signed, "Requantize"]
        assert len(last.inputs) == 3 + signed
    compiled = compile_model(Model(done, "net", "0"), Options(target="generic", cflags=("-O1",)))
    with BuiltModel(compiled) as built:
        np.testing.assert_array_equal(built.run({"x": x})["y"], want.astype(np.int8))


def test_sums_that_might_wrap_stay_as_they_are(rng: np.random.Generator) -> None:
    graph, _ = network(rng, -128, 3, shifts=(-9, -3))
    large = np.full(11, 2**31 - 20, np.int32)
    graph = graph.with_(consts={**graph.consts, "b": large})
    assert requantise(graph, OPS, arithmetic="long") is graph
    up = np.full(11, 15, np.int32)  # shifted left beyond int32
    graph = graph.with_(consts={**graph.consts, "b": large * 0, "s": up})
    assert requantise(graph, OPS, arithmetic="long") is graph


def test_channels_of_one_result_take_no_part_in_the_shift() -> None:
    """The multiplier of a channel whose sum never moves says nothing of the others."""
    steps = np.array([[-10, 0, 10], [FAR, FAR, FAR], [-FAR, FAR, FAR]])
    reach = np.array([40, 0, 0])
    stairs = Staircase(steps, -reach, reach, 0, -2, 1, np.array([0.1, 1e9, 0.0]), np.zeros(3))
    found = fixed_form(stairs)
    assert found is not None
    assert found.shift >= 32
    acc = np.arange(-40, 41)
    y = (acc * int(found.multiplier[0]) + found.offset[0]) >> found.shift
    np.testing.assert_array_equal(np.clip(y, -2, 1), -2 + (steps[0][None] <= acc[:, None]).sum(1))
    assert [int(found.offset[c]) >> found.shift for c in (1, 2)] == [-2, -1]
    assert not found.multiplier[1:].any()


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55", "x86-64-v4-vnni", "aarch64-dotprod"])
def test_rows_of_one_element_have_a_schedule(rng: np.random.Generator, target: str) -> None:
    graph, _ = network(rng, -128, 3, shifts=(-9, -3), taps=1)
    assert compile_model(Model(graph, "net", "0"), Options(target=target)).program.kernels
