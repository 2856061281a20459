"""The benchmarks' models are what their table says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, TensorProto

import toolkit
from benchmarks import models
from benchmarks.host import relative_error, sample_error
from benchmarks.kernels import kernel_task, KERNELS, TRAINING
from tests.small_models import dense

SMALL = ("ds_cnn", "mobilenet_v1", "resnet8", "autoencoder", "encoder_256")


@pytest.mark.parametrize("name", models.ROWS)
def test_a_row_is_a_valid_model_with_its_macs(name: str) -> None:
    model = models.build(name)
    onnx.checker.check_model(model, full_check=True)
    assert models.count_macs(model) == models.ROWS[name].macs


def test_macs_are_those_of_the_published_topologies() -> None:
    millions = {name: row.macs / 1e6 for name, row in models.ROWS.items()}
    assert millions["ds_cnn"] == pytest.approx(2.66, abs=0.005)
    assert millions["mobilenet_v1"] == pytest.approx(7.49, abs=0.005)
    assert millions["resnet8"] == pytest.approx(12.50, abs=0.005)
    assert millions["autoencoder"] == pytest.approx(0.264, abs=0.0005)
    assert millions["mobilenet_v2"] == pytest.approx(300, rel=0.01)
    assert millions["resnet18"] == pytest.approx(1810, rel=0.01)
    assert millions["resnet50"] == pytest.approx(4090, rel=0.01)


@pytest.mark.parametrize("name", SMALL)
def test_activations_stay_sane(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    copy = onnx.ModelProto()
    copy.CopyFrom(models.build(name))
    names = [o for n in copy.graph.node for o in n.output]
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(copy.SerializeToString(), options)
    for value in session.run(names, models.make_inputs(models.build(name))):
        assert np.isfinite(value).all()
        assert 1e-3 < np.abs(value).max() < 100


def test_models_are_seeded() -> None:
    first, again = models.ROWS["ds_cnn"].build(), models.ROWS["ds_cnn"].build()
    assert first.SerializeToString() == again.SerializeToString()


def test_an_unknown_row_is_named() -> None:
    with pytest.raises(SystemExit, match="no row named nonsense; known: ds_cnn"):
        models.pick("ds_cnn,nonsense")


def test_quantised_rows_are_of_the_corpus(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--int8: the models of the corpus are not here"):
        models.int8_rows(tmp_path / "nowhere")
    rows = models.int8_rows(tmp_path)
    assert [r.name for r in models.pick("ad_int8,kws_int8_tflite", rows=rows)] == [
        "ad_int8", "kws_int8_tflite",
    ]  # fmt: skip
    row = rows["kws_int8_tflite"]
    assert row.file == tmp_path / "mlperf_kws_dscnn_int8.tflite"
    assert row.macs == models.ROWS["ds_cnn"].macs


def test_inputs_of_integers_are_of_all_their_range() -> None:
    info = helper.make_tensor_value_info("x", TensorProto.INT8, [1, 4000])
    model = helper.make_model(helper.make_graph([], "g", [info], []))
    made = models.make_inputs(model)["x"]
    assert made.dtype == np.int8
    assert (made.min(), made.max()) == (-128, 127)


def test_differences_of_bytes_do_not_wrap() -> None:
    low, high = np.array([-128], np.int8), np.array([127], np.int8)
    assert relative_error([low], [high]) == 255 / 127


def test_what_differs_from_the_samples_beside_a_file_is_seen(tmp_path: Path) -> None:
    built = toolkit.build(str(dense(tmp_path / "m.onnx")), dims={"N": 2})
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    y = np.stack([built(part)[0] for part in x])
    np.savez(tmp_path / "m.onnx.npz", in__x=x, out__y=y)
    assert sample_error(built, tmp_path / "m.onnx") == 0.0
    y[1, 0, 0] += 1.0
    np.savez(tmp_path / "m.onnx.npz", in__x=x, out__y=y)
    assert sample_error(built, tmp_path / "m.onnx") > 0.0
    built.close()


def test_shipped_cost_models_learn_from_no_kernel_that_judges_them() -> None:
    judged = {kernel_task(kernel, "x86-64-v4").key for kernel in KERNELS.values()}
    learned = {kernel_task(kernel, "x86-64-v4").key for kernel in TRAINING.values()}
    assert not judged & learned
    assert len(learned) == len(TRAINING)
