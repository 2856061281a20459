"""`HostMeasurer`: candidates built and measured on this machine.

Files of kernels are printed and compiled by threads while a child process, on a core of its own,
checks and times what was built before.  What crashes or hangs costs that process and its candidate;
the next one starts a new process.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import statistics
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from toolkit.codegen.collector import paused_collector
from toolkit.errors import MeasureError
from toolkit.measure.candidates.builder import Builder, Built, code_bytes, Refused
from toolkit.measure.candidates.check import expected
from toolkit.measure.candidates.compare import Comparison, comparisons
from toolkit.measure.candidates.data import (
    flash_bytes,
    is_exact,
    operand_value,
    ram_bytes,
    task_data,
    TaskState,
    widen,
)
from toolkit.measure.candidates.failure import keep_failure
from toolkit.measure.candidates.machine import buffer_sizes, fma_flops, Machine, vector_bytes
from toolkit.measure.candidates.source import (
    Alter,
    Operand,
    print_candidate,
    print_trial,
    Printed,
    Unfit,
)
from toolkit.measure.child import Child, ChildDied, ChildSilent
from toolkit.measure.closing import Closing
from toolkit.paths import RUNTIME_C
from toolkit.search.result import MeasureResult, SECONDS, Status
from toolkit.space.task import Candidate, Task
from toolkit.targets.target import Target
from toolkit.toolchain.compiler import build_shared, Compiler, find_compiler

UNIT_SIZE = 16
"""Most candidates in one C file."""

_BLOB_BYTES = 512 << 20
"""Operands that the child keeps."""

_PACKAGE = Path(__file__).resolve().parents[3]
_START = (
    f"import sys; sys.path.insert(0, {str(_PACKAGE)!r}); "
    "from toolkit.measure.candidates.worker import main; main()"
)

_Result = TypeVar("_Result")


def unit_sizes(count: int, jobs: int) -> list[int]:
    """Return into how many kernels a file `count` candidates are divided, for `jobs` compilers.

    The first files are small, so that compilers soon have work; the last ones too, so that all
    compilers end at about the same time.
    """
    sizes: list[int] = []
    while count:
        share = max(math.ceil(count / (2 * jobs)), 2)
        sizes.append(min(UNIT_SIZE, 4 * (len(sizes) + 1), share, count))
        count -= sizes[-1]
    return sizes


@dataclass(frozen=True, slots=True)
class _Made:
    """One candidate on its way: printed and built, or a result already."""

    candidate: Candidate
    printed: Printed | None
    built: Built | None
    failed: MeasureResult | None
    code_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Ready:
    """A candidate that was checked: its id in the child process, and the time of a run."""

    made: _Made
    state: TaskState
    id: str
    ns: float


class HostMeasurer(Closing):
    """Builds, checks and times candidates of `target` here; implements `search.result.Measurer`.

    `jobs`: compilers at a time.  `cache_dir`: keeps libraries, and what reproduces
    failures.  `timeout_s`: most that one run of any candidate may take; it is lower once a time
    of the task is known.  `budget_s`: time spent on samples of one candidate.  `core`: where to
    measure; None for the last one this process may use.  `alter`: changes the C text of every
    candidate, to test what happens then.

    Times are those of warm caches: a layer's input was written by the layer before.  They are
    scaled to the speed the machine had when the first candidate of the task was measured: that one
    is timed again between the samples of every other.  The first is scaled by a canary, a fixed
    piece of arithmetic, to the speed when the measurer started.
    """

    unit = SECONDS

    def __init__(
        self,
        target: Target,
        *,
        cache_dir: Path,
        jobs: int = 2,
        timeout_s: float = 10.0,
        budget_s: float = 0.05,
        seed: int = 0,
        compiler: Compiler | None = None,
        cflags: Sequence[str] = ("-O3",),
        core: int | None = None,
        alter: Alter | None = None,
    ) -> None:
        self.target, self.timeout_s, self.budget_s, self.seed = target, timeout_s, budget_s, seed
        self.alter = alter
        self.compiler = compiler or find_compiler()
        self.builder = Builder(self.compiler, (*target.cflags, *cflags), cache_dir.resolve())
        self.jobs = max(jobs, 1)
        self.cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.core = core if core is not None else (self.cores[-1] if len(self.cores) > 1 else -1)
        # One more than compilers: it prints what they compile next.
        self.pool = ThreadPoolExecutor(self.jobs + 1, thread_name_prefix="build")
        self.printing = threading.Lock()
        self.tasks: dict[str, TaskState] = {}
        self.child: Child | None = None
        self.sent: OrderedDict[str, int] = OrderedDict()
        self.canary_ns: int | None = None
        self.anchors: dict[str, _Ready] = {}
        self.overlap = len(self.cores) > 2
        """Build while measuring.  Of two cores both do better to build, and then one to measure."""

    def close(self) -> None:
        """End the child process and the threads."""
        self._end_child()
        self.pool.shutdown(cancel_futures=True)

    # The measurer's two questions

    def measure(self, candidates: Sequence[Candidate]) -> list[MeasureResult]:
        """Return one result a candidate, in order."""
        results: list[MeasureResult] = []
        with self._off_core():
            for made in self._made(candidates):
                if made.failed is not None:
                    results.append(made.failed)
                    continue
                state = self.state(made.candidate.task)
                results.append(self._trial(state, made))
        return results

    def compare(
        self, candidates: Sequence[Candidate], *, rounds: int = 41, confidence: float = 0.95
    ) -> list[Comparison]:
        """Time candidates by turns and compare each with the first; all are checked before.

        They may be of different tasks.  A round is one sample of each, in random order, and one
        ratio; the bounds are order statistics of the ratios.
        """
        failed: dict[int, MeasureResult] = {}
        ready: list[_Ready] = []
        with self._off_core():
            for index, made in enumerate(list(self._made(candidates))):
                if made.failed is not None:
                    failed[index] = made.failed
                    continue
                state = self.state(made.candidate.task)
                done = self._guarded(state, made, partial(self._check, state, made))
                if isinstance(done, MeasureResult):
                    failed[index] = done
                elif done[0] is not None:
                    failed[index] = done[0]
                else:
                    ready.append(_Ready(made, state, f"c{index}", done[1]))
            rows = self._compare_rows(ready, rounds) if ready else []
        return comparisons(candidates, failed, rows, confidence)

    def _compare_rows(self, ready: Sequence[_Ready], rounds: int) -> list[list[float]]:
        """Time kernels by turns; return one row of seconds a round."""
        for one in ready:
            self._load(one.state, one.made, one.id, fresh=one is ready[0])
        round_s = sum(max(one.ns, 1e6) for one in ready) * 4e-9
        first = ready[0].made.candidate
        anchor = self.anchors.get(first.task.key)
        known = anchor is not None and anchor.made.candidate.key == first.key
        request = {
            "op": "compare", "ids": [one.id for one in ready], "rounds": rounds, "seed": self.seed,
            # What the first takes at best; of another kernel nothing is known.
            "task": first.task.key if known else "",
            "anchor_ns": anchor.ns if anchor is not None and known else None,
        }  # fmt: skip
        try:
            reply = self._ask(request, timeout_s=10.0 + 10 * round_s * (rounds + 2))
        except (ChildDied, ChildSilent) as error:
            self._end_child()
            raise MeasureError(f"comparing kernels that ran before failed: {error}.") from None
        return [[ns * 1e-9 for ns in row] for row in reply["samples"]]

    # Building

    def _made(self, candidates: Sequence[Candidate]) -> Iterator[_Made]:
        """Print and compile ahead; yield candidates in order as they become ready."""
        ends = list(itertools.accumulate(unit_sizes(len(candidates), self.jobs)))
        groups = [candidates[a:b] for a, b in itertools.pairwise([0, *ends])]
        futures: list[Future[list[_Made]]] = [self.pool.submit(self._make, g) for g in groups]
        try:
            for candidate in candidates:  # references are made while candidates are built
                self.state(candidate.task)
            if not self.overlap:
                wait(futures)
            for future in futures:
                yield from future.result()
        finally:
            for future in futures:
                future.cancel()

    def _make(self, group: Sequence[Candidate]) -> list[_Made]:
        self._keep_off(self.overlap)
        printed: dict[int, Printed] = {}
        failed: dict[int, MeasureResult] = {}
        with self.printing:  # one file after the other, so that the first is soon complete
            self._print(group, printed, failed)
        built = dict(zip(printed, self.builder.build(list(printed.values())), strict=True))
        return self._collect(group, printed, built, failed)

    def _print(
        self,
        group: Sequence[Candidate],
        printed: dict[int, Printed],
        failed: dict[int, MeasureResult],
    ) -> None:
        """Print candidates, by their position in `group`; those that are refused fail."""
        with paused_collector():
            for i, candidate in enumerate(group):
                try:
                    printed[i] = print_candidate(candidate, self.target.isa, self.alter)
                except Unfit as refusal:
                    failed[i] = self._result(refusal.status, refusal.detail)

    def _collect(
        self,
        group: Sequence[Candidate],
        printed: Mapping[int, Printed],
        built: Mapping[int, Built | Refused],
        failed: dict[int, MeasureResult],
    ) -> list[_Made]:
        """Return what became of each candidate of a file."""
        sizes: dict[Path, dict[str, int]] = {}
        results = []
        for i, candidate in enumerate(group):
            one = built.get(i)
            if isinstance(one, Refused):
                detail = f"does not compile: {one.why}; reproduce: {one.command}"
                failed[i] = self._result(Status.BUILD_FAILED, detail)
            if i in failed or not isinstance(one, Built):
                results.append(_Made(candidate, None, None, failed[i]))
                continue
            if one.library not in sizes:
                sizes[one.library] = code_bytes(one.library)
            code = sizes[one.library].get(one.entry, 0)
            results.append(_Made(candidate, printed[i], one, None, code))
        return results

    def _result(self, status: Status, detail: str) -> MeasureResult:
        return MeasureResult(status, self.unit, detail=detail, device=self.target.name)

    # References

    def state(self, task: Task) -> TaskState:
        """Return a task's operands and expected outputs, computing them when first asked."""
        if task.key not in self.tasks:
            state = self._reference(task, positive=False)
            odd = sum(np.count_nonzero(~np.isfinite(e.value)) for e in state.expected
                      if e.value.dtype.kind == "f")  # fmt: skip
            if odd > 0.1 * sum(e.value.size for e in state.expected):
                state = self._reference(task, positive=True)
            self.tasks[task.key] = state
        return self.tasks[task.key]

    def _reference(self, task: Task, *, positive: bool) -> TaskState:
        data = task_data(task.func, self.seed, positive=positive)
        wide, narrow = widen(task.func), task.func
        answers: list[list[np.ndarray]] = []
        spent = 0.0
        for func in (wide, narrow):
            printed = print_trial(func)
            (built,) = self.builder.build([printed])
            if isinstance(built, Refused):
                raise MeasureError(
                    f"task {task.name}: its reference does not compile: {built.why}",
                    state=[built.command],
                )
            values = {b.name: data.check[b.name].astype(b.dtype) for b in func.inputs}
            try:
                outputs, ns = self._run_reference(printed, built, values)
            except (ChildDied, ChildSilent) as error:
                self._end_child()
                raise MeasureError(f"task {task.name}: its reference fails: {error}") from None
            answers.append(outputs)
            spent = ns * 1e-9
        exact = is_exact(task.func)
        wanted = tuple(
            expected(w, n, b.name, exact=exact)
            for w, n, b in zip(*answers, task.func.outputs, strict=True)
        )
        return TaskState(task, data, wanted, spent)

    def _run_reference(
        self, printed: Printed, built: Built, values: Mapping[str, np.ndarray]
    ) -> tuple[list[np.ndarray], int]:
        operands = []
        for o in printed.operands:
            entry = self._operand(o)
            if o.name in values:
                key = f"reference/{o.name}/{o.type.dtype}"
                self._put(key, values[o.name], again=True)
                entry["check"] = key
            operands.append(entry)
        self._ask({"op": "load", "id": "reference", "library": str(built.library), "fresh": True,
                   "entry": built.entry, "operands": operands})  # fmt: skip
        reply, raw = self._exchange({"op": "run", "id": "reference"}, timeout_s=120.0)
        outputs, at = [], 0
        for o in printed.operands:
            if o.role == "output":
                part = np.frombuffer(raw[at : at + o.type.nbytes], o.type.dtype)
                outputs.append(part.reshape(o.type.shape))
                at += o.type.nbytes
        return outputs, int(reply["ns"])

    # One trial

    def limit_s(self, state: TaskState) -> float:
        """Return what one run of a candidate may take.

        A candidate as slow as ten times the plain loops of the reference is of no use, nor one as
        slow as a hundred times the best; half a second is left for a busy machine.
        """
        limit = 10.0 * state.reference_s
        if state.best is not None:
            limit = min(limit, 100.0 * state.best)
        return min(max(limit, 0.5), self.timeout_s)

    def _trial(self, state: TaskState, made: _Made) -> MeasureResult:
        """Check a candidate, then time it."""

        def attempt() -> MeasureResult:
            failed, ns = self._check(state, made)
            return failed or self._time(state, made, ns)

        return self._guarded(state, made, attempt)

    def _guarded(
        self, state: TaskState, made: _Made, attempt: Callable[[], _Result]
    ) -> _Result | MeasureResult:
        """Let the child process try a candidate; say how the candidate ended it."""
        for again in (True, False):
            try:
                return attempt()
            except ChildSilent:
                status = Status.TIMED_OUT
                detail = f"did not end within {self.limit_s(state):.3g} s"
            except ChildDied as end:
                if end.code == -signal.SIGKILL and again:
                    continue  # somebody else's doing
                how = end.signal or f"exit code {end.code} {' '.join(end.stderr)}"
                status, detail = Status.CRASHED, f"crashed with {how}"
            break
        self._end_child()
        return self._shown(status, detail, state, made)

    def _time(self, state: TaskState, made: _Made, ns: float) -> MeasureResult:
        """Time the loaded kernel, whose cold run took `ns`."""
        assert made.printed is not None
        anchor = self.anchors.get(state.task.key)
        if anchor is not None:
            self._load(state, anchor.made, "anchor", fresh=False)
        request = {
            "op": "time", "id": "trial", "task": state.task.key,
            "budget_ns": int(self.budget_s * 1e9),
            "anchor": None if anchor is None else "anchor",
            "anchor_ns": None if anchor is None else anchor.ns, "canary_ns": self._canary(),
            "best_ns": None if state.best is None else state.best * 1e9,
        }  # fmt: skip
        run_s = (ns + (0.0 if anchor is None else anchor.ns)) * 1e-9
        reply = self._ask(request, timeout_s=5.0 + 10 * self.budget_s + 40 * run_s)
        samples = tuple(s * 1e-9 for s in reply["samples"])
        cost = statistics.median(samples)
        if anchor is None:
            self.anchors[state.task.key] = _Ready(made, state, "anchor", reply["anchor_ns"])
        if not reply["lost"]:
            state.best = cost if state.best is None else min(state.best, cost)
        return MeasureResult(
            Status.OK, self.unit, samples, flash_bytes(made.printed, made.code_bytes),
            ram_bytes(made.candidate, made.printed),
            device=self.target.name, confident=reply["confident"],
        )  # fmt: skip

    def _check(
        self, state: TaskState, made: _Made, name: str = "trial"
    ) -> tuple[MeasureResult | None, float]:
        """Load a kernel and check it; return what is wrong, and the time of its cold run in ns."""
        self._load(state, made, name, fresh=True)
        keys = {e.name: self._key(state, e.name) for e in state.expected}
        reply = self._ask(
            {"op": "check", "id": name, "expected": keys}, timeout_s=self.limit_s(state)
        )
        if reply["wrong"]:
            return self._shown(Status.WRONG_RESULT, reply["wrong"], state, made), 0.0
        return None, float(reply["ns"])

    def _shown(self, status: Status, detail: str, state: TaskState, made: _Made) -> MeasureResult:
        """Return a failure with the command that shows it."""
        shown = self.reproduce(state, made.candidate, made.printed)
        return self._result(status, f"{detail}; reproduce: {shown}")

    def reproduce(self, state: TaskState, candidate: Candidate, printed: Printed | None) -> str:
        """Keep a program that shows a failure; return the command that runs it."""
        assert printed is not None
        return keep_failure(self.builder, state, candidate, printed)

    # The child process

    def _key(self, state: TaskState, name: str, layout: str = "") -> str:
        return f"{state.task.key}/{name}/{layout}"

    @staticmethod
    def _operand(o: Operand) -> dict[str, Any]:
        return {"name": o.name, "role": o.role, "dtype": o.type.dtype, "shape": list(o.type.shape)}

    def _load(self, state: TaskState, made: _Made, name: str, *, fresh: bool) -> None:
        """Bring a kernel and its operands into the child process."""
        self._running()  # a new one has none of them
        assert made.printed is not None
        assert made.built is not None
        operands = []
        for o in made.printed.operands:
            entry = self._operand(o)
            for use, values in (("check", state.data.check), ("time", state.data.time)):
                if o.role not in ("input", "const"):
                    continue
                key = self._key(state, o.name, o.layout)
                if values[o.name] is not state.data.check[o.name]:
                    key += "/" + use
                if key not in self.sent:
                    value = operand_value(made.candidate, o, values)
                    assert value is not None
                    assert value.shape == o.type.shape, o
                    self._put(key, value)
                entry[use] = key
            operands.append(entry)
        for want in state.expected:
            key = self._key(state, want.name)
            if f"{key}/value" not in self.sent:
                self._put(f"{key}/value", want.value)
                self._put(f"{key}/tolerance", want.tolerance)
        request = {
            "op": "load", "id": name, "library": str(made.built.library),
            "entry": made.built.entry, "operands": operands, "fresh": fresh,
        }  # fmt: skip
        reply = self._ask(request)
        if "error" in reply:  # somebody tidied the cache
            (built,) = self.builder.build([made.printed])
            if isinstance(built, Built):
                reply = self._ask({**request, "library": str(built.library)})
        if "error" in reply:
            raise MeasureError(f"a library of the cache cannot be loaded: {reply['error']}")

    def _put(self, key: str, value: np.ndarray, *, again: bool = False) -> None:
        self._running()
        if key in self.sent and not again:
            return
        self._ask_raw(
            {"op": "put", "key": key, "dtype": str(value.dtype), "shape": list(value.shape)},
            value.tobytes(),
        )
        self.sent[key] = value.nbytes
        self.sent.move_to_end(key)

    def _trim(self) -> None:
        """Let the child forget the operands that were not sent lately."""
        total = sum(self.sent.values())
        gone = []
        while total > _BLOB_BYTES and len(self.sent) > 1:
            key, size = self.sent.popitem(last=False)
            total -= size
            gone.append(key)
        if gone:
            self._ask({"op": "drop", "keys": gone})

    def _canary(self) -> int:
        """Return the canary's time when this measurer began, in nanoseconds."""
        if self.canary_ns is None:
            self.canary_ns = self._ask({"op": "canary", "count": 101})["ns"]
        return self.canary_ns

    def _ask(self, request: dict[str, Any], *, timeout_s: float = 60.0) -> dict[str, Any]:
        return self._exchange(request, timeout_s=timeout_s)[0]

    def _ask_raw(self, request: dict[str, Any], data: bytes) -> None:
        self._running().ask(request, data, timeout_s=60.0)

    def _exchange(
        self, request: dict[str, Any], *, timeout_s: float
    ) -> tuple[dict[str, Any], bytes]:
        return self._running().ask(request, timeout_s=timeout_s)

    def machine(self) -> Machine | None:
        """Measure what the core can do at best with the target's vectors; None where that fails."""
        library = self._port_library(
            "nst_machine", f"-DNST_MACHINE_BYTES={vector_bytes(self.target)}"
        )
        sizes = buffer_sizes(self.target)
        request = {
            "op": "machine", "library": str(library), "sizes": sizes, "canary_ns": self._canary(),
        }  # fmt: skip
        try:
            reply = self._ask(request)
        except (ChildDied, ChildSilent):  # no memory for the buffers: tuning goes on without
            self._end_child()
            return None
        return Machine(
            1e9 * fma_flops(self.target) / reply["fma_ns"],
            {level: 1e9 * sizes[level] / ns for level, ns in reply["read_ns"].items()},
        )

    def _running(self) -> Child:
        """Return the child process, started when there is none."""
        if self.child is None or not self.child.alive():
            self._end_child()
            self.child = Child([sys.executable, "-I", "-c", _START, str(self._timer()),
                                str(self.core)])  # fmt: skip
            try:
                self.child.receive(60.0)
            except (ChildDied, ChildSilent) as error:
                raise MeasureError(f"the process that measures does not start: {error}") from None
        return self.child

    def _end_child(self) -> None:
        if self.child is not None:
            self.child.close()
        self.child = None
        self.sent.clear()

    def _timer(self) -> Path:
        """Build the timer, or find it built."""
        return self._port_library("nst_trial")

    def _port_library(self, name: str, *defines: str) -> Path:
        """Build a C file of the host's port for the target, or find it built."""
        port = RUNTIME_C / "port" / "host"
        source = port / f"{name}.c"
        key = self.builder.key(" ".join([source.read_text(encoding="utf-8"), *defines]))
        library = self.builder.folder / "headers" / f"{name}-{key}.so"
        if not library.exists():
            with self.builder.working() as work:
                # Standard C99 would keep multiply and add apart.
                flags = ("-O3", "-ffp-contract=fast", *self.target.cflags, *defines)
                made = build_shared(self.compiler, [source], [port], work / "t.so", flags=flags)
                made.replace(library)
        return library

    # Cores

    def _keep_off(self, off: bool = True) -> None:
        """Keep this thread, and what it starts, off the measuring core, or let it on again."""
        cores = set(self.cores) - {self.core} if off else set(self.cores)
        if cores:
            os.sched_setaffinity(0, cores)

    @contextlib.contextmanager
    def _off_core(self) -> Iterator[None]:
        """Keep the calling thread off the measuring core meanwhile."""
        if not self.cores:
            yield
            return
        before = os.sched_getaffinity(0)
        self._keep_off()
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


__all__ = ["HostMeasurer"]
