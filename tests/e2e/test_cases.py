"""Constructs that other tools refused or computed wrongly: right, or refused in a helpful way."""

from __future__ import annotations

from pathlib import Path

import pytest

import toolkit.cli

pytestmark = pytest.mark.needs("gcc")

RIGHT = (
    "b01_local_function", "b02_resize_sizes_from_shape", "b04_resize_empty_roi",
    "b05_avgpool_ceil", "b06_resize_2p5_linear", "b06_resize_2p5_nearest",
    "b07_convtranspose_same_upper", "b08_requant_single_rounding", "b09_qdq_residual_add",
    "b11_hybrid_conv", "b16_attention_batched_matmul", "b18_relu_q_zero_point",
    "b21_layernorm_decomposed", "b22_if_constant_condition",
)  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_it_is_right(corpus: Path, name: str) -> None:
    file = corpus / "bugs" / f"{name}.onnx"
    command = ["verify", str(file), "--input", f"{file}.npz", "--target", "generic"]
    assert toolkit.cli.run(command) == 0


def test_an_axis_out_of_range_is_repaired_and_that_is_said(
    corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(corpus / "bugs" / "b12_bias_dq_axis3.onnx"), "--target", "generic"]
    assert toolkit.cli.run(command) == 0
    assert "axis 3 is out of range" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["b14_tree_fraction_threshold", "b15_tree_65535_nodes"])
def test_trees_are_right_or_refused_by_name(
    corpus: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = corpus / "bugs" / f"{name}.onnx"
    code = toolkit.cli.run(["verify", str(file), "--input", f"{file}.npz", "--target", "generic"])
    err = capfd.readouterr().err
    assert code in (0, 2)
    assert code == 0 or "TreeEnsemble" in err
