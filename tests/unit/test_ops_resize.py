"""Resampling operators compute what ONNX says, for random sizes and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.op_batch import Case, check, compare, expected, found
from tests.unit.test_ops_shape import apply, ints, static
from toolkit.errors import UnsupportedError
from toolkit.ir.compute import AssembleStage, ComputeStage, placeholder, Tensor, topological
from toolkit.ir.expr import Expr, loads

SYSTEMS = [
    "half_pixel",
    "asymmetric",
    "pytorch_half_pixel",
    "align_corners",
    "half_pixel_symmetric",
]
ROUNDING = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def image(rng: np.random.Generator, *spatial: int, dtype: str = "float32") -> Any:
    return (255 * rng.random((1, 2, *spatial))).astype(dtype)


def resize(
    rng: np.random.Generator, rank: int = 2, *, dtype: str = "float32", **attrs: Any
) -> Case:
    """Return a Resize by random scales, or to random sizes."""
    spatial = [int(n) for n in rng.integers(2, 8, rank)]
    x = image(rng, *spatial, dtype=dtype)
    if rng.integers(2):
        sizes = ints(1, 2, *(int(n) for n in rng.integers(1, 12, rank)))
        return static("Resize", attrs, x, None, None, sizes)
    if attrs.get("coordinate_transformation_mode") == "align_corners":
        # onnxruntime rounds the extent down before it aligns the corners, ONNX does not.
        factors = rng.choice([1, 2, 3], rank)
    else:
        factors = rng.choice([0.5, 0.6, 0.75, 1, 1.3, 1.5, 2, 2.5, 3], rank)
    return static("Resize", attrs, x, None, np.array([1, 1, *factors], np.float32))


def test_nearest_with_every_rounding_and_coordinate_system(rng: np.random.Generator) -> None:
    check(
        [
            resize(rng, rank, mode="nearest", nearest_mode=rounding, dtype=dtype,
                   coordinate_transformation_mode=system)
            for system in SYSTEMS
            for rounding in ROUNDING
            for rank, dtype in ((2, "float32"), (1, "int8"), (3, "uint8"))
        ]
    )  # fmt: skip


def test_linear_and_cubic_in_every_coordinate_system(rng: np.random.Generator) -> None:
    cases = []
    for system in SYSTEMS:
        common = {"coordinate_transformation_mode": system}
        for rank in (1, 2, 2, 3):
            cases.append(resize(rng, rank, mode="linear", **common))
        for exclude in (0, 1):
            cases.append(
                resize(rng, mode="cubic", exclude_outside=exclude, cubic_coeff_a=-0.5, **common)
            )
    check(cases, rtol=1e-5)


def test_antialias_of_what_shrinks(rng: np.random.Generator) -> None:
    cases = [
        resize(rng, mode=mode, antialias=1, exclude_outside=exclude,
               coordinate_transformation_mode=system)
        for mode in ("linear", "cubic")
        for exclude in (0, 1)
        for system in ("half_pixel", "asymmetric")
        for _ in range(2)
    ]  # fmt: skip
    check(cases, rtol=1e-5)


def test_crops_with_extrapolation(rng: np.random.Generator) -> None:
    cases = []
    for mode in ("nearest", "linear", "cubic"):
        for low, high in ((0.1, 0.7), (-0.3, 1.2), (0.9, 0.2)):
            roi = np.array([0, 0, low, low, 1, 1, high, high], np.float32)
            attrs = {
                "mode": mode,
                "coordinate_transformation_mode": "tf_crop_and_resize",
                "extrapolation_value": 9.0,
            }
            for sizes in (ints(1, 2, 5, 7), ints(1, 2, 1, 3)):
                cases.append(static("Resize", attrs, image(rng, 6, 5), roi, None, sizes))
    check(cases, rtol=1e-5)


def test_axes_policies_and_empty_operands(rng: np.random.Generator) -> None:
    x = image(rng, 5, 7)
    empty = np.zeros(0, np.float32)
    linear = {"mode": "linear"}
    cases = [
        static("Resize", linear, x, empty, np.array([1, 1, 2, 1.5], np.float32)),
        static("Resize", linear, x, empty, empty, ints(1, 2, 4, 9)),
        static("Resize", {"axes": [3]}, x, None, np.array([2], np.float32)),
        static("Resize", {**linear, "axes": [3, 2]}, x, None, None, ints(4, 8)),
        static("Resize", {**linear, "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
               x, None, None, ints(8, 9)),
        static("Resize", {"axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"},
               x, None, None, ints(8, 9)),
    ]  # fmt: skip
    check(cases)


def test_integers_are_rounded_and_saturated(rng: np.random.Generator) -> None:
    """The reference on float64 gives the values; onnxruntime truncates them, ONNX rounds."""
    cases = [
        resize(rng, mode=mode, dtype=dtype)
        for dtype in ("int8", "uint8", "int32")
        for mode in ("linear", "cubic")
        for _ in range(3)
    ]
    real = [
        Case(c.op, c.attrs, [np.asarray(c.operands[0]).astype(np.float64), *c.operands[1:]], 1,
             c.constant)
        for c in cases
    ]  # fmt: skip
    exact = expected(real, reference=True)
    for case, got, value in zip(cases, found(cases), exact, strict=True):
        assert got.dtype == np.asarray(case.operands[0]).dtype
        limits = np.iinfo(got.dtype)
        assert np.abs(got - np.clip(value, limits.min, limits.max)).max() <= 0.5 + 1e-4, case


def stages(t: Tensor) -> list[Tensor]:
    return [s for s in topological([t]) if s.stage is not None]


def test_nearest_with_whole_scales_is_index_arithmetic() -> None:
    x = np.zeros((1, 2, 3, 4), np.float32)
    for scales in ([1, 1, 2, 3], [1, 1, 4, 1]):
        y = apply("Resize", x, np.zeros(0, np.float32), np.array(scales, np.float32),
                  known=(1, 2), mode="nearest")  # fmt: skip
        assert isinstance(y.stage, AssembleStage)
        assert len(topological([y])) == 2
    half = np.array([1, 1, 1, 0.5], np.float32)
    down = apply("Resize", x[..., :2], np.zeros(0, np.float32), half,
                 known=(1, 2), mode="nearest", coordinate_transformation_mode="asymmetric",
                 nearest_mode="floor")  # fmt: skip
    assert isinstance(down.stage, ComputeStage)
    assert len(topological([down])) == 2


def test_bilinear_looks_up_two_tables_an_axis() -> None:
    x = np.zeros((1, 2, 3, 4), np.float32)
    y = apply("Resize", x, np.zeros(0, np.float32), np.array([1, 1, 2.5, 2.5], np.float32),
              known=(1, 2), mode="linear")  # fmt: skip
    assert stages(y) == [y]
    assert isinstance(y.stage, ComputeStage)
    assert isinstance(y.stage.body, Expr)
    tables = {t.name: t.dtype for t in topological([y]) if t.data is not None}
    assert tables == {"at2": "uint8", "weights2": "float32", "at3": "uint8", "weights3": "float32"}
    assert len({x for x in loads(y.stage.body) if x.buffer.data is None}) == 4


def grid(rng: np.random.Generator, x: Any, *places: int, spread: float = 1.3) -> Any:
    shape = (x.shape[0], *places, x.ndim - 2)
    return (spread * (2 * rng.random(shape) - 1)).astype(np.float32)


def test_grid_sampling(rng: np.random.Generator) -> None:
    cases = []
    for mode in ("nearest", "linear", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for align in (0, 1):
                attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
                x = image(rng, 4, 5)
                cases.append(Case("GridSample", attrs, [x, grid(rng, x, 3, 6, spread=2.5)]))
                if mode != "cubic" and not align:
                    x = image(rng, 3, 4, 2)
                    cases.append(Case("GridSample", attrs, [x, grid(rng, x, 2, 3, 2)]))
    check(cases, rtol=1e-5)


def test_a_grid_point_of_any_value_stays_inside_the_image() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    wild = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9], np.float32)
    points = np.stack(np.meshgrid(wild, wild), axis=-1)[None]
    results = found(
        [
            Case("GridSample", {"mode": mode, "padding_mode": padding}, [x, points])
            for mode in ("nearest", "linear", "cubic")
            for padding in ("zeros", "border", "reflection")
        ]
    )
    for position, y in enumerate(results):
        finite = y[0, 0, 1:, 1:]  # rows and columns of NaN may give NaN
        if position % 3 == 0:
            np.testing.assert_array_equal(finite, 0)
        elif position % 3 == 1:
            assert set(np.round(finite.ravel(), 4)) <= {0, 3, 8, 11}


def test_affine_grids(rng: np.random.Generator) -> None:
    cases = [
        static("AffineGrid", {"align_corners": align},
               rng.standard_normal((2, rank, rank + 1)).astype(np.float32),
               ints(2, 3, *spatial))
        for align in (0, 1)
        for rank, spatial in ((2, (4, 5)), (3, (2, 3, 4)))
    ]  # fmt: skip
    check(cases)


def test_regions_of_interest(rng: np.random.Generator) -> None:
    x = image(rng, 7, 9)[:, :2].repeat(2, axis=0)
    rois = np.array([[0, 0, 4, 3], [1.5, 2, 8, 6], [-3, -2, 12, 9], [5, 5, 5, 5]], np.float32)
    batches = ints(0, 1, 1, 0)
    cases = [
        Case("RoiAlign",
             {"coordinate_transformation_mode": system, "sampling_ratio": ratio, "mode": mode,
              "output_height": 3, "output_width": 2, "spatial_scale": 0.75},
             [x, rois, batches])
        for system in ("half_pixel", "output_half_pixel")
        for ratio in (0, 2)
        for mode in ("avg", "max")
    ]  # fmt: skip
    got = found(cases)
    problems = compare(cases, got, expected(cases, reference=True), rtol=1e-5)
    assert not problems, problems


def test_columns_to_images(rng: np.random.Generator) -> None:
    cases = []
    for image_shape, block, attrs in (
        ((5, 5), (1, 5), {}),
        ((5, 5), (3, 2), {"pads": [1, 0, 1, 2]}),
        ((6, 5), (2, 2), {"strides": [2, 1], "dilations": [1, 2]}),
        ((4, 3, 5), (2, 1, 3), {"strides": [1, 2, 1]}),
    ):
        rank = len(block)
        pads, strides = attrs.get("pads", [0] * 2 * rank), attrs.get("strides", [1] * rank)
        dilations = attrs.get("dilations", [1] * rank)
        places = [
            (n + pads[a] + pads[a + rank] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1
            for a, n in enumerate(image_shape)
        ]
        columns = rng.random((2, 2 * int(np.prod(block)), int(np.prod(places)))).astype(np.float32)
        cases.append(static("Col2Im", attrs, columns, ints(*image_shape), ints(*block)))
    check(cases)


def test_scales_at_run_time_are_refused() -> None:
    x = placeholder((1, 1, 2, 2), "float32")
    with pytest.raises(UnsupportedError, match="sizes must be known when compiling"):
        apply("Resize", np.zeros(x.shape, np.float32), np.zeros(0, np.float32),
              np.zeros(0, np.float32), ints(1, 1, 4, 4))  # fmt: skip
