"""What a model should answer: onnxruntime if it is installed, else the ONNX reference evaluator.

Graph optimisation is off: the model as its author wrote it is the reference.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from toolkit.errors import NestlingError

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Arrays], list[Any]]


def has_onnxruntime() -> bool:
    """Tell whether onnxruntime can be imported."""
    return importlib.util.find_spec("onnxruntime") is not None


def answers(
    model: onnx.ModelProto,
    path: str | None,
    samples: Sequence[Arrays],
    outputs: Sequence[str] | None = None,
) -> tuple[str, list[dict[str, np.ndarray]]]:
    """Return who answered, and the outputs for each sample by name.

    `path` is the model's file, for external data; `outputs` names tensors, default all outputs.
    Raises `NestlingError` when nobody here can run the model on these inputs.
    """
    names = list(outputs) if outputs is not None else [o.name for o in model.graph.output]
    refusals: list[str] = []
    known: list[tuple[str, Callable[[onnx.ModelProto, str | None, list[str]], Run]]] = []
    if has_onnxruntime():
        known.append(("onnxruntime", _onnxruntime))
    known.append(("the ONNX reference", _reference))
    for who, opener in known:
        try:
            run = opener(model, path, names)
            found = [run(inputs) for inputs in samples]
        except Exception as error:  # noqa: BLE001 - neither has a base class of its errors
            refusals.append(f"{who}: {' '.join(str(error).split())[:300] or type(error).__name__}")
            continue
        return who, [
            {n: np.asarray(v) for n, v in zip(names, values, strict=True)} for values in found
        ]
    raise NestlingError(
        "nothing here can say what the model should answer on these inputs.",
        state=refusals,
        hint="give inputs that suit it and the outputs: --input X.npz with in__NAME and out__NAME",
    )


def onnxruntime_session(
    model: onnx.ModelProto, path: str | None, *, optimise: bool, threads: int = 1
) -> Any:
    """Open a model in onnxruntime, on the CPU; raises what onnxruntime raises."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    if threads > 1:  # else its threads keep a core busy that others are then timed on
        options.add_session_config_entry("session.force_spinning_stop", "1")
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    source = path if path is not None else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _onnxruntime(model: onnx.ModelProto, path: str | None, names: list[str]) -> Run:
    session = onnxruntime_session(model, path, optimise=False)
    return lambda inputs: list(session.run(names, dict(inputs)))


def _reference(model: onnx.ModelProto, path: str | None, names: list[str]) -> Run:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load(path) if path is not None else model)

    def run(inputs: Arrays) -> list[Any]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return list(evaluator.run(names, dict(inputs)))

    return run


def litert_answers(
    path: Path, samples: Sequence[Arrays], *, every_tensor: bool = False
) -> tuple[str, list[dict[str, np.ndarray]]]:
    """Return who answered, and what the reference kernels of LiteRT give for samples in order.

    `every_tensor`: also those inside the model, by name.  Variables carry over from sample to
    sample.  Raises `NestlingError` where LiteRT is not installed or refuses the model.
    """
    hint = "give the outputs: --input X.npz with in__NAME and out__NAME"
    if importlib.util.find_spec("ai_edge_litert") is None:
        raise NestlingError(
            "nothing here can say what a TFLite model should answer.",
            hint=f"pip install ai-edge-litert; or {hint}",
        )
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    try:
        runner = Interpreter(
            model_path=str(path),
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
            experimental_preserve_all_tensors=every_tensor,
        )
        details = {d["name"]: d for d in runner.get_input_details()}
        for name, array in samples[0].items():
            if name in details and tuple(details[name]["shape"]) != array.shape:
                runner.resize_tensor_input(details[name]["index"], array.shape)
        runner.allocate_tensors()
        wanted = runner.get_tensor_details() if every_tensor else runner.get_output_details()
        parts = []
        for inputs in samples:
            for name, array in inputs.items():
                if name in details:
                    runner.set_tensor(details[name]["index"], array)
            runner.invoke()
            parts.append({d["name"]: _tensor(runner, d["index"]) for d in wanted})
    except (ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())[:300]
        raise NestlingError(f"LiteRT cannot run {path.name}: {text}", hint=hint) from None
    return "LiteRT's reference kernels", [
        {n: a for n, a in part.items() if a is not None} for part in parts
    ]


def _tensor(runner: Any, index: int) -> np.ndarray | None:
    """Return a tensor's value; None for one that has none, such as a scratch buffer."""
    try:
        return np.array(runner.get_tensor(index))
    except ValueError:
        return None


def with_all_outputs(path: Path) -> tuple[onnx.ModelProto, list[str]]:
    """Read a model with every tensor of its main graph an output; return it and their names."""
    copy = onnx.load(path)
    taken = {i.name for i in (*copy.graph.input, *copy.graph.initializer)}
    names = [name for node in copy.graph.node for name in node.output if name and name not in taken]
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    return copy, names
