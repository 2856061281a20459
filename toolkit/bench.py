"""Timing a model beside another runtime: interleaved, with one thread on one core, or several.

Machines drift; what is compared is two medians of the same seconds.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from toolkit.errors import NestlingError
from toolkit.oracle import onnxruntime_session
from toolkit.runners import BuiltModel, pack_inputs

Inputs = Mapping[str, np.ndarray]

ROUND_S = 0.02
"""Time of one turn: long enough to warm the caches, short enough that drift hits both alike."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another runtime with the model loaded: `time` runs it n times and returns seconds each."""

    name: str
    version: str
    time: Callable[[int], list[float]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians in microseconds; `ratio` is ours / peer."""

    peer: str
    version: str
    ours_us: float
    peer_us: float
    ours_runs: int
    peer_runs: int

    @property
    def ratio(self) -> float:
        """Ours / peer: below 1 we are faster."""
        return self.ours_us / self.peer_us


def open_onnxruntime(
    model: onnx.ModelProto | None, path: str, inputs: Inputs, threads: int = 1
) -> Peer:
    """Load the model in onnxruntime with all optimisation; inputs and outputs bound.

    Timed is the raw binding: onnxruntime's public Python call adds up to 25 us of its own.
    """
    if model is None:
        raise NestlingError("--vs onnxruntime: it reads no TFLite files.", hint="--vs litert")
    _need("onnxruntime", "onnxruntime")
    import onnxruntime as ort

    try:
        session = onnxruntime_session(model, path, optimise=True, threads=threads)
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(
                name, ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
            )
        names = [o.name for o in session.get_outputs()]
        # A first run makes the outputs, so that the timed ones write to where they are bound.
        first = session.run(names, dict(inputs))
        for name, value in zip(names, first, strict=True):
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(np.asarray(value)))
        run, raw = session._sess.run_with_iobinding, binding._iobinding
        run(raw, None)
    except Exception as error:  # noqa: BLE001 - onnxruntime has no base class of its errors
        raise _refused("onnxruntime", error) from None
    return Peer("onnxruntime", ort.__version__, _timed(lambda: run(raw, None)))


def open_openvino(
    model: onnx.ModelProto | None, path: str, inputs: Inputs, threads: int = 1
) -> Peer:
    """Load the model in OpenVINO, for latency, one stream, in float32 where it is of floats.

    Timed is the method below the one that copies results into a dict.
    """
    _need("openvino", "openvino")
    import openvino as ov

    config = {
        "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False,
    }  # fmt: skip
    try:
        core = ov.Core()
        request = core.compile_model(core.read_model(path), "CPU", config).create_infer_request()
        for name, value in inputs.items():
            request.set_tensor(name, ov.Tensor(np.array(value)))
        request.infer()
        raw: Any = super(type(request), request).infer
        raw({}, share_outputs=True, decode_strings=False)
    except Exception as error:  # noqa: BLE001 - nor has OpenVINO
        raise _refused("openvino", error) from None
    call = _timed(lambda: raw({}, share_outputs=True, decode_strings=False))
    return Peer("openvino", str(ov.__version__), call)


def open_litert(model: onnx.ModelProto | None, path: str, inputs: Inputs, threads: int = 1) -> Peer:
    """Load the model in LiteRT, with XNNPACK, as it is by default."""
    if model is not None:
        raise NestlingError("--vs litert: it reads TFLite files only.", hint="--vs onnxruntime")
    _need("litert", "ai-edge-litert", "ai_edge_litert")
    from ai_edge_litert.interpreter import Interpreter

    try:
        interpreter = Interpreter(path, num_threads=threads)
        details = {d["name"]: d for d in interpreter.get_input_details()}
        for name, value in inputs.items():
            if name in details and tuple(details[name]["shape"]) != value.shape:
                interpreter.resize_tensor_input(details[name]["index"], value.shape)
        interpreter.allocate_tensors()
        for name, value in inputs.items():
            if name in details:
                interpreter.set_tensor(details[name]["index"], value)
        invoke = interpreter._interpreter.Invoke
        invoke()
    except (ValueError, RuntimeError) as error:
        raise _refused("litert", error) from None
    return Peer("litert", importlib.metadata.version("ai-edge-litert"), _timed(invoke, interpreter))


def _need(name: str, package: str, module: str | None = None) -> None:
    """Raise `NestlingError` where a peer is not installed."""
    if importlib.util.find_spec(module or package) is None:
        raise NestlingError(
            f"--vs {name}: {package} is not installed.", hint=f"pip install {package}"
        )


def _refused(name: str, error: Exception) -> NestlingError:
    text = " ".join(str(error).split())[:300]
    return NestlingError(f"--vs {name}: it cannot run the model: {text}")


def _timed(call: Callable[[], Any], *keep: Any) -> Callable[[int], list[float]]:
    """Return what runs a call n times and gives the seconds of each; `keep` lives as long."""

    def timed(count: int, _: Any = keep) -> list[float]:
        clock, result = time.perf_counter_ns, []
        for _ in range(count):
            start = clock()
            call()
            result.append((clock() - start) * 1e-9)
        return result

    return timed


def compare_speed(
    ours: BuiltModel, peer: Peer, inputs: Mapping[str, Any], *, runs: int
) -> Comparison:
    """Time both in turns until each has `runs` runs; both pinned to as many cores as threads."""
    raw = b"".join(pack_inputs(ours.compiled, inputs))
    session = ours.session()

    def timed(count: int) -> list[float]:
        return [ns * 1e-9 for ns in session.run(raw, count).ns]

    with few_cores(ours.compiled.options.threads, session.process.pid):
        sides = [(timed, [0.0][:0]), (peer.time, [0.0][:0])]
        turns = []
        for run, _ in sides:
            run(1)
            seconds = min(run(3))
            turns.append(max(1, min(runs, int(ROUND_S / max(seconds, 1e-9)))))
        while any(len(times) < runs for _, times in sides):
            for (run, times), turn in zip(sides, turns, strict=True):
                if len(times) < runs:
                    # The first run of a turn finds the caches full of the other's data.
                    times.extend(run(turn + 1)[1:])
    medians = [statistics.median(times) * 1e6 for _, times in sides]
    return Comparison(
        peer.name, peer.version, medians[0], medians[1], len(sides[0][1]), len(sides[1][1])
    )


@contextmanager
def few_cores(count: int, other_pid: int) -> Iterator[None]:
    """Pin this process and another to `count` cores, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    cores = set(sorted(before)[-count:])
    try:
        os.sched_setaffinity(0, cores)
        os.sched_setaffinity(other_pid, cores)
        yield
    finally:
        os.sched_setaffinity(0, before)
        with suppress(OSError):
            os.sched_setaffinity(other_pid, before)


PEERS: Mapping[str, Callable[[onnx.ModelProto | None, str, Inputs, int], Peer]] = {
    "onnxruntime": open_onnxruntime,
    "openvino": open_openvino,
    "litert": open_litert,
}
"""What opens a model, None for a TFLite file, and its path with inputs and so many threads."""


def default_peer(model: onnx.ModelProto | None) -> str:
    """Return the name of the peer that reads a kind of file; None is TFLite."""
    return "litert" if model is None else "onnxruntime"
