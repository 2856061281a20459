"""Broken model files: one clear `ModelError` that names the file and the node, nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, TensorProto

from toolkit.errors import ModelError, NestlingError
from toolkit.frontend import load_onnx
from toolkit.ir.graph import Graph

node = helper.make_node


def info(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def save(folder: Path, nodes: list[Any], outputs: str = "y", *tensors: TensorProto) -> Path:
    """Write a model with the input x[2, 3]; without any check of its validity."""
    graph = helper.make_graph(
        nodes, "g", [info("x", 2, 3)], [info(n, 2, 3) for n in outputs.split()], list(tensors)
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "broken model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_onnx(path)
    text = str(caught.value)
    for part in (str(path), *parts):
        assert part in text, text
    assert len(text.splitlines()) <= 3


# -- files ------------------------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_model_dir: Path) -> None:
    refused(tmp_model_dir / "none.onnx", "there is no such file")


def test_a_folder(tmp_model_dir: Path) -> None:
    refused(tmp_model_dir, "is a folder")


def test_an_empty_file(tmp_model_dir: Path) -> None:
    path = tmp_model_dir / "empty.onnx"
    path.write_bytes(b"")
    refused(path, "the file is empty")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    path = save(tmp_path, [node("Relu", ["x"], ["y"])])
    monkeypatch.setattr(Path, "read_bytes", deny)
    refused(path, "cannot be read: Permission denied")


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 5000), Path("a\0b.onnx"), tmp_path / "file" / "m.onnx"):
        (tmp_path / "file").write_bytes(b"x")
        with pytest.raises(ModelError):
            load_onnx(path)


@pytest.mark.parametrize("data", [b"hello, world\n", b"\0" * 100, b"\xff" * 100, b"PK\3\4", b"\n"])
def test_garbage(data: bytes, tmp_model_dir: Path) -> None:
    path = tmp_model_dir / "garbage.onnx"
    path.write_bytes(data)
    refused(path, "is not an ONNX model")


def test_a_tflite_model(tmp_model_dir: Path) -> None:
    path = tmp_model_dir / "model.onnx"
    path.write_bytes(b"\x1c\0\0\0TFL3" + b"\0" * 100)
    refused(path, "is a TFLite model")


def test_another_protobuf(tmp_model_dir: Path) -> None:
    path = tmp_model_dir / "tensor.onnx"
    path.write_bytes(helper.make_tensor("t", 1, [2], [1.0, 2.0]).SerializeToString())
    refused(path, "is not a")


def test_a_graph_of_nothing(tmp_model_dir: Path) -> None:
    refused(save(tmp_model_dir, [], ""), "the graph has no outputs")


def test_a_model_of_another_domain(tmp_model_dir: Path) -> None:
    path = save(tmp_model_dir, [node("Relu", ["x"], ["y"], name="r", domain="com.foo")])
    refused(path, "'r' (com.foo:Relu)", "imports no opset of domain 'com.foo'")


# -- graphs -----------------------------------------------------------------------------------


def test_a_cycle(tmp_model_dir: Path) -> None:
    nodes = [
        node("Add", ["x", "c"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="second"),
        node("Neg", ["b"], ["c"], name="third"),
        node("Abs", ["c"], ["y"], name="last"),
    ]
    ring = "'first' (Add) -> 'second' (Relu) -> 'third' (Neg) -> 'first' (Add)"
    refused(save(tmp_model_dir, nodes), f"the graph has a cycle: {ring}")


def test_a_node_that_reads_itself(tmp_model_dir: Path) -> None:
    refused(save(tmp_model_dir, [node("Add", ["x", "y"], ["y"], name="own")]), "cycle", "'own'")


def test_an_undefined_input(tmp_model_dir: Path) -> None:
    path = save(tmp_model_dir, [node("Add", ["x", "nothing"], ["y"], name="n")])
    refused(path, "'n' (Add) reads 'nothing', which nothing defines")


def test_an_output_of_two_nodes(tmp_model_dir: Path) -> None:
    nodes = [node("Relu", ["x"], ["y"], name="a"), node("Neg", ["x"], ["y"], name="b")]
    refused(save(tmp_model_dir, nodes), "'y' is the output of two nodes", "'a'", "'b'")


def test_an_output_named_like_an_input(tmp_model_dir: Path) -> None:
    nodes = [node("Relu", ["x"], ["x"], name="a"), node("Neg", ["x"], ["y"], name="b")]
    refused(save(tmp_model_dir, nodes), "'x' is an input or initialiser", "'a'")


def test_an_output_that_nothing_computes(tmp_model_dir: Path) -> None:
    path = save(tmp_model_dir, [node("Relu", ["x"], ["z"])])
    refused(path, "output 'y' is not computed by any node")


def test_an_output_that_is_listed_twice(tmp_model_dir: Path) -> None:
    refused(save(tmp_model_dir, [node("Relu", ["x"], ["y"])], "y y"), "'y' is listed twice")


def test_an_operator_with_the_wrong_number_of_operands(tmp_model_dir: Path) -> None:
    refused(save(tmp_model_dir, [node("Add", ["x"], ["y"], name="n")]), "'n' (Add)", "1 inputs")
    refused(save(tmp_model_dir, [node("Add", ["x", ""], ["y"], name="n")]), "input 'B' is required")
    refused(save(tmp_model_dir, [node("Relu", ["x"], ["y", "z"], name="n")]), "2 outputs")


def test_shapes_that_do_not_fit(tmp_model_dir: Path) -> None:
    path = save(tmp_model_dir, [node("MatMul", ["x", "x"], ["y"], name="product")])
    refused(path, "'product' (MatMul)", "Incompatible dimensions")


def test_types_that_do_not_fit(tmp_model_dir: Path) -> None:
    path = save(tmp_model_dir, [node("And", ["x", "x"], ["y"], name="n")])
    refused(path, "'n' (And)", "tensor(float)")


@pytest.mark.parametrize(
    ("made", "part"),
    [
        (node("Softmax", ["x"], ["y"], axis=5), "axis 5 is out of range for rank 2"),
        (node("Softmax", ["x"], ["y"], axis=1.5), "attribute 'axis' has the wrong type"),
        (node("Transpose", ["x"], ["y"], perm=[0, 0]), "does not permute 2 axes"),
        (node("Concat", ["x", "x"], ["y"]), "attribute 'axis' is required"),
        (node("Cast", ["x"], ["y"], to=99), "99 is no element type"),
        (node("Einsum", ["x"], ["y"], equation="\x01"), "the equation"),
        (node("Unheard", ["x"], ["y"]), "has no such operator"),
        (node("MaxPool", ["x"], ["y"], kernel_shape=[1]), "no spatial axis"),
    ],
    ids=lambda v: v if isinstance(v, str) else v.op_type,
)
def test_attributes_that_are_not_valid(made: Any, part: str, tmp_model_dir: Path) -> None:
    with pytest.raises(NestlingError) as caught:
        load_onnx(save(tmp_model_dir, [made]))
    assert part in str(caught.value)


@pytest.mark.parametrize("key", ["strides", "dilations", "kernel_shape"])
@pytest.mark.parametrize("value", [[0, 1], [1, -1], [1], [2**62, 2**62]])
def test_windows_that_are_not_valid(key: str, value: list[int], tmp_path: Path) -> None:
    """A stride of 0 would divide by zero in native code."""
    graph = helper.make_graph(
        [node("MaxPool", ["x"], ["y"], **{"kernel_shape": [2, 2], key: value})],
        "g",
        [info("x", 1, 1, 5, 5)],
        [info("y")],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    if key == "strides" and min(value) > 2:
        assert load_onnx(path).types["y"].shape == (1, 1, 1, 1)
    else:
        refused(path, "MaxPool")


# -- tensors ----------------------------------------------------------------------------------


ADD = [node("Add", ["x", "w"], ["y"], name="add")]


@pytest.mark.parametrize(
    "tensor",
    [
        TensorProto(name="w", data_type=1, dims=[3], raw_data=b"12345"),
        TensorProto(name="w", data_type=1, dims=[3], raw_data=b"1" * 8),
        TensorProto(name="w", data_type=1, dims=[3], raw_data=b"1" * 16),
        TensorProto(name="w", data_type=1, dims=[3], float_data=[1.0]),
        TensorProto(name="w", data_type=1, dims=[3]),
        TensorProto(name="w", data_type=1, dims=[-3], raw_data=b"1" * 12),
        TensorProto(name="w", data_type=1, dims=[2**40, 2**40], raw_data=b"1" * 12),
        TensorProto(name="w", data_type=0, dims=[3], raw_data=b"1" * 12),
        TensorProto(name="w", data_type=77, dims=[3], raw_data=b"1" * 12),
    ],
)
def test_a_tensor_with_the_wrong_data(tensor: TensorProto, tmp_model_dir: Path) -> None:
    refused(save(tmp_model_dir, ADD, "y", tensor), "tensor 'w'")


def test_an_initialiser_that_is_given_twice(tmp_model_dir: Path) -> None:
    tensor = helper.make_tensor("w", 1, [3], [1.0, 2.0, 3.0])
    refused(save(tmp_model_dir, ADD, "y", tensor, tensor), "initialiser 'w' is given twice")


def test_data_that_would_lie_elsewhere(tmp_model_dir: Path) -> None:
    (tmp_model_dir.parent / "secret.bin").write_bytes(b"1" * 12)
    for place in ("../secret.bin", str(tmp_model_dir.parent / "secret.bin"), "", "."):
        tensor = TensorProto(name="w", data_type=1, dims=[3], data_location=1)
        tensor.external_data.add(key="location", value=place)
        refused(save(tmp_model_dir, ADD, "y", tensor), "tensor 'w'")


# -- anything ---------------------------------------------------------------------------------


def outcome(data: bytes) -> str:
    """Import; whatever is not a `NestlingError` fails the test."""
    try:
        graph = load_onnx(data)
    except NestlingError:
        return "refused"
    assert isinstance(graph, Graph)
    assert str(graph)
    return "read"


def seeds(corpus: Path) -> list[bytes]:
    small = [p for p in sorted((corpus / "bugs").glob("*.onnx")) if p.stat().st_size < 20_000]
    return [p.read_bytes() for p in [*small, corpus / "mnist_8.onnx", corpus / "go1_policy.onnx"]]


def test_truncated_files_never_give_a_traceback(corpus: Path, rng: np.random.Generator) -> None:
    for data in seeds(corpus):
        cuts = range(len(data)) if len(data) < 300 else rng.integers(len(data), size=20)
        for cut in cuts:
            outcome(data[:cut])


def test_flipped_bits_never_give_a_traceback(corpus: Path, rng: np.random.Generator) -> None:
    models, seen = seeds(corpus), set()
    for _ in range(300):
        data = bytearray(models[rng.integers(len(models))])
        # The structure of the large models is at their ends, between are weights.
        low = max(len(data) - 3000, 0) if rng.integers(2) else 0
        for _ in range(rng.integers(1, 6)):
            data[rng.integers(low, len(data))] ^= 1 << int(rng.integers(8))
        seen.add(outcome(bytes(data)))
    assert seen == {"read", "refused"}


EXTREMES = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 100, 2**31, 2**40, 2**62)


def mutate(model: onnx.ModelProto, names: list[str], rng: np.random.Generator) -> None:
    """Change one thing that a protobuf parser does not mind."""

    def pick(items: Any) -> Any:
        return items[int(rng.integers(len(items)))]

    graph = model.graph
    made = pick(graph.node)
    match int(rng.integers(8)):
        case 0 if made.attribute:
            attribute = pick(made.attribute)
            if attribute.type == onnx.AttributeProto.INTS and attribute.ints:
                attribute.ints[int(rng.integers(len(attribute.ints)))] = pick(EXTREMES)
            else:
                attribute.i = pick(EXTREMES)
        case 1 if made.attribute:
            del made.attribute[int(rng.integers(len(made.attribute)))]
        case 2 if made.input:
            tensors = [i.name for i in graph.input] + [o for n in graph.node for o in n.output]
            made.input[int(rng.integers(len(made.input)))] = pick(["", *tensors])
        case 3 if made.input:
            del made.input[-1]
        case 4:
            made.op_type = pick(names)
        case 5 if graph.input:
            pick(graph.input).type.tensor_type.elem_type = int(rng.integers(25))
        case 6 if graph.input and graph.input[0].type.tensor_type.shape.dim:
            pick(graph.input[0].type.tensor_type.shape.dim).dim_value = pick(EXTREMES)
        case _:
            model.opset_import[0].version = int(rng.integers(1, 30))


@pytest.mark.filterwarnings("ignore")
def test_mutated_models_never_give_a_traceback(rng: np.random.Generator) -> None:
    """Mutations of `onnx`'s own node tests reach every operator."""
    from onnx.backend.test.case.node import collect_testcases

    models = [case.model for case in collect_testcases(None) if case.model.graph.node]
    names = sorted({n.op_type for model in models for n in model.graph.node})
    seen = set()
    for _ in range(300):
        model = onnx.ModelProto()
        model.CopyFrom(models[int(rng.integers(len(models)))])
        for _ in range(int(rng.integers(1, 4))):
            mutate(model, names, rng)
        seen.add(outcome(model.SerializeToString()))
    assert seen == {"read", "refused"}
