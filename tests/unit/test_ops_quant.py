"""Quantised operators compute exactly what onnxruntime computes, node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.op_batch import Case, check, found
from tests.unit.test_ops_shape import apply
from toolkit.backend import prepare
from toolkit.errors import UnsupportedError

NARROW = ("int8", "uint8", "int16", "uint16")


def some(rng: np.random.Generator, dtype: str, shape: Any = ()) -> Any:
    limits = np.iinfo(dtype)
    return np.asarray(rng.integers(limits.min, limits.max, shape, endpoint=True)).astype(dtype)


def scales(rng: np.random.Generator, shape: Any = ()) -> Any:
    return np.asarray(0.01 + 0.2 * rng.random(shape)).astype(np.float32)


def fixed(op: str, attrs: dict[str, Any], *operands: Any, outputs: int = 1) -> Case:
    """All operands but the first are initialisers."""
    constant = frozenset(i for i in range(1, len(operands)) if operands[i] is not None)
    return Case(op, attrs, operands, outputs, constant)


def test_quantize_and_dequantize_per_tensor_axis_and_block(rng: np.random.Generator) -> None:
    cases = []
    for dtype in NARROW:
        spread = 200 if dtype.endswith("8") else 40000
        x = ((rng.random((2, 6, 5)) - 0.4) * 0.2 * spread).astype(np.float32)
        q = some(rng, dtype, x.shape)
        for axis, block, shape in ((1, 0, ()), (1, 0, (6,)), (-1, 0, (5,)), (1, 3, (2, 2, 5)),
                                   (1, 4, (2, 2, 5))):  # fmt: skip
            attrs = {"axis": axis, "block_size": block} if block else {"axis": axis}
            s, zero = scales(rng, shape), some(rng, dtype, shape)
            for make in (fixed, Case):
                cases.append(make("QuantizeLinear", attrs, *wrap(make, x, s, zero)))
                cases.append(make("DequantizeLinear", attrs, *wrap(make, q, s, zero)))
        cases.append(fixed("DequantizeLinear", {}, q, scales(rng)))
    cases.append(fixed("QuantizeLinear", {}, x, scales(rng)))
    bias = some(rng, "int32", (4, 6)) // 1000
    cases.append(fixed("DequantizeLinear", {"axis": 1}, bias, scales(rng, (6,))))
    cases.append(
        fixed("QuantizeLinear", {"output_dtype": onnx.TensorProto.INT8}, x[0], scales(rng))
    )
    check(cases, rtol=1e-7)


def wrap(make: Any, *operands: Any) -> tuple[Any, ...]:
    return (operands,) if make is Case else operands


def test_ties_round_to_even_and_the_rest_saturates() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 1e9, -1e9, np.inf, -np.inf, np.nan],
                 np.float32)  # fmt: skip
    one = np.array(1, np.float32)
    (y, z) = found(
        [
            fixed("QuantizeLinear", {}, x, one, np.array(0, np.int8)),
            fixed("QuantizeLinear", {}, x, one, np.array(3, np.uint8)),
        ]
    )
    assert y.tolist() == [0, 2, 2, 0, -2, 126, 127, 127, -128, 127, -128, -128]
    assert z.tolist() == [3, 5, 5, 3, 1, 129, 131, 255, 0, 255, 0, 0]


def test_dynamic_quantisation(rng: np.random.Generator) -> None:
    cases = [
        Case("DynamicQuantizeLinear", {}, [x.astype(np.float32)], 3)
        for x in (
            rng.standard_normal((3, 4)),
            1 + rng.random(7),
            -1 - rng.random((2, 2)),
            np.zeros(3),
            rng.standard_normal((40, 5)) * 1e4,
        )
    ]
    check(cases, rtol=1e-7)


def test_integer_products(rng: np.random.Generator) -> None:
    cases = []
    shapes = (((3, 7), (7, 4)), ((2, 3, 5), (5, 4)), ((2, 1, 3, 5), (4, 5, 2)))
    types = (("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8"))
    for (a_type, b_type), (a_shape, b_shape) in zip(types, shapes, strict=True):
        a, b = some(rng, a_type, a_shape), some(rng, b_type, b_shape)
        za, zb = some(rng, a_type), some(rng, b_type)
        common = (a, scales(rng), za, b)
        y = scales(rng), some(rng, a_type)
        cases.append(Case("MatMulInteger", {}, [a, b, za, zb]))
        cases.append(fixed("MatMulInteger", {}, a, b, za))
        cases.append(fixed("QLinearMatMul", {}, *common, scales(rng), zb, *y))
        cases.append(Case("QLinearMatMul", {}, [*common, scales(rng), zb, *y]))
        if len(b_shape) == 2:
            per_column = some(rng, b_type, b_shape[-1:])
            columns = scales(rng, b_shape[-1:]), np.zeros_like(per_column)
            cases.append(fixed("MatMulInteger", {}, a, b, za, per_column))
            cases.append(fixed("QLinearMatMul", {}, *common, *columns, *y))
    check(cases)


def test_products_with_a_scale_for_each_row(rng: np.random.Generator) -> None:
    """onnxruntime takes none, so this asks the specification's formula."""
    a, b = some(rng, "int8", (2, 3, 7)), some(rng, "int8", (2, 7, 4))
    rows, columns = scales(rng, (2, 3, 1)), scales(rng, (2, 1, 4))
    za, zb = some(rng, "int8", (2, 3, 1)), some(rng, "int8", (2, 1, 4))
    scale, zero = np.array(40, np.float32), np.array(-3, np.int8)
    acc = (a.astype(np.int32) - za) @ (b.astype(np.int32) - zb)
    scaled = acc.astype(np.float32) * (rows * columns / scale)
    want = np.clip(np.round(scaled) - 3, -128, 127)
    operands = [a, rows, za, b, columns, zb, scale, zero]
    for got in found([Case("QLinearMatMul", {}, operands), fixed("QLinearMatMul", {}, *operands)]):
        np.testing.assert_array_equal(got, want)


def test_integer_convolutions(rng: np.random.Generator) -> None:
    cases = []
    for x_type, w_type in (("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")):
        for spatial, kernel, group, attrs in (
            ((6, 5), (3, 3), 1, {"pads": [1, 1, 1, 1]}),
            ((7,), (3,), 1, {"strides": [2], "pads": [1, 0]}),
            ((6, 6), (3, 2), 2, {"dilations": [2, 1]}),
            ((5, 5), (3, 3), 4, {"pads": [1, 0, 2, 1], "strides": [1, 2]}),
        ):
            x = some(rng, x_type, (2, 4, *spatial))
            w = some(rng, w_type, (4, 4 // group, *kernel))
            attrs = {**attrs, "group": group}
            y = scales(rng) * 30, some(rng, x_type)
            w_params = scales(rng, (4,)), np.zeros(4, w_type)
            if group == 2:
                # onnxruntime takes no zero point of signed weights but 0
                w_params = scales(rng), some(rng, w_type) * np.array(x_type == "uint8", w_type)
            bias = [some(rng, "int32", (4,)) // 100000] if group < 4 else []
            operands = [x, scales(rng), some(rng, x_type), w, *w_params, *y, *bias]
            cases.append(fixed("QLinearConv", attrs, *operands))
            if x_type == "uint8":
                zeros = some(rng, x_type), some(rng, w_type)
                cases.append(fixed("ConvInteger", attrs, x, w, *zeros))
    check(cases)


@pytest.mark.parametrize(
    ("scale", "axis", "block", "why"),
    [
        ((3,), 0, 0, "axis 0 has extent 2"),
        ((2,), 2, 0, "axis 2 is out of range for a tensor of rank 2"),
        ((2, 3), 1, 3, r"shape \[2, 3\], not \[2, 2\]"),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    scale: tuple[int, ...], axis: int, block: int, why: str
) -> None:
    x = np.zeros((2, 6), np.int8)
    with pytest.raises(UnsupportedError, match=why):
        apply("DequantizeLinear", x, np.ones(scale, np.float32), axis=axis, block_size=block)


@pytest.mark.parametrize("kind", [onnx.TensorProto.INT4, onnx.TensorProto.UINT4])
def test_weights_of_four_bits_are_unpacked(rng: np.random.Generator, kind: int) -> None:
    low = -8 if kind == onnx.TensorProto.INT4 else 0
    values = rng.integers(low, low + 16, (40, 60))
    weights = onnx.helper.make_tensor("w", kind, values.shape, values.reshape(-1).tolist())
    zero = onnx.helper.make_tensor("z", kind, [60], rng.integers(low, low + 16, 60).tolist())
    scale = onnx.numpy_helper.from_array(scales(rng, (60,)), "s")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], axis=1),
            onnx.helper.make_node("Mul", ["x", "f"], ["y"]),
        ],
        "packed",
        [info("x", onnx.TensorProto.FLOAT, (40, 60))],
        [info("y", onnx.TensorProto.FLOAT, (40, 60))],
        [weights, zero, scale],
    )
    opsets = [onnx.helper.make_opsetid("", 21)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    x = {"x": rng.standard_normal((40, 60)).astype(np.float32)}
    prepared = prepare(model)
    try:
        (y,) = prepared.run(x)
    finally:
        prepared.close()
    np.testing.assert_array_equal(y, ReferenceEvaluator(model).run(None, x)[0])
