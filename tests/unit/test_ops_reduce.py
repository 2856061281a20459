"""Reductions, softmax, cumulative sums and Einsum compute what ONNX says, for random shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import op_batch
from tests.op_batch import Case, check, found
from toolkit.errors import UnsupportedError
from toolkit.ir.compute import placeholder
from toolkit.ir.graph import Node
from toolkit.ops import apply_op
from toolkit.ops.reduce import REDUCE_OPS

FLOATS = ("float32", "float64")
REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
)


def shape(rng: np.random.Generator, low: int = 1, high: int = 4) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(1, 5, rng.integers(low, high + 1)))


def values(rng: np.random.Generator, size: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, size).astype(bool)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0 if dtype[0] == "u" else -9, 10, size).astype(dtype)
    return rng.standard_normal(size).astype(dtype)


def some_axes(rng: np.random.Generator, rank: int) -> np.ndarray:
    picked = rng.permutation(rank)[: rng.integers(1, rank + 1)]
    return np.array([a - rank * int(rng.integers(2)) for a in picked], np.int64)


def reduce_case(rng: np.random.Generator, op: str, dtype: str) -> Case:
    x = values(rng, shape(rng), dtype)
    if op == "ReduceLogSum":
        x = np.abs(x) + 1
    attrs: dict[str, Any] = {"keepdims": int(rng.integers(2))}
    operands: list[np.ndarray | None] = [x]
    match int(rng.integers(5)):
        case 0:
            pass
        case 1:
            attrs["noop_with_empty_axes"] = 0
            operands.append(np.zeros(0, np.int64))
        case _:
            operands.append(some_axes(rng, x.ndim))
    return Case(op, attrs, operands, constant=frozenset({1}))


@pytest.mark.parametrize("seed", range(2))
def test_reductions_agree_with_onnxruntime(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cases = [reduce_case(rng, op, dtype) for op in REDUCTIONS for dtype in (*FLOATS, "float32")]
    for op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"):
        cases += [reduce_case(rng, op, d) for d in ("int32", "int64")]
    for op in ("ReduceMean", "ReduceL1", "ReduceSumSquare"):
        cases.append(reduce_case(rng, op, "int32"))
    cases += [
        reduce_case(rng, op, d) for op in ("ReduceMax", "ReduceMin") for d in ("int8", "uint8")
    ]
    check(cases)


@pytest.mark.parametrize("width", [16, 37])
def test_rows_longer_than_a_vector_agree_with_onnxruntime(width: int) -> None:
    rng = np.random.default_rng(width)
    x = values(rng, (2, 3, width))
    positive = np.abs(x) + 1
    cases = [
        Case(op, {}, [positive if op == "ReduceLogSum" else x, axes], constant=frozenset({1}))
        for op in REDUCTIONS
        if op != "ReduceProd"
        for axes in (np.array([2]), np.array([0, 2]), np.array([1]))
    ]
    cases.append(Case("ReduceProd", {}, [positive / 2, np.array([2])], constant=frozenset({1})))
    cases += [Case(op, {"axis": a}, [x]) for op in ("Softmax", "LogSoftmax") for a in (0, 1, 2)]
    cases += [
        Case(op, {"axis": 2}, [x]) for op in ("ArgMax", "ArgMin", "LpNormalization", "Hardmax")
    ]
    check(cases)


def test_reductions_of_other_types_agree_with_the_reference() -> None:
    rng = np.random.default_rng(7)
    cases = [
        reduce_case(rng, op, "uint64")
        for op in ("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare")
    ]
    for op in ("ReduceMax", "ReduceMin"):
        cases += [reduce_case(rng, op, d) for d in ("uint32", "uint64")]
    cases += [reduce_case(rng, op, "bool") for op in ("ReduceMax", "ReduceMin")]
    check(cases, reference=True)


def test_reductions_without_axes_apply_their_function_where_the_node_says_so() -> None:
    rng = np.random.default_rng(3)
    x = np.abs(values(rng, (2, 3))) + 1
    attrs = {"noop_with_empty_axes": 1, "keepdims": 1}
    cases = [Case(op, attrs, [x]) for op in REDUCTIONS]
    want = {
        "ReduceSumSquare": x * x,
        "ReduceLogSum": np.log(x),
    }
    for case, got in zip(cases, found(cases), strict=True):
        np.testing.assert_allclose(got, want.get(case.op, x), rtol=1e-6, err_msg=str(case))


def test_reductions_of_nothing_give_the_neutral_element() -> None:
    x = np.zeros((2, 0, 3), np.float32)
    axes = np.array([1], np.int64)
    cases = [
        Case(op, {"keepdims": 0}, [x, axes], constant=frozenset({1}))
        for op in REDUCTIONS
        if op != "ReduceMean"
    ]
    neutral = {
        "ReduceMax": -np.inf,
        "ReduceMin": np.inf,
        "ReduceProd": 1.0,
        "ReduceLogSum": -np.inf,
        "ReduceLogSumExp": -np.inf,
    }
    for case, got in zip(cases, found(cases), strict=True):
        np.testing.assert_array_equal(got, np.full((2, 3), neutral.get(case.op, 0), np.float32))


def test_log_sum_exp_neither_overflows_nor_loses_infinities() -> None:
    inf, nan = np.inf, np.nan
    rows = np.array([[1e4] * 3, [-1e4] * 3, [inf, 0, 1], [-inf] * 3, [nan, 0, 1]], np.float32)
    case = Case("ReduceLogSumExp", {"keepdims": 0}, [rows, np.array([1])], constant=frozenset({1}))
    (got,) = found([case])
    want = [1e4 + np.log(3), -1e4 + np.log(3), np.inf, -np.inf, np.nan]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_arg_max_and_arg_min_agree_with_onnxruntime() -> None:
    rng = np.random.default_rng(0)
    cases = []
    for number in range(32):
        dtype = ("float32", "float64", "int32", "int8", "uint8", "int64")[number % 6]
        op = ("ArgMax", "ArgMin")[number % 2]
        if (op == "ArgMin" and dtype == "int64") or (dtype == "float64" and number % 2):
            dtype = "int32"
        x = rng.integers(0, 3, shape(rng)).astype(dtype)  # many equal elements
        attrs = {
            "axis": int(rng.integers(-x.ndim, x.ndim)),
            "keepdims": int(rng.integers(2)),
            "select_last_index": int(rng.integers(2)),
        }
        cases.append(Case(op, attrs, [x]))
    check(cases)


def test_arg_max_and_arg_min_find_nan_as_numpy_does() -> None:
    x = np.array([[1, np.nan, 3], [3, 2, 1], [-np.inf] * 3, [np.inf] * 3], np.float32)
    wide = np.concatenate([np.tile(x, 13), x[:, ::-1]], axis=1)
    cases = [
        Case(op, {"axis": 1, "keepdims": 0}, [y]) for y in (x, wide) for op in ("ArgMax", "ArgMin")
    ]
    want = (x.argmax(1), x.argmin(1), wide.argmax(1), wide.argmin(1))
    for got, expected in zip(found(cases), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_largest_and_smallest_are_nan_where_an_element_is() -> None:
    x = np.ones((4, 37), np.float32)
    x[0, 3] = x[1, 36] = x[2, 16] = np.nan
    cases = [
        Case(op, {"keepdims": 0}, [x, np.array([1])], constant=frozenset({1}))
        for op in ("ReduceMax", "ReduceMin", "ReduceSum")
    ]
    for got in found(cases):
        np.testing.assert_array_equal(np.isnan(got), [True, True, True, False])


def test_softmax_family_agrees_with_onnxruntime() -> None:
    rng = np.random.default_rng(1)
    cases = []
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        for dtype in ("float32",) * 4 + (("float64",) if op != "Hardmax" else ()):
            x = values(rng, shape(rng), dtype) * np.dtype(dtype).type(rng.choice([1, 100]))
            cases.append(Case(op, {"axis": int(rng.integers(-x.ndim, x.ndim))}, [x]))
        cases.append(Case(op, {}, [values(rng, (3, 40))]))
    check(cases)


def test_softmax_before_opset_13_flattens_to_two_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_batch, "OPSET", 11)
    rng = np.random.default_rng(2)
    cases = []
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        for rank in (2, 3, 4):
            x = values(rng, shape(rng, rank, rank))
            cases.append(Case(op, {"axis": int(rng.integers(0, rank))}, [x]))
        cases.append(Case(op, {}, [values(rng, (2, 3, 4))]))
    check(cases)


def test_cumulative_sums_agree_with_onnxruntime() -> None:
    rng = np.random.default_rng(4)
    cases = []
    for number in range(16):
        x = values(rng, shape(rng), ("float32", "int32", "float64", "int64")[number % 4])
        axis = np.array(rng.integers(-x.ndim, x.ndim), np.int64)
        attrs = {"exclusive": int(rng.integers(2)), "reverse": int(rng.integers(2))}
        cases.append(Case("CumSum", attrs, [x, axis], constant=frozenset({1})))
    check(cases)


def test_cumulative_products_agree_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_batch, "OPSET", 26)
    rng = np.random.default_rng(5)
    cases = []
    for number in range(8):
        x = values(rng, shape(rng), ("float32", "int32")[number % 2])
        axis = np.array(rng.integers(-x.ndim, x.ndim), np.int64)
        attrs = {"exclusive": number // 2 % 2, "reverse": number // 4 % 2}
        cases.append(Case("CumProd", attrs, [x, axis], constant=frozenset({1})))
    check(cases, reference=True)


def test_vector_normalisation_agrees_with_onnxruntime() -> None:
    rng = np.random.default_rng(6)
    cases = []
    for number in range(10):
        x = values(rng, shape(rng))
        axis = int(rng.integers(-x.ndim, x.ndim))
        cases.append(Case("LpNormalization", {"axis": axis, "p": 1 + number % 2}, [x]))
    cases.append(Case("LpNormalization", {}, [np.zeros((2, 3), np.float32)]))
    for axes in ([0, 2, 3], [1], [0, -1], [1, 2]):
        x = values(rng, (3, 2, 4, 3)) + 5
        cases.append(Case("MeanVarianceNormalization", {"axes": axes}, [x]))
    cases.append(Case("MeanVarianceNormalization", {}, [values(rng, (3, 2, 4, 3))]))
    check(cases, rtol=1e-5)


def test_determinants_agree_with_numpy() -> None:
    rng = np.random.default_rng(8)
    xs = [values(rng, (*lead, n, n), "float64") for lead in ((), (2,)) for n in (1, 2, 3, 5, 8)]
    xs.append(np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], np.float64))  # needs pivots
    xs.append(np.array([[1, 2], [2, 4]], np.float64))
    cases = [Case("Det", {}, [x]) for x in xs]
    for x, got in zip(xs, found(cases), strict=True):
        np.testing.assert_allclose(got, np.linalg.det(x), rtol=1e-9, atol=1e-12)


EQUATIONS = (
    ("ij,jk->ik", ["ab", "bc"]),
    ("ij,jk", ["ab", "bc"]),
    ("bij,bjk->bik", ["dab", "dbc"]),
    ("...ij,...jk->...ik", ["edab", "edbc"]),
    ("i,i->", ["a", "a"]),
    ("i,j->ji", ["a", "b"]),
    ("ii->i", ["aa"]),
    ("ii", ["aa"]),
    ("ijk->kji", ["abc"]),
    ("ij->", ["ab"]),
    ("...->...", ["abc"]),
    ("ij,jk,kl->il", ["ab", "bc", "cd"]),
    ("i,ij,j->", ["a", "ab", "b"]),
    ("bhid,bhjd->bhij", ["abcd", "abed"]),
    ("b...d,...d->b...", ["acd", "cd"]),
    ("cba,b", ["abc", "b"]),
    ("Ij,jK->KI", ["ab", "bc"]),
    ("ij , kj -> ik", ["ab", "cb"]),
    ("...i,i", ["abc", "c"]),
)


def test_einsum_agrees_with_numpy() -> None:
    rng = np.random.default_rng(9)
    sizes = dict(zip("abcde", (2, 3, 4, 5, 2), strict=True))
    cases, want = [], []
    for equation, terms in EQUATIONS:
        operands = [values(rng, tuple(sizes[s] for s in term)) for term in terms]
        cases.append(Case("Einsum", {"equation": equation}, operands))
        want.append(np.einsum(equation, *operands))
    x, y = values(rng, (2, 3), "int32"), values(rng, (3, 2), "int32")
    cases.append(Case("Einsum", {"equation": "ij,jk->ik"}, [x, y]))
    want.append(x @ y)
    for case, got, expected in zip(cases, found(cases), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=str(case))


@pytest.mark.parametrize(
    ("op", "attrs", "shapes", "reason"),
    [
        ("Einsum", {"equation": "ij,jk->ik"}, [(2, 3)], "1 inputs do not fit"),
        ("Einsum", {"equation": "ijk->i"}, [(2, 3)], "rank 2"),
        ("Einsum", {"equation": "i,i->i"}, [(2,), (3,)], "2 and 3"),
        ("Einsum", {"equation": "ij->iz"}, [(2, 3)], "unknown"),
        ("Det", {}, [(2, 3)], "square"),
        ("ArgMax", {"axis": 1}, [(2, 0)], "empty"),
        ("Softmax", {"axis": 2}, [(2, 3)], "axis 2 is out of range"),
        ("LpNormalization", {"p": 3}, [(2, 3)], "p must be 1 or 2"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    op: str, attrs: dict[str, Any], shapes: list[tuple[int, ...]], reason: str
) -> None:
    node = Node("n", op, tuple(f"x{i}" for i in range(len(shapes))), ("y",), attrs)
    with pytest.raises(UnsupportedError, match=reason):
        apply_op(REDUCE_OPS[op], node, [placeholder(s, "float32") for s in shapes], 22)


def test_axes_computed_at_run_time_are_refused() -> None:
    node = Node("n", "ReduceSum", ("x", "axes"), ("y",))
    operands = [placeholder((2, 3), "float32"), placeholder((1,), "int64")]
    with pytest.raises(UnsupportedError, match="axes must be known"):
        apply_op(REDUCE_OPS["ReduceSum"], node, operands, 22)
