"""Constructs that other tools refused or computed wrongly, as families: right here.

The reference is onnxruntime.  Models are in ONNX's own text form and built as one library.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from tests.model_batch import ModelBatch
from toolkit.errors import NestlingError, UnsupportedError
from toolkit.ir.program import JumpIfNot
from toolkit.pipeline import compile_model, Compiled, load, Options

OPTIONS = Options(target="generic", cflags=("-O1",))

# ------------------------------------------------------------------ functions that a model defines

FUNCTIONS = {
    "called_twice": """
        <ir_version: 9, opset_import: ["": 17, "local": 1]>
        m (float[2,4] x) => (float[2,4] y)
        <float[4,4] w = {1,2,3,4,5,6,7,8,-1,-2,-3,-4,0.5,0.25,1,0}>
        { a = local.Layer (x, w)  y = local.Layer (a, w) }
        <domain: "local", opset_import: ["": 17]>
        Layer (X, W) => (Y) { t = MatMul (X, W)  Y = Tanh (t) }
    """,
    "function_in_function": """
        <ir_version: 9, opset_import: ["": 17, "local": 1]>
        m (float[2,4] x) => (float[2,4] y) { y = local.Outer (x) }
        <domain: "local", opset_import: ["": 17, "local": 1]>
        Outer (X) => (Y) { t = local.Inner (X)  u = local.Inner (t)  Y = Add (t, u) }
        <domain: "local", opset_import: ["": 17]>
        Inner (X) => (Y) { t = Sigmoid (X)  Y = Mul (X, t) }
    """,
    "attribute_is_handed_on": """
        <ir_version: 9, opset_import: ["": 17, "local": 1]>
        m (float[2,4] x) => (float[2,4] y, float[4,2] z)
        { y = local.Leak <alpha = 0.3> (x)  t = local.Leak <alpha = 0.01> (x)
          z = Transpose <perm = [1, 0]> (t) }
        <domain: "local", opset_import: ["": 17]>
        Leak <alpha> (X) => (Y) { Y = LeakyRelu <alpha: float = @alpha> (X) }
    """,
    "attribute_has_a_default": """
        <ir_version: 9, opset_import: ["": 17, "local": 1]>
        m (float[2,3,4] x) => (float[2,1,4] y, float[2,3,1] z)
        { y = local.Pick (x)  z = local.Pick <axes = [2]> (x) }
        <domain: "local", opset_import: ["": 17]>
        Pick <axes: ints = [1]> (X) => (Y) { Y = ReduceMax <axes: ints = @axes> (X) }
    """,
    "one_of_two_outputs_is_used": """
        <ir_version: 9, opset_import: ["": 17, "local": 1]>
        m (float[2,4] x) => (float[2,4] y) { y, unused = local.Both (x) }
        <domain: "local", opset_import: ["": 17]>
        Both (X) => (A, B) { A = Exp (X)  B = Neg (X) }
    """,
    "names_inside_are_the_callers_too": """
        <ir_version: 9, opset_import: ["": 17, "local": 1]>
        m (float[4] t) => (float[4] y) { X = Neg (t)  Y = local.F (X)  y = Add (t, Y) }
        <domain: "local", opset_import: ["": 17]>
        F (t) => (y) { X = Exp (t)  y = Add (X, t) }
    """,
    "a_branch_inside": """
        <ir_version: 9, opset_import: ["": 17, "local": 1]>
        m (float[4] x, bool c) => (float[4] y) { y = local.F (x, c) }
        <domain: "local", opset_import: ["": 17]>
        F (X, C) => (Y) {
          Y = If (C) <then_branch = a () => (A) { A = Exp (X) },
          else_branch = b () => (B) { B = Neg (X) }>
        }
    """,
    "an_older_opset_inside": """
        <ir_version: 9, opset_import: ["": 17, "local": 1]>
        m (float[2,3,4] x) => (float[2,3,4] y) { y = local.F (x) }
        <domain: "local", opset_import: ["": 9]>
        F (X) => (Y) { t = Erf (X)  Y = Sinh (t) }
    """,
}  # fmt: skip

# ---------------------------------------------------------------------- arithmetic on shapes

SHAPES = {
    "resize_sizes": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[1,3,8,6] x) => (float[1,3,16,18] y)
        <int64[1] zero = {0}, int64[1] two = {2}, int64[1] four = {4}, int64[2] by = {2, 3}>
        { s = Shape (x)  nc = Slice (s, zero, two)  hw = Slice (s, two, four)  big = Mul (hw, by)
          sizes = Concat <axis = 0> (nc, big)
          y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (x, "", "",
          sizes) }
    """,
    "resize_to_the_shape_of_another": """
        <ir_version: 9, opset_import: ["": 18]>
        m (float[1,2,5,4] x, float[1,2,9,8] z) => (float[1,2,9,8] y)
        { s = Shape <start = 2> (z)
          r = Resize <axes = [2, 3], mode = "nearest"> (x, "", "", s)  y = Add (r, z) }
    """,
    "flatten_by_gather": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[3,2,4] x) => (float[3,8] y)
        <int64 zero = {0}, int64[1] ax = {0}, int64[1] rest = {-1}>
        { s = Shape (x)  n = Gather <axis = 0> (s, zero)  n1 = Unsqueeze (n, ax)
          shape = Concat <axis = 0> (n1, rest)  y = Reshape (x, shape) }
    """,
    "scale_by_floats": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[1,1,5,5] x) => (float[1,1,7,7] y) <int64[1] two = {2}, int64[1] four = {4},
          int64[2] one = {1, 1}, float by = {1.5}>
        { s = Shape (x)  hw = Slice (s, two, four)  f = Cast <to = 1> (hw)  g = Mul (f, by)
          h = Floor (g)
          i = Cast <to = 7> (h)  sizes = Concat <axis = 0> (one, i)
          y = Resize <mode = "cubic"> (x, "", "", sizes) }
    """,
    "heads_of_attention": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[2,5,12] x) => (float[2,3,5,4] y)
        <int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}, int64 three = {3}, int64[1] ax = {0},
          int64[1] heads = {3}>
        { s = Shape (x)  n = Gather (s, i0)  t = Gather (s, i1)  c = Gather (s, i2)
          d = Div (c, three)
          n1 = Unsqueeze (n, ax)  t1 = Unsqueeze (t, ax)  d1 = Unsqueeze (d, ax)
          shape = Concat <axis = 0> (n1, t1, heads, d1)
          r = Reshape (x, shape)  y = Transpose <perm = [0, 2, 1, 3]> (r) }
    """,
    "expand_and_fill": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[2,3] x, float[1,3] b) => (float[2,3] y)
        { s = Shape (x)  e = Expand (b, s)  f = ConstantOfShape <value: tensor = float[1] {2.5}> (s)
          t = Mul (e, f)  y = Add (x, t) }
    """,
    "positions_by_range": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[1,6,2] x) => (float[1,6,2] y)
        <int64 zero = {0}, int64 one = {1},
          float[8,2] table = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}>
        { s = Shape (x)  n = Gather (s, one)  r = Range (zero, n, one)  p = Gather (table, r)
          y = Add (x, p) }
    """,
    "slice_the_second_half": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[1,6,2] x) => (float[1,3,2] y) <int64[1] one = {1}, int64[1] two = {2},
          int64[1] ax = {1}>
        { s = Shape (x)  n = Slice (s, one, two)  h = Div (n, two)  y = Slice (x, h, n, ax) }
    """,
    "pad_to_a_multiple": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[1,1,5] x) => (float[1,1,8] y)
        <int64[1] two = {2}, int64[1] three = {3}, int64[1] four = {4}, int64[5] none = {0,0,0,0,0}>
        { s = Shape (x)  n = Slice (s, two, three)  m = Neg (n)  k = Mod (m, four)
          pads = Concat <axis = 0> (none, k)  y = Pad (x, pads) }
    """,
    "tile_by_size": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[1,3] x, float[4] z) => (float[4,3] y) <int64[1] ax = {0}, int64[1] one = {1}>
        { n = Size (z)  n1 = Unsqueeze (n, ax)  r = Concat <axis = 0> (n1, one)  y = Tile (x, r) }
    """,
    "where_on_a_shape": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[1,3] x) => (float[5,3] y) <int64[2] ask = {5, -1}, int64[2] ones = {1, 1},
          int64[2] none = {-1, -1}>
        { e = Equal (ask, none)  shape = Where (e, ones, ask)  y = Expand (x, shape) }
    """,
}  # fmt: skip

# -------------------------------------------------------------------------- If and Loop

CONTROL = {
    "known_from_an_extent": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[1,8] x) => (float[1,8] y) <int64 i1 = {1}, int64 eight = {8}, float two = {2}>
        { s = Shape (x)  n = Gather (s, i1)  c = Equal (n, eight)
          y = If (c) <then_branch = a () => (A) { A = Mul (x, two) },
          else_branch = b () => (B) { B = Neg (x) }> }
    """,
    "known_and_shapes_differ": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[1,8] x) => (float[N] y) <int64 i0 = {0}, int64 one = {1}, int64[1] ax = {0}>
        { s = Shape (x)  n = Gather (s, i0)  c = Equal (n, one)
          t = If (c) <then_branch = a () => (A) { A = Squeeze (x, ax) },
          else_branch = b () => (B) { B = Identity (x) }>
          y = Exp (t) }
    """,
    "known_inside_known": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[2,3] x) => (float[2,3] y) <int64 six = {6}, int64 i0 = {0}>
        { n = Size (x)  c = Equal (n, six)
          y = If (c) <
            then_branch = a () => (A) {
              s = Shape (x)  r = Gather (s, i0)  d = Less (r, i0)
              A = If (d) <then_branch = p () => (P) { P = Neg (x) },
              else_branch = q () => (Q) { Q = Exp (x) }>
            },
            else_branch = b () => (B) { B = Identity (x) }> }
    """,
    "known_from_a_constant": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[4] x) => (float[4] y) <bool c = {0}>
        { y = If (c) <then_branch = a () => (A) { A = Exp (x) },
          else_branch = b () => (B) { B = Neg (x) }> }
    """,
    "decided_at_run_time": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[4] x, float[4] z) => (float[4] y) <float zero = {0}>
        { t = ReduceSum <keepdims = 0> (x)  c = Greater (t, zero)  u = Add (x, z)
          v = If (c) <then_branch = a () => (A) { A = Mul (u, z) },
          else_branch = b () => (B) { B = Sub (u, z) }>
          y = Add (v, x) }
    """,
    "branches_hand_tensors_through": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[4] x, bool c) => (float[4] y, float[4] z)
        { e = Exp (x)  n = Neg (x)
          y, z = If (c) <then_branch = a () => (A, B) { A = Identity (e)  B = Identity (n) },
                         else_branch = b () => (C, D) { C = Identity (n)  D = Identity (x) }> }
    """,
    "run_time_inside_run_time": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[4] x, bool c, bool d) => (float[4] y)
        { y = If (c) <
            then_branch = a () => (A) {
              A = If (d) <then_branch = p () => (P) { P = Exp (x) },
              else_branch = q () => (Q) { Q = Neg (x) }>
            },
            else_branch = b () => (B) { B = Mul (x, x) }> }
    """,
    "loop_of_known_length": """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[4] x) => (float[4] y, float[3,4] all) <int64 three = {3}, bool yes = {1},
          float half = {0.5}>
        { y, all = Loop (three, yes, x) <body = b (int64 i, bool c, float[4] a) => (bool d,
          float[4] e, float[4] f) {
            d = Identity (c)  t = Cast <to = 1> (i)  u = Add (a, t)  e = Mul (u, half)
            f = Identity (e) }> }
    """,
}  # fmt: skip


def resize(text: str, size: str = "1,2,5,6", scale: str = "1,1,2.5,2.5", opset: int = 17) -> str:
    scales = [float(s) for s in scale.split(",")]
    out = ",".join(str(int(n * s)) for n, s in zip(map(int, size.split(",")), scales, strict=True))
    return f"""
        <ir_version: 9, opset_import: ["": {opset}]>
        m (float[{size}] x) => (float[{out}] y) <float[{len(scales)}] scales = {{{scale}}},
          float[0] roi = {{}}>
        {{ y = Resize <{text}> (x, roi, scales) }}
    """


# With align_corners and a scale that gives no whole extent, onnxruntime and the tests of ONNX
# differ; nestling goes by the tests.
WHERE = {
    "half_pixel": ("2.5,2.5", "0.6,1.7"),
    "asymmetric": ("2.5,2.5", "0.6,1.7"),
    "pytorch_half_pixel": ("2.5,2.5", "0.6,1.7"),
    "align_corners": ("2.4,2.5", "0.6,1.5"),
}
RESIZE = {
    f"{mode}_{where}_{scale}": resize(
        f'mode = "{mode}", coordinate_transformation_mode = "{where}"', scale=f"1,1,{scale}"
    )
    for mode in ("linear", "nearest", "cubic")
    for where, scales in WHERE.items()
    for scale in scales
} | {
    f"nearest_{rounding}_{where}": resize(
        f'mode = "nearest", nearest_mode = "{rounding}", coordinate_transformation_mode = "{where}"'
    )
    for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    for where in ("half_pixel", "asymmetric")
} | {
    "empty_roi_1d": resize('mode = "linear"', "1,2,7", "1,1,2.5"),
    "empty_roi_3d": resize('mode = "linear"', "1,1,3,4,2", "1,1,2,1.5,3"),
    "empty_roi_opset_11": resize('mode = "nearest"', opset=11),
    "empty_roi_opset_13": resize('mode = "linear"', opset=13),
    "antialias": resize('mode = "linear", antialias = 1', "1,1,9,9", "1,1,0.5,0.4", opset=18),
    "empty_roi_and_scales": """
        <ir_version: 9, opset_import: ["": 11]>
        m (float[1,2,4,4] x) => (float[1,2,7,9] y)
        <float[0] roi = {}, float[0] scales = {}, int64[4] sizes = {1,2,7,9}>
        { y = Resize <mode = "linear"> (x, roi, scales, sizes) }
    """,
}  # fmt: skip


def pool(op: str, size: str, out: str, opset: int = 19, **attributes: object) -> str:
    text = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    return f"""
        <ir_version: 9, opset_import: ["": {opset}]>
        m (float[1,2,{size}] x) => (float[1,2,{out}] y) {{ y = {op} <ceil_mode = 1, {text}> (x) }}
    """


AVERAGE, MAX = "AveragePool", "MaxPool"
# The window that ceil_mode adds must not begin in the padding behind the data (opset 19 and later).
POOLS = {
    "average_1d": pool(AVERAGE, "8", "4", kernel_shape=[3], strides=[2]),
    "average_2d": pool(AVERAGE, "7,8", "3,3", kernel_shape=[3, 2], strides=[2, 3]),
    "average_3d": pool(AVERAGE, "4,5,6", "2,3,3", kernel_shape=[2] * 3, strides=[2] * 3),
    "average_pads": pool(
        AVERAGE, "6,6", "4,4", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "average_pads_counted": pool(
        AVERAGE, "6,6", "4,3", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 0],
        count_include_pad=1,
    ),
    "average_pads_behind": pool(
        AVERAGE, "17,17", "9,9", kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1]
    ),
    "max_1d": pool(MAX, "9", "5", kernel_shape=[2], strides=[2]),
    "max_2d": pool(MAX, "6,5", "3,3", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 1, 1]),
    "max_dilated": pool(MAX, "8,8", "3,4", kernel_shape=[2, 2], strides=[3, 2], dilations=[2, 3]),
    "lp_2d": pool("LpPool", "7,7", "4,4", 18, kernel_shape=[2, 2], strides=[2, 2], p=2),
}  # fmt: skip


def conv_transpose(kernel: int, stride: int, text: str, channels: str = "2,3") -> str:
    shape = f"{channels},{kernel},{kernel}"
    count = int(np.prod([int(n) for n in shape.split(",")]))
    values = ",".join(f"{(i * 37 % 19 - 9) / 8}" for i in range(count))
    return f"""
        <ir_version: 9, opset_import: ["": 17]>
        m (float[1,2,4,5] x) => (float[N,C,H,W] y) <float[{shape}] w = {{{values}}}>
        {{ y = ConvTranspose <strides = [{stride}, {stride}], {text}> (x, w) }}
    """


SAME_UPPER, SAME_LOWER = 'auto_pad = "SAME_UPPER"', 'auto_pad = "SAME_LOWER"'
TRANSPOSED = {
    f"{side}_k{kernel}_s{stride}": conv_transpose(kernel, stride, text)
    for side, text in (("same_upper", SAME_UPPER), ("same_lower", SAME_LOWER))
    for kernel, stride in ((3, 2), (2, 2), (4, 2), (3, 1), (2, 1), (5, 3), (4, 3))
} | {
    "valid": conv_transpose(3, 2, 'auto_pad = "VALID"'),
    "same_upper_groups": conv_transpose(3, 2, f"{SAME_UPPER}, group = 2", "2,2"),
    "same_lower_dilated": conv_transpose(2, 2, f"{SAME_LOWER}, dilations = [2, 2]"),
    "output_shape": conv_transpose(3, 2, "output_shape = [9, 10]"),
    "output_padding": conv_transpose(3, 2, "output_padding = [1, 0], pads = [1, 0, 0, 1]"),
}  # fmt: skip


def attention(lead: str, lead_k: str, scores: str, opset: int = 17) -> str:
    rank = len(lead.split(",")) + 2
    perm = [*range(rank - 2), rank - 1, rank - 2]
    return f"""
        <ir_version: 9, opset_import: ["": {opset}]>
        m (float[{lead},6,8] q, float[{lead_k},7,8] k, float[{lead_k},7,5] v, float[6,7] mask)
          => (float[{lead},6,5] y)
        <float scale = {{0.35}}, float root = {{2.83}}>
        {{ kt = Transpose <perm = {perm}> (k)  a = MatMul (q, kt)  {scores}  y = MatMul (p, v) }}
    """


def matmul(a: str, b: str, out: str) -> str:
    return f"""
        <ir_version: 9, opset_import: ["": 17]>
        m (float[{a}] a, float[{b}] b) => (float{f"[{out}]" if out else ""} y) {{ y = MatMul (a,
          b) }}
    """


PRODUCTS = {
    "attention_3d": attention("3", "3", "p = Softmax <axis = -1> (a)"),
    "attention_4d": attention("2,3", "2,3", "s = Mul (a, scale)  p = Softmax <axis = -1> (s)"),
    "attention_masked": attention(
        "2,3", "2,3", "s = Div (a, root)  t = Add (s, mask)  p = Softmax <axis = 3> (t)"
    ),
    "attention_times_mask": attention(
        "1,2", "1,2", "s = Mul (a, scale)  t = Mul (s, mask)  p = Softmax (t)"
    ),
    "attention_one_key_head": attention("2,4", "2,1", "p = Softmax (a)"),
    "attention_softmax_of_two_axes": attention("3", "3", "p = Softmax <axis = 1> (a)", opset=11),
    "batch": matmul("3,4,5", "3,5,6", "3,4,6"),
    "batch_by_matrix": matmul("3,4,5", "5,6", "3,4,6"),
    "matrix_by_batch": matmul("4,5", "3,5,6", "3,4,6"),
    "batches_spread": matmul("2,1,4,5", "3,5,6", "2,3,4,6"),
    "row_by_batch": matmul("5", "3,5,6", "3,6"),
    "batch_by_column": matmul("3,4,5", "5", "3,4"),
    "row_by_column": matmul("5", "5", ""),
    "one_row": matmul("2,1,5", "2,5,1", "2,1,1"),
}  # fmt: skip


def normalised(text: str, size: str = "2,6,16", opset: int = 13) -> str:
    return f"""
        <ir_version: 9, opset_import: ["": {opset}]>
        m (float[{size}] x) => (float[{size}] y)
        <float two = {{2}}, float half = {{0.5}}, float one = {{1}}, int64[1] ax = {{-1}},
          int64[2] axes = {{2, 3}},
         float n = {{16}}, float eps = {{1e-05}}, float[16] g = {{1,2,3,4,5,6,7,8,8,7,6,5,4,3,2,1}}>
        {{ {text} }}
    """


MEAN = "mu = ReduceMean <axes = [-1]> (x)  c = Sub (x, mu)"
SQUARES = "p = Pow (c, two)  v = ReduceMean <axes = [-1]> (p)  ve = Add (v, eps)"
NORMALISED = {
    "by_sum": normalised(f"""{MEAN}  p = Pow (c, two)  v = ReduceSum (p, ax)
        vv = Div (v, n)  ve = Add (vv, eps)  sd = Sqrt (ve)  y = Div (c, sd)"""),
    "by_mean": normalised(f"""{MEAN}  p = Mul (c, c)  v = ReduceMean <axes = [-1]> (p)
        ve = Add (v, eps)  sd = Sqrt (ve)  d = Div (c, sd)  s = Mul (d, g)  y = Add (s, g)"""),
    "by_reciprocal": normalised(f"""{MEAN}  {SQUARES}
        sd = Sqrt (ve)  r = Reciprocal (sd)  y = Mul (c, r)"""),
    "by_power": normalised(f"{MEAN}  {SQUARES}  sd = Pow (ve, half)  y = Div (c, sd)"),
    "axes_as_input": normalised("""mu = ReduceMean (x, ax)  c = Sub (x, mu)  p = Pow (c, two)
        v = ReduceMean (p, ax)  ve = Add (v, eps)  sd = Sqrt (ve)  y = Div (c, sd)""", opset=18),
    "root_mean_square": normalised("""p = Pow (x, two)  v = ReduceMean <axes = [-1]> (p)
        ve = Add (v, eps)  sd = Sqrt (ve)  r = Div (one, sd)  t = Mul (x, r)  y = Mul (t, g)"""),
    "of_the_channels": normalised("""mu = ReduceMean <axes = [1]> (x)  c = Sub (x, mu)
        p = Pow (c, two)  v = ReduceMean <axes = [1]> (p)
        ve = Add (v, eps)  sd = Sqrt (ve)  y = Div (c, sd)""", "2,5,3,4"),
    "of_two_axes": normalised("""mu = ReduceMean <axes = [2, 3]> (x)  c = Sub (x, mu)
        p = Mul (c, c)  s = ReduceSum (p, axes)  v = Div (s, n)
        ve = Add (v, eps)  sd = Sqrt (ve)  y = Div (c, sd)""", "2,3,4,4"),
    "of_the_square_minus": normalised(f"""{MEAN}  q = Mul (x, x)
        e = ReduceMean <axes = [-1]> (q)  m = Mul (mu, mu)  v = Sub (e, m)
        ve = Add (v, eps)  sd = Sqrt (ve)  y = Div (c, sd)"""),
    "one_row": normalised(f"{MEAN}  {SQUARES}  sd = Sqrt (ve)  y = Div (c, sd)", "1,16"),
}  # fmt: skip


def dequantised(axis: int) -> str:
    return f"""
        <ir_version: 9, opset_import: ["": 13]>
        m (float[1,2,3,3] x) => (float[1,2,3,3] y)
        <int32[2] b = {{-777, 660}}, float[2] s = {{0.01, 0.002}}, float[2,2,1,1] w = {{1, 2, 3,
          4}}>
        {{ f = DequantizeLinear <axis = {axis}> (b, s)  y = Conv (x, w, f) }}
    """


KINDS: Mapping[str, Mapping[str, str]] = {
    "functions": FUNCTIONS,
    "shapes": SHAPES,
    "control": CONTROL,
    "resize": RESIZE,
    "pools": POOLS,
    "transposed": TRANSPOSED,
    "products": PRODUCTS,
    "normalised": NORMALISED,
}
MODELS = {f"{kind}-{name}": text for kind, texts in KINDS.items() for name, text in texts.items()}


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def inputs_of(name: str, proto: onnx.ModelProto, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    arrays = {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        if kind.elem_type == onnx.TensorProto.BOOL:
            arrays[value.name] = np.asarray(rng.random(shape) < 0.5)
        else:
            arrays[value.name] = rng.standard_normal(shape, dtype=np.float32)
    return arrays


def expected(proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return [np.asarray(y) for y in session.run(None, dict(inputs))]


class Library:
    """Models compiled, in one library; what could not be compiled in `refused`."""

    def __init__(self, models: Mapping[str, str], options: Options) -> None:
        self.compiled: dict[str, Compiled] = {}
        self.refused: dict[str, NestlingError] = {}
        for name, text in models.items():
            try:
                model = load(parse(text), name=name.replace("-", "_"))
                self.compiled[name] = compile_model(model, options)
            except NestlingError as error:
                self.refused[name] = error
        self.batch = ModelBatch(list(self.compiled.values()))

    def run(self, name: str, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        if name in self.refused:
            raise self.refused[name]
        return list(self.batch.run(self.compiled[name], inputs).values())


@pytest.fixture(scope="module")
def library() -> Iterator[Library]:
    library = Library(MODELS, OPTIONS)
    with library.batch:
        yield library


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.xdist_group("case-kinds")
def test_it_is_right(name: str, library: Library) -> None:
    check(name, library)


def test_direct_calls_take_the_same_branches() -> None:
    models = {f"control-{name}": text for name, text in CONTROL.items()}
    library = Library(models, replace(OPTIONS, executor="aot"))
    with library.batch:
        for name in models:
            check(name, library)


def check(name: str, library: Library) -> None:
    proto = parse(MODELS[name])
    for seed in range(4 if name.startswith("control") or "branch" in name else 1):
        inputs = inputs_of(name, proto, seed)
        found, wanted = library.run(name, inputs), expected(proto, inputs)
        for got, want in zip(found, wanted, strict=True):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            # Sums in another order: a few units in the last place of the largest value.
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * max(1, np.abs(want).max()))


@pytest.mark.parametrize("name", CONTROL)
def test_only_what_the_run_decides_is_asked_in_c(name: str) -> None:
    steps = compile_model(load(parse(CONTROL[name])), OPTIONS).program.steps
    asked = any(isinstance(step, JumpIfNot) for step in steps)
    assert asked == (not name.startswith(("known", "loop")))


@pytest.mark.parametrize("name", SHAPES)
def test_what_only_carries_shapes_never_reaches_c(name: str) -> None:
    files = compile_model(load(parse(SHAPES[name]), name="m"), OPTIONS).files.files
    assert "int64_t *" not in str(files["m.c"])


@pytest.mark.parametrize("axis", [1, 3, -2])
def test_an_axis_out_of_range_of_a_vector_is_repaired_and_that_is_said(axis: int) -> None:
    model = load(parse(dequantised(axis)))
    assert any(f"axis {axis} is out of range" in note for note in model.notes), model.notes
    with ModelBatch([compile_model(model, OPTIONS)]) as batch:
        x = np.ones((1, 2, 3, 3), np.float32)
        (y,) = batch.run(batch.models[0], {"x": x}).values()
    want = np.array([3 - 7.77, 7 + 1.32], np.float32).reshape(1, 2, 1, 1) * x
    np.testing.assert_allclose(y, want, rtol=1e-5)


def test_an_axis_out_of_range_of_a_matrix_is_refused() -> None:
    text = """
        <ir_version: 9, opset_import: ["": 13]>
        m (float[3,2] x) => (float[3,2] y) <int8[2,2] w = {1, 2, 3, 4}, float[2] s = {0.5, 0.25}>
        { f = DequantizeLinear <axis = 3> (w, s)  y = MatMul (x, f) }
    """
    with pytest.raises(NestlingError, match="axis 3"):
        load(parse(text))


def test_a_function_that_calls_itself_is_refused() -> None:
    text = """
        <ir_version: 9, opset_import: ["": 17, "local": 1]>
        m (float[4] x) => (float[4] y) { y = local.F (x) }
        <domain: "local", opset_import: ["": 17, "local": 1]>
        F (X) => (Y) { Y = local.F (X) }
    """
    with pytest.raises(NestlingError, match=r"'local:F' calls itself"):
        load(parse(text))


def test_a_shape_that_only_the_run_knows_is_refused_with_the_way_out() -> None:
    text = """
        <ir_version: 9, opset_import: ["": 17]>
        m (float[6] x, int64[2] shape) => (float[A,B] y) { y = Reshape (x, shape) }
    """
    with pytest.raises(UnsupportedError, match=r"'shape'.*only at run time") as caught:
        load(parse(text))
    assert caught.value.hint is not None
    assert "--set" in caught.value.hint
    load(parse(text), pins={"shape": np.array([2, 3])})
