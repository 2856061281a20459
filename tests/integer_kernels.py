"""Integer products with schedules by hand: what the default schedules of int8 models will use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder, reduce_axis, sum
from toolkit.ir.expr import cast
from toolkit.ir.loop import PrimFunc
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.base import Step
from toolkit.schedule.steps.cache_write import CacheWrite
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.pack import Pack
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.shift_operand import ShiftOperand
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.tensorize import Tensorize
from toolkit.schedule.steps.transform_layout import TransformLayout
from toolkit.schedule.steps.widen_read import WidenRead
from toolkit.targets.isas import TENSOR_INTRINSICS


def rows_by_columns(
    rows: int, columns: int, depth: int, a: str = "int8", w: str = "int8"
) -> PrimFunc:
    """c[i, j] = sum over k of a[i, k] * w[j, k] in int32: a 1x1 convolution, w constant."""
    left = placeholder((rows, depth), a, "a")
    right = placeholder((columns, depth), w, "w", data=0)
    k = reduce_axis(depth, "k")
    return build(
        [
            compute(
                (rows, columns),
                lambda i, j: sum(cast(left[i, k], "int32") * cast(right[j, k], "int32"), k),
                "c",
            )
        ],
        [left, right],
    )


def tile(rows: int, columns: int, *, rows_first: bool = False) -> tuple[Step, ...]:
    """Accumulators of rows x columns, and the copy to the result on the same tile."""
    tiles = ("i_2.0", "j_2.0") if rows_first else ("j_2.0", "i_2.0")
    return (
        CacheWrite("c"),
        Split("i_2", (rows,)),
        Split("j_2", (columns,)),
        Reorder((*tiles, "i_2.1", "j_2.1")),
        ComputeAt("c", tiles[1]),
    )


def in_lanes(rows: int, vectors: int, intrinsic: str) -> tuple[Step, ...]:
    """Columns in the lanes of vectors: one vector is a dot product of each with the row."""
    loops = TENSOR_INTRINSICS[intrinsic].loops
    depth = loops[-1].extent
    lanes = TENSOR_INTRINSICS[intrinsic].lanes()
    groups = loops[0].extent if len(loops) == 3 else 1
    columns = vectors * lanes
    step: tuple[Step, ...]
    if groups == 1:
        step = (
            Split("k", (depth,)),
            Split("j", (lanes,)),
            Reorder(("k.0", "i", "j.0", "j.1", "k.1")),
            Unroll("i"),
            Unroll("j.0"),
            Tensorize("j.1", intrinsic),
        )
    else:
        step = (
            Split("k", (groups, depth)),
            Split("j", (lanes,)),
            Reorder(("k.0", "i", "j.0", "k.1", "j.1", "k.2")),
            Unroll("i"),
            Unroll("j.0"),
            Tensorize("k.1", intrinsic),
        )
    return (
        Pack("w", 1, depth),
        Pack("w", 1, columns),
        TransformLayout("w", (0, 1, 3, 2)),
        *tile(rows, columns),
        *step,
        Unroll("i_2.1"),
        Vectorize("j_2.1"),
    )


def in_words(
    rows: int, columns: int, intrinsic: str, unroll: int = 1, *, widen: bool = False,
    packed: bool = False,
) -> tuple[Step, ...]:  # fmt: skip
    """Accumulators in words: each is a dot product along the row, which `widen` copies first.

    `packed`: weights lie in the order they are read, and sums are stored as vectors.
    """
    extents = tuple(loop.extent for loop in TENSOR_INTRINSICS[intrinsic].loops)
    inner = [f"k.{n + 2}" for n in range(len(extents))]
    own = [loop for loop, extent in (("i", rows), ("j", columns)) if extent > 1]
    layout: tuple[Step, ...] = ()
    if len(extents) == 2:  # elements 0, 2, 1, 3 of the row
        layout = (
            Pack("w", 1, 4),
            Pack("w", 1, columns),
            TransformLayout("w", (0, 1, 3, 2)),
            Pack("w", 3, 2),
            TransformLayout("w", (1, 2, 3, 4, 0)),
        )
    if packed:
        layout = (
            Pack("w", 1, extents[0]), Pack("w", 1, columns), TransformLayout("w", (0, 1, 3, 2))
        )  # fmt: skip
    return (
        *layout,
        *tile(rows, columns, rows_first=widen or packed),
        *((WidenRead("c", "a", "i_2.0", "int16"),) if widen else ()),
        Split("k", (unroll, *extents)),
        Reorder(("k.0", "k.1", *own, *inner)),
        Unroll("k.1"),
        *(Unroll(loop) for loop in own),
        Tensorize("k.2", intrinsic),
        Unroll("i_2.1"),
        Vectorize("j_2.1") if packed else Unroll("j_2.1"),
    )


def by_scalars(rows: int, vectors: int, intrinsic: str) -> tuple[Step, ...]:
    """Columns in lanes, each step of the reduction multiplied by one element of the row."""
    extents = tuple(loop.extent for loop in TENSOR_INTRINSICS[intrinsic].loops)
    inner = [f"j.{n + 1}" for n in range(len(extents))]
    columns = vectors * math.prod(extents)
    return (
        TransformLayout("w", (1, 0)),
        Pack("w", 1, columns),
        *tile(rows, columns),
        Split("j", extents),
        Reorder(("k", "i", "j.0", *inner)),
        Unroll("i"),
        Unroll("j.0"),
        Tensorize("j.1", intrinsic),
        Unroll("i_2.1"),
        Vectorize("j_2.1"),
    )


@dataclass(frozen=True)
class Kernel:
    """A product with the schedule that suits an instruction set.

    Of its innermost loop: `instruction`, a pattern that `count` lines match; `macs`, its
    multiply-adds; `per_mac`, instructions for each, at most.
    """

    isa: str
    instruction: str
    count: int
    macs: int
    per_mac: float
    func: PrimFunc
    trace: tuple[Step, ...]


KERNELS = (
    Kernel("avx512vnni", r"vpdpbusd\s.*%zmm", 28, 28 * 64, 0.03,
           rows_by_columns(56, 64, 128, "uint8"), in_lanes(14, 2, "avx512vnni_dot4_u8s8")),
    Kernel("avx512vnni", r"vpdpbusd\s.*%zmm", 28, 28 * 64, 0.06,
           rows_by_columns(56, 64, 128),
           (ShiftOperand("c", "a"), *in_lanes(14, 2, "avx512vnni_dot4_f8s8"))),
    Kernel("avxvnni", r"({vex} )?vpdpbusd\s.*%ymm", 8, 8 * 32, 0.08,
           rows_by_columns(56, 64, 128, "uint8"), in_lanes(4, 2, "avxvnni_dot4_u8s8")),
    Kernel("avx512", r"vpmaddwd\s.*%zmm", 16, 16 * 32, 0.12,
           rows_by_columns(56, 64, 128, "int16", "int16"), in_lanes(8, 2, "avx512_dot2_s16s16")),
    Kernel("avx2", r"vpmaddwd\s.*%ymm", 8, 8 * 16, 0.26,
           rows_by_columns(56, 64, 128, "int16", "int16"), in_lanes(4, 2, "avx2_dot2_s16s16")),
    Kernel("neon_dot", r"sdot\s.*\.4s", 64, 64 * 16, 0.10,
           rows_by_columns(56, 64, 128), in_lanes(8, 2, "neon_dot16_s8s8")),
    Kernel("neon", r"smlal2?\s.*\.4s", 16, 16 * 4, 0.55,
           rows_by_columns(56, 64, 128), by_scalars(4, 2, "neon_mla8_s8s8")),
    Kernel("armv7em", r"smlad\s", 32, 32 * 2, 1.19,
           rows_by_columns(56, 64, 128, "int16"), in_words(2, 2, "dsp_dot4_s16s8", unroll=4)),
    Kernel("armv7em", r"smlad\s", 32, 32 * 2, 1.32,
           rows_by_columns(56, 64, 128), in_words(2, 2, "dsp_dot4_s8s8", unroll=4)),
    Kernel("armv7em", r"smlad\s", 32, 32 * 2, 1.19, rows_by_columns(56, 64, 128),
           in_words(2, 2, "dsp_dot4_s16s8", unroll=4, widen=True)),
    Kernel("helium", r"vmla(dav|v)a\.s8\s", 4, 4 * 16, 0.21,
           rows_by_columns(56, 64, 128), in_words(2, 2, "mve_dot16_s8s8")),
    Kernel("helium", r"vmla(dav|v)a?\.s8\s", 32, 32 * 16, 0.152,
           rows_by_columns(56, 64, 128), in_words(1, 4, "mve_dot16_s8s8", unroll=8, packed=True)),
    Kernel("helium", r"vmla(dav|v)a\.s16\s", 4, 4 * 8, 0.41,
           rows_by_columns(56, 64, 128, "int16"), in_words(2, 2, "mve_dot8_s16s8")),
)  # fmt: skip
