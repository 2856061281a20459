"""Every float model of the corpus gives the recorded outputs, to 1e-4 of the largest of each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import toolkit.cli
from toolkit.cli.console import Console
from toolkit.cli.options import ModelRequest
from toolkit.cli.work import import_model
from toolkit.pipeline import compile_model, Options
from toolkit.runners import BuiltModel

pytestmark = pytest.mark.needs("gcc")


@pytest.mark.slow
@pytest.mark.corpus("FLOAT.txt")
def test_verify(corpus_file: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    data = f"{corpus_file}.npz"
    code = toolkit.cli.run(["verify", str(corpus_file), "--input", data, "--json", str(result)])
    assert code == 0
    found = json.loads(result.read_text())
    with np.load(data) as arrays:
        expected = {n.removeprefix("out__") for n in arrays.files if n.startswith("out__")}
    assert {o["name"] for o in found["outputs"]} == expected
    assert found["ok"]
    assert all(o["ok"] and (o["exact"] or o["max_rel"] <= 1e-4) for o in found["outputs"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mlperf_ic_resnet8_float", "silero_vad_v6", "t_vowels_bilstm", "acasxu_1_1"]
)
def test_both_executors_and_all_forms_of_weights_give_the_same_bytes(
    corpus: Path, name: str
) -> None:
    file = corpus / f"{name}.onnx"
    request = ModelRequest(file, {}, {}, {}, None)
    _, works = import_model(request, Console(), input_path=Path(f"{file}.npz"))
    outputs = []
    forms = (("graph", "c"), ("aot", "incbin"), ("graph", "bin"))
    for executor, weights in forms:
        compiled = compile_model(works[0].model, Options(executor, weights, cflags=("-O1",)))
        inputs = {n: a for n, a in works[0].samples.input(0).items() if n in compiled.inputs}
        with BuiltModel(compiled) as built:
            outputs.append(built.run(inputs))
    for other in outputs[1:]:
        for key, array in outputs[0].items():
            assert array.tobytes() == other[key].tobytes(), key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlperf_vww_mbv1_float", "dtln_1", "blazeface_short"])
def test_the_same_bytes_in_another_folder(corpus: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "mein Modell é" / f"{name}.onnx"
    copy.parent.mkdir()
    copy.write_bytes((corpus / copy.name).read_bytes())
    bundles = []
    for source, folder in ((corpus / copy.name, tmp_path / "a"), (copy, tmp_path / "b" / "deep")):
        assert toolkit.cli.run(["compile", str(source), "-o", str(folder), "-q"]) == 0
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        bundles.append({str(p.relative_to(folder)): p.read_bytes() for p in files})
    assert bundles[0] == bundles[1]
    for content in bundles[0].values():
        assert str(tmp_path).encode() not in content
        assert str(corpus).encode() not in content
