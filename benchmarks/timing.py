"""Timing in turns: ours, the peers and the machine's own peak, in one process on one core.

Machines drift and neighbours come and go; what is compared lies milliseconds apart.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from toolkit.errors import NestlingError
from toolkit.pipeline import Compiled
from toolkit.toolchain.compiler import build_shared, find_compiler

Clock = Literal["wall", "cpu"]
Timed = Callable[[int], list[float]]
"""Runs something n times; returns the seconds of each."""

TURN_S = 0.02
WARM_S = 0.004
"""Below this, a turn's first run is left out: it finds the caches full of another's data."""

NATIVE_C = Path(__file__).with_name("native.c")
_PEAK_TURNS = 40_000


@dataclass(slots=True)
class Side:
    """One contestant.  `turns` holds the seconds of each run, by turn."""

    name: str
    timed: Timed
    turns: list[list[float]] = field(default_factory=list)

    @property
    def times(self) -> list[float]:
        """All runs."""
        return [t for turn in self.turns for t in turn]

    @property
    def median(self) -> float:
        """The median of all runs, in seconds."""
        return statistics.median(self.times)

    @property
    def least(self) -> float:
        """The quickest run, in seconds."""
        return min(self.times)


def interleave(sides: Sequence[Side], *, runs: int, seconds: float) -> None:
    """Let each side run in turn until all have `runs` runs, or about `seconds` are over.

    Three turns are made whatever the time.
    """
    counts = []
    for side in sides:
        side.timed(1)
        one = min(side.timed(2))
        warm = 1 if one < WARM_S else 0
        counts.append((max(1, min(runs, int(TURN_S / max(one, 1e-9)))), warm))
    end = time.monotonic() + seconds
    while any(sum(map(len, s.turns)) < runs for s in sides):
        if time.monotonic() > end and all(len(s.turns) >= 3 for s in sides):
            break
        for side, (count, warm) in zip(sides, counts, strict=True):
            side.turns.append(side.timed(count + warm)[warm:])


def ratio(ours: Side, peer: Side) -> float:
    """Return ours / peer: the median over the rounds of the quotient of the turns' medians."""
    return statistics.median(
        statistics.median(a) / statistics.median(b)
        for a, b in zip(ours.turns, peer.turns, strict=True)
    )


class Native:
    """The compiled loops of `native.c`."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock: Clock = clock
        path = build_shared(
            find_compiler(), [NATIVE_C], [], folder / "native.so", flags=("-O3", "-march=native")
        )
        self.lib = ctypes.CDLL(str(path))

    def peak(self, isa: str) -> tuple[Timed, float]:
        """Return the peak loop for an instruction set, and the operations of one of its runs.

        Of "avx512vnni", operations on bytes; of others, on float32.
        """
        lanes = {"avx512vnni": 64, "avx512": 16, "avx2": 8}.get(isa, 4)
        name = f"nb_peak_{isa}" if lanes > 4 else "nb_peak_plain"
        function = getattr(self.lib, name)
        function.restype = ctypes.c_uint64
        function.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p]
        sink = ctypes.c_float()

        def timed(count: int) -> list[float]:
            cpu = int(self.clock == "cpu")
            return [
                function(_PEAK_TURNS, cpu, ctypes.byref(sink)) * 1e-9 for _ in range(min(count, 3))
            ]

        return timed, _PEAK_TURNS * 12 * lanes * 2.0

    def model(
        self, compiled: Compiled, library: Path, inputs: Mapping[str, np.ndarray]
    ) -> NativeModel:
        """Load a built model into this process, to be timed."""
        return NativeModel(self, compiled, library, inputs)


class NativeModel:
    """A built model in this process: what crashes here was run in a child process before."""

    def __init__(
        self, native: Native, compiled: Compiled, library: Path, inputs: Mapping[str, np.ndarray]
    ) -> None:
        self.native, self.compiled = native, compiled
        self.library = ctypes.CDLL(str(library))
        program = compiled.program
        self._raw = np.zeros(compiled.arena_bytes + 64, np.uint8)
        self._arrays = [np.ascontiguousarray(inputs[n]) for n in program.inputs]
        start, count = self._raw.ctypes.data, len(self._arrays)
        self.arena = start + (-start % 64)
        to = (ctypes.c_void_p * count)(*(self.arena + program.offsets[n] for n in program.inputs))
        source = (ctypes.c_void_p * count)(*(a.ctypes.data for a in self._arrays))
        sizes = (ctypes.c_uint64 * count)(*(a.nbytes for a in self._arrays))
        self.inputs = (ctypes.c_uint32(count), to, source, sizes)

    def timed(self, runs: int) -> list[float]:
        """Run; return the seconds of each run."""
        ns = np.zeros(runs, np.uint64)
        run = ctypes.cast(getattr(self.library, f"{self.compiled.name}_run"), ctypes.c_void_p)
        cpu = int(self.native.clock == "cpu")
        status = self.native.lib.nb_time(
            run, ctypes.c_void_p(self.arena), *self.inputs, ctypes.c_uint32(runs),
            ctypes.c_int(cpu), ctypes.c_void_p(ns.ctypes.data),
        )  # fmt: skip
        if status:
            raise NestlingError(f"{self.compiled.name}_run answered status {status}.")
        return [float(t) * 1e-9 for t in ns]

    def profile(self, runs: int) -> list[float]:
        """Return the least seconds of each node; of the graph executor only."""
        count = len(self.compiled.program.steps)
        ns = np.full(count, np.iinfo(np.uint64).max, np.uint64)
        step = ctypes.cast(self.library.nst_step, ctypes.c_void_p)
        model = ctypes.c_char.in_dll(self.library, f"{self.compiled.name}_model")
        status = self.native.lib.nb_profile(
            step, ctypes.byref(model), ctypes.c_void_p(self.arena), *self.inputs,
            ctypes.c_uint32(runs), ctypes.c_int(int(self.native.clock == "cpu")),
            ctypes.c_uint32(count), ctypes.c_void_p(ns.ctypes.data),
        )  # fmt: skip
        if status:
            raise NestlingError(f"{self.compiled.name}: a step answered status {status}.")
        return [float(t) * 1e-9 for t in ns]


def timed_calls(call: Callable[[], Any], clock: Clock) -> Timed:
    """Return what times a Python callable; on the clock "cpu", threads it starts count too."""
    now = time.process_time_ns if clock == "cpu" else time.perf_counter_ns

    def timed(count: int) -> list[float]:
        result = []
        for _ in range(count):
            start = now()
            call()
            result.append((now() - start) * 1e-9)
        return result

    return timed


@contextmanager
def pinned(count: int = 1) -> Iterator[list[int]]:
    """Pin this process, and what it starts meanwhile, to its last cores; yield them."""
    if not hasattr(os, "sched_setaffinity"):
        yield []
        return
    before = os.sched_getaffinity(0)
    cores = sorted(before)[-count:]
    try:
        os.sched_setaffinity(0, cores)
        yield cores
    finally:
        os.sched_setaffinity(0, before)
