"""Gathers and scatters compute what ONNX says; an index out of range stays inside the buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.op_batch import Case, check, found
from tests.unit.test_ops_shape import apply, shape_of, tensor
from toolkit.errors import UnsupportedError
from toolkit.ir.compute import topological
from toolkit.ir.types import DTYPES


def some_indices(rng: np.random.Generator, extent: int, shape: tuple[int, ...]) -> Any:
    return rng.integers(-extent, extent, shape).astype(rng.choice(["int32", "int64"]))


def known(rng: np.random.Generator, position: int) -> frozenset[int]:
    """Make an operand an initialiser, or not."""
    return frozenset({position} if rng.integers(2) else ())


def test_gathers_of_every_type(rng: np.random.Generator) -> None:
    cases = []
    for dtype in DTYPES:
        for op in ("Gather", "GatherElements"):
            rank = int(rng.integers(1, 4))
            shape = shape_of(rng, rank, 2)
            axis = int(rng.integers(rank))
            if op == "Gather":
                index_shape = shape_of(rng, int(rng.integers(0, 3)))
            else:
                index_shape = tuple(int(rng.integers(1, n + 1)) for n in shape)
            index = some_indices(rng, shape[axis], index_shape)
            data = tensor(rng, shape, dtype)
            cases.append(
                Case(op, {"axis": axis - rank}, [data, np.asarray(index)], 1, known(rng, 1))
            )
    for _ in range(12):
        batch, named, rest = (int(n) for n in rng.integers((0, 1, 0), (3, 3, 2)))
        shape = shape_of(rng, batch + named + rest, 2)
        lead = (*shape[:batch], *shape_of(rng, int(rng.integers(0 if batch else 1, 2))))
        index = np.stack([rng.integers(-n, n, lead) for n in shape[batch : batch + named]], axis=-1)
        data = tensor(rng, shape)
        cases.append(Case("GatherND", {"batch_dims": batch}, [data, index], 1, known(rng, 1)))
    check(cases)


def test_known_indices_that_step_evenly_become_arithmetic() -> None:
    x = np.zeros((4, 9), np.float32)
    for values in ([7], [0, 1, 2], [8, 5, 2], [-1, -3, -5], [3, 3, 3]):
        index = np.array(values)
        found = topological([apply("Gather", x, index, known=(1,), axis=1)])
        assert len(found) == 2, values  # the data and the result
    table = topological([apply("Gather", x, np.array([0, 1, 3]), known=(1,), axis=1)])
    assert [t.dtype for t in table if t.data is not None] == ["uint8"]


def test_scatters_with_every_reduction(rng: np.random.Generator) -> None:
    cases = []
    for reduction in ("none", "add", "mul", "max", "min"):
        for dtype in ("float32", "int32", "float64", "int64"):
            rank = int(rng.integers(1, 4))
            shape = shape_of(rng, rank, 2)
            axis = int(rng.integers(rank))
            index_shape = tuple(int(rng.integers(1, n + 1)) for n in shape)
            index = some_indices(rng, shape[axis], index_shape)
            if reduction == "none":  # equal indices would have no order
                distinct = rng.permuted(
                    np.broadcast_to(
                        np.arange(shape[axis]).reshape(
                            [-1 if a == axis else 1 for a in range(rank)]
                        ),
                        shape,
                    ),
                    axis=axis,
                )
                index = distinct[tuple(slice(n) for n in index_shape)]
            data, updates = tensor(rng, shape, dtype), tensor(rng, index_shape, dtype)
            attrs = {"axis": axis, "reduction": reduction}
            cases.append(Case("ScatterElements", attrs, [data, index, updates], 1, known(rng, 1)))
            named = int(rng.integers(1, rank + 1))
            if reduction == "none":
                flat = rng.permutation(int(np.prod(shape[:named])))[:2]
                tuples = np.stack(np.unravel_index(flat, shape[:named]), axis=-1)
            else:
                tuples = np.stack([rng.integers(-n, n, 3) for n in shape[:named]], axis=-1)
            updates = tensor(rng, (len(tuples), *shape[named:]), dtype)
            cases.append(
                Case(
                    "ScatterND", {"reduction": reduction}, [data, tuples, updates], 1, known(rng, 1)
                )
            )
    check(cases)


def test_an_index_out_of_range_reads_the_nearest_element_and_writes_nothing() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    far = np.array([-(2**40), -4, 3, 2**40, 1])
    near = np.array([0, 0, 2, 2, 1])
    grid = np.broadcast_to(far[:3, None], (3, 4)).copy()
    updates = np.full((5, 4), -1, np.float32)
    gathered, elements, tuples, scattered, placed = found(
        [
            Case("Gather", {"axis": 0}, [x, far]),
            Case("GatherElements", {"axis": 0}, [x, grid]),
            Case("GatherND", {}, [x, far[:, None]]),
            Case("ScatterND", {}, [x, far[:, None], updates]),
            Case("ScatterElements", {"axis": 0}, [x, grid, updates[:3]]),
        ]
    )
    np.testing.assert_array_equal(gathered, x[near])
    np.testing.assert_array_equal(elements, np.take_along_axis(x, near[:3, None], 0))
    np.testing.assert_array_equal(tuples, x[near])
    want = x.copy()
    want[1] = -1
    np.testing.assert_array_equal(scattered, want)
    np.testing.assert_array_equal(placed, x)


def test_a_known_index_out_of_range_is_refused() -> None:
    x = np.zeros((3, 4), np.float32)
    with pytest.raises(UnsupportedError, match="index -4 is out of range for extent 3"):
        apply("Gather", x, np.array([0, -4]), known=(1,), axis=0)
    with pytest.raises(UnsupportedError, match="index 4 is out of range"):
        apply("GatherND", x, np.array([[1, 4]]), known=(1,))
