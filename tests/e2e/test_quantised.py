"""Every quantised ONNX model of the corpus gives the recorded outputs, in float and on integers.

Integers bit for bit; floats to the tolerance of `verify`, 1e-4 of the largest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toolkit.cli
from toolkit.passes.integers import integers
from toolkit.pipeline import load

pytestmark = pytest.mark.needs("gcc")

NEAR_A_TIE = {("tflm_person_detect_int8", ("--no-integers",)): 1}
"""Largest difference in LSB of what is not exact: convolutions in float32, summed in another order
than onnxruntime's, fall on the other side of a tie.  On integers there is none."""


def verify(tmp_path: Path, file: Path, *options: str) -> dict[str, Any]:
    out = tmp_path / "result.json"
    toolkit.cli.run(["verify", str(file), "--json", str(out), *options])
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.slow
@pytest.mark.corpus("QUANTISED.txt")
@pytest.mark.parametrize("options", [(), ("--no-integers",), ("--target", "generic")])
def test_verify(corpus_file: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    if corpus_file.suffix != ".onnx":
        return  # tests/e2e/test_tflite.py
    found = verify(tmp_path, corpus_file, "--input", f"{corpus_file}.npz", *options)
    allowed = NEAR_A_TIE.get((corpus_file.stem, options), 0)
    for output in found["outputs"]:
        if output["max_lsb"] is None:
            assert output["ok"]
        else:
            assert output["max_lsb"] <= allowed, output
            assert output["size"] - output["equal"] <= (2 if allowed else 0)


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["b08_requant_single_rounding", "b09_qdq_residual_add",
                                 "b11_hybrid_conv", "b18_relu_q_zero_point"])  # fmt: skip
@pytest.mark.parametrize("options", [(), ("--no-integers",), ("--target", "generic")])
def test_cases(corpus: Path, tmp_path: Path, bug: str, options: tuple[str, ...]) -> None:
    file = corpus / "bugs" / f"{bug}.onnx"
    assert verify(tmp_path, file, "--input", f"{file}.npz", *options)["ok"]


@pytest.mark.slow
def test_accuracy_is_the_manifests(corpus: Path, tmp_path: Path) -> None:
    """90.2 % on the thousand samples of kws01, within 0.2 points."""
    file = corpus / "mlperf_kws_dscnn_int8.onnx"
    labels = corpus / "data" / "kws01_int8.npz"
    data = ("--input", f"{file}.npz", "--labels", str(labels))
    assert verify(tmp_path, file, *data)["accuracy"] == pytest.approx(0.902, abs=0.002)


@pytest.mark.corpus("QUANTISED.txt")
def test_convolutions_and_dense_layers_are_integers(corpus_file: Path) -> None:
    """Of models whose activations are quantised, whatever quantised product there is."""
    name = corpus_file.stem
    if corpus_file.suffix != ".onnx" or "hybrid" in name or "vit" in name:
        return  # transformers multiply activations with each other
    with np.load(f"{corpus_file}.npz") as archive:
        shapes = {n[4:]: archive[n].shape[1:] for n in archive.files if n.startswith("in__")}
    model = load(corpus_file, input_shapes=shapes)
    ops = [n.op for n in integers(model.graph, model.ops).nodes]
    assert not {"Conv", "Gemm", "MatMul"} & set(ops)
    assert {"Requantize", "QLinearConv", "QLinearMatMul"} & set(ops)
