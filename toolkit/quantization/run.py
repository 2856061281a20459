"""Post-training quantisation: calibrate, equalise, store, correct, keep what hurts, report."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.errors import ModelError, NestlingError
from toolkit.frontend.export import to_onnx
from toolkit.frontend.tflite import is_tflite
from toolkit.ir.graph import Graph
from toolkit.passes.manager import FLOAT_PASSES, run_passes
from toolkit.pipeline import Model
from toolkit.quantization.equalize import equalize
from toolkit.quantization.half import MIN_ELEMENTS, with_half_weights
from toolkit.quantization.mixed import fewest_lifts, Precision, WORTH_DB
from toolkit.quantization.observe import find_signals, running
from toolkit.quantization.plan import find_plan, FLOAT, INT8, INT16, Layer
from toolkit.quantization.result import LayerReport, Quantized
from toolkit.quantization.session import open_session, Session
from toolkit.quantization.settings import Bound, Settings
from toolkit.samples import Accuracy, Labelled, Samples

Say = Callable[[str], None]


def check_float(model: Model) -> None:
    """Refuse what is no float ONNX model."""
    if model.source is not None and is_tflite(model.source):
        raise ModelError(
            "only ONNX models are quantised here, and this is a TFLite file.",
            hint="quantise it when converting it to TFLite, or convert it to ONNX first",
        )
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in graph.nodes:
            if "quantize" in node.op.lower() or node.op.startswith("Q") or "Integer" in node.op:
                raise ModelError(
                    f"the model is quantised already: node {node.name!r} is {node.op_id}.",
                    hint="start from the float model",
                )


def quantize_model(
    model: Model,
    samples: Samples,
    settings: Settings,
    *,
    labelled: Labelled | None = None,
    say: Say = lambda text: None,
) -> Quantized:
    """Quantise a float model to an ONNX model with QuantizeLinear and DequantizeLinear.

    `samples` are what ranges are taken from; `labelled` tells accuracy.  `say` is told what is
    being done.  Raises `NestlingError` for what is quantised already or holds nothing to quantise.
    """
    check_float(model)
    if settings.bound is not None and settings.bound.points is not None and labelled is None:
        raise NestlingError(
            "a limit in points of accuracy needs labelled samples.",
            hint="give them, or a limit of the outputs' signal-to-noise ratio such as 30dB",
        )
    original = run_passes(model.graph, model.ops, passes=FLOAT_PASSES)
    graph = equalize(original, model.ops) if settings.equalizes else original
    plan = find_plan(graph)
    if not any(layer.weights is not None for layer in plan.layers):
        raise NestlingError(
            f"nothing in {model.name} can be quantised: it has no convolution and no product with "
            "constant weights.",
        )
    say("calibrating")
    with open_session(model, graph, plan, samples, settings, labelled) as session:
        before = after = None
        if labelled is not None:
            say("running the labelled samples in float")
            before = session.accuracy(session.reference)
        precision = session.choice.precision
        if settings.bound is not None:
            precision = _lifted(session, settings.bound, before, say)
        say("quantising")
        names = list(dict.fromkeys([*(p.out for p in plan.layers), *session.float_outputs]))
        with session.trial(precision) as trial:
            say("comparing")
            ratios = session.ratios(trial.run, names)
            after = None if labelled is None else session.accuracy(trial.run)
        made = session.made(trial.choice)
    wide = settings.activations == "int16"
    shown = {out: INT16 if wide and kind == INT8 else kind for out, kind in precision.items()}
    proto = to_onnx(made)
    proto.producer_name = "nestling"
    return Quantized(
        proto,
        settings,
        samples.count,
        tuple(_report(graph, layer, shown[layer.out], ratios) for layer in plan.layers),
        {n: ratios[n] for n in session.float_outputs},
        _constant_bytes(original),
        _constant_bytes(made),
        before,
        after,
    )


def store_half(
    model: Model,
    samples: Samples,
    *,
    labelled: Labelled | None = None,
    say: Say = lambda text: None,
) -> Quantized:
    """Store a float model's weights as float16, widened where they are read.

    The result computes in float32; it is compared as `quantize_model` compares.
    """
    check_float(model)
    graph = run_passes(model.graph, model.ops, passes=FLOAT_PASSES)
    half, large = with_half_weights(graph, model.ops)
    if half is graph:
        raise NestlingError(
            f"nothing in {model.name} can be stored in 16 bits: it has no weights of "
            f"{MIN_ELEMENTS} elements or more within the range of float16."
        )
    layers = [layer for layer in find_plan(graph).layers if layer.weights is not None]
    outputs = [n for n in graph.outputs if graph.types[n].dtype == "float32"]
    names = list(dict.fromkeys([*graph.outputs, *(layer.out for layer in layers)]))
    say("comparing")
    before = after = None
    with running(model, graph, names) as reference, running(model, half, names) as run:
        signals = find_signals(reference, run, [*outputs, *(p.out for p in layers)], samples)
        if labelled is not None:
            before, after = labelled.accuracy(reference), labelled.accuracy(run)
    proto = to_onnx(half)
    proto.producer_name = "nestling"
    stored = {n.inputs[0]: n.outputs[0] for n in half.nodes if n.op_id == "HalfToFloat"}
    made, reports = half.producers(), []
    for layer in layers:
        assert layer.weights is not None
        read = made[layer.node.outputs[0]].inputs[layer.weights]
        size = graph.consts[layer.node.inputs[layer.weights]].size
        narrow = read in stored.values()
        ops, db = tuple(n.op for n in layer.nodes), signals[layer.out].db
        reports.append(
            LayerReport(layer.name, ops, "fp16" if narrow else FLOAT, db, size * (4 - 2 * narrow))
        )
    return Quantized(
        proto,
        None,
        samples.count,
        tuple(reports),
        {n: signals[n].db for n in outputs},
        _constant_bytes(graph),
        _constant_bytes(half),
        before,
        after,
        tuple(f"constant {n!r} is beyond the range of float16 and stays float32" for n in large),
    )


def _report(graph: Graph, layer: Layer, precision: str, ratios: dict[str, float]) -> LayerReport:
    size = 0
    if layer.weights is not None:
        count = graph.consts[layer.node.inputs[layer.weights]].size
        size = count * (4 if precision == FLOAT else 1)
    ops = tuple(n.op for n in layer.nodes)
    return LayerReport(layer.name, ops, precision, ratios[layer.out], size)


def _constant_bytes(graph: Graph) -> int:
    return sum(v.nbytes for v in graph.consts.values())


def _lifted(session: Session, bound: Bound, before: Accuracy | None, say: Say) -> Precision:
    """Return the precision that meets a bound with the fewest lifts."""

    def good(precision: Precision) -> bool:
        lifts = sum(p != INT8 for p in precision.values())
        say(f"measuring with {lifts} of {len(precision)} layers in more bits")
        if bound.points is None:
            assert bound.db is not None
            return session.output_db(precision) >= bound.db
        assert before is not None
        with session.trial(precision) as trial:
            lost = 100.0 * (before.share - session.accuracy(trial.run).share)
        return lost <= bound.points + 1e-9

    start = session.choice.precision
    if good(start):
        return start
    called = {layer.out: layer.name for layer in session.choice.plan.layers}

    def alone(out: str, kind: str) -> float:
        say(f"measuring what {called[out]} alone does, in {kind}")
        precision = {**dict.fromkeys(start, FLOAT), out: kind}
        return session.output_db(precision, correct=False)

    harm = {out: alone(out, INT8) for out in start}

    def lift(out: str) -> str:
        return INT16 if alone(out, INT16) - harm[out] >= WORTH_DB else FLOAT

    return fewest_lifts(sorted(harm, key=lambda out: harm[out]), lift, good)
