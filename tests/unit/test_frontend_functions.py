"""Functions: those of the model inlined, those of ONNX expanded on request."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.unit.frontend_tools import assert_same, assert_typed, model, ops
from toolkit.errors import ModelError
from toolkit.frontend import expand_function_op, load_onnx
from toolkit.frontend.functions import expand_function_graph
from toolkit.frontend.reference import run
from toolkit.frontend.shapes import OPSET
from toolkit.ir.graph import Node
from toolkit.ir.types import TensorType
from toolkit.passes.fold_constants import fold_constants

node = helper.make_node


def f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def function(
    name: str,
    inputs: list[str],
    outputs: list[str],
    nodes: list[Any],
    attributes: tuple[str, ...] = (),
    opset: int = 17,
    defaults: dict[str, Any] | None = None,
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    made = [helper.make_attribute(k, v) for k, v in (defaults or {}).items()]
    return helper.make_function(
        "local", name, inputs, outputs, nodes, imports, attributes, attribute_protos=made
    )


def with_reference(made: Any, attribute: str, outer: str, kind: int) -> Any:
    """Let an attribute of a node refer to the function's attribute."""
    made.attribute.append(onnx.AttributeProto(name=attribute, ref_attr_name=outer, type=kind))
    return made


def call(name: str, inputs: list[str], outputs: list[str], **attrs: Any) -> Any:
    return node(name, inputs, outputs, domain="local", **attrs)


SCALE = function(
    "Leaky",
    ["x"],
    ["y"],
    [
        with_reference(node("LeakyRelu", ["x"], ["t"]), "alpha", "slope", 1),
        node("Neg", ["t"], ["y"]),
    ],
    ("slope",),
)


def test_functions_are_inlined_with_their_attributes(rng: np.random.Generator) -> None:
    x = f32(rng, 2, 3)
    calls = [
        call("Leaky", ["x"], ["a"], slope=0.5),
        call("Leaky", ["a"], ["b"], slope=0.25),
        call("Leaky", ["b"], ["y"]),  # not given: the operator's own default
    ]
    proto = model(calls, {"x": x}, ["y"], functions=[SCALE], domains={"local": 1})
    graph = assert_same(proto, {"x": x})
    assert ops(graph) == ["LeakyRelu", "Neg"] * 3
    assert [n.attrs.get("alpha") for n in graph.nodes[::2]] == [0.5, 0.25, None]


def test_functions_call_functions_and_pass_attributes_on(rng: np.random.Generator) -> None:
    twice = function(
        "Twice",
        ["x"],
        ["y", "unused"],
        [
            with_reference(call("Leaky", ["x"], ["t"]), "slope", "outer", 1),
            with_reference(call("Leaky", ["t"], ["y"]), "slope", "outer", 1),
            node("NonZero", ["x"], ["unused"]),
        ],
        ("outer",),
    )
    x = f32(rng, 2, 3)
    proto = model(
        [call("Twice", ["x"], ["y", ""], outer=0.75)],
        {"x": x},
        ["y"],
        functions=[SCALE, twice],
        domains={"local": 1},
    )
    graph = assert_same(proto, {"x": x})
    assert [n.attrs.get("alpha") for n in graph.nodes[::2]] == [0.75, 0.75]


def test_default_attributes_of_functions(rng: np.random.Generator) -> None:
    leaky = function(
        "Leaky2",
        ["x"],
        ["y"],
        [with_reference(node("LeakyRelu", ["x"], ["y"]), "alpha", "slope", 1)],
        defaults={"slope": 0.125},
    )
    x = f32(rng, 5)
    nodes = [call("Leaky2", ["x"], ["a"]), call("Leaky2", ["a"], ["y"], slope=0.5)]
    proto = model(nodes, {"x": x}, ["y"], functions=[leaky], domains={"local": 1})
    graph = assert_same(proto, {"x": x})
    assert [n.attrs["alpha"] for n in graph.nodes] == [0.125, 0.5]


def test_a_function_has_the_opset_it_imports(rng: np.random.Generator) -> None:
    old = function(
        "Old",
        ["x"],
        ["y"],
        [node("Squeeze", ["x"], ["s"], axes=[0]), node("Softmax", ["s"], ["y"], axis=0)],
        opset=11,
    )
    x = f32(rng, 1, 3, 4)
    nodes = [call("Old", ["x"], ["a"]), node("Softmax", ["a"], ["y"], axis=0)]
    proto = model(nodes, {"x": x}, ["y"], functions=[old], domains={"local": 1})
    graph = load_onnx(proto)
    assert [n.attrs.get("coerce_2d") for n in graph.nodes] == [None, 1, None]
    (got,) = run(graph, {"x": x}).values()
    first = np.exp(x[0] - x.max()) / np.exp(x[0] - x.max()).sum()
    second = np.exp(first) / np.exp(first).sum(axis=0)
    np.testing.assert_allclose(got, second, rtol=1e-5)


def test_absent_inputs_and_unused_outputs_of_functions(rng: np.random.Generator) -> None:
    clip = function(
        "Cut", ["x", "low", "high"], ["a", "y"],
        [node("Clip", ["x", "low", "high"], ["y"]), node("Neg", ["x"], ["a"])],
    )  # fmt: skip
    x = f32(rng, 6)
    proto = model(
        [call("Cut", ["x", "", "h"], ["", "y"])],
        {"x": x},
        ["y"],
        {"h": np.float32(0.25)},
        functions=[clip],
        domains={"local": 1},
    )
    graph = assert_same(proto, {"x": x})
    assert ops(graph) == ["Clip"]


def test_control_flow_inside_functions(rng: np.random.Generator) -> None:
    def branch(name: str, made: Any) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(made.output[0], 1, None)
        return helper.make_graph([made], name, [], [out])

    leaky = with_reference(node("LeakyRelu", ["x"], ["t"]), "alpha", "slope", 1)
    choose = function(
        "Choose",
        ["c", "x"],
        ["y"],
        [
            node(
                "If",
                ["c"],
                ["y"],
                then_branch=branch("then", leaky),
                else_branch=branch("else", node("Neg", ["x"], ["e"])),
            )
        ],
        ("slope",),
    )
    x = f32(rng, 4)
    proto = model(
        [call("Choose", ["c", "x"], ["y"], slope=0.5)],
        {"x": x, "c": np.array(True)},
        ["y"],
        functions=[choose],
        domains={"local": 1},
    )
    for flag in (True, False):
        graph = assert_same(proto, {"x": x, "c": np.array(flag)})
    assert ops(graph) == ["If"]
    assert ops(load_onnx(proto, pins={"c": np.array(False)})) == ["Neg"]


def test_a_function_that_calls_itself_is_refused() -> None:
    loop = function("Loop", ["x"], ["y"], [call("Loop", ["x"], ["y"])])
    proto = model(
        [call("Loop", ["x"], ["y"])], {"x": [2]}, ["y"], functions=[loop], domains={"local": 1}
    )
    with pytest.raises(ModelError, match="'local:Loop' calls itself"):
        load_onnx(proto)


# -- operators that ONNX defines by a function ------------------------------------------------


CASES: list[tuple[str, dict[str, Any], list[tuple[int, ...]]]] = [
    ("LayerNormalization", {"axis": 1, "epsilon": 1e-3}, [(2, 3, 4), (3, 4), (3, 4)]),
    ("Gelu", {}, [(2, 5)]),
    ("Gelu", {"approximate": "tanh"}, [(2, 5)]),
    ("HardSwish", {}, [(7,)]),
    ("Celu", {"alpha": 0.5}, [(3, 4)]),
    ("Mish", {}, [(3, 4)]),
    ("Selu", {}, [(3, 4)]),
    ("Softsign", {}, [(3, 4)]),
    ("ThresholdedRelu", {"alpha": 0.3}, [(3, 4)]),
    ("GroupNormalization", {"num_groups": 2}, [(1, 4, 3), (4,), (4,)]),
    ("RMSNormalization", {"axis": 1}, [(2, 6), (6,)]),
    ("MeanVarianceNormalization", {"axes": (0, 2)}, [(2, 3, 4)]),
    ("ReduceLogSumExp", {"keepdims": 1}, [(2, 3)]),
    ("LogSoftmax", {"axis": 1}, [(2, 3)]),
    ("PRelu", {}, [(2, 3), (3,)]),
    ("LessOrEqual", {}, [(2, 3), (3,)]),
]


@pytest.mark.parametrize(("op", "attrs", "shapes"), CASES, ids=[case[0] for case in CASES])
def test_operators_are_expanded_by_their_definition(
    op: str, attrs: dict[str, Any], shapes: list[tuple[int, ...]], rng: np.random.Generator
) -> None:
    names = tuple(f"x{i}" for i in range(len(shapes)))
    values = {n: f32(rng, *s) for n, s in zip(names, shapes, strict=True)}
    types = [TensorType(s, "float32") for s in shapes]
    made = Node("site", op, names, ("y",), attrs)
    graph = expand_function_graph(made, types, OPSET)
    assert graph is not None
    assert op not in ops(graph)
    assert_typed(graph)
    (got,) = run(graph, values).values()
    single = model([node(op, names, ["y"], **attrs)], values, ["y"], opset=OPSET)
    (want,) = run(load_onnx(single), values).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

    nodes = expand_function_op(made, types, OPSET)
    assert nodes is not None
    assert all(n.name.startswith("site") for n in nodes)
    assert nodes[-1].outputs[0] == "y"


def test_expanded_nodes_are_taken_up_by_constant_folding(rng: np.random.Generator) -> None:
    x = f32(rng, 2, 3)
    proto = model([node("Celu", ["x"], ["y"], alpha=0.5)], {"x": x}, ["y"])
    graph = load_onnx(proto)
    (celu,) = graph.nodes
    nodes = expand_function_op(celu, [graph.types["x"]], graph.opset)
    assert nodes is not None
    types = expand_function_graph(celu, [graph.types["x"]], graph.opset).types  # type: ignore[union-attr]
    expanded = graph.with_(nodes=tuple(nodes), types={**types, **graph.types})
    folded = fold_constants(expanded, lambda *_: pytest.fail("every type is known"))
    assert "Constant" not in ops(folded)
    assert_typed(folded)
    (got,) = run(folded, {"x": x}).values()
    np.testing.assert_allclose(got, run(graph, {"x": x})["y"], rtol=1e-5)


def test_operators_without_a_definition_stay(rng: np.random.Generator) -> None:
    made = Node("n", "Sin", ("x",), ("y",))
    assert expand_function_op(made, [TensorType((2,), "float32")], OPSET) is None


def test_import_expands_what_is_not_implemented(rng: np.random.Generator) -> None:
    x = f32(rng, 2, 3, 4)
    consts = {"s": f32(rng, 4), "b": f32(rng, 4)}
    nodes = [node("LayerNormalization", ["x", "s", "b"], ["h"]), node("Mish", ["h"], ["y"])]
    proto = model(nodes, {"x": x}, ["y"], consts, opset=18)
    known = {s.name for s in onnx.defs.get_all_schemas()} - {"LayerNormalization", "Mish"}
    graph = assert_same(proto, {"x": x}, implemented=known, rtol=1e-4)
    assert set(ops(graph)) <= known
    assert ops(load_onnx(proto)) == ["LayerNormalization", "Mish"]
