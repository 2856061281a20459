"""Every opset's spelling of an operator becomes one form that computes the same.

The judge is onnxruntime on the original model, at the original opset, on random shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.unit.frontend_tools import assert_same, model, ops
from toolkit.errors import ModelError
from toolkit.frontend import load_onnx
from toolkit.frontend.shapes import OPSET

Array = np.ndarray


def f32(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def node(op: str, inputs: str, outputs: str = "y", **attrs: Any) -> Any:
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attrs)


def i64(*values: int) -> Array:
    return np.array(values, np.int64)


def check(
    op: str,
    x: Array,
    opset: int,
    inputs: str = "x",
    consts: Mapping[str, Array] = {},
    **attrs: Any,
) -> Any:
    outputs = attrs.pop("outputs", "y")
    made = node(op, inputs, outputs, **attrs)
    proto = model([made], {"x": x}, outputs.split(), consts, opset=opset)
    return assert_same(proto, {"x": x})


@pytest.mark.parametrize("opset", [7, 11, 12, 13, 18, 21])
@pytest.mark.parametrize("kind", "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split())
def test_reductions_have_complete_axes_as_an_input(
    kind: str, opset: int, rng: np.random.Generator
) -> None:
    op, as_input = f"Reduce{kind}", opset >= (13 if kind == "Sum" else 18)
    x = np.abs(f32(rng, 2, 3, 4)) + 0.1
    choices: list[list[int] | None] = [None, [1], [0, 2]]
    if opset >= 11:
        choices += [[-1], [-3, 1]]
    for axes, keep in itertools.product(choices, (0, 1)):
        if as_input and axes is not None:
            graph = check(op, x, opset, "x a", {"a": i64(*axes)}, keepdims=keep)
        elif axes is None:
            graph = check(op, x, opset, keepdims=keep)
        else:
            graph = check(op, x, opset, axes=axes, keepdims=keep)
        (reduce,) = graph.nodes
        wanted = sorted(a % 3 for a in axes) if axes else [0, 1, 2]
        assert graph.consts[reduce.inputs[1]].tolist() == wanted
        assert set(reduce.attrs) == {"keepdims"}


def test_reduction_over_no_axis_is_identity(rng: np.random.Generator) -> None:
    x = f32(rng, 2, 3)
    graph = check("ReduceSum", x, 13, "x a", {"a": i64()}, noop_with_empty_axes=1)
    assert ops(graph) == ["Identity"]


@pytest.mark.parametrize("opset", [7, 11, 13, 21])
def test_squeeze_and_unsqueeze_have_axes_as_an_input(opset: int, rng: np.random.Generator) -> None:
    x = f32(rng, 1, 3, 1, 2)
    if opset < 13:
        squeezed = check("Squeeze", x, opset, axes=[0, 2])
        widened = check("Unsqueeze", x, opset, axes=[0, 3])
    else:
        squeezed = check("Squeeze", x, opset, "x a", {"a": i64(0, -2)})
        widened = check("Unsqueeze", x, opset, "x a", {"a": i64(0, -3)})
    every = check("Squeeze", x, opset)
    for graph, axes in ((squeezed, [0, 2]), (every, [0, 2]), (widened, [0, 3])):
        assert graph.consts[graph.nodes[0].inputs[1]].tolist() == axes
        assert not graph.nodes[0].attrs


@pytest.mark.parametrize("opset", [7, 11, 13, 18])
def test_split_has_sizes_as_an_input(opset: int, rng: np.random.Generator) -> None:
    x = f32(rng, 2, 6)
    if opset < 13:
        uneven = check("Split", x, opset, outputs="y z", axis=1, split=[2, 4])
    else:
        uneven = check("Split", x, opset, "x s", {"s": i64(2, 4)}, outputs="y z", axis=1)
    extra = {"num_outputs": 3} if opset >= 18 else {}
    even = check("Split", x, opset, outputs="y z w", axis=1, **extra)
    for graph, sizes in ((uneven, [2, 4]), (even, [2, 2, 2])):
        assert graph.consts[graph.nodes[0].inputs[1]].tolist() == sizes
        assert graph.nodes[0].attrs == {"axis": 1}


def test_split_into_parts_that_do_not_divide(rng: np.random.Generator) -> None:
    graph = check("Split", f32(rng, 7, 2), 18, outputs="y z w", num_outputs=3)
    assert graph.consts[graph.nodes[0].inputs[1]].tolist() == [3, 3, 1]


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 21])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad_has_pads_of_all_axes_as_an_input(
    opset: int, mode: str, rng: np.random.Generator
) -> None:
    x, pads = f32(rng, 1, 2, 4, 5), [0, 0, 1, 2, 0, 0, 2, 1]
    if opset < 11:
        value = {"value": 1.5} if mode == "constant" else {}
        check("Pad", x, opset, pads=pads, mode=mode, **value)
    else:
        value_in = {"p": i64(*pads), "v": np.array(1.5, np.float32)}
        check("Pad", x, opset, "x p v" if mode == "constant" else "x p", value_in, mode=mode)
    if opset >= 18:
        some = {"p": i64(1, 2, 2, 1), "a": i64(-2, 3)}
        graph = check("Pad", x, opset, "x p - a", some, mode=mode)
        assert graph.consts[graph.nodes[0].inputs[1]].tolist() == pads


def test_pad_with_zero_has_no_value(rng: np.random.Generator) -> None:
    consts = {"p": i64(0, 1, 0, 1), "v": np.array(0, np.float32)}
    graph = check("Pad", f32(rng, 2, 3), 13, "x p v", consts)
    assert len(graph.nodes[0].inputs) == 2


@pytest.mark.parametrize("opset", [7, 10, 13])
def test_slice_has_four_operands(opset: int, rng: np.random.Generator) -> None:
    x = f32(rng, 4, 5, 6)
    if opset < 10:
        graphs = [
            check("Slice", x, opset, starts=[1, -3], ends=[3, 100], axes=[0, 2]),
            check("Slice", x, opset, starts=[0, 1, 2], ends=[2, -1, 1000]),
        ]
    else:
        big = np.iinfo(np.int64)
        graphs = [
            check("Slice", x, opset, "x s e", {"s": i64(0, 1), "e": i64(2, -1)}),
            check(
                "Slice",
                x,
                opset,
                "x s e a t",
                {"s": i64(-1, 3), "e": i64(big.min, 1), "a": i64(-1, 0), "t": i64(-2, -1)},
            ),
            check(
                "Slice",
                x,
                opset,
                "x s e a",
                {n: np.array([v], np.int32) for n, v in (("s", 1), ("e", 4), ("a", 1))},
            ),
        ]
    for graph in graphs:
        operands = [graph.consts[n] for n in graph.nodes[0].inputs[1:]]
        assert len(operands) == 4
        assert {str(v.dtype) for v in operands} == {"int64"}


@pytest.mark.parametrize("opset", [7, 11, 12, 13])
def test_clip_has_bounds_as_inputs(opset: int, rng: np.random.Generator) -> None:
    x = f32(rng, 20) * 3
    if opset < 11:
        check("Clip", x, opset, min=-1.0, max=2.0)
        check("Clip", x, opset, max=2.0)
        assert ops(check("Clip", x, opset)) == ["Identity"]
    else:
        bounds = {"a": np.array(-1, np.float32), "b": np.array(2, np.float32)}
        check("Clip", x, opset, "x a b", bounds)
        check("Clip", x, opset, "x - b", bounds)


@pytest.mark.parametrize("opset", [7, 10, 11])
def test_topk_has_k_as_an_input(opset: int, rng: np.random.Generator) -> None:
    x = f32(rng, 3, 7)
    if opset < 10:
        graph = check("TopK", x, opset, k=3, outputs="y z")
    else:
        graph = check("TopK", x, opset, "x k", {"k": i64(3)}, outputs="y z")
    assert graph.nodes[0].attrs["axis"] == 1


@pytest.mark.parametrize("opset", [7, 10, 12, 13])
def test_dropout_is_identity(opset: int, rng: np.random.Generator) -> None:
    graph = check("Dropout", f32(rng, 3, 4), opset)
    assert ops(graph) == ["Identity"]
    if opset >= 12:  # of the older mask onnxruntime has another idea than onnx
        check("Dropout", f32(rng, 3, 4), opset, outputs="y m")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [7, 9])
def test_upsample_is_resize(opset: int, mode: str, rng: np.random.Generator) -> None:
    x, scales = f32(rng, 1, 2, 3, 4), [1.0, 1.0, 2.0, 3.5]
    if opset < 9:
        graph = check("Upsample", x, opset, scales=scales, mode=mode)
    else:
        graph = check("Upsample", x, opset, "x s", {"s": np.array(scales, np.float32)}, mode=mode)
    assert ops(graph) == ["Resize"]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    "scales", [(1, 1, 2, 3), (1, 1, 0.5, 0.6), (1, 1, 0.5, 2.5), (1, 1, 1.7, 1)]
)
def test_resize_10_is_asymmetric(
    mode: str, scales: tuple[float, ...], rng: np.random.Generator
) -> None:
    x = f32(rng, 1, 2, 6, 5)
    check("Resize", x, 10, "x s", {"s": np.array(scales, np.float32)}, mode=mode)


def test_resize_has_no_empty_operands(rng: np.random.Generator) -> None:
    x, none = f32(rng, 1, 2, 4, 4), np.zeros(0, np.float32)
    consts = {"r": none, "s": none, "z": i64(1, 2, 7, 9)}
    graph = check("Resize", x, 11, "x r s z", consts, mode="linear")
    assert graph.nodes[0].inputs[1:3] == ("", "")


def test_resize_of_some_axes_names_all(rng: np.random.Generator) -> None:
    x = f32(rng, 1, 2, 4, 4)
    graph = check("Resize", x, 18, "x - - z", {"z": i64(7, 9)}, mode="linear", axes=[2, -1])
    assert graph.consts[graph.nodes[0].inputs[3]].tolist() == [1, 2, 7, 9]
    assert "axes" not in graph.nodes[0].attrs


@pytest.mark.parametrize("opset", [7, 11, 13])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_keeps_the_meaning_of_its_opset(
    op: str, opset: int, rng: np.random.Generator
) -> None:
    for shape in ((2, 3, 4), (2, 3, 1, 1), (1, 1, 5), (6,)):
        x = f32(rng, *shape)
        for axis in range(len(shape)):
            graph = check(op, x, opset, axis=axis)
            flattens = opset < 13 and sum(n != 1 for n in shape[axis:]) > 1
            assert bool(graph.nodes[0].attrs.get("coerce_2d")) == flattens
        if opset >= 11:
            check(op, x, opset, axis=-1)
        if len(shape) > 1:  # the default axis was 1 and is -1
            check(op, x, opset)


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_normalization_has_one_output(opset: int, rng: np.random.Generator) -> None:
    x = f32(rng, 2, 3, 4, 5)
    consts = {n: np.abs(f32(rng, 3)) + 0.5 for n in "abmv"}
    graph = check("BatchNormalization", x, opset, "x a b m v", consts, epsilon=1e-3, momentum=0.5)
    assert ops(graph) == ["BatchNormalization"]
    assert set(graph.nodes[0].attrs) == {"epsilon"}


def test_batch_normalization_per_activation_is_spelled_out(rng: np.random.Generator) -> None:
    x = f32(rng, 2, 3, 4)
    consts = {n: np.abs(f32(rng, 3, 4)) + 0.5 for n in "abmv"}
    graph = check("BatchNormalization", x, 7, "x a b m v", consts, spatial=0)
    assert "BatchNormalization" not in ops(graph)


WINDOWS = [
    (kernel, stride, dilation)
    for kernel in ([3, 3], [2, 4], [1, 5])
    for stride in ([1, 1], [2, 3])
    for dilation in ([1, 1], [2, 1])
]


@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), WINDOWS)
def test_convolutions_and_pools_have_pads(
    auto_pad: str,
    kernel: list[int],
    stride: list[int],
    dilation: list[int],
    rng: np.random.Generator,
) -> None:
    x = f32(rng, 1, 4, 9, 11)
    same = auto_pad.startswith("SAME")
    window: dict[str, Any] = {"strides": stride, "auto_pad": auto_pad}
    if auto_pad == "NOTSET":
        window = {"strides": stride, "pads": [1, 0, 0, 1] if min(kernel) > 1 else [0, 0, 0, 0]}
    graphs = []
    if not (same and dilation != [1, 1]):  # onnxruntime refuses the combination
        weight = {"w": f32(rng, 6, 2, *kernel)}
        conv = {**window, "dilations": dilation}
        graphs.append(check("Conv", x, 11, "x w", weight, group=2, **conv))
        graphs.append(check("MaxPool", x, 12, kernel_shape=kernel, **conv))
    if dilation == [1, 1]:
        for pad in (0, 1):
            more = {"kernel_shape": kernel, "count_include_pad": pad}
            graphs.append(check("AveragePool", x, 11, **more, **window))
        graphs.append(check("LpPool", x, 11, kernel_shape=kernel, **window))
    for graph in graphs:
        attrs = graph.nodes[0].attrs
        assert attrs["kernel_shape"] == tuple(kernel)
        assert len(attrs["pads"]) == 4
        assert "auto_pad" not in attrs


@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "shape"])
@pytest.mark.parametrize("kernel", [[3, 3], [2, 5], [4, 1]])
@pytest.mark.parametrize("stride", [[1, 1], [2, 3]])
def test_transposed_convolutions_have_pads(
    auto_pad: str, kernel: list[int], stride: list[int], rng: np.random.Generator
) -> None:
    x, weight = f32(rng, 1, 4, 5, 6), {"w": f32(rng, 4, 3, *kernel)}
    if auto_pad == "shape":
        for lower in ("NOTSET", "SAME_UPPER", "SAME_LOWER"):
            size = [(n - 1) * s + k - 1 for n, s, k in zip((5, 6), stride, kernel, strict=True)]
            more = {} if lower == "NOTSET" else {"auto_pad": lower}
            graph = check(
                "ConvTranspose", x, 11, "x w", weight, strides=stride, output_shape=size, **more
            )
    else:
        extra = [s - 1 for s in stride]
        graph = check(
            "ConvTranspose",
            x,
            11,
            "x w",
            weight,
            strides=stride,
            auto_pad=auto_pad,
            output_padding=[0, 0] if auto_pad.startswith("SAME") else extra,
        )
    assert not {"auto_pad", "output_shape"} & set(graph.nodes[0].attrs)


@pytest.mark.parametrize("opset", [7, 9, 13])
def test_flatten_reshape_transpose_have_explicit_attributes(
    opset: int, rng: np.random.Generator
) -> None:
    x = f32(rng, 2, 3, 4)
    assert check("Flatten", x, opset).nodes[0].attrs == {"axis": 1}
    assert check("Transpose", x, opset).nodes[0].attrs == {"perm": (2, 1, 0)}
    graph = check("Reshape", x, opset, "x s", {"s": i64(0, -1)})
    assert graph.consts[graph.nodes[0].inputs[1]].tolist() == [2, 12]


def test_expand_has_the_shape_of_its_output(rng: np.random.Generator) -> None:
    graph = check("Expand", f32(rng, 3, 1), 13, "x s", {"s": i64(2, 1, 4)})
    assert graph.consts[graph.nodes[0].inputs[1]].tolist() == [2, 3, 4]


def test_scatter_is_scatter_elements(rng: np.random.Generator) -> None:
    consts = {"i": i64(2, 0).reshape(1, 2), "u": f32(rng, 1, 2)}
    graph = check("Scatter", f32(rng, 3, 4), 9, "x i u", consts, axis=-1)
    assert ops(graph) == ["ScatterElements"]
    assert graph.nodes[0].attrs["axis"] == 1


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_has_the_new_names(mode: str, rng: np.random.Generator) -> None:
    x, grid = f32(rng, 1, 2, 4, 5), {"g": rng.uniform(-1, 1, (1, 3, 3, 2)).astype(np.float32)}
    check("GridSample", x, 16, "x g", grid, mode=mode)


@pytest.mark.parametrize("opset", [10, 16])
def test_roi_align_keeps_its_coordinates(opset: int, rng: np.random.Generator) -> None:
    x = f32(rng, 1, 2, 8, 8)
    consts = {"r": np.array([[0, 0, 5, 6], [2, 1, 7, 7]], np.float32), "b": i64(0, 0)}
    check("RoiAlign", x, opset, "x r b", consts, output_height=3, output_width=2, sampling_ratio=2)


def test_cast_like_and_casts_to_the_same_type(rng: np.random.Generator) -> None:
    x = f32(rng, 3)
    graph = check("CastLike", x, 15, "x o", {"o": np.zeros(1, np.int32)})
    assert ops(graph) == ["Cast"]
    assert ops(check("Cast", x, 13, to=1)) == ["Identity"]


@pytest.mark.parametrize("op", ["Sum", "Max", "Min", "Mean"])
def test_variadic_of_one_operand_is_identity(op: str, rng: np.random.Generator) -> None:
    assert ops(check(op, f32(rng, 3), 13)) == ["Identity"]
    assert ops(check(op, f32(rng, 3), 8, "x x x")) == [op]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 4), 1), ((4,), 2), ((2,), 0), ((4, 5), None)])
def test_broadcast_of_opset_6_aligns_at_axis(
    op: str, shape: tuple[int, ...], axis: int | None, rng: np.random.Generator
) -> None:
    """No runtime of today has opset 6, so NumPy is the judge."""
    from toolkit.frontend.reference import run

    x, y = np.abs(f32(rng, 2, 3, 4, 5)) + 0.5, np.abs(f32(rng, *shape)) + 0.5
    attrs = {"broadcast": 1} | ({} if axis is None else {"axis": axis})
    proto = model([node(op, "x y", "z", **attrs)], {"x": x, "y": y}, ["z"], opset=6)
    graph = load_onnx(proto)
    (got,) = run(graph, {"x": x, "y": y}).values()
    at = 4 - len(shape) if axis is None else axis
    wide = y.reshape(shape + (1,) * (4 - at - len(shape)))
    function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
    np.testing.assert_allclose(got, function.get(op, np.power)(x, wide), rtol=1e-6)


@pytest.mark.parametrize("opset", [1, 5, 6])
def test_operators_older_than_opset_6_are_refused(opset: int) -> None:
    proto = model([node("LSTM", "x w r", hidden_size=2)], {"x": [3, 1, 2]}, ["y"], opset=opset)
    for name in "wr":
        proto.graph.input.append(helper.make_tensor_value_info(name, 1, [1, 8, 2]))
    with pytest.raises(ModelError, match="too old; 7 to"):
        load_onnx(proto)


def test_operators_that_did_not_change_can_be_older() -> None:
    proto = model([node("Relu", "x")], {"x": [2, 3]}, ["y"], opset=6)
    assert ops(load_onnx(proto)) == ["Relu"]


def test_newer_opsets_than_onnx_knows_are_refused() -> None:
    proto = model([node("Relu", "x")], {"x": [2, 3]}, ["y"], opset=OPSET + 1)
    with pytest.raises(ModelError, match=f"7 to {OPSET} can be read"):
        load_onnx(proto)
