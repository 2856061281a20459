"""If, Loop and Scan: resolved where import knows enough, else kept, computing the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, TensorProto

from tests.unit.frontend_tools import assert_same, assert_typed, model, ops, run_ort
from toolkit.errors import ModelError, UnsupportedError
from toolkit.frontend import control, load_onnx
from toolkit.frontend.reference import run
from toolkit.ir.graph import Graph

node = helper.make_node
FLAG = np.array(True)


def f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def info(name: str, shape: list[int] | None = None, kind: int = 1) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def body(
    nodes: list[Any],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    consts: dict[str, np.ndarray] | None = None,
    name: str = "body",
) -> onnx.GraphProto:
    tensors = [onnx.numpy_helper.from_array(v, n) for n, v in (consts or {}).items()]
    made = [onnx.ValueInfoProto(name=n) for n in outputs]
    for value in made:  # onnxruntime wants the type, not the shape
        value.type.tensor_type.elem_type = TensorProto.BOOL if value.name[0] == "c" else 1
    return helper.make_graph(nodes, name, inputs, made, tensors)


def both(graph: Graph, proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Check our own evaluation of the kept graph too: `export` reads captures by name again."""
    got = run(graph, {n: v for n, v in feeds.items() if n in graph.inputs})
    for value, want in zip(got.values(), run_ort(proto, feeds), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)


# -- If ---------------------------------------------------------------------------------------


def two_branches(then: list[Any], els: list[Any], consts: Any = None) -> Any:
    return node(
        "If",
        ["c"],
        ["y"],
        name="choice",
        then_branch=body(then, [], ["t"], consts, "then"),
        else_branch=body(els, [], ["e"], None, "else"),
    )


def test_run_time_if_reads_captured_tensors_as_inputs(rng: np.random.Generator) -> None:
    x, z = f32(rng, 2, 3), f32(rng, 2, 3)
    choice = two_branches(
        [node("Add", ["h", "w"], ["a"]), node("Mul", ["a", "k"], ["t"])],
        [node("Sub", ["z", "h"], ["e"])],
        {"k": np.float32(3)},
    )
    nodes = [node("Relu", ["x"], ["h"]), choice, node("Neg", ["y"], ["n"])]
    proto = model(nodes, {"x": x, "z": z, "c": FLAG}, ["n", "y"], {"w": f32(rng, 3)})
    for flag in (True, False):
        feeds = {"x": x, "z": z, "c": np.array(flag)}
        graph = assert_same(proto, feeds)
        both(graph, proto, feeds)
    kept = next(n for n in graph.nodes if n.op == "If")
    assert kept.inputs == ("c", "h", "z")
    then, els = kept.attrs["then_branch"], kept.attrs["else_branch"]
    assert then.inputs == els.inputs == ("h", "z")
    assert "w" in then.consts
    assert "w" not in els.consts


@pytest.mark.parametrize("flag", [True, False])
def test_if_of_a_known_condition_is_its_branch(flag: bool, rng: np.random.Generator) -> None:
    x = f32(rng, 2, 3)
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Equal", ["n", "two"], ["c"]),
        two_branches([node("Neg", ["x"], ["t"])], [node("Abs", ["x"], ["e"])]),
    ]
    two = np.array(2 if flag else 7)
    proto = model(nodes, {"x": x}, ["y"], {"zero": np.array(0), "two": two})
    graph = assert_same(proto, {"x": x})
    assert ops(graph) == ["Neg" if flag else "Abs"]
    assert graph.nodes[0].outputs == ("y",)


def test_if_is_decided_by_a_pinned_input(rng: np.random.Generator) -> None:
    x = f32(rng, 2, 3)
    choice = two_branches([node("Neg", ["x"], ["t"])], [node("Abs", ["x"], ["e"])])
    proto = model([choice], {"x": x, "c": FLAG}, ["y"])
    graph = load_onnx(proto, pins={"c": np.array(0)})
    assert (ops(graph), graph.inputs) == (["Abs"], ("x",))


def test_branches_that_give_outer_tensors_and_constants(rng: np.random.Generator) -> None:
    x = f32(rng, 3)
    choice = two_branches([node("Identity", ["k"], ["t"])], [node("Identity", ["x"], ["e"])])
    proto = model([choice], {"x": x, "c": FLAG}, ["y"], {"k": f32(rng, 3)})
    for flag in (True, False):
        graph = assert_same(proto, {"x": x, "c": np.array(flag)})
        both(graph, proto, {"x": x, "c": np.array(flag)})
    for known in (True, False):
        assert_typed(load_onnx(proto, pins={"c": np.array(known)}))


def test_nested_if_captures_through_both(rng: np.random.Generator) -> None:
    x = f32(rng, 4)
    inner = node(
        "If",
        ["d"],
        ["t"],
        name="inner",
        then_branch=body([node("Mul", ["h", "h"], ["t2"])], [], ["t2"]),
        else_branch=body([node("Neg", ["x"], ["e2"])], [], ["e2"]),
    )
    nodes = [node("Exp", ["x"], ["h"]), two_branches([inner], [node("Abs", ["x"], ["e"])])]
    proto = model(nodes, {"x": x, "c": FLAG, "d": FLAG}, ["y"])
    for flags in range(4):
        feeds = {"x": x, "c": np.array(bool(flags & 1)), "d": np.array(bool(flags & 2))}
        graph = assert_same(proto, feeds)
        both(graph, proto, feeds)
    outer = graph.nodes[-1]
    assert set(outer.inputs) == {"c", "d", "h", "x"}


def test_branches_of_other_shapes_are_refused(rng: np.random.Generator) -> None:
    choice = two_branches([node("Concat", ["x", "x"], ["t"], axis=0)], [node("Abs", ["x"], ["e"])])
    proto = model([choice], {"x": [3], "c": FLAG}, ["y"])
    with pytest.raises(UnsupportedError, match=r"float32\[6\] in one branch"):
        load_onnx(proto)
    for flag, shape in ((True, (6,)), (False, (3,))):
        assert load_onnx(proto, pins={"c": np.array(flag)}).types["y"].shape == shape


def test_error_in_a_branch_names_the_if() -> None:
    choice = two_branches([node("MatMul", ["x", "x"], ["t"])], [node("Abs", ["x"], ["e"])])
    proto = model([choice], {"x": [2, 3], "c": FLAG}, ["y"])
    with pytest.raises(ModelError, match=r"(?s)MatMul.*in then_branch of 'choice'.*--set"):
        load_onnx(proto)


# -- Loop -------------------------------------------------------------------------------------


def loop_model(
    trips: np.ndarray | None, x: np.ndarray, *, scanned: bool = True, stop: bool = False
) -> onnx.ModelProto:
    """acc = (acc + x) * w, each acc scanned; with `stop` while the sum of acc is below 1e9."""
    nodes = [
        node("Add", ["acc", "h"], ["a"]),
        node("Mul", ["a", "w"], ["next"]),
        node("Identity", ["next"], ["seen"]),
    ]
    if stop:
        nodes += [
            node("ReduceSum", ["next"], ["total"], keepdims=0),
            node("Less", ["total", "limit"], ["cond_out"]),
        ]
    else:
        nodes.append(node("Identity", ["cond_in"], ["cond_out"]))
    inputs = [info("i", [], 7), info("cond_in", [], 9), info("acc", None)]
    outputs = ["cond_out", "next", *(["seen"] if scanned else [])]
    names = ["y", *(["s"] if scanned else [])]
    consts = {"w": np.float32(1.5), "go": FLAG, "start": np.zeros(x.shape, np.float32)}
    consts["limit"] = np.float32(1e9)
    graph_in: dict[str, Any] = {"x": x}
    if trips is None:
        graph_in["m"] = np.array(3)
    else:
        consts["m"] = trips
    loop = node("Loop", ["m", "go", "start"], names, name="loop", body=body(nodes, inputs, outputs))
    return model([node("Neg", ["x"], ["h"]), loop], graph_in, names, consts, opset=13)


@pytest.mark.parametrize("trips", [1, 3, 100, 1000])
def test_loop_of_known_length(trips: int, rng: np.random.Generator) -> None:
    x = f32(rng, 2, 2) * 1e-30
    proto = loop_model(np.array(trips), x)
    if trips == 1000:  # the values overflow; only the form matters
        graph = load_onnx(proto)
    else:
        graph = assert_same(proto, {"x": x})
        both(graph, proto, {"x": x})
    assert ("Loop" in ops(graph)) == (trips == 1000)
    assert graph.types["s"].shape == (trips, 2, 2)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_loop_of_run_time_length_keeps_carried_values(count: int, rng: np.random.Generator) -> None:
    x = f32(rng, 2, 2)
    proto = loop_model(None, x, scanned=False)
    feeds = {"x": x, "m": np.array(count)}
    graph = assert_same(proto, feeds)
    both(graph, proto, feeds)
    loop = graph.nodes[-1]
    assert (loop.op, loop.attrs["carried"]) == ("Loop", 1)
    assert loop.inputs[:2] == ("m", "go")
    assert loop.inputs[3:] == loop.attrs["body"].inputs[3:] == ("h",)


def test_loop_that_stops_by_its_values(rng: np.random.Generator) -> None:
    x = -np.abs(f32(rng, 2, 2)) - 1e7
    proto = loop_model(np.array(40), x, scanned=False, stop=True)
    graph = assert_same(proto, {"x": x})
    both(graph, proto, {"x": x})
    assert "Loop" in ops(graph)


def test_scanned_values_of_a_loop_of_unknown_length_are_refused(rng: np.random.Generator) -> None:
    for proto in (
        loop_model(None, f32(rng, 2, 2)),
        loop_model(np.array(40), f32(rng, 2, 2), stop=True),
    ):
        with pytest.raises(UnsupportedError, match=r"'loop' \(Loop\): the number of iterations"):
            load_onnx(proto)


def test_loop_that_grows_a_tensor_is_unrolled_or_refused(rng: np.random.Generator) -> None:
    x = f32(rng, 2)
    nodes = [
        node("Concat", ["acc", "x"], ["next"], axis=0),
        node("Identity", ["cond_in"], ["cond_out"]),
    ]
    inputs = [info("i", [], 7), info("cond_in", [], 9), info("acc", None)]
    loop = node("Loop", ["m", "", "x"], ["y"], body=body(nodes, inputs, ["cond_out", "next"]))
    known = model([loop], {"x": x}, ["y"], {"m": np.array(3)}, opset=13)
    assert assert_same(known, {"x": x}).types["y"].shape == (8,)
    unknown = model([loop], {"x": x, "m": np.array(3)}, ["y"], opset=13)
    with pytest.raises(UnsupportedError, match=r"starts as float32\[2\] and becomes float32\[4\]"):
        load_onnx(unknown)


# -- Scan -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scan(
    axis: int, backward: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, start = f32(rng, 3, 4, 5), f32(rng, *np.delete((3, 4, 5), axis))
    scanning = body(
        [
            node("Add", ["acc", "item"], ["a"]),
            node("Mul", ["a", "w"], ["next"]),
            node("Tanh", ["next"], ["out"]),
        ],
        [info("acc"), info("item")],
        ["next", "out"],
    )
    scan = node(
        "Scan",
        ["start", "x"],
        ["y", "s"],
        body=scanning,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[backward],
        scan_output_axes=[axis],
        scan_output_directions=[backward],
    )
    proto = model([scan], {"x": x, "start": start}, ["y", "s"], {"w": np.float32(0.5)}, opset=13)
    graph = assert_same(proto, {"x": x, "start": start})
    assert graph.types["s"].shape == (3, 4, 5)
    assert "Scan" not in ops(graph)
    monkeypatch.setattr(control, "MAX_UNROLLED_NODES", 0)
    kept = assert_same(proto, {"x": x, "start": start})
    both(kept, proto, {"x": x, "start": start})
    assert ops(kept) == ["Scan"]
    assert kept.nodes[0].attrs["scan_output_axes"] == (axis % 3,)


def test_loops_that_are_not_implemented_are_unrolled_or_refused(rng: np.random.Generator) -> None:
    x = f32(rng, 2, 2)
    known = {"Neg", "Add", "Mul", "Identity", "Concat", "Unsqueeze"}
    graph = load_onnx(loop_model(np.array(900), x), implemented=known)
    assert "Loop" not in ops(graph)
    for trips in (np.array(9000), None):
        with pytest.raises(UnsupportedError, match="known only at run time, or is too large"):
            load_onnx(loop_model(trips, x, scanned=False), implemented=known)
