"""TFLite models of the corpus against LiteRT's reference kernels, whose outputs lie beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tflite

import toolkit.cli
from toolkit.errors import UnsupportedError
from toolkit.ops import OPS
from toolkit.passes.manager import run_passes
from toolkit.pipeline import load

pytestmark = pytest.mark.needs("gcc")

EXACT = (
    "mobilenet_v1_025_128_uint8",
    "mww_okay_nabu_v2_int8",
    "mlperf_kws_dscnn_int8",
    "mlperf_ic_resnet8_int8",
    "mlperf_vww_mbv1_int8",
    "mlperf_ad_fcae_int8",
    "tflm_person_detect_int8",
    "tflm_hello_world_int8",
    "tflm_mnist_lstm_int8",
)
FLOAT = (
    "mlperf_ic_resnet8_float",
    "mlperf_vww_mbv1_float",
    "mlperf_ad_fcae_float",
    "blazeface_short_f16w",
    "mlperf_kws_dscnn_hybrid",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXACT, *FLOAT])
def test_verify(corpus: Path, tmp_path: Path, name: str) -> None:
    """Integers bit for bit, the outputs of a stateful model in the order of the samples."""
    path, result = corpus / f"{name}.tflite", tmp_path / "result.json"
    code = toolkit.cli.run(
        ["verify", str(path), "--input", f"{path}.npz", "--json", str(result), "--no-records"]
    )
    found = json.loads(result.read_text())
    assert code == 0, found
    with np.load(f"{path}.npz") as arrays:
        expected = {n.removeprefix("out__") for n in arrays.files if n.startswith("out__")}
    assert {o["name"] for o in found["outputs"]} == expected
    assert all(o["exact"] or (name in FLOAT and o["max_rel"] <= 1e-4) for o in found["outputs"])


@pytest.mark.corpus("QUANTISED.txt")
def test_no_pass_adds_a_transpose(corpus_file: Path) -> None:
    """Images have the channel last already."""
    if corpus_file.suffix != ".tflite" or "lstm" in corpus_file.stem:
        return  # a recurrence has its steps first
    graph = run_passes(load(corpus_file).graph, OPS)
    nodes = [n for g in (graph, *graph.subgraphs()) for n in g.nodes]
    assert not [n.name for n in nodes if n.op == "Transpose"]


def test_all_that_is_not_supported_is_said_at_once(corpus: Path, tmp_path: Path) -> None:
    """Each with its position, operator and result, behind the file's name."""
    data = (corpus / "mlperf_kws_dscnn_int8.tflite").read_bytes()
    codes = tflite.Model.GetRootAsModel(data, 0)
    changed = bytearray(data)
    for place in range(codes.OperatorCodesLength()):
        code = codes.OperatorCodes(place)
        if code.DeprecatedBuiltinCode() in (
            tflite.BuiltinOperator.SOFTMAX,
            tflite.BuiltinOperator.CONV_2D,
        ):
            at = code._tab.Pos + code._tab.Offset(4)
            changed[at] = tflite.BuiltinOperator.LSH_PROJECTION
    path = tmp_path / "odd.tflite"
    path.write_bytes(bytes(changed))
    with pytest.raises(UnsupportedError) as caught:
        load(path)
    assert str(path) in caught.value.what
    named = [line.split("(")[1].split(",")[0] for line in caught.value.state]
    assert named == ["LSH_PROJECTION"] * 6
    assert caught.value.state[0].startswith("operator 0 (")
    assert "'Identity'" in caught.value.state[-1]
