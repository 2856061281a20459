"""Operators that move elements compute what ONNX says, for random shapes, attributes and types."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.op_batch import Case, check
from toolkit.backend import run_model
from toolkit.errors import UnsupportedError
from toolkit.ir.compute import placeholder, Tensor, topological
from toolkit.ir.graph import Node
from toolkit.ir.types import DTYPES, type_of
from toolkit.ops import apply_op, OPS

INT64_MAX = 2**63 - 1


def tensor(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    return np.asarray(100 * rng.random(shape)).astype(dtype)


def shape_of(rng: np.random.Generator, rank: int, low: int = 1, high: int = 5) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(low, high, rank))


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def static(
    op: str, attrs: dict[str, Any], *operands: Any, outputs: int = 1, runtime: int = 1
) -> Case:
    """Return a case in which all but the first `runtime` operands are initialisers."""
    constant = frozenset(i for i in range(runtime, len(operands)) if operands[i] is not None)
    return Case(op, attrs, operands, outputs, constant)


def test_transpose_of_every_type(rng: np.random.Generator) -> None:
    cases = [
        Case("Transpose", {"perm": [int(p) for p in rng.permutation(rank)]},
             [tensor(rng, shape_of(rng, rank), dtype)])
        for dtype in DTYPES
        for rank in (2, 4)
    ]  # fmt: skip
    check([*cases, Case("Transpose", {}, [tensor(rng, (2, 3, 4))])])


def test_slices_with_any_start_end_and_step(rng: np.random.Generator) -> None:
    cases = []
    for _ in range(40):
        rank = int(rng.integers(1, 4))
        x = tensor(rng, shape_of(rng, rank, 1, 7))
        axes = rng.permutation(rank)[: int(rng.integers(1, rank + 1))]
        bounds = [-(2**63), -100, *range(-7, 8), 100, INT64_MAX]
        starts, ends = (rng.choice(np.array(bounds, np.int64), len(axes)) for _ in range(2))
        steps = rng.choice([-3, -2, -1, 1, 2, 3], len(axes))
        # onnxruntime takes the largest int64 as no end, backwards too; ONNX clamps it.
        ends = np.where((steps < 0) & (ends == INT64_MAX), 100, ends)
        signed = np.where(rng.integers(0, 2, len(axes)), axes, axes - rank)
        cases.append(static("Slice", {}, x, starts, ends, signed.astype(np.int64), steps))
    check(cases)


def test_splits_and_concats(rng: np.random.Generator) -> None:
    x = tensor(rng, (3, 7, 2))
    cases = [
        static("Split", {"axis": 1}, x, ints(1, 4, 2), outputs=3),
        static("Split", {"axis": -2}, x, ints(0, 7), outputs=2),
        static("Split", {"axis": 1, "num_outputs": 3}, x, outputs=3),
        static("Split", {"num_outputs": 3}, x, outputs=3),
    ]
    for dtype in DTYPES:
        rank = int(rng.integers(1, 4))
        axis = int(rng.integers(rank))
        shape = list(shape_of(rng, rank))
        parts = []
        for _ in range(int(rng.integers(1, 5))):
            shape[axis] = int(rng.integers(0, 4))
            parts.append(tensor(rng, tuple(shape), dtype))
        shape[axis] = 2
        parts.append(tensor(rng, tuple(shape), dtype))
        cases.append(Case("Concat", {"axis": axis - rank}, parts))
    check(cases)


def test_pads_of_every_mode_also_negative(rng: np.random.Generator) -> None:
    cases = []
    for number in range(60):
        mode = ["constant", "constant", "edge", "reflect", "wrap"][number % 5]
        rank = int(rng.integers(1, 5))
        x = tensor(rng, shape_of(rng, rank, 2, 6), "float32" if number % 3 else "int32")
        limit = 3 if mode == "constant" else 2  # onnxruntime mirrors once
        axes = np.sort(rng.permutation(rank)[: int(rng.integers(1, rank + 1))])
        pads = rng.integers(0, limit, 2 * len(axes))
        if mode == "constant" and number % 2:
            pads = rng.integers(-1, 4, 2 * len(axes))
        value = np.array(7, x.dtype) if mode == "constant" and number % 4 else None
        axes = np.where(rng.integers(0, 2, len(axes)), axes, axes - rank).astype(np.int64)
        cases.append(static("Pad", {"mode": mode}, x, pads, value, axes))
    check(cases)


def test_the_small_operators_agree_with_onnxruntime(rng: np.random.Generator) -> None:
    x = tensor(rng, (3, 1, 2))
    y = tensor(rng, (2, 3, 2), "int8")
    z = tensor(rng, (2, 12, 3, 2))
    value = onnx.numpy_helper.from_array
    cases = [
        # a pad value known only at run time
        Case("Pad", {}, [tensor(rng, (3, 4)), ints(1, 2, 0, 1), np.array(3, np.float32)], 1,
             frozenset({1})),
        static("Expand", {}, x, ints(2, 1, 4, 2)),
        static("Expand", {}, x, ints(5, 1)),
        static("Expand", {}, tensor(rng, ()), ints(2, 2)),
        static("Tile", {}, x, ints(2, 3, 1)),
        static("Tile", {}, y, ints(1, 2, 3)),
        static("Tile", {}, y, ints(1, 1, 1)),
        static("Tile", {}, y, ints(0, 1, 1)),
        *(Case("DepthToSpace", {"blocksize": 2, "mode": m}, [z]) for m in ("DCR", "CRD")),
        Case("SpaceToDepth", {"blocksize": 2}, [tensor(rng, (2, 3, 4, 6))]),
        Case("SpaceToDepth", {"blocksize": 3}, [tensor(rng, (1, 2, 6, 3))]),
        Case("Trilu", {}, [tensor(rng, (3, 3), "int64")]),
        static("ConstantOfShape", {}, ints(2, 3), runtime=0),
        static("ConstantOfShape", {"value": value(np.array([5], np.int8))}, ints(4), runtime=0),
        static("ConstantOfShape", {"value": value(np.array([True]))}, ints(), runtime=0),
        Case("EyeLike", {"k": -1, "dtype": 7}, [np.zeros((3, 4), np.float32)]),
        Case("Shape", {"start": -2}, [np.zeros((3, 4, 5), np.float32)]),
        Case("Size", {}, [np.zeros((3, 4, 5), np.float32)]),
    ]  # fmt: skip
    t = tensor(rng, (2, 4, 5))
    cases += [
        Case("Trilu", {"upper": upper}, [t, np.array(k, np.int64)], 1,
             frozenset({1} if fixed else ()))
        for upper in (0, 1)
        for k in (-6, -2, 0, 1, 9)
        for fixed in (False, True)
    ]  # fmt: skip
    w = tensor(rng, (4, 3, 2))
    cases += [
        Case("ReverseSequence", {"time_axis": 0, "batch_axis": 1}, [w, ints(1, 4, 2)]),
        Case("ReverseSequence", {"time_axis": 1, "batch_axis": 0}, [w, ints(3, 1, 2, 3)]),
    ]
    cases += [
        static("CenterCropPad", {}, tensor(rng, shape_of(rng, 3, 1, 9)),
               np.array(shape_of(rng, 3, 1, 9), np.int64))
        for _ in range(8)
    ]  # fmt: skip
    cases.append(static("CenterCropPad", {"axes": [-1, 0]}, tensor(rng, (5, 4, 3)), ints(6, 2)))
    check(cases)


def test_what_onnxruntime_does_not_take_agrees_with_the_reference(
    rng: np.random.Generator,
) -> None:
    """Pads that repeat the input more than once, one-hot of any type and side."""
    x = tensor(rng, (3, 4))
    cases = [
        static("Pad", {"mode": mode}, x, ints(7, 0, 4, 9))
        for mode in ("constant", "edge", "reflect", "wrap")
    ]
    cases.append(static("Pad", {"mode": "reflect"}, tensor(rng, (1, 4)), ints(2, 1, 1, 0)))
    index = rng.integers(-6, 6, (2, 3))
    cases += [
        Case("OneHot", {"axis": axis}, [index.astype(t), np.array(4, np.int64), values], 1,
             frozenset({1}))
        for t in ("int64", "int32", "float32", "int8")
        for axis in (0, -1)
        for values in (np.array([-1, 3], np.float32), np.array([2, 5], np.int32))
    ]  # fmt: skip
    unsigned = index.clip(0).astype(np.uint8)
    cases.append(
        Case("OneHot", {}, [unsigned, np.array(4, np.int64), np.array([0, 1], np.int64)], 1,
             frozenset({1}))
    )  # fmt: skip
    wide = np.array([3, 130, 255, 256 - 300], np.int16)
    for narrow in (wide, wide.astype(np.uint8), np.array([-126, 100], np.int8)):
        operands = [narrow, np.array(300, np.int64), np.array([0, 1], np.float32)]
        cases.append(Case("OneHot", {}, operands, 1, frozenset({1})))
    check(cases, reference=True)


def apply(op: str, *arrays: Any, known: tuple[int, ...] = (), **attrs: Any) -> Tensor:
    """Return the result of an operator on placeholders; `known` operands have their values."""
    operands = [
        placeholder(type_of(a).shape, type_of(a).dtype, f"x{i}", a if i in known else None)
        for i, a in enumerate(arrays)
    ]
    node = Node("n", op, tuple(t.name for t in operands), ("y",), attrs)
    result = apply_op(OPS[op], node, operands, 22)[0]
    assert result is not None
    return result


def test_compress_of_a_known_condition() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    condition = np.array([True, False, True, True, False, True])
    assert apply("Compress", x, condition, known=(1,)).shape == (4,)
    assert apply("Compress", x, condition[:3], known=(1,), axis=0).shape == (2, 4)
    with pytest.raises(UnsupportedError, match="condition must be known when compiling"):
        apply("Compress", x, condition)


def test_range_of_known_operands() -> None:
    one = np.array(1, np.int32)
    result = apply("Range", np.array(10, np.int32), one * 3, one * -2, known=(0, 1, 2))
    assert (result.shape, result.dtype) == ((4,), "int32")
    with pytest.raises(UnsupportedError, match="delta is 0"):
        apply("Range", one, one, one * 0, known=(0, 1, 2))


def test_an_interior_copy_has_no_tests() -> None:
    """Padding is an assembly of parts, none of which selects."""
    x = np.zeros((3, 4), np.float32)
    result = apply("Pad", x, ints(1, 1, 1, 1), known=(1,), mode="constant")
    assert len(result.stage.parts) == 5  # type: ignore[union-attr]
    assert [t for t in topological([result]) if t.stage is not None] == [result]


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "why"),
    [
        ("Concat", [(2, 3), (3, 2)], {"axis": 0}, "cannot be joined on axis 0"),
        ("DepthToSpace", [(1, 6, 2, 2)], {"blocksize": 2}, "does not divide 6 channels"),
        ("SpaceToDepth", [(1, 6, 3, 2)], {"blocksize": 2}, "does not divide 3 x 2"),
        ("Transpose", [(2, 3)], {"perm": (0, 0)}, "does not permute 2 axes"),
        ("Pad", [(2, 3)], {"mode": "mirror"}, "'mirror' is not known"),
    ],
)
def test_what_does_not_fit_is_refused(
    op: str, operands: list[tuple[int, ...]], attrs: dict[str, Any], why: str
) -> None:
    arrays: list[Any] = [np.zeros(s, np.float32) for s in operands]
    known = ()
    if op == "Pad":
        arrays, known = [*arrays, ints(1, 1, 1, 1)], (1,)  # type: ignore[assignment]
    with pytest.raises(UnsupportedError, match=why):
        apply(op, *arrays, known=known, **attrs)


def test_a_pad_amount_at_run_time_is_refused() -> None:
    node = onnx.helper.make_node("Pad", ["x", "big"], ["y"])
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [
            onnx.helper.make_tensor_value_info("x", 1, [2]),
            onnx.helper.make_tensor_value_info("big", 7, [2, 1]),
        ],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)])
    with pytest.raises(UnsupportedError):
        run_model(model, [np.zeros(2, np.float32), np.ones((2, 1), np.int64)])
