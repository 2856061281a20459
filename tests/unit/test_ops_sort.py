"""TopK gives the best elements of each row, best first; what has no static shape is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.op_batch import check, found
from tests.unit.test_ops_shape import apply, ints, static
from toolkit.errors import UnsupportedError
from toolkit.ir.compute import OpaqueStage
from toolkit.ir.types import DTYPES


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return values with many ties."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    low = 0 if dtype.startswith("u") else -5
    return rng.integers(low, 6, shape).astype(dtype)


def test_top_k_along_any_axis_with_ties(rng: np.random.Generator) -> None:
    cases = []
    for dtype in ("float32", "float64", "int32", "int64"):  # what onnxruntime takes
        for largest in (0, 1):
            for axis, shape in ((-1, (3, 9)), (0, (7, 2, 2)), (1, (2, 8, 3))):
                k = int(rng.integers(1, shape[axis] + 1))
                attrs = {"axis": axis, "largest": largest}
                x = values(rng, dtype, shape)
                cases.append(static("TopK", attrs, x, ints(k), outputs=2))
    cases.append(static("TopK", {}, rng.random((2, 300)).astype(np.float32), ints(37), outputs=2))
    check(cases)


def test_top_k_of_every_type_as_its_meaning_in_numpy(rng: np.random.Generator) -> None:
    cases = [
        static("TopK", {"largest": largest}, values(rng, dtype, (2, 11)), ints(6), outputs=2)
        for dtype in DTYPES
        if dtype != "bool"
        for largest in (0, 1)
    ]
    results = found(cases)
    for case, top, index in zip(cases, results[::2], results[1::2], strict=True):
        x = np.asarray(case.operands[0])
        y = apply("TopK", x, ints(6), known=(1,), **case.attrs)
        assert isinstance(y.stage, OpaqueStage)
        want = y.stage.reference(x)
        np.testing.assert_array_equal(top, want[0])
        np.testing.assert_array_equal(index, want[1])


def test_nan_is_the_largest() -> None:
    x = np.array([[1, np.nan, 3, np.inf, np.nan, -np.inf]], np.float32)
    top, best, low, worst = found(
        [
            static("TopK", {}, x, ints(4), outputs=2),
            static("TopK", {"largest": 0}, x, ints(6), outputs=2),
        ]
    )
    np.testing.assert_array_equal(best, [[1, 4, 3, 2]])
    np.testing.assert_array_equal(worst, [[5, 0, 2, 3, 1, 4]])
    np.testing.assert_array_equal(top, x[0][best])
    np.testing.assert_array_equal(low, x[0][worst])


def test_only_the_indices_may_be_wanted(rng: np.random.Generator) -> None:
    x = rng.random((3, 5)).astype(np.float32)
    y = apply("TopK", x, ints(2), known=(1,))
    assert y.shape == (3, 2)
    with pytest.raises(UnsupportedError, match="K=6 does not fit"):
        apply("TopK", x, ints(6), known=(1,))


@pytest.mark.parametrize("op", ["Unique", "NonZero", "NonMaxSuppression"])
def test_results_of_unknown_number_are_refused(op: str) -> None:
    x = np.zeros((1, 2, 4), np.float32)
    with pytest.raises(UnsupportedError, match="at run time, but tensors have static shapes"):
        apply(op, x, x) if op == "NonMaxSuppression" else apply(op, x)
