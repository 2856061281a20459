"""The child process that checks and times kernels on the host; see `toolkit.measure.child`.

Kernels are checked between pages that cannot be accessed: each operand ends where its memory ends,
and what lies before it is looked at afterwards.  They are timed in one block of memory, operands
aligned as in a model's arena, with warm caches: a layer's input was just written by the layer
before.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import mmap
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from toolkit.measure.candidates.check import Expected, first_wrong
from toolkit.measure.worker import die_with_parent, send

GUARD_BYTE = 0xA5
GUARD_BYTES = 256
ALIGN = 64
_LIBRARIES = 4
"""Libraries that stay loaded."""

SAMPLE_NS = 200_000
"""A sample is at least this long: the clock's resolution and the call cost vanish in it."""
MOST_SAMPLES = 30
FEWEST_SAMPLES = 7
PRECISION = 0.005
"""Sampling ends when the standard error of the median is this part of it."""
ALIKE = 1.1
"""Times of the yardstick that differ by more were not of one speed of the machine."""
QUIET = 1.1
"""While others use the core too, in a virtual machine by its second thread, kernels take 1.1 to 1.5
times as long, each differently, for milliseconds to seconds; a yardstick that takes so many times
what it takes at best shows it."""
FEWEST_QUIET = 3
PATIENCE_NS = 2_000_000_000
"""Most that a request waits for a core that is used by others."""
ANCHOR_NS = 300_000_000
"""How long a yardstick is looked at, to know what it takes at best."""
CONFIDENT = 0.02
"""A result whose median is known less well than this is not confident."""
LOSERS = ((2, 1.6), (4, 1.25), (7, 1.1))
"""Racing: with so many samples, one whose fastest is so many times the best median has lost.  The
fastest of several bounds from below what a noisy machine may still show."""

SHIFTS = 4096
"""Places, `ALIGN` bytes apart, among which those of compared kernels' operands are drawn: 64 pages
of 4 kB, and all sets of a cache."""

_LIBC = ctypes.CDLL(None, use_errno=True)


class Region:
    """Memory of whole pages whose last `nbytes` end before a page that cannot be accessed."""

    def __init__(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        pages = nbytes // page + 1
        self.area = mmap.mmap(-1, (pages + 1) * page)
        whole = np.frombuffer(self.area, np.uint8)
        behind = ctypes.c_void_p(whole.ctypes.data + pages * page)
        if _LIBC.mprotect(behind, ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        self.memory = whole[: pages * page]
        self.view = self.memory[pages * page - nbytes :]

    def guard(self) -> np.ndarray:
        """Return the bytes before the operand."""
        return self.memory[: self.memory.size - self.view.size]


@dataclass(frozen=True, slots=True)
class Operand:
    """What a request says of an operand, with the data to check and to time it with."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    check: np.ndarray | None
    time: np.ndarray | None

    @property
    def nbytes(self) -> int:
        """Bytes of storage."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def poison(self) -> int:
        """The byte that fills it before a run: NaN where it holds floats."""
        return 0xFF if np.dtype(self.dtype).kind == "f" else GUARD_BYTE


@dataclass(frozen=True, slots=True)
class Kernel:
    """A loaded kernel and its operands."""

    function: Any
    operands: tuple[Operand, ...]


class Worker:
    """Answers requests until stdin closes."""

    def __init__(self, timer: str) -> None:
        self.blobs: dict[str, np.ndarray] = {}
        self.libraries: dict[str, ctypes.CDLL] = {}
        self.kernels: dict[str, Kernel] = {}
        self.regions: dict[tuple[str, int], Region] = {}
        self.blocks: dict[int, np.ndarray] = {}
        self.timer = ctypes.CDLL(timer)
        self.timer.nst_trial_time.restype = ctypes.c_uint64
        self.timer.nst_trial_time.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p,
        ]  # fmt: skip
        self.timer.nst_trial_canary.restype = ctypes.c_uint64
        self.preempted = ctypes.c_int32()
        self.shift = 0
        self.patience_ns, self.waited_ns = PATIENCE_NS, 0
        self.least: dict[str, float] = {}
        """What the yardstick of a task takes at best, in nanoseconds, by what was seen here."""

    # Requests

    def answer(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        """Do what a request asks; return the reply and its data."""
        match request["op"]:
            case "put":
                self.blobs[request["key"]] = from_bytes(data, request["dtype"], request["shape"])
                return {}, b""
            case "drop":
                for key in request["keys"]:
                    del self.blobs[key]
                return {}, b""
            case "load":
                return self.load(request), b""
            case "run":
                ns, outputs, _ = self.run(self.kernels[request["id"]])
                return {"ns": ns}, b"".join(o.tobytes() for o in outputs.values())
            case "check":
                return self.check(request), b""
            case "time":
                return self.time(request), b""
            case "compare":
                return {"samples": self.compare(request)}, b""
            case "canary":
                return {"ns": self.canary(request["count"])}, b""
            case "machine":
                return self.machine(request), b""
            case op:
                raise ValueError(op)

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load a kernel under an id; only the kernels of this request stay loaded by id."""
        path = request["library"]
        library = self.libraries.pop(path, None)
        if library is None:
            try:
                library = ctypes.CDLL(path)
            except OSError as error:
                return {"error": str(error)}
        self.libraries[path] = library
        while len(self.libraries) > max(_LIBRARIES, len(self.kernels) + 1):
            oldest = next(iter(self.libraries))
            _close(self.libraries.pop(oldest))
        if request["fresh"]:
            self.kernels.clear()
        operands = tuple(
            Operand(
                o["name"], o["role"], o["dtype"], tuple(o["shape"]),
                self.blobs[o["check"]] if "check" in o else None,
                self.blobs[o["time"]] if "time" in o else None,
            )
            for o in request["operands"]
        )  # fmt: skip
        self.kernels[request["id"]] = Kernel(library[request["entry"]], operands)
        return {}

    # Checking

    def run(self, kernel: Kernel) -> tuple[int, dict[str, np.ndarray], str]:
        """Run a kernel once between guards; return its time, its outputs, and what it spoiled."""
        used = []
        for position, operand in enumerate(kernel.operands):
            key = (f"{position}", operand.nbytes)
            if key not in self.regions:
                if len(self.regions) > 64:
                    self.regions.clear()
                self.regions[key] = Region(operand.nbytes)
            region = self.regions[key]
            region.guard()[-GUARD_BYTES * 16 :] = GUARD_BYTE
            if operand.check is not None:
                region.view[:] = as_bytes(operand.check)
            else:
                region.view[:] = operand.poison()
            used.append(region)
        ns = self.once(kernel, [r.view.ctypes.data for r in used], 1)
        outputs: dict[str, np.ndarray] = {}
        spoiled = ""
        for operand, region in zip(kernel.operands, used, strict=True):
            if not np.all(region.guard()[-GUARD_BYTES * 16 :] == GUARD_BYTE):
                spoiled = f"wrote before {operand.role} {operand.name!r}"
            if operand.check is not None and not np.array_equal(
                region.view, as_bytes(operand.check)
            ):
                spoiled = f"wrote into its {operand.role} {operand.name!r}"
            if operand.role == "output":
                outputs[operand.name] = from_bytes(
                    region.view.tobytes(), operand.dtype, operand.shape
                )
        return ns, outputs, spoiled

    def check(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a kernel once and compare; the reply names what is wrong first, '' for nothing."""
        kernel = self.kernels[request["id"]]
        ns, outputs, wrong = self.run(kernel)
        for name, output in outputs.items():
            key = request["expected"][name]
            want = Expected(name, self.blobs[f"{key}/value"], self.blobs[f"{key}/tolerance"])
            if not wrong and (found := first_wrong(output, want)):
                wrong = found
        return {"ns": ns, "wrong": wrong}

    # Timing

    def once(self, kernel: Kernel, addresses: Sequence[int], runs: int) -> int:
        """Call a kernel; return the nanoseconds of all runs."""
        pointers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        ns: int = self.timer.nst_trial_time(
            kernel.function, pointers, runs, ctypes.byref(self.preempted)
        )
        return ns

    def place(self, kernel: Kernel, slot: int) -> list[int]:
        """Lay out a kernel's operands in block `slot`; return their addresses."""
        offsets, end = [], GUARD_BYTES
        for operand in kernel.operands:
            offsets.append(end)
            end += operand.nbytes + GUARD_BYTES
            end += -end % ALIGN
        room = end + SHIFTS * ALIGN
        if slot not in self.blocks or self.blocks[slot].size < room:
            self.blocks[slot] = np.frombuffer(mmap.mmap(-1, 2 * room), np.uint8)
        block = self.blocks[slot][self.shift :]
        for offset, operand in zip(offsets, kernel.operands, strict=True):
            part = block[offset : offset + operand.nbytes]
            if operand.time is not None:
                part[:] = as_bytes(operand.time)
            else:
                part[:] = 0
        return [block.ctypes.data + offset for offset in offsets]

    def canary(self, count: int) -> int:
        """Return the median time of the canary."""
        return int(statistics.median(self.timer.nst_trial_canary() for _ in range(count)))

    def sample(self, kernel: Kernel, addresses: Sequence[int], runs: int) -> float:
        """Return nanoseconds a run; a sample during which the system took the core is repeated."""
        ns = self.once(kernel, addresses, runs)
        for _ in range(3):
            if not self.preempted.value:
                break
            ns = min(ns, self.once(kernel, addresses, runs))
        return ns / runs

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Time a kernel until its median is known, the time is up, or it has lost against the best.

        Between the samples a yardstick is timed, the kernel `anchor`, or this one where there is
        none yet; it stays where it is.  Samples and `best_ns` are those of a machine on which the
        anchor takes `anchor_ns`, or the canary `canary_ns`; those taken while the core was shared
        (`QUIET`) are left out, if others are left.  A kernel that runs several times in a sample
        lies elsewhere in each (`compare` tells why), and every candidate in the same places.
        """
        kernel, best = self.kernels[request["id"]], request["best_ns"]
        if request["anchor"] is None:
            anchor, usual = kernel, self.at_best(kernel, request["canary_ns"])
        else:
            anchor, usual = self.kernels[request["anchor"]], request["anchor_ns"]
        addresses, runs, ns = self.ready(kernel, 0)
        left = request["budget_ns"] - ns * 2
        yardstick = partial(self.sample, anchor, *self.ready(anchor, 1)[:2])
        at_best = min(usual, self.least.get(request["task"], usual))
        taken: list[float] = []
        paces: list[float] = []
        samples, quiet = taken, []
        before, lost = yardstick(), False
        places = random.Random(0)
        while len(taken) < MOST_SAMPLES and (left > 0 or len(taken) < 3) and not lost:
            before = self.settled(yardstick, at_best, before)
            start = time.perf_counter_ns()
            if runs > 1:
                addresses, runs = self.moved(kernel, places)
            sample = self.sample(kernel, addresses, runs)
            after = yardstick()
            paces.append(pace(before, after))
            taken.append(sample * usual / paces[-1])
            if max(before, after) < QUIET * at_best:
                quiet.append(taken[-1])
            samples = quiet if len(quiet) >= FEWEST_QUIET else taken
            before = after
            left -= time.perf_counter_ns() - start
            if best is not None:
                factor = min((f for n, f in LOSERS if n <= len(samples)), default=math.inf)
                lost = min(samples) > factor * best
            if len(samples) >= FEWEST_SAMPLES and spread(samples) < PRECISION:
                break
        self.calmed(quiet=bool(quiet))
        if len(paces) >= FEWEST_SAMPLES:  # the anchor was known too little, or the machine was slow
            self.least[request["task"]] = min(at_best, statistics.median(paces))
        confident = not lost and spread(samples) < CONFIDENT
        return {"samples": samples, "lost": lost, "confident": confident, "anchor_ns": usual}

    def settled(self, yardstick: Callable[[], float], usual: float, now: float) -> float:
        """Wait until the yardstick, which takes `now`, is as fast as `usual`, or the patience of
        this request is used up; return what it takes then."""
        start = time.perf_counter_ns()
        while now >= QUIET * usual:
            if self.waited_ns + time.perf_counter_ns() - start >= self.patience_ns:
                break
            now = yardstick()
        self.waited_ns += time.perf_counter_ns() - start
        return now

    def calmed(self, *, quiet: bool) -> None:
        """End the waiting of a request.  A core that was quiet for a sample is waited for in full
        again; one that was waited for in vain, half as long the next time."""
        if quiet:
            self.patience_ns = PATIENCE_NS
        elif self.waited_ns >= self.patience_ns:
            self.patience_ns //= 2
        self.waited_ns = 0

    def at_best(self, kernel: Kernel, canary_ns: float) -> float:
        """Return the nanoseconds of a kernel in the place of a yardstick, while nothing else uses
        the core of a machine on which the canary takes `canary_ns`."""
        addresses, runs, _ = self.ready(kernel, 1)
        end = time.perf_counter_ns() + ANCHOR_NS
        times: list[float] = []
        before = self.timer.nst_trial_canary()
        while len(times) < 3 or time.perf_counter_ns() < end:
            sample = self.sample(kernel, addresses, runs)
            after = self.timer.nst_trial_canary()
            times.append(sample * canary_ns / pace(before, after))
            before = after
        least = statistics.quantiles(times, n=20)[0]
        return statistics.median(t for t in times if t <= QUIET * least)

    def ready(self, kernel: Kernel, slot: int) -> tuple[list[int], int, int]:
        """Bring a kernel's operands into memory and the caches; return their addresses, the runs of
        a sample, and the nanoseconds of one."""
        addresses = self.place(kernel, slot)
        self.once(kernel, addresses, 1)
        ns = self.once(kernel, addresses, 1)
        return addresses, max(1, math.ceil(SAMPLE_NS / max(ns, 1))), ns

    def moved(self, kernel: Kernel, places: random.Random) -> tuple[list[int], int]:
        """Bring a kernel's operands to a new place in memory, and there into the caches; return
        their addresses, and the runs of a sample."""
        self.shift = places.randrange(SHIFTS) * ALIGN
        addresses, runs, _ = self.ready(kernel, 0)
        self.shift = 0
        return addresses, runs

    def compare(self, request: dict[str, Any]) -> list[list[float]]:
        """Time kernels by turns; return one row of samples a round.

        Each round has a new order and new places in memory: where operands lie in pages and cache
        sets makes equal kernels differ by percents, which must not be taken for a difference.
        Rounds begin when the core is not shared (`QUIET`), which the first kernel tells; those in
        which it was all the same are made up for by others, as many again at most.
        """
        rng = random.Random(request["seed"])
        kernels = [self.kernels[i] for i in request["ids"]]
        wanted = request["rounds"]
        usual = request["anchor_ns"]
        if usual is None:
            usual = self.at_best(kernels[0], self.canary(FEWEST_SAMPLES))
        usual = min(usual, self.least.get(request["task"], usual))
        yardstick = partial(self.sample, kernels[0], *self.ready(kernels[0], 1)[:2])
        rows: list[list[float]] = []
        quiet: list[list[float]] = []
        now = yardstick()
        while len(quiet) < wanted and len(rows) < 2 * wanted:
            before = self.settled(yardstick, usual, now)
            row = [0.0] * len(kernels)
            for i in rng.sample(range(len(kernels)), len(kernels)):
                row[i] = self.sample(kernels[i], *self.moved(kernels[i], rng))
            now = yardstick()
            rows.append(row)
            if max(before, now) < QUIET * usual:
                quiet.append(row)
        self.calmed(quiet=bool(quiet))
        return quiet if len(quiet) >= min(FEWEST_SAMPLES, wanted) else rows[:wanted]

    def machine(self, request: dict[str, Any]) -> dict[str, Any]:
        """Time the kernels of nst_machine.c; return the nanoseconds of a run of each, at best."""
        library = ctypes.CDLL(request["library"])

        def at_best(function: Any, *arrays: np.ndarray) -> float:
            kernel = Kernel(function, ())
            addresses = [a.ctypes.data for a in arrays]
            self.once(kernel, addresses, 1)
            runs = math.ceil(SAMPLE_NS / max(self.once(kernel, addresses, 1), 1))
            fastest = min(self.sample(kernel, addresses, runs) for _ in range(MOST_SAMPLES))
            return float(fastest * request["canary_ns"] / self.canary(FEWEST_SAMPLES))

        numbers = np.array([0.999, 0.001, 0.0], np.float32)
        read_ns = {}
        for level, size in request["sizes"].items():
            data = np.frombuffer(mmap.mmap(-1, size), np.uint8)
            data[:] = 0  # pages that were never written are all one page
            room = np.zeros(2, np.uint64)
            room[0] = size
            read_ns[level] = at_best(library.nst_machine_read, data, room)
        return {"fma_ns": at_best(library.nst_machine_fma, numbers), "read_ns": read_ns}


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return a view of an array's bytes."""
    return array.reshape(-1).view(np.uint8)


def from_bytes(data: bytes, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """Return an array of raw bytes."""
    flat = np.frombuffer(data, dtype) if data else np.empty(0, dtype)
    return flat.reshape(shape)


def pace(before: float, after: float) -> float:
    """Return the time of the yardstick for a sample, of those before and after it.

    One that lasted longer than the other was interrupted: no measure of the machine's speed, and it
    would make two samples in a row look too fast.
    """
    least, most = sorted((before, after))
    return (before + after) / 2 if most <= ALIKE * least else least


def spread(samples: Sequence[float]) -> float:
    """Return the standard error of the median as a part of it, from the median deviation.

    1.4826 turns a median deviation into a standard deviation, 1.2533 = sqrt(pi/2) a mean's error
    into a median's; both for a normal distribution.
    """
    middle = statistics.median(samples)
    deviation = statistics.median(abs(s - middle) for s in samples)
    return 1.4826 * 1.2533 * deviation / math.sqrt(len(samples)) / max(middle, 1e-9)


def _close(library: ctypes.CDLL) -> None:
    _LIBC.dlclose(ctypes.c_void_p(library._handle))


def main() -> None:
    """Serve requests; arguments: the timer's library, and the core to stay on or -1."""
    die_with_parent()
    timer, core = sys.argv[1], int(sys.argv[2])
    if core >= 0:
        os.sched_setaffinity(0, {core})
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    gc.disable()
    worker = Worker(timer)
    send(out, {})
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        data = sys.stdin.buffer.read(request["bytes"])
        with np.errstate(all="ignore"):
            reply, answer = worker.answer(request, data)
        send(out, reply, answer)
