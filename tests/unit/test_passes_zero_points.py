"""Zero points that suit a core: products have the one, and give what they gave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, TensorProto

from toolkit.ops import OPS
from toolkit.passes.manager import passes_for, run_passes
from toolkit.passes.zero_points import count_from, counted_from
from toolkit.pipeline import compile_model, load, Options
from toolkit.runners import BuiltModel
from toolkit.samples import random_samples
from toolkit.targets.isas import ISAS

CPU = {"x86-64-v4-vnni": "AVX-512 VNNI", "x86-64-v4": "AVX-512", "x86-64-v3": "AVX2"}


def product(rng: np.random.Generator, op: str, zero: int, *, wide: bool = False) -> onnx.ModelProto:
    """A ConvInteger or MatMulInteger with a bias; channels are not a multiple of anything.

    `wide`: more of them, or one alone; signed or unsigned weights.
    """
    size = 40 if wide else 9
    inner, outer = (int(n) for n in rng.integers(2, size, 2))
    unsigned = wide and rng.integers(3) == 0
    if wide and rng.integers(3) == 0:
        inner = 1
    group = 1
    if op == "ConvInteger":
        kernel = [int(k) for k in rng.integers(1, 4, 2)]
        if rng.integers(3) == 0:
            group, outer = inner, inner
        attrs = {
            "pads": [int(p) for p in rng.integers(0, 2, 4)],
            "strides": [int(s) for s in rng.integers(1, 3, 2)],
            "group": group,
        }
        x_shape, w_shape = (1, inner, 7, 8), (outer, inner // group, *kernel)
        b_shape: tuple[int, ...] = (outer, 1, 1)
    else:
        x_shape, w_shape = (int(rng.integers(1, 9)), inner), (inner, outer)
        attrs, b_shape = {}, (outer,)
    consts = {
        "w": rng.integers(-128, 128, w_shape).astype(np.int8),
        "z": np.array(zero, np.int8),
        "b": rng.integers(-(2**20), 2**20, b_shape).astype(np.int32),
        "zw": np.zeros((), np.int8),
    }
    if unsigned:  # which have no instruction anywhere
        consts["w"] = rng.integers(0, 256, w_shape).astype(np.uint8)
        consts["zw"] = np.array(131, np.uint8)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "z", "zw"], ["sum"], **attrs),
         helper.make_node("Add", ["sum", "b"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.INT8, x_shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(v, n) for n, v in consts.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("op", ["ConvInteger", "MatMulInteger"])
@pytest.mark.parametrize("wanted", [-128, 0])
@pytest.mark.parametrize("zero", [-128, 0, 83])
def test_every_product_counts_from_the_same_number_afterwards(
    rng: np.random.Generator, op: str, wanted: int, zero: int
) -> None:
    graph = load(product(rng, op, zero)).graph
    done = count_from(graph, OPS, zero=wanted)
    [node] = [n for n in done.nodes if n.op == op]
    found = int(done.consts[node.inputs[2]]) if node.inputs[2] else 0
    if wanted == 0 and node.attrs.get("group", 1) > 1:
        assert done is graph
        return
    assert (done is graph) == (zero == wanted)
    assert found == wanted
    if done is not graph:
        # Padding that holds another number cannot be left out: it is there.
        assert not any(node.attrs.get("pads", ()))
        assert sum(n.op == "Add" for n in done.nodes) == 1, "the constants are one"


def test_each_core_counts_from_what_its_instructions_take() -> None:
    zeros = {name: counted_from(isa) for name, isa in ISAS.items()}
    assert zeros["avxvnni"] == zeros["avx512vnni"] == -128
    assert zeros["neon"] == zeros["neon_dot"] == 0
    assert zeros["scalar"] is zeros["armv7em"] is zeros["helium"] is None


def test_the_pass_runs_for_those_cores_alone() -> None:
    graph = load(product(np.random.default_rng(2), "MatMulInteger", 5)).graph
    zeros = []
    for zero in (None, -128):
        done = run_passes(graph, OPS, passes=passes_for("float", zero=zero))
        [node] = [n for g in done.nodes for n in g.attrs["body"].nodes if n.op == "MatMulInteger"]
        zeros.append(int(done.consts[node.inputs[2]]))
    assert zeros == [5, -128]


@pytest.mark.parametrize("target", list(CPU))
def test_sums_are_those_of_plain_loops(
    rng: np.random.Generator, target: str, need_cpu: Callable[[str], None]
) -> None:
    need_cpu(CPU[target])
    for op in ("ConvInteger", "ConvInteger", "ConvInteger", "MatMulInteger"):
        zero = int(rng.choice([-128, 0, 127, 83]))
        model = load(product(rng, op, zero, wide=True))
        x = random_samples(model.inputs, seed=int(rng.integers(99))).input(0)
        found = []
        for name in ("generic", target):
            options = Options(target=name, cflags=("-O1",))
            with BuiltModel(compile_model(model, options)) as built:
                found.append(built.run(x)["y"])
        np.testing.assert_array_equal(*found, err_msg=f"{op} of zero point {zero}")
