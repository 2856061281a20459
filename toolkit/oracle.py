"""What a model should answer: onnxruntime if it is installed, else the ONNX reference evaluator.

Graph optimisation is off: the model as its author wrote it is the reference.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from toolkit.errors import NestlingError

Answer = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Oracle:
    """Something that runs the original model; `name` is what messages call it."""

    name: str
    answer: Answer


def has_onnxruntime() -> bool:
    """Tell whether onnxruntime can be imported."""
    return importlib.util.find_spec("onnxruntime") is not None


def open_oracle(
    model: onnx.ModelProto, path: str | None = None, outputs: Sequence[str] | None = None
) -> Oracle:
    """Return an oracle.  `path`: the model's file, for external data.  `outputs`: default all."""
    refusals: list[str] = []
    openers = (_onnxruntime, _reference) if has_onnxruntime() else (_reference,)
    for opener in openers:
        try:
            return opener(model, path, outputs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next may do
            refusals.append(f"{opener.__name__[1:]}: {_one_line(error)}")
    raise NestlingError(
        "nothing here can say what the model should answer.",
        state=refusals,
        hint="give recorded outputs: --input X.npz with arrays in__NAME and out__NAME",
    )


def _onnxruntime(model: onnx.ModelProto, path: str | None, outputs: Sequence[str] | None) -> Oracle:
    session = onnxruntime_session(model, path, optimise=False)
    names = list(outputs) if outputs is not None else [o.name for o in session.get_outputs()]

    def answer(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            values = session.run(names, dict(inputs))
        except Exception as error:  # noqa: BLE001 - onnxruntime has no base class of its errors
            raise NestlingError(
                f"onnxruntime cannot run the model on these inputs: {_one_line(error)}",
                hint="give inputs that suit the model: --input X.npz",
            ) from None
        return {n: np.asarray(v) for n, v in zip(names, values, strict=True)}

    return Oracle("onnxruntime", answer)


def onnxruntime_session(
    model: onnx.ModelProto, path: str | None, *, optimise: bool, threads: int = 1
) -> Any:
    """Open a model in onnxruntime, on the CPU; raises what onnxruntime raises."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    source = path if path is not None else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _reference(model: onnx.ModelProto, path: str | None, outputs: Sequence[str] | None) -> Oracle:
    from onnx.reference import ReferenceEvaluator

    if path is not None and outputs is None:
        model = onnx.load(path)
    evaluator = ReferenceEvaluator(model)
    names = list(outputs) if outputs is not None else [o.name for o in model.graph.output]

    def answer(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                values: Any = evaluator.run(names, dict(inputs))
            except Exception as error:  # noqa: BLE001 - it evaluates with plain NumPy code
                raise NestlingError(
                    f"the ONNX reference cannot run the model on these inputs: {_one_line(error)}",
                    hint="give inputs that suit the model: --input X.npz",
                ) from None
        return {n: np.asarray(v) for n, v in zip(names, values, strict=True)}

    return Oracle("the ONNX reference", answer)


def with_all_outputs(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Return a copy whose every tensor of the main graph is an output, and the tensors' names."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    taken = {i.name for i in (*copy.graph.input, *copy.graph.initializer)}
    names = [name for node in copy.graph.node for name in node.output if name and name not in taken]
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    return copy, names


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
