"""No pass changes what a graph computes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.graph_maker import inputs_of, NETS
from tests.reference import run
from toolkit.frontend import load_onnx
from toolkit.ir.graph import Graph
from toolkit.ops import OPS
from toolkit.passes.manager import apply_passes, flat, run_passes
from toolkit.pipeline import compile_model, Model, Options
from toolkit.runners import BuiltModel

Arrays = Mapping[str, np.ndarray]


def assert_close(found: Arrays, wanted: Arrays, tolerance: float, what: str) -> None:
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        got = found[name]
        assert got.shape == want.shape, (what, name)
        assert got.dtype == want.dtype, (what, name)
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(got, want, what)
            continue
        limit = tolerance * max(1.0, float(np.max(np.abs(want), initial=0)))
        np.testing.assert_allclose(got, want, rtol=0, atol=limit, err_msg=f"{what}: {name}")


def check_every_pass(graph: Graph, inputs: Arrays, tolerance: float) -> Graph:
    """Run all passes; compare the outputs after each one that changed the graph."""
    wanted = run(graph, inputs)

    def compare(name: str, before: Graph, after: Graph) -> None:
        if after is not before:
            assert after.inputs == graph.inputs
            assert after.outputs == graph.outputs
            assert_close(run(after, inputs), wanted, tolerance, f"after {name}")

    return apply_passes(graph, OPS, dump=compare)


# Tolerance: float64, so that what is reassociated differs by less than 1e-9 of the largest value.
@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("seed", range(15))
def test_passes_keep_outputs_of_random_nets(kind: str, seed: int) -> None:
    graph = NETS[kind](seed)
    check_every_pass(graph, inputs_of(graph, seed), 1e-9)


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("seed", range(15))
def test_each_pass_alone_keeps_outputs(kind: str, seed: int) -> None:
    graph = NETS[kind](100 + seed)
    inputs = inputs_of(graph, seed)
    wanted = run(graph, inputs)
    for one in flat():
        changed = apply_passes(graph, OPS, passes=(one,))
        if changed is not graph:
            assert_close(run(changed, inputs), wanted, 1e-9, one.name)


@pytest.mark.parametrize("kind", NETS)
def test_exact_passes_keep_element_wise_results_bit_for_bit(kind: str) -> None:
    for seed in range(5):
        graph = NETS["soup"](1000 + seed) if kind == "soup" else NETS[kind](seed)
        inputs = inputs_of(graph)
        kept = apply_passes(graph, OPS, exact=True)
        # NumPy sums in another order where axes are permuted, so only the soup has no sums to move.
        tolerance = 0 if kind == "soup" else 1e-9
        assert_close(run(kept, inputs), run(graph, inputs), tolerance, f"seed {seed}")


def test_passes_reach_a_fixed_point() -> None:
    for kind, make in NETS.items():
        for seed in range(5):
            once = apply_passes(make(seed), OPS)
            before_fusion = tuple(p for p in flat() if p.name != "fuse")
            again = apply_passes(_opened(once), OPS, passes=before_fusion)
            assert len(again.nodes) == len(_opened(once).nodes), (kind, seed)


def _opened(graph: Graph) -> Graph:
    """Put the nodes of groups back in their places."""
    nodes, types, consts = [], dict(graph.types), dict(graph.consts)
    for node in graph.nodes:
        if node.op_id == "nestling:Group":
            body: Graph = node.attrs["body"]
            nodes += body.nodes
            types.update(body.types)
            consts.update(body.consts)
        else:
            nodes.append(node)
    return graph.with_(nodes=tuple(nodes), types=types, consts=consts)


# Tolerance: float32 kernels and libm of the host against float64 sums of the reference.
@pytest.mark.parametrize("kind", NETS)
def test_compiled_random_nets_compute_what_their_graphs_say(kind: str) -> None:
    for seed in range(4):
        graph = NETS[kind](500 + seed, "float32")
        inputs = inputs_of(graph)
        compiled = compile_model(Model(graph, "net", graph.digest()), Options(cflags=("-O1",)))
        with BuiltModel(compiled) as built:
            assert_close(built.run(inputs), run(graph, inputs), 2e-5, f"seed {seed}")


QUICK = (
    "acasxu_1_1 go1_policy mnist_8 mtcnn_pnet t_digits_vit t_fsdd_dscnn t_fsdd_gru t_vowels_bilstm "
    "silero_vad_16k_static dtln_2 magika_v3_3 dory_eegnet_int"
).split()


# Tolerance: a tenth of what the whole model may differ.
@pytest.mark.corpus("FLOAT.txt")
def test_passes_keep_outputs_of_corpus_models(corpus_file: Path) -> None:
    if corpus_file.stem not in QUICK:
        return
    dims = {"mtcnn_pnet": {"M1": 24, "M2": 24}}.get(corpus_file.stem)
    graph = load_onnx(corpus_file, dims=dims)
    check_every_pass(graph, inputs_of(graph), 1e-5)


def test_a_deep_net_passes_in_linear_time() -> None:
    """800 nodes in under 2 s on the machines of CI: here only that four times the nodes take less
    than eight times as long."""
    import time

    from tests.graph_maker import Maker

    def seconds(blocks: int) -> float:
        m = Maker("float32")
        x = m.input(1, 8, 8, 8)
        for _ in range(blocks):
            x = m.Relu(m.Add(x, m.batch_norm(m.conv(m.Relu(m.batch_norm(m.conv(x, 8))), 8))))
        graph = m.graph(x)
        start = time.process_time()
        run_passes(graph, OPS)
        return time.process_time() - start

    seconds(2)
    small, large = seconds(28), seconds(112)
    assert large < 8 * small + 0.2, (small, large)
