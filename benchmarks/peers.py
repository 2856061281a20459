"""The other runtimes: float32, and called past their comfortable methods."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.models import Row
from benchmarks.timing import Clock, Timed, timed_calls
from toolkit.oracle import onnxruntime_session

Inputs = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a peer is to run.  `corpus`: the folder of .tflite twins."""

    threads: int
    clock: Clock
    corpus: Path | None


class NotHereError(Exception):
    """A peer does not run a row, or is not installed; the text says why."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A model loaded in a peer.  `outputs`: its results in order, if they can be compared.

    `keep`: what the runtime refers to without owning it.
    """

    timed: Timed
    outputs: tuple[np.ndarray, ...] | None
    note: str = ""
    keep: Any = None


@dataclass(frozen=True, slots=True)
class Peer:
    """A runtime.  `package` is its distribution on PyPI."""

    name: str
    short: str
    package: str
    open: Callable[[Row, onnx.ModelProto, Inputs, Conditions], Opened]

    @property
    def version(self) -> str | None:
        """The installed version."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


def open_onnxruntime(row: Row, model: onnx.ModelProto, inputs: Inputs, how: Conditions) -> Opened:
    """All optimisation, inputs and outputs bound, called past the public Python method."""
    import onnxruntime as ort

    session = onnxruntime_session(model, None, optimise=True, threads=how.threads)
    binding = session.io_binding()
    names = [o.name for o in session.get_outputs()]
    outputs = tuple(np.asarray(v) for v in session.run(names, dict(inputs)))
    # On the CPU these share NumPy's memory, and the binding does not keep them.
    alive = [ort.OrtValue.ortvalue_from_numpy(np.array(v)) for v in (*inputs.values(), *outputs)]
    for name, value in zip(inputs, alive, strict=False):
        binding.bind_ortvalue_input(name, value)
    for name, value in zip(names, alive[len(inputs) :], strict=True):
        binding.bind_ortvalue_output(name, value)
    run, raw = session._sess.run_with_iobinding, binding._iobinding
    run(raw, None)
    return Opened(timed_calls(lambda: run(raw, None), how.clock), outputs, keep=(session, alive))


def open_openvino(row: Row, model: onnx.ModelProto, inputs: Inputs, how: Conditions) -> Opened:
    """Latency hint, one stream, f32 hint: its default is bf16 where the core has it."""
    os.environ.setdefault("OPENVINO_TELEMETRY_DISABLED", "1")
    import openvino as ov

    core = ov.Core()
    config = {
        "INFERENCE_NUM_THREADS": how.threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,
    }
    compiled = core.compile_model(core.read_model(model.SerializeToString(), b""), "CPU", config)
    request = compiled.create_infer_request()
    tensors = [ov.Tensor(np.array(value)) for value in inputs.values()]
    for name, tensor in zip(inputs, tensors, strict=True):
        request.set_tensor(name, tensor)
    outputs = tuple(np.array(v) for v in request.infer().values())
    # The method below the one that copies results into a dict.
    raw: Any = super(type(request), request).infer
    nothing: dict[str, Any] = {}
    raw(nothing, share_outputs=True, decode_strings=False)
    return Opened(
        timed_calls(lambda: raw(nothing, share_outputs=True, decode_strings=False), how.clock),
        outputs,
        keep=tensors,
    )


def open_litert(row: Row, model: onnx.ModelProto, inputs: Inputs, how: Conditions) -> Opened:
    """XNNPACK, on the corpus's twin of the row: other weights, the same topology."""
    from ai_edge_litert.interpreter import Interpreter

    if row.twin is None:
        raise NotHereError("it reads .tflite files, and the corpus has none of this row")
    if how.corpus is None or not (how.corpus / row.twin).is_file():
        raise NotHereError(f"it reads .tflite files: --corpus with {row.twin}")
    interpreter = Interpreter(str(how.corpus / row.twin), num_threads=how.threads)
    interpreter.allocate_tensors()
    rng = np.random.default_rng(1)
    for detail in interpreter.get_input_details():
        value = rng.standard_normal(tuple(detail["shape"])).astype(detail["dtype"])
        interpreter.set_tensor(detail["index"], value)
    invoke = interpreter._interpreter.Invoke
    invoke()
    return Opened(timed_calls(invoke, how.clock), None, f"times {row.twin}", interpreter)


PEERS: dict[str, Peer] = {
    p.name: p
    for p in (
        Peer("onnxruntime", "ORT", "onnxruntime", open_onnxruntime),
        Peer("openvino", "OpenVINO", "openvino", open_openvino),
        Peer("litert", "LiteRT", "ai-edge-litert", open_litert),
    )
}
