"""`nestling quantize` and `toolkit.quantize`: small models, from float to integers; refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import toolkit
import toolkit.cli
from tests.small_models import save
from toolkit.errors import NestlingError
from toolkit.passes.manager import FLOAT_PASSES, run_passes
from toolkit.pipeline import load
from toolkit.quantization.correct import mean_of_each
from toolkit.quantization.data import calibration_samples
from toolkit.quantization.observe import running
from toolkit.quantization.plan import find_plan, INT8
from toolkit.quantization.session import open_session
from toolkit.quantization.settings import Settings

pytestmark = pytest.mark.needs("gcc")


def network(path: Path, *, classes: int = 4) -> Path:
    """Write a residual network with BatchNormalization, one of each kind of layer."""
    rng = np.random.default_rng(11)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    spread = 10.0 ** rng.uniform(-1, 1, (8, 1, 1, 1)).astype(np.float32)
    consts = {
        "w1": normal(8, 2, 3, 3, scale=0.3) * spread, "s": spread.reshape(-1) ** -1,
        "b": normal(8, scale=0.2), "m": normal(8, scale=0.1), "v": np.ones(8, np.float32),
        "w2": normal(8, 1, 3, 3, scale=0.4), "b2": normal(8, scale=0.1),
        "w3": normal(8, 8, 1, 1, scale=0.3), "b3": normal(8, scale=0.1),
        "w4": normal(classes, 8), "b4": normal(classes, scale=0.1),
    }  # fmt: skip
    make = helper.make_node
    pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        make("Conv", ["x", "w1"], ["c1"], name="first", **pads),
        make("BatchNormalization", ["c1", "s", "b", "m", "v"], ["n1"]),
        make("Relu", ["n1"], ["r1"]),
        make("Conv", ["r1", "w2", "b2"], ["c2"], name="depthwise", group=8, **pads),
        make("Relu", ["c2"], ["r2"]),
        make("Conv", ["r2", "w3", "b3"], ["c3"], name="pointwise", kernel_shape=[1, 1]),
        make("Add", ["c3", "r1"], ["a"], name="residual"),
        make("Relu", ["a"], ["r3"]),
        make("MaxPool", ["r3"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make("GlobalAveragePool", ["p"], ["g"]),
        make("Flatten", ["g"], ["f"]),
        make("Gemm", ["f", "w4", "b4"], ["l"], name="classes", transB=0 if classes == 8 else 1),
        make("Softmax", ["l"], ["y"], axis=1),
    ]
    return save(path, nodes, {"x": ("N", 2, 8, 8)}, {"y": ("N", classes)}, consts)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model, calibration samples, and samples labelled by the float model itself."""
    folder = tmp_path_factory.mktemp("quantize")
    file = network(folder / "net.onnx")
    rng = np.random.default_rng(12)
    x = (rng.standard_normal((96, 1, 2, 8, 8)) + rng.standard_normal((96, 1, 2, 1, 1))).astype(
        np.float32
    )
    with toolkit.build(str(file)) as built:
        y = np.array([int(np.argmax(built(one)[0])) for one in x])
    np.savez(folder / "calib.npz", in__x=x[:32])
    np.savez(folder / "labels.npz", x=x[32:], y=y[32:])
    return {"model": file, "calib": folder / "calib.npz", "labels": folder / "labels.npz"}


@pytest.fixture(scope="module")
def quantized(
    given: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """The file that the command writes with its defaults, and its report."""
    out = tmp_path_factory.mktemp("quantized") / "net_int8.onnx"
    return out, command(given, out, "--labels", str(given["labels"]))


def command(given: Mapping[str, Path], out: Path, *options: str) -> dict[str, Any]:
    report = out.with_suffix(".json")
    arguments = ["quantize", str(given["model"]), "--calib", str(given["calib"]), "-o", str(out)]
    assert toolkit.cli.run([*arguments, "--json", str(report), *options]) == 0
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def verify(out: Path, *options: str) -> dict[str, Any]:
    report = out.with_suffix(".verify.json")
    toolkit.cli.run(["verify", str(out), "--json", str(report), *options])
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize("options", [(), ("--integers",)])
def test_the_c_computes_what_the_file_says(
    quantized: tuple[Path, dict[str, Any]], given: Mapping[str, Path], options: tuple[str, ...]
) -> None:
    assert verify(quantized[0], "--input", str(given["calib"]), *options)["ok"]


def test_from_float_to_integers(quantized: tuple[Path, dict[str, Any]]) -> None:
    out, found = quantized
    assert found["accuracy_float"] == 1.0
    assert found["accuracy"] >= 0.9
    assert found["outputs_db"]["y"] > 25.0
    assert found["weights_bytes"] < found["weights_bytes_before"]
    ops = {layer["name"]: layer["ops"] for layer in found["layers"]}
    assert ops["first"] == ["Conv", "Relu"]
    assert ops["residual"] == ["Add", "Relu"]
    assert all(layer["snr_db"] > 20.0 for layer in found["layers"])
    proto = onnx.load(out)
    onnx.checker.check_model(proto, full_check=True)
    assert [i.name for i in proto.graph.input] == ["x"]
    names = [n.name for n in proto.graph.node]
    assert len(set(names)) == len(names)


def test_no_float_stays_between_convolutions(quantized: tuple[Path, dict[str, Any]]) -> None:
    compiled = toolkit.compile(
        quantized[0], options=toolkit.Options(target="generic", integers=True)
    )
    bodies = [n for node in compiled.graph.nodes for n in _inside(node)]
    assert not {"Conv", "Gemm", "MatMul"} & {n.op for n in bodies}
    assert sum(n.op == "ConvInteger" for n in bodies) == 3


def _inside(node: Any) -> list[Any]:
    """Return a node, or the nodes of the group it is."""
    found = [node]
    for value in node.attrs.values():
        if hasattr(value, "nodes"):
            found += [n for inner in value.nodes for n in _inside(inner)]
    return found


def two_layers(path: Path) -> Path:
    """Write two products between which channels differ by orders of magnitude."""
    rng = np.random.default_rng(6)
    uneven = 10.0 ** np.linspace(-1.5, 1.5, 16).astype(np.float32)
    consts = {
        "w": rng.standard_normal((8, 16)).astype(np.float32) * uneven,
        "b": rng.standard_normal(16).astype(np.float32) * uneven,
        "v": rng.standard_normal((16, 4)).astype(np.float32) / uneven[:, None],
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="one"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v"], ["y"], name="two"),
    ]
    return save(path, nodes, {"x": (1, 8)}, {"y": (1, 4)}, consts)


SAMPLES = np.random.default_rng(7).standard_normal((32, 8)).astype(np.float32)


def test_equalisation_helps_where_weights_have_one_scale(tmp_path: Path) -> None:
    file = two_layers(tmp_path / "m.onnx")
    plain, even = (
        toolkit.quantize(
            file, {"x": SAMPLES},
            settings=Settings(per_channel=False, equalize=equalize, correct=False),
        )
        for equalize in (False, True)
    )  # fmt: skip
    assert even.outputs_db["y"] > plain.outputs_db["y"] + 6.0


def test_bias_correction_reduces_the_mean_error(tmp_path: Path) -> None:
    """Of all channels of all products, on the calibration samples; and what is tried is written."""
    model = load(two_layers(tmp_path / "m.onnx"))
    graph = run_passes(model.graph, model.ops, passes=FLOAT_PASSES)
    samples = calibration_samples({"x": SAMPLES}, model.inputs)
    settings = Settings(per_channel=False, equalize=False)
    plan = find_plan(graph)
    errors, precision = [], {layer.out: INT8 for layer in plan.layers}
    with open_session(model, graph, plan, samples, settings, None) as session:
        for correct in (False, True):
            with session.trial(precision, correct=correct) as trial:
                found = mean_of_each(trial.run, trial.means, samples)
                tried = [trial.run(samples.input(i))["y"] for i in range(samples.count)]
                choice = trial.choice
            errors.append(sum(np.abs(found[n] - session.means[n]).sum() for n in found))
        written = session.made(choice)
    assert errors[1] < 0.2 * errors[0]
    with running(model, written, ("y",)) as run:
        for index, expected in enumerate(tried):
            assert np.array_equal(run(samples.input(index))["y"], expected)


def test_layers_that_hurt_stay_finer_until_the_bound_is_met(tmp_path: Path) -> None:
    file = two_layers(tmp_path / "m.onnx")
    plain = toolkit.quantize(file, {"x": SAMPLES})
    wanted = plain.outputs_db["y"] + 3.0
    done = toolkit.quantize(file, {"x": SAMPLES}, max_drop=f"{wanted:.2f}dB")
    assert done.outputs_db["y"] >= wanted - 0.01
    kinds = {layer.name: layer.precision for layer in done.layers}
    assert kinds["one"] == "int8"  # the weights of the other one are uneven
    assert kinds["two"] != "int8"
    onnx.checker.check_model(done.proto, full_check=True)


def test_sixteen_bit_activations_are_symmetric_and_run(tmp_path: Path) -> None:
    file = two_layers(tmp_path / "m.onnx")
    wide = toolkit.quantize(file, {"x": SAMPLES}, settings=Settings(activations="int16"))
    # Of 8 bits no row of uneven weights is left, whatever the activations: those of "one" are even.
    assert wide.layers[0].snr_db > 42.0
    assert {layer.precision for layer in wide.layers} == {"16x8"}
    wide.write(tmp_path / "wide.onnx")
    np.savez(tmp_path / "x.npz", in__x=SAMPLES[:, None])
    assert verify(tmp_path / "wide.onnx", "--input", str(tmp_path / "x.npz"))["ok"]


def test_half_weights_take_half_the_flash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = two_layers(tmp_path / "m.onnx"), tmp_path / "half.onnx"
    np.savez(tmp_path / "x.npz", in__x=SAMPLES[:, None])
    arguments = ["quantize", str(file), "--calib", str(tmp_path / "x.npz"), "-o", str(out)]
    assert "not supported" in refusal(capsys, *arguments[1:], "--fp16", "arithmetic")
    assert not out.exists()
    assert toolkit.cli.run([*arguments, "--fp16", "weights"]) == 0
    weights = [t for t in onnx.load(out).graph.initializer if len(t.dims) == 2]
    assert {t.data_type for t in weights} == {onnx.TensorProto.FLOAT16}
    # Bit for bit what the file says, and stored as it says.
    assert verify(out, "--input", str(tmp_path / "x.npz"))["ok"]
    stored, tables, bias = 2 * (8 * 16 + 16 * 4), 64 * (4 + 4), 4 * 16
    assert toolkit.compile(str(out), target="generic").weights_bytes == stored + tables + bias


def test_every_finite_half_is_widened_exactly(tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    half = bits[np.isfinite(bits.view(np.float16))].view(np.float16)
    nodes = [
        helper.make_node("Cast", ["h"], ["w"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "w"], ["y"]),
    ]
    shapes = {"x": (1,)}, {"y": half.shape}
    file = save(tmp_path / "m.onnx", nodes, *shapes, {"h": half})
    compiled = toolkit.compile(str(file))
    assert compiled.weights_bytes == half.nbytes + 64 * 8
    with toolkit.build(compiled) as built:
        (found,) = built(np.ones(1, np.float32))
    expected = half.astype(np.float32)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert toolkit.cli.run(["quantize", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_refusals_name_the_thing_and_leave_no_file(
    given: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, model, calib = tmp_path / "out.onnx", given["model"], given["calib"]
    rng = np.random.default_rng(1)
    cases = {
        "no array": {"in__z": np.zeros((3, 1, 2, 8, 8), np.float32)},
        "shape": {"in__x": rng.standard_normal((3, 1, 2, 8, 7)).astype(np.float32)},
        "holds no samples": {"in__x": np.zeros((0, 1, 2, 8, 8), np.float32)},
        "infinite": {"x": np.full((2, 2, 8, 8), np.inf, np.float32)},
    }
    words = {
        "no array": "no array in__x",
        "shape": "the model takes float32[1, 2, 8, 8]",
        "holds no samples": "no samples",
        "infinite": "sample 0 makes tensor",
    }
    for name, arrays in cases.items():
        np.savez(tmp_path / "bad.npz", **arrays)
        said = refusal(capsys, model, "--calib", tmp_path / "bad.npz", "-o", out)
        assert words[name] in said, said
        assert not out.exists()
    said = refusal(capsys, model, "--calib", tmp_path / "none.npz", "-o", out)
    assert "there is no such file" in said
    said = refusal(capsys, model, "--calib", calib, "-o", tmp_path / "no" / "folder" / "x.onnx")
    assert "cannot write" in said
    said = refusal(capsys, model, "--calib", calib, "-o", out, "--max-drop", "0.5")
    assert "needs labelled samples" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.npz"]


def test_what_is_quantised_already_is_refused(
    quantized: tuple[Path, dict[str, Any]],
    given: Mapping[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "again.onnx"
    said = refusal(capsys, quantized[0], "--calib", given["calib"], "-o", out)
    assert "is quantised already: node" in said
    assert not out.exists()


def test_weights_that_are_stored_already_are_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], name="hybrid"),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    consts = {"q": np.ones((4, 16), np.int8), "s": np.float32(0.5).reshape(())}
    file = save(tmp_path / "m.onnx", nodes, {"x": (1, 4)}, {"y": (1, 16)}, consts)
    with pytest.raises(NestlingError, match="quantised already: node 'hybrid'"):
        toolkit.quantize(file, {"x": np.ones((2, 4), np.float32)})


def test_a_model_without_products_is_refused(tmp_path: Path) -> None:
    file = save(
        tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": (1, 4)},
        {"y": (1, 4)},
    )  # fmt: skip
    with pytest.raises(NestlingError, match="nothing in relu can be quantised"):
        toolkit.quantize(file, {"x": np.ones((2, 4), np.float32)})


def test_an_operator_that_is_not_supported_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Squash", ["x"], ["y"], domain="my.domain", name="odd")]
    file = save(tmp_path / "m.onnx", nodes, {"x": (1, 4)}, {"y": (1, 4)}, domain="my.domain")
    with pytest.raises(NestlingError, match="Squash"):
        toolkit.quantize(file, {"x": np.ones((2, 4), np.float32)})


def test_recurrent_weights_are_stored_and_computed_in_float(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    consts = {
        "w": rng.standard_normal((1, 32, 3)).astype(np.float32),
        "r": rng.standard_normal((1, 32, 8)).astype(np.float32) * np.float32(0.3),
        "v": rng.standard_normal((8, 2)).astype(np.float32),
    }
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=8),
        helper.make_node("Squeeze", ["h", "axes"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["y"]),
    ]
    consts["axes"] = np.array([0], np.int64)
    file = save(tmp_path / "m.onnx", nodes, {"x": (5, 1, 3)}, {"y": (1, 2)}, consts)
    x = rng.standard_normal((16, 5, 1, 3)).astype(np.float32)
    done = toolkit.quantize(file, {"x": x}, settings=Settings(recurrent=True))
    kinds = {t.name: t.data_type for t in done.proto.graph.initializer if len(t.dims) == 3}
    assert set(kinds.values()) == {onnx.TensorProto.INT8}
    assert done.outputs_db["y"] > 25.0


@pytest.mark.slow
def test_spoken_digits_lose_at_most_a_point(corpus: Path, tmp_path: Path) -> None:
    """97.0 % in float, of 300; 97.3 % in the corpus' int8 file.  The C gives the bits of ours."""
    file, labels = corpus / "t_fsdd_dscnn.onnx", corpus / "data" / "fsdd_test.npz"
    done = toolkit.quantize(file, f"{file}.npz", labels=labels)
    assert done.accuracy_before is not None
    assert done.accuracy_after is not None
    assert done.accuracy_before.share == pytest.approx(0.97, abs=0.002)
    assert done.accuracy_after.share >= done.accuracy_before.share - 0.01
    assert done.weights_after < 0.36 * done.weights_before
    assert min(layer.snr_db for layer in done.layers) > 30.0
    out = tmp_path / "int8.onnx"
    done.write(out)
    with np.load(f"{file}.npz") as archive:  # without the outputs, which are the float model's
        np.savez(tmp_path / "x.npz", in__input=archive["in__input"])
    for options in ((), ("--integers",)):
        (found,) = verify(out, "--input", str(tmp_path / "x.npz"), *options)["outputs"]
        assert found["exact"]
