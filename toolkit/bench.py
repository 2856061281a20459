"""Timing a model beside another runtime: interleaved, with one thread on one core, or several.

Machines drift; what is compared is two medians of the same seconds.
"""

from __future__ import annotations

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
from toolkit.oracle import has_onnxruntime, onnxruntime_session
from toolkit.runners import BuiltModel, pack_inputs

ROUND_S = 0.02
"""Time of one turn: long enough to warm the caches, short enough that drift hits both alike."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another runtime with the model loaded: `time` runs it n times and returns seconds each."""

    name: str
    version: str
    outputs: Mapping[str, np.ndarray]
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
    model: onnx.ModelProto, path: str | None, inputs: Mapping[str, np.ndarray], threads: int = 1
) -> Peer:
    """Load the model in onnxruntime with all optimisation; inputs and outputs bound.

    Timed is the raw binding: onnxruntime's public Python call adds up to 25 us of its own.
    """
    if not has_onnxruntime():
        raise NestlingError(
            "--vs onnxruntime: onnxruntime is not installed.", hint="pip install onnxruntime"
        )
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
        text = " ".join(str(error).split())[:300]
        raise NestlingError(f"--vs onnxruntime: it cannot run the model: {text}") from None

    def timed(count: int) -> list[float]:
        clock, result = time.perf_counter_ns, []
        for _ in range(count):
            start = clock()
            run(raw, None)
            result.append((clock() - start) * 1e-9)
        return result

    outputs = {n: np.asarray(v) for n, v in zip(names, first, strict=True)}
    return Peer("onnxruntime", ort.__version__, outputs, timed)


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


PEERS: Mapping[
    str, Callable[[onnx.ModelProto, str | None, Mapping[str, np.ndarray], int], Peer]
] = {
    "onnxruntime": open_onnxruntime,
}
