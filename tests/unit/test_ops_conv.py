"""Convolutions compute what ONNX says, for random shapes and attributes, in both layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.op_batch import Case, check, compare, expected, found, found_nhwc
from toolkit.backend import run_model
from toolkit.errors import UnsupportedError
from toolkit.ir.compute import ComputeStage, placeholder, Reduce, stage_inputs, Tensor
from toolkit.ir.expr import Binary, variables, walk
from toolkit.ir.graph import Node
from toolkit.ir.text import expr_text
from toolkit.ops import apply_op
from toolkit.ops.conv import CONV_OPS

CHANNELS = ((1, 3, 4), (2, 2, 2), (4, 1, 1), (3, 1, 2), (1, 1, 1), (1, 4, 1))
"""(groups, input channels a group, output channels a group)"""


def ints(rng: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    return [int(v) for v in rng.integers(low, high + 1, count)]


def values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def padding(rng: np.random.Generator, rank: int, kernel: list[int]) -> dict[str, Any]:
    """Return pads smaller than the kernel, or auto_pad, or neither."""
    match int(rng.integers(4)):
        case 0:
            return {}
        case 1:
            return {"auto_pad": str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))}
    return {"pads": [int(rng.integers(0, k)) for k in kernel * 2]}


def conv_case(rng: np.random.Generator, rank: int) -> Case:
    group, inner, outer = CHANNELS[int(rng.integers(len(CHANNELS)))]
    kernel, dilations = ints(rng, 1, 3, rank), ints(rng, 1, 2, rank)
    size = [
        (k - 1) * d + 1 + int(rng.integers(0, 4)) for k, d in zip(kernel, dilations, strict=True)
    ]
    attrs = {"group": group, "kernel_shape": kernel, "strides": ints(rng, 1, 3, rank)}
    attrs |= padding(rng, rank, kernel)
    if not str(attrs.get("auto_pad", "")).startswith("SAME"):  # onnxruntime refuses both
        attrs["dilations"] = dilations
    operands = [
        values(rng, int(rng.integers(1, 3)), group * inner, *size),
        values(rng, group * outer, inner, *kernel),
        values(rng, group * outer) if rng.integers(2) else None,
    ]
    while operands[-1] is None:
        operands.pop()
    return Case("Conv", attrs, operands, constant=frozenset({1} if rng.integers(2) else ()))


def conv_transpose_case(rng: np.random.Generator, rank: int) -> Case:
    group, inner, outer = CHANNELS[int(rng.integers(len(CHANNELS)))]
    kernel, strides = ints(rng, 1, 4, rank), ints(rng, 1, 4, rank)
    dilations = ints(rng, 1, 3, rank)
    size = ints(rng, 1, 4, rank)
    extra = [int(rng.integers(0, s)) for s in strides]
    attrs: dict[str, Any] = {"group": group, "strides": strides, "dilations": dilations}
    full = [
        s * (n - 1) + (k - 1) * d + 1
        for n, s, k, d in zip(size, strides, kernel, dilations, strict=True)
    ]
    match int(rng.integers(4)):
        case 0:
            attrs["output_padding"] = extra
        case 1:
            attrs["pads"] = [int(rng.integers(0, (f + 1) // 2)) for f in full * 2]
            attrs["output_padding"] = extra
        case 2:
            attrs["output_shape"] = [max(1, f - int(rng.integers(0, 3))) for f in full]
            attrs["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "NOTSET"]))
        case 3:  # onnxruntime's SAME is smaller than specified where the kernel leaves gaps
            attrs["strides"] = [
                min(s, (k - 1) * d + 1) for s, k, d in zip(strides, kernel, dilations, strict=True)
            ]
            attrs["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    operands = [
        values(rng, int(rng.integers(1, 3)), group * inner, *size),
        values(rng, group * inner, outer, *kernel),
    ]
    if rng.integers(2):
        operands.append(values(rng, group * outer))
    return Case("ConvTranspose", attrs, operands)


def test_conv_agrees_with_onnxruntime_on_random_attributes(rng: np.random.Generator) -> None:
    check([conv_case(rng, rank) for rank in (1, 2, 2, 2, 3) * 5])


def test_conv_transpose_agrees_with_onnxruntime_on_random_attributes(
    rng: np.random.Generator,
) -> None:
    check([conv_transpose_case(rng, rank) for rank in (1, 2, 2, 2, 3) * 5])


def test_convolutions_with_the_channel_last_compute_the_same(rng: np.random.Generator) -> None:
    cases = [conv_case(rng, rank) for rank in (1, 2, 2, 3) * 3]
    cases += [conv_transpose_case(rng, rank) for rank in (1, 2, 2, 3) * 3]
    problems = compare(cases, found_nhwc(cases), expected(cases), 1e-5)
    assert not problems, "\n".join(problems)


def conv_integer_case(rng: np.random.Generator, number: int) -> Case:
    base = conv_case(rng, 1 + number % 3)
    signed = np.int8 if number % 2 else np.uint8
    x = rng.integers(0, 256, np.shape(base.operands[0])).astype(np.uint8)
    w = rng.integers(-128, 128, np.shape(base.operands[1])).astype(signed)
    operands: list[np.ndarray | None] = [x, w]
    if number % 4:
        operands.append(np.array(rng.integers(0, 256), np.uint8) if number % 4 < 3 else None)
    if number % 4 > 1:
        operands.append(rng.integers(0, 100, len(w) if signed is np.int8 else ()).astype(signed))
    return Case("ConvInteger", base.attrs, operands)


def as_float_conv(case: Case) -> Case:
    """Return the Conv that is left when zero points are subtracted: exact in float64."""
    x, w, *zeros = (None if a is None else a.astype(np.float64) for a in case.operands)
    assert x is not None
    assert w is not None
    if zeros and zeros[0] is not None:
        x = x - zeros[0]
    if len(zeros) > 1 and zeros[1] is not None:
        w = w - zeros[1].reshape(-1, *(1,) * (w.ndim - 1))
    return Case("Conv", case.attrs, [x, w])


def test_conv_integer_is_exact_with_any_zero_points(rng: np.random.Generator) -> None:
    cases = [conv_integer_case(rng, number) for number in range(12)]
    want = expected([as_float_conv(c) for c in cases], reference=True)
    problems = compare(cases, found(cases), [y.astype(np.int32) for y in want])
    assert not problems, "\n".join(problems)


def deform_case(rng: np.random.Generator, number: int) -> Case:
    group, offset_group = (1, 1) if number % 2 else (2, 2)
    kernel, strides, dilations = ints(rng, 1, 3, 2), ints(rng, 1, 2, 2), ints(rng, 1, 2, 2)
    pads = ints(rng, 0, 1, 4)
    size = [
        (k - 1) * d + 2 + int(rng.integers(0, 3)) for k, d in zip(kernel, dilations, strict=True)
    ]
    out = [
        (n + pads[i] + pads[2 + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
        for i, n in enumerate(size)
    ]
    count = offset_group * kernel[0] * kernel[1]
    operands = [
        values(rng, 1, 4, *size),
        values(rng, 2, 4 // group, *kernel),
        1.5 * values(rng, 1, 2 * count, *out),
        values(rng, 2) if number % 3 else None,
        values(rng, 1, count, *out),
    ]
    attrs = {"group": group, "offset_group": offset_group, "strides": strides, "pads": pads}
    attrs |= {"dilations": dilations, "kernel_shape": kernel}
    return Case("DeformConv", attrs, operands[: 3 + number % 3])


def test_deform_conv_agrees_with_the_reference_on_random_attributes(
    rng: np.random.Generator,
) -> None:
    check([deform_case(rng, number) for number in range(4)], reference=True, rtol=1e-4)


def test_float64_convolutions_agree_with_the_reference(rng: np.random.Generator) -> None:
    cases = [conv_case(rng, 2) for _ in range(4)]
    wide = [
        Case(c.op, c.attrs, [None if a is None else a.astype(np.float64) for a in c.operands])
        for c in cases
    ]
    check(wide, reference=True, rtol=1e-12)


def tensors(op: str, shapes: list[tuple[int, ...]], dtype: str = "float32", **attrs: Any) -> Tensor:
    operands = [placeholder(s, dtype, f"x{i}") for i, s in enumerate(shapes)]
    node = Node("n", op, tuple(t.name for t in operands), ("y",), attrs)
    (y,) = apply_op(CONV_OPS[op], node, operands, 22)
    assert y is not None
    return y


def reduction(y: Tensor) -> Reduce:
    assert isinstance(y.stage, ComputeStage)
    assert isinstance(y.stage.body, Reduce)
    return y.stage.body


def test_a_convolution_without_padding_has_no_guard() -> None:
    y = tensors("Conv", [(1, 3, 8, 8), (4, 3, 3, 3)])
    assert reduction(y).where is None


def test_padding_at_the_begin_is_tested_only_there() -> None:
    y = tensors("Conv", [(1, 3, 9), (4, 3, 3)], strides=(2,), pads=(1, 0))
    assert expr_text(reduction(y).where) == "0 <= ol * 2 + kl - 1"


def test_a_kernel_of_one_leaves_a_matrix_product() -> None:
    body = reduction(tensors("Conv", [(1, 8, 5, 5), (4, 8, 1, 1)]))
    assert [a.name for a in body.axes] == ["ic"]
    assert body.where is None


def test_a_transposed_convolution_has_no_division_in_its_reduction() -> None:
    y = tensors("ConvTranspose", [(1, 3, 5, 5), (3, 4, 4, 4)], strides=(2, 3), dilations=(3, 1))
    assert isinstance(y.stage, ComputeStage)
    gathered = stage_inputs(y)[0]
    body = reduction(gathered)
    inner = {a.name for a in body.axes}
    divisions = [
        e
        for part in (body.value, body.where)
        if part is not None
        for e in walk(part)
        if isinstance(e, Binary) and e.op in ("floordiv", "floormod") and variables(e) & inner
    ]
    assert not divisions


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "words"),
    [
        ("Conv", [(1, 3, 8, 8), (4, 2, 3, 3)], {}, "3 input channels, weights of 2 by 4"),
        ("Conv", [(1, 3, 8, 8), (4, 3, 3)], {}, "do not fit an input"),
        ("Conv", [(1, 3), (4, 3)], {}, "needs a batch, a channel and a spatial axis"),
        ("Conv", [(1, 3, 2, 2), (4, 3, 3, 3)], {}, "a window of 3 does not fit"),
        ("Conv", [(1, 3, 8), (4, 3, 3), (5,)], {}, "the bias has shape [5], not [4]"),
        ("Conv", [(1, 3, 8), (4, 3, 3)], {"strides": (1, 1)}, "must hold 1 numbers"),
        ("Conv", [(1, 3, 8), (4, 3, 3)], {"nestling_layout": "CHWN"}, "layout 'CHWN'"),
        ("ConvTranspose", [(1, 3, 8), (4, 3, 3)], {}, "3 input channels, weights of 4 by 3"),
        ("ConvTranspose", [(1, 3, 1), (3, 3, 3)], {"pads": (2, 2)}, "leaves nothing"),
        ("ConvTranspose", [(1, 3, 8), (3, 3, 3)], {"auto_pad": "SAME_UPPER"}, "auto_pad"),
    ],
)
def test_operands_that_do_not_fit_are_refused_with_the_numbers(
    op: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        tensors(op, shapes, **attrs)
    assert words in str(caught.value)


def test_a_transposed_convolution_pads_same_upper_at_the_end(corpus: Path) -> None:
    model = onnx.load(corpus / "bugs" / "b07_convtranspose_same_upper.onnx")
    arrays = np.load(corpus / "bugs" / "b07_convtranspose_same_upper.onnx.npz")
    for x, y in zip(arrays["in__x"], arrays["out__y"], strict=True):
        np.testing.assert_allclose(run_model(model, [x])[0], y, rtol=1e-5, atol=1e-6)
