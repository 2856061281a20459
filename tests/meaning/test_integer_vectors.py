"""Integer vectors compute what the interpreter computes, on every instruction set that has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.meaning.batch import Batch
from tests.meaning.machines import run_on
from toolkit.codegen.lines import flatten
from toolkit.ir import compute as T
from toolkit.ir.build import build
from toolkit.ir.expr import binary, call, cast, Const, Expr, maximum, minimum, select
from toolkit.ir.interp import interpret
from toolkit.ir.loop import PrimFunc
from toolkit.ir.types import int_range
from toolkit.ops.quant import saturated
from toolkit.ops.tflite import high_product, limited, rounded_product, rounded_shift
from toolkit.schedule.steps.annotate import Vectorize
from toolkit.targets.isa import Isa
from toolkit.targets.isas import ISAS
from toolkit.targets.isas.integer import NARROW

INTEGERS = (*NARROW, "int32")
SETS = [name for name in ("avx2", "avx512", "neon", "helium") if name in ISAS]


def test_every_table_of_integer_vectors_is_run() -> None:
    tables = [ISAS[name].vectors["int32"] for name in SETS]
    for isa in ISAS.values():
        if "int32" in isa.vectors:
            assert any(isa.vectors["int32"] is table for table in tables), isa.name


def element_wise(extent: int, dtypes: tuple[str, ...], value: Callable[..., Expr]) -> PrimFunc:
    """y[i] = value(x0[i], x1[i], ...), in vectors."""
    xs = [T.placeholder((extent,), dtype, f"x{n}") for n, dtype in enumerate(dtypes)]
    func = build([T.compute((extent,), lambda i: value(*(x[i] for x in xs)), "y")], xs)
    return Vectorize("i").apply(func)


def across(extent: int, op: str) -> PrimFunc:
    """y = reduction of x, in lanes."""
    x = T.placeholder((extent,), "int32", "x0")
    k = T.reduce_axis(extent, "k")
    reduce = {"sum": T.sum, "max": T.max, "min": T.min}[op]
    return Vectorize("k").apply(build([T.compute((), lambda: reduce(x[k], k), "y")], [x]))


def cases(isa: Isa) -> list[tuple[str, PrimFunc]]:
    """Every operation, every pair of types of a conversion: two vectors, and a tail."""
    lanes = isa.lanes("int32")
    whole, uneven = lanes, 2 * lanes + lanes // 2 + 1
    made: list[tuple[str, PrimFunc]] = []

    def add(name: str, dtypes: tuple[str, ...], value: Callable[..., Expr]) -> None:
        made.append((name, element_wise(uneven, dtypes, value)))

    def widened(value: Callable[..., Expr]) -> Callable[..., Expr]:
        return lambda *xs: cast(value(*xs), "int32")

    for dtype in NARROW:
        for op in ("add", "sub", "min", "max", "and", "or", "xor"):
            narrow = isa.lanes(dtype)
            value = lambda a, b, op=op: binary(op, a, b)  # noqa: E731
            extent = 2 * narrow + narrow // 2 + 1
            made.append((f"{op} {dtype} alone", element_wise(extent, (dtype, dtype), value)))
        add(f"literal {dtype} alone", (dtype,), lambda a, dtype=dtype: a ^ Const(dtype, 77))
    for dtype in INTEGERS:
        for op in ("add", "sub", "mul", "min", "max", "and", "or", "xor"):
            add(f"{op} {dtype}", (dtype, dtype), widened(lambda a, b, op=op: binary(op, a, b)))
        for op in ("lt", "le", "eq"):
            add(
                f"select {op} {dtype}", (dtype,) * 4,
                widened(lambda a, b, x, y, op=op: select(binary(op, a, b), x, y)),
            )  # fmt: skip
        add(f"scaled {dtype}", (dtype, "float32"), lambda a, s: cast(a, "float32") * s)
        add(f"quantized {dtype}", ("float32",), lambda x, dtype=dtype: saturated(x, dtype))
        add(f"literal {dtype}", (dtype,), widened(lambda a, dtype=dtype: a + Const(dtype, 77)))
        for to in INTEGERS:
            if "int32" in (to, dtype):
                add(f"{dtype} to {to}", (dtype,), lambda a, to=to: cast(a, to))
            else:
                both = widened(lambda a, to=to: cast(a, to))
                add(f"{dtype} to {to}", (dtype,), both)
                add(
                    f"sum of {dtype} as {to}",
                    (dtype, dtype),
                    widened(lambda a, b, to=to: cast(a + b, to)),
                )
    add("a * b + c", ("int32",) * 3, lambda a, b, c: a * b + c)
    add("abs", ("int32",), lambda a: call("abs", a))
    for n in (1, 7, 31):
        add(f"<< {n}", ("int32",), lambda a, n=n: binary("shl", a, n))
        add(f">> {n}", ("int32",), lambda a, n=n: binary("shr", a, n))
    clipped = lambda a, b: cast(minimum(maximum(a + b, -128), 127), "int8")  # noqa: E731
    add("clipped", ("int32", "int32"), clipped)
    made += fixed_point(isa, uneven)
    for op in ("sum", "max", "min"):
        made += [(f"across {op}", across(extent, op)) for extent in (whole, uneven)]
    return made


def fixed_point(isa: Isa, extent: int) -> list[tuple[str, PrimFunc]]:
    """Requantisation, where it has instructions of its own; the intrinsic in the name."""
    made = []
    ops = isa.vectors["int32"].ops

    def add(name: str, dtypes: tuple[str, ...], value: Callable[..., Expr]) -> None:
        if name.split()[0] in ops:
            made.append((name, element_wise(extent, dtypes, value)))

    positive = lambda x: x & (2**31 - 1)  # noqa: E731  (-2**31 twice is not promised)
    add("high_product", ("int32",) * 2, lambda a, b: high_product(a, positive(b)))
    add("high_product_n literal", ("int32",), lambda a: high_product(a, 1278221461))
    for bits in (33, 38, 62):
        shift = Const("int32", bits)
        add(f"high_word {bits}", ("int32",) * 2, lambda a, b, s=shift: rounded_product(a, b, s))
    add("high_word plain", ("int32",) * 2, lambda a, b: _high(a, b, 0, 35))
    add("high_word offset", ("int32",) * 2, lambda a, b: _high(a, b, 77 << 32, 40))
    add("shift_away", ("int32", "uint8"), lambda x, n: rounded_shift(x, cast(n & 31, "int32")))
    one = Const("int32", 1)

    def half_up(x: Expr, n: Expr) -> Expr:
        bits = cast(n & 15, "int32")
        half = binary("shr", binary("shl", one, bits), one)
        return binary("shr", binary("shr", x, one) + half, bits)

    add("shift_half_up", ("int32", "uint8"), half_up)
    for bits in (1, 9, 31):
        add(f"shift_away_n {bits}", ("int32",), lambda x, n=bits: rounded_shift(x, n))
    for dtype in ("int8", "uint8"):
        low, high = int_range(dtype)
        value = lambda a, b, d=dtype, l=low, h=high: limited(a + b, l, h, d)  # noqa: E731
        add(f"saturate_{dtype}", ("int32",) * 2, value)
        add(f"store_saturated_{dtype}", ("int32",) * 2, value)
    for n, bits in enumerate((32, 37, 50)):
        add(f"high_sum {bits}", ("int32",) * 2, lambda a, b, n=n, s=bits: _long(a, b, n, s))
        add(f"high_sum_below {bits}", ("int32",) * 3, lambda *x, s=bits: _below(*x, s))
    if "high_sum" in ops:
        made += [("high_sum table", _table_of_long(n)) for n in (3 * isa.lanes("int32"), extent)]
    return made


def _long(a: Expr, b: Expr, kind: int, bits: int) -> Expr:
    """A product of 64 bits with an addend that does not make it more, and its high word."""
    offset = (0x7FFFFFFF, -(2**61), 2**40 + 12345)[kind]
    half = binary("shr", b, Const("int32", 1))
    wide = cast(a, "int64") * cast(half, "int64") + Const("int64", offset)
    return cast(binary("shr", wide, Const("int64", bits)), "int32")


def _below(a: Expr, b: Expr, less: Expr, bits: int) -> Expr:
    half = binary("shr", b, Const("int32", 1))
    wide = cast(a, "int64") * cast(half, "int64") + Const("int64", 1 << 31)
    sign = binary("shr", a, Const("int32", 31))
    wide = wide + cast(sign, "int64") * cast(less & (2**31 - 1), "int64")
    return cast(binary("shr", wide, Const("int64", bits)), "int32")


def _table_of_long(extent: int) -> PrimFunc:
    """y[i] = (x[i] * m[i] + c[i]) >> 38, the addends from memory."""
    x, m, c = (
        T.placeholder((extent,), d, f"x{n}") for n, d in enumerate(("int32", "int16", "int32"))
    )
    wide = T.placeholder((extent,), "int64", "x3")
    value = lambda i: cast(  # noqa: E731
        binary("shr", cast(x[i] + c[i], "int64") * cast(m[i], "int64") + wide[i],
               Const("int64", 38)), "int32",
    )  # fmt: skip
    return Vectorize("i").apply(build([T.compute((extent,), value, "y")], [x, m, c, wide]))


def _high(a: Expr, b: Expr, offset: int, bits: int) -> Expr:
    wide = cast(a, "int64") * cast(b, "int64")
    wide = wide + offset if offset else wide
    return cast(binary("shr", wide, Const("int64", bits)), "int32")


def operands(func: PrimFunc, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random values with the limits of their types; floats with ties, beyond what saturates."""
    result = {}
    for buffer in func.inputs:
        size = math.prod(buffer.shape)
        if buffer.dtype == "float32":
            values = np.round(rng.uniform(-400, 400, size) * 2) / 2
            values[rng.random(size) < 0.2] *= 1e9
        else:
            low, high = int_range(buffer.dtype)
            values = rng.integers(low, high, size, endpoint=True)
            values[rng.random(size) < 0.2] = [low, high, 0, 1][int(rng.integers(4))]
            if rng.random() < 0.5:
                values = np.where(rng.random(size) < 0.5, values, values[0])
        result[buffer.name] = values.astype(buffer.dtype).reshape(buffer.shape)
    return result


def check_isa(
    isa: Isa, rng: np.random.Generator, folder: Path, need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    batch = Batch()
    calls, wanted = [], []
    for name, func in cases(isa):
        number = batch.add(func, (), isa)
        kernel, _ = batch.kernels[number]
        text = "\n".join(line.text for line in flatten(kernel.lines))
        assert "for (" not in text, f"{name} was printed as a loop:\n{text}"
        assert kernel.simd, name
        for _ in range(2):
            arrays = operands(func, rng)
            calls.append((number, arrays))
            wanted.append((name, func, interpret(func, arrays, exact=False)["y"]))
    found = run_on(isa.name, batch, calls, folder, need_tool, need_cpu, ["-O1"])
    for (name, func, want), got in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(got["y"], want, err_msg=f"{name}\n{func}")


@pytest.mark.parametrize("isa", SETS)
def test_integer_vectors_compute_what_the_interpreter_computes(
    isa: str, rng: np.random.Generator, tmp_path: Path, need_tool: Callable[[str], str],
    need_cpu: Callable[[str], None],
) -> None:  # fmt: skip
    check_isa(ISAS[isa], rng, tmp_path, need_tool, need_cpu)
