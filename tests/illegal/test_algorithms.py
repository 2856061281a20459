"""Algorithms refused where the convolution is another one, saying which."""

from __future__ import annotations

import pytest

from tests.illegal.test_staging import check_refused
from tests.meaning.convolutions import convolution
from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder, Reduce, reduce_axis, sum
from toolkit.ir.expr import all_of, Expr
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.examples import matmul, padded_windows
from toolkit.schedule.steps.im2col import Im2col
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.winograd import Winograd

STEP = Winograd("conv", "w", (0, 1), 2)
NO_CONVOLUTION = "is no convolution over two axes"


@pytest.mark.parametrize(
    ("func", "why"),
    [
        (convolution((8, 8), (2, 2), strides=(2, 2)), "only 3x3 taps of stride and dilation 1"),
        (convolution((8, 8), (2, 2), kernel=(5, 5)), "only 3x3 taps of stride and dilation 1"),
        (convolution((8, 8), (2, 2), constant=False), "the weights 'w' are no constant"),
        (convolution((8, 8), (2, 2), dtype="int32"), "int32 would be rounded"),
        (convolution((2, 1), (2, 2)), "a tile of 2 is larger than the result, 2 x 1."),
        (convolution((8, 8), (2, 2), layout="NCHW"), "the taps are dimensions (2, 3) of 'w'."),
        (convolution((8, 8), (2, 2), kernel=(1, 1)), "only 3x3 taps of stride and dilation 1"),
    ],
)
def test_winograd_of_another_convolution(func: PrimFunc, why: str) -> None:
    check_refused(STEP, func, why)


def test_winograd_with_a_tile_that_has_no_transform() -> None:
    check_refused(Winograd("conv", "w", (0, 1), 3), convolution((8, 8), (2, 2)), "no tile of 3.")


def test_winograd_of_a_product_of_matrices() -> None:
    check_refused(Winograd("t", "w", (0, 1), 2), matmul(), f"'t' {NO_CONVOLUTION}")
    check_refused(Winograd("y", "w", (0, 1), 2), matmul(), "it is no sum from zero.")


def test_im2col_of_what_slides_no_windows() -> None:
    check_refused(Im2col("t"), matmul(), f"'t' {NO_CONVOLUTION}")
    check_refused(Im2col("y"), padded_windows(), "it sums no products.")
    check_refused(Im2col("conv"), sliding(shift=1), "its guard is not that the windows lie inside.")


def test_winograd_after_its_loops_were_split() -> None:
    func = Split("oc", (2,)).apply(convolution((8, 8), (2, 4)))
    check_refused(STEP, func, "its loops were transformed before.")


def sliding(*, shift: int = 0, limit: int = 6, twice: bool = False) -> PrimFunc:
    """Return a 3x3 convolution whose guard is off by `shift`, or weights that are read `twice`."""
    x = placeholder((1, 6, 6, 2), "float32", "x")
    w = placeholder((3, 3, 2, 2), "float32", "w", data=0)
    kh, kw, c = reduce_axis(3, "kh"), reduce_axis(3, "kw"), reduce_axis(2, "c")

    def element(n: Expr, i: Expr, j: Expr, o: Expr) -> Reduce:
        y, z = i + kh - 1, j + kw - 1
        inside = all_of(y >= shift, y < limit, z >= 0, z < 6)
        return sum(x[n, y, z, c] * w[kh, kw, c, o], (kh, kw, c), where=inside)

    conv = compute((1, 6, 6, 2), element, "conv")
    if not twice:
        return build([conv], [x, w])
    return build(
        [compute((1, 6, 6, 2), lambda n, i, j, o: conv[n, i, j, o] + w[0, 0, 0, o])], [x, w]
    )


def test_winograd_where_the_guard_skips_more_than_the_padding() -> None:
    why = "its guard is not that the windows lie inside."
    check_refused(STEP, sliding(shift=1), why)
    check_refused(STEP, sliding(limit=5), why)


def test_winograd_of_weights_that_others_read() -> None:
    assert STEP.apply(sliding()) != sliding()
    check_refused(
        STEP, sliding(twice=True), "the weights 'w' are no constant that this block alone"
    )
